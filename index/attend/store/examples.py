"""Examples: which document answers which question, and how well.

The schema does the rest: an example of positive weight is a key of its document, and goes
with its document; a question goes with its last example.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from sqlite_utils import Database

from attend.errors import DimensionMismatch, InvalidRequest
from attend.store.connections import (
    DatabasePart,
    columns_of,
    dimension,
    id_list,
    row_count,
    stacked,
)
from attend.store.documents import known_rows
from attend.store.records import ExampleSet, NewExample, Question, StoredExample
from attend.types import Float32

SAME = 0.02
"""Share of an embedding's length within which two embeddings of a text are the same: bfloat16
moves MiniLM's by 0.012."""


class StoredExamples(DatabasePart):
    """Reads and writes examples and their questions."""

    def add_examples(
        self,
        questions: Sequence[Question],
        examples: Sequence[NewExample],
        *,
        forget: bool = False,
    ) -> tuple[int, int]:
        with self._changing() as db:
            check_examples(questions, examples, dimension(db))
            rows = known_rows(db, [example.document for example in examples], "examples")
            used = {example.question for example in examples}
            if forget:
                db.execute("DELETE FROM examples")
            ids = {place: _question_id(db, questions[place]) for place in sorted(used)}
            before = row_count(db, "examples")
            created = datetime.now(UTC).isoformat(timespec="seconds")
            db.conn.executemany(
                "INSERT INTO examples (question, document, weight, position, source, created) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (question, document) DO UPDATE SET "
                "weight = excluded.weight, position = excluded.position, "
                "source = excluded.source, created = excluded.created",
                [
                    (
                        ids[e.question],
                        rows[e.document],
                        float(e.weight),
                        e.position,
                        e.source,
                        created,
                    )
                    for e in examples
                ],
            )
            added = row_count(db, "examples") - before
            return added, len(examples) - added

    def examples(self) -> ExampleSet:
        with self.connections.reading() as db:
            questions = db.execute("SELECT id, text, embedding FROM questions ORDER BY id")
            ids, texts, embeddings = columns_of(questions.fetchall(), 3)
            examples = db.execute(
                "SELECT question, document, weight, coalesce(position, 0), id "
                "FROM examples ORDER BY id"
            )
            columns = columns_of(examples.fetchall(), 5)
        question_ids = np.array(ids, dtype=np.int64)
        return ExampleSet(
            texts=list(texts),
            embeddings=stacked(embeddings),
            questions=np.searchsorted(question_ids, np.array(columns[0], dtype=np.int64)),
            rows=np.array(columns[1], dtype=np.int64),
            weights=np.array(columns[2], dtype=np.float64),
            positions=np.array(columns[3], dtype=np.int64),
            ids=np.array(columns[4], dtype=np.int64),
        )

    def example_count(self) -> int:
        return row_count(self._read(), "examples")

    def question_count(self) -> int:
        return row_count(self._read(), "questions")

    def latest_examples(self, limit: int, before: int | None = None) -> list[StoredExample]:
        rows = self._read().execute(
            "SELECT examples.id, questions.text, documents.id, weight, position, source, created "
            "FROM examples JOIN questions ON questions.id = examples.question "
            "JOIN documents ON documents.row = examples.document "
            "WHERE examples.id < ? ORDER BY examples.id DESC LIMIT ?",
            [2**63 - 1 if before is None else before, limit],
        )
        return [StoredExample(*row) for row in rows]

    def some_questions(self, count: int) -> Float32:
        """Return embeddings (q, d) of the latest questions, at most `count`."""
        rows = self._read().execute(
            "SELECT embedding FROM questions ORDER BY id DESC LIMIT ?", [count]
        )
        return stacked([row[0] for row in rows])

    def delete_examples(
        self, ids: Sequence[int] | None = None, documents: Sequence[str] | None = None
    ) -> int:
        with self._changing() as db:
            if ids is None and documents is None:
                return int(db.execute("DELETE FROM examples").rowcount)
            cursor = db.execute(
                "DELETE FROM examples WHERE id IN (SELECT value FROM json_each(?)) OR document IN "
                "(SELECT row FROM documents WHERE id IN (SELECT value FROM json_each(?)))",
                [json.dumps([int(id) for id in ids or ()]), id_list(documents or ())],
            )
            return int(cursor.rowcount)


def check_examples(
    questions: Sequence[Question], examples: Sequence[NewExample], width: int
) -> None:
    """Raise InvalidRequest for a wrong weight, position, place of a question, or embedding."""
    for place, question in enumerate(questions):
        _check_question(f"questions.{place}", question, width)
    for place, example in enumerate(examples):
        reason = _wrong_example(example, len(questions))
        if reason:
            raise InvalidRequest(f"Example {place} {reason}", field=f"examples.{place}")


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


def _wrong_example(example: NewExample, questions: int) -> str | None:
    if not 0 <= example.question < questions:
        return f"is of question {example.question}, but {questions} were given, counted from 0."
    if not math.isfinite(example.weight):
        return f"has the weight {example.weight}; send a finite number."
    if example.position is not None and not 1 <= example.position < 2**63:
        return f"has the position {example.position}; send 1 for the first place, or none."
    return None


def _question_id(db: Database, question: Question) -> int:
    """Return the id of a question, which is stored if it is new."""
    embedding = np.asarray(question.embedding, dtype=np.float32)
    hash = question_hash(question.text, embedding)
    row = db.execute("SELECT id, embedding FROM questions WHERE hash = ?", [hash]).fetchone()
    if row is None:
        row = db.execute(
            "INSERT INTO questions (hash, text, embedding) VALUES (?, ?, ?) RETURNING id",
            [hash, question.text, embedding.tobytes()],
        ).fetchone()
    elif moved(np.frombuffer(row[1], dtype=np.float32), embedding):
        db.execute("UPDATE questions SET embedding = ? WHERE id = ?", [embedding.tobytes(), row[0]])
    return int(row[0])


def question_hash(text: str | None, embedding: Float32) -> bytes:
    """Return a hash of a question: of its text, or of its embedding if it has no text."""
    content = b"embedding " + embedding.tobytes() if text is None else b"text " + text.encode()
    return hashlib.blake2b(content, digest_size=16).digest()


def moved(stored: Float32, new: Float32) -> bool:
    """Return whether a text has another embedding (d,), and not the same in other rounding."""
    difference = np.linalg.norm(stored.astype(np.float64) - new)
    return bool(difference > SAME * np.linalg.norm(stored.astype(np.float64)))
