"""Which interactions are likes: by the data, or by a threshold that is set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from attend import Collection, Data
from attend.cli import main
from attend.core.errors import InvalidRequest
from attend.core.liking import Liking, chosen_liking
from attend.write.feedback import add_interactions


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    data = Data(tmp_path)
    collection = data.create("films", dimension=4)
    rng = np.random.default_rng(3)
    collection.upsert({"id": f"d{n}", "vector": rng.normal(size=4).tolist()} for n in range(8))
    yield collection
    data.close()


STARS = [
    {"user": "ann", "id": "d0", "value": 5},
    {"user": "ann", "id": "d1", "value": 4},
    {"user": "eve", "id": "d2", "value": 1},
    {"user": "eve", "id": "d3", "value": 5},
]


@pytest.mark.parametrize(
    ("values", "liked_from"),
    [
        ([1, 2, 3, 4, 5], 4),
        ([5, 1], 5),  # of those that there are
        ([4, 5], 4),
        ([0.5, 3, 3.5], 3.5),
        ([1, 3, 3.5, 4.5], 3.5),
        ([1, 7, 10], 7),
        ([1, 2, 3], 3),
        ([1], None),
        ([0, 1], None),
        ([-1, 1], None),
        ([1, 17, 400], None),  # counts
        ([1] * 30 + [2] * 10 + [5], None),  # counts, most of which are one
        ([1] * 10 + [2] * 10 + [5] * 10, 5),
        ([], None),
        ([float("nan")], None),
    ],
)
def test_the_threshold_follows_from_the_numbers(
    values: list[float], liked_from: float | None
) -> None:
    assert chosen_liking(values).liked_from == liked_from


def test_one_star_of_five_is_no_like(collection: Collection) -> None:
    added = add_interactions(collection, STARS)
    assert added.liked_from == 4
    assert collection.store.interactions().liked.tolist() == [True, True, False, True]
    because = collection.recommend(user="eve", explain=True).hits[0].because
    assert because is not None
    assert [(part["id"], part["weight"]) for part in because] == [("d3", 1.0)]
    sent = collection.recommend(
        history=[{"id": "d2", "value": 1}, {"id": "d3", "value": 5}], explain=True
    ).hits[0]
    assert [part["id"] for part in sent.because or ()] == ["d3"]
    with pytest.raises(InvalidRequest, match="valued below 4"):
        collection.recommend(history=[{"id": "d2", "value": 1}])


def test_without_stored_numbers_those_of_the_request_decide(collection: Collection) -> None:
    history = [{"id": "d2", "value": 1}, {"id": "d3", "value": 5}]
    hit = collection.recommend(history=history, explain=True).hits[0]
    assert [part["id"] for part in hit.because or ()] == ["d3"]
    both = collection.recommend(history=history, explain=True, liked_from=1).hits[0]
    assert {part["id"] for part in both.because or ()} == {"d2", "d3"}


def test_the_threshold_can_be_set_and_chosen_again(collection: Collection) -> None:
    assert add_interactions(collection, STARS, liked_from=5).liked_from == 5
    assert collection.store.liking() == Liking(5.0, "set")
    assert collection.store.interactions().liked.sum() == 2
    assert add_interactions(collection, []).liked_from == 5
    assert add_interactions(collection, [], liked_from=None).liked_from == 4
    counts = collection.store.interaction_counts()
    with pytest.raises(InvalidRequest, match="liked_from is nan; send a finite number"):
        add_interactions(
            collection,
            [{"user": "new", "id": "d0"}],
            liked_from=float("nan"),
            delete_stored=True,
        )
    assert collection.store.interaction_counts() == counts
    assert collection.store.liking().liked_from == 4


def test_it_stays_after_a_restart_and_is_seen_by_others(tmp_path: Path) -> None:
    data = Data(tmp_path)
    one = data.create("films", dimension=2)
    one.upsert([{"id": "d0", "vector": [1, 0]}, {"id": "d1", "vector": [0, 1]}])
    other = Data(tmp_path).collection("films")
    assert other.store.liking() == Liking()
    add_interactions(one, [{"user": "u", "id": "d0", "value": 2}], liked_from=3)
    assert other.store.liking() == Liking(3.0, "set")
    data.close()
    other.close()
    again = Data(tmp_path)
    assert again.collection("films").store.liking().liked_from == 3
    again.close()


def test_the_command_tells_the_threshold(collection: Collection, tmp_path: Path) -> None:
    table = tmp_path / "stars.csv"
    table.write_text("user,item,stars\nann,d0,5\nann,d1,4\neve,d2,1\n")
    command = ["teach", "--data", str(tmp_path), "--collection", "films", "--interactions"]
    first = CliRunner().invoke(main, [*command, str(table)])
    assert first.exit_code == 0, first.output
    assert "Values of 4 and more are likes, chosen from the data." in first.output
    second = CliRunner().invoke(main, [*command, str(table), "--liked-from", "2"])
    assert "Values of 2 and more are likes." in second.output
    assert collection.store.liking().liked_from == 2
