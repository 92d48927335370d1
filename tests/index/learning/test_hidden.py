"""Hidden answers: what is left is scored as by a collection from which they were deleted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attend.collection.data import Data
from attend.core.settings import Tuning
from attend.learning.data import answerable, feedback_of, start_of, twins
from attend.learning.fit import unlearned
from attend.learning.ranking import hidden_scores, without_answers
from attend.learning.ranking_model import find_candidates, question_folds, read_questions
from attend.projection import given
from attend.write.feedback import add_feedback
from tests.index.world import WORDS

FACTORS = {
    "words": (0.0, 0.3, 0.0),
    "covered words": (0.0, 0.8, 1.0),
    "examples": (0.9, 0.3, 0.5),
}

COUNT = 60


def texts_of(rng: np.random.Generator) -> list[str]:
    """Texts of six words: of equal lengths, the mean length is the same without some of them."""
    common, rare = WORDS, [f"word{number}" for number in range(40)]
    return [" ".join([*rng.choice(common, 3), *rng.choice(rare, 3)]) for _ in range(COUNT)]


def made(folder, encoder, texts: dict[str, str]):
    data = Data(folder, load_encoder=lambda name: encoder)
    collection = data.create()
    collection.upsert([{"id": id, "fields": {"text": text}} for id, text in texts.items()])
    return data, collection


def taught(collection, pairs) -> None:
    add_feedback(
        collection, [{"query": query, "id": id, "label": label} for query, id, label in pairs]
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory, tiny_encoder):
    """Documents, and pairs of a question and a document: some questions share their answers."""
    rng = np.random.default_rng(5)
    texts = {f"d{at}": text for at, text in enumerate(texts_of(rng))}
    pairs = []
    for at in range(48):
        first, second = int(rng.integers(12)), 12 + at
        query = " ".join(["word", *rng.permutation(texts[f"d{second}"].split())[:3]])
        pairs += [(query, f"d{first}", 1.0), (query, f"d{second}", 2.0)]
    data, collection = made(tmp_path_factory.mktemp("library"), tiny_encoder, texts)
    taught(collection, pairs)
    yield collection, texts, pairs
    data.close()


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_the_rest_scores_as_if_the_answers_had_been_deleted(
    library, name, strength, tmp_path, tiny_encoder
):
    collection, texts, pairs = library
    factors = FACTORS[name]
    material = read_questions(collection, -1, 0)
    questions, memory = material.questions, material.memory
    fold = question_folds(questions, twins(questions.embeddings), 3, seed=0)[0]
    fitted = unlearned(memory, start_of(memory, None))
    asked = without_answers(collection, material, fold.held_out)
    scores = hidden_scores(asked, fold, memory, fitted, factors, strength)
    ids = [document.id for document in collection.page(limit=COUNT).documents]
    training = {material.texts[at] for at in np.flatnonzero(fold.trained)}
    for place, member in list(enumerate(fold.held_out.tolist()))[:2]:
        gone = {ids[at] for at in questions.relevant[[member]].indices}
        left = {id: text for id, text in texts.items() if id not in gone}
        data, other = made(tmp_path / str(place), tiny_encoder, left)
        taught(other, [pair for pair in pairs if pair[0] in training and pair[1] in left])
        rank_by(other, factors)
        answer = other.search(material.texts[member], attend="all", k=COUNT, memory=strength)
        expected = [hit.score for hit in answer.hits]
        there = -np.sort(-scores[place][np.isfinite(scores[place])])
        np.testing.assert_allclose(there, expected, atol=2e-5)
        data.close()


def test_votes_count_in_a_trial_as_in_a_search(library, tmp_path, tiny_encoder):
    _, texts, pairs = library
    data, collection = made(tmp_path, tiny_encoder, texts)
    taught(collection, pairs)
    material = read_questions(collection, -1, 0)
    questions, memory = material.questions, material.memory
    feedback = feedback_of(questions, memory)
    asked = questions.some(np.arange(4))
    moved = feedback.moved(asked.embeddings, 0.7)
    asked = replace(asked, embeddings=moved, unmoved=asked.embeddings, feedback=feedback)
    fitted = unlearned(memory, start_of(memory, None))
    (found,) = find_candidates(memory, fitted, questions, asked)
    factors = (0.0, 0.3, 0.0, 0.2)
    scores = found.attendable(*factors)
    rank_by(collection, factors[:3], memory=0.7, votes=0.2)
    votes = asked.votes(memory)
    answered = questions.relevant.sum(axis=0) > 0
    assert votes[:, ~answered].tolist() == np.zeros((4, (~answered).sum())).tolist()
    assert (votes.max(axis=1) > 0).all()
    for place in range(4):
        answer = collection.search(material.texts[place], attend="all", k=COUNT, explain=True)
        expected = -np.sort(-scores[place][np.isfinite(scores[place])])
        np.testing.assert_allclose([hit.score for hit in answer.hits], expected, atol=2e-5)
        plain = collection.search(material.texts[place], attend="all", k=COUNT, memory=0.0)
        before = {hit.id: hit.score for hit in plain.hits}
        for hit in answer.hits:  # all that feedback added is told
            told = hit.explanation["memory"]
            assert hit.score - told == pytest.approx(before[hit.id], abs=2e-5)
    data.close()


def rank_by(collection, factors, **feedback) -> None:
    """Activate a version of untrained embeddings with words, and with examples as keys."""
    eye = np.eye(32, dtype=np.float32)
    plain = given(eye, eye, normalize_queries=True, normalize_keys=True)
    examples, lexical, coverage = factors
    tuning = Tuning(
        scale=(1.0,),
        attend=100,
        scorer="dot",
        examples=examples,
        lexical=lexical,
        coverage=coverage,
        **feedback,
    )
    collection.store.add_projection(
        *(plain.kind, plain.to_bytes(), plain.fingerprint, {}),
        tuning=tuning.stored(),
        activate=True,
    )
    collection.publish()


def test_a_mask_alone_would_score_otherwise(library):
    """The documents left have less than the best by words, which no collection without one has."""
    collection, *_ = library
    material = read_questions(collection, -1, 0)
    questions = material.questions.some(answerable(material.questions))
    relevant = questions.relevant.toarray() > 0
    left = np.where(relevant, 0, questions.lexical.toarray()).max(axis=1)
    assert (left < 1).mean() > 0.3
