"""Time as a part of attention, against plain sums: what it adds, whom it finds, what it leaves."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.collection.collection import Collection
from attend.core.errors import InvalidRequest
from attend.core.settings import Tuning
from attend.projection import identity
from attend.search import attend as attending
from tests.index.helpers import finish_indexes, index_fields, vector_data

WIDTH, SCALE, COUNT = 8, 20.0, 3000
NOW, DAY = 1_700_000_000.0, 86_400.0


class Aged:
    """Documents whose times are numbers, dates, lists, of the future, or missing."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(5)
        self.data = vector_data(folder)
        self.collection: Collection = self.data.create("aged", dimension=WIDTH, normalize=True)
        vectors = rng.standard_normal((COUNT, WIDTH)).astype(np.float32)
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self.seconds = np.round(NOW - DAY * rng.uniform(-20, 900, COUNT))
        self.query = rng.standard_normal(WIDTH)
        self.query /= np.linalg.norm(self.query)
        self.collection.upsert(
            [
                {
                    "id": f"d{row}",
                    "vector": self.vectors[row].tolist(),
                    "payload": {"parity": row % 2, **self._time(row)},
                }
                for row in range(COUNT)
            ]
        )

    def _time(self, row: int) -> dict[str, Any]:
        second = float(self.seconds[row])
        date = datetime.fromtimestamp(second, UTC)
        kinds: list[Any] = [
            second,
            date.isoformat(),
            [second - 9 * DAY, second],
            date.replace(tzinfo=None).isoformat(),
        ]
        kind = row % 6
        return (
            {"at": {"day": kinds[kind]}}
            if kind < 4
            else {"at": {"day": None if kind == 4 else "?"}}
        )

    def ages(self, now: float = NOW) -> np.ndarray:
        timed = np.arange(COUNT) % 6 < 4
        ages = np.maximum(now - self.seconds, 0) / DAY
        return np.where(timed, ages, np.median(ages[timed]))

    def logits(self, half_life: float, now: float = NOW) -> np.ndarray:
        dense = SCALE * self.vectors.astype(np.float64) @ self.query
        return np.asarray(dense - np.log(2) * self.ages(now) / half_life)

    def search(self, half_life: float, **options: Any) -> Any:
        fields = {"recency": {"field": "at.day", "half_life": half_life}, "now": NOW, **options}
        return self.collection.search(self.query.tolist(), **fields)


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    aged = Aged(tmp_path_factory.mktemp("aged"))
    yield aged
    aged.data.close()


def check(answer: Any, z: np.ndarray, count: int, attend: Any, tau: float = 1.0) -> None:
    order = np.argsort(-z, kind="stable")
    assert [hit.id for hit in answer.hits] == [f"d{row}" for row in order[:count]]
    sharing = z[order if attend == "all" else order[:attend]] / tau
    weights = np.exp(sharing - sharing.max())
    expected = weights[:count] / weights.sum()
    np.testing.assert_allclose([hit.score for hit in answer.hits], z[order[:count]], atol=1e-4)
    np.testing.assert_allclose([hit.weight for hit in answer.hits], expected, atol=1e-5)


@pytest.mark.parametrize("half_life", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("attend", [20, "all"])
@pytest.mark.parametrize("scanned", [True, False])
def test_no_document_is_missed_and_weights_halve_by_age(
    aged: Aged, monkeypatch: pytest.MonkeyPatch, half_life: float, attend: Any, scanned: bool
) -> None:
    if not scanned:  # as in a collection too large for a look at all keys
        monkeypatch.setattr(attending, "SCAN_FLOATS", 0)
    answer = aged.search(half_life, k=10, attend=attend)
    check(answer, aged.logits(half_life), 10, attend)
    assert answer.exact


def test_the_newest_document_is_reached_though_no_key_leads_to_it(
    aged: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attending, "SCAN_FLOATS", 0)
    monkeypatch.setattr(attending, "SCAN_SHARE", 1)
    timed = np.flatnonzero(np.arange(COUNT) % 6 < 4)
    newest = int(timed[aged.seconds[timed].argmax()])
    away, now = -aged.vectors[newest], float(aged.seconds[newest])  # it is the last by keys
    (hit,) = aged.collection.search(
        away.tolist(), k=1, attend=10, recency="at.day:0.001", now=now
    ).hits
    assert hit.id == f"d{newest}"
    assert hit.score == pytest.approx(-SCALE, abs=1e-4)


def test_a_filter_and_a_mask_choose_among_the_same_logits(aged: Aged) -> None:
    z = aged.logits(30.0)
    z[np.arange(COUNT) % 2 == 0] = -np.inf
    best = int(z.argmax())
    z[best] = -np.inf
    answer = aged.search(30.0, attend=10, filter={"parity": 1}, mask={"exclude": [f"d{best}"]})
    check(answer, z, 10, 10)


def test_an_index_of_the_field_gives_the_same_times(aged: Aged) -> None:
    before = aged.collection.store.times("at.day")
    index_fields(aged.collection.store, ["at.day"])
    finish_indexes(aged.collection.store)
    aged.collection.upsert(
        [
            {
                "id": "d0",
                "vector": aged.vectors[0].tolist(),
                "payload": {"parity": 0, "at": {"day": float(aged.seconds[0])}},
            }
        ]
    )  # another state
    after = aged.collection.store.times("at.day")
    assert len(before[0]) == COUNT // 6 * 4
    np.testing.assert_array_equal(before, after)


def test_a_weight_halves_at_the_fitted_temperature(aged: Aged) -> None:
    store, projection = aged.collection.store, identity(WIDTH)
    tuning = Tuning(scale=(12.0,), temperature=1.7, recency=("at.day", 60.0))
    number = store.add_projection(
        "identity", projection.to_bytes(), projection.fingerprint, {}, tuning=tuning.stored()
    )
    dense = 12 * aged.vectors.astype(np.float64) @ aged.query
    z = dense - 1.7 * np.log(2) * aged.ages() / 60
    options = {"projection": number, "now": NOW, "attend": "all"}
    learned = aged.collection.search(aged.query.tolist(), **options)
    check(learned, z, 10, "all", 1.7)
    assert aged.search(60.0, **options).hits == learned.hits
    cool = aged.collection.search(aged.query.tolist(), temperature=2.0, **options)
    check(cool, z, 10, "all", 3.4)
    check(aged.search(5.0, **options), dense - 1.7 * np.log(2) * aged.ages() / 5, 10, "all", 1.7)
    without = aged.collection.search(aged.query.tolist(), recency=False, **options)
    check(without, dense, 10, "all", 1.7)


def test_confidence_does_not_fade_as_all_documents_grow_older(aged: Aged) -> None:
    store, projection = aged.collection.store, identity(WIDTH)
    tuning = Tuning(scale=(20.0,), null=(8.0,), levels=(0.3, 0.2), recency=("at.day", 60.0))
    number = store.add_projection(
        "identity", projection.to_bytes(), projection.fingerprint, {}, tuning=tuning.stored()
    )
    later = NOW + 100 * DAY  # nothing is of the future any more

    def ask(days: float, **options: Any) -> Any:
        now = later + days * DAY
        return aged.collection.search(
            aged.query.tolist(), projection=number, now=now, attend=100, **options
        )

    first, second = ask(0), ask(3650)
    assert first.confidence == pytest.approx(second.confidence, abs=1e-6)
    assert first.calibrated == "examples"
    assert [hit.id for hit in first.hits] == [hit.id for hit in second.hits]
    shift = np.log(2) * 3650 / 60
    assert first.hits[0].score - second.hits[0].score == pytest.approx(shift, abs=1e-4)
    z = np.sort(aged.logits(60.0, later))[::-1][:100]
    newest = -np.log(2) * aged.ages(later).min() / 60
    null = 8 + 0.5 * newest + 0.3 * z[1:10].mean() + 0.2 * z[10:].mean()
    expected = np.exp(z).sum() / (np.exp(z).sum() + np.exp(null))
    assert first.confidence == pytest.approx(expected, abs=1e-6)
    # Another half-life was not calibrated.
    assert ask(0, recency="at.day:5").confidence is None
    with pytest.raises(InvalidRequest, match="recency"):
        ask(0, recency="at.day:5", min_confidence=0.5)


def test_pages_have_the_time_of_the_first(aged: Aged, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [NOW]
    monkeypatch.setattr("time.time", lambda: clock[0])
    expected = [hit.id for hit in aged.search(30.0, k=9).hits]
    ids, cursor = [], None
    for _ in range(3):
        page = aged.search(30.0, k=3, now=None, cursor=cursor)
        ids += [hit.id for hit in page.hits]
        cursor, clock[0] = page.next, clock[0] + 10 * DAY
    assert ids == expected


def test_a_mixture_and_several_searches_have_the_same_share(aged: Aged) -> None:
    parts = [{"vector": aged.query.tolist(), "weight": 3}, {"vector": aged.vectors[7].tolist()}]
    answer = aged.collection.search(
        {"mixture": parts}, recency="at.day:30", now=NOW, attend="all", explain=True
    )
    biases = -np.log(2) * aged.ages() / 30
    both = np.stack([aged.query, aged.vectors[7]]).astype(np.float64)
    z = SCALE * both @ aged.vectors.T.astype(np.float64) + biases
    shares = np.exp(z - z.max(axis=1, keepdims=True))
    weights = np.array([0.75, 0.25]) @ (shares / shares.sum(axis=1, keepdims=True))
    order = np.argsort(-weights)[:10]
    assert [hit.id for hit in answer.hits] == [f"d{row}" for row in order]
    for hit, row in zip(answer.hits, order, strict=True):
        assert hit.weight == pytest.approx(weights[row], rel=1e-4)
        assert sum(hit.explanation["parts"].values()) == pytest.approx(hit.score, abs=1e-4)
        assert hit.explanation["parts"]["recency"] == pytest.approx(biases[row], abs=1e-4)
    matrix = aged.collection.matrix(
        [{"query": vector.tolist(), "recency": "at.day:30", "now": NOW} for vector in both]
    )
    np.testing.assert_allclose(np.array(matrix.logits)[:, 0], z, atol=1e-3)


def test_a_field_without_times_is_a_hint_and_changes_nothing(aged: Aged) -> None:
    answer = aged.collection.search(aged.query.tolist(), recency="at.dya:30")
    assert "'at.dya' of recency" in answer.hints[0]
    plain = aged.collection.search(aged.query.tolist())
    assert [hit.score for hit in answer.hits] == [hit.score for hit in plain.hits]


@pytest.mark.parametrize(
    ("recency", "reason"),
    [
        ("day", "FIELD:DAYS or false was expected"),
        ({"field": "day"}, "half_life: it is required"),
        ({"field": "day", "half_life": 0}, "half_life: more than 0"),
        ({"field": "day", "halflife": 3}, "half_life"),
        ("day:inf", "half_life"),
        (True, "FIELD:DAYS or false was expected"),
        ('a"b:3', "field name"),
    ],
)
def test_what_is_wrong_is_named(aged: Aged, recency: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        aged.collection.search(aged.query.tolist(), recency=recency)


def test_the_command_line_takes_times(tmp_path: Path) -> None:
    data = vector_data(tmp_path)
    data.create("notices", dimension=2).upsert(
        [
            {"id": id, "vector": [1.0, 0.0], "payload": {"day": day}}
            for id, day in (("early", "2024-01-01"), ("late", "2024-01-31"))
        ]
    )
    data.close()
    arguments = ["[1, 0]", "--data", tmp_path, "--collection", "notices", "--json"]
    arguments += ["--recency", "day:30", "--now", "2024-01-31"]
    answer = CliRunner().invoke(main, ["search", *map(str, arguments)], prog_name="attend")
    hits = json.loads(answer.stdout)["hits"]
    assert [hit["id"] for hit in hits] == ["late", "early"]
    assert [hit["weight"] for hit in hits] == pytest.approx([2 / 3, 1 / 3])
