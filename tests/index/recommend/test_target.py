"""What a user would think of an item: untrained, learned, and asked wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend.api.recommend import MAX_TARGETS
from attend.collection.collection import Collection
from attend.core.errors import InvalidRequest, LimitExceeded, UnknownDocument
from attend.recommend.history import Histories, History, HistoryPart
from attend.recommend.predict import (
    TERMS,
    ActiveModel,
    predict_values,
    usable_history,
)
from attend.recommend.ratings import Own, Rated, RatingModel, predict
from attend.store import Interaction
from attend.write.feedback import add_interactions
from tests.index.helpers import vector_data
from tests.index.ratings.rated_world import DIMENSION, HEADS, model, own

COUNT = 30


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    data = vector_data(tmp_path)
    made = data.create("films", dimension=DIMENSION)
    vectors = np.random.default_rng(0).normal(size=(COUNT, DIMENSION))
    made.upsert([{"id": f"m{at}", "vector": row.tolist()} for at, row in enumerate(vectors)])
    yield made
    data.close()


def learned(collection: Collection) -> tuple[RatingModel, Own]:
    """A version that predicts, of random weights; the last ten documents nobody has rated."""
    made = RatingModel.from_bytes(model(trust=np.array([0.5, 1.0])).to_bytes())
    known = own(COUNT - 10, np.random.default_rng(1))
    rows = collection.store.rows_of([f"m{at}" for at in range(COUNT - 10)])
    places = np.array([rows[f"m{at}"] for at in range(COUNT - 10)], dtype=np.int64)
    version = collection.store.add_projection(
        made.kind,
        made.to_bytes(),
        made.fingerprint,
        {},
        terms={TERMS: (places, known.packed())},
        role="predict",
    )
    collection.activate(version)
    return made, Own.unpacked(known.packed(), HEADS)


def rated(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"id": id, "value": value} for id, value in pairs]


HISTORY = rated(("m1", 5), ("m2", 1.5), ("m25", 3))


def test_numbers_go_through_the_model_that_is_active(collection: Collection) -> None:
    made, known = learned(collection)
    answer = collection.recommend(target=["m4", "m27"], history=HISTORY, explain=True)
    vectors = np.random.default_rng(0).normal(size=(COUNT, DIMENSION)).astype(np.float32)
    history, targets = np.array([1, 2, 25]), np.array([4, 27])
    place = [np.where(each < COUNT - 10, each, -1) for each in (targets, history)]
    expected = predict(
        made,
        made.items(vectors[targets], known.at(place[0])),
        Rated.evenly(made.items(vectors[history], known.at(place[1])), np.array([5, 1.5, 3])),
        np.zeros((2, 3), dtype=bool),
    )
    for at, told in enumerate(answer.predictions):
        assert told["mean"] == pytest.approx(expected.mean[at], abs=1e-6)
        assert told["baseline"] == pytest.approx(expected.baseline[at], abs=1e-6)
        assert told["std"] > 0
        assert told["null"] == pytest.approx(expected.null[at])
        weights = {each["id"]: each["weight"] for each in told["because"]}
        assert sum(weights.values()) + told["null"] == pytest.approx(1)
        shares = sum(each["adds"] for each in told["because"])
        assert told["baseline"] + shares == pytest.approx(expected.raw[at], abs=1e-6)


@pytest.mark.parametrize("trained", [False, True])
def test_the_own_rating_of_a_target_has_no_part(collection: Collection, trained: bool) -> None:
    if trained:
        learned(collection)
    one, other = (
        collection.recommend(target="m1", history=rated(("m1", value), ("m2", 2), ("m3", 4)))
        for value in (1, 5)
    )
    assert one.predictions[0]["mean"] == other.predictions[0]["mean"]
    assert one.predictions[0]["std"] == other.predictions[0]["std"]
    assert (one.predictions[0]["known"], other.predictions[0]["known"]) == (1, 5)
    assert all(each["id"] != "m1" for each in one.predictions[0]["because"])


@pytest.mark.parametrize("trained", [False, True])
def test_batches_answer_as_one_by_one(collection: Collection, trained: bool) -> None:
    if trained:
        learned(collection)
    ids = [f"m{at}" for at in range(COUNT)]
    together = collection.recommend(target=ids, history=HISTORY).predictions
    for id, told in zip(ids, together, strict=True):
        (alone,) = collection.recommend(target=id, history=HISTORY).predictions
        assert alone["mean"] == pytest.approx(told["mean"], abs=1e-9)


def test_vectors_are_targets_too(collection: Collection) -> None:
    learned(collection)
    vector = np.random.default_rng(0).normal(size=(COUNT, DIMENSION))[25].tolist()
    by_vector, by_id = collection.recommend(
        target=[{"vector": vector}, "m25"], history=rated(("m1", 5), ("m2", 2))
    ).predictions
    # Of m25 nothing was learned: its text is all there is.
    assert by_vector["mean"] == pytest.approx(by_id["mean"], abs=1e-6)


def test_untrained_a_number_is_shrunk_to_the_users_mean(collection: Collection) -> None:
    (told,) = collection.recommend(target="m4", history=HISTORY).predictions
    assert told["baseline"] == pytest.approx(np.mean([5, 1.5, 3]))
    assert not told["calibrated"]
    least, most = sorted([told["baseline"], told["mean"]])
    assert 1.5 <= least <= most <= 5


def test_a_stored_user_is_a_history(collection: Collection) -> None:
    collection.store.add_interactions(
        [Interaction("ann", each["id"], each["value"]) for each in HISTORY]
    )
    stored = collection.recommend(target="m4", user="ann").predictions[0]
    sent = collection.recommend(target="m4", history=HISTORY).predictions[0]
    assert stored["mean"] == pytest.approx(sent["mean"])


def test_a_document_that_goes_meanwhile_is_in_no_history(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.store.add_interactions(
        [Interaction("ann", each["id"], each["value"]) for each in HISTORY]
    )
    read = Histories.of

    def of(self: Histories, *asked: Any) -> History:
        found = read(self, *asked)
        collection.delete(["m1"])
        return found

    monkeypatch.setattr(Histories, "of", of)
    found = collection.recommend(target="m4", user="ann", explain=True)
    assert {each["id"] for each in found.predictions[0]["because"]} == {"m2", "m25"}


def test_what_was_not_liked_has_a_say_in_predictions(collection: Collection) -> None:
    low = [{**each, "value": each["value"] - 5} for each in HISTORY]
    said, usual = (
        collection.recommend(target="m4", history=each).predictions[0] for each in (low, HISTORY)
    )
    assert said["mean"] == pytest.approx(usual["mean"] - 5, abs=1e-6)


def test_examples_and_facts_say_nothing_to_predictions(collection: Collection) -> None:
    others = {"negative": ["m1", "m2"], "positive": ["m3"]}
    alone, beside = (
        collection.recommend(target="m4", history=HISTORY, **more).predictions[0]
        for more in ({}, others)
    )
    assert beside["mean"] == pytest.approx(alone["mean"])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["like", "like", "dislike"], "category"),
        (["like", "dislike", "meh"], "category"),
        ([True, False, True], "boolean"),
        ([["a", "b"], ["b"], ["c"]], "labels"),
        ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "vector"),
        ([{"plot": 1}, {"plot": 3}, {"plot": 4}], "object"),
    ],
)
def test_other_values_blend_by_their_type(
    collection: Collection, values: list[Any], kind: str
) -> None:
    learned(collection)
    history = rated(*zip(("m1", "m2", "m3"), values, strict=True))
    (told,) = collection.recommend(target="m4", history=history, explain=True).predictions
    assert told["type"] == kind
    weights = [each["weight"] for each in told["because"]]
    assert sum(weights) + told["null"] == pytest.approx(1)
    assert "adds" not in told["because"][0]


def test_labels_are_shares_of_the_attention(collection: Collection) -> None:
    history = rated(("m1", "like"), ("m2", "like"), ("m3", "dislike"))
    (told,) = collection.recommend(target="m4", history=history, explain=True).predictions
    weights = {each["id"]: each["weight"] for each in told["because"]}
    share = (weights["m1"] + weights["m2"]) / sum(weights.values())
    assert told["distribution"]["like"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("history", "said"),
    [
        (rated(("m1", 5), ("m2", 11)), r"'m2' has the value 11.*1 to 5"),
        (rated(("m1", 5), ("m2", -1)), "1 to 5"),
        (rated(("m1", 5), ("m2", "good")), "values of one type"),
        (rated(("m1", None)), "has a value"),
        ([], "history|user"),
    ],
)
def test_what_cannot_be_predicted_from_is_refused(
    collection: Collection, history: list[Any], said: str
) -> None:
    learned(collection)
    with pytest.raises(InvalidRequest, match=said):
        collection.recommend(target="m4", history=history)


def test_what_was_stored_beyond_the_range_counts_as_its_end(collection: Collection) -> None:
    """Who asks did not store it, and a prediction that fails from then on helps nobody."""
    learned(collection)
    met = {"ann": 50, "bob": 5}
    add_interactions(
        collection,
        [Interaction(user, "m1", value) for user, value in met.items()]
        + [Interaction(user, "m2", 2) for user in met],
    )
    beyond, end = (
        collection.recommend(target=["m4", "m27"], user=user).predictions for user in met
    )
    for one, other in zip(beyond, end, strict=True):
        assert (one["mean"], one["std"]) == (other["mean"], other["std"])
    with pytest.raises(InvalidRequest, match="learned from ratings"):
        collection.recommend(target="m4", user="ann", history=rated(("m1", 50)))


def test_untrained_any_range_will_do(collection: Collection) -> None:
    (told,) = collection.recommend(target="m4", history=rated(("m1", 70), ("m2", 90))).predictions
    assert 70 <= told["mean"] <= 90


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_numbers_that_are_none_are_refused(collection: Collection, value: float) -> None:
    with pytest.raises(InvalidRequest):
        collection.recommend(target="m4", history=rated(("m1", value), ("m2", 3)))


def test_too_many_targets_and_unknown_ones_are_refused(collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match="target"):
        collection.recommend(target=[f"m{at}" for at in range(MAX_TARGETS + 1)], history=HISTORY)
    with pytest.raises(UnknownDocument, match="nowhere"):
        collection.recommend(target=["m4", "nowhere"], history=HISTORY)
    told = collection.recommend(target=["m4", "nowhere"], history=HISTORY, on_missing="skip")
    assert [each["id"] for each in told.predictions] == ["m4"]
    assert told.missing == [{"id": "nowhere"}]


def test_a_history_of_unknown_documents_is_refused(collection: Collection) -> None:
    for on_missing in ("error", "skip"):
        with pytest.raises((InvalidRequest, UnknownDocument)):
            collection.recommend(
                target="m4", history=rated(("x", 5), ("y", 1)), on_missing=on_missing
            )


def test_a_history_of_documents_that_nobody_rated_counts_by_its_texts(
    collection: Collection,
) -> None:
    learned(collection)
    (told,) = collection.recommend(target="m29", history=rated(("m21", 5), ("m22", 1))).predictions
    assert np.isfinite(told["mean"])
    assert told["confidence"] > 0


def test_documents_said_twice_count_as_said_last(collection: Collection) -> None:
    learned(collection)
    twice = collection.recommend(target="m4", history=[*rated(("m1", 1)), *HISTORY]).predictions
    once = collection.recommend(target="m4", history=HISTORY).predictions
    assert twice[0]["mean"] == pytest.approx(once[0]["mean"])


def test_weights_matter_and_negative_ones_are_refused(collection: Collection) -> None:
    learned(collection)
    heavy = [{**HISTORY[0], "weight": 50}, *HISTORY[1:]]
    one, other = (
        collection.recommend(target="m4", history=each, explain=True).predictions[0]
        for each in (HISTORY, heavy)
    )
    weight = [
        next(each["weight"] for each in told["because"] if each["id"] == "m1")
        for told in (one, other)
    ]
    assert weight[1] > weight[0]
    with pytest.raises(InvalidRequest, match="negative"):
        collection.recommend(target="m4", history=[{**HISTORY[0], "weight": -1}, *HISTORY[1:]])


@pytest.mark.parametrize("trained", [False, True])
def test_ten_thousand_documents_are_a_history(tmp_path: Path, trained: bool) -> None:
    made = model()
    rng = np.random.default_rng(0)
    count = 10_000
    vectors = rng.normal(size=(count, DIMENSION)).astype(np.float32)
    rows = np.arange(1, count + 1)

    nothing = Own(*(each[:0] for each in own(1, rng)))
    active = ActiveModel(7, made, np.empty(0, dtype=np.int64), nothing) if trained else None
    values = rng.integers(1, 6, count).tolist()
    parts = [
        HistoryPart({"id": f"m{row}"}, row, 1.0, value)
        for row, value in zip(rows.tolist(), values, strict=True)
    ]
    history = History(parts, vectors, np.ones(count), rows, count, [])
    targets = rows[:MAX_TARGETS], vectors[:MAX_TARGETS]
    found = predict_values(active, vectors.mean(axis=0), *targets, usable_history(history), count)
    assert len(found) == MAX_TARGETS
    for each in found:
        because: Any = each["because"]
        weight = sum(part["weight"] for part in because)
        assert weight + float(str(each["null"])) == pytest.approx(1)
        assert 1 <= float(str(each["mean"])) <= 5
    few: Any = predict_values(active, vectors.mean(axis=0), *targets, usable_history(history), 10)
    assert len(few[0]["because"]) == 10


def test_whole_explanations_that_are_too_long_are_refused(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attend.recommend.predict.MAX_SHARES", 5)
    with pytest.raises(LimitExceeded, match="shares"):
        collection.recommend(target=["m4", "m5"], history=HISTORY, explain=True)
