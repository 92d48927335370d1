"""What is proved of a version: read from the report of its training, and said in a sentence.

Nothing is computed here, and nothing is said that a report does not have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from attend.api.base import MAX_ROW, Reply
from attend.api.learning import (
    ChangedQuestions,
    Evidence,
    LearnedFromUse,
    QueryDifference,
    RankedDocument,
    StoredProjection,
)
from attend.core.types import Bool, Float64, Int64, Json
from attend.store import CollectionStore, StoredDocument
from attend.values.select import display_title, select

ROLLED_BACK = "rolled_back"
"""The setting with the versions that use has sent back, and why each."""

DECIDING = ("mix", "log likelihood", "squared error", "random")
"""The names of comparisons that decide, in reports that do not say which does."""

UNITS = {"answers": "documents", "interactions": "users", "ratings": "ratings"}
"""What is held out, by objective; else questions."""


class Gain(NamedTuple):
    """The measure that decided, its means, and both in words."""

    measure: str
    before: float
    after: float
    words: str
    tested: str


def with_evidence(
    versions: Sequence[StoredProjection], settings: Mapping[str, Any]
) -> list[StoredProjection]:
    """Return versions with what is proved of each, and which of them use has sent back.

    Args:
        settings: the collection's, as they are stored.
    """
    gone, results = sent_back(settings), []
    for version in versions:
        evidence, by_use = evidence_of(version), gone.get(str(version.version))
        if by_use is not None:
            verdict = f"{evidence.verdict} Sent back by use: {by_use}"
            evidence = replace(evidence, verdict=verdict, rolled_back=True)
        results.append(replace(version, evidence=evidence))
    return results


def evidence_of(version: StoredProjection) -> Evidence:
    """Return what is proved of a version."""
    report, name = version.report, f"Version {version.version}"
    if "promoted" not in report:
        state, words = _untrained(version)
        return Evidence(state, f"{name} · {words}", f"{name}, {words}: it was not trained.")
    if by_use := report.get("by_use"):
        return Evidence("proved", f"{name} · proved by use", f"Proved better by use: {by_use}")
    gain, view = _gain(report), _deciding(report) or {}
    figures: dict[str, Any] = {"questions": view.get("queries")}
    if gain is not None:
        figures |= {"measure": gain.measure, "before": gain.before, "after": gain.after}
    words, tested = ("", "") if gain is None else (gain.words, gain.tested)
    if report["promoted"]:
        sentence = " · ".join(filter(None, (name, words, "proved")))
        verdict = f"Proved better: {tested}." if tested else "Proved better."
        return Evidence("proved", sentence, verdict, **figures)
    units = UNITS.get(_objective(report), "questions")
    subject = "ranking" if units == "questions" else "answers"
    more = report.get("more") if isinstance(report.get("more"), int) else None
    further = "" if more is None else f": about {more:,} more {units}"
    none = f"no proof of a gain: {tested}".rstrip(" :")
    end = "." if more is None else f". About {more:,} more {units} would prove such a gain."
    is_fitted = version.tuning.get("threshold") is not None
    words = f"{subject} not proved better{further}"
    if not version.active:
        verdict = f"Not in use: {none}{end}"
    elif is_fitted:
        same = "the same" if gain is None or gain.before == gain.after else "about the same"
        verdict = f"In use for its confidence; its {subject} is {same} ({none}){end}"
    else:
        verdict = f"In use without a proof: {none}{end}"
    if is_fitted:
        words = f"confidence fitted; {words}"
        return Evidence("fitted", f"{name} · {words}", verdict, **figures, more=more)
    return Evidence("unproved", f"{name} · {words}", verdict, **figures, more=more)


def _untrained(version: StoredProjection) -> tuple[Literal["encoded", "added"], str]:
    """Return the state and the words of a version that no training made."""
    if version.kind == "identity" and not version.tuning:
        return "encoded", "as encoded"
    return "added", "added, not measured"


def _comparisons(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the comparisons of a report by name; one from a restored copy may hold anything."""
    views = report.get("views")
    return {
        name: view
        for name, view in (views.items() if isinstance(views, Mapping) else ())
        if isinstance(view, Mapping)
        and all(isinstance(view.get(field), int | float) for field in ("before", "after", "p"))
    }


def _deciding(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the comparison that the promotion test decided by; None where there was none."""
    views = _comparisons(report)
    named = [view for view in views.values() if view.get("decides")]
    return next(iter([*named, *(views[name] for name in DECIDING if name in views)]), None)


def _gain(report: Mapping[str, Any]) -> Gain | None:
    """Return what the promotion test decided by, in words."""
    view, views = _deciding(report), _comparisons(report)
    if view is None:
        return None
    objective = _objective(report)
    before, after, p = view["before"], view["after"], view["p"]
    label = view.get("label", "score")
    guard = views.get("accuracy")
    if label == "log likelihood" and guard is not None:
        tested = f"log likelihood {_signed(before)} → {_signed(after)}, {_p(p)}"
        # Accuracy stands first where a gain in it leaves no doubt either.
        if guard["after"] > guard["before"] and guard["p"] < report.get("level", 0):
            words = (
                f"right in {100 * guard['after']:.0f} of 100, before {100 * guard['before']:.0f}"
            )
            tested = f"{words}, {_p(guard['p'])}; decided by {tested}"
            return Gain("accuracy", guard["before"], guard["after"], words, tested)
        shares = [f"{100 * math.exp(mean):.0f}" for mean in (after, before)]
        words = f"share of the right answer {shares[0]} %, before {shares[1]} %"
        return Gain(label, before, after, words, tested)
    names = {"ranking": "nDCG@10", "interactions": "nDCG@10", "ratings": "RMSE"}
    measure = names.get(objective, label)
    subject = {"ratings": "error", "interactions": "recommendations"}.get(objective, "ranking")
    subject = label if measure == label else f"{subject} ({measure})"
    words = f"{subject} {_signed(after)}, before {_signed(before)}"
    tested = f"{measure} {_signed(before)} → {_signed(after)}, {_p(p)}"
    return Gain(measure, before, after, words, tested)


def _objective(report: Mapping[str, Any]) -> str:
    choice = report.get("chosen")
    return str(choice.get("objective") if isinstance(choice, Mapping) else None)


def _signed(number: float) -> str:
    """Write a number with three decimals, and a true minus sign."""
    return f"{number:.3f}".replace("-", "\N{MINUS SIGN}")


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p {p:.2g}"


MOST_CHANGED = 50
"""Units whose best document changed that a report names: the largest gains and losses."""


def changed(
    store: CollectionStore,
    named: Sequence[Mapping[str, Json]],
    rows: Int64,
    right: Bool,
    values: Float64,
) -> dict[str, Json]:
    """Return how often the best document was right, and the held-out units where it changed from a
    wrong one to a right one or back, by gain.

    Args:
        named: how the report names each unit.
        rows: (2, h) the best document of each before and after, 0 for none.
        right: (2, h) whether it is right.
        values: (2, h) the measure.
    """
    gains = values[1] - values[0]
    shown = np.flatnonzero((right[0] != right[1]) & (rows > 0).all(axis=0))
    shown = shown[np.argsort(-gains[shown], kind="stable")]
    if len(shown) > MOST_CHANGED:
        shown = np.concatenate([shown[: MOST_CHANGED // 2], shown[-(MOST_CHANGED // 2) :]])
    documents = store.documents(np.unique(rows[:, shown]), texts=False)
    items: list[dict[str, Json]] = [
        {
            **named[place],
            "before": float(values[0, place]),
            "after": float(values[1, place]),
            "documents": [documents[row].id for row in rows[:, place].tolist()],
            "right": right[:, place].tolist(),
        }
        for place in shown.tolist()
        if all(row in documents for row in rows[:, place].tolist())
    ]
    counts = right.sum(axis=1).tolist()
    return {"questions": len(named), "right_first": counts, "items": items}


class ChangedUnit(Reply):
    """A held-out unit whose best document changed, as `changed` puts it into a report."""

    documents: Annotated[list[str], Field(min_length=2, max_length=2)]
    right: Annotated[list[bool], Field(min_length=2, max_length=2)]
    before: FiniteFloat
    after: FiniteFloat
    document: str | None = None
    example: Annotated[int, Field(ge=-1, le=MAX_ROW)] = -1


class ChangedUnits(Reply):
    """What `changed` puts into a report, and the measure."""

    questions: int
    right_first: list[int]
    items: list[ChangedUnit]
    measure: str = "ndcg@10"


_changed_units = TypeAdapter(ChangedUnits)


def changed_questions(store: CollectionStore, version: StoredProjection) -> ChangedQuestions:
    """Return the held-out questions of a version's training whose best document changed.

    A report names questions by their examples, whose texts are those of the feedback that is
    stored, and documents that ask by their ids.
    """
    choice = version.report.get("chosen")
    path = choice.get("value") if isinstance(choice, Mapping) else None
    try:
        stored = _changed_units.validate_python(version.report.get("changed"))
    except ValidationError:  # there are none; or a restored copy has another form
        stored = ChangedUnits(0, [0, 0], [])
    named = {id for item in stored.items for id in (*item.documents, item.document)}
    documents = store.find(sorted(id for id in named if id is not None))
    titles = {
        id: display_title(id, document.fields, document.value, document.payload)
        for id, document in documents.items()
    }
    items = []
    for item in stored.items:
        name, text = _asked(store, item, titles)
        if text is None or any(id not in titles for id in item.documents):
            continue
        before, after = (
            [RankedDocument(id, _answering(item, documents[id], path, titles[id]), float(is_right))]
            for id, is_right in zip(item.documents, item.right, strict=True)
        )
        figures = item.before, item.after, item.after - item.before
        items.append(QueryDifference(name, text, *figures, before, after))
    return ChangedQuestions(stored.questions, stored.right_first, stored.measure, items)


def _asked(
    store: CollectionStore, item: ChangedUnit, titles: Mapping[str, str]
) -> tuple[str, str | None]:
    """Return the name and the text of a held-out unit; None for one that is gone."""
    if item.document is not None:
        return item.document, titles.get(item.document)
    example = next(iter(store.latest_examples(1, item.example + 1)), None)
    is_there = example is not None and example.id == item.example
    return str(item.example), example.query if is_there and example is not None else None


def _answering(item: ChangedUnit, document: StoredDocument, path: str | None, title: str) -> str:
    """Return what a document says as an answer: its value where values are what is learned."""
    if item.document is None:
        return title
    value = select(path, document.id, document.value, document.payload, document.fields)
    return f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}: {title}"


def sent_back(settings: Mapping[str, Any]) -> dict[str, Json]:
    """Return what use says of the versions that it has sent back, by their numbers."""
    stored = settings.get(ROLLED_BACK)
    return dict(stored) if isinstance(stored, Mapping) else {}


def learned_from_use(
    versions: Sequence[StoredProjection], settings: Mapping[str, Any]
) -> LearnedFromUse:
    """Tell how often use has promoted a version, and sent one back, and what is left of the gain.

    Args:
        settings: the collection's, as they are stored.
    """
    gone = sent_back(settings)
    promoted = []
    for version in versions:
        used = version.report.get("used")
        if version.report.get("promoted") and isinstance(used, Mapping) and used.get("relevant"):
            promoted.append(version)
    standing = [version for version in promoted if str(version.version) not in gone]
    views = [_deciding(one.report) for one in standing if not one.report.get("by_use")]
    gain = float(sum(view["after"] - view["before"] for view in views if view is not None))
    back = len(promoted) - len(standing)
    sentence = (
        f"Learned from use: {len(promoted)} promotion{'s' * (len(promoted) != 1)}, "
        f"{back} rollback{'s' * (back != 1)}, {100 * gain:+.1f} points"
    ).replace("-", "\N{MINUS SIGN}")
    return LearnedFromUse(len(promoted), back, gain, sentence)
