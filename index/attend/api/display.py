"""Answers for people: one line in a terminal, a table with bars in a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

LONGEST = 60
"""Characters of a value or text in a line."""

LONGEST_CELL = 240
"""Characters of a value or text in a cell of a table."""

SHOWN_HITS = 3
"""Hits that the line of an answer names."""

BAR = "background:#4c78a8;height:.7em;display:inline-block;width:{width:.0f}px"
"""The style of a bar; a weight of one is 120 pixels."""


def shortened(content: Any, longest: int = LONGEST) -> str:
    """Return a value or a text on one line.

    >>> shortened({"price": 3})
    '{"price": 3}'
    """
    text = content if isinstance(content, str) else json.dumps(content, default=str)
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def answer_text(answer: Mapping[str, Any]) -> str:
    """Return what an answer says, in a few words.

    >>> answer_text({"type": "number", "mean": 4.2, "std": 0.31, "coverage": 1.0})
    '4.2 ± 0.31'
    >>> answer_text({"type": "category", "value": "red", "distribution": {"red": 0.9}})
    'red (0.90)'
    """
    kind = answer.get("type")
    if kind == "nothing":
        return f"no answer: {answer.get('reason')}"
    if kind == "object":
        fields = (answer.get("fields") or {}).items()
        return shortened(", ".join(f"{name} {answer_text(part)}" for name, part in fields))
    if kind == "vector" and answer.get("vector") is not None:
        return f"a vector of {len(answer['vector'])} numbers"
    if answer.get("mean") is not None:
        spread = "" if answer.get("std") is None else f" ± {answer['std']:.2g}"
        return f"{answer['mean']:.4g}{spread}"
    if answer.get("value") is None:
        return "no value"
    value = shortened(answer["value"])
    share = (answer.get("distribution") or {}).get(str(answer["value"]))
    return value if share is None else f"{value} ({share:.2f})"


def hit_line(hit: Any) -> str:
    """Return a hit or a recommendation as one line."""
    text = hit.title or hit.passage or hit.text
    parts = [repr(hit.id), f"weight {hit.weight:.3f}"]
    parts += [] if hit.value is None else [f"value {shortened(hit.value)}"]
    parts += [repr(shortened(text))] if text else []
    return f"{type(hit).__name__}({', '.join(parts)})"


def hits_line(hits: Sequence[Any]) -> str:
    """Return the best hits of a list, on one line."""
    named = [f"{hit.id!r} {hit.weight:.3f}" for hit in hits[:SHOWN_HITS]]
    more = ["…"] if len(hits) > SHOWN_HITS else []
    noun = "hit" if len(hits) == 1 else "hits"
    return f"{len(hits)} {noun}" + (f": {', '.join([*named, *more])}" if hits else "")


def hits_table(hits: Sequence[Any], summary: str) -> str:
    """Return hits as a table in HTML, with a bar for each weight; all text is escaped."""
    rows = [
        (
            str(rank),
            escape(shortened(hit.id)),
            f'<span style="{BAR.format(width=120 * min(max(hit.weight, 0.0), 1.0))}"></span> '
            f"{hit.weight:.3f}",
            "" if hit.value is None else escape(shortened(hit.value, LONGEST_CELL)),
            escape(shortened(_text_of(hit), LONGEST_CELL)),
        )
        for rank, hit in enumerate(hits, start=1)
    ]
    return table(("", "id", "weight", "value", "text"), rows, escape(summary))


def table(head: Iterable[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Return a table in HTML; the cells and the caption are HTML already."""
    names = "".join(f"<th>{name}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<p>{caption}</p><table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"


def name_of(part: Mapping[str, Any]) -> str:
    """Return what names a target or a part of a history."""
    name = next((part[kind] for kind in ("id", "text") if part.get(kind) is not None), "a vector")
    return shortened(str(name))


def _text_of(hit: Any) -> str:
    """Return the words that tell a hit from others: its title, its passage, else its payload."""
    text = hit.title or hit.passage or hit.text
    return text or (json.dumps(hit.payload, default=str) if hit.payload else "")
