"""Documents with texts and own vectors: their keys, words, lengths, and what is refused."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from attend import Data
from attend.core.errors import CollectionExists, InvalidRequest, KeylessDocuments
from attend.core.settings import Settings
from attend.engines.local import Folder
from attend.store.database import Store
from tests.index.helpers import vector_data

WIDTH = 64
TOPICS = ["whale", "ship", "captain", "harbour", "storm", "village"]
TOPICS += ["ball", "letter", "dune", "desert", "spice", "planet"]


def unit_vectors(count: int, width: int = WIDTH, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, width))
    return (vectors / np.sqrt((vectors**2).sum(axis=1, keepdims=True))).astype(np.float32)


VECTORS = unit_vectors(500)


def text_of(number: int) -> str:
    return f"The {TOPICS[number % 12]} and the {TOPICS[number * 7 % 12]}, part number{number}."


def documents(count: int = 500) -> list[dict]:
    return [
        {"id": str(n), "text": text_of(n), "vector": VECTORS[n], "value": n % 5}
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    data = vector_data(tmp_path_factory.mktemp("own"))
    collection = data.create("own", dimension=WIDTH)
    collection.upsert(documents())
    yield collection
    data.close()


@pytest.fixture
def data(tmp_path):
    with_vectors = vector_data(tmp_path)
    yield with_vectors
    with_vectors.close()


@pytest.fixture
def encoded(tmp_path, tiny_encoder):
    """A collection with an encoder, which counts the texts that it gets."""
    data = Data(tmp_path, load_encoder=lambda name: tiny_encoder)
    yield data.create("texts", encoder="tiny")
    data.close()


# -- texts beside vectors ------------------------------------------------------------------------


def test_a_text_and_a_vector_find_by_both(filled):
    by_vector = filled.search(VECTORS[7], k=1).hits[0]
    assert (by_vector.id, round(by_vector.weight, 3)) == ("7", 1.0)
    # A vector that is nobody's; the word is one document's alone.
    query = {"text": "number123", "vector": unit_vectors(1, seed=9)[0]}
    hybrid = filled.search(query, k=1, lexical=2.0, highlight=True, title=True)
    hit = hybrid.hits[0]
    start, stop = hit.highlight.spans[0]
    assert hit.id == "123"
    assert (hit.title, hit.highlight.field, hit.highlight.passage) == (
        text_of(123),
        "text",
        text_of(123),
    )
    assert text_of(123)[start:stop] == "number123"
    assert filled.search(query, k=1).hits[0].id != "123"  # without the words, by the vector alone


def test_a_vector_beside_a_query_is_short_for_a_query_of_both(filled):
    options = {"k": 3, "lexical": True, "mode": "soft"}
    one = filled.search("whale", vector=VECTORS[3], **options)
    both = filled.search({"text": "whale", "vector": VECTORS[3]}, **options)
    assert one.hits == both.hits
    assert one.hits[0].id == "3"


def test_parts_of_a_blend_and_of_a_mixture_have_text_and_vector(filled):
    parts = [{"text": "number20", "vector": VECTORS[20]}, {"id": "30"}]
    for kind in ("blend", "mixture"):
        hits = filled.search({kind: parts}, k=2, lexical=True).hits
        assert {hit.id for hit in hits} >= {"20"}


@pytest.mark.parametrize(
    ("query", "options", "said"),
    [
        ([1.0], {"vector": [1.0]}, "vector goes with a query that is a text"),
        ({"id": "1"}, {"vector": [1.0]}, "vector goes with a query that is a text"),
        ({"id": "1", "text": "a"}, {}, "exactly one of text, vector, id"),
        ("only text", {}, "send such a vector, with a text or alone"),
    ],
)
def test_other_pairs_are_refused(filled, query, options, said):
    with pytest.raises(InvalidRequest, match=said):
        filled.search(query, **options)


def test_words_filter_and_show(filled):
    assert filled.page({"text": {"match": "number44"}}).documents[0].id == "44"
    assert filled.document("44").fields == {"text": text_of(44)}


def test_several_vectors_are_several_keys(data):
    collection = data.create("v", dimension=WIDTH)
    collection.upsert(
        [
            {
                "id": "list",
                "fields": {"title": "Two", "body": "A long body"},
                "vectors": VECTORS[:2],
            },
            {"id": "named", "vectors": {"title": VECTORS[2], "body": VECTORS[3:5]}},
            {"id": "lists", "vectors": [VECTORS[5].tolist(), VECTORS[6].tolist()]},
        ]
    )
    assert collection.info().keys == 7
    best = [collection.search(vector, k=1, explain=True).hits[0] for vector in VECTORS[:7]]
    assert [hit.id for hit in best] == ["list"] * 2 + ["named"] * 3 + ["lists"] * 2
    assert [hit.explanation["field"] for hit in best[2:5]] == ["title", "body", "body"]
    assert best[0].explanation["passage"] == "A long body"  # the longest text
    assert collection.checks.find() == []


# -- beside an encoder -----------------------------------------------------------------------------


def test_an_own_vector_takes_the_place_of_an_encoded_text(encoded, tiny_encoder):
    own = tiny_encoder.encode_documents(["something else altogether"])[0]
    written = encoded.upsert(
        [
            {"id": "own", "text": "grey whale", "vector": own * 3},
            {"id": "plain", "text": "grey whale"},
            {
                "id": "one of two",
                "fields": {"title": "grey whale", "body": "blue sea"},
                "vectors": {"title": own},
            },
        ]
    )
    assert written.encoded == 2  # the text of `plain`, the body of the third
    hits = {hit.id: hit for hit in encoded.search("grey whale", k=3, explain=True).hits}
    assert hits["plain"].score == pytest.approx(20, abs=1e-3)
    assert hits["own"].score < 19
    hits = {
        hit.id: hit for hit in encoded.search("something else altogether", k=3, explain=True).hits
    }
    assert hits["own"].score == pytest.approx(20, abs=1e-3)
    assert hits["one of two"].explanation["field"] == "title"
    assert hits["one of two"].explanation["passage"] == "grey whale"
    assert encoded.checks.find() == []


def test_a_new_text_or_a_new_vector_is_an_update(encoded, tiny_encoder):
    one, other = tiny_encoder.encode_documents(["one", "other"])
    document = {"id": "a", "text": "whale", "vector": one}
    assert encoded.upsert([document]).added == 1
    assert encoded.upsert([document]).unchanged == 1
    assert encoded.upsert([document | {"vector": other}]).updated == 1
    assert encoded.upsert([document | {"vector": other, "text": "ship"}]).updated == 1
    assert encoded.search("other", k=1).hits[0].score == pytest.approx(20, abs=1e-3)
    assert [d.id for d in encoded.page({"text": {"match": "ship"}}).documents] == ["a"]
    assert encoded.upsert([{"id": "a", "text": "ship"}]).encoded == 1  # now by its text
    assert encoded.search("ship", k=1).hits[0].score == pytest.approx(20, abs=1e-3)


# -- documents without a key -----------------------------------------------------------------------


def test_a_document_without_text_and_vector_is_found_by_filters_alone(data):
    collection = data.create("v", dimension=WIDTH)
    collection.upsert([{"id": "bare", "payload": {"kind": "x"}, "value": 3}])
    assert collection.settings.normalize is None  # nothing to decide it by yet
    assert collection.search(VECTORS[0]).hits == []
    collection.upsert([document | {"payload": {"kind": "x"}} for document in documents(5)])
    for options in ({}, {"attend": "all"}, {"mode": "soft"}, {"filter": {"kind": "x"}}):
        answer = collection.search(VECTORS[0], **options)
        assert (answer.attended, answer.hits[0].id) == (5, "0")
    assert collection.page({"kind": "x"}).total == 6
    assert collection.facets(["kind"])["kind"].values[0].documents == 6
    assert collection.checks.find() == []
    assert collection.upsert([{"id": "bare", "payload": {"kind": "x"}, "value": 3}]).unchanged == 1
    with pytest.raises(KeylessDocuments, match="'bare' has neither text nor a vector"):
        collection.search({"id": "bare"})
    assert collection.upsert([{"id": "bare", "vector": VECTORS[9]}]).updated == 1
    assert collection.search({"id": "bare"}, exclude_self=False).hits[0].id == "bare"
    collection.upsert([{"id": "bare"}])
    assert "bare" not in [hit.id for hit in collection.search(VECTORS[9]).hits]


def test_recommendations_pass_over_documents_without_a_key(data):
    collection = data.create("v", dimension=WIDTH)
    collection.upsert([*documents(20), {"id": "bare"}])
    answer = collection.recommend(history=["bare", "3"], k=5)
    assert len(answer.hits) == 5
    assert not {"bare", "3"} & {hit.id for hit in answer.hits}
    with pytest.raises(KeylessDocuments):
        collection.recommend(history=["bare"])


def test_a_lost_vector_is_seen_by_verify(data):
    collection = data.create("v", dimension=WIDTH)
    collection.upsert([*documents(3), {"id": "bare"}])
    with collection.store.connections.writing() as db:
        db.execute("DELETE FROM keys WHERE document = 2")
    problems = [finding.problem for finding in collection.checks.find()]
    assert any("another text or vector than was written" in problem for problem in problems)


# -- lengths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [np.float16, np.float32, np.float64])
def test_unit_vectors_are_recognised_whatever_their_rounding(data, precision):
    collection = data.create("v", dimension=WIDTH)
    assert (collection.settings.normalize, collection.info().scale) == (None, WIDTH**-0.5)
    rounded = VECTORS[:50].astype(precision)
    collection.upsert([{"id": str(n), "vector": vector} for n, vector in enumerate(rounded)])
    assert (collection.settings.normalize, collection.info().scale) == (True, 20)
    assert collection.search(rounded[0], k=1).hits[0].weight > 0.99
    # From now on a vector of another length is scaled, and so is a query.
    collection.upsert([{"id": "long", "vector": VECTORS[60] * 7}])
    hit = collection.search(VECTORS[60] * 3, k=1).hits[0]
    assert (hit.id, round(hit.score, 3)) == ("long", 20)


def test_other_vectors_stay_as_they_are_and_their_scale_is_told(data):
    collection = data.create("v", dimension=WIDTH)
    collection.upsert([*documents(5), {"id": "long", "vector": VECTORS[9] * 1.01}])
    assert (collection.settings.normalize, collection.info().scale) == (False, WIDTH**-0.5)
    stored = collection.store.own_keys(np.array([6])).vectors[0]
    np.testing.assert_array_equal(stored, (VECTORS[9] * 1.01).astype(np.float32))
    collection.upsert(documents(1))  # later unit vectors change nothing
    assert collection.settings.normalize is False


@pytest.mark.parametrize("normalize", [True, False])
def test_a_named_setting_is_not_decided_by_vectors(data, normalize):
    collection = data.create("v", dimension=WIDTH, normalize=normalize)
    collection.upsert(documents(5))
    assert collection.settings.normalize is normalize
    assert data.create("v", dimension=WIDTH).settings.normalize is normalize
    with pytest.raises(CollectionExists, match="normalize"):
        data.create("v", dimension=WIDTH, normalize=not normalize)


def test_other_processes_see_the_decision(tmp_path):
    one, other = vector_data(tmp_path), vector_data(tmp_path)
    one.create("v", dimension=WIDTH)
    late = other.collection("v")
    assert late.search(VECTORS[0]).hits == []
    one.collection("v").upsert(documents(30))
    hit = late.search(VECTORS[4] * 5, k=1).hits[0]  # as if it had known from the first
    assert (hit.id, round(hit.score, 3)) == ("4", 20)
    assert late.info().scale == 20
    assert late.upsert(documents(30)).unchanged == 30
    one.close()
    other.close()


def test_of_two_first_writers_one_decides(tmp_path, monkeypatch):
    one, other = vector_data(tmp_path), vector_data(tmp_path)
    one.create("v", dimension=WIDTH)
    late, write, is_done = other.collection("v"), Store.write, threading.Event()

    def interfere(self, entries, decided=None):
        if not is_done.is_set():
            is_done.set()
            one.collection("v").upsert(documents(3))
        write(self, entries, decided)

    monkeypatch.setattr(Store, "write", interfere)
    late.upsert([{"id": "long", "vector": VECTORS[9] * 5}])
    assert late.settings.normalize is True
    stored = late.store.own_keys(np.array([late.document("long").row])).vectors[0]
    np.testing.assert_allclose(stored, VECTORS[9], atol=1e-6)
    assert late.checks.find() == []
    one.close()
    other.close()


def test_a_failed_first_write_decides_nothing(data, monkeypatch):
    collection = data.create("v", dimension=WIDTH)
    with pytest.raises(InvalidRequest, match="document 'b' is all zeros"):
        collection.upsert([*documents(3), {"id": "b", "vector": [0.0] * WIDTH}])
    assert Settings.of(collection.store.settings()).normalize is None


def test_a_collection_of_the_version_before_keeps_its_scale(data):
    collection = data.create("v", dimension=WIDTH, normalize=False)  # as all were stored
    collection.upsert(documents(50))
    assert collection.search(VECTORS[0], k=1).hits[0].weight < 0.03
    assert Folder(data.folder).open("v").settings.normalize is False


def test_a_model_without_a_normalising_module_gives_sharp_weights(encoded):
    encoded.upsert([{"id": str(n), "text": text} for n, text in enumerate(TOPICS)])
    assert encoded.info().scale == 20
    assert encoded.search("whale", k=1).hits[0].weight > 0.9


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"vector": [0.0] * WIDTH}, "The vector of the document 'x' is all zeros"),
        ({"vector": [float("nan")] * WIDTH}, "documents.1 .id 'x'.: vector.0: .*finite"),
        ({"vector": np.full(WIDTH, np.inf)}, "documents.1 .id 'x'.: vector.0: .*finite"),
        ({"vector": [1e20] * WIDTH}, "The vector of the document 'x' holds .* beyond 1e.15"),
        ({"vector": [1.0]}, "The vector of the document 'x' has 1 dimensions"),
        ({"vectors": [[1.0] * WIDTH, [1.0]]}, "vectors 'vector' of the document 'x'"),
        ({"vectors": []}, "vectors"),
        ({"text": "words"}, "'x' has text and no vector"),
        ({"text": "words", "fields": {"a": "b"}}, "has text or fields; both were given"),
        ({"vector": [1.0], "vectors": [[1.0]]}, "has vector or vectors; both were given"),
    ],
)
def test_what_cannot_be_stored_is_named(data, document, said):
    collection = data.create("v", dimension=WIDTH)
    with pytest.raises(InvalidRequest, match=said):
        collection.upsert([*documents(1), {"id": "x"} | document])
    assert collection.store.counts() == (0, 0)


@pytest.mark.parametrize(
    "named", [{"vectors": {"\ud800": [1, 0]}}, {"fields": {"\ud800": "x"}, "vector": [1, 0]}]
)
def test_a_name_that_is_no_unicode_is_refused_with_a_sentence(data, named):
    collection = data.create(dimension=2)
    where = "fields" if "fields" in named else "vectors"
    with pytest.raises(
        InvalidRequest, match=f"in {where} of the document 'a' .* surrogate"
    ) as info:
        collection.upsert([{"id": "a", **named}])
    assert info.value.field == where
    assert collection.ids() == set()
    collection.upsert([{"id": "a", "vectors": {"naïve 海": [1, 0]}}])
    assert collection.ids() == {"a"}
