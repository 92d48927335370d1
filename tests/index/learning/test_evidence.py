"""What is said of a version is what its report has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from attend import Data
from attend.api.learning import StoredProjection
from attend.cli import main
from attend.encoder.precision import FORMATS
from attend.learning import train
from attend.learning.evidence import changed_questions, evidence_of
from attend.learning.selection import Criterion, compare_splits, decide
from attend.learning.task import Look
from attend.write.feedback import add_feedback
from tests.index.learning.planted import Planted, teach_vectors
from tests.places import ROOT


def version(report: dict[str, Any], **more: Any) -> StoredProjection:
    stored = {"kind": "learned", "tuning": {"threshold": 0.6}, "active": True, "parent": 1}
    fields = {"version": 2, "fingerprint": "", "created": "", "note": {}, **stored, **more}
    return StoredProjection(report=report, **fields)


def view(before: float, after: float, p: float, **more: Any) -> dict[str, Any]:
    figures = {"label": "the mix", "before": before, "after": after, "p": p, "queries": 93}
    return {**figures, "difference": after - before, "interval": None, "decides": True, **more}


def ranking(**report: Any) -> dict[str, Any]:
    views = {"mix": view(0.447, 0.458, 0.23)}
    return {"promoted": False, "chosen": {"objective": "ranking"}, "views": views, **report}


def test_a_version_in_use_without_a_proof_says_for_what_and_how_many_more() -> None:
    told = evidence_of(version(ranking(more=140)))
    assert told.state == "fitted"
    assert told.sentence == (
        "Version 2 · confidence fitted; ranking not proved better: about 140 more questions"
    )
    assert told.verdict.startswith("In use for its confidence; its ranking is about the same (no")
    assert "nDCG@10 0.447 → 0.458, p 0.23" in told.verdict
    assert (told.measure, told.before, told.after, told.more) == ("nDCG@10", 0.447, 0.458, 140)
    assert "Not promoted" not in told.sentence + told.verdict


def test_without_a_gain_no_number_of_questions_is_named() -> None:
    told = evidence_of(version(ranking(more=None)))
    assert told.sentence == "Version 2 · confidence fitted; ranking not proved better"
    plain = evidence_of(version(ranking(), tuning={}))
    assert (plain.state, plain.verdict.split(":")[0]) == ("unproved", "In use without a proof")
    other = evidence_of(version(ranking(), active=False))
    assert other.verdict.startswith("Not in use: no proof of a gain")


def test_a_version_that_no_training_made_says_so() -> None:
    assert evidence_of(version({}, kind="identity", tuning={}, version=1)).sentence == (
        "Version 1 · as encoded"
    )
    assert evidence_of(version({}, kind="given")).sentence == "Version 2 · added, not measured"


def answers(accuracy: dict[str, Any]) -> dict[str, Any]:
    deciding = view(-0.749, -0.573, 0.0057, label="log likelihood")
    views = {"log likelihood": deciding, "accuracy": accuracy}
    return {"promoted": True, "chosen": {"objective": "answers"}, "level": 0.018, "views": views}


def test_accuracy_heads_the_sentence_only_where_it_is_proved_too() -> None:
    sure = view(0.767, 0.833, 0.01, label="accuracy", decides=False)
    assert evidence_of(version(answers(sure))).sentence == (
        "Version 2 · right in 83 of 100, before 77 · proved"
    )
    told = evidence_of(version(answers({**sure, "p": 0.3})))
    # exp(-0.573) and exp(-0.749): the geometric means of the shares.
    assert told.sentence == "Version 2 · share of the right answer 56 %, before 47 % · proved"
    assert told.measure == "log likelihood"


def test_errors_and_older_reports() -> None:
    error = view(0.93, 0.85, 0.001, label="documents that others rated", errors=True)
    rated = {"promoted": True, "chosen": {"objective": "ratings"}, "views": {"random": error}}
    assert evidence_of(version(rated)).sentence == (
        "Version 2 · error (RMSE) 0.850, before 0.930 · proved"
    )
    old = {name: value for name, value in view(0.4, 0.5, 0.001).items() if name != "decides"}
    told = evidence_of(version(ranking(promoted=True, views={"mix": old})))
    assert told.sentence == "Version 2 · ranking (nDCG@10) 0.500, before 0.400 · proved"
    bare = evidence_of(version({"promoted": True, "reason": "by hand"}))
    assert (bare.sentence, bare.verdict) == ("Version 2 · proved", "Proved better.")


# -- how many more -----------------------------------------------------------------------------


def criterion(gain: float, spread: float, size: int) -> Criterion:
    noise = np.random.default_rng(3).normal(size=size)
    noise = spread * (noise - noise.mean()) / noise.std(ddof=1)
    return Criterion(
        "mix", "the mix", np.full(size, 0.4), 0.4 + gain + noise, gain=True, tolerance=None
    )


def test_as_many_more_as_a_power_computation_tells_and_the_reason_says() -> None:
    one = criterion(0.02, 0.15, 93)
    verdict = decide([one], Look(93), measure="ndcg@10", units="questions")
    assert not verdict.promote
    # One-sided at .018 with a power of .8: n = ((2.097 + 0.842) · σ / δ)²
    assert verdict.more == pytest.approx((2.939 * 0.15 / 0.02) ** 2 - 93, rel=0.03)
    assert f"about {verdict.more:,} more would show such a gain" in verdict.reason


def test_no_gain_or_a_proof_need_no_more() -> None:
    for gain, promoted in ((-0.02, False), (0.0, False), (0.2, True)):
        one = criterion(gain, 0.15, 93)
        verdict = decide([one], Look(93), measure="ndcg@10", units="questions")
        assert (verdict.promote, verdict.more) == (promoted, None)


def test_a_loss_that_is_not_ruled_out_needs_as_many_as_the_reason_says() -> None:
    from tests.index.learning.test_promotion import drawn, outcome

    unseen = outcome([0.5] * 4, [0.4, 0.4, 0.7, 0.55], first=60)
    criteria = compare_splits({"random": drawn(0.3, 60, 1), "unseen": unseen}, 0.8)
    verdict = decide(criteria, Look(64), measure="ndcg@10", units="questions")
    assert f"about {verdict.more:,} more held-out questions" in verdict.reason


# -- real trainings ----------------------------------------------------------------------------


def test_steps_and_changed_questions_are_of_held_out_questions(tmp_path: Path) -> None:
    planted = Planted(4, 40, angle=1.0, noise=0.2)
    collection = planted.collection(tmp_path)
    teach_vectors(collection, planted.asked(np.arange(30)), np.arange(30))
    report = train(collection)
    steps = {step["name"]: step["means"] for step in report["steps"]}
    assert list(steps) == ["encoded", "feedback", "trained"]
    views = report["views"]
    assert steps["trained"] == {name: each["after"] for name, each in views.items()}
    # The version that answers is one of the steps, with the same figures.
    assert {name: each["before"] for name, each in views.items()} in (
        steps["encoded"],
        steps["feedback"],
    )
    changed = report["changed"]
    assert changed["questions"] == 30
    items = changed["items"]
    gains = [item["after"] - item["before"] for item in items]
    assert gains == sorted(gains, reverse=True)
    assert all(item["right"][0] != item["right"][1] for item in items)
    assert all(item["documents"][0] != item["documents"][1] for item in items)
    before, after = changed["right_first"]
    rose = sum(item["right"][1] for item in items)
    assert after - before == rose - (len(items) - rose)
    # A document that is right is the one that was taught.
    stored = {each.id: each.document for each in collection.store.latest_examples(100)}
    for item in items:
        assert item["documents"][item["right"].index(True)] == stored[item["example"]]


def test_a_text_goes_with_its_feedback(tmp_path: Path, tiny_encoder_folder: Path) -> None:
    data = Data(tmp_path)
    made = data.create("texts", encoder=str(tiny_encoder_folder))
    made.upsert([{"id": name, "text": name} for name in ("whale", "rose")])
    add_feedback(made, [{"query": "secret words", "id": "rose"}, {"query": "other", "id": "rose"}])
    ids = sorted(example.id for example in made.store.latest_examples(9))
    figures = {"before": 0.5, "after": 1.0, "documents": ["whale", "rose"], "right": [False, True]}
    changed = {"questions": 2, "right_first": [0, 2]}
    report = {"changed": {**changed, "items": [{"example": id, **figures} for id in ids]}}
    told = changed_questions(made.store, version(report))
    assert [item.text for item in told.items] == ["secret words", "other"]
    assert told.items[0].documents_after[0].grade == 1
    made.store.delete_examples(queries=["secret words"])
    assert [item.text for item in changed_questions(made.store, version(report)).items] == ["other"]
    made.delete(["whale"])
    assert changed_questions(made.store, version(report)).items == []
    data.close()


@pytest.mark.parametrize("precision", FORMATS)
def test_the_desk_of_the_examples_is_proved(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the packaged encoder: the chip's sentence is that of the report, and none of it ours."""
    monkeypatch.setenv("ATTEND_PRECISION", precision)
    options = ["--data", str(tmp_path), "--collection", "desk"]
    built = CliRunner().invoke(main, ["build", str(ROOT / "examples" / "intents.csv"), *options])
    assert built.exit_code == 0, built.output
    data = Data(tmp_path)
    desk = data.collection("desk")
    assert desk.info().formats == {precision: 200}
    report = train(desk, objective="answers")
    told = desk.projections()[-1].evidence
    assert told is not None
    assert report["promoted"]
    accuracy = report["views"]["accuracy"]
    right, before = (f"{100 * accuracy[side]:.0f}" for side in ("after", "before"))
    assert told.state == "proved"
    assert told.sentence == f"Version 2 · right in {right} of 100, before {before} · proved"
    assert told.questions == 200
    changed = changed_questions(desk.store, desk.projections()[-1])
    assert [round(count / 2) for count in changed.right_first] == [int(before), int(right)]
    gains = [item.gain for item in changed.items]
    assert gains == sorted(gains, reverse=True)
    for item in changed.items:
        asked = desk.document(item.query)
        assert asked.fields["text"].startswith(item.text.rstrip("…"))
        sides = (item.documents_before[0], item.documents_after[0])
        assert [side.grade for side in sides] in ([0.0, 1.0], [1.0, 0.0])
        for side in sides:  # the label comes first, and is right where it is said to be
            assert side.text.startswith(f"{desk.document(side.id).value}: ")
            assert (desk.document(side.id).value == asked.value) == (side.grade == 1)
    data.close()
