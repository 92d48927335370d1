"""From stored ratings to a version that predicts, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attend.collection.collection import Collection
from attend.collection.verify import verify
from attend.core.errors import Damaged, InvalidRequest
from attend.exchange.models import export_weights
from attend.learning import Cancelled, train
from attend.learning.rating_net import RECIPES, Shape
from attend.learning.ratings import read_ratings
from attend.recommend.history import Histories, History, HistoryPart
from attend.recommend.predict import Predictor, predict_values, usable_history
from attend.search.queries import QueryEncoder
from attend.store import Interaction, InteractionSet
from tests.index.helpers import vector_data
from tests.index.learning.rated import planted

SMALL = replace(RECIPES["usual"], steps=(120, 120))
SHAPE = Shape(heads=2, width=4, factors=3, directions=8, scale=2.0)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attend.learning.ratings.RECIPES", {"usual": SMALL})
    monkeypatch.setattr("attend.learning.ratings.SHAPE", SHAPE)


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    data = vector_data(tmp_path)
    yield _with(data.create("films", dimension=16), taste=1.2)
    data.close()


def _with(collection: Collection, taste: float, users: int = 80) -> Collection:
    ratings, embeddings = planted(users=users, taste=taste)
    collection.upsert(
        [{"id": f"m{at}", "vector": vector.tolist()} for at, vector in enumerate(embeddings)]
    )
    collection.store.add_interactions(
        [
            Interaction(f"u{user}", f"m{item}", float(value))
            for user, item, value in zip(
                ratings.users.tolist(), ratings.items.tolist(), ratings.values, strict=True
            )
        ]
    )
    return collection


def test_ratings_and_keys_are_read_at_one_moment(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, documents = collection.store.interactions, len(read_ratings(collection, 0).rows)

    def interactions() -> InteractionSet:
        stored = read()
        assert vector_data(collection.folder.parent.parent).collection("films").delete(["m0"]) == 1
        return stored

    monkeypatch.setattr(collection.store, "interactions", interactions)
    assert len(read_ratings(collection, 0).rows) == documents


def asked(collection: Collection, ids: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and embeddings, in the order of ids."""
    rows = collection.store.rows_of(ids)
    wanted = np.array([rows[id] for id in ids], dtype=np.int64)
    keys = collection.store.own_keys(wanted)
    known, vectors = keys.rows, keys.means()
    return wanted, vectors[np.searchsorted(known, wanted)]


def predictor(collection: Collection) -> Predictor:
    queries = QueryEncoder(collection.store, collection.settings, collection.encoder)
    return Predictor(collection, Histories(collection, queries))


def predictions(
    collection: Collection, targets: list[str], history: Mapping[str, float]
) -> np.ndarray:
    rows, vectors = asked(collection, [*history])
    parts = [
        HistoryPart({"id": id}, row, 1.0, value)
        for row, (id, value) in zip(rows.tolist(), history.items(), strict=True)
    ]
    valued = History(parts, vectors, np.ones(len(rows)), rows, len(rows), [])
    found = predict_values(
        predictor(collection).model(),
        collection.views.mean(),
        *asked(collection, targets),
        usable_history(valued),
        most=1,
    )
    return np.array([each["mean"] for each in found], dtype=np.float64)


def test_a_planted_taste_is_promoted_and_predicts(collection: Collection) -> None:
    report = train(collection, objective="ratings")
    assert report["promoted"], report["reason"]
    before, after = report["before"], report["after"]
    assert after["rmse"] < 0.8 * before["rmse"]
    assert after["mae"] < before["mae"]
    assert report["views"]["random"]["p"] < 0.05
    assert abs(report["calibration"]["coverage"]["0.8"] - 0.8) < 0.1
    stored = collection.store.active("predict")
    assert stored is not None
    assert stored.version == report["version"]
    assert collection.store.state().projection == 1  # searches are answered as before
    # A user whom training never saw, of either taste.
    ratings, _ = planted(users=80, taste=1.2)
    of_first = ratings.of_user(0)
    history = {
        f"m{item}": float(value)
        for item, value in zip(ratings.items[of_first], ratings.values[of_first], strict=True)
    }
    opposite = {id: 6 - value for id, value in history.items()}
    others = [f"m{at}" for at in range(50) if f"m{at}" not in history]
    one, other = (predictions(collection, others, each) for each in (history, opposite))
    assert np.corrcoef(one, other)[0, 1] < -0.5


def test_ratings_without_a_taste_change_nothing(tmp_path: Path) -> None:
    collection = _with(vector_data(tmp_path).create("noise", dimension=16), taste=0.0)
    report = train(collection, objective="ratings")
    assert not report["promoted"]
    assert report["kept"]
    assert predictor(collection).model() is None


def test_what_is_not_promoted_is_kept_where_that_is_wished(collection: Collection) -> None:
    report = train(collection, objective="ratings", promote=False)
    assert not report["promoted"]
    version = report["version"]
    assert predictor(collection).model() is None
    named = predictor(collection).model(version)
    assert named is not None
    assert named.version == version
    with pytest.raises(InvalidRequest, match="role predict"):
        predictor(collection).model(1)
    collection.activate(version)
    active = predictor(collection).model()
    assert active is not None
    assert active.version == version
    assert collection.rollback("predict") == 0
    assert predictor(collection).model() is None


def test_the_same_ratings_again_prove_nothing(collection: Collection) -> None:
    first = train(collection, objective="ratings")
    second = train(collection, objective="ratings")
    assert first["promoted"]
    assert not second["promoted"]
    assert second["previous"] == first["version"]
    # But for how far to trust it, which is fitted by halves where it is judged.
    assert second["views"]["random"]["difference"] == pytest.approx(0, abs=0.01)


def test_documents_that_go_and_that_change_lose_what_was_learned(collection: Collection) -> None:
    train(collection, objective="ratings")
    models = predictor(collection)
    trained = models.model()
    assert trained is not None
    assert models.model() is trained  # kept
    count = len(trained.rows)
    collection.delete(["m3"])
    collection.upsert([{"id": "m4", "vector": [1.0] + [0.0] * 15}])
    again = models.model()
    assert again is not None
    assert len(again.rows) == count - 2
    row = collection.store.rows_of(["m4"])["m4"]
    items = again.items(np.array([row]), np.ones((1, 16), dtype=np.float32))
    assert (items.terms.factors == 0).all()
    history = {"m1": 5.0, "m4": 2.0}
    assert np.isfinite(predictions(collection, ["m2", "m4"], history)).all()


def test_nothing_is_kept_of_a_text_that_changed_during_the_training(collection: Collection) -> None:
    def progress(stage: str, done: float) -> None:
        if stage == "storing":
            collection.upsert([{"id": "m4", "vector": [1.0] + [0.0] * 15}])

    report = train(collection, objective="ratings", progress=progress)
    assert report["promoted"]
    trained = predictor(collection).model()
    assert trained is not None
    rows = collection.store.rows_of(["m3", "m4"])
    assert rows["m3"] in trained.rows
    assert rows["m4"] not in trained.rows


def test_new_documents_are_predicted_by_their_texts(collection: Collection) -> None:
    train(collection, objective="ratings")
    collection.upsert([{"id": "new", "vector": [1.0] + [0.0] * 15}])
    found = predictions(collection, ["new"], {"m1": 5.0, "m2": 1.0})
    assert 1 <= found[0] <= 5


@pytest.mark.parametrize("users", [0, 5])
def test_too_few_users_are_told(tmp_path: Path, users: int) -> None:
    collection = vector_data(tmp_path).create("few", dimension=16)
    if users:
        _with(collection, taste=1.0, users=users)
    report = train(collection, objective="ratings")
    assert not report["promoted"]
    assert f"this collection has {users}" in str(report["reason"])


def test_ratings_of_which_too_few_can_be_held_out_are_told(tmp_path: Path) -> None:
    collection = vector_data(tmp_path).create("pairs", dimension=2)
    collection.upsert([{"id": str(at), "vector": [1.0, at]} for at in range(5)])
    collection.store.add_interactions(
        [Interaction(f"u{user}", str(at), 1.0 + at) for user in range(20) for at in range(2)]
    )
    assert "Too few ratings" in str(train(collection, objective="ratings")["reason"])


def test_equal_ratings_and_none_are_told(tmp_path: Path) -> None:
    collection = vector_data(tmp_path).create("same", dimension=2)
    collection.upsert([{"id": str(at), "vector": [1.0, at]} for at in range(5)])
    everybody = [(f"u{user}", str(at)) for user in range(30) for at in range(5)]
    collection.store.add_interactions([Interaction(*pair) for pair in everybody])
    assert "0 users" in str(train(collection, objective="ratings")["reason"])
    collection.store.add_interactions([Interaction(*pair, 4.0) for pair in everybody])
    assert "All ratings are the same" in str(train(collection, objective="ratings")["reason"])


def test_a_stopped_training_leaves_nothing(collection: Collection) -> None:
    told: list[float] = []

    def progress(stage: str, done: float) -> None:
        told.append(done)

    with pytest.raises(Cancelled):
        train(
            collection,
            objective="ratings",
            progress=progress,
            cancelled=lambda: len(told) > 20,
        )
    assert told == sorted(told)
    assert predictor(collection).model() is None
    assert len(collection.projections()) == 1


def test_parts_and_dimensions_are_refused(collection: Collection) -> None:
    for fields in ({"parts": ["matrices"]}, {"dimensions": 4}):
        with pytest.raises(InvalidRequest):
            train(collection, objective="ratings", **fields)  # type: ignore[arg-type]


def test_changed_weights_are_damage(collection: Collection) -> None:
    version = train(collection, objective="ratings")["version"]
    with collection.store.connections.writing() as db:
        db.execute("UPDATE projections SET fingerprint = 'other' WHERE version = ?", [version])
    with pytest.raises(Damaged, match="other weights"):
        predictor(collection).model()
    assert any("other weights" in each for each in verify(collection).problems)


def test_a_version_that_predicts_is_sound_travels_and_searches_nothing(
    collection: Collection, tmp_path: Path
) -> None:
    version = train(collection, objective="ratings")["version"]
    assert not verify(collection).problems
    with pytest.raises(InvalidRequest, match="no keys to search"):
        collection.search([1.0] + [0.0] * 15, projection=version)
    with pytest.raises(InvalidRequest, match="predicts"):
        export_weights(collection, tmp_path / "out", version=version)
