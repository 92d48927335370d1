"""One collection on a server, as `attend.store.Store` has one in a database.

Where W_K folds into the query, keys stay the embeddings as they are and a promotion moves none.
Otherwise all keys are written again into a key table of the version: what is written meanwhile
enters both; the version answers once the table is complete.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Unpack

import numpy as np

from attend.collection.versions import Version
from attend.core.arrays import KeyTable
from attend.core.errors import Conflict, Unsupported
from attend.core.types import Document, Float32, Int64, Json
from attend.store import (
    NO_OFFSETS,
    USED,
    CollectionStore,
    Entry,
    ExampleSet,
    Hashes,
    NewExample,
    Predicate,
    Question,
    Role,
    StaleEntries,
    State,
    StoredDocument,
    StoredExample,
    StoredKey,
    StoredProjection,
    StoredVersion,
    VersionDetails,
    check_active,
    check_known,
)
from attend.store.sql import question_hash
from attend_milvus.client import BLOCK, Gone, Row, among, read_block, reading
from attend_milvus.filters import ELEMENTS, Expression, expression, has_element
from attend_milvus.graphs import Graphs, fill
from attend_milvus.server import CAPABILITIES
from attend_milvus.tables import (
    Head,
    Known,
    Read,
    Tables,
    example_fields,
    hashed,
    make_table,
    row_of,
)
from attend_milvus.writing import Writer, version_now

REVISIONS = 5
"""Attempts of an update when another one comes between."""


EXAMPLE_BLOCK = 1000
"""Examples read at once."""

EXAMPLE_FIELDS = (
    "id", "question", "text", "document", "name", "key_hash", "weight", "position", "source",
    "created",
)  # fmt: skip

NOTHING_PLANNED: tuple[frozenset[str], Mapping[str, Head]] = frozenset(), {}


class RemoteStore(CollectionStore):
    """Documents, keys and versions; any thread may use it.

    Every document is written whole or not at all, a batch document by document.
    """

    def __init__(self, tables: Tables, scorer: str) -> None:
        self._tables, self._scorer = tables, scorer
        self.graphs = Graphs(tables, lambda: self.examples().embeddings)
        self._versions: dict[int, Version] = {}  # a version never changes
        self._writer = Writer(tables, self.version_of)
        self._planned = threading.local()
        self._wrote = 0

    def unsupported(self, capability: str) -> Unsupported:
        return CAPABILITIES.lacking(capability)

    def close(self) -> None:
        """Stop the threads; the connection is the library's."""
        self._writer.expired.close()
        self.graphs.close()

    @property
    def retires(self) -> bool:
        """Return whether expired keys wait for their deletion."""
        return self._writer.expired.waits

    def settings(self) -> dict[str, Any]:
        record = self._tables.known()
        return {
            **record.settings,
            "uuid": record.uuid,
            "projection": record.version,
            "published": [],
        }

    def put_settings(self, changes: Mapping[str, Json], *, soon: bool = True) -> None:
        self._tables.change(lambda record: replace(record, settings={**record.settings, **changes}))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let the reads within the block be strong, though not of one moment."""
        with reading("strong"):
            yield

    def state(self) -> State:
        return State(self.generation, 0, 0, self._tables.known().version, 0, 0)

    @property
    def generation(self) -> int:
        """Return the time in ms of the last write of this process, or of the last ten seconds.

        Without transactions there is nothing to count.
        """
        return max(self._wrote, int(time.time()) // 10 * 10_000)

    def _written(self) -> None:
        self._wrote = time.time_ns() // 1_000_000

    # -- reading ----------------------------------------------------------------------------

    def counts(self) -> tuple[int, int]:
        # Keys of versions before count until they go.
        return self._tables.documents.count(), self._tables.keys().count()

    def documents(self, rows: Int64, *, texts: bool = True) -> dict[int, StoredDocument]:
        block = read_block()
        if block is None or block.documents is None:
            read: Mapping[int, Read] = self._tables.read(rows.tolist(), texts=texts)
        else:
            read = block.documents
        return {row: read[row].document for row in rows.tolist() if row in read}

    def find(self, ids: Sequence[str]) -> dict[str, StoredDocument]:
        reads = self._tables.read(row_of(id) for id in dict.fromkeys(ids))
        documents = {read.document.id: read.document for read in reads.values()}
        return {id: documents[id] for id in ids if id in documents}

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        return {id: head.row for id, head in self._tables.heads(ids).items()}

    def scroll(
        self, after: int, limit: int, predicate: Predicate | None = None
    ) -> list[StoredDocument]:
        passing = "" if predicate is None else self.passing(predicate)
        return [item.document for item in self._tables.scroll(after, limit, passing)]

    def sample(self, size: int) -> list[StoredDocument]:
        """Return the first rows, which are hashes and so from all over. Only ever bounded."""
        with reading("bounded"):
            return self.scroll(0, size)

    def all_ids(self) -> Iterator[str]:
        return (row["id"] for page in self._tables.documents.pages(["id"], BLOCK) for row in page)

    def count(self, predicate: Predicate) -> int:
        return self._tables.documents.count(self.passing(predicate))

    def passing(self, predicate: Predicate) -> str:
        """Return a filter as an expression.

        Raises:
            Unsupported: it asks for words, or for a range of a list that is too long.
        """
        condition = expression(predicate)
        if not condition.ranged or not self._has_element(condition, 1):
            return condition.text
        if self._has_element(condition, ELEMENTS):
            raise CAPABILITIES.unsupported(
                f"Ranges of {' or '.join(condition.ranged)}, where a document has a list of more "
                f"than {ELEMENTS} elements,",
                "compare by 'in', or store the least and the largest in fields of their own",
                field="filter",
            )
        return expression(predicate, ELEMENTS).text

    def _has_element(self, condition: Expression, place: int) -> bool:
        lists = " or ".join(has_element(name, place) for name in condition.ranged)
        return bool(self._tables.documents.query(lists, ["row"], 1))

    def hashes(self, ids: Sequence[str]) -> dict[str, Hashes]:
        # As the last acknowledged writes left them.
        heads = self._tables.heads(ids, "strong")
        self._planned.heads = frozenset(ids), heads
        return {
            id: Hashes(bytes.fromhex(head.key_hash), bytes.fromhex(head.value_hash))
            for id, head in heads.items()
        }

    def own_keys(self, rows: Int64) -> KeyTable:
        reads = self._tables.read(rows.tolist(), texts=False)
        return self._batch([reads[row] for row in sorted(reads)])

    def embeddings(self, ids: Sequence[int]) -> list[Float32]:
        vectors = self._tables.vectors(ids)
        return [vectors[id] for id in ids if id in vectors]

    def keys_of(self, ids: Int64) -> dict[int, StoredKey]:
        places = self._tables.places(ids.tolist())
        return {id: StoredKey(id, *place) for id, place in places.items()}

    @contextmanager
    def all_keys(self, *, examples: bool = False) -> Iterator[tuple[State, Iterator[KeyTable]]]:
        yield self.state(), map(self._batch, self._tables.pages())

    def _batch(self, reads: Sequence[Read]) -> KeyTable:
        keys = {key: read.document.row for read in reads for key in read.key_ids()}
        vectors = self._tables.vectors(list(keys))
        ids = [key for key in keys if key in vectors]
        return KeyTable.of_keys(
            np.array([vectors[key] for key in ids], dtype=np.float32).reshape(len(ids), -1)
            if ids
            else np.empty((0, self._tables.dimension), dtype=np.float32),
            np.array(ids, dtype=np.int64),
            np.array([keys[key] for key in ids], dtype=np.int64),
        )

    # -- writing ----------------------------------------------------------------------------

    def write(self, entries: Sequence[Entry], decided: Mapping[str, Json] | None = None) -> None:
        """Insert or replace documents, one by one; see `Writer.write`."""
        if decided:
            self._decide(decided)
        heads = self._heads([entry.document.id for entry in entries])
        self._writer.write(entries, heads)
        # What was taught of a text is not true of another.
        other = [entry.document.id for entry in entries if entry.keys is not None]
        self._delete_examples_of([heads[id].row for id in other if id in heads])
        self._written()

    def _decide(self, settings: Mapping[str, Json]) -> None:
        """Store settings that were open; raise StaleEntries if another writer decided otherwise."""

        def decided(record: Known) -> Known:
            if any(record.settings[name] not in (None, item) for name, item in settings.items()):
                raise StaleEntries("Another writer has decided the settings meanwhile.")
            return replace(record, settings={**record.settings, **settings})

        self._tables.change(decided)

    def _heads(self, ids: Sequence[str]) -> Mapping[str, Head]:
        """Return the heads of documents that this thread has read when it planned their writing."""
        requested, heads = getattr(self._planned, "heads", NOTHING_PLANNED)
        self._planned.heads = NOTHING_PLANNED
        return heads if requested >= set(ids) else self._tables.heads(ids, "strong")

    def revise(
        self,
        id: str,
        change: Callable[[StoredDocument], StoredDocument],
        hash: Callable[[Json, Mapping[str, Json]], bytes],
    ) -> StoredDocument | None:
        """Replace value and payload; of two revisions at the same moment one may be lost."""
        for _ in range(REVISIONS):
            head = self._tables.heads([id], "strong").get(id)
            if head is None:
                return None
            with reading("strong"):
                read = self._tables.read([head.row]).get(head.row)
            if read is None or read.version != head.version:
                continue  # another came between: this text is not of those keys
            stored = read.document
            revised = change(stored)
            document = Document(id, revised.fields, {}, revised.value, revised.payload)
            hashes = Hashes(bytes.fromhex(head.key_hash), hash(revised.value, revised.payload))
            try:
                self._writer.write([Entry(document, hashes, None)], {id: head})
            except StaleEntries:
                continue
            self._written()
            return revised
        raise StaleEntries(f"{id!r} changes faster than it can be revised; try again.")

    def delete(self, ids: Sequence[str]) -> int:
        heads = list(self._tables.heads(list(dict.fromkeys(ids)), "strong").values())
        self._writer.delete(heads)
        self._delete_examples_of([head.row for head in heads])
        self._written()
        return len(heads)

    def delete_matching(self, predicate: Predicate) -> int:
        """Delete what a filter lets pass, in parts."""
        passing, deleted = self.passing(predicate), 0
        while rows := self._tables.documents.query(passing, ["id"], BLOCK, "strong"):
            deleted += self.delete([row["id"] for row in rows])
        return deleted

    # -- examples ------------------------------------------------------------------------------

    def add_examples(
        self,
        questions: Sequence[Question],
        examples: Sequence[NewExample],
        *,
        forget: bool = False,
        only: str | None = None,
    ) -> tuple[int, int]:
        """Store examples one by one; see `CollectionStore.add_examples`. `only` is for labels from
        a log of searches, which this engine does not keep."""
        tables = self._tables
        heads = tables.heads(list({item.document for item in examples}), "strong")
        check_known(heads, [item.document for item in examples], "examples")
        fields = example_fields(tables.dimension)
        make_table(tables.client, tables.examples.name, fields)
        before = {} if forget else {row["example"]: row["id"] for row in self._all_rows(["id"])}
        if forget:
            self.delete_examples()
        rows: dict[int, Row] = {}
        for item in examples:
            row = _row(questions[item.question], item, heads[item.document])
            rows[row["example"]] = {**row, "id": before.get(row["example"], row["id"])}
        tables.examples.upsert(list(rows.values()))
        replaced = len(rows.keys() & before.keys()) + len(examples) - len(rows)
        return len(examples) - replaced, replaced

    def latest_examples(
        self, limit: int, before: int | None = None, document: str | None = None
    ) -> list[StoredExample]:
        rows = [
            row
            for row in self._valid_rows(EXAMPLE_FIELDS)
            if (before is None or row["id"] < before) and document in (None, row["name"])
        ]
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
        rows = self._valid_rows([*EXAMPLE_FIELDS, "vector"])
        first: dict[int, Row] = {}
        for row in rows:
            first.setdefault(row["question"], row)
        places = {question: place for place, question in enumerate(first)}
        vectors = [row["vector"] for row in first.values()] or np.empty((0, 0))
        return ExampleSet(
            texts=[json.loads(row["text"]) for row in first.values()],
            embeddings=np.array(vectors, dtype=np.float32),
            questions=np.array([places[row["question"]] for row in rows], dtype=np.int64),
            rows=np.array([row["document"] for row in rows], dtype=np.int64),
            weights=np.array([row["weight"] for row in rows], dtype=np.float64),
            positions=np.array([row["position"] for row in rows], dtype=np.int64),
            used=np.array([row["source"] == USED for row in rows], dtype=bool),
            ids=np.array([row["id"] for row in rows], dtype=np.int64),
        )

    def example_count(self) -> int:
        return len(self._valid_rows(EXAMPLE_FIELDS))

    def question_count(self) -> int:
        return len({row["question"] for row in self._valid_rows(EXAMPLE_FIELDS)})

    def delete_examples(
        self,
        ids: Sequence[int] | None = None,
        documents: Sequence[str] | None = None,
        queries: Sequence[str] | None = None,
    ) -> int:
        with reading("strong"):
            rows = self._all_rows(["id", "name", "text"])
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
            for place in range(0, len(rows), EXAMPLE_BLOCK):
                about = among("document", rows[place : place + EXAMPLE_BLOCK])
                stored = table.query(about, ["example"], None, "strong")
                table.delete([row["example"] for row in stored])
        except Gone:
            return

    def _valid_rows(self, fields: Sequence[str]) -> list[dict[str, Any]]:
        """Return examples of documents that have the text for which they were given, by their ids.

        The others are nobody's, and passed over.
        """
        rows = self._all_rows(fields)
        heads = self._tables.heads(list({row["name"] for row in rows}))
        valid = [
            row
            for row in rows
            if row["name"] in heads and heads[row["name"]].key_hash == row["key_hash"]
        ]
        return sorted(valid, key=lambda row: int(row["id"]))

    def _all_rows(self, fields: Sequence[str]) -> list[dict[str, Any]]:
        """Return all rows; none where there is no table yet: the first example makes it."""
        try:
            pages = self._tables.examples.pages(fields, EXAMPLE_BLOCK)
            return [row for page in pages for row in page]
        except Gone:
            return []

    # -- versions ------------------------------------------------------------------------------

    def version_of(self, number: int) -> Version:
        """Return a version. Raise UnknownProjection for an unknown number."""
        if number not in self._versions:
            self._versions[number] = Version.of(number, self.version(number), self._scorer)
        return self._versions[number]

    def version(self, version: int) -> StoredVersion:
        details, weights = self._tables.registry.version(self._tables.uuid, version)
        return StoredVersion(
            weights, details["tuning"], NO_OFFSETS, details["fingerprint"], "search", {}, 0
        )

    def projections(self) -> list[StoredProjection]:
        record = self._tables.known(fresh=True)
        return [
            StoredProjection(
                version=number,
                parent=_before(record.active, number),
                active=number == record.version,
                **{name: value for name, value in details.items() if name != "parts"},
            )
            for number, details in self._tables.registry.versions(self._tables.uuid).items()
        ]

    def add_projection(
        self,
        kind: str,
        weights: bytes,
        fingerprint: str,
        note: Mapping[str, Json],
        **details: Unpack[VersionDetails],
    ) -> int:
        offsets, tuning = details.get("offsets"), details.get("tuning") or {}
        moved = offsets is not None and len(offsets.keys) > 0
        role = details.get("role", "search")
        if moved or details.get("terms") or role != "search" or tuning.get("examples"):
            raise CAPABILITIES.unsupported(
                "Versions that move single keys, or that answer anything but searches,",
                "store matrices and their tuning alone, or use a data folder",
            )
        registry, uuid, replaced = self._tables.registry, self._tables.uuid, details.get("replaces")
        with registry.changing(self._tables.name), reading("strong"):
            number = max(registry.versions(uuid), default=0) + 1
            body = version_body(kind, fingerprint, note, tuning, details.get("report") or {})
            registry.add_version(uuid, number, body, weights)
            if replaced is not None and replaced not in self._tables.known(fresh=True).active:
                registry.drop_version(uuid, replaced)
        self.put_settings(details.get("settings", {}))
        if details.get("activate"):
            self.activate_projection(number)
        return number

    def activate_projection(
        self, version: int, expected: int | None = None, **details: Unpack[VersionDetails]
    ) -> None:
        def activated(record: Known) -> Known:
            self.version(version)  # another process may have dropped it
            check_active(record.version, expected, version)
            is_active = version == record.version
            return record if is_active else replace(record, active=(*record.active, version))

        self.prepare(version)
        self.graphs.attempt(self.version_of(version))
        self._tables.change(activated)
        self.put_settings(details.get("settings", {}))
        if report := details.get(
            "report"
        ):  # afterwards: no report says of a version that it was not activated
            self._tables.registry.put_report(self._tables.uuid, version, report)

    def rollback(self, role: Role = "search") -> int:
        before = _rolled_back(self._tables.known(fresh=True)).version
        self.prepare(before)
        self._tables.change(_rolled_back)
        return before

    def prepare(self, number: int) -> None:
        """Write the keys of a version, where they are others than those there are."""
        version = self.version_of(number)
        fill(self._tables, version.layout, version)


def _row(question: Question, example: NewExample, head: Head) -> Row:
    """Return the row of an example, named by its question and document, so that the same again
    replaces it; its `id` is the time of its first writing."""
    embedding = np.asarray(question.embedding, dtype=np.float32)
    hash = question_hash(question.text, embedding).hex()
    return {
        "example": hashed("example", hash, str(head.row)),
        "id": version_now(),
        "question": hashed("question", hash),
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


def version_body(
    kind: str,
    fingerprint: str,
    note: Mapping[str, Json],
    tuning: Mapping[str, Json],
    report: Mapping[str, Json],
) -> dict[str, Any]:
    """Return the record of a new version."""
    return {
        "kind": kind,
        "fingerprint": fingerprint,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "note": dict(note),
        "tuning": dict(tuning),
        "report": dict(report),
    }


def _rolled_back(record: Known) -> Known:
    if len(record.active) < 2:
        raise Conflict(
            f"Projection {record.version} is active, and no version was active before it; "
            f"activate a version by its number instead.",
            field="projection",
        )
    return replace(record, active=record.active[:-1])


def _before(active: Sequence[int], number: int) -> int | None:
    """Return the version that answered before one was last activated."""
    return next((one for one, later in list(pairwise(active))[::-1] if later == number), None)
