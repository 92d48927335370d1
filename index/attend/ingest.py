"""Writing documents: hash, split, encode, store; only what is new is encoded.

The encoder runs before the write lock is taken, so that a batch holds the lock for the
milliseconds of its transaction and not for the seconds of its encoding.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attend.api.base import MAX_DETAILS, MAX_TEXT
from attend.api.documents import Written
from attend.encoder import Encoder
from attend.errors import DimensionMismatch, InvalidRequest
from attend.settings import Settings
from attend.store import CollectionStore, Entry, Hashes, KeyRow, StaleEntries
from attend.types import Document, Float32, Json, id_fault

ATTEMPTS = 5
"""How often a batch is planned again when others change its documents meanwhile."""


MAX_ABSOLUTE = 1e15
"""Of a vector's numbers: squares of 1e15, summed over 65,536 dimensions, fit float32."""


class Prepared(NamedTuple):
    """A document that a collection takes, its vectors (d,) as stored, and its fingerprints."""

    document: Document
    vectors: Mapping[str, Float32]
    hashes: Hashes


class Ingest:
    """Turns documents into stored entries of one collection.

    `encoder` is called at the first text that must be encoded: a batch without one needs no model.
    """

    def __init__(
        self, store: CollectionStore, settings: Settings, encoder: Callable[[], Encoder]
    ) -> None:
        self._store = store
        self._settings = settings
        self._encoder = encoder

    def write(self, documents: Sequence[Document | Prepared]) -> Written:
        """Insert or replace documents, all or none.

        Raises:
            InvalidRequest: documents that this collection cannot take, or two with one id; its
                details name each of them.
        """
        batch = self._prepared(documents)
        for _ in range(ATTEMPTS - 1):
            try:
                return self._write_once(batch)
            except StaleEntries:
                continue
        return self._write_once(batch)

    def prepare(self, document: Document) -> Prepared:
        """Check a document, and compute what is written beside its texts.

        Raises:
            InvalidRequest: this collection cannot take the document.
        """
        self._check(document)
        vectors = {
            name: as_embedding(vector, self._settings) for name, vector in document.vectors.items()
        }
        hashes = Hashes(
            key_hash(document.fields, vectors, self._settings),
            value_hash(document.value, document.payload),
        )
        return Prepared(document, vectors, hashes)

    def _write_once(self, batch: Sequence[Prepared]) -> Written:
        stored = self._store.hashes([prepared.document.id for prepared in batch])
        plan = [
            (prepared, _verdict(stored.get(prepared.document.id), prepared.hashes))
            for prepared in batch
        ]
        fresh = [prepared for prepared, verdict in plan if verdict in ("added", "updated")]
        keys, encoded = self._keys(fresh)
        entries = [
            Entry(document, hashes, keys.get(document.id))
            for (document, _, hashes), verdict in plan
            if verdict != "unchanged"
        ]
        if entries:
            self._store.write(entries)
        return Written(**Counter(verdict for _, verdict in plan), encoded=encoded)

    def _keys(self, batch: Sequence[Prepared]) -> tuple[dict[str, list[KeyRow]], int]:
        """Return the keys of each document by its id, and the number of texts encoded for them."""
        keys = {
            document.id: [KeyRow(field, 0, 0, vector) for field, vector in vectors.items()]
            for document, vectors, _ in batch
        }
        named = [(d.id, field, text) for d, _, _ in batch for field, text in d.fields.items()]
        if not named:
            return keys, 0
        spans = self._spans([text for _, _, text in named])
        parts = [
            (id, field, start, stop, text[start:stop])
            for (id, field, text), passages in zip(named, spans, strict=True)
            for start, stop in passages
        ]
        embeddings = self._encoder().encode_documents([part[-1] for part in parts])  # (m, d)
        for (id, field, start, stop, _), embedding in zip(parts, embeddings, strict=True):
            keys[id].append(KeyRow(field, start, stop, embedding))
        return keys, len(parts)

    def _spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        if not self._settings.passages:
            return [[(0, len(text))] if text.strip() else [] for text in texts]
        by_text = self._encoder().passages(texts, self._settings.overlap)
        return [[(passage.start, passage.end) for passage in passages] for passages in by_text]

    def _check(self, document: Document) -> None:
        check_id(document.id)
        _check_texts(document)
        if document.fields and self._settings.encoder is None:
            raise InvalidRequest(
                f"The document {document.id!r} has text, but this collection was made for vectors "
                f"of {self._settings.dimension} dimensions. Send a vector, or make a collection "
                f"with an encoder.",
                field="text",
            )
        if not any(text.strip() for text in document.fields.values()) and not document.vectors:
            raise InvalidRequest(
                f"The document {document.id!r} has neither text nor a vector; send one.",
                field="text",
            )

    def _prepared(self, documents: Sequence[Document | Prepared]) -> list[Prepared]:
        """Return all documents prepared; raise InvalidRequest, with details, if one is wrong."""
        batch: list[Prepared] = []
        wrong: list[tuple[str, InvalidRequest]] = []
        ids: set[str] = set()
        for place, document in enumerate(documents):
            try:
                prepared = self.prepare(document) if isinstance(document, Document) else document
                if prepared.document.id in ids:
                    raise InvalidRequest(
                        f"The id {prepared.document.id!r} occurs more than once in this batch; "
                        f"send it once.",
                        field="id",
                    )
            except InvalidRequest as error:
                wrong.append((f"documents.{place}.{error.field}", error))
                continue
            ids.add(prepared.document.id)
            batch.append(prepared)
        if not wrong:
            return batch
        field, refusal = wrong[0]
        if len(wrong) > 1:
            refusal = InvalidRequest(
                f"{len(wrong)} of {len(documents)} documents cannot be stored, and none was. "
                f"{field}: {refusal}",
                field=field,
            )
        refusal.details = [
            {"field": field, "reason": str(reason)} for field, reason in wrong[:MAX_DETAILS]
        ]
        raise refusal


def check_id(id: str) -> None:
    """Raise InvalidRequest for what cannot be an id."""
    fault = id_fault(id) if isinstance(id, str) else "is not a text"
    if fault:
        raise InvalidRequest(f"The id {id!r:.80} {fault}.", field="id")


def _check_texts(document: Document) -> None:
    for field, text in document.fields.items():
        if len(text) > MAX_TEXT:
            raise InvalidRequest(
                f"The text {field!r} of the document {document.id!r} has {len(text)} characters, "
                f"but at most {MAX_TEXT} are taken; split it into several documents.",
                field=f"fields.{field}",
            )


def as_embedding(vector: Sequence[float], settings: Settings) -> Float32:
    """Return a caller's vector as an embedding (d,), at length one if all others are.

    Raises:
        DimensionMismatch: it has another width than the collection.
        InvalidRequest: it holds NaN or infinity, or has no direction where one is needed.
    """
    with np.errstate(over="ignore"):  # what overflows is refused below
        embedding = np.asarray(vector, dtype=np.float32)
    if embedding.shape != (settings.dimension,):
        raise DimensionMismatch(expected=settings.dimension, got=len(vector))
    if not np.isfinite(embedding).all() or np.abs(embedding).max(initial=0) > MAX_ABSOLUTE:
        raise InvalidRequest(
            f"The vector holds NaN, infinity or a number beyond {MAX_ABSOLUTE:g} (products must "
            f"fit 32 bits); send finite numbers, or scale them.",
            field="vector",
        )
    if not settings.unit_embeddings:
        return embedding
    length = float(np.linalg.norm(embedding.astype(np.float64)))
    if length == 0:
        raise InvalidRequest(
            "The vector is all zeros and cannot be scaled to length one, as this collection does; "
            "send one with a direction.",
            field="vector",
        )
    return (embedding.astype(np.float64) / length).astype(np.float32)


def _verdict(stored: Hashes | None, new: Hashes) -> str:
    if stored is None:
        return "added"
    if stored.keys != new.keys:
        return "updated"
    return "unchanged" if stored.value == new.value else "revised"


def key_hash(
    fields: Mapping[str, str], vectors: Mapping[str, Float32], settings: Settings
) -> bytes:
    """A fingerprint of what a document's keys are made of; its vectors (d,) as they are stored."""
    brought = {name: vector.tobytes().hex() for name, vector in vectors.items()}
    s = settings
    return _digest([fields, brought, s.encoder, s.passages, s.overlap, s.normalize])


def value_hash(value: Json, payload: Mapping[str, Json]) -> bytes:
    """A fingerprint of what a document returns.

    Raises:
        InvalidRequest: it holds NaN or infinity, which JSON cannot say.
    """
    return _digest([value, payload])


def _digest(contents: Sequence[Json | Mapping[str, Sequence[float]]]) -> bytes:
    """A fingerprint of JSON; objects with the same fields in another order are the same."""
    try:
        text = json.dumps(contents, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise InvalidRequest(
            f"A value or payload holds what JSON cannot say ({error}); send finite numbers.",
            field="value",
        ) from None
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
