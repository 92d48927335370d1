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

from attend.engines.milvus import schema
from attend.engines.milvus.client import Gone, Row
from attend.engines.milvus.consistency import reading
from attend.engines.milvus.tables import Head, Tables
from attend.engines.milvus.writing import version_now
from attend.errors import UnknownDocument
from attend.store import ExampleSet, NewExample, Question, StoredExample
from attend.store.examples import check_examples, question_hash
from attend.types import Float32

BLOCK = 1000
"""Examples read at once."""

FIELDS = (
    "example", "id", "question", "text", "document", "name", "key_hash", "weight", "position",
    "source", "created",
)  # fmt: skip


class RemoteExamples:
    """The examples of one collection; their table is made with the first of them."""

    def __init__(self, tables: Tables, width: int) -> None:
        self._tables = tables
        self._width = width

    @property
    def _table(self) -> str:
        return f"{self._tables.client.address.library}_{self._tables.uuid}_examples"

    def add_examples(
        self, questions: Sequence[Question], examples: Sequence[NewExample], *, forget: bool = False
    ) -> tuple[int, int]:
        """As `attend.store.Store.add_examples`, one by one. Returns (added, replaced).

        Raises:
            UnknownDocument: naming the ids that no document has; nothing was stored.
            InvalidRequest: a wrong weight, position or embedding.
        """
        check_examples(questions, examples, self._width)
        heads = self._tables.heads(list({item.document for item in examples}), "strong")
        unknown = sorted({item.document for item in examples} - heads.keys())
        if unknown:
            raise UnknownDocument(
                f"The examples name {', '.join(map(repr, unknown[:10]))}, and no document has that "
                f"id; correct it or leave it out.",
                field="examples",
            )
        schema.make_examples(self._tables.client, self._table, self._width)
        before = {} if forget else {row["example"]: row["id"] for row in self._rows(["id"])}
        if forget:
            self.delete_examples()
        rows = {
            row["example"]: row
            for item in examples
            for row in [_row(questions[item.question], item, heads[item.document])]
        }
        rows = {key: {**row, "id": before.get(key, row["id"])} for key, row in rows.items()}
        self._tables.client.upsert(self._table, list(rows.values()))
        replaced = len(rows.keys() & before.keys()) + len(examples) - len(rows)
        return len(examples) - replaced, replaced

    def latest_examples(self, limit: int, before: int | None = None) -> list[StoredExample]:
        """The newest first, or those older than the one of that id."""
        results = [row for row in self._true() if before is None or row["id"] < before]
        results.sort(key=lambda row: -int(row["id"]))
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
            for row in results[:limit]
        ]

    def examples(self) -> ExampleSet:
        """All of them, to learn from."""
        rows = sorted(self._true("vector"), key=lambda row: int(row["id"]))
        places: dict[int, int] = {}
        for row in rows:
            places.setdefault(row["question"], len(places))
        first = {place: row for row in reversed(rows) for place in [places[row["question"]]]}
        requested = [first[place] for place in range(len(places))]
        return ExampleSet(
            texts=[json.loads(row["text"]) for row in requested],
            embeddings=_stacked([row["vector"] for row in requested]),
            questions=np.array([places[row["question"]] for row in rows], dtype=np.int64),
            rows=np.array([row["document"] for row in rows], dtype=np.int64),
            weights=np.array([row["weight"] for row in rows], dtype=np.float64),
            positions=np.array([row["position"] for row in rows], dtype=np.int64),
            ids=np.array([row["id"] for row in rows], dtype=np.int64),
        )

    def example_count(self) -> int:
        return len(self._true())

    def question_count(self) -> int:
        return len({row["question"] for row in self._true()})

    def delete_examples(
        self, ids: Sequence[int] | None = None, documents: Sequence[str] | None = None
    ) -> int:
        """Those of some ids, and those of some documents; all if neither is given."""
        with reading("strong"):
            rows = self._rows(["id", "name"])
        if ids is not None or documents is not None:
            named, about = set(ids or ()), set(documents or ())
            rows = [row for row in rows if row["id"] in named or row["name"] in about]
        self._tables.client.delete(self._table, [row["example"] for row in rows])
        return len(rows)

    def _forget_examples(self, rows: Sequence[int]) -> None:
        """Those of documents that are gone, or have another text."""
        client = self._tables.client
        try:
            for place in range(0, len(rows), BLOCK):
                about = f"document in [{', '.join(map(str, rows[place : place + BLOCK]))}]"
                results = client.query(self._table, about, ["example"], None, "strong")
                client.delete(self._table, [row["example"] for row in results])
        except Gone:
            return

    def _true(self, *more: str) -> list[dict[str, Any]]:
        """Examples of documents that are there, with the text that they were given for."""
        rows = self._rows([*FIELDS, *more])
        heads = self._tables.heads(list({row["name"] for row in rows}))
        return [
            row
            for row in rows
            if row["name"] in heads and heads[row["name"]].key_hash == row["key_hash"]
        ]

    def _rows(self, fields: Sequence[str]) -> list[dict[str, Any]]:
        """All rows, in blocks; none where there is no table yet."""
        results: list[dict[str, Any]] = []
        target, after = ["example", *fields], 0
        try:
            while rows := self._tables.client.query(
                self._table, f"example > {after}", target, BLOCK
            ):
                results += rows
                after = max(row["example"] for row in rows)
        except Gone:
            return []
        return results


def _row(question: Question, example: NewExample, head: Head) -> Row:
    embedding = np.asarray(question.embedding, dtype=np.float32)
    requested = question_hash(question.text, embedding)
    return {
        "example": schema.hashed("example", requested.hex(), str(head.row)),
        "id": version_now(),
        "question": schema.hashed("question", requested.hex()),
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
