"""Teaching: what lands in the store, what is encoded, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from attend.api.base import parse
from attend.api.feedback import FeedbackAdded, FeedbackItem
from attend.collection.data import Data
from attend.collection.verify import verify
from attend.core.errors import DimensionMismatch, InvalidRequest, UnknownDocument
from attend.core.settings import Tuning
from attend.core.types import Example
from attend.engines import snapshots as views_module
from attend.projection import identity
from attend.store import sql
from attend.write.feedback import FEW, PROBES, add_feedback, unfit
from tests.index.helpers import vector_data

WORDS = ["whale", "ship", "bread", "sea", "flour"]


class Counting:
    """The tiny encoder, which remembers the queries it was given."""

    def __init__(self, encoder) -> None:
        self._encoder = encoder
        self.asked: list[str] = []

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode_queries(self, texts):
        self.asked += texts
        return self._encoder.encode_queries(texts)


@pytest.fixture
def encoder(tiny_encoder):
    return Counting(tiny_encoder)


@pytest.fixture
def collection(tmp_path, encoder):
    data = Data(tmp_path, load_encoder=lambda name: encoder)
    made = data.create()
    made.upsert([{"id": f"d{n}", "text": word, "value": n} for n, word in enumerate(WORDS)])
    yield made
    data.close()


@pytest.fixture
def vectors(tmp_path):
    data = vector_data(tmp_path / "vectors")
    made = data.create(dimension=2)
    made.upsert([{"id": f"v{n}", "vector": [1.0, n]} for n in range(3)])
    yield made
    data.close()


def stored(collection) -> list[tuple]:
    """(question's text, document, weight, position) of all examples."""
    learned = collection.store.examples()
    ids = {row: each.id for row, each in collection.store.documents(learned.rows).items()}
    columns = zip(
        learned.questions.tolist(),
        learned.rows.tolist(),
        learned.weights.tolist(),
        learned.positions.tolist(),
        strict=True,
    )
    return [(learned.texts[q], ids[row], weight, at) for q, row, weight, at in columns]


def test_items_land_in_the_store_with_their_embeddings(collection, tiny_encoder):
    taught = add_feedback(
        collection,
        [
            {"query": "a hunt", "id": "d0", "label": 2, "position": 3},
            {"query": "a hunt", "id": "d2", "label": -1},
            {"query": {"text": "to bake"}, "id": "d2"},
            {"query": "to bake", "id": "d4", "label": False},
            FeedbackItem(query="to bake", id="d3", label=True),
            Example("a hunt", "d3", 0.5),
        ],
    )
    assert taught == FeedbackAdded(6, 0, 6, 2)
    assert stored(collection) == [
        ("a hunt", "d0", 2.0, 3),
        ("a hunt", "d2", -1.0, 0),
        ("to bake", "d2", 1.0, 0),
        ("to bake", "d4", 0.0, 0),
        ("to bake", "d3", 1.0, 0),
        ("a hunt", "d3", 0.5, 0),
    ]
    expected = tiny_encoder.encode_queries(["a hunt", "to bake"])
    np.testing.assert_allclose(collection.store.examples().embeddings, expected, atol=1e-6)


@pytest.mark.parametrize("weight", [1e300, -1.1e6, float("nan"), float("inf")])
def test_an_examples_label_is_as_bounded_as_an_items(collection, weight):
    good, bad = Example("a hunt", "d0"), Example("a hunt", "d1", weight)
    assert list(unfit(collection, [good, bad])) == [1]
    with pytest.raises(InvalidRequest, match=r"label is .* between -1e\+06 and 1e\+06") as caught:
        add_feedback(collection, [good, bad])
    assert caught.value.field == "items.1.label"
    assert stored(collection) == []
    assert add_feedback(collection, [good, bad._replace(weight=-1e6)]).added == 2


@pytest.mark.parametrize(
    ("bad", "field", "said"),
    [
        (Example("a hunt", "d1", position=0), "position", "The position is 0; send 1 for the"),
        (Example("a hunt", "d1", position=2**63), "position", "send 1 for the first place"),
    ],
)
def test_an_example_that_cannot_be_stored_is_named(collection, bad, field, said):
    with pytest.raises(InvalidRequest) as refused:
        add_feedback(collection, [Example("a hunt", "d0"), bad])
    assert said in str(refused.value)
    assert refused.value.field == f"items.1.{field}"
    assert stored(collection) == []


def test_a_query_that_no_encoder_reads_stores_nothing(collection):
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        add_feedback(collection, [Example("a hunt", "d0"), Example("\ud800", "d1")])
    assert stored(collection) == []


def test_taught_again_replaces_and_the_last_of_one_call_counts(collection):
    item = {"query": "a hunt", "id": "d0"}
    assert add_feedback(collection, [item]) == FeedbackAdded(1, 0, 1, 1)
    again = [{**item, "label": 3}, {**item, "label": 0}, {"query": "a hunt", "id": "d1"}]
    assert add_feedback(collection, again) == FeedbackAdded(1, 1, 2, 1)
    assert stored(collection) == [("a hunt", "d0", 0.0, 0), ("a hunt", "d1", 1.0, 0)]


def test_a_question_is_encoded_once(collection, encoder, monkeypatch):
    questions = [f"question {n}" for n in range(FEW + 8)]
    add_feedback(collection, [{"query": q, "id": id} for q in questions for id in ("d0", "d1")])
    assert sorted(encoder.asked) == sorted(questions)
    encoder.asked.clear()
    monkeypatch.setattr(collection.store, "examples", None)  # nor are all of them read for it
    more = [{"query": q, "id": "d2"} for q in [*questions, "new"]]
    assert add_feedback(collection, more).questions == FEW + 9
    assert encoder.asked[-1] == "new"
    assert len(encoder.asked) == PROBES + 1  # some again, to see whether they still mean the same


def test_progress_is_told_by_stage_and_share(collection):
    told = []
    add_feedback(collection, [{"query": "a", "id": "d0"}], progress=lambda *each: told.append(each))
    assert told == [("encoding queries", 0.0), ("encoding queries", 1.0)]


def test_nothing_taught_is_nothing(collection):
    assert add_feedback(collection, []) == FeedbackAdded(0, 0, 0, 0)


def test_forget_replaces_everything_but_only_by_what_can_be_taught(collection):
    add_feedback(collection, [{"query": "a", "id": "d0"}, {"query": "b", "id": "d1"}])
    with pytest.raises(UnknownDocument):
        add_feedback(collection, [{"query": "c", "id": "gone"}], delete_stored=True)
    assert collection.store.example_count() == 2
    assert add_feedback(
        collection, [{"query": "c", "id": "d2"}], delete_stored=True
    ) == FeedbackAdded(
        1,
        0,
        1,
        1,
    )
    assert stored(collection) == [("c", "d2", 1.0, 0)]


def test_vectors_teach_collections_of_vectors(vectors):
    taught = add_feedback(
        vectors,
        [{"query": [1, 0.5], "id": "v0"}, {"query": {"vector": [1.0, 0.5]}, "id": "v1"}],
    )
    assert taught == FeedbackAdded(2, 0, 2, 1)
    learned = vectors.store.examples()
    assert learned.texts == [None]
    np.testing.assert_array_equal(learned.embeddings, [[1.0, 0.5]])


def test_vectors_beside_an_encoder_have_length_one(collection):
    add_feedback(collection, [{"query": [3.0] + [0.0] * 31, "id": "d0"}])
    assert np.linalg.norm(collection.store.examples().embeddings[0]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"query": "", "id": "d0"}, "query"),
        ({"query": "  ", "id": "d0"}, "the query is empty"),
        ({"query": {"id": "d1"}, "id": "d0"}, "a document's id is no question"),
        ({"query": "q"}, "id: it is required"),
        ({"query": "q", "id": "d0", "label": "yes"}, "a label is a number, true or false"),
        ({"query": "q", "id": "d0", "label": float("nan")}, "finite number"),
        ({"query": "q", "id": "d0", "label": 1e300}, "or less was expected"),
        ({"query": "q", "id": "d0", "position": 0}, "1 or more"),
        ({"query": "q", "id": "d0", "score": 1}, "unknown field"),
        ({"query": [float("nan")] * 32, "id": "d0"}, "finite number"),
    ],
)
def test_a_wrong_item_is_named_and_nothing_is_taught(collection, item, said):
    with pytest.raises(InvalidRequest, match=said) as caught:
        add_feedback(collection, [{"query": "q", "id": "d0"}, item])
    assert caught.value.field.startswith("items.1.")
    assert collection.store.example_count() == 0
    with pytest.raises(InvalidRequest, match=said):
        parse(FeedbackItem, item)


def test_a_foreign_dimension_is_refused(vectors, collection):
    with pytest.raises(DimensionMismatch, match="has 3 dimensions, but this collection's have 2"):
        add_feedback(vectors, [{"query": [1, 2, 3], "id": "v0"}])
    with pytest.raises(DimensionMismatch, match="Send 32 numbers"):
        add_feedback(collection, [{"query": [1, 2, 3], "id": "d0"}])
    with pytest.raises(InvalidRequest, match="made for vectors of 2 dimensions") as caught:
        add_feedback(vectors, [{"query": "text", "id": "v0"}])
    assert caught.value.field == "items.0.query"
    assert vectors.store.example_count() == collection.store.example_count() == 0


def test_unknown_documents_are_named_before_anything_is_encoded(collection, encoder):
    items = [{"query": "q", "id": id} for id in ("d0", "x", "y", "nul\0")]
    with pytest.raises(InvalidRequest) as caught:
        add_feedback(collection, items)
    assert [each["field"] for each in caught.value.details] == [
        "items.1.id",
        "items.2.id",
        "items.3.id",
    ]
    assert str(caught.value).startswith(
        "3 of 4 items cannot be stored, and none was. items.1.id: No document has the id 'x'"
    )
    with pytest.raises(UnknownDocument, match="No document has the id 'x'") as unknown:
        add_feedback(collection, items[:2])
    assert unknown.value.field == "items.1.id"
    assert encoder.asked == []
    assert collection.store.example_count() == 0


def test_unfit_says_what_is_wrong_by_place(vectors):
    given = [
        Example([1.0, 2.0], "v0"),
        Example("text", "v0"),
        Example([1.0], "v0"),
        Example([1.0, 2.0], "gone"),
        Example([1e30, 0.0], "v0"),
    ]
    wrong = unfit(vectors, given)
    assert list(wrong) == [1, 2, 3, 4]
    assert isinstance(wrong[2], DimensionMismatch)
    assert isinstance(wrong[3], UnknownDocument)


def test_an_interrupted_encoding_teaches_nothing(collection, encoder, monkeypatch):
    def stop(texts):
        raise KeyboardInterrupt

    monkeypatch.setattr(encoder, "encode_queries", stop, raising=False)
    with pytest.raises(KeyboardInterrupt):
        add_feedback(collection, [{"query": "a", "id": "d0"}], delete_stored=True)
    assert collection.store.example_count() == 0


def test_what_is_taught_moves_queries_and_is_no_key_until_a_version_takes_it_up(collection):
    before = collection.search("whale", k=5)
    add_feedback(collection, [{"query": "whale", "id": "d4"}])
    assert collection.search("whale", k=5, memory=0).hits == before.hits
    scores = [{hit.id: hit.score for hit in collection.search("whale", k=5).hits}["d4"]]
    scores += [hit.score for hit in before.hits if hit.id == "d4"]
    assert scores[0] > scores[1]


# -- an encoder that has changed -------------------------------------------------------------------


def takes_examples(collection) -> None:
    """Let a version answer to which example keys are as good as any."""
    made = identity(collection.settings.dimension)
    tuning = Tuning(examples=1.0).stored()
    collection.store.add_projection(
        made.kind, made.to_bytes(), made.fingerprint, {}, tuning=tuning, activate=True
    )


def best(collection, vector) -> tuple[str, float]:
    """The document that a vector finds, and the score over the scale: 1 on its very key."""
    hit = collection.search(vector.tolist(), k=1, scale=1.0).hits[0]
    return hit.id, pytest.approx(hit.score, abs=1e-5)


@pytest.mark.parametrize("count", [1, FEW + 8], ids=["few", "many"])
@pytest.mark.parametrize("publish", [False, True], ids=["fresh", "published"])
def test_a_question_that_the_encoder_sees_otherwise_gets_its_new_keys(
    collection, encoder, monkeypatch, publish, count
):
    # Two tokens each: the tiny encoder sees no order in a text, and would mix up 12 and 21.
    texts = [f"{a}{b}" for a in "abcdef" for b in "ghijklmn"][:count]
    items = [{"query": text, "id": f"d{n % 5}"} for n, text in enumerate(texts)]
    takes_examples(collection)
    add_feedback(collection, items)
    if publish:
        collection.publish()
    old = encoder.encode_queries(texts)
    assert best(collection, old[0]) == ("d0", 1.0)

    mirrored = lambda texts: -encoder._encoder.encode_queries(texts)  # noqa: E731
    monkeypatch.setattr(encoder, "encode_queries", mirrored, raising=False)
    assert add_feedback(collection, items) == FeedbackAdded(0, count, count, count)
    for text, vector, item in zip(texts, -old, items, strict=True):
        assert best(collection, vector) == (item["id"], 1.0), text
    learned = collection.store.examples()
    np.testing.assert_allclose(learned.embeddings, -old, atol=1e-6)
    # No key of the old embeddings answers, neither in this process nor in the next.
    view = collection.views.current()
    assert view.keys.segments[0].keys == (len(WORDS) + count if publish else 0)
    for each in (collection, Data(collection.folder.parents[1], load_encoder=lambda name: encoder)):
        asked = each if each is collection else each.collection()
        found = asked.search(old[0].tolist(), k=1, scale=1.0).hits[0].score
        assert found < 0.99
    assert not verify(collection).problems


def test_one_stray_rounding_encodes_nothing_again(collection, encoder, monkeypatch):
    texts = [f"question {n}" for n in range(FEW + 8)]
    add_feedback(collection, [{"query": text, "id": "d0"} for text in texts])
    rounded = lambda texts: encoder._encoder.encode_queries(texts) * np.float32(1.001)  # noqa: E731
    monkeypatch.setattr(encoder, "encode_queries", rounded, raising=False)
    before = collection.store.examples().embeddings
    add_feedback(collection, [{"query": text, "id": "d1"} for text in texts])
    np.testing.assert_array_equal(collection.store.examples().embeddings, before)


def test_teaching_merges_when_much_was_taught(collection, monkeypatch):
    takes_examples(collection)
    monkeypatch.setattr(views_module, "MERGE_KEYS", 3)
    add_feedback(collection, [{"query": f"question {n}", "id": "d0"} for n in range(4)])
    view = collection.views.current()
    assert [segment.keys for segment in view.keys.segments] == [len(WORDS) + 4, 0]


def test_what_was_taught_before_is_not_lost_between_forgetting_and_teaching(
    collection, monkeypatch
):
    add_feedback(collection, [{"query": "a", "id": "d0"}])

    def fails(*args, **options):
        raise OSError("the disk is full")

    monkeypatch.setattr(sql, "question_id", fails)
    with pytest.raises(OSError, match="the disk is full"):
        add_feedback(collection, [{"query": "b", "id": "d0"}], delete_stored=True)
    assert stored(collection) == [("a", "d0", 1.0, 0)]
