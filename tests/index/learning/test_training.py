"""Training from end to end: what is found, what is promoted, and what is left alone.

Collections are of vectors or of the tiny encoder's texts; where many trainings are needed, the
recipes take few steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.core.errors import Conflict, InvalidRequest
from attend.core.settings import Tuning
from attend.learning import Cancelled, ranking, train
from attend.learning.data import memory_of, scale_now
from attend.learning.ranking import MEASURE
from attend.learning.ranking_model import RECIPE
from attend.learning.task import FIRST_LOOK, LATER_LOOK
from attend.measure.statistics import paired_randomisation
from attend.projection import given
from tests.index.helpers import vector_data
from tests.index.learning.planted import (
    WIDTH,
    Planted,
    answers,
    reciprocal_ranks,
    teach_vectors,
    versions,
)
from tests.many import some

FIELDS = {"promoted", "reason", "version", "before", "after", "views", "chosen", "seconds"}
STAGES = ["reading", "trying", "judging", "fitting", "calibrating", "storing", "activating", "done"]


# -- a planted map ---------------------------------------------------------------------------------


class Learned:
    """One training, and everything that was seen of it."""

    def __init__(self, folder: Path) -> None:
        self.planted = Planted(0, 150, 0.9, 0.08)
        self.collection = self.planted.collection(folder)
        self.planted.teach(self.collection, 90)
        self.which = self.planted.rng.permutation(150)[:40]
        self.queries = self.planted.asked(self.which)
        self.before = answers(self.collection, self.queries)
        self.told: list[tuple[str, float]] = []
        self.report = train(self.collection, progress=lambda *each: self.told.append(each))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    return Learned(tmp_path_factory.mktemp("planted"))


def test_a_planted_map_is_found_and_promoted(learned):
    report = learned.report
    assert report["promoted"], report["reason"]
    assert report["after"][MEASURE] > report["before"][MEASURE] + 0.15
    assert report["chosen"]["recipe"] == RECIPE.name
    assert versions(learned.collection) == [(1, False), (report["version"], True)]
    first, now = (
        reciprocal_ranks(learned.collection, learned.queries, learned.which, projection=number)
        for number in (1, report["version"])
    )
    assert now.mean() > first.mean() + 0.1
    assert paired_randomisation(now, first) < 0.05


def test_held_out_figures_foretell_fresh_questions(learned):
    """Half of the fresh questions' documents were taught, and the views are mixed by halves."""
    now = [[id for id, _, _ in hits] for hits in answers(learned.collection, learned.queries)]
    gains = [
        1 / np.log2(2 + ids.index(f"d{at}")) if f"d{at}" in ids else 0.0
        for ids, at in zip(now, learned.which, strict=True)
    ]
    assert np.mean(gains) == pytest.approx(learned.report["after"][MEASURE], abs=0.12)


def test_the_report_is_whole_and_plain(learned):
    report = learned.report
    assert report.keys() >= FIELDS | {"calibration", "questions", "examples", "documents"}
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["questions"] == report["examples"] == 90
    assert report["documents"] == 150
    assert report["seconds"] > 0
    assert set(report["views"]) == {"random", "unseen", "new", "mix"}
    for figures in report["views"].values():
        assert figures["after"] - figures["before"] == pytest.approx(figures["difference"])
        assert figures["interval"][0] <= figures["difference"] <= figures["interval"][1]
        assert 0 < figures["p"] <= 1
        assert figures["queries"] > 0
    after = {name: figures["after"] for name, figures in report["views"].items()}
    mix = after["random"] / 2 + after["unseen"] / 4 + after["new"] / 4
    assert report["after"][MEASURE] == pytest.approx(mix)
    assert report["chosen"]["share_seen"] == 0.5
    assert f"{report['after'][MEASURE]:.4f}" in report["reason"]


def test_the_report_is_stored_with_the_version(learned):
    stored = learned.collection.projections()[-1].report
    assert stored["promoted"] is True
    assert stored["views"] == learned.report["views"]
    assert stored["chosen"] == learned.report["chosen"]
    assert stored["calibration"] == learned.report["calibration"]


def test_progress_grows_stage_by_stage(learned):
    assert [stage for stage, _ in groupby(learned.told, lambda each: each[0])] == STAGES
    for _, group in groupby(learned.told, lambda each: each[0]):
        done = [share for _, share in group]
        assert done == sorted(done)
        assert min(done) >= 0
        assert max(done) <= 1
    assert sum(stage == "trying" for stage, _ in learned.told) > 100
    assert learned.told[-1] == ("done", 1.0)


def test_weights_are_calibrated_as_stored(learned):
    tuning = Tuning.of(learned.collection.projections()[-1].tuning)
    assert tuning.scale == (learned.report["calibration"]["scale"],)
    answer = learned.collection.search(learned.queries[0].tolist())
    assert answer.calibrated
    assert 0 < answer.confidence < 1


def test_the_next_fit_begins_at_the_scale_until_now(learned):
    memory = memory_of(learned.collection, None)
    untrained, trained = learned.collection.projections()
    assert scale_now(untrained, memory) == memory.scale
    assert scale_now(trained, memory) == learned.report["calibration"]["scale"]


def test_rollback_restores_the_very_answers(learned):
    now = answers(learned.collection, learned.queries)
    assert now != learned.before
    assert learned.collection.rollback() == 1
    assert answers(learned.collection, learned.queries) == learned.before
    learned.collection.activate(learned.report["version"])
    assert answers(learned.collection, learned.queries) == now


def test_the_same_examples_promote_nothing_twice(learned):
    before, known = answers(learned.collection, learned.queries), versions(learned.collection)
    report = train(learned.collection)
    assert not report["promoted"], report["reason"]
    assert report["kept"]
    assert report["before"][MEASURE] == pytest.approx(learned.report["after"][MEASURE], abs=0.05)
    assert versions(learned.collection) == [*known, (report["version"], False)]
    assert answers(learned.collection, learned.queries) == before


def test_asking_what_can_be_asked_for_loads_no_learning():
    loaded = "import sys, attend.learning; print(*(name in sys.modules for name in sys.argv[1:]))"
    names = ["torch", "attend.learning.ranking", "attend.learning.answers", "attend.learning.fit"]
    ran = subprocess.run(
        [sys.executable, "-c", loaded, *names], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["False"] * 4


# -- what it has to be better than -----------------------------------------------------------------


FORMS = {
    "plain": {},
    "biases": {"b_q": np.zeros(WIDTH), "b_k": np.zeros(WIDTH)},
    "centre": {"center": np.zeros(WIDTH)},
}


@pytest.mark.parametrize("option", [("--heads", 2), ("--part", "additive")])
def test_what_is_no_longer_learned_is_refused_by_the_command_line(small, option):
    _, collection = small
    folder = collection.folder.parent.parent
    given = ["train", "--data", folder, "--collection", collection.name, *option]
    refused = CliRunner().invoke(main, [str(each) for each in given])
    assert refused.exit_code == 2
    assert str(option[1]) in refused.output
    assert versions(collection) == [(1, True)]


@pytest.mark.parametrize("form", [*FORMS, "heads"])
def test_a_version_that_is_right_already_stands_trial_as_it_is(tmp_path, quick, form):
    planted = Planted(6, 100, 0.8, 0.0)
    collection = planted.collection(tmp_path)
    planted.teach(collection, 60)
    w_q, w_k = planted.turned.T, np.eye(WIDTH)
    if form == "heads":
        # Both heads see all, so that their mean is what one sees.
        made = given(np.stack([w_q, w_q]), np.stack([w_k, w_k]), heads=2)
    else:
        made = given(w_q, w_k, **FORMS[form])
    collection.activate(collection.add_projection(made))
    report = train(collection)
    assert report["before"]["ndcg@10"] == pytest.approx(1, abs=1e-6)
    assert not report["promoted"]


def test_a_version_whose_examples_are_gone_stands_trial_as_it_is(small):
    planted, collection = small
    first = train(collection)
    assert first["promoted"], first["reason"]
    collection.store.delete_examples()
    planted.teach(collection, 60)
    again = train(collection)
    middle = (first["before"][MEASURE] + first["after"][MEASURE]) / 2
    assert again["before"][MEASURE] > middle


def test_who_switches_versions_meanwhile_is_not_overruled(small):
    _, collection = small
    other = collection.add_projection(given(np.eye(WIDTH)[:4], np.eye(WIDTH)[:4]))

    def switch(stage: str, done: float) -> None:
        if stage == "calibrating":
            collection.activate(other)

    report = train(collection, progress=switch)
    assert not report["promoted"]
    assert f"Projection {other} is active by now" in report["reason"]
    assert versions(collection) == [(1, False), (other, True), (report["version"], False)]
    stored = collection.projections()[-1].report
    assert stored["promoted"] is False
    assert stored["kept"]
    assert "before this version answered; train again" in stored["reason"]
    collection.activate(1)
    assert train(collection)["tests"] == 1  # the look was counted, and this one has no new data


def test_a_training_that_is_cut_off_before_the_activation_uses_no_look_up(small):
    _, collection = small

    def cut_off(stage: str, done: float) -> None:
        if stage == "activating":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(collection, progress=cut_off)
    first = collection.projections()[-1]
    assert not first.active
    assert first.report["kept"]
    again = train(collection)
    assert again["promoted"], again["reason"]
    assert (again["tests"], again["kept"]) == (1, False)
    assert versions(collection) == [(1, False), (again["version"], True)]  # the first one is gone
    assert not collection.projections()[-1].report["kept"]


def test_a_look_is_counted_with_the_version_and_a_second_one_needs_new_data(small):
    planted, collection = small
    stages: list[str] = []
    with pytest.raises(Cancelled):
        train(
            collection,
            progress=lambda stage, done: stages.append(stage),
            cancelled=lambda: "fitting" in stages,
        )
    again = train(collection)  # what was stopped has used nothing up
    assert (again["tests"], again["level"]) == (1, FIRST_LOOK)
    assert again["promoted"], again["reason"]
    collection.activate(1)
    same = train(collection)  # the gain is as large as before
    assert not same["promoted"]
    assert same["tests"] == 1
    assert "looked at before: the next chance comes with about" in same["reason"]
    planted.teach(collection, 4 * again["groups"])
    more = train(collection, tolerance=0.05)
    assert (more["tests"], more["level"]) == (2, LATER_LOOK)
    assert more["promoted"], more["reason"]


def test_of_two_trainings_at_once_the_second_promotes_nothing(tmp_path, quick):
    planted = Planted(3, 60, 0.0, 0.2)
    collection = planted.collection(tmp_path)
    planted.teach(collection, 30, shuffled=True)
    inner: list[int] = []

    def train_another(stage: str, done: float) -> None:
        if stage == "reading" and not inner:
            inner.append(train(vector_data(tmp_path).collection())["tests"])

    report = train(collection, progress=train_another)
    assert not report["promoted"]
    assert inner == [1]
    assert report["reason"].endswith("meanwhile; train again, one training at a time.")


def test_who_only_looks_counts_no_look(small):
    _, collection = small
    for _ in range(2):
        assert train(collection, promote=False)["tests"] == 1


def test_what_was_not_promoted_is_kept_until_the_next_training(tmp_path, quick):
    planted = Planted(3, 60, 0.0, 0.2)
    collection = planted.collection(tmp_path)
    planted.teach(collection, 30, shuffled=True)
    first, second = train(collection), train(collection)
    assert not second["promoted"]
    assert versions(collection) == [(1, True), (second["version"], False)]
    assert first["version"] < second["version"]
    query = planted.asked([0])[0].tolist()
    assert collection.search(query, projection=second["version"]).hits
    with pytest.raises(InvalidRequest, match="has not promoted version"):
        collection.activate(second["version"])
    collection.activate(second["version"], force=True)
    stored = collection.projections()[-1].report
    assert stored["forced"]
    assert stored["reason"].startswith("Activated by hand. ")
    # What answers is not dropped by the next, nor what once did.
    third = train(collection)
    assert (second["version"], True) in versions(collection)
    assert (third["version"], False) in versions(collection)


def test_the_seed_decides_nothing(small):
    _, collection = small
    reports = [train(collection, promote=False, seed=seed) for seed in (0, 7)]
    assert reports[0]["views"] == reports[1]["views"]


def test_a_document_that_goes_while_a_training_reads_takes_its_labels_along(small, monkeypatch):
    _, collection = small
    read = collection.store.examples

    def examples():
        found = read()
        other = vector_data(collection.folder.parent.parent).collection()
        other.delete(["d99"])
        return found

    monkeypatch.setattr(collection.store, "examples", examples)
    report = train(collection)
    assert report["documents"] == 100  # all of one moment: the deletion comes after it
    assert collection.store.counts()[0] == 99


# -- a stop ----------------------------------------------------------------------------------------


class Stop:
    """Says so at the n-th time of asking."""

    def __init__(self, at: float) -> None:
        self.asked, self.at = 0, at

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked > self.at


def test_a_cancelled_training_changes_nothing(small):
    planted, collection = small
    queries = planted.asked(range(5))
    before = answers(collection, queries)
    for at in (0, 1, 20):
        with pytest.raises(Cancelled, match="nothing was promoted, and nothing was lost"):
            train(collection, cancelled=Stop(at))
        assert versions(collection) == [(1, True)]
        assert answers(collection, queries) == before
    assert train(collection)["promoted"]


def test_a_stop_at_the_end_is_obeyed_or_comes_too_late(small):
    """Who is told that nothing was promoted must find it so."""
    _, collection = small
    whole = Stop(np.inf)
    train(collection, cancelled=whole)
    for last in (5, 4, 3, 2, 1):
        if versions(collection)[0] != (1, True):
            collection.rollback()
        known = versions(collection)
        try:
            report = train(collection, cancelled=Stop(whole.asked - last))
        except Cancelled:
            assert versions(collection) == known, f"at the {last}th question before the end"
        else:
            assert report["promoted"]
            assert versions(collection)[-1] == (report["version"], True)


# -- what cannot be learned from -------------------------------------------------------------------


def nothing_happened(collection, report, *said: str) -> None:
    assert report["promoted"] is False
    assert report["version"] is None
    assert report.keys() >= FIELDS
    json.dumps(report, allow_nan=False)
    for each in said:
        assert each in report["reason"]
    assert versions(collection) == [(1, True)]


@pytest.mark.parametrize("count", [0, 5, 19])
def test_few_questions_prove_nothing(tmp_path, count):
    planted = Planted(2, 40, 0.8, 0.05)
    collection = planted.collection(tmp_path)
    planted.teach(collection, count)
    said = f"{count} questions with a relevant document are stored, and 20 are the fewest"
    nothing_happened(collection, train(collection), said)


def test_a_collection_without_documents(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2)
    with pytest.raises(InvalidRequest, match="has no documents to learn about; add some"):
        train(collection)


def test_questions_that_are_all_one(tmp_path):
    planted = Planted(2, 60, 0.8, 0.0)
    collection = planted.collection(tmp_path)
    near = planted.documents[0] + 0.01 * planted.rng.normal(size=(40, WIDTH))
    teach_vectors(collection, near, range(40))
    nothing_happened(collection, train(collection), "All questions are one question")


def test_the_very_same_question_is_one(tmp_path):
    planted = Planted(2, 60, 0.8, 0.0)
    collection = planted.collection(tmp_path)
    teach_vectors(collection, planted.documents[[0] * 40], range(40))
    nothing_happened(collection, train(collection), "1 question with a relevant document is stored")


def test_negative_labels_only(tmp_path):
    planted = Planted(2, 60, 0.8, 0.0)
    collection = planted.collection(tmp_path)
    teach_vectors(collection, planted.asked(range(40)), range(40), label=-1.0)
    nothing_happened(collection, train(collection), "0 questions with a relevant document")


def test_questions_without_positives_are_passed_over(small):
    planted, collection = small
    teach_vectors(collection, planted.asked(range(5)), range(5, 10), label=0.0)
    teach_vectors(collection, planted.asked(range(5)), range(20, 25), label=-2.0)
    report = train(collection)
    assert report["promoted"], report["reason"]
    assert report["examples"] == 70
    assert report["views"]["random"]["queries"] == 60


def test_all_questions_about_one_document(tmp_path, quick):
    """No document can be held out, and there is nothing to learn but that one."""
    planted = Planted(2, 60, 0.8, 0.0)
    collection = planted.collection(tmp_path)
    teach_vectors(collection, planted.asked(range(40)), [7] * 40)
    report = train(collection)
    json.dumps(report, allow_nan=False)
    assert "unseen" not in report["views"]


def test_the_laplace_scorer_is_refused(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2, scorer="laplace")
    with pytest.raises(InvalidRequest, match="compares by 'laplace'; W_Q and W_K are learned for"):
        train(collection)


@pytest.mark.parametrize("scorer", ["dot", "cosine"])
def test_vectors_of_extreme_length(tmp_path, quick, scorer):
    """As long as may be stored: learned from, or refused in a sentence, with nothing changed."""
    planted = Planted(3, 60, 0.5, 0.05)
    collection = vector_data(tmp_path).create(dimension=WIDTH, scorer=scorer)
    long = (planted.documents * 1e15).tolist()
    collection.upsert([{"id": f"d{at}", "vector": each} for at, each in enumerate(long)])
    teach_vectors(collection, planted.asked(range(40)) * 5e14, range(40))
    try:
        report = train(collection)
    except Conflict:
        assert versions(collection) == [(1, True)]
    else:
        json.dumps(report, allow_nan=False)
        collection.search(planted.asked([0])[0].tolist())


# -- sets that cannot gain -------------------------------------------------------------------------


def significantly_worse(collection, planted: Planted) -> bool:
    """Whether the promoted version loses on fresh questions."""
    which = planted.rng.permutation(len(planted.documents))[:40]
    queries = planted.asked(which)
    first = reciprocal_ranks(collection, queries, which, projection=1)
    now = reciprocal_ranks(collection, queries, which)
    return now.mean() < first.mean() and paired_randomisation(now, first) < 0.05


@pytest.fixture
def rash(monkeypatch):
    """A recipe that goes far in few steps, so that what was learned wrongly does harm."""
    rates = {"maps": 2e-2, "scale": 1e-1, "offsets": 5e-2}
    monkeypatch.setattr(ranking, "RECIPE", replace(RECIPE, rates=rates, steps=(12, 12)))


@pytest.mark.parametrize(("noise", "shuffled"), [(0.2, True), (0.02, False)])
def test_what_cannot_gain_is_hardly_ever_promoted_and_worse(tmp_path, rash, noise, shuffled):
    """Shuffled labels, and a collection at its ceiling; in at most one of twenty.

    Were everything promoted that is chosen, six of twenty shuffled ones would be worse.
    """
    worse, count = 0, some(20)
    for seed in range(count):
        planted = Planted(seed, 50, 0.0, noise)
        collection = planted.collection(tmp_path / str(seed))
        planted.teach(collection, 30, shuffled=shuffled)
        report = train(collection, seed=seed)
        worse += bool(report["promoted"]) and significantly_worse(collection, planted)
    assert worse <= count // 20
