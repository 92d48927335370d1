"""Write a comparison as plain data for programs, and as tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attend.api.learning import ComparisonAnswer
from attend.measure.compare import ComparedVersion, Comparison, Difference, QueryDifference
from attend.measure.statistics import Interval

DIGITS = 5


def as_json(comparison: Comparison, plots: Sequence[Path] = ()) -> ComparisonAnswer:
    """Return all of it, with figures rounded to DIGITS; an interval of one query is null."""
    gains = comparison.gains
    return ComparisonAnswer(
        before=_version(comparison.before),
        after=_version(comparison.after),
        differences={
            name: {
                "mean": round(difference.mean, DIGITS),
                "interval": bounds(difference),
                "p": round(difference.p, 8),
            }
            for name, difference in comparison.differences.items()
        },
        measure=comparison.measure,
        gained=gains.gained,
        lost=gains.lost,
        unchanged=gains.unchanged,
        most_gained=_plain(comparison.most_gained),
        most_lost=_plain(comparison.most_lost),
        histogram={"edges": gains.edges, "counts": gains.counts},
        queries=comparison.before.evaluation.queries,
        unknown_documents=comparison.before.evaluation.unknown_documents,
        disturbed=comparison.disturbed,
        plots=[str(path) for path in plots],
    )


def bounds(interval: Interval | Difference) -> list[float] | None:
    """Return [low, high], or None where one query has no spread."""
    if math.isnan(interval.low):
        return None
    return [round(interval.low, DIGITS), round(interval.high, DIGITS)]


def span(interval: Interval | Difference) -> str:
    """Write `[low, high]` for people."""
    if math.isnan(interval.low):
        return "[one query]"
    sign = "+" if isinstance(interval, Difference) else ""
    return f"[{interval.low:{sign}.4f}, {interval.high:{sign}.4f}]"


def as_text(comparison: Comparison) -> str:
    """Write the table, then the queries that gained and lost most."""
    gains, before, after = comparison.gains, comparison.before, comparison.after
    sections = [
        _table(comparison),
        f"Expected calibration error of the best document's weight: {before.weight.ece:.4f} "
        f"before, {after.weight.ece:.4f} after; of the confidence: {before.confidence.ece:.4f} "
        f"before, {after.confidence.ece:.4f} after.",
        f"{comparison.measure}: {gains.gained} of {before.evaluation.queries} queries gained, "
        f"{gains.lost} lost, {gains.unchanged} did not change.",
    ]
    for title, queries in (
        ("Gained most", comparison.most_gained),
        ("Lost most", comparison.most_lost),
    ):
        if queries:
            sections.append(f"{title}:\n" + "\n".join(map(_query, queries)))
    return "\n\n".join(sections)


def _version(version: ComparedVersion) -> dict[str, Any]:
    return {
        "projection": version.ranked.projection,
        "calibrated": version.ranked.calibrated,
        "measures": _plain(version.evaluation.measures),
        "intervals": {name: bounds(interval) for name, interval in version.intervals.items()},
        "reliability": {
            name: {"ece": round(kind.ece, DIGITS), "bins": _plain(kind.bins)}
            for name, kind in (("weight", version.weight), ("confidence", version.confidence))
        },
    }


def _plain(value: Any) -> Any:
    """Turn named tuples into objects, within lists and mappings too, and round numbers."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _table(comparison: Comparison) -> str:
    before, after = comparison.before, comparison.after
    rows: list[tuple[str, ...]] = [
        (
            "",
            f"before (version {before.ranked.projection})",
            f"after (version {after.ranked.projection})",
            "after - before",
            "p",
        )
    ]
    for name, difference in comparison.differences.items():
        intervals = before.intervals[name], after.intervals[name]
        gain = f"{difference.mean:+.4f} {span(difference)}"
        p = f"{difference.p:.4f}" if difference.p >= 0.0001 else "<0.0001"
        rows.append((name, *(f"{i.mean:.4f} {span(i)}" for i in intervals), gain, p))
    note = "In brackets: 95 % intervals. p: paired randomisation, two-sided."
    return "\n".join([*_aligned(rows), note])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()


def _query(query: QueryDifference) -> str:
    lines = [
        f"  {query.query}  {query.before:.3f} -> {query.after:.3f} ({query.gain:+.3f})  "
        f"{' '.join(query.text.split())}"
    ]
    for name, documents in (
        ("before", query.documents_before),
        ("after", query.documents_after),
    ):
        for rank, document in enumerate(documents, start=1):
            grade = "not judged" if document.grade is None else f"grade {document.grade:g}"
            label = name if rank == 1 else ""
            line = f"    {label:<6} {rank}  {document.id} ({grade})  {document.text}"
            lines.append(line.rstrip())
        if not documents:
            lines.append(f"    {name:<6} nothing")
    return "\n".join(lines)
