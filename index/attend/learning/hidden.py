"""Held-out questions as a collection without their answers would score them.

A mask alone would betray what it hides: BM25 counts by the best match of the whole collection, and
stored questions with the same answer move a query towards it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attend.collection.stored import StoredCollection
from attend.core.types import Bool, Float32, Float64, Int64
from attend.learning.data import Memory, Questions, Sparse, answerable, stacked
from attend.learning.fit import Fitted
from attend.learning.held_out import QuestionFold
from attend.learning.material import RankingMaterial, room_of, word_shares
from attend.learning.ranking_fit import find_candidates
from attend.search.queries import FeedbackMemory


def scores_without_answers(
    collection: StoredCollection,
    material: RankingMaterial,
    fits: Sequence[tuple[QuestionFold, Fitted]],
    factors: tuple[float, float, float],
    strength: float,
) -> Float64 | None:
    """Return the scores (q, c) of the questions of folds, each by its fit; None where a mask does.

    Args:
        factors: on example keys, λ and γ.
        strength: how far feedback moves a query.
    """
    _, lexical, _ = factors
    if not (lexical or strength):
        return None
    questions = without_answers(collection, material) if lexical else material.questions
    parts = [
        hidden_scores(questions, fold, material.memory, fitted, factors, strength)
        for fold, fitted in fits
    ]
    return stacked(parts, -np.inf)


def hidden_scores(
    questions: Questions,
    fold: QuestionFold,
    memory: Memory,
    fitted: Fitted,
    factors: tuple[float, float, float],
    strength: float,
) -> Float64:
    """Return the scores (q, c) of a fold's questions over documents that do not answer them.

    Args:
        questions: all of them, as `without_answers` returns them.
        factors: on example keys, λ and γ.
        strength: how far feedback moves a query.
    """
    questions = questions.some(fold.held_out)
    if strength:
        moved = moved_without_answers(questions, fold.training, memory, strength)
        questions = replace(questions, embeddings=moved)
    (candidates,) = find_candidates(memory, fitted, fold.training, questions)
    return np.where(candidates.grades > 0, -np.inf, candidates.attendable(*factors))


def without_answers(collection: StoredCollection, material: RankingMaterial) -> Questions:
    """Return questions with the words they share with all documents but those that answer.

    Their labels stay, to tell which documents those are.
    """
    questions, memory = material.questions, material.memory
    room, able = room_of(len(material.texts)), collection.capabilities.lexical
    rows = np.split(memory.rows[questions.relevant.indices], questions.relevant.indptr[1:-1])
    matches = (
        collection.store.lexical_without(text, gone, room) if text and able else None
        for text, gone in zip(material.texts, rows, strict=True)
    )
    lexical, coverage = word_shares(matches, questions.count, memory)
    return replace(questions, lexical=lexical, coverage=coverage)


def feedback_of(training: Questions, memory: Memory) -> FeedbackMemory | None:
    """Return what moves queries, by the questions that are learned from; None without any."""
    pairs = training.relevant.tocoo()
    labels = pairs.row, pairs.col, pairs.data.astype(np.float64)
    return FeedbackMemory.joined(training.embeddings, [None] * training.count, labels, memory)


def moved_without_answers(
    questions: Questions, training: Questions, memory: Memory, strength: float
) -> Float32:
    """Return the embeddings of questions (q, d), each moved by the feedback that would be left.

    Args:
        training: questions that each have a relevant document.
        strength: α.
    """
    feedback = feedback_of(training, memory)
    if feedback is None:
        return questions.embeddings
    moved = feedback.moved(questions.embeddings, strength)
    answers = (questions.relevant != 0).astype(np.float32)
    shared: Sparse = (answers @ (training.relevant != 0).astype(np.float32).T).tocsr()  # (q, t)
    for question in np.flatnonzero(np.diff(shared.indptr)).tolist():
        gone = np.zeros(len(memory), dtype=bool)
        gone[questions.relevant[[question]].indices] = True
        left = _left(feedback, training, shared[[question]].indices, gone, memory)
        as_is = questions.embeddings[[question]]
        moved[question] = (as_is if left is None else left.moved(as_is, strength))[0]
    return moved


def _left(
    feedback: FeedbackMemory, training: Questions, touched: Int64, gone: Bool, memory: Memory
) -> FeedbackMemory | None:
    """Return what is left of a memory once some documents are gone; None without any question.

    Args:
        touched: the questions that these documents answer.
    """
    stays = np.ones(training.count, dtype=bool)
    stays[touched] = False
    visible = training.some(np.asarray(touched, dtype=np.int64)).without(gone)
    again = feedback_of(visible.some(answerable(visible)), memory)
    parts = [(feedback.questions[stays], feedback.moves[stays])]
    if again is not None:
        parts.append((again.questions, again.moves))
    questions, moves = (np.concatenate(column) for column in zip(*parts, strict=True))
    return FeedbackMemory(questions, moves, (), ()) if len(questions) else None
