"""A comparison of two versions as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from attend.api.learning import ComparisonAnswer, QueryDifference
from attend.cli.output import table


def span(bounds: Sequence[float] | None, sign: str = "") -> str:
    """Write an interval as `[low, high]`."""
    if bounds is None:
        return "[one query]"
    return f"[{bounds[0]:{sign}.4f}, {bounds[1]:{sign}.4f}]"


def as_text(comparison: ComparisonAnswer) -> str:
    """Write the table, then the queries that gained and lost most."""
    before, after = comparison.before, comparison.after
    sections = [_measures(comparison)]
    errors = {
        name: f"{before.reliability[name].ece:.4f} before, {after.reliability[name].ece:.4f} after"
        for name in before.reliability
    }
    sections.append(
        f"Expected calibration error of the best document's weight: {errors['weight']}; of the "
        f"confidence: {errors['confidence']}."
    )
    sections.append(
        f"{comparison.measure}: {comparison.gained} of {comparison.queries} queries gained, "
        f"{comparison.lost} lost, {comparison.unchanged} did not change."
    )
    for title, queries in (
        ("Gained most", comparison.most_gained),
        ("Lost most", comparison.most_lost),
    ):
        if queries:
            sections.append(f"{title}:\n" + "\n".join(map(_query, queries)))
    return "\n\n".join(sections)


def _measures(comparison: ComparisonAnswer) -> str:
    before, after = comparison.before, comparison.after
    versions = f"before (version {before.projection})", f"after (version {after.projection})"
    rows: list[tuple[str, ...]] = [("", *versions, "after - before", "p")]
    for name, difference in comparison.differences.items():
        both = (f"{v.measures[name]:.4f} {span(v.intervals[name])}" for v in (before, after))
        gain = f"{difference.mean:+.4f} {span(difference.interval, '+')}"
        p = f"{difference.p:.4f}" if difference.p >= 0.0001 else "<0.0001"
        rows.append((name, *both, gain, p))
    return f"{table(rows)}\nIn brackets: 95 % intervals. p: paired randomisation, two-sided."


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
