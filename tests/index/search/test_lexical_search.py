"""The whole formula against dense matrices in float64: keys, offsets, examples, words, null."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.core.errors import InvalidRequest
from attend.core.settings import DEFAULT_COVERAGE, DEFAULT_LEXICAL, Tuning
from attend.projection import given as projection_given
from attend.projection import identity
from attend.search import attend as attending
from attend.search.queries import NO_WORDS, WordScores
from tests.index.world import World, check_weights, expected, words

WIDTH = 32  # of the tiny encoder

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "teach", "teach", "forget", "delete", "publish"]),
        st.lists(st.integers(0, 30), min_size=1, max_size=14),
    ),
    min_size=1,
    max_size=6,
)
PROJECTIONS = ["raw", "trained", "normalized", "narrow", "two heads", "shared keys"]


def projection_of(kind: str, rng: np.random.Generator):
    def near(*shape: int) -> np.ndarray:
        return (np.eye(shape[-2], WIDTH) + rng.normal(scale=0.2, size=shape)).astype(np.float32)

    if kind == "raw":
        return identity(WIDTH)
    if kind == "trained":
        return projection_given(near(WIDTH, WIDTH), near(WIDTH, WIDTH))
    if kind == "normalized":
        both = {"normalize_queries": True, "normalize_keys": True}
        return projection_given(near(WIDTH, WIDTH), near(WIDTH, WIDTH), **both)
    if kind == "narrow":
        return projection_given(near(5, WIDTH), near(5, WIDTH), normalize_keys=True)
    of_keys = 2 if kind == "two heads" else 1
    gates = rng.dirichlet([3, 3])
    return projection_given(near(2, 6, WIDTH), near(of_keys, 6, WIDTH), gates=gates)


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    kind=st.sampled_from(PROJECTIONS),
    pool=st.sampled_from(["max", "max", "sum"]),
    attend=st.sampled_from([1, 3, 8, 40, "all"]),
    colour=st.sampled_from([None, None, "red"]),
    strength=st.sampled_from([(0.0, 0.0), (0.2, 0.0), (0.7, 1.5), (5.0, 0.5)]),
    examples=st.sampled_from([0.0, 0.8]),
    moved=st.booleans(),
    null=st.booleans(),
    scanned=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_weights_are_those_of_the_dense_formula(
    tmp_path_factory, tiny_encoder, steps, kind, pool, attend, colour, strength, examples, moved,
    null, scanned, seed,
):  # fmt: skip
    world = World(tmp_path_factory.mktemp("world"), tiny_encoder, seed)
    world.take("write", range(0, 24, 2))
    projection = projection_of(kind, world.rng)
    heads = projection.heads
    tuning = Tuning(
        scale=tuple(world.rng.uniform(2, 5, heads)),
        null=tuple(world.rng.normal(2, 1, heads)) if null else None,
        lexical=strength[0],
        coverage=strength[1],
        examples=examples,
        attend=attend,
        pool=pool,
    )
    deltas = {
        id: world.rng.normal(scale=0.2, size=WIDTH).astype(np.float32)
        for id in world.key_ids()[:7]
        if moved
    }
    fitted = world.version(projection, tuning, deltas, activate=bool(seed % 2))
    with pytest.MonkeyPatch.context() as patch:
        if not scanned and heads == 1 and pool == "max":
            patch.setattr(attending, "SCAN_FLOATS", 0)
            patch.setattr(attending, "SCAN_SHARE", 1)
        for step in steps:
            world.take(*step)
            query = words(world.rng, 5) + (" zzyzx" if world.rng.random() < 0.3 else "")
            answer = world.collection.search(
                query,
                projection=fitted.number,
                attend=attend,
                k=40 if attend == "all" else attend,
                pool=pool,
                filter=None if colour is None else {"c": colour},
            )
            logits = world.logits(fitted, query, scale=tuning.scale, strength=strength, pool=pool)
            passing = {id: z for id, z in logits.items() if id in world.of_colour(colour)}
            weights, nothing = expected(passing, attend, gates=projection.gates, null=tuning.null)
            check_weights(answer, weights)
            assert answer.exact
            assert answer.calibrated == ("examples" if null else None)
            confidence = pytest.approx(1 - nothing if weights else 0.0, abs=1e-6)
            assert answer.confidence == (confidence if null else None)
    world.data.close()


# -- which documents can be missed ------------------------------------------------------------


@pytest.fixture
def world(tmp_path, tiny_encoder):
    world = World(tmp_path, tiny_encoder, 7)
    yield world
    world.data.close()


def counting(monkeypatch) -> list[int]:
    """How many documents each look of this thread at the index asked for.

    In the background the collection asks its own passages, after the first search.
    """
    from attend.keys.snapshot import Snapshot

    asked, search = [], Snapshot.search

    def counted(self, queries, rows, attend, recall=None):
        if threading.current_thread() is threading.main_thread():
            asked.append(attend)
        return search(self, queries, rows, attend, recall)

    monkeypatch.setattr(Snapshot, "search", counted)
    monkeypatch.setattr(attending, "SCAN_FLOATS", 0)
    return asked


def test_candidates_grow_until_no_better_document_can_be_missed(world, monkeypatch):
    """Keys that look for the unlike: the best by keys are the worst by words."""
    world.take("write", range(400))
    world.collection.publish()
    asked = counting(monkeypatch)
    turned = projection_given(-np.eye(WIDTH), None)
    fitted = world.version(turned, Tuning(scale=(20.0,)), activate=True)
    sizes = set()
    for text in ("whale ship sea", "gold", "storm lamp letter door"):
        for weight in (0.05, 0.4, 3.0):
            asked.clear()
            answer = world.collection.search(text, lexical=weight, attend=4, k=4)
            logits = world.logits(fitted, text, scale=[20.0], strength=(weight, DEFAULT_COVERAGE))
            check_weights(answer, expected(logits, 4)[0], atol=1e-5)
            assert asked == [8 * 2**step for step in range(len(asked))]
            assert answer.exact
            sizes.add(len(asked))
    assert len(sizes) > 1  # some were proved at once, and some were not


def test_what_cannot_be_proved_is_scanned(world, monkeypatch):
    """Fifty documents at one place: no bound tells the fourth from the fifth."""
    world.collection.upsert([{"id": f"d{n:02}", "text": "gold island"} for n in range(50)])
    world.collection.upsert([{"id": "other", "text": f"{'rain ' * 12} gold"}])
    asked = counting(monkeypatch)
    text = "gold island rain"
    answer = world.collection.search(text, lexical=0.3, attend=4, k=4)
    logits = world.logits(
        world.version(identity(WIDTH)), text, scale=[20.0], strength=(0.3, DEFAULT_COVERAGE)
    )
    check_weights(answer, expected(logits, 4)[0], atol=1e-5)
    assert asked == []  # four times two is more than one in eight of 51
    assert answer.exact


def test_a_scorer_that_the_index_does_not_know_is_approximate_beyond_a_scan(world, monkeypatch):
    world.take("write", range(60))
    counting(monkeypatch)
    answer = world.collection.search("gold rain", lexical=True, pool="sum", attend=3, k=3)
    assert not answer.exact
    logits = world.logits(
        world.version(identity(WIDTH)), "gold rain", scale=[20.0], pool="sum",
        strength=(DEFAULT_LEXICAL, DEFAULT_COVERAGE),
    )  # fmt: skip
    check_weights(answer, expected(logits, 3)[0], atol=1e-5)


# -- what is asked ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "own", "strength"),
    [
        (None, Tuning(scale=(20.0,)), (0.0, 0.0)),
        (False, Tuning(), (0.0, 0.0)),
        (None, Tuning(lexical=0.4, coverage=2.0), (0.4, 2.0)),
        (False, Tuning(lexical=0.4), (0.0, 0.0)),
        (0, Tuning(lexical=0.4), (0.0, 0.0)),
        (True, Tuning(lexical=0.4, coverage=2.0), (DEFAULT_LEXICAL, DEFAULT_COVERAGE)),
        (True, Tuning(scale=(20.0,)), (DEFAULT_LEXICAL, DEFAULT_COVERAGE)),
        (1, Tuning(lexical=0.4, coverage=2.0), (1.0, 2.0)),
        (0.3, Tuning(), (0.3, DEFAULT_COVERAGE)),
        ("0.3", Tuning(), (0.3, DEFAULT_COVERAGE)),
        ("on", Tuning(scale=(20.0,)), (DEFAULT_LEXICAL, DEFAULT_COVERAGE)),
        ("false", Tuning(lexical=0.4), (0.0, 0.0)),
    ],
)
def test_a_request_says_how_much_words_count(world, asked, own, strength):
    world.take("write", range(20))
    fitted = world.version(identity(WIDTH), own)
    answer = world.collection.search("gold rain", lexical=asked, projection=fitted.number, k=20)
    logits = world.logits(fitted, "gold rain", scale=[20.0], strength=strength)
    check_weights(answer, expected(logits, 100)[0], atol=1e-5)


@pytest.mark.parametrize("wrong", [-0.1, 10.5, "much", [1], float("nan"), float("inf")])
def test_a_weight_of_words_that_is_none_is_refused(world, wrong):
    with pytest.raises(InvalidRequest, match=r"lexical: .*true, false or a number from 0 to 10"):
        world.collection.search("gold", lexical=wrong)


def test_a_filter_changes_no_share_of_words(world):
    """BM25 is over the largest of the whole collection, and not of what passes."""
    world.take("write", range(40))
    asked = {"lexical": 0.5, "k": 40, "explain": True}
    everything = world.collection.search("gold rain island", **asked).hits
    red = world.collection.search("gold rain island", filter={"c": "red"}, **asked).hits
    shares = {hit.id: hit.explanation["lexical"] for hit in everything}
    assert {hit.id: hit.explanation["lexical"] for hit in red}.items() <= shares.items()
    best = world.store.lexical("gold rain island")
    covered = (best.maximum / best.ideal) ** DEFAULT_COVERAGE
    assert max(shares.values()) == pytest.approx(20 * 0.5 * covered)
    assert len(red) < len(everything)


def test_queries_without_text_have_no_words(world):
    world.take("write", range(10))
    fitted = world.version(identity(WIDTH), Tuning(lexical=0.5, null=(0.0,)), activate=True)
    vector = world.encoder.encode_queries(["gold"])[0]
    mixed = [
        {"query": query, "explain": True, "lexical": 0.5, "k": 3}
        for query in ("gold", vector.tolist(), {"id": "d3"})
    ]
    text, by_vector, by_id = world.collection.search_many(
        [parse(SearchRequest, each) for each in mixed]
    )
    assert [hit.explanation["lexical"] for hit in (*by_vector.hits, *by_id.hits)] == [0.0] * 6
    assert [hit.explanation["terms"] for hit in by_vector.hits] == [[]] * 3
    assert text.hits[0].explanation["lexical"] > 0
    # What was fitted with words does not fit without.
    assert [each.calibrated for each in (text, by_vector, by_id)] == ["examples", None, None]
    logits = world.logits(fitted, vector, scale=[20.0])
    assert by_vector.hits[0].score == pytest.approx(max(logits.values())[0], abs=1e-5)


def test_words_that_no_document_has_change_nothing(world):
    world.take("write", range(10))
    with_words = world.collection.search("xyzzy plugh", lexical=2.0, explain=True)
    plain = world.collection.search("xyzzy plugh", lexical=False)
    assert [(h.id, h.weight) for h in with_words.hits] == [(h.id, h.weight) for h in plain.hits]
    assert {hit.explanation["lexical"] for hit in with_words.hits} == {0.0}


def test_a_matrix_has_the_lexical_term_too(world):
    world.take("write", range(12))
    texts = ["gold rain", "map of the island"]
    requests = [parse(SearchRequest, {"query": text, "lexical": 0.6}) for text in texts]
    found = world.collection.matrix(requests)
    fitted = world.version(identity(WIDTH))
    for text, logits in zip(texts, found.logits, strict=True):
        oracle = world.logits(fitted, text, scale=[20.0], strength=(0.6, DEFAULT_COVERAGE))
        np.testing.assert_allclose(logits[0], [oracle[id][0] for id in found.documents], atol=1e-5)


# -- explanations -----------------------------------------------------------------------------


def test_an_explanation_divides_the_logit_between_keys_and_words(world):
    world.take("write", range(30))
    fitted = world.version(projection_of("trained", world.rng), Tuning(scale=(3.0,), lexical=0.5))
    answer = world.collection.search(
        "gold rain island", projection=fitted.number, explain=True, k=5, offset=2
    )
    dense = world.logits(fitted, "gold rain island", scale=[3.0])
    both = world.logits(fitted, "gold rain island", scale=[3.0], strength=(0.5, 0.0))
    for hit in answer.hits:
        explained = hit.explanation
        assert explained["dense"] == pytest.approx(dense[hit.id][0], abs=1e-5)
        assert explained["lexical"] == pytest.approx((both[hit.id] - dense[hit.id])[0], abs=1e-5)
        assert explained["dense"] + explained["lexical"] == pytest.approx(explained["logits"][0])
        assert set(explained["terms"]) <= set("gold rain island".split())  # noqa: SIM905
        assert explained["question"] is None


def test_an_explanation_names_the_question_that_was_like_this_one(world):
    world.take("write", range(10))
    world.teach("who hid the doubloons", ["d4"])
    fitted = world.version(identity(WIDTH), Tuning(examples=0.9))
    best = world.collection.search(
        "who hid the doubloons", projection=fitted.number, explain=True
    ).hits[0]
    assert best.id == "d4"
    assert best.score == pytest.approx(0.9 * 20, abs=1e-4)
    told = {name: best.explanation[name] for name in ("question", "field", "passage")}
    assert told == {"question": "who hid the doubloons", "field": "@example", "passage": None}


# -- the term itself --------------------------------------------------------------------------

OVERLAPS = st.builds(
    lambda rows, seed: WordScores(
        np.array(sorted(rows), dtype=np.int64),
        np.random.default_rng(seed).integers(1, 6, len(rows)) / 7,
        ("a",),
    ),
    st.sets(st.integers(1, 50), max_size=30),
    st.integers(0, 2**32 - 1),
)


@settings(deadline=None)
@given(OVERLAPS, st.lists(st.integers(0, 60)), st.sets(st.integers(1, 50)), st.integers(1, 40))
def test_overlaps_as_a_dict_has_them(overlap, asked, passing, count):
    held = dict(zip(overlap.rows.tolist(), overlap.scores.tolist(), strict=True))
    documents = np.array(asked, dtype=np.int64)
    assert overlap.of(documents).tolist() == [held.get(row, 0.0) for row in asked]
    assert NO_WORDS.of(documents).tolist() == [0.0] * len(asked)
    kept = overlap.among(np.array(sorted(passing), dtype=np.int64))
    assert dict(zip(kept.rows.tolist(), kept.scores.tolist(), strict=True)) == {
        row: share for row, share in held.items() if row in passing
    }
    rows, beyond = overlap.best(count)
    chosen = {row: held.pop(row) for row in rows.tolist()}
    assert len(chosen) == min(count, len(overlap.rows))
    assert beyond == max(held.values(), default=0.0)
    assert not chosen or min(chosen.values()) >= beyond


def test_a_search_without_words_looks_none_up(world, monkeypatch):
    world.take("write", range(5))

    def never(*_):
        raise AssertionError("words were looked up, and nobody asked for them")

    monkeypatch.setattr(type(world.store), "lexical_many", never)
    assert world.collection.search("gold", lexical=False).attended == 5
    world.version(identity(WIDTH), Tuning(scale=(20.0,)), activate=True)  # trained without words
    assert world.collection.search("gold").attended == 5
