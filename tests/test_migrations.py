"""The scripts that copy collections of Chroma and Qdrant, on real databases of these."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import attend
from tests.places import ROOT

COUNT, WIDTH = 1200, 8
TEXTS = [f"A text about the number {number}." for number in range(COUNT)]


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Vectors of length one, as Qdrant keeps them for the cosine."""
    drawn = np.random.default_rng(3).normal(size=(COUNT, WIDTH)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def migrate(script: str, arguments: Sequence[str]) -> str:
    command: Any = runpy.run_path(str(ROOT / "examples" / script))["main"]
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def check(library: Path, vectors: np.ndarray) -> None:
    """Assert that every document is there, with its text, payload and vector."""
    data = attend.open(library)
    articles = data.collection("articles")
    assert articles.info().documents == COUNT
    for number in (0, 7, COUNT - 1):
        hit = articles.search(vectors[number].tolist(), k=1, include=["text"]).hits[0]
        assert hit.text == TEXTS[number]
        assert hit.payload == {"number": number}
        hits = articles.search(vectors[number].tolist(), k=10).hits
        nearest = np.argsort(-(vectors @ vectors[number]))[:10]
        assert [articles.document(each.id).payload["number"] for each in hits] == nearest.tolist()
    words = articles.search(
        vectors[0].tolist(), filter={"@text": {"match": "number 77"}}, include=["text"]
    )
    assert [hit.text for hit in words.hits] == [TEXTS[77]]
    data.close()


@pytest.mark.filterwarnings("ignore")
def test_a_collection_of_qdrant_is_copied(tmp_path: Path, vectors: np.ndarray) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    models = qdrant.models
    client = qdrant.QdrantClient(path=str(tmp_path / "qdrant"))
    client.create_collection(
        "articles", vectors_config=models.VectorParams(size=WIDTH, distance=models.Distance.COSINE)
    )
    client.upsert(
        "articles",
        [
            models.PointStruct(
                id=number,
                vector=vectors[number].tolist(),
                payload={"body": TEXTS[number], "number": number},
            )
            for number in range(COUNT)
        ],
    )
    client.close()
    library = tmp_path / "library"
    arguments = [str(tmp_path / "qdrant"), "articles", "--text", "body", "--data", str(library)]
    assert f"{COUNT} documents in Qdrant, {COUNT} in" in migrate("migrate_qdrant.py", arguments)
    migrate("migrate_qdrant.py", arguments)  # again: nothing is doubled
    check(library, vectors)


@pytest.mark.filterwarnings("ignore")
def test_a_collection_of_chroma_is_copied(tmp_path: Path, vectors: np.ndarray) -> None:
    chromadb = pytest.importorskip("chromadb", reason="it is one of the benchmarks' requirements")
    client = chromadb.PersistentClient(path=str(tmp_path / "chroma"))
    source = client.create_collection("articles", embedding_function=None)
    source.add(
        ids=[f"d{number}" for number in range(COUNT)],
        documents=TEXTS,
        embeddings=vectors.tolist(),
        metadatas=[{"number": number} for number in range(COUNT)],
    )
    library = tmp_path / "library"
    arguments = [str(tmp_path / "chroma"), "articles", "--data", str(library)]
    assert f"{COUNT} documents in Chroma, {COUNT} in" in migrate("migrate_chroma.py", arguments)
    migrate("migrate_chroma.py", arguments)
    check(library, vectors)
