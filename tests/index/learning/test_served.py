"""A version as training serves it: its scores and its words are those of a search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from attend.api.learning import TrainRequest
from attend.collection.data import Data
from attend.collection.versions import Version
from attend.core.settings import UNFITTED_WORDS, Tuning
from attend.learning.answer_model import DocumentFold
from attend.learning.answers import read_answers, shared_words
from attend.learning.data import Questions, ServedVersion, stored_keys
from attend.learning.ranking import exchanged
from attend.projection import given, identity
from attend.write.feedback import add_feedback
from tests.index.helpers import split_heads
from tests.index.world import WORDS, words


@pytest.fixture(scope="module")
def library(tmp_path_factory, tiny_encoder):
    """Documents of two keys each, examples, and values."""
    rng = np.random.default_rng(3)
    data = Data(tmp_path_factory.mktemp("library"), load_encoder=lambda name: tiny_encoder)
    collection = data.create()
    documents = [
        {
            "id": f"d{at}",
            "fields": {"title": words(rng, 3), "body": words(rng, 9)},
            "value": str(rng.choice(["red", "green"])),
        }
        for at in range(40)
    ]
    collection.upsert(documents)
    asked = sorted({" ".join(rng.choice(WORDS, 3)) for _ in range(30)})
    add_feedback(
        collection, [{"query": q, "id": f"d{at}", "label": 1} for at, q in enumerate(asked)]
    )
    yield collection
    data.close()


def texts_of(collection) -> list[str]:
    return ["\n".join(each.fields.values()) for each in collection.store.scroll(0, 100)]


def test_words_are_those_of_a_search_among_the_members(library):
    answers, _ = read_answers(library, TrainRequest())
    rows, texts = answers.memory.rows, texts_of(library)
    assert list(answers.texts) == texts
    held, members = np.arange(0, 40, 3), np.setdiff1d(np.arange(40), np.arange(0, 40, 3))
    seen = []
    fold = DocumentFold(held, members)
    shares, coverage = shared_words(fold, library.store, answers, lambda: seen.append(1))
    assert seen
    assert shares.max() == 1
    for at, one in enumerate(held):
        found = library.store.lexical(texts[one])
        scores = dict(zip(found.rows.tolist(), found.scores.tolist(), strict=True))
        among = np.array([scores.get(int(rows[each]), 0.0) for each in members])
        np.testing.assert_allclose(shares[at], among / among.max(), atol=1e-3)
        assert coverage[at] == pytest.approx(among.max() / found.ideal)


def test_a_text_that_nothing_shares_a_word_with(library):
    answers, _ = read_answers(library, TrainRequest())
    answers = replace(answers, texts=["zzzz", *answers.texts[1:]])
    fold = DocumentFold(np.array([0]), np.arange(1, 40))
    shares, coverage = shared_words(fold, library.store, answers, list)
    assert not shares.any()
    assert not coverage.any()


def versions(width: int):
    rng = np.random.default_rng(4)
    w_q, w_k = (
        (np.eye(width) + 0.2 * rng.standard_normal((width, width))).astype(np.float32)
        for _ in range(2)
    )
    turned = given(w_q, w_k, normalize_queries=True, normalize_keys=True)

    def tuned(**parts: object) -> Tuning:
        return Tuning(**{"scale": (11.0,), "attend": 100, "scorer": "dot"} | parts)

    return {
        "untrained": (identity(width), Tuning()),
        "learned": (turned, tuned()),
        "words": (turned, tuned(lexical=0.4, coverage=0.5)),
        "examples": (turned, tuned(examples=0.9)),
        "votes": (
            turned,
            tuned(examples=0.9, pool="sum", temperature=1.7, lexical=0.4, coverage=0.5),
        ),
        "heads": (split_heads(width, 2), tuned(scale=(9.0, 14.0), lexical=0.3)),
    }


@pytest.mark.parametrize("name", versions(32))
def test_what_answers_now_is_scored_as_a_search_scores_it(library, name):
    """A text that is asked, against the same text as a held-out document."""
    projection, tuning = versions(32)[name]
    rows = np.array([each.row for each in library.store.scroll(0, 100)])
    version = library.store.add_projection(
        *(projection.kind, projection.to_bytes(), projection.fingerprint, {}),
        tuning=tuning.stored(),
        offsets=None if name in ("untrained", "heads") else offsets(library),
    )
    library.activate(version)
    text = "whale of the sea " + " ".join(WORDS[:4])
    found = library.store.lexical(text)
    lexical = np.zeros((1, 40), dtype=np.float32)
    lexical[0, np.searchsorted(rows, found.rows)] = found.scores / found.maximum
    coverage = np.array([found.maximum / found.ideal], dtype=np.float32)
    active = Version.of(version, library.store.version(version), "cosine", words=True)
    served = ServedVersion(active, library.settings, stored_keys(library, active, rows))
    embedded = library.encoder().encode_queries([text])
    mine = served.scores(embedded, np.arange(40), served.words(lexical, coverage))[0]
    answer = library.search(text, attend="all", k=40, memory=0)
    ids = [each.id for each in library.page(limit=40).documents]
    weights = {hit.id: hit.weight for hit in answer.hits}
    expected = np.log([weights[id] for id in ids])
    # A null key takes its part of every weight alike, and so does the partition.
    np.testing.assert_allclose(mine - mine.mean(), expected - expected.mean(), atol=5e-3)


@pytest.mark.parametrize("examples", [0.0, 0.9])
def test_a_second_layer_ranks_as_a_search_does(library, examples):
    """Each of the documents as the only answer to one question."""
    text = "whale of the sea " + " ".join(WORDS[:4])
    tuning = {}
    if examples:
        tuning = UNFITTED_WORDS.model_copy(update={"examples": examples, "memory": 0.0}).stored()
    projection = identity(32)
    version = library.store.add_projection(
        *(projection.kind, projection.to_bytes(), projection.fingerprint, {}), tuning=tuning
    )
    library.activate(version)
    hits = library.search(text, k=10, memory=0, explain=True).hits
    assert any(hit.explanation["layer"] for hit in hits)
    rows = np.array([each.row for each in library.store.scroll(0, 100)])
    found = library.store.lexical(text)
    lexical = np.zeros((40, 40), dtype=np.float32)
    lexical[:, np.searchsorted(rows, found.rows)] = found.scores / found.maximum
    answers = sparse.csr_array(np.eye(40, dtype=np.float32))
    questions = Questions(
        np.repeat(library.encoder().encode_queries([text]), 40, axis=0),
        answers,
        answers,
        sparse.csr_array(lexical),
        np.full(40, found.maximum / found.ideal, dtype=np.float32),
    )
    active = Version.of(version, library.store.version(version), "cosine", words=True)
    served = ServedVersion(active, library.settings, stored_keys(library, active, rows))
    ids = [library.store.documents(rows)[row].id for row in rows.tolist()]
    expected = np.zeros(40)
    for rank, hit in enumerate(hits):
        expected[ids.index(hit.id)] = 1 / np.log2(2 + rank)
    np.testing.assert_allclose(served.ndcg(questions), expected, atol=1e-6)


def test_scores_are_exchanged_by_another_order():
    scores = np.array([[3.0, 1.0, 2.0, -np.inf]])
    again = np.array([[0.1, 0.9, 0.5, -np.inf]], dtype=np.float32)
    assert exchanged(scores, again).tolist() == [[1.0, 3.0, 2.0, -np.inf]]


def offsets(collection):
    with collection.store.all_keys() as (_, batches):
        ids = np.concatenate([batch.ids for batch in batches])[:7]
    deltas = 0.2 * np.random.default_rng(5).standard_normal((7, 32))
    return np.sort(ids), deltas.astype(np.float32)
