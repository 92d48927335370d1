"""The document store and the retrievers of Haystack, judged by `haystack.testing`.

Every mixin of it runs, sync and async. What one cannot ask of this store is told beside its test.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before Haystack is imported
pytest.importorskip("haystack")

from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing import document_store as judge
from haystack.testing import document_store_async as async_judge
from haystack.utils import Secret

from attend.connect.haystack import (
    AttendDocumentStore,
    AttendEmbeddingRetriever,
    AttendTextRetriever,
)
from attend.core.errors import InvalidRequest
from attend.search.foreign import LEAST
from tests.index.search.test_foreign import FOREIGN, OWN, sentences
from tests.places import PACKAGES, ROOT

pytestmark = pytest.mark.filterwarnings("default")  # of packages that are not ours

WIDTH = 768
"""Of the embeddings of the judge's documents."""


@pytest.fixture
def document_store(tmp_path):
    store = AttendDocumentStore(str(tmp_path), settings={"dimension": WIDTH, "normalize": True})
    yield store
    store.collection.close()


class StoreFixture:
    """The judge's base classes have a fixture of this name that must be replaced in a class."""

    @pytest.fixture
    def document_store(self, tmp_path):
        store = AttendDocumentStore(str(tmp_path), settings={"dimension": WIDTH})
        yield store
        store.collection.close()

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """Everything is equal but the embedding, which is kept as a key and not given back."""
        assert all(document.embedding is None for document in received)
        assert received == [replace(document, embedding=None) for document in expected]


class TestSync(
    StoreFixture,
    judge.DocumentStoreBaseExtendedTests,
    judge.CountDocumentsByFilterTest,
    judge.CountUniqueMetadataByFilterTest,
    judge.GetMetadataFieldsInfoTest,
    judge.GetMetadataFieldMinMaxTest,
    judge.GetMetadataFieldUniqueValuesTest,
):
    def test_write_documents(self, document_store):
        """The judge leaves the policy NONE to the store: it is FAIL here."""
        documents = [Document(content="a"), Document(content="b")]
        assert document_store.write_documents(documents) == 2
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([Document(content="c"), documents[0]])
        self.assert_documents_are_equal(document_store.filter_documents(), documents)


class TestAsync(
    StoreFixture,
    *[
        mixin
        for name, mixin in vars(async_judge).items()
        if name.endswith("AsyncTest") and mixin.__module__ == async_judge.__name__
    ],
):
    @pytest.mark.asyncio
    async def test_write_documents_async(self, document_store):
        """The judge leaves the policy NONE to the store: it is FAIL here."""
        document = Document(content="a")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])


# `test_delete_all_documents_with(out)_recreate_index` skip themselves, sync and async: they are for
# stores whose deletion of all documents may delete the index too. Here `delete_all_documents`
# leaves what was learned, and `Data.drop` deletes a collection with everything in it.


def test_every_mixin_of_the_judge_runs():
    for module, run in ((judge, TestSync), (async_judge, TestAsync)):
        mixins = {
            thing
            for thing in vars(module).values()
            if isinstance(thing, type) and thing.__module__ == module.__name__ and names_of(thing)
        }
        assert mixins <= set(run.__mro__), module.__name__
    assert len(names_of(TestSync)) == 83
    assert len(names_of(TestAsync)) == 44


def names_of(thing: type) -> set[str]:
    return {name for name in dir(thing) if name.startswith("test_")}


# -- what the judge does not ask -------------------------------------------------------------------


def test_all_parts_of_a_document_come_back(document_store):
    document = Document(
        content="  two\n\nlines ",
        blob=ByteStream(b"\x00\xff", meta={"page": 1}, mime_type="image/png"),
        meta={"deep": {"list": [1, None, {"x": "y"}]}, "content": "a name of a part", "ünï": True},
        score=0.5,
        embedding=[0.5] * WIDTH,
        sparse_embedding=SparseEmbedding(indices=[3, 9], values=[0.5, 0.25]),
    )
    blank = [Document(content=" \n"), Document(content=""), Document(meta={"only": 1})]
    document_store.write_documents([document, *blank])
    assert document_store.filter_documents() == [replace(document, embedding=None), *blank]


def test_documents_of_one_id_in_one_call(document_store):
    twice = [Document(id="1", content="first"), Document(id="1", content="second")]
    with pytest.raises(DuplicateDocumentError, match="nothing was written"):
        document_store.write_documents(twice)
    assert document_store.count_documents() == 0
    assert document_store.write_documents(twice, DuplicatePolicy.SKIP) == 1
    assert document_store.filter_documents()[0].content == "first"
    assert document_store.write_documents(twice, DuplicatePolicy.OVERWRITE) == 2
    assert document_store.filter_documents()[0].content == "second"


META = st.fixed_dictionaries(
    {},
    optional={
        "number": st.none() | st.integers(-2, 2) | st.sampled_from([0.5, 1.5]),
        "name": st.none() | st.sampled_from(["", "a", "b", "é"]),
        "date": st.sampled_from(["2024-01-31T10:00:00", "1999-12-31T23:59:59"]),
        "deep": st.fixed_dictionaries({"flag": st.booleans()}),
    },
)
VALUES = {
    "meta.number": st.none() | st.integers(-2, 2) | st.sampled_from([0.5, 1.5]),
    "meta.name": st.none() | st.sampled_from(["", "a", "b", "é"]),
    "meta.date": st.sampled_from(["2024-01-31T10:00:00", "1999-12-31T23:59:59"]),
    "meta.deep.flag": st.none() | st.booleans(),
    "name": st.sampled_from(["a", "z"]),
    "id": st.sampled_from(["d0", "d1", "d9"]),
}


@st.composite
def comparisons(draw: st.DrawFn) -> dict[str, Any]:
    field = draw(st.sampled_from([*VALUES]))
    operators = ["==", "!=", "in", "not in"]
    if field in ("meta.number", "meta.date"):
        operators += [">", ">=", "<", "<="]
    operator = draw(st.sampled_from(operators))
    value = VALUES[field]
    return {
        "field": field,
        "operator": operator,
        "value": draw(st.lists(value, max_size=3) if "in" in operator else value),
    }


HAYSTACK_FILTERS = st.recursive(
    comparisons(),
    lambda inner: st.fixed_dictionaries(
        {
            "operator": st.sampled_from(["AND", "OR", "NOT"]),
            "conditions": st.lists(inner, max_size=3),
        }
    ),
    max_leaves=5,
)


@settings(
    max_examples=1000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(META, min_size=1, max_size=6), HAYSTACK_FILTERS)
def test_a_filter_lets_pass_what_the_store_in_memory_lets_pass(document_store, metas, filters):
    documents = [Document(id=f"d{number}", meta=meta) for number, meta in enumerate(metas)]
    oracle = InMemoryDocumentStore()
    oracle.write_documents(documents)
    document_store.delete_all_documents()
    document_store.write_documents(documents)
    expected = oracle.filter_documents(filters)
    assert document_store.filter_documents(filters) == expected
    assert document_store.count_documents_by_filter(filters) == len(expected)


def test_values_that_python_takes_for_one_are_several_here(document_store):
    metas = [{"n": 1}, {"n": 1.0}, {"n": True}, {"n": [1, 2]}]
    document_store.write_documents([Document(id=str(n), meta=m) for n, m in enumerate(metas)])
    filters = {"field": "meta.n", "operator": "==", "value": 1}
    assert [document.id for document in document_store.filter_documents(filters)] == ["0", "1", "3"]


@pytest.mark.parametrize(
    ("filters", "sentence"),
    [
        ({"field": "content", "operator": "==", "value": "x"}, "'content' cannot be filtered by"),
        ({"field": "meta.a", "operator": "~", "value": "x"}, "'~' is not known; send one of"),
        ({"operator": "XOR", "conditions": []}, "'XOR' is not known"),
        ({"field": "meta.a", "operator": "==", "value": [1]}, "text, numbers, booleans and null"),
        ({"field": "meta.a", "operator": "<", "value": "31.1.2024"}, "a date such as 2024-05-17"),
    ],
)
def test_a_filter_that_cannot_be_used_is_a_filter_error(document_store, filters, sentence):
    with pytest.raises(FilterError, match=sentence):
        document_store.filter_documents(filters)


def test_a_datetime_is_compared_as_its_text(document_store):
    metas = [{"date": "2024-01-31T10:00:00"}, {"date": "2024-02-01T10:00:00"}]
    document_store.write_documents([Document(id=str(n), meta=m) for n, m in enumerate(metas)])
    filters = {"field": "meta.date", "operator": ">", "value": datetime(2024, 1, 31, 12)}
    assert [document.id for document in document_store.filter_documents(filters)] == ["1"]


def test_embeddings_rank_as_in_memory(document_store):
    rng = np.random.default_rng(5)
    documents = [
        Document(id=str(n), embedding=vector.tolist(), meta={"even": n % 2 == 0})
        for n, vector in enumerate(rng.standard_normal((200, WIDTH)))
    ]
    oracle = InMemoryDocumentStore(embedding_similarity_function="cosine")
    oracle.write_documents(documents)
    document_store.write_documents(documents)
    even = {"field": "meta.even", "operator": "==", "value": True}
    retriever = AttendEmbeddingRetriever(document_store, top_k=20)
    for query in rng.standard_normal((5, WIDTH)).tolist():
        for filters, k in ((None, 150), (even, None)):
            results = retriever.run(query, filters=filters, top_k=k)["documents"]
            expected = oracle.embedding_retrieval(query, filters=filters, top_k=k or 20)
            assert [document.id for document in results] == [document.id for document in expected]
            scores = [document.score for document in expected]
            assert [document.score for document in results] == pytest.approx(scores, abs=1e-5)


@pytest.fixture
def stories(tmp_path, tiny_encoder_folder):
    folder = str(tmp_path / "stories")
    store = AttendDocumentStore(folder, settings={"encoder": str(tiny_encoder_folder)})
    texts = sentences(1, LEAST + 20)
    store.write_documents(
        [
            Document(id=str(n), content=text, meta={"even": n % 2 == 0})
            for n, text in enumerate(texts)
        ]
    )
    store.collection.publish()
    return store


def test_a_text_is_searched_and_a_foreign_one_gets_no_documents(stories):
    retriever = AttendTextRetriever(stories, top_k=4)
    results = retriever.run(OWN)
    answer = stories.collection.search(OWN, k=4)
    assert [document.id for document in results["documents"]] == [hit.id for hit in answer.hits]
    assert results["answered"]
    assert results["confidence"] == answer.confidence
    refused = retriever.run(FOREIGN)
    assert (refused["documents"], refused["answered"]) == ([], False)
    assert refused["confidence"] < 0.05
    insists = AttendTextRetriever(stories, top_k=4, options={"min_confidence": 0})
    assert len(insists.run(FOREIGN)["documents"]) == 4
    assert asyncio.run(retriever.run_async(OWN)) == results
    words = AttendTextRetriever(stories, options={"lexical": 10.0}).run("whale")["documents"]
    assert all("whale" in document.content for document in words)


def test_filters_of_a_run_replace_or_join_those_of_the_retriever(stories):
    even = {"field": "meta.even", "operator": "==", "value": True}
    some = {"field": "id", "operator": "in", "value": ["1", "2", "3"]}
    for policy, expected in (("replace", {"1", "2", "3"}), ("merge", {"2"})):
        retriever = AttendTextRetriever(
            stories, filters=even, filter_policy=policy, options={"min_confidence": 0}
        )
        results = retriever.run(OWN, filters=some)["documents"]
        assert {document.id for document in results} == expected


def test_an_unknown_option_is_refused_by_name(stories):
    with pytest.raises(InvalidRequest, match="lexicl"):
        AttendTextRetriever(stories, options={"lexicl": True}).run(OWN)


def test_a_pipeline_is_written_as_yaml_and_read_again(stories, monkeypatch):
    monkeypatch.setenv("ATTEND_KEY", "secret")
    stories.api_key = Secret.from_env_var("ATTEND_KEY")
    pipeline = Pipeline()
    retriever = AttendTextRetriever(stories, top_k=3, filter_policy="merge", options={"lexical": 0})
    pipeline.add_component("text", retriever)
    pipeline.add_component("vector", AttendEmbeddingRetriever(stories))
    written = pipeline.dumps()
    assert "ATTEND_KEY" in written
    assert ": secret" not in written
    again = Pipeline.loads(written, allowed_modules=["attend.connect.haystack"])
    assert again.to_dict() == pipeline.to_dict()
    store = again.get_component("text").document_store
    assert (store.where, store.settings) == (stories.where, stories.settings)
    store.api_key = again.get_component("vector").document_store.api_key = None
    inputs = {"text": {"query": OWN}, "vector": {"query_embedding": [1.0] * 32}}
    results = again.run(inputs)
    assert results["text"]["documents"] == retriever.run(OWN)["documents"]
    assert len(results["vector"]["documents"]) == 10


def test_documents_that_attend_has_from_elsewhere_have_their_value_in_the_meta(tmp_path):
    store = AttendDocumentStore(str(tmp_path), settings={"dimension": 2})
    store.collection.upsert(
        [
            {"id": "a", "vector": [1, 0], "value": {"stars": 4}, "payload": {"year": 1851}},
            {"id": "b", "vector": [0, 1], "value": "x", "fields": {"t": "one", "b": "two"}},
        ]
    )
    first, second = store.filter_documents()
    assert first.meta == {"year": 1851, "stars": 4}
    assert (second.meta, second.content) == ({"@value": "x"}, "one\n\ntwo")
    by_value = {"field": "meta.@value", "operator": "==", "value": "x"}
    assert store.filter_documents(by_value) == [second]


def test_the_example_answers_and_says_when_nothing_answers():
    questions = ["they took the money twice", "what is the boiling point of tungsten?"]
    output = subprocess.run(
        [sys.executable, "examples/pipeline_haystack.py", *questions],
        **{"cwd": ROOT, "text": True, "capture_output": True, "check": True},
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PACKAGES))},
    ).stdout
    first, second = output.split(questions[1])
    assert "As in: [billing-4] You took more money" in first
    assert first.count("billing") >= 2
    assert second.strip() == "Nothing here answers that."
