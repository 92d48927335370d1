"""Rows of answers that are removed: does confidence tell, and how true weights are by then.

Each test question is asked twice: of the collection as it is, and once the relevant documents of
all are deleted, when nothing there answers it. A mask would not do: words count by the best match
of the whole collection, and what is left then shows that something better is hidden. A question
none of whose relevant documents is among the hundred best has no answer either way, and counts as
one without in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from common import progress
from learning_no_answer import auroc
from learning_rows import Row, row_of
from learning_sets import TITLES, Bench, Judged, RankingSet, taught, trained

from attend import Collection
from attend.api.answers import Answer
from attend.core.types import Bool, Float64
from attend.learn.no_answer import ERROR_RATE, SHARES
from attend.measure.statistics import calibration_error, mean_interval

ASKED_OF = {"scifact": 0.80}
"""The AUROC that was asked for."""

MOST = 0.07
"""Own questions refused at a stated 5 %."""

NEXT = 10
"""Documents up to which the margin of the best looks."""


class Side(NamedTuple):
    """What questions are answered.

    Attributes:
        scores: (q, a) of the best documents, best first.
        weight, null: (q,) of the best document, and of no answer.
        correct: (q,) the share of what is right that the best document has.
        answered: (q,) whether a relevant document is among the best.
        refused: (q,) whether the collection says that nothing answers.
    """

    scores: Float64
    weight: Float64
    null: Float64
    correct: Float64
    answered: Bool
    refused: Bool

    @property
    def largest(self) -> tuple[Float64, Float64]:
        """The largest weight of each question, no answer included, and how right its holder is."""
        right = np.where(self.weight >= self.null, self.correct, ~self.answered)
        return np.maximum(self.weight, self.null), right

    @property
    def confidence(self) -> Float64:
        return 1 - self.null


class Asked(NamedTuple):
    """The same questions with their answers, and without them."""

    with_answers: Side
    without: Side

    def told(self, values: Callable[[Side], Float64]) -> tuple[Float64, Float64]:
        """Values of questions that something answers, and of those with the answers removed."""
        there = self.with_answers.answered
        return values(self.with_answers)[there], values(self.without)[there]

    def error(self, pairs: Callable[[Side], tuple[Float64, Float64]]) -> float:
        """The calibration error where one question in ten has lost its answers."""
        columns = [
            (*pairs(side), np.full(len(side.weight), share))
            for share, side in zip(SHARES, self, strict=True)
        ]
        return calibration_error(*(np.concatenate(each) for each in zip(*columns, strict=True)))


def removed(name: str) -> Callable[[Bench], Iterator[Row]]:
    """Return the section of a set whose answers are removed from its collection."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        with bench.workshop.beir(given) as collection:
            taught(collection, given.train)
            version = collection.store.projections()[0].version
            progress(f"removed: asking {name} untrained")
            # Stored questions would move a query: what is frozen has no labels.
            plain = {"projection": version, "lexical": False, "memory": 0.0}
            labelled = _fitted(
                Asked(
                    *(_asked(collection, given.train, masked, **plain) for masked in (False, True))
                )
            )
            first = _asked(collection, given.test, **plain)
            run = trained(collection)
            second = _asked(collection, given.test)
            collection.delete(sorted(given.test.documents()))
            before = Asked(first, _asked(collection, given.test, **plain))
            after = Asked(second, _asked(collection, given.test))
        yield from _told_apart(given, before, after, labelled, run.said)
        yield from _calibration(name, TITLES[name], before, after)

    return section


def _asked(collection: Collection, judged: Judged, masked: bool = False, **options: Any) -> Side:
    answers = []
    for id, text in judged.queries.items():
        relevant = judged.relevant(id)
        mask = {"mask": {"exclude": sorted(relevant)}} if masked else {}
        answer = collection.search(text, k=100, fields=[], **mask, **options)
        answers.append((answer, relevant))
    return _side(answers)


def _side(answers: Sequence[tuple[Answer, set[str]]]) -> Side:
    width = max(len(answer.hits) for answer, _ in answers)
    scores = np.full((len(answers), width), np.nan)
    rows = []
    for place, (answer, relevant) in enumerate(answers):
        scores[place, : len(answer.hits)] = [hit.score for hit in answer.hits]
        flags = [hit.id in relevant for hit in answer.hits]
        # Without a no-answer score everything is answered, as if it were certain.
        null = 1 - (answer.confidence or 0.0) if answer.calibrated == "examples" else 0.0
        correct = flags[0] / max(1, sum(flags))
        rows.append((answer.hits[0].weight, null, correct, any(flags), not answer.answered))
    return Side(scores, *(np.array(column) for column in zip(*rows, strict=True)))


# -- telling apart --------------------------------------------------------------------------


def _features(side: Side) -> Float64:
    """(q, 3): the best score, its margin over the next, and the spread of all."""
    best = side.scores[:, 0]
    margin = best - np.nanmean(side.scores[:, 1:NEXT], axis=1)
    return np.stack([best, margin, np.nanstd(side.scores, axis=1)], axis=1)


def _sum(side: Side, usual: Side) -> Float64:
    """The sum of the features, each in units of its spread over questions as they come."""
    features = _features(usual)
    return ((_features(side) - features.mean(axis=0)) / features.std(axis=0)).sum(axis=1)


def _fitted(asked: Asked) -> Callable[[Side], Float64]:
    """Logistic regression of the features on training questions, as they are and removed."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    sides = asked.told(lambda side: side.weight)
    there = asked.with_answers.answered
    features = np.concatenate([_features(side)[there] for side in asked])
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(features, np.repeat([1, 0], [len(side) for side in sides]))
    return lambda side: np.asarray(model.decision_function(_features(side)))


def _told_apart(
    given: RankingSet, before: Asked, after: Asked, labelled: Callable[[Side], Float64], note: str
) -> Iterator[Row]:
    name = f"removed.{given.name}"
    what = f"{TITLES[given.name]}, answers removed, AUROC: "
    ways: dict[str, tuple[str, Asked, Callable[[Side], Float64]]] = {
        "cosine": ("best cosine", before, lambda side: side.scores[:, 0]),
        "spread": (
            "with margin and spread, no labels",
            before,
            lambda side: _sum(side, before.with_answers),
        ),
        "labelled": ("the same by logistic regression", before, labelled),
        "confidence": ("confidence after a training", after, lambda side: -np.log(side.null)),
    }
    for short, (way, asked, values) in ways.items():
        row = row_of(f"{name}.{short}", what + way, auroc(*asked.told(values)))
        if short == "confidence":
            row = row._replace(note=note)
            least = ASKED_OF.get(given.name)
            row = row if least is None else row.wanted(">=", least)
        yield row
    own, foreign = after.told(lambda side: side.refused.astype(np.float64))
    row = row_of(f"{name}.own", f"  at {ERROR_RATE:.0%}: own questions refused", mean_interval(own))
    yield row.wanted("<=", MOST)
    what = "  questions whose answers are removed refused"
    yield row_of(f"{name}.recognised", what, mean_interval(foreign))


# -- calibration ----------------------------------------------------------------------------


def _calibration(name: str, title: str, before: Asked, after: Asked) -> Iterator[Row]:
    """The errors before and after, where one question in ten has lost its answers."""
    for short, what, pairs in (
        ("weight", "best weight", lambda side: side.largest),
        ("confidence", "confidence", lambda side: (side.confidence, side.answered)),
    ):
        errors = before.error(pairs), after.error(pairs)
        what = f"{title}, calibration error of the {what}"
        yield Row(f"calibration.{name}.{short}_before", f"{what} before", errors[0])
        row = Row(f"calibration.{name}.{short}_after", "  after a training", errors[1])
        yield row.wanted("<=", errors[0])
