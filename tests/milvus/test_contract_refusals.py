"""What is wrong is refused on either engine by the same class with the same sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.core import errors
from tests.milvus.contract import WIDTH, query

VECTOR = query(1)

OF_A_COLLECTION: dict[str, tuple[Callable[[Collection], Any], type[Exception], str]] = {
    "no such document": (
        lambda c: c.document("nobody"),
        errors.UnknownDocument,
        "The collection 'vectors' has no document 'nobody'.",
    ),
    "a revision of nothing": (
        lambda c: c.revise("nobody", {"value": 1}),
        errors.UnknownDocument,
        "The collection 'vectors' has no document 'nobody'.",
    ),
    "a query by nothing": (
        lambda c: c.search({"id": "nobody"}),
        errors.UnknownDocument,
        "'nobody'",
    ),
    "a mask of nothing": (
        lambda c: c.search(VECTOR, mask={"only": ["nobody"]}),
        errors.UnknownDocument,
        "'nobody'",
    ),
    "an option that is none": (
        lambda c: c.search(VECTOR, many=3),
        errors.InvalidRequest,
        "many",
    ),
    "more than is attended": (
        lambda c: c.search(VECTOR, k=50, attend=10),
        errors.InvalidRequest,
        "k + offset is 50, but only 10 documents are attended; lower k or raise attend",
    ),
    "a document with two kinds of text": (
        lambda c: c.upsert([{"id": "x", "text": "a", "fields": {"a": "b"}}]),
        errors.InvalidRequest,
        "a document has text or fields; both were given",
    ),
    "a text without an encoder": (
        lambda c: c.upsert([{"id": "x", "text": "a"}]),
        errors.InvalidRequest,
        "",
    ),
    "an empty filter to delete by": (
        lambda c: c.delete_matching({}),
        errors.InvalidRequest,
        "An empty filter would delete every document",
    ),
    "a number that is none": (
        lambda c: c.upsert([{"id": "x", "vector": [float("nan")] * WIDTH}]),
        errors.InvalidRequest,
        "",
    ),
    "a cursor of another filter": (
        lambda c: c.page({"a": 1}, cursor="nonsense"),
        errors.InvalidRequest,
        "cursor",
    ),
    "nothing to go back to": (
        lambda c: c.rollback(),
        errors.Conflict,
        "",
    ),
}


@pytest.mark.parametrize("wrong", OF_A_COLLECTION)
def test_a_collection_refuses(vectors: Collection, wrong: str) -> None:
    call, kind, said = OF_A_COLLECTION[wrong]
    with pytest.raises(kind) as refusal:
        call(vectors)
    assert said in str(refusal.value)
    assert not isinstance(refusal.value, errors.Unsupported)
    assert "x" not in vectors.ids()


def test_a_batch_with_one_wrong_document_leaves_nothing(empty: Collection) -> None:
    with pytest.raises(errors.DimensionMismatch):
        empty.upsert([{"id": "right", "vector": VECTOR}, {"id": "wrong", "vector": [1.0]}])
    assert empty.ids() == set()


def test_a_library_refuses(library: Data, vectors: Collection) -> None:
    with pytest.raises(errors.UnknownCollection, match="There is no collection 'nowhere'"):
        library.collection("nowhere")
    with pytest.raises(errors.InvalidRequest, match="is no collection name"):
        library.create("../up", dimension=2)
    with pytest.raises(errors.CollectionExists, match="dimension is 6, not 7"):
        library.create("vectors", dimension=7)
    with pytest.raises(errors.UnknownAlias):
        library.drop_alias("nowhere")
    with pytest.raises(errors.CollectionExists):
        library.set_alias("vectors", "vectors")


def test_an_alias_stands_for_its_collection(library: Data, vectors: Collection) -> None:
    assert library.set_alias("also", "vectors")
    assert library.collection("also").name == "vectors"
    assert library.aliases()["also"] == "vectors"
    assert "also" not in library.names()
    with pytest.raises(errors.Conflict, match="is the target of also"):
        library.drop("vectors")
    library.drop_alias("also")
    with pytest.raises(errors.UnknownCollection):
        library.collection("also")


def test_a_collection_that_was_dropped_is_gone(library: Data) -> None:
    made = library.create("passing", dimension=2)
    made.upsert([{"id": "a", "vector": [1, 0]}])
    library.drop("passing")
    assert "passing" not in library.names()
    with pytest.raises(errors.UnknownCollection):
        library.collection("passing")
