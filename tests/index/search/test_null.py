"""The null key: when it takes part, what confidence then says, and when nothing answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.cli import main
from attend.core.errors import Damaged, InvalidRequest
from attend.core.settings import Tuning
from attend.projection import given as projection_given
from attend.projection import identity
from tests.index.world import World, check_weights, expected

WIDTH = 32  # of the tiny encoder

FITTED = Tuning(
    scale=(6.0,), null=(3.0,), lexical=0.3, coverage=0.5, attend=5, scorer="dot", threshold=0.9
)
QUERY = "gold rain island"


@pytest.fixture
def world(tmp_path, tiny_encoder):
    world = World(tmp_path, tiny_encoder, 3)
    world.take("write", range(30))
    yield world
    world.data.close()


def search(world, fitted, query=QUERY, **options):
    asked = {"attend": 5, "k": 5, "min_confidence": 0.0, **options}
    return world.collection.search(query, projection=fitted.number, **asked)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pool": "max", "scorer": "dot"},
        {"lexical": 0.3},
        {"filter": {"c": "red"}},
        {"mask": {"exclude": ["d3", "d4"]}},
        {"k": 2, "offset": 1},
    ],
)
def test_the_null_takes_part_where_it_fits(world, options):
    answer = search(world, world.version(identity(WIDTH), FITTED), **options)
    assert answer.calibrated
    assert 0 < answer.confidence < 1


@pytest.mark.parametrize(
    "options",
    [
        {"attend": 6},
        {"attend": "all"},
        {"pool": "sum"},
        {"scorer": "cosine"},
        {"lexical": False},
        {"lexical": True},
        {"lexical": 0.31},
        {"scale": 6.0},
        {"heads": [1.0]},
    ],
)
def test_there_is_no_null_where_it_was_fitted_for_something_else(world, options):
    fitted = world.version(identity(WIDTH), FITTED)
    answer = search(world, fitted, **options)
    assert (answer.calibrated, answer.confidence, answer.answered) == (None, None, True)
    assert sum(hit.weight for hit in answer.hits) <= 1 + 1e-9
    nobody = search(world, fitted, filter={"c": "green"}, **options)
    assert (nobody.calibrated, nobody.confidence, nobody.answered) == (None, None, False)
    with pytest.raises(InvalidRequest, match=r"min_confidence is 1, but no confidence was fitted"):
        search(world, fitted, **options | {"min_confidence": 1.0})


def test_a_filter_leaves_the_null_logit_alone(world):
    fitted = world.version(identity(WIDTH), FITTED)
    logits = world.logits(fitted, QUERY, scale=[6.0], strength=(0.3, 0.5))
    for colour in (None, "red", "blue"):
        passing = {id: z for id, z in logits.items() if id in world.of_colour(colour)}
        weights, nothing = expected(passing, 5, null=[3.0])
        answer = search(world, fitted, filter=None if colour is None else {"c": colour})
        check_weights(answer, weights)
        assert answer.confidence == pytest.approx(1 - nothing, abs=1e-6)
        assert sum(hit.weight for hit in answer.hits) == pytest.approx(answer.confidence)


def test_a_null_follows_the_runners_up_of_each_query(world):
    levels = (0.5, 0.25)
    fitted = world.version(identity(WIDTH), FITTED.model_copy(update={"levels": levels}))
    for query in (QUERY, "gold"):
        logits = world.logits(fitted, query, scale=[6.0], strength=(0.3, 0.5))
        z = sorted((float(logit[0]) for logit in logits.values()), reverse=True)[:5]
        null = 3.0 + 0.5 * np.mean(z[1:]) + 0.25 * z[-1]  # the fifth stands for what is beyond
        weights, nothing = expected(logits, 5, null=[null])
        answer = search(world, fitted, query, explain=True)
        check_weights(answer, weights)
        assert answer.confidence == pytest.approx(1 - nothing, abs=1e-6)
        assert answer.weighing.null == pytest.approx([null], abs=1e-5)
        assert answer.calibrated == "examples"


def test_one_document_is_its_own_runner_up(world):
    fitted = world.version(identity(WIDTH), FITTED.model_copy(update={"levels": (0.5, 0.25)}))
    answer = search(world, fitted, mask={"only": ["d3"]}, explain=True)
    best = answer.hits[0].score
    assert answer.weighing.null == pytest.approx([3.0 + 0.75 * best], abs=1e-5)
    nobody = search(world, fitted, filter={"c": "green"})
    assert (nobody.confidence, nobody.answered) == (0.0, False)


def test_another_temperature_keeps_the_null_and_is_not_calibrated(world):
    fitted = world.version(identity(WIDTH), FITTED)
    logits = world.logits(fitted, QUERY, scale=[6.0], strength=(0.3, 0.5))
    weights, nothing = expected(logits, 5, null=[3.0], tau=2.5)
    answer = search(world, fitted, temperature=2.5)
    check_weights(answer, weights)
    assert answer.confidence == pytest.approx(1 - nothing, abs=1e-6)
    assert (answer.calibrated, answer.answered) == (None, True)


def test_the_fitted_scale_is_used_unless_another_is_asked_for(world):
    tuning = Tuning(scale=(6.0,), scorer="dot")
    fitted = world.version(projection_given(np.eye(WIDTH) * 2, None), tuning)
    for options, scale in [({}, 6.0), ({"scale": 1.5}, 1.5), ({"attend": 7, "k": 7}, 6.0)]:
        answer = search(world, fitted, **options)
        logits = world.logits(fitted, QUERY, scale=[scale])
        check_weights(answer, expected(logits, options.get("attend", 5))[0])
    as_cosines = search(world, fitted, scorer="cosine")  # 20: the scale was not fitted for it
    assert as_cosines.hits[0].score == pytest.approx(
        10 * max(world.logits(fitted, QUERY, scale=[1.0]).values())[0], rel=1e-5
    )


def test_several_heads_have_their_own_scales_and_nulls_or_share_one(world):
    rng = np.random.default_rng(5)
    w = rng.normal(size=(2, 4, WIDTH)).astype(np.float32)
    projection = projection_given(w, w[::-1].copy(), gates=[0.3, 0.7])
    for scale, null in [((1.0, 2.0), (0.5, 3.0)), ((1.5,), (2.0,))]:
        fitted = world.version(projection, Tuning(scale=scale, null=null, lexical=0.8))
        by_head = [np.resize(each, 2).tolist() for each in (scale, null)]
        logits = world.logits(fitted, QUERY, scale=by_head[0], strength=(0.8, 0.0))
        weights, nothing = expected(logits, 5, gates=[0.3, 0.7], null=by_head[1])
        answer = search(world, fitted)
        check_weights(answer, weights)
        assert answer.confidence == pytest.approx(1 - nothing, abs=1e-6)
        assert answer.calibrated


@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("asked", [None, 0.0, 0.5, 0.999])
def test_below_the_threshold_nothing_answers_and_hits_are_listed(world, mode, asked):
    sure = world.collection.search("gold", k=1).hits[0].score
    for null, confident in [(sure - 30, True), (sure + 30, False)]:
        tuning = Tuning(scale=(20.0,), null=(null,), attend=5, threshold=0.9)
        fitted = world.version(identity(WIDTH), tuning)
        answer = search(world, fitted, "gold", mode=mode, min_confidence=asked)
        assert answer.answered == (confident or asked == 0.0)
        assert len(answer.hits) == 5
        if answer.answered:
            assert answer.answer["type"] == "number"
            continue
        said = {name: part for name, part in answer.answer.items() if part is not None}
        assert said == {"type": "nothing", "reason": "nothing here answers that", "coverage": 0.0}
        assert answer.confidence < 0.5
        assert answer.json()["answered"] is False


def test_an_answer_of_just_the_confidence_asked_for_is_given(world):
    fitted = world.version(identity(WIDTH), FITTED)
    confidence = search(world, fitted).confidence
    assert search(world, fitted, min_confidence=confidence).answered
    assert not search(world, fitted, min_confidence=confidence + 1e-9).answered
    assert search(world, fitted, min_confidence=None).answered == (confidence >= 0.9)


def test_without_a_threshold_everything_is_answered(world):
    fitted = world.version(identity(WIDTH), Tuning(null=(1000.0,)))
    answer = search(world, fitted, min_confidence=None)
    assert (answer.calibrated, answer.answered) == ("examples", True)
    assert answer.confidence < 1e-9


def test_nothing_attended_is_said_as_before(world):
    fitted = world.version(identity(WIDTH), FITTED)
    answer = search(world, fitted, filter={"c": "green"}, min_confidence=None)
    assert (answer.answered, answer.confidence, answer.hits) == (False, 0.0, [])
    assert answer.answer["reason"] == "nothing attended"


def test_an_untrained_version_answers_without_a_null(world):
    for options in ({}, {"min_confidence": 0.0}):
        answer = world.collection.search("gold", **options)
        assert (answer.calibrated, answer.confidence, answer.answered) == (None, None, True)
    with pytest.raises(InvalidRequest, match=r"Train first") as refused:
        world.collection.search("gold", min_confidence=0.9)
    assert refused.value.field == "min_confidence"


@pytest.mark.parametrize("wrong", [-0.1, 1.1, "much", float("nan")])
def test_a_confidence_outside_zero_to_one_is_refused(world, wrong):
    with pytest.raises(InvalidRequest, match="min_confidence"):
        world.collection.search("gold", min_confidence=wrong)


def test_a_matrix_has_the_null_only_if_it_was_fitted_for_all(world):
    requests = [parse(SearchRequest, {"query": QUERY, "projection": 2})]
    for attend, mass in [(5, 1.0), ("all", None)]:
        tuning = Tuning(scale=(6.0,), null=(3.0,), attend=attend)
        fitted = world.version(identity(WIDTH), tuning)
        requests = [parse(SearchRequest, {"query": QUERY, "projection": fitted.number})]
        if mass is None:
            mass = 1 - expected(world.logits(fitted, QUERY, scale=[6.0]), "all", null=[3.0])[1]
        found = world.collection.matrix(requests)
        assert sum(found.weights[0]) == pytest.approx(mass, abs=1e-6)


def test_a_tuning_for_another_number_of_heads_is_refused(world):
    fitted = world.version(identity(WIDTH), Tuning(null=(1.0, 2.0)))
    with pytest.raises(Damaged, match="has 1 heads, but its tuning has 2 numbers for null"):
        world.collection.search("gold", projection=fitted.number)


def test_the_command_line_says_that_nothing_answers(world):
    world.version(identity(WIDTH), Tuning(null=(99.0,), threshold=0.5), activate=True)
    asked = ["search", "gold", "--data", str(world.data.folder), "-k", "2"]
    said = CliRunner().invoke(main, asked).output
    assert "nothing here answers that (confidence 0.000)" in said
    # A header, both documents with their passages, and the sentence.
    assert len(said.splitlines()) == 6
    for option in (["--min-confidence", "0"], ["--lexical", "0.3"], ["--lexical", "on"]):
        answer = json.loads(CliRunner().invoke(main, [*asked, *option, "--json"]).output)
        assert answer["answered"]
        assert answer["calibrated"] == ("examples" if "0" in option else None)
        words = [hit["explanation"]["lexical"] for hit in answer["hits"]]
        assert (max(words) > 0) == (option[0] == "--lexical")
