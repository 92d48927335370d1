"""Foreign queries: told by a collection's own texts, before any training."""

from __future__ import annotations

import json
import sqlite3
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.collection.data import Data
from attend.collection.verify import verify
from attend.core.errors import EncoderError, InvalidRequest
from attend.core.settings import Tuning
from attend.projection import identity
from attend.search import foreign
from attend.search.answer import conformal_share
from attend.search.foreign import FEW, LEAST, NOT_MADE, SETTING, SHARE, passages
from attend.store import StoredDocument
from attend.write.build import Mapped, build
from tests.index.world import WORDS

OWN = "whale ship storm sea island gold"
FOREIGN = "quarterly dividend taxation amendments"


def sentences(seed: int, count: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(WORDS, 6)) + ". " + " ".join(rng.choice(WORDS, 5)) + "."
        for _ in range(count)
    ]


@pytest.fixture
def library(tmp_path, tiny_encoder):
    data = Data(tmp_path / "library", load_encoder=lambda name: tiny_encoder)
    yield data
    data.close()


def filled(library, count: int = LEAST + 20):
    collection = library.create("default")
    collection.upsert([{"id": str(n), "text": text} for n, text in enumerate(sentences(1, count))])
    return collection


@pytest.fixture
def collection(library):
    collection = filled(library)
    collection.publish()
    return collection


def test_a_foreign_query_is_told_before_any_training(collection):
    own, strange = (collection.search(query) for query in (OWN, FOREIGN))
    assert (own.answered, own.calibrated) == (True, "collection")
    assert (strange.answered, strange.calibrated) == (False, "collection")
    assert strange.confidence < 0.05 < own.confidence <= 1
    assert strange.answer["reason"] == "nothing here answers that"
    assert len(strange.hits) == 10
    assert sum(hit.weight for hit in collection.search(OWN, k=100).hits) == pytest.approx(1)


def test_the_confidence_is_the_share_of_passages_as_strange(collection):
    """Against a loop: passages asked one by one, each with its own document masked."""
    documents = collection.store.sample(foreign.PASSAGES)
    scores = [
        collection.search(text, mask={"exclude": [document.id]}, scale=1.0, lexical=False)
        .hits[0]
        .score
        for document, text in zip(documents, passages(documents), strict=True)
    ]
    for query in (OWN, FOREIGN, "gold island"):
        best = collection.search(query, scale=1.0, lexical=False).hits[0].score
        share = (1 + sum(score <= best for score in scores)) / (len(scores) + 1)
        assert collection.search(query).confidence == pytest.approx(share, abs=2 / len(scores))


@pytest.mark.parametrize(
    "options",
    [
        {"lexical": True},
        {"temperature": 3.0},
        {"scale": 2.0},
        {"attend": "all"},
        {"attend": 7, "k": 7},
        {"scorer": "cosine"},
        {"mode": "soft"},
    ],
)
def test_it_does_not_depend_on_how_weights_are_computed(collection, options):
    for query in (OWN, FOREIGN):
        plain, other = collection.search(query), collection.search(query, **options)
        assert (other.confidence, other.calibrated) == (plain.confidence, "collection")


def test_min_confidence_is_the_share_refused(collection):
    confidence = collection.search("gold map").confidence
    assert collection.search("gold map", min_confidence=confidence).answered
    assert not collection.search("gold map", min_confidence=min(1, confidence + 1e-9)).answered
    assert collection.search(FOREIGN, min_confidence=0).answered


@pytest.mark.parametrize("options", [{"pool": "sum"}, {"scorer": "laplace"}])
def test_other_scores_have_no_confidence(collection, options):
    answer = collection.search(OWN, **options)
    assert (answer.confidence, answer.calibrated, answer.answered) == (None, None, True)
    with pytest.raises(InvalidRequest, match=r"min_confidence is 0\.5"):
        collection.search(OWN, min_confidence=0.5, **options)


def test_a_filter_counts_what_passes_alone(collection):
    few = collection.search(OWN, mask={"only": ["3"]})
    assert few.confidence < collection.search(OWN).confidence
    none = collection.search(OWN, mask={"only": []})
    assert (none.confidence, none.answered) == (0.0, False)


def test_a_batch_has_the_confidences_of_its_queries(collection):
    queries = [OWN, FOREIGN, "map", {"id": "5"}]
    together = collection.search_many(
        [parse(SearchRequest, {"query": query, "exclude_self": False}) for query in queries]
    )
    alone = [collection.search(query, exclude_self=False).confidence for query in queries]
    assert [answer.confidence for answer in together] == pytest.approx(alone)
    assert together[-1].confidence == 1  # a document is nearer to itself than any passage


def test_feedback_that_moves_a_query_does_not_make_it_less_foreign(collection):
    queries = (OWN, FOREIGN, "gold map")
    before = [collection.search(query) for query in queries]
    collection.teach([{"query": query, "id": before[0].hits[-1].id} for query in queries])
    after = [collection.search(query) for query in queries]
    assert all(a.hits[0].score != b.hits[0].score for a, b in zip(after, before, strict=True))
    assert [answer.confidence for answer in after] == [answer.confidence for answer in before]
    assert [answer.answered for answer in after] == [answer.answered for answer in before]


def test_a_mixture_has_none(collection):
    mixture = {"mixture": [{"text": OWN, "weight": 1}, {"text": "map", "weight": 2}]}
    assert collection.search(mixture).calibrated is None


def test_too_few_documents_have_none(library):
    collection = filled(library, LEAST - 1)
    collection.publish()
    answer, info = collection.search(FOREIGN), collection.info()
    assert (answer.confidence, answer.hints) == (None, [FEW])
    assert (info.foreign, info.hints, verify(collection).hints) == (None, [FEW], [])
    with pytest.raises(InvalidRequest, match="100 texts or more"):
        collection.search(FOREIGN, min_confidence=0.5)


def test_own_vectors_alone_have_none(library):
    collection = library.create("vectors", encoder=None, dimension=4)
    rng = np.random.default_rng(0)
    collection.upsert(
        [{"id": str(n), "vector": v} for n, v in enumerate(rng.normal(size=(150, 4)))]
    )
    collection.publish()
    assert collection.search([1.0, 0, 0, 0]).confidence is None


def test_the_test_is_stored_and_the_same_in_every_run(collection, library, tmp_path, tiny_encoder):
    stored = collection.store.settings()[SETTING]
    confidence = collection.search("gold map").confidence
    again = without_test(library, tmp_path, load_encoder=lambda name: tiny_encoder)
    again.collection().publish()
    assert again.collection().store.settings()[SETTING] == stored
    assert again.collection().search("gold map").confidence == confidence
    again.close()


@pytest.mark.parametrize("value", ["[]", '{"version": 1}', '{"scores": []}', "7"])
def test_a_stored_test_that_cannot_be_read_is_made_again(
    collection, library, tmp_path, tiny_encoder, value
):
    library.close()
    with sqlite3.connect(tmp_path / "library/collections/default/documents.db") as db:
        db.execute("UPDATE settings SET value = ? WHERE name = ?", [value, SETTING])
    again = Data(tmp_path / "library", load_encoder=lambda name: tiny_encoder)
    again.collection().publish()
    assert again.collection().search(OWN).calibrated == "collection"
    again.close()


def test_a_search_starts_it_in_the_background(library):
    collection = filled(library)
    first = collection.search(FOREIGN)
    assert first.calibrated in (None, "collection")
    for thread in threading.enumerate():
        if thread.name == "attend-foreign":
            thread.join(30)
    assert collection.search(FOREIGN).calibrated == "collection"
    assert not collection.search(FOREIGN).answered


def source(tmp_path, count: int) -> Mapped:
    file = tmp_path / "texts.jsonl"
    texts = enumerate(sentences(1, count))
    file.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in texts))
    return Mapped.of(str(file))


@pytest.mark.parametrize("merge_at", [LEAST, 10_000])
def test_a_build_of_any_size_makes_it(library, tmp_path, monkeypatch, merge_at):
    """Where more keys are new than are searched as a matrix, the first look writes the index."""
    monkeypatch.setattr("attend.engines.snapshots.MERGE_KEYS", merge_at)
    collection = library.create("default")
    build(collection, [source(tmp_path, LEAST + 20)])
    assert collection.info().foreign["documents"] == LEAST + 20
    assert not collection.search(FOREIGN).answered


def without_test(library, tmp_path, **options) -> Data:
    """Open the library again, as if no test had been made of its collection."""
    library.close()
    with sqlite3.connect(tmp_path / "library/collections/default/documents.db") as db:
        db.execute("DELETE FROM settings WHERE name = ?", [SETTING])
    return Data(tmp_path / "library", **options)


def test_a_build_of_nothing_new_makes_a_missing_one(collection, library, tmp_path, tiny_encoder):
    rows = source(tmp_path, LEAST + 20)
    again = without_test(library, tmp_path, load_encoder=lambda name: tiny_encoder)
    assert build(again.collection(), [rows]).unchanged == LEAST + 20
    assert again.collection().info().foreign["passages"] == LEAST + 20
    again.close()


def test_searches_info_and_verify_say_that_it_is_missing(collection, library, tmp_path):
    def unloadable(name):
        raise EncoderError("No model is here.")

    assert collection.search(OWN).hints is None
    assert (collection.info().hints, verify(collection).hints) == (None, [])
    again = without_test(library, tmp_path, load_encoder=unloadable)
    opened = again.collection()
    answer = opened.search(np.ones(opened.settings.dimension).tolist())
    assert (answer.answered, answer.confidence, answer.hints) == (True, None, [NOT_MADE])
    assert (opened.info().hints, verify(opened, mend=True).hints) == ([NOT_MADE], [NOT_MADE])
    again.close()


def test_verify_with_mend_makes_a_missing_one(collection, library, tmp_path, tiny_encoder):
    again = without_test(library, tmp_path, load_encoder=lambda name: tiny_encoder)
    assert verify(again.collection()).hints == [NOT_MADE]
    assert verify(again.collection(), mend=True).hints == []
    assert again.collection().info().foreign is not None
    again.close()


def test_a_version_that_is_activated_has_it(collection):
    version = collection.add_projection(collection.fit_projection("pca", 8))
    collection.activate(version)
    assert collection.info().foreign["projection"] == version
    assert collection.search(FOREIGN).calibrated == "collection"
    collection.rollback()
    assert collection.info().foreign["projection"] == 1


def test_it_follows_the_collection(collection):
    before = collection.info().foreign
    collection.upsert([{"id": "more", "text": "one more ship"}])
    collection.publish()
    assert collection.info().foreign == before
    texts = sentences(2, 2 * LEAST)
    collection.upsert([{"id": f"new-{n}", "text": text} for n, text in enumerate(texts)])
    collection.publish()
    assert collection.info().foreign["documents"] > before["documents"]


def test_replaced_texts_count_as_a_change(collection):
    before = collection.store.settings()[SETTING]
    texts = [text.replace("whale", "tax").replace("ship", "law") for text in sentences(1, 120)]
    collection.upsert([{"id": str(n), "text": text} for n, text in enumerate(texts)])
    collection.publish()
    assert collection.store.settings()[SETTING]["scores"] != before["scores"]


def test_a_trained_version_has_its_own_confidence(collection):
    weights = identity(collection.settings.dimension)
    tuning = Tuning(null=(3.0,), attend=100, threshold=0.5)
    version = collection.store.add_projection(
        weights.kind, weights.to_bytes(), weights.fingerprint, {}, tuning=tuning.stored()
    )
    assert collection.search(OWN, projection=version).calibrated == "examples"
    assert collection.search(OWN).calibrated == "collection"


def test_a_library_that_is_read_only_has_what_is_stored(
    collection, library, tmp_path, tiny_encoder
):
    confidence = collection.search(OWN).confidence
    library.close()
    again = Data(tmp_path / "library", load_encoder=lambda name: tiny_encoder, read_only=True)
    assert again.collection().search(OWN).confidence == confidence
    again.close()


# -- the parts -------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_conformal_coverage(calibration, levels, seed):
    """Over all places that one of n + 1 exchangeable scores may have, P(confidence <= a) <= a."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, calibration + 1) / levels  # with ties
    confidences = []
    for place in range(len(scores)):
        others = sorted(np.delete(scores, place).tolist())
        confidences.append(conformal_share(others, float(scores[place])))
    for level in (0.01, 0.05, 0.1, 0.3, 0.9):
        assert np.mean(np.array(confidences) <= level) <= level + 1e-12


@given(st.lists(st.text(alphabet="ab .!?\n", max_size=40), max_size=12))
def test_a_passage_is_a_part_of_its_document(texts):
    documents = [
        StoredDocument(n + 1, str(n), {"text": text}, None, {}) for n, text in enumerate(texts)
    ]
    parts = list(passages(documents))
    assert parts == list(passages(documents))
    for text, part in zip(texts, parts, strict=True):
        words = foreign._WORD.findall(text)
        assert part in text
        assert bool(part) == bool(words)
        assert len(foreign._WORD.findall(part)) <= max(foreign.FEWEST_WORDS, SHARE * len(words) + 1)


def test_the_stored_test_is_small(collection):
    assert len(json.dumps(collection.store.settings()[SETTING])) < 10_000
