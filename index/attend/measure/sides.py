"""What one version reached: measures, their intervals, and how true its confidence is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attend.measure.rankings import MEASURES, Evaluation, Qrels, Ranked
from attend.measure.statistics import Interval, Reliability, reliability


@dataclass(frozen=True)
class Side:
    """One of the two versions that are compared.

    Attributes:
        weight: the weight of the best document, against whether that document is relevant.
        confidence: the confidence, against whether any relevant document was ranked.
    """

    ranked: Ranked
    evaluation: Evaluation
    intervals: Mapping[str, Interval]
    weight: Reliability
    confidence: Reliability


def side(
    ranked: Ranked, evaluation: Evaluation, qrels: Qrels, intervals: Sequence[Interval]
) -> Side:
    """A version's side of the comparison; `intervals` stand in the order of MEASURES."""
    relevant = {
        query: [qrels[query].get(id, 0) > 0 for id in each.documents]
        for query, each in ranked.rankings.items()
    }
    return Side(
        ranked,
        evaluation,
        dict(zip(MEASURES, intervals, strict=True)),
        weight=reliability(
            [_share(each.weight) for each in ranked.rankings.values()],
            [any(of[:1]) for of in relevant.values()],
        ),
        confidence=reliability(
            [_share(each.confidence) for each in ranked.rankings.values()],
            [any(of) for of in relevant.values()],
        ),
    )


def _share(weight: float) -> float:
    """Within 0 to 1, which a sum of weights leaves by its last bit."""
    return min(1.0, max(0.0, weight))
