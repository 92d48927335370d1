"""Examples of one collection: which document answers which question, and how well.

A row an example, with its question's embedding. A row is named by its question and document, so
that the same again replaces it; its `id` is the time of its first writing. An example of a document
that is gone, or has another text by now, is nobody's and passed over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from attend.core.errors import UnknownDocument
from attend.core.types import Float32
from attend.store import ExampleSet, NewExample, Question, StoredExample
from attend.store.sql import question_hash
from attend_milvus import schema
from attend_milvus.client import Gone, reading
from attend_milvus.rows import Row, among
from attend_milvus.tables import Head, Tables
from attend_milvus.writing import version_now

BLOCK = 1000
"""Examples read at once."""

FIELDS = (
    "id", "question", "text", "document", "name", "key_hash", "weight", "position", "source",
    "created",
)  # fmt: skip


class RemoteExamples:
    """The examples of one collection; their table is made with the first of them."""

    _tables: Tables

    def add_examples(
        self, questions: Sequence[Question], examples: Sequence[NewExample], *, forget: bool = False
    ) -> tuple[int, int]:
        """Store examples one by one; see `CollectionStore.add_examples`."""
        tables = self._tables
        heads = tables.heads(list({item.document for item in examples}), "strong")
        unknown = sorted({item.document for item in examples} - heads.keys())
        if unknown:
            raise UnknownDocument(
                f"The examples name {', '.join(map(repr, unknown[:10]))}, and no document has that "
                f"id; correct it or leave it out.",
                field="examples",
            )
        fields = schema.example_fields(tables.dimension)
        schema.make_table(tables.client, tables.examples.name, fields)
        before = {} if forget else {row["example"]: row["id"] for row in _all_rows(tables, ["id"])}
        if forget:
            self.delete_examples()
        rows: dict[int, Row] = {}
        for item in examples:
            row = _row(questions[item.question], item, heads[item.document])
            rows[row["example"]] = {**row, "id": before.get(row["example"], row["id"])}
        tables.examples.upsert(list(rows.values()))
        replaced = len(rows.keys() & before.keys()) + len(examples) - len(rows)
        return len(examples) - replaced, replaced

    def latest_examples(self, limit: int, before: int | None = None) -> list[StoredExample]:
        rows = [row for row in self._valid() if before is None or row["id"] < before]
        return [
            StoredExample(
                row["id"],
                json.loads(row["text"]),
                row["name"],
                row["weight"],
                row["position"] or None,
                row["source"],
                row["created"],
            )
            for row in rows[::-1][:limit]
        ]

    def examples(self) -> ExampleSet:
        return read_examples(self._tables)

    def example_count(self) -> int:
        return len(self._valid())

    def question_count(self) -> int:
        return len({row["question"] for row in self._valid()})

    def delete_examples(
        self,
        ids: Sequence[int] | None = None,
        documents: Sequence[str] | None = None,
        queries: Sequence[str] | None = None,
    ) -> int:
        with reading("strong"):
            rows = _all_rows(self._tables, ["id", "name", "text"])
        if ids is not None or documents is not None or queries is not None:
            named, about, texts = set(ids or ()), set(documents or ()), set(queries or ())
            rows = [
                row
                for row in rows
                if row["id"] in named or row["name"] in about or json.loads(row["text"]) in texts
            ]
        self._tables.examples.delete([row["example"] for row in rows])
        return len(rows)

    def _delete_examples_of(self, rows: Sequence[int]) -> None:
        """Delete the examples of documents that are gone, or have another text."""
        table = self._tables.examples
        try:
            for place in range(0, len(rows), BLOCK):
                about = among("document", rows[place : place + BLOCK])
                stored = table.query(about, ["example"], None, "strong")
                table.delete([row["example"] for row in stored])
        except Gone:
            return

    def _valid(self) -> list[dict[str, Any]]:
        return _valid_rows(self._tables, FIELDS)


def read_examples(tables: Tables) -> ExampleSet:
    """Read all examples, in the order of their ids."""
    rows = _valid_rows(tables, [*FIELDS, "vector"])
    first: dict[int, Row] = {}
    for row in rows:
        first.setdefault(row["question"], row)
    places = {question: place for place, question in enumerate(first)}
    return ExampleSet(
        texts=[json.loads(row["text"]) for row in first.values()],
        embeddings=_stacked([row["vector"] for row in first.values()]),
        questions=np.array([places[row["question"]] for row in rows], dtype=np.int64),
        rows=np.array([row["document"] for row in rows], dtype=np.int64),
        weights=np.array([row["weight"] for row in rows], dtype=np.float64),
        positions=np.array([row["position"] for row in rows], dtype=np.int64),
        ids=np.array([row["id"] for row in rows], dtype=np.int64),
    )


def _valid_rows(tables: Tables, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return examples of documents that have the text for which they were given, by their ids."""
    rows = _all_rows(tables, fields)
    heads = tables.heads(list({row["name"] for row in rows}))
    valid = [
        row
        for row in rows
        if row["name"] in heads and heads[row["name"]].key_hash == row["key_hash"]
    ]
    return sorted(valid, key=lambda row: int(row["id"]))


def _all_rows(tables: Tables, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return all rows; none where there is no table yet."""
    try:
        return [row for page in tables.examples.pages(fields, BLOCK) for row in page]
    except Gone:
        return []


def _row(question: Question, example: NewExample, head: Head) -> Row:
    embedding = np.asarray(question.embedding, dtype=np.float32)
    hash = question_hash(question.text, embedding).hex()
    return {
        "example": schema.hashed("example", hash, str(head.row)),
        "id": version_now(),
        "question": schema.hashed("question", hash),
        "text": json.dumps(question.text, ensure_ascii=False),
        "document": head.row,
        "name": head.id,
        "key_hash": head.key_hash,
        "weight": float(example.weight),
        "position": example.position or 0,
        "source": example.source,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "vector": embedding,
    }


def _stacked(vectors: Sequence[Sequence[float]]) -> Float32:
    if not vectors:
        return np.empty((0, 0), dtype=np.float32)
    return np.array(vectors, dtype=np.float32)
