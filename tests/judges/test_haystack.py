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

import pytest

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


def test_every_mixin_of_the_judge_runs():
    for module, run in ((judge, TestSync), (async_judge, TestAsync)):
        mixins = {
            thing
            for thing in vars(module).values()
            if isinstance(thing, type) and thing.__module__ == module.__name__ and tests_of(thing)
        }
        assert mixins <= set(run.__mro__), module.__name__
    assert len(tests_of(TestSync)) == 83
    assert len(tests_of(TestAsync)) == 44


def tests_of(thing: type) -> set[str]:
    return {name for name in dir(thing) if name.startswith("test_")}
