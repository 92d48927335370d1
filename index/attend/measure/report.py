"""A comparison for programs (plain data) and for people (a table and the queries that changed)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attend.measure.changes import Change, Shown
from attend.measure.compare import Comparison, Difference
from attend.measure.sides import Side
from attend.measure.statistics import Bin, Interval

DIGITS = 5


def as_json(found: Comparison, plots: Sequence[Path] = ()) -> dict[str, Any]:
    """Everything, with figures rounded to DIGITS; an interval of one query is null."""
    told = found.changes
    return {
        "before": _side(found.before),
        "after": _side(found.after),
        "differences": {name: _difference(each) for name, each in found.differences.items()},
        "measure": found.measure,
        "gained": told.gains.gained,
        "lost": told.gains.lost,
        "unchanged": told.gains.unchanged,
        "most_gained": [_change(each) for each in told.most_gained],
        "most_lost": [_change(each) for each in told.most_lost],
        "histogram": {"edges": told.gains.edges, "counts": told.gains.counts},
        "queries": found.before.evaluation.queries,
        "unknown_documents": found.before.evaluation.unknown_documents,
        "disturbed": found.disturbed,
        "plots": [str(path) for path in plots],
    }


def bounds(interval: Interval | Difference) -> list[float] | None:
    """[low, high], or None where one query left nothing to draw."""
    if math.isnan(interval.low):
        return None
    return [round(interval.low, DIGITS), round(interval.high, DIGITS)]


def span(interval: Interval | Difference) -> str:
    """`[low, high]` for people."""
    if math.isnan(interval.low):
        return "[one query]"
    sign = "+" if isinstance(interval, Difference) else ""
    return f"[{interval.low:{sign}.4f}, {interval.high:{sign}.4f}]"


def as_text(found: Comparison) -> str:
    """The table, then the queries that gained and lost most."""
    gains = found.changes.gains
    counted = (
        f"{found.measure}: {gains.gained} of {found.before.evaluation.queries} queries gained, "
        f"{gains.lost} lost, {gains.unchanged} stayed."
    )
    sections = [_table(found), _calibration(found), counted]
    sections += _told("Gained most", found.changes.most_gained)
    sections += _told("Lost most", found.changes.most_lost)
    return "\n\n".join(sections)


def _side(side: Side) -> dict[str, Any]:
    return {
        "projection": side.ranked.projection,
        "calibrated": side.ranked.calibrated,
        "measures": {
            name: round(value, DIGITS) for name, value in side.evaluation.measures.items()
        },
        "intervals": {name: bounds(each) for name, each in side.intervals.items()},
        "reliability": {
            name: {"ece": round(each.ece, DIGITS), "bins": [_bin(bin) for bin in each.bins]}
            for name, each in (("weight", side.weight), ("confidence", side.confidence))
        },
    }


def _bin(bin: Bin) -> dict[str, Any]:
    return {
        name: round(value, DIGITS) if isinstance(value, float) else value
        for name, value in bin._asdict().items()
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "mean": round(difference.mean, DIGITS),
        "interval": bounds(difference),
        "p": round(difference.p, 8),
    }


def _change(change: Change) -> dict[str, Any]:
    plain = change._asdict()
    for name in ("documents_before", "documents_after"):
        plain[name] = [shown._asdict() for shown in plain[name]]
    figures = {name: round(plain[name], DIGITS) for name in ("before", "after", "gain")}
    return plain | figures


def _table(found: Comparison) -> str:
    rows = [
        (
            "",
            f"before (version {found.before.ranked.projection})",
            f"after (version {found.after.ranked.projection})",
            "after - before",
            "p",
        )
    ]
    for name, difference in found.differences.items():
        sides = (each.intervals[name] for each in (found.before, found.after))
        before, after = (f"{each.mean:.4f} {span(each)}" for each in sides)
        gain = f"{difference.mean:+.4f} {span(difference)}"
        rows.append((name, before, after, gain, _p(difference.p)))
    note = "In brackets: 95 % intervals. p: paired randomisation, two-sided."
    return "\n".join([*_aligned(rows), note])


def _p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()


def _calibration(found: Comparison) -> str:
    return (
        f"Expected calibration error of the best document's weight: "
        f"{found.before.weight.ece:.4f} before, {found.after.weight.ece:.4f} after; "
        f"of the confidence: {found.before.confidence.ece:.4f} before, "
        f"{found.after.confidence.ece:.4f} after."
    )


def _told(title: str, told: Sequence[Change]) -> list[str]:
    return [f"{title}:\n" + "\n".join(map(_query, told))] if told else []


def _query(change: Change) -> str:
    lines = [
        f"  {change.query}  {change.before:.3f} -> {change.after:.3f} ({change.gain:+.3f})  "
        f"{' '.join(change.text.split())}"
    ]
    for name, shown in (("before", change.documents_before), ("after", change.documents_after)):
        lines += [_document(name, rank, each) for rank, each in enumerate(shown, start=1)]
        if not shown:
            lines.append(f"    {name:<6} nothing")
    return "\n".join(lines)


def _document(name: str, rank: int, shown: Shown) -> str:
    grade = "not judged" if shown.grade is None else f"grade {shown.grade:g}"
    side = name if rank == 1 else ""
    return f"    {side:<6} {rank}  {shown.id} ({grade})  {shown.text}".rstrip()
