"""`train(objective="answers")` from end to end: what it proves, what it refuses, what it leaves."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from click.testing import CliRunner

from attend.api.base import parse
from attend.api.learning import TrainRequest
from attend.api.search import SearchRequest
from attend.cli import main
from attend.collection.data import Data
from attend.core.errors import InvalidRequest
from attend.core.settings import UNTRAINED_MEMORY, Tuning
from attend.learning import Cancelled, train
from attend.learning.answer_model import (
    Blends,
    DocumentFold,
    attend_fold,
    document_folds,
    fold_scores,
)
from attend.learning.answers import read_answers
from attend.learning.fit import unlearned
from attend.measure.statistics import calibration_error
from attend.projection import given
from tests.index.answer_world import WIDTH, asked, named, stored, told_apart
from tests.index.helpers import split_heads
from tests.places import DATA

BANKING = DATA / "banking77"
FIELDS = {
    *("promoted", "reason", "version", "before", "after", "views", "chosen", "calibration"),
    "seconds",
}


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A collection that can gain, after training."""
    rng = np.random.default_rng(11)
    vectors, labels = told_apart(rng, 400)
    collection = stored(tmp_path_factory.mktemp("learned"), vectors, named(labels))
    fresh, truth = told_apart(rng, 300)
    before = asked(collection, fresh)
    stages = []
    report = train(
        collection, objective="answers", progress=lambda stage, done: stages.append((stage, done))
    )
    yield collection, report, fresh, np.array(named(truth)), before, stages
    collection.close()


def right(answers, truth):
    return np.mean([each.answer["value"] == one for each, one in zip(answers, truth, strict=True)])


def test_a_gain_is_promoted_and_holds_for_queries_never_seen(learned):
    collection, report, fresh, truth, before, _ = learned
    assert report.keys() >= FIELDS
    assert report["promoted"]
    assert report["version"] == collection.info().projection
    assert report["after"]["log likelihood"] > report["before"]["log likelihood"]
    after = asked(collection, fresh)
    assert right(after, truth) > right(before, truth) + 0.03
    assert all(each.calibrated for each in after)
    assert not any(each.calibrated for each in before)
    assert report["chosen"]["memory"] == collection.info().memory == UNTRAINED_MEMORY


def test_what_was_measured_is_what_happens(learned):
    _, report, fresh, truth, _, _ = learned
    collection = learned[0]
    found = asked(collection, fresh)
    accuracy = right(found, truth)
    assert report["after"]["accuracy"] == pytest.approx(accuracy, abs=0.06)
    sure = np.array([max(each.answer["distribution"].values()) for each in found])
    correct = np.array([each.answer["value"] for each in found]) == truth
    ece = calibration_error(sure, correct.astype(float))
    assert ece == pytest.approx(report["calibration"]["ece_after"], abs=0.06)
    confident = np.array([each.confidence for each in found])
    threshold = report["calibration"]["threshold"]
    # The rate is what may be refused at most: all documents together see more than two folds did.
    assert (confident < threshold).mean() < 0.05 + 0.04


def test_unknown_labels_are_answered_with_less_confidence(tmp_path):
    rng = np.random.default_rng(2)
    vectors, labels = told_apart(rng, 500, classes=6)
    kept = labels < 5
    collection = stored(tmp_path, vectors[kept], named(labels[kept]))
    assert train(collection, objective="answers")["promoted"]
    fresh, truth = told_apart(rng, 400, classes=6)
    confidence = np.array([each.confidence for each in asked(collection, fresh)])
    known, unknown = confidence[truth < 5], confidence[truth == 5]
    assert (known[:, None] > unknown).mean() > 0.75
    collection.close()


def test_progress_comes_often_and_grows(learned):
    stages = learned[-1]
    assert list(dict.fromkeys(stage for stage, _ in stages)) == [
        *("reading", "trying", "judging", "fitting", "calibrating", "storing", "activating"),
        "done",
    ]
    trying = [done for stage, done in stages if stage == "trying"]
    assert len(trying) > 20
    assert trying == sorted(trying)
    assert trying[-1] <= 1


def test_training_again_finds_nothing_more_and_a_rollback_undoes_it(learned):
    collection, report, *_ = learned
    again = train(collection, objective="answers")
    assert not again["promoted"]
    assert again["kept"]
    assert collection.info().projection == report["version"]


def test_who_replaces_what_was_trained_for_something_else_says_so(tmp_path):
    """A version that ranks by examples has no part in one that answers by values, nor back."""
    rng = np.random.default_rng(21)
    vectors, labels = told_apart(rng, 300)
    collection = stored(tmp_path, vectors, named(labels))
    eye = np.eye(WIDTH, dtype=np.float32)
    ranks = given(eye, eye, normalize_queries=True, normalize_keys=True)
    version = collection.store.add_projection(
        *(ranks.kind, ranks.to_bytes(), ranks.fingerprint, {}),
        report={"chosen": {"objective": "ranking", "recipe": "known documents", "share": 1.0}},
    )
    collection.activate(version)
    report = train(collection, objective="answers")
    assert report["promoted"]
    assert report["previous"] == version
    assert report["chosen"]["memory"] == collection.info().memory == 0  # as version 2 has it
    assert "It takes the place of version 2, which learned from examples" in report["reason"]
    assert collection.projections()[-1].report["reason"] == report["reason"]
    again = train(collection, objective="answers", promote=False)
    assert again["previous"] == report["version"]
    assert "takes the place" not in again["reason"]
    collection.close()


def test_the_blend_of_training_is_the_blend_of_a_search(tmp_path):
    """Held-out weights against the public search on a collection of the other documents."""
    rng = np.random.default_rng(4)
    vectors, labels = told_apart(rng, 160)
    whole = stored(tmp_path / "whole", vectors, named(labels))
    material, _ = read_answers(whole, parse(TrainRequest, {"objective": "answers"}))
    held, members = np.arange(20), np.arange(20, 160)
    rest = stored(tmp_path / "rest", vectors[20:], named(labels[20:]))
    w_q, w_k = (
        (np.eye(WIDTH) + 0.2 * rng.standard_normal((WIDTH, WIDTH))).astype(np.float32)
        for _ in range(2)
    )
    projection = given(w_q, w_k, normalize_queries=True, normalize_keys=True)
    rest.store.add_projection(
        *(projection.kind, projection.to_bytes(), projection.fingerprint, {}),
        tuning=Tuning(scale=(13.0,), null=(9.0,), attend=100, scorer="dot").stored(),
        activate=True,
    )
    fold, fitted = DocumentFold(held, members), unlearned(material.memory, w_q)._replace(w_k=w_k)
    found = attend_fold(material, fold, fold_scores(material, fitted, fold))
    w, names = Blends(found, material.targets, 13.0).weights, np.array(named(labels))
    for at, answer in enumerate(asked(rest, vectors[held])):
        shares = {
            name: w[at][names[found.documents[at]] == name].sum()
            for name in answer.answer["distribution"]
        }
        assert answer.answer["distribution"] == pytest.approx(shares, abs=1e-5)
    whole.close()
    rest.close()


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_labels_are_never_promoted_to_something_worse(tmp_path, seed):
    rng = np.random.default_rng(100 + seed)
    vectors, labels = told_apart(rng, 150)
    collection = stored(tmp_path, vectors, named(rng.permutation(labels)))
    fresh, truth = told_apart(rng, 400)
    drawn = np.array(named(rng.permutation(truth)))
    logs = []
    for _ in range(2):
        found = asked(collection, fresh)
        share = [
            each.answer["distribution"].get(one, 0) for each, one in zip(found, drawn, strict=True)
        ]
        logs.append(np.log(np.maximum(share, 1e-3)))
        if len(logs) == 1:
            train(collection, objective="answers", seed=seed)
    change = logs[1] - logs[0]
    assert change.mean() > -2 * change.std() / np.sqrt(len(change)) - 1e-9
    collection.close()


def test_a_stopped_training_leaves_everything_as_it_was(tmp_path):
    rng = np.random.default_rng(5)
    vectors, labels = told_apart(rng, 200)
    collection = stored(tmp_path, vectors, named(labels))
    for stop_at in ("reading", "trying", "fitting", "calibrating"):
        seen = []

        def stop(seen=seen, stop_at=stop_at):
            return bool(seen) and seen[-1] == stop_at

        with pytest.raises(Cancelled):
            train(
                collection,
                objective="answers",
                progress=lambda stage, done, seen=seen: seen.append(stage),
                cancelled=stop,
            )
        assert len(collection.projections()) == 1
    collection.close()


def test_the_active_version_is_judged_by_its_own_heads_and_scale(tmp_path):
    """Two heads, of which neither is what training would begin with."""
    rng = np.random.default_rng(8)
    vectors, labels = told_apart(rng, 240)
    collection = stored(tmp_path, vectors, named(labels))
    halves = split_heads(WIDTH, 2)
    collection.activate(collection.add_projection(halves))
    report = train(collection, objective="answers", promote=False)
    assert not report["promoted"]
    assert report["version"] == 3
    # The heads' search says the same of documents whose fold is held out.
    groups = read_answers(collection, parse(TrainRequest, {"objective": "answers"}))[0].groups
    right_ones = 0
    for fold in document_folds(groups, 3, seed=0):
        mask = {"exclude": [f"d{at}" for at in fold.held_out.tolist()]}
        for at in fold.held_out.tolist():
            answer = collection.search({"id": f"d{at}"}, mode="soft", mask=mask)
            right_ones += answer.answer["value"] == f"label {labels[at]}"
    assert report["before"]["accuracy"] == pytest.approx(right_ones / 240, abs=0.02)
    collection.close()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["red"] * 40, "same"),
        ([7.5] * 40, "same"),
        ([f"a text of its own, number {at}" for at in range(40)], "'text'"),
        (["red", "blue"] * 5 + [None] * 30, "this collection has 10"),
    ],
)
def test_what_cannot_be_learned_is_said_and_nothing_changes(tmp_path, values, sentence):
    rng = np.random.default_rng(9)
    collection = stored(tmp_path, rng.standard_normal((40, 4)), values)
    report = train(collection, objective="answers")
    assert report.keys() >= FIELDS
    assert not report["promoted"]
    assert report["version"] is None
    assert sentence in report["reason"]
    assert len(collection.projections()) == 1
    collection.close()


@pytest.mark.parametrize(
    ("path", "word"), [(None, "one of colour, size"), ("weight", "weight"), ("@key", "@key")]
)
def test_a_wrong_value_names_the_field(tmp_path, path, word):
    rng = np.random.default_rng(9)
    values = [{"colour": "red" if at % 2 else "blue", "size": at} for at in range(40)]
    collection = stored(tmp_path, rng.standard_normal((40, 4)), values)
    with pytest.raises(InvalidRequest, match=word) as error:
        train(collection, objective="answers", value=path)
    assert error.value.field == "value"
    collection.close()


def test_a_field_of_objects_is_learned(tmp_path):
    rng = np.random.default_rng(10)
    vectors, labels = told_apart(rng, 200)
    values = [{"label": [f"l{each}", "all"], "even": bool(each % 2)} for each in labels.tolist()]
    collection = stored(tmp_path, vectors, values)
    assert train(collection, objective="answers", value="even")["promoted"]
    assert train(collection, objective="answers", value="label")["views"]
    collection.close()


def test_folds_keep_groups_together_and_hold_everything_once():
    groups = np.random.default_rng(0).integers(0, 40, 100)
    divided = document_folds(groups, 3, seed=1)
    assert sorted(np.concatenate([fold.held_out for fold in divided])) == list(range(100))
    for fold in divided:
        assert not set(groups[fold.held_out]) & set(groups[fold.members])
        assert len(fold.held_out) + len(fold.members) == 100
    assert document_folds(np.zeros(9, dtype=np.int64), 3, seed=0) == []


def test_texts_by_the_command_line(tmp_path, tiny_encoder_folder):
    rng = np.random.default_rng(12)
    source = tmp_path / "talk.csv"
    words = {
        "sea": ["whale", "ship", "storm", "harbour"],
        "land": ["bread", "flour", "oven", "salt"],
    }
    noise = ["the", "of", "and", "it", "was", "by", "so", "then", "when", "where"]
    with source.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "topic"])
        for _ in range(150):
            topic = str(rng.choice(list(words)))
            drawn = [*rng.choice(words[topic], 2), *rng.choice(noise, 6)]
            writer.writerow([" ".join(drawn), topic])
    runner = CliRunner()
    folder = str(tmp_path / "data")
    built = runner.invoke(
        main,
        [
            *("build", str(source), "--data", folder, "--text", "text", "--value", "topic"),
            *("--encoder", str(tiny_encoder_folder)),
        ],
    )
    assert built.exit_code == 0, built.output
    result = runner.invoke(main, ["train", "--data", folder, "--answers"])
    assert result.exit_code == 0, result.output
    assert "log likelihood" in result.output


def test_banking_intents(tmp_path):
    """A part of a real set, on the real encoder."""
    if not BANKING.is_dir():
        pytest.skip("banking77 is not here; put it beside the project under shared/data")
    with (BANKING / "train.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    intents = sorted({row["category"] for row in rows})[10:20]  # neighbours: all about cards
    few = [row for row in rows if row["category"] in intents][::2]
    kept, held = few[::3] + few[1::3], few[2::3]
    data = Data(tmp_path)
    collection = data.create("default")
    collection.upsert(
        [
            {"id": str(at), "fields": {"text": row["text"]}, "value": row["category"]}
            for at, row in enumerate(kept)
        ]
    )
    report = train(collection, objective="answers")
    found = collection.search_many(
        [
            parse(SearchRequest, {"query": row["text"], "mode": "soft", "min_confidence": 0})
            for row in held
        ]
    )
    truth = [row["category"] for row in held]
    assert report["promoted"], report["reason"]
    assert report["calibration"]["auroc"] > 0.9
    assert right(found, truth) > 0.93
    sure = np.array([max(each.answer["distribution"].values()) for each in found])
    assert abs(sure.mean() - right(found, truth)) < 0.04
    data.close()
