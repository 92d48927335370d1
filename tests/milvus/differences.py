"""The differences of the engines, as the contract's tests hold them to what they declare.

`python -m tests.milvus.differences` prints the table of docs/how-to/milvus.md.

Each capability that is one or the other has a probe: what is done where it is declared, and is
refused with `Unsupported` where it is not. Bounds have probes that exceed them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.engines.engine import Capabilities
from attend.engines.local import CAPABILITIES as LOCAL
from attend.exchange.backup import save_backup
from attend.learning import train
from attend.write.feedback import add_feedback
from attend.write.reindex import reindex
from tests.milvus.contract import WIDTH

QUERY = [1.0] + [0.0] * (WIDTH - 1)

Probe = Callable[[Data, Collection, Path], Any]
"""Takes a library, a collection of it that has a document `d0`, and where a file may be."""

PROBES: dict[str, Probe] = {
    "lexical": lambda data, c, path: c.search(QUERY, lexical=True),
    "recency": lambda data, c, path: c.search(QUERY, recency="day:30"),
    "match": lambda data, c, path: c.page({"@text": {"match": "word"}}),
    "attend_all": lambda data, c, path: c.search(QUERY, attend="all"),
    "facets": lambda data, c, path: c.facets(["colour"]),
    "recommend": lambda data, c, path: c.recommend(positive=["d0"], k=1),
    "examples": lambda data, c, path: add_feedback(c, [{"query": QUERY, "id": "d0"}]),
    "memory": lambda data, c, path: c.search(QUERY, memory=0.5),
    "train": lambda data, c, path: train(c),
    "snapshots": lambda data, c, path: save_backup(data, path),
    "log": lambda data, c, path: c.configure(log=True),
    "reindex": lambda data, c, path: reindex(data, c.name, "another"),
}
"""By capability: what takes it. What it raises else (too few examples to train) is no refusal."""

PROBED_ELSEWHERE = {
    "engine": "the name itself",
    "atomic_batches": "nowhere: a writer killed between two documents of a batch",
    "attend_most": "test_capabilities.py",
    "any_scorer": "test_contract_search.py: exact, or said not to be",
    "insertion_order": "test_capabilities.py",
    "jobs": "test_service.py, over HTTP",
    "text_bytes": "test_capabilities.py",
    "content_bytes": "test_capabilities.py",
    "foreign": "no refusal: the confidence is null (tests/index/search/test_foreign.py)",
    "consistency": "test_failover.py, by two replicas",
    "window": "nothing to see: how many documents a build takes at once",
}


def meanings() -> dict[str, str]:
    """What each capability is, from the class's own words."""
    attributes = inspect.cleandoc(str(Capabilities.__doc__)).partition("Attributes:\n")[2]
    each = re.split(r"\n {4}(?=\w)", "\n" + attributes)[1:]
    told = [entry.partition(":") for entry in each]
    return {
        name: " ".join(meaning.split()) for names, _, meaning in told for name in names.split(", ")
    }


def table(*engines: Capabilities) -> str:
    """Markdown: a row for each capability in which the engines differ."""
    rows = [
        [field.name, *(_shown(getattr(each, field.name)) for each in engines)]
        for field in fields(Capabilities)
        if field.name not in ("engine", "refusals")
        and len({getattr(each, field.name) for each in engines}) > 1
    ]
    said = meanings()
    head = ["", *(each.engine for each in engines), "what it is"]
    lines = [head, ["---"] * len(head), *([f"`{row[0]}`", *row[1:], said[row[0]]] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int):
        return "no bound" if value is None else f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def both() -> tuple[Capabilities, Capabilities]:
    from attend_milvus.server import CAPABILITIES

    return LOCAL, CAPABILITIES


if __name__ == "__main__":
    print(table(*both()))
