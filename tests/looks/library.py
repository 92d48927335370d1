"""What the pages are looked at with: the demo's collections, and one that learned from labels."""

from __future__ import annotations

import zlib
from pathlib import Path

from attend import Data
from attend.learning import train
from attend.write.feedback import add_feedback
from attend_service import demo
from attend_service.docstrings import Docstring, standard_library

MODULES = "modules"
SCARCE = 3
"""Of the functions every so manieth asks its question: enough to learn from."""


def prepare(folder: Path) -> None:
    """The demo's collections, and the modules taught by what their functions say, in one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data = Data(folder)
    for part in demo.parts():
        demo.prepare(data, part)
    if MODULES not in data.names() or len(data.collection(MODULES).projections()) == 1:
        learned(data, standard_library())
    data.close()


def learned(data: Data, docstrings: list[Docstring]) -> None:
    """A collection with two versions, the second learned and judged."""
    modules = {each.module: each for each in docstrings if each.name == each.module}
    made = data.ensure(MODULES)
    made.upsert(
        [
            {
                "id": each.name,
                "text": each.text.split("\n\n")[0],
                "value": {"words": len(each.text.split())},
                "payload": {
                    "title": each.name,
                    "size": "long" if len(each.text) > 500 else "short",
                },
            }
            for each in modules.values()
        ]
    )
    made.publish()
    asked = [
        each
        for each in docstrings
        if each.kind == "function"
        and each.module in modules
        and zlib.crc32(each.name.encode()) % SCARCE == 0
    ]
    add_feedback(made, [{"query": each.summary, "id": each.module} for each in asked])
    train(made)
