"""What is proved of a version: read from the report of its training, and said in a sentence.

Nothing is computed here, and nothing is said that a report does not have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from attend.api.learning import (
    ChangedQuestions,
    Evidence,
    QueryDifference,
    RankedDocument,
    StoredProjection,
)
from attend.store import CollectionStore
from attend.values.select import display_title

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


def with_evidence(versions: Sequence[StoredProjection]) -> list[StoredProjection]:
    """Return versions with what is proved of each."""
    return [replace(version, evidence=evidence_of(version)) for version in versions]


def evidence_of(version: StoredProjection) -> Evidence:
    """Return what is proved of a version."""
    report, name = version.report, f"Version {version.version}"
    if "promoted" not in report:
        state, words = _untrained(version)
        return Evidence(state, f"{name} · {words}", f"{name}, {words}: it was not trained.")
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
    more = report.get("more")
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


def _deciding(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the comparison that the promotion test decided by; None where there was none."""
    views = report.get("views") or {}
    named = [view for view in views.values() if view.get("decides")]
    return next(iter([*named, *(views[name] for name in DECIDING if name in views)]), None)


def _gain(report: Mapping[str, Any]) -> Gain | None:
    """Return what the promotion test decided by, in words."""
    view, views = _deciding(report), report.get("views") or {}
    if view is None:
        return None
    objective = _objective(report)
    before, after, label, p = view["before"], view["after"], view["label"], view["p"]
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
    return str((report.get("chosen") or {}).get("objective"))


def _signed(number: float) -> str:
    """Write a number with three decimals, and a true minus sign."""
    return f"{number:.3f}".replace("-", "\N{MINUS SIGN}")


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p {p:.2g}"


def changed_questions(store: CollectionStore, version: StoredProjection) -> ChangedQuestions:
    """Return the held-out questions of a version's training whose best document changed.

    A report names them by their examples; the texts are those of the feedback that is stored.
    """
    report = version.report
    changed = report.get("changed") or {"questions": 0, "right_first": [0, 0], "items": []}
    named = sorted({id for item in changed["items"] for id in item["documents"]})
    titles = {
        id: display_title(id, document.fields, document.value, document.payload)
        for id, document in store.find(named).items()
    }
    items = []
    for item in changed["items"]:
        example = next(iter(store.latest_examples(1, item["example"] + 1)), None)
        is_there = example is not None and example.id == item["example"]
        if not is_there or example is None or example.query is None:
            continue
        if any(id not in titles for id in item["documents"]):
            continue
        before, after = (
            [RankedDocument(id, titles[id], float(is_right))]
            for id, is_right in zip(item["documents"], item["right"], strict=True)
        )
        figures = item["before"], item["after"], item["after"] - item["before"]
        items.append(QueryDifference(str(example.id), example.query, *figures, before, after))
    measure = next(iter(report.get("before") or ["ndcg@10"]))
    return ChangedQuestions(changed["questions"], changed["right_first"], measure, items)
