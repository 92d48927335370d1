"""Lists that cover: how far down they go, what they say, and where none was calibrated."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from attend.api.base import parse
from attend.api.search import AcrossRequest, BatchRequest, PlainSearch
from attend.cli import main
from attend.core.errors import InvalidRequest
from attend.core.settings import Tuning
from attend.projection import identity
from tests.index.world import World

WIDTH = 32  # of the tiny encoder
QUERY = "gold rain island"
LEVELS = tuple(0.1 * step for step in range(46))  # of 0.5 to 0.95
FITTED = Tuning(scale=(6.0,), null=(3.0,), lexical=0.3, attend=20, scorer="dot", inclusion=LEVELS)


@pytest.fixture
def world(tmp_path, tiny_encoder):
    world = World(tmp_path, tiny_encoder, 3)
    world.take("write", range(30))
    yield world
    world.data.close()


def search(world, tuning=FITTED, **options):
    version = world.version(identity(WIDTH), tuning)
    asked = {"attend": 20, "coverage": 0.8, **options}
    return world.collection.search(QUERY, projection=version.number, **asked)


def listed(scores, end):
    """By a plain loop: the documents before the first that is too far down."""
    for rank, score in enumerate(scores, start=1):
        if scores[0] - score + math.log(rank) > end:
            return rank - 1
    return len(scores)


@pytest.mark.parametrize("rate", [0.5, 0.75, 0.8, 0.9, 0.95])
def test_a_list_ends_where_the_level_of_its_rate_is(world, rate):
    scores = [hit.score for hit in search(world, coverage=None, k=20).hits]
    expected = listed(scores, LEVELS[round(100 * rate) - 50])
    answer = search(world, coverage=rate)
    assert [hit.score for hit in answer.hits] == scores[:expected]
    assert answer.coverage.json() == {"rate": rate, "covers": True, "listed": expected, "k": 20}
    assert answer.next is None


def test_the_best_document_is_always_listed_and_a_higher_rate_lists_no_fewer(world):
    lengths = [len(search(world, coverage=rate).hits) for rate in np.arange(0.5, 0.96, 0.05)]
    assert lengths[0] == 1
    assert lengths == sorted(lengths)
    assert lengths[-1] > 2


def test_a_rate_between_two_takes_the_higher(world):
    tuning = FITTED.model_copy(update={"inclusion": (0.0, 0.0, 0.0, 100.0)})
    assert len(search(world, tuning, coverage=0.52).hits) == 1
    assert len(search(world, tuning, coverage=0.5200001).hits) == 20


def test_no_list_covers_where_none_of_the_attended_did(world):
    answer = search(world, coverage=0.96)
    assert answer.coverage.json() == {"rate": 0.96, "covers": False, "listed": 20, "k": 20}
    assert len(search(world, FITTED.model_copy(update={"inclusion": ()})).hits) == 20


def test_k_is_the_most_that_is_listed(world):
    needed = search(world, coverage=0.95).coverage.listed
    short = search(world, coverage=0.95, k=needed - 1)
    assert (len(short.hits), short.coverage.covers) == (needed - 1, False)
    enough = search(world, coverage=0.95, k=needed)
    assert (len(enough.hits), enough.coverage.covers) == (needed, True)


def test_no_document_covers_nothing(world):
    answer = search(world, filter={"c": "green"})
    assert answer.coverage.json() == {"rate": 0.8, "covers": False, "listed": 0, "k": 20}


@pytest.mark.parametrize("options", [{"filter": {"c": "red"}}, {"mask": {"exclude": ["d3"]}}])
def test_a_filter_is_named_beside_the_rate(world, options):
    (hint,) = search(world, **options).hints
    assert "measured among all documents" in hint


@pytest.mark.parametrize(
    "options",
    [
        *({"attend": 19}, {"temperature": 2.0}, {"scorer": "cosine"}, {"pool": "sum"}),
        *({"lexical": 0.2}, {"memory": 0.25}, {"scale": 6.0}),
    ],
)
def test_it_is_refused_where_nothing_was_calibrated(world, options):
    with pytest.raises(InvalidRequest, match=r"coverage is 0\.8, .* Train first") as refused:
        search(world, **options)
    assert refused.value.field == "coverage"


def test_it_is_refused_before_a_training(world):
    with pytest.raises(InvalidRequest, match="Train first"):
        world.collection.search(QUERY, coverage=0.9)
    with pytest.raises(InvalidRequest, match="Train first"):
        search(world, FITTED.model_copy(update={"inclusion": None}))


@pytest.mark.parametrize(
    "options",
    [
        *({"offset": 1}, {"cursor": "x"}, {"min_score": 0.0}, {"group_by": "c"}, {"rerank": 5}),
        {"attend": "all"},
        {"diversity": 0.5},
    ],
)
def test_what_changes_the_list_does_not_go_with_it(world, options):
    with pytest.raises(InvalidRequest, match="does not go with") as refused:
        search(world, **options)
    assert refused.value.field in options


@pytest.mark.parametrize("rate", [0.49, 0.991, 90])
def test_rates_are_shares(world, rate):
    with pytest.raises(InvalidRequest, match="coverage: 0"):
        search(world, coverage=rate)


def test_several_collections_have_no_rate():
    with pytest.raises(InvalidRequest, match="one collection"):
        parse(AcrossRequest, {"query": "a", "collections": ["b"], "coverage": 0.9})


def test_a_batch_counts_what_may_be_listed():
    one = {"query": "a", "coverage": 0.9, "attend": 1000, "value": "@key"}
    with pytest.raises(InvalidRequest, match=r"hits \(k\)"):
        parse(BatchRequest, {"searches": [one] * 11})


def test_an_address_line_leaves_k_open():
    query = parse(PlainSearch, {"q": "gold", "coverage": "0.9"})
    assert query.request() == {"query": "gold", "coverage": 0.9}
    assert query.most == 100


def test_the_command_line_says_where_no_list_covers(world):
    version = world.version(identity(WIDTH), FITTED)
    world.collection.activate(version.number)
    asked = ["search", QUERY, "--data", str(world.data.folder), "--attend", "20"]
    found = CliRunner().invoke(main, [*asked, "--coverage", "0.99"])
    assert "No list of at most 20 documents covers at a rate of 0.99." in found.output
    found = CliRunner().invoke(main, [*asked, "--coverage", "0.5", "--json"])
    assert json.loads(found.output)["coverage"]["covers"]
