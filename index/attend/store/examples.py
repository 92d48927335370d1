"""Statements over examples: which document answers which question, and how well.

The schema does the rest: an example of positive weight is a key of its document, and goes
with its document; a question goes with its last example.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from sqlite_utils import Database

from attend.errors import DimensionMismatch, InvalidRequest
from attend.store import statements
from attend.store.keys import stacked
from attend.types import Float32, Float64, Int64

SAME = 0.02
"""Of an embedding's length, by which the same text may move: bfloat16 moves MiniLM's by 0.012."""


class Question(NamedTuple):
    """What somebody asked, and its raw embedding."""

    text: str | None
    embedding: Float32  # (d,)


class NewExample(NamedTuple):
    """How well a document answers a question.

    Attributes:
        question: its place in the list of questions given beside.
        document: the caller's id.
        weight: above 0 relevant, by degree; 0 judged and not relevant; below 0 a negative label.
        position: the place at which the document was shown, from 1; None where not known.
    """

    question: int
    document: str
    weight: float
    position: int | None = None
    source: str = "given"


class Learned(NamedTuple):
    """All examples, read at one moment. Questions and examples are in the order of their ids."""

    texts: list[str | None]  # n questions
    embeddings: Float32  # (n, d)
    questions: Int64  # (e,) places in `texts`
    rows: Int64  # (e,) rows of documents
    weights: Float64  # (e,)
    positions: Int64  # (e,) 0 where none is known
    ids: Int64  # (e,)


class StoredExample(NamedTuple):
    """An example as it was taught; `query` is None where it was a vector."""

    id: int
    query: str | None
    document: str
    label: float
    position: int | None
    source: str
    created: str


def add(
    db: Database, questions: Sequence[Question], examples: Sequence[NewExample], forget: bool
) -> tuple[int, int]:
    """Store examples. Returns how many were new, and how many replaced an earlier one.

    Args:
        forget: delete those stored before.

    Raises:
        InvalidRequest: a weight, position or place that is none; DimensionMismatch: an
            embedding of another width. UnknownDocument: an id that no document has.
    """
    check(questions, examples, statements.dimension(db))
    rows = statements.known_rows(db, [each.document for each in examples], "examples")
    asked = {each.question for each in examples}
    if forget:
        delete(db, None, None)
    ids = _question_ids(db, {at: question for at, question in enumerate(questions) if at in asked})
    before = count(db)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    db.conn.executemany(
        "INSERT INTO examples (question, document, weight, position, source, created) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (question, document) DO UPDATE SET "
        "weight = excluded.weight, position = excluded.position, source = excluded.source, "
        "created = excluded.created",
        [
            (ids[e.question], rows[e.document], float(e.weight), e.position, e.source, created)
            for e in examples
        ],
    )
    added = count(db) - before
    return added, len(examples) - added


def delete(db: Database, ids: Sequence[int] | None, documents: Sequence[str] | None) -> int:
    """Delete examples with their keys: those named either way, or all. Returns how many."""
    if ids is None and documents is None:
        return int(db.execute("DELETE FROM examples").rowcount)
    return int(
        db.execute(
            "DELETE FROM examples WHERE id IN (SELECT value FROM json_each(?)) OR document IN "
            "(SELECT row FROM documents WHERE id IN (SELECT value FROM json_each(?)))",
            [json.dumps([int(id) for id in ids or ()]), statements.id_list(documents or ())],
        ).rowcount
    )


def count(db: Database) -> int:
    return int(db.execute("SELECT count(*) FROM examples").fetchone()[0])


def question_count(db: Database) -> int:
    return int(db.execute("SELECT count(*) FROM questions").fetchone()[0])


def latest(db: Database, limit: int, before: int | None) -> list[StoredExample]:
    """The newest examples, or those that are older than one by its id."""
    found = db.execute(
        "SELECT examples.id, questions.text, documents.id, weight, position, source, created "
        "FROM examples JOIN questions ON questions.id = examples.question "
        "JOIN documents ON documents.row = examples.document "
        "WHERE examples.id < ? ORDER BY examples.id DESC LIMIT ?",
        [2**63 - 1 if before is None else before, limit],
    )
    return [StoredExample(*row) for row in found]


def read(db: Database) -> Learned:
    """Everything to learn from; read it within one transaction."""
    questions = db.execute("SELECT id, text, embedding FROM questions ORDER BY id").fetchall()
    found = db.execute(
        "SELECT question, document, weight, coalesce(position, 0), id FROM examples ORDER BY id"
    ).fetchall()
    columns = list(zip(*found, strict=True)) or [()] * 5
    ids = np.array([question[0] for question in questions], dtype=np.int64)
    return Learned(
        texts=[question[1] for question in questions],
        embeddings=stacked([question[2] for question in questions]),
        questions=np.searchsorted(ids, np.array(columns[0], dtype=np.int64)),
        rows=np.array(columns[1], dtype=np.int64),
        weights=np.array(columns[2], dtype=np.float64),
        positions=np.array(columns[3], dtype=np.int64),
        ids=np.array(columns[4], dtype=np.int64),
    )


def sample(db: Database, count: int) -> Float32:
    """Embeddings (q, d) of so many questions at most, the latest."""
    rows = db.execute("SELECT embedding FROM questions ORDER BY id DESC LIMIT ?", [count])
    return stacked([row[0] for row in rows])


def check(questions: Sequence[Question], examples: Sequence[NewExample], width: int) -> None:
    """Raises InvalidRequest for a weight, position or place that is none, or an embedding."""
    for at, question in enumerate(questions):
        _check_question(f"questions.{at}", question, width)
    for at, example in enumerate(examples):
        reason = _wrong_in(example, len(questions))
        if reason:
            raise InvalidRequest(f"Example {at} {reason}", field=f"examples.{at}")


def _check_question(field: str, question: Question, width: int) -> None:
    embedding = np.asarray(question.embedding)
    if embedding.shape != (width,):
        raise DimensionMismatch(expected=width, got=embedding.size, field=field)
    if not np.isfinite(embedding).all():
        raise InvalidRequest(
            f"The embedding of the question {question.text!r:.80} holds NaN or infinity; send "
            f"finite numbers.",
            field=field,
        )
    try:
        (question.text or "").encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"The question {question.text!r:.80} holds half of a surrogate pair; send a text "
            f"without.",
            field=field,
        ) from error


def _wrong_in(example: NewExample, questions: int) -> str | None:
    if not 0 <= example.question < questions:
        return f"is of question {example.question}, but {questions} were given, counted from 0."
    if not math.isfinite(example.weight):
        return f"has the weight {example.weight}; send a finite number."
    if example.position is not None and not 1 <= example.position < 2**63:
        return f"has the position {example.position}; send 1 for the first place, or none."
    return None


def _question_ids(db: Database, questions: Mapping[int, Question]) -> dict[int, int]:
    """The ids of questions by their places; those that are new are stored."""
    return {at: _question_id(db, question) for at, question in questions.items()}


def _question_id(db: Database, question: Question) -> int:
    embedding = np.asarray(question.embedding, dtype=np.float32)
    hash = same(question.text, embedding)
    row = db.execute("SELECT id, embedding FROM questions WHERE hash = ?", [hash]).fetchone()
    if row is None:
        row = db.execute(
            "INSERT INTO questions (hash, text, embedding) VALUES (?, ?, ?) RETURNING id",
            [hash, question.text, embedding.tobytes()],
        ).fetchone()
    elif moved(np.frombuffer(row[1], dtype=np.float32), embedding):
        db.execute("UPDATE questions SET embedding = ? WHERE id = ?", [embedding.tobytes(), row[0]])
    return int(row[0])


def same(text: str | None, embedding: Float32) -> bytes:
    """Of equal questions the same bytes. A question is its text, or without one its embedding."""
    content = b"embedding " + embedding.tobytes() if text is None else b"text " + text.encode()
    return hashlib.blake2b(content, digest_size=16).digest()


def moved(stored: Float32, given: Float32) -> bool:
    """Whether a text's embedding (d,) is another one, and not the same in other rounding."""
    difference = np.linalg.norm(stored.astype(np.float64) - given)
    return bool(difference > SAME * np.linalg.norm(stored.astype(np.float64)))
