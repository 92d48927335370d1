"""The features of the engine, and the limits of Milvus 2.3.

The limits are those of https://milvus.io/docs/limitations.md (read for 2.3): 65,535 bytes of a
text field, 65,536 of a JSON field, 16,384 results, 64 MB of a message.
"""

from __future__ import annotations

from attend.engines.engine import Capabilities

MAX_TEXT_BYTES = 65_535
MAX_RESULTS = 16_384
MESSAGE_BYTES = 48 << 20
"""Of the 64 MB of a message, what is filled with rows as they are counted here."""

MAX_ATTENDED = 10_000
"""More documents are found than are attended, as some are found by several keys."""

CAPABILITIES = Capabilities(
    "milvus",
    atomic_batches=False,
    lexical=False,
    match=False,
    attend_all=False,
    attend_most=MAX_ATTENDED,
    any_scorer=False,
    facets=False,
    insertion_order=False,
    recommend=False,
    train=("matrices",),
    jobs=False,
    snapshots=False,
    text_bytes=MAX_TEXT_BYTES,
    content_bytes=MAX_TEXT_BYTES,
    consistency=True,
    window=1000,  # a write waits some 200 ms to learn what is stored
)
