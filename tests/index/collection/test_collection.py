"""A collection against brute force: what is attended to, how much, and what is answered."""

from __future__ import annotations

import datetime
import gc
import sqlite3
import threading
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.api.base import parse
from attend.api.search import MAX_BATCH, SearchRequest
from attend.collection.data import Data
from attend.core.errors import (
    DimensionMismatch,
    InvalidRequest,
    LimitExceeded,
    UnknownCollection,
    UnknownDocument,
    UnknownField,
)
from attend.core.types import Document
from attend.projection import given as projection_given
from attend.values.blends import with_all_keys
from tests.index.helpers import (
    brute_logits,
    ranked,
    several_keys,
    soft_weights,
    vector_data,
)

WIDTH = 4

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.integers(0, 24), min_size=1, unique=True)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 24), max_size=8, unique=True)),
        st.tuples(st.just("publish"), st.just([])),
    ),
    min_size=1,
    max_size=7,
)


class Mirror:
    """A collection and, beside it, what every document's keys should be."""

    def __init__(self, folder, seed: int, **options) -> None:
        self.collection = vector_data(folder).create(dimension=WIDTH, **options)
        self.rng = np.random.default_rng(seed)
        self.keys: dict[str, np.ndarray] = {}
        self.colours: dict[str, str] = {}

    def take(self, step: str, numbers: list[int]) -> None:
        ids = [f"d{number}" for number in numbers]
        if step == "publish":
            self.collection.publish()
        elif step == "delete":
            assert self.collection.delete(ids) == len(set(ids) & set(self.keys))
            for id in ids:
                self.keys.pop(id, None)
        else:
            self.collection.upsert([self._document(id) for id in ids])

    def _document(self, id: str) -> Document:
        self.keys[id] = self.rng.normal(size=(self.rng.integers(1, 4), WIDTH)).astype(np.float32)
        self.colours[id] = "red" if self.rng.random() < 0.3 else "blue"
        return several_keys(id, self.keys[id], payload={"colour": self.colours[id]})

    def of_colour(self, colour: str | None) -> dict[str, np.ndarray]:
        return {id: k for id, k in self.keys.items() if colour in (None, self.colours[id])}


def check_attended(answer, logits: dict[str, float], attend: int, temperature: float) -> None:
    """The attended set is the brute-force top, in order, with SciPy's weights."""
    best = ranked(logits, attend)
    found = [hit.id for hit in answer.hits]
    assert answer.attended == len(best) == len(found)
    # Where two logits are within rounding of each other, either order is right.
    np.testing.assert_allclose(
        [logits[id] for id in found], [logits[id] for id in best], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        [hit.score for hit in answer.hits], [logits[id] for id in found], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        [hit.weight for hit in answer.hits], soft_weights(logits, found, temperature), atol=1e-6
    )
    assert answer.exact


@settings(max_examples=120, deadline=None)
@given(
    steps=STEPS,
    scorers=st.sampled_from(
        [("cosine", None), ("cosine", "cosine"), ("dot", None), ("laplace", None)]
        + [(own, asked) for own in ("dot", "laplace") for asked in ("dot", "cosine", "laplace")]
    ),
    pool=st.sampled_from(["max", "sum"]),
    attend=st.integers(1, 30),
    colour=st.sampled_from([None, "red", "blue", "green"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_attended_set_is_the_brute_force_top(
    tmp_path_factory, steps, scorers, pool, attend, colour, seed
):
    own, asked = scorers
    mirror = Mirror(tmp_path_factory.mktemp("mirror"), seed, scorer=own)
    for step, numbers in steps:
        mirror.take(step, numbers)
        query = mirror.rng.normal(size=WIDTH).astype(np.float32)
        answer = mirror.collection.search(
            query,
            k=attend,
            attend=attend,
            scorer=asked,
            pool=pool,
            scale=1.7,
            temperature=0.6,
            filter=None if colour is None else {"colour": colour},
        )
        keys = mirror.of_colour(colour)
        scorer = asked or own
        logits = brute_logits(query, keys, scorer=scorer, pool=pool, scale=1.7)
        check_attended(answer, logits, attend, 0.6)
        everything = mirror.collection.search(
            query, attend="all", k=max(1, len(keys)), filter={"colour": {"in": ["red", "blue"]}}
        )
        assert everything.attended == len(mirror.keys)
    mirror.collection.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_several_heads_attend_to_the_best_of_their_mixture(
    tmp_path_factory, documents, attend, seed
):
    collection = vector_data(tmp_path_factory.mktemp("heads")).create(dimension=WIDTH)
    rng = np.random.default_rng(seed)
    keys = rng.normal(scale=3, size=(documents, WIDTH)).astype(np.float32)
    collection.upsert([several_keys(f"d{n}", [key]) for n, key in enumerate(keys)])
    w_q, w_k = rng.normal(size=(2, 3, 2, WIDTH)).astype(np.float32)
    gates = rng.dirichlet(np.ones(3))
    collection.activate(collection.add_projection(projection_given(w_q, w_k, gates=gates)))
    query = rng.normal(size=WIDTH).astype(np.float32)
    answer = collection.search(query, attend=attend, k=attend, scale=1.0)

    z = np.einsum("hkd,d,hke,ne->hn", w_q, query, w_k, keys, dtype=np.float64)
    mixture = gates @ _softmax_rows(z)
    kept = np.argsort(-mixture)[:attend]
    weights = dict(zip(kept.tolist(), gates @ _softmax_rows(z[:, kept]), strict=True))
    found = {int(hit.id[1:]): hit.weight for hit in answer.hits}
    assert found.keys() == weights.keys()
    np.testing.assert_allclose([found[n] for n in weights], list(weights.values()), atol=1e-5)
    collection.close()


def _softmax_rows(z: np.ndarray) -> np.ndarray:
    shares = np.exp(z - z.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def test_no_head_alone_may_choose_the_candidates(tmp_path):
    """The third document is second in both heads, and first in their mixture."""
    collection = vector_data(tmp_path).create(dimension=2)
    vectors = {"left": [9, 0], "right": [0, 9], "both": [8.9, 8.9]}
    collection.upsert([{"id": id, "vector": vector} for id, vector in vectors.items()])
    blocks = projection_given(np.eye(2), np.eye(2), heads=2)
    collection.activate(collection.add_projection(blocks))
    answer = collection.search([1, 1], attend=1, k=1, scale=1.0)
    assert (answer.hits[0].id, answer.exact) == ("both", True)


# -- hard and soft -----------------------------------------------------------------------------

VALUES = {
    "number": [4.5, 2, -1, 10, None],
    "boolean": [True, False, True, False, None],
    "category": ["red", "blue", "red", "green", None],
    "labels": [["a", "b"], ["b"], ["c"], ["a"], None],
    "vector": [[1.0, 2.0], [0.0, 1.0], [5.0, 5.0], [2.0, 2.0], None],
    "text": [f"a long text number {n}, different from any other of them." for n in range(5)],
    "object": [{"price": n, "kind": "x"} for n in range(5)],
    "missing": [None, 1, 2, 3, 4],
}


@pytest.fixture
def five(tmp_path):
    """Five documents whose best one for (1, 0, 0, 0) is d0, by far; values of every type."""
    collection = vector_data(tmp_path).create(dimension=WIDTH)
    collection.upsert(
        {
            "id": f"d{n}",
            "vector": [5.0 - n, float(n), 1, 0],
            "payload": {name: values[n] for name, values in VALUES.items()},
            "value": n,
        }
        for n in range(5)
    )
    yield collection
    collection.close()


QUERY = [1.0, 0, 0, 0]


@pytest.mark.parametrize("name", VALUES)
def test_a_one_hot_weight_gives_exactly_the_hard_result(five, name):
    hard = five.search(QUERY, value=name, mode="hard")
    weight = hard.hits[0].weight
    one = five.search(QUERY, value=name, mode="soft", attend=1, k=1).answer
    assert with_all_keys(one, weight) == hard.answer
    only = {"only": ["d0"]}
    masked = five.search(QUERY, value=name, mode="soft", attend="all", mask=only).answer
    assert with_all_keys(masked, weight) == hard.answer


@pytest.mark.parametrize("name", VALUES)
def test_soft_at_a_tiny_temperature_is_hard(five, name):
    hard = five.search(QUERY, value=name, mode="hard")
    soft = five.search(QUERY, value=name, mode="soft", temperature=1e-9).answer
    if soft["values"]:  # the others are still listed, with nothing of the weight
        soft["values"] = soft["values"][:1]
    assert with_all_keys(soft, hard.hits[0].weight) == hard.answer


def test_a_soft_answer_is_the_weighted_mean(five):
    answer = five.search(QUERY, mode="soft", scale=0.5, temperature=2)
    logits = {f"d{n}": 0.5 * (5.0 - n) for n in range(5)}
    weights = soft_weights(logits, list(logits), 2)
    assert answer.answer["mean"] == pytest.approx(float(weights @ np.arange(5)), abs=1e-9)
    assert answer.answer["coverage"] == 1.0
    partial = five.search(QUERY, mode="soft", scale=0.5, temperature=2, value="number").answer
    assert partial["coverage"] == pytest.approx(1 - weights[4])
    expected = float(weights[:4] @ [4.5, 2, -1, 10] / weights[:4].sum())
    assert partial["mean"] == pytest.approx(expected)


def test_listing_changes_neither_weights_nor_answer(five):
    whole = five.search(QUERY, mode="soft", k=5, attend=5)
    pages = [
        five.search(QUERY, mode="soft", k=k, offset=at, attend=5)
        for at, k in ((0, 2), (2, 2), (4, 1))
    ]
    assert [hit for page in pages for hit in page.hits] == list(whole.hits)
    assert all(page.answer == whole.answer for page in pages)
    assert five.search(QUERY, k=1, offset=9).hits == []


def test_the_value_may_be_the_key_itself(five):
    answer = five.search(QUERY, value="@key", k=1, mode="hard")
    assert answer.hits[0].value == [5.0, 0.0, 1.0, 0.0]
    assert answer.answer["vector"] == [5.0, 0.0, 1.0, 0.0]


def test_an_explanation_names_the_key_that_matched(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2)
    collection.upsert([several_keys("x", [[1, 0], [0, 5]]), several_keys("y", [[2, 0]])])
    hits = collection.search([0, 1], explain=True, scale=1.0).hits
    assert (hits[0].id, hits[0].explanation["field"]) == ("x", "v1")
    assert hits[0].explanation["logits"] == [5.0]
    assert collection.search([1, 0], explain=True).hits[1].explanation["field"] == "v0"
    page = collection.search([0, 1], explain=True, k=1, offset=1).hits
    assert (page[0].id, page[0].explanation["weights"]) == ("y", [page[0].weight])


def test_decoding_names_the_document_of_the_nearest_value(five):
    answer = five.search(QUERY, value="vector", mode="soft", attend=1, k=1, decode=True).answer
    assert answer["decoded"]["id"] == "d0"
    assert answer["decoded"]["distance"] == pytest.approx(0)


# -- queries and masks ---------------------------------------------------------------------------


def test_a_document_as_a_query_is_the_mean_of_its_keys(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2)
    keys = {"x": [[4.0, 0], [0, 2.0]], "y": [[1, 1]], "z": [[-1, 3]]}
    collection.upsert([several_keys(id, rows) for id, rows in keys.items()])
    answer = collection.search({"id": "x"}, scale=1.0, exclude_self=False)
    check_attended(answer, brute_logits([2.0, 1.0], keys), 100, 1.0)
    with pytest.raises(UnknownDocument, match="'nobody'"):
        collection.search({"id": "nobody"})


def test_masks_and_filters_narrow_together(five):
    found = five.search(QUERY, mask={"only": ["d1", "d2", "d3"], "exclude": ["d2"]})
    assert [hit.id for hit in found.hits] == ["d1", "d3"]
    found = five.search(QUERY, mask={"only": ["d1", "d3"]}, filter={"@value": {"gt": 1}})
    assert [hit.id for hit in found.hits] == ["d3"]
    assert found.hits[0].weight == 1.0
    nothing = five.search(QUERY, mask={"only": []}, mode="soft")
    assert (nothing.attended, nothing.confidence, nothing.hits) == (0, None, [])
    assert nothing.answer["type"] == "nothing"
    with pytest.raises(UnknownDocument, match="'d9'"):
        five.search(QUERY, mask={"exclude": ["d1", "d9"]})


def test_a_batch_answers_each_as_if_it_were_alone(five):
    queries = [QUERY, [0, 1.0, 0, 0], {"id": "d3"}, [0, 0, 1.0, 1]]
    given_options = [{"k": 2}, {"k": 3, "mode": "soft"}, {"k": 2}, {"filter": {"boolean": True}}]
    requests = [
        parse(SearchRequest, {"query": query, **options})
        for query, options in zip(queries, given_options, strict=True)
    ]
    together = five.search_many(requests)
    for query, options, answer in zip(queries, given_options, together, strict=True):
        alone = five.search(query, **options)
        assert [hit.id for hit in answer.hits] == [hit.id for hit in alone.hits]
        np.testing.assert_allclose(
            [hit.weight for hit in answer.hits], [hit.weight for hit in alone.hits], atol=1e-9
        )
    with pytest.raises(InvalidRequest, match=f"at most {MAX_BATCH}"):
        five.search_many([requests[0]] * (MAX_BATCH + 1))


def test_a_batch_blends_all_documents_for_each_as_if_it_were_alone(five):
    queries = [QUERY, [0, 1.0, 0, 0], {"id": "d3"}, [0, 0, 1.0, 1]]
    options = {"mode": "soft", "attend": "all", "scale": 0.3, "value": "category"}
    together = five.search_many(
        [parse(SearchRequest, {"query": query, **options}) for query in queries]
    )
    for query, answer in zip(queries, together, strict=True):
        alone = five.search(query, **options).answer["distribution"]
        assert answer.answer["distribution"] == pytest.approx(alone)


@pytest.mark.parametrize(
    ("query", "options", "error", "said"),
    [
        ([1, 2, 3], {}, DimensionMismatch, "has 3 dimensions, but this collection's have 4"),
        ([1, 2, 3, float("nan")], {}, InvalidRequest, "nan"),
        ([1, 2, 3, 1e300], {}, InvalidRequest, "beyond 1e"),
        ("words", {}, InvalidRequest, "made for vectors of 4 dimensions"),
        ("", {}, InvalidRequest, "query"),
        (
            {"id": "a", "text": "b"},
            {},
            InvalidRequest,
            "exactly one of text, vector, id, ids, blend and mixture",
        ),
        (QUERY, {"k": 0}, InvalidRequest, "k: .* but 0 was given"),
        (QUERY, {"k": 10**9}, InvalidRequest, "k: .* but 1000000000 was given"),
        (QUERY, {"k": 50, "attend": 20}, InvalidRequest, "k \\+ offset is 50, but only 20"),
        (QUERY, {"attend": 0}, InvalidRequest, "attend"),
        (QUERY, {"temperature": -1.5}, InvalidRequest, "temperature: .* but -1.5 was given"),
        (QUERY, {"temperature": 0}, InvalidRequest, "temperature: .* but 0 was given"),
        (QUERY, {"scorer": "euclid"}, InvalidRequest, "scorer: .* but 'euclid' was given"),
        (QUERY, {"scorer": "additive"}, InvalidRequest, "'additive'"),
        (QUERY, {"scale": 0}, InvalidRequest, "scale: .* but 0 was given"),
        (QUERY, {"pool": "mean"}, InvalidRequest, "pool: .* but 'mean' was given"),
        (QUERY, {"heads": [0.5, 0.5]}, InvalidRequest, "2 head weights .* has 1 heads"),
        (QUERY, {"value": "prize"}, UnknownField, "'prize'; there are number, boolean"),
        (QUERY, {"filter": {"a": {"near": 1}}}, InvalidRequest, "near"),
        (QUERY, {"colour": 1}, InvalidRequest, "colour: unknown field"),
    ],
)
def test_a_search_that_cannot_be_done_names_the_value(five, query, options, error, said):
    with pytest.raises(error, match=said):
        five.search(query, **options)


def test_sizes_have_limits(five):
    with pytest.raises(InvalidRequest, match="10001 documents were sent at once"):
        five.upsert([Document(str(n), vectors={"v": [1, 2, 3, 4]}) for n in range(10_001)])
    with pytest.raises(InvalidRequest, match="at most 1000000 characters"):
        five.upsert([{"id": "x", "text": "a" * 1_000_001}])
    assert five.info().documents == 5


def test_a_document_that_goes_while_it_is_read_is_left_out(five, monkeypatch):
    gone = []
    read = five.store.documents

    def deleted_meanwhile(rows, **options):
        if not gone:
            gone.append(five.delete(["d0"]))
        return read(rows, **options)

    monkeypatch.setattr(five.store, "documents", deleted_meanwhile)
    assert [hit.id for hit in five.search(QUERY).hits] == ["d1", "d2", "d3", "d4"]


# -- text ------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path, tiny_encoder):
    data = Data(tmp_path, load_encoder=lambda name: tiny_encoder)
    yield data.create()
    data.close()


def test_texts_are_found_by_any_of_their_fields_and_passages(texts, tiny_encoder):
    filler = "An entirely unrelated sentence about pastry and flour. " * 200
    written = texts.upsert(
        [
            {"id": "long", "text": f"{filler} A whale was hunted on the wide sea."},
            {"id": "two", "fields": {"title": "whales", "body": "flour and pastry"}},
            {"id": "none", "text": "pastry and flour"},
        ]
    )
    assert written.encoded == texts.info().keys > 4
    whale = "A whale was hunted on the wide sea."
    best = texts.search(whale, explain=True, mask={"only": ["long"]}).hits[0]
    assert "whale was hunted" in best.explanation["passage"]
    stored = texts.document("long").fields["text"]
    place = slice(best.explanation["start"], best.explanation["stop"])
    assert stored[place] == best.explanation["passage"]
    assert texts.search("whales", explain=True).hits[0].explanation["field"] == "title"


def test_text_logits_are_cosines_times_twenty(texts, tiny_encoder):
    words = ["a whale", "a ship", "the sea", "a loaf of bread"]
    texts.upsert([{"id": text, "text": text} for text in words])
    answer = texts.search("the whale ship", lexical=False)
    query = tiny_encoder.encode_queries(["the whale ship"])[0]
    keys = dict(zip(words, tiny_encoder.encode_documents(words)[:, None], strict=True))
    check_attended(answer, brute_logits(query, keys, scorer="cosine", scale=20.0), 100, 1.0)


def test_only_new_texts_meet_the_encoder(texts):
    first = [{"id": str(n), "text": f"text {n}", "value": n} for n in range(4)]
    assert texts.upsert(first).encoded == 4
    assert texts.upsert(first).encoded == 0
    changed = [{**first[0], "value": 99}, {**first[1], "text": "other words"}, *first[2:]]
    written = texts.upsert([*changed, {"id": "5", "text": "new"}])
    assert (written.added, written.updated, written.revised, written.unchanged) == (1, 1, 1, 2)
    assert written.encoded == 2
    assert texts.document("0").value == 99


def test_a_vector_for_texts_must_have_the_encoders_width(texts):
    with pytest.raises(InvalidRequest, match="has 3 dimensions, but this collection's have 32"):
        texts.upsert([{"id": "x", "vector": [1, 2, 3]}])


def test_a_matrix_larger_than_a_response_is_refused(five, monkeypatch):
    monkeypatch.setattr("attend.search.answer.MAX_CELLS", 9)
    requests = [parse(SearchRequest, {"query": QUERY})] * 2
    with pytest.raises(LimitExceeded, match="2 queries over 5 documents"):
        five.matrix(requests)


def test_a_collection_made_for_cosine_says_that_it_forgot_the_lengths(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2, scorer="cosine")
    collection.upsert([{"id": "long", "vector": [3, 0]}, {"id": "short", "vector": [1, 0]}])
    with pytest.raises(InvalidRequest, match="keeps its keys at length one; dot would not"):
        collection.search([1, 0], scorer="dot")
    assert [hit.score for hit in collection.search([1, 0], scorer="cosine").hits] == [20, 20]


def test_naming_the_collections_own_scorer_changes_nothing(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2, scale=5.0)
    collection.upsert([{"id": "a", "vector": [1, 0]}])
    assert collection.search([1, 0], scorer="dot").hits[0].score == 5.0
    assert collection.search([1, 0]).hits[0].score == 5.0


def test_the_type_of_an_answer_follows_the_values(tmp_path):
    """What was inferred before a change must not answer after it."""
    collection = vector_data(tmp_path).create(dimension=2)
    collection.upsert([{"id": "a", "vector": [1, 0]}, {"id": "b", "vector": [0, 1]}])
    assert collection.search([1, 0], mode="soft").answer["coverage"] == 0
    collection.upsert([{"id": "a", "vector": [1, 0], "value": 5}])
    assert collection.search([1, 0], mode="soft").answer["mean"] == 5


def test_a_value_that_few_documents_have_is_found_where_it_is(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2)
    documents = [{"id": str(n), "vector": [1, n], "payload": {"n": n}} for n in range(3000)]
    documents[1234]["payload"]["rare"] = 7
    collection.upsert(documents)
    found = collection.search([1, 0], filter={"n": 1234}, value="rare")
    assert found.answer["mean"] == 7
    with pytest.raises(UnknownField, match="'rarer'"):
        collection.search([1, 0], value="rarer")


def test_a_collection_dropped_by_another_process_takes_no_writes(tmp_path):
    ours, theirs = vector_data(tmp_path), vector_data(tmp_path)
    collection = ours.create("films", dimension=2)
    collection.upsert([{"id": "a", "vector": [1, 0]}])
    theirs.drop("films")
    with pytest.raises(UnknownCollection, match="'films' was deleted while it was open"):
        collection.upsert([{"id": "b", "vector": [1, 0]}])
    with pytest.raises((UnknownCollection, OSError)):
        collection.publish()
    fresh = theirs.create("films", dimension=3)
    fresh.upsert([{"id": "c", "vector": [1, 0, 0]}])
    assert ours.collection("films").ids() == {"c"}


@pytest.mark.parametrize("id", ["", "a\x00b", "tab\t", "x" * 513, "\ud800"])
def test_ids_that_cannot_be_kept_are_refused_however_they_come(tmp_path, id):
    collection = vector_data(tmp_path).create(dimension=2)
    for document in (Document(id, {}, {"vector": [1, 0]}), {"id": id, "vector": [1, 0]}):
        with pytest.raises(InvalidRequest, match="id"):
            collection.upsert([document])
    assert collection.ids() == set()


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"dimension": 2, "values": "nonsense"}, "nonsense"), ({"dimension": 0}, "dimension")],
)
def test_settings_that_no_search_could_use_are_refused_at_once(tmp_path, settings, says):
    with pytest.raises(InvalidRequest, match=says):
        vector_data(tmp_path).create(**settings)
    assert vector_data(tmp_path).names() == []


def test_a_page_and_its_total_are_of_one_moment(tmp_path, monkeypatch):
    data = vector_data(tmp_path)
    books = data.create("books", dimension=2)
    books.upsert([{"id": id, "vector": [1.0, 0.0]} for id in "abc"])
    other, scroll = vector_data(tmp_path), books.store.scroll

    def later(*arguments):
        other.collection("books").delete(["a"])
        return scroll(*arguments)

    monkeypatch.setattr(books.store, "scroll", later)
    page = books.page()
    assert len(page.documents) == page.total == 3
    assert books.page().total == 2
    other.close()
    data.close()


def test_numbers_of_numpy_are_numbers_and_other_values_are_refused_by_name(tmp_path):
    data = vector_data(tmp_path)
    books = data.create("books", dimension=2)
    documents = [{"id": str(n), "vector": [1.0, n], "payload": {"n": n}} for n in range(4)]
    books.upsert(documents)
    one = np.int64(1)
    assert books.page({"n": {"gte": one}}, limit=one).total == 3
    assert books.page({"n": {"in": np.arange(3)}}).total == 3
    assert books.page(types.MappingProxyType({"n": np.float32(2)})).total == 1
    assert books.facets(["n"], {"n": one}, limit=one)["n"].distinct == 1
    assert books.delete_matching({"n": np.int64(3)}) == 1
    assert books.delete(id for id in ["2"]) == 1
    books.activate(one)
    assert books.info().projection == 1
    day = datetime.date(2020, 1, 1)
    refused = [
        lambda: books.page({"n": day}),
        lambda: books.page({"n": {1, 2}}),
        lambda: books.page(limit=1.5),
        lambda: books.page(limit=-1),
        lambda: books.page(cursor=3),
        lambda: books.facets("n"),
        lambda: books.facets([1]),
        lambda: books.facets(["n"], limit="1"),
        lambda: books.delete_matching({"n": b"1"}),
        lambda: books.delete("1"),
        lambda: books.delete([1]),
        lambda: books.document(1),
        lambda: books.revise(1, {"value": 1}),
        lambda: books.activate("1"),
        lambda: books.add_projection(books.fit_projection("pca", 1), {"day": day}),
    ]
    for call in refused:
        with pytest.raises(InvalidRequest):
            call()
    assert books.ids() == {"0", "1"}
    assert books.info().projection == 1
    data.close()


def test_many_short_threads_leave_no_connections_behind(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2)
    collection.upsert([{"id": "a", "vector": [1, 0]}])
    gc.collect()
    before = open_connections()
    for _ in range(50):
        thread = threading.Thread(target=collection.search, args=[[1, 0]])
        thread.start()
        thread.join()
    gc.collect()
    assert open_connections() <= before + 2


def open_connections() -> int:
    # By type: what stands for something else may warn when asked for its class.
    return sum(issubclass(type(each), sqlite3.Connection) for each in gc.get_objects())


@pytest.mark.parametrize("as_vector", [list, tuple, np.array, np.float32])
def test_vectors_may_be_arrays(tmp_path, as_vector):
    collection = vector_data(tmp_path).create(dimension=2)
    collection.upsert([{"id": "a", "vector": as_vector([3.0, 4.0])}])
    again = collection.upsert([Document("a", {}, {"vector": as_vector([3.0, 4.0])})])
    assert again.unchanged == 1
    assert collection.search(as_vector([1.0, 0.0]), scale=1.0).hits[0].score == 3.0


@pytest.mark.parametrize("way", ["ids", "filter"])
def test_keys_of_deleted_documents_leave_the_index_when_they_are_many(tmp_path, monkeypatch, way):
    monkeypatch.setattr("attend.engines.snapshots.MERGE_KEYS", 5)
    collection = vector_data(tmp_path).create(dimension=2, normalize=True)
    vectors = np.random.default_rng(0).normal(size=(40, 2)).tolist()
    collection.upsert([{"id": str(at), "vector": each} for at, each in enumerate(vectors)])
    collection.publish()
    if way == "ids":
        gone = collection.delete([str(at) for at in range(30)])
    else:
        gone = collection.delete_matching({"@id": {"in": [str(at) for at in range(30)]}})
    assert gone == 30
    published = collection.folder.rglob("documents.npy")
    assert [len(np.load(each)) for each in published] == [10]
    assert len(collection.search([1.0, 0.0], k=40).hits) == 10
