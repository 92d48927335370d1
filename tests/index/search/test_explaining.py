"""Why a document has its score: the parts and the pairs of words add up, against plain sums."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import statistics
import textwrap
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend.core.settings import Tuning
from attend.encoder import DEFAULT, load
from attend.projection import Projection, identity
from tests.index.helpers import vector_data
from tests.index.world import Fitted, World

WIDTH, SCALE = 384, 20.0
NOW, DAY, HALF_LIFE = 1_700_000_000.0, 86_400.0, 40.0
QUERIES = (
    "copy a file to another folder",
    "the mean of a list of numbers",
    "remove a folder and all that is in it",
    "unpack an archive",
    "is this a function",
    "indent each line of a text",
    "replace what matches a pattern",
    "how much room is left on a disk",
    "middle value of data",
    "read the source code of an object",
    "write an object as text",
    "wrap a long paragraph",
    "add a file to a zip archive",
    "split by a regular expression",
    "standard deviation",
    "where does a program lie",
    "parse JSON",
    "signature",
    "shorten a text",
    "most common value",
)
"""Ten for each version, of which five hits each are looked at: 200 pairs for four versions."""

SETTINGS: dict[str, dict[str, Any]] = {
    "untrained": {},
    "matrices": {"kind": "learned"},
    "unit": {"kind": "learned", "normalize_queries": True, "normalize_keys": True},
    "heads": {"kind": "learned", "heads": 3},
}


def texts() -> dict[str, str]:
    """Return the documentation of functions of Python's own modules."""
    modules = inspect, json, re, shutil, statistics, textwrap, zipfile
    found = {
        f"{module.__name__}.{name}": f"{module.__name__}.{name}: {inspect.getdoc(item)}"[:350]
        for module in modules
        for name, item in sorted(vars(module).items())
        if callable(item) and not name.startswith("_")
    }
    return {id: text for id, text in found.items() if len(text) > 80 and text.isascii()}


@pytest.fixture(scope="module")
def exact() -> Any:
    return load(DEFAULT, precision="float32")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, exact: Any) -> Iterator[World]:
    """A collection by the packaged encoder, with feedback."""
    world = World(tmp_path_factory.mktemp("explaining"), exact)
    world.collection.upsert(
        [
            {"id": id, "text": text, "payload": {"time": NOW - DAY * place}}
            for place, (id, text) in enumerate(texts().items())
        ]
    )
    world.teach("copy a file", ["shutil.copy", "shutil.copy2"])
    world.teach("a typical value", ["statistics.median"])
    yield world
    world.data.close()


def learned(world: World, settings: dict[str, Any]) -> Fitted:
    """Store a version that changes all that a training can change."""
    rng, heads = np.random.default_rng(4), settings.get("heads", 1)
    near = np.eye(WIDTH) + 0.02 * rng.standard_normal((2, heads, WIDTH, WIDTH))
    projection = Projection(
        d_in=WIDTH,
        gates=np.arange(1, heads + 1) / np.arange(1, heads + 1).sum(),
        w_q=near[0],
        w_k=near[1],
        b_q=0.01 * rng.standard_normal((heads, WIDTH)),
        b_k=0.01 * rng.standard_normal((heads, WIDTH)),
        center=0.01 * rng.standard_normal(WIDTH),
        **{name: value for name, value in settings.items() if name != "heads"},
    )
    offsets = {id: 0.02 * rng.standard_normal(WIDTH) for id in world.key_ids()[::2]}
    tuning = Tuning(
        scale=tuple(14.0 + head for head in range(heads)),
        temperature=1.3,
        null=(8.0,) * heads,
        lexical=0.3,
        coverage=0.5,
        memory=0.5,
        votes=0.2 if heads == 1 else 0.0,
        layer=0.4 if heads == 1 else 0.0,
    )
    return world.version(projection, tuning, offsets)


@pytest.mark.parametrize(("first", "name"), [*enumerate(SETTINGS)])
def test_the_parts_of_200_scores_and_their_pairs_of_words_add_up(
    world: World, first: int, name: str
) -> None:
    plain = Fitted(1, identity(WIDTH), Tuning(), {})
    fitted = plain if name == "untrained" else learned(world, SETTINGS[name])
    scale = fitted.tuning.scale or (SCALE,)
    options: dict[str, Any] = {"k": 5, "explain": "tokens", "projection": fitted.number}
    pairs, places = 0, {id: place for place, id in enumerate(texts())}
    for number, query in enumerate(QUERIES[first % 2 :: 2]):
        words = number % 2 == 0
        options["lexical"] = None if words else False
        timed = number % 4 > 1
        options |= {"recency": f"time:{HALF_LIFE}" if timed else None, "now": NOW}
        tau = fitted.tuning.temperature
        answer = world.collection.search(query, **options)
        untrained = world.logits(plain, query, scale=[SCALE])
        unmoved = world.logits(fitted, query, scale=scale)
        for hit in answer.hits:
            why = hit.explanation or {}
            parts = why["parts"]
            assert sum(parts.values()) == pytest.approx(hit.score, abs=1e-4)
            counts = counted(answer, hit)  # of each head
            assert parts["meaning"] == pytest.approx(untrained[hit.id][0] * counts.sum(), abs=1e-4)
            without = counts @ unmoved[hit.id]
            assert parts["meaning"] + parts["learned"] == pytest.approx(without, abs=1e-4)
            assert (parts["learned"] == 0) is (name == "untrained")
            assert parts["lexical"] > 0 or not any(map(found, why["words"]["passage"]))
            assert words or parts["lexical"] == 0
            aged = -np.log(2) * places[hit.id] / HALF_LIFE * tau * counts.sum()
            assert parts["recency"] == pytest.approx(aged if timed else 0, abs=1e-4)
            expected = centred_words(world, fitted, query, why["passage"], hit.id, counts, scale)
            found_words = why["words"]
            np.testing.assert_allclose(found_words["shares"], expected, atol=1e-4)
            total = np.sum(found_words["shares"]) + found_words["mean"] + found_words["remainder"]
            assert total == pytest.approx(without, abs=1e-4)
            pairs += 1
    assert pairs * len(SETTINGS) == 200


def found(word: dict[str, Any]) -> bool:
    return bool(word["lexical"])


def counted(answer: Any, hit: Any) -> np.ndarray:
    """Return how much each head counts: 1, or its share in the weight over the temperature."""
    weights = np.array(hit.explanation["weights"])
    if len(weights) == 1:
        return np.ones(1)
    parts = np.array(answer.weighing.gates) * weights
    return np.asarray(parts / parts.sum() / answer.weighing.temperature)


def centred_words(
    world: World,
    fitted: Fitted,
    query: str,
    passage: str,
    id: str,
    counts: np.ndarray,
    scale: Any,
) -> np.ndarray:
    """Add up centred products of tokens between words, one by one."""
    p = fitted.projection
    left, right = (
        read_tokens(world.encoder, text, task)
        for text, task in ((query, "query"), (passage, "document"))
    )
    a, b = (
        states.vectors.astype(float) / np.linalg.norm(states.vectors.astype(float).sum(axis=0))
        for states in (left, right)
    )
    pairs = np.zeros((len(a), len(b)))
    for head, count in enumerate(counts):
        w_q = np.eye(WIDTH) if p.w_q is None else p.w_q[head].astype(float)
        w_k = np.eye(WIDTH) if p.w_k is None else p.w_k[head].astype(float)
        lengths = 1.0
        if p.normalize_keys:
            [key] = world.store.keys_of(own_keys(world, id, b.sum(axis=0))).values()
            shifted = b.sum(axis=0) + fitted.offsets.get(key.id, 0.0)
            lengths = np.linalg.norm(w_q @ (a.sum(axis=0) - p.center) + p.b_q[head])
            lengths *= np.linalg.norm(w_k @ (shifted - p.center) + p.b_k[head])
        pairs += count * scale[head] * (a @ w_q.T) @ (b @ w_k.T).T / lengths
    pairs = pairs - pairs.mean(axis=1)[:, None] - pairs.mean(axis=0) + pairs.mean()
    rows, columns = (
        [where(text, start) if stop > start else -1 for start, stop in states.spans.tolist()]
        for text, states in ((query, left), (passage, right))
    )
    shares = np.zeros((len(pieces(query)), max(columns) + 1))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            if row >= 0 and column >= 0:
                shares[row, column] += pairs[i, j]
    return shares


@cache
def read_tokens(encoder: Any, text: str, task: str) -> Any:
    return encoder.token_states([text], task)[0]


def own_keys(world: World, id: str, vector: np.ndarray) -> np.ndarray:
    """Return the id of the key of a document that is nearest to a vector."""
    keys = world.store.own_keys(np.array([world.store.find([id])[id].row]))
    return keys.ids[[np.argmax(keys.vectors @ vector)]]


def pieces(text: str) -> list[re.Match[str]]:
    return list(re.finditer(r"\w+|[^\w\s]", text))


def where(text: str, start: int) -> int:
    """Return the place of the word that a token begins in."""
    return next(n for n, word in enumerate(pieces(text)) if word.start() <= start < word.end())


def test_whole_words_with_what_bm25_finds_and_what_tells_nothing(world: World) -> None:
    query = "How do I copy files?"
    hit = world.collection.search(query, explain="tokens", k=1, mask={"only": ["shutil.copyfile"]})
    words = (hit.hits[0].explanation or {})["words"]
    assert [word["text"] for word in words["query"]] == ["How", "do", "I", "copy", "files", "?"]
    assert [word["stop_word"] for word in words["query"]] == [True, True, True, False, False, True]
    assert [word["text"] for word in words["query"] if word["lexical"]] == ["copy", "files"]
    passage = (hit.hits[0].explanation or {})["passage"]
    assert [passage[word["start"] : word["stop"]] for word in words["passage"]] == [
        word["text"] for word in words["passage"]
    ]
    assert {word["text"].lower() for word in words["passage"] if word["lexical"]} >= {"copy"}
    best = np.unravel_index(np.argmax(words["shares"]), np.shape(words["shares"]))
    assert words["query"][best[0]]["text"] in ("copy", "files")
    alone = world.collection.search(query, explain="tokens", k=1, lexical=False)
    words = (alone.hits[0].explanation or {})["words"]
    assert not any(word["lexical"] for word in words["query"] + words["passage"])


def test_reranking_and_the_second_layer_are_parts(world: World) -> None:
    plain = world.collection.search(QUERIES[0], explain=True, k=10, memory=0)
    again = world.collection.search(QUERIES[0], explain=True, k=10, rerank=10, memory=0)
    before = {hit.id: hit for hit in plain.hits}
    assert any(abs((hit.explanation or {})["parts"]["layer"]) > 0.01 for hit in plain.hits)
    for hit in again.hits:
        parts = (hit.explanation or {})["parts"]
        assert sum(parts.values()) == pytest.approx(hit.score, abs=1e-4)
        assert parts["rerank"] == pytest.approx(hit.score - before[hit.id].score, abs=1e-4)
        assert parts["memory"] == 0


def test_feedback_is_a_part(world: World) -> None:
    query, options = "copy a file", {"explain": True, "k": 20, "lexical": False}
    before = {hit.id: hit.score for hit in world.collection.search(query, memory=0, **options).hits}
    moved = world.collection.search(query, memory=0.7, **options).hits
    for hit in moved:
        parts = (hit.explanation or {})["parts"]
        if hit.id in before:
            assert parts["memory"] == pytest.approx(hit.score - before[hit.id], abs=1e-4)
    assert any(abs((hit.explanation or {})["parts"]["memory"]) > 0.1 for hit in moved)


def test_a_mixture_s_scores_are_logs_of_weights_and_add_up_too(world: World) -> None:
    mixture = [{"text": "copy a file"}, {"text": "mean", "weight": 2}]
    for fitted in (None, learned(world, SETTINGS["heads"])):
        options = {"projection": None if fitted is None else fitted.number}
        answer = world.collection.search({"mixture": mixture}, explain=True, k=20, **options)
        for hit in answer.hits:
            parts = (hit.explanation or {})["parts"]
            assert hit.score == pytest.approx(np.log(hit.weight), abs=1e-6)
            assert sum(parts.values()) == pytest.approx(hit.score, abs=1e-4)


def test_vectors_and_what_has_no_key_of_its_own_have_parts(tmp_path: Path) -> None:
    data = vector_data(tmp_path)
    collection = data.create(dimension=2)
    collection.upsert([{"id": "a", "vector": [1, 0]}, {"id": "b", "vector": [0.5, 3]}])
    hits = collection.search([1.0, 2.0], explain=True).hits
    assert {hit.id: (hit.explanation or {})["parts"]["meaning"] for hit in hits} == pytest.approx(
        {"a": 1 / np.sqrt(2), "b": 6.5 / np.sqrt(2)}
    )
    data.close()
