"""The README of an exported model: how to use it, and what it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attend.exchange.leftovers import Leftover
from attend.exchange.pair import Layer, Pair


class Facts(NamedTuple):
    """What the card says of one export."""

    collection: str
    version: int
    encoder: str
    similarity: str
    difference: float
    tolerance: float


def card(pair: Pair, facts: Facts, left: Sequence[Leftover]) -> str:
    """Markdown, with the few fields at its head that model libraries read."""
    return "\n".join(
        [_HEAD, *_what(pair, facts), _USE, *_stays_behind(left), *_exactness(facts), ""]
    )


_HEAD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- sentence-similarity
- feature-extraction
---"""

_USE = """
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text", "another text"])
scores = model.similarity(queries, documents)
```

`encode` without a task embeds documents."""


def _what(pair: Pair, facts: Facts) -> list[str]:
    return [
        f"# {facts.collection}, projection {facts.version}",
        "",
        f"The encoder {facts.encoder}, its weights unchanged, and after it a Router with one route "
        f"for queries and one for documents, exported by Attend.",
        "",
        f"- query: {_layer(pair.query)}",
        f"- document: {_layer(pair.document)}",
        f"- similarity: {facts.similarity}",
    ]


def _layer(layer: Layer) -> str:
    if layer.weight is None:
        return "the embedding as it is, at length one"
    out, taken = layer.weight.shape
    bias = "with" if layer.bias is not None else "without"
    length = ", then length one" if layer.normalize else ""
    return f"Dense {taken} → {out}, {bias} bias, no activation{length}"


def _stays_behind(left: Sequence[Leftover]) -> list[str]:
    rows = [f"| {each.what} | {'yes' if each.in_use else 'no'} | {each.detail} |" for each in left]
    return [
        "",
        "## What cannot travel",
        "",
        "| part of the version | in use there | |",
        "|---|---|---|",
        *rows,
        "",
        "Where one of the first three is in use, the service ranks otherwise than this model does. "
        "A text longer than the encoder's window is several keys there; here its end is cut off.",
    ]


def _exactness(facts: Facts) -> list[str]:
    return [
        "",
        "## Exactness",
        "",
        f"Checked on export: scores differ from the collection's encoder in float32 under the same "
        f"projection by at most {facts.difference:.1e} (allowed: {facts.tolerance:g}). A service "
        f"that encodes in bfloat16 differs by that rounding too.",
    ]
