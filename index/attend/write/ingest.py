"""Writing documents: hash, split, encode, store; only what is new is encoded.

The encoder runs before the write lock is taken, so that a batch holds the lock for the
milliseconds of its transaction and not for the seconds of its encoding.

A document's own vectors are its keys. Those of a field take the place of the keys that its text
would have, those of the document as a whole of all; texts that are not encoded still serve words,
highlights and titles.

The first write of vectors decides the setting `normalize` where it is left open: vectors that have
length one, but for rounding, are those of a model that gives them so, and their products are
cosines. They are then scaled to exactly that, as all later ones are.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attend.api.base import MAX_DETAILS, MAX_TEXT, parse
from attend.api.documents import DocumentRequest, Documents, Written, located
from attend.core.errors import InvalidRequest
from attend.core.settings import Settings
from attend.core.types import WHOLE, Document, Float32, Json, OnStage, id_fault
from attend.encoder import Encoder
from attend.store import CollectionStore, Entry, Hashes, KeyRow, StaleEntries
from attend.write.own_vectors import own_vectors

ATTEMPTS = 5
"""How often a batch is planned again when others change its documents meanwhile."""

FOLLOWED = 1024
"""Texts encoded between two reports of progress; more fill the encoder's batches no better."""


ROUNDING = 1e-3
"""The most by which a length of one may be off: twice what rounding to float16 does at worst."""


class Prepared(NamedTuple):
    """A document that a collection takes, its vectors (n, d) as stored, and its fingerprints.

    `hashes` is None while it is not decided whether vectors are scaled to length one.
    """

    document: Document
    vectors: Mapping[str, Float32]
    hashes: Hashes | None


class Ingest:
    """Turns documents into stored entries of one collection.

    Args:
        encoder: called at the first text that must be encoded: a batch without one needs no model.
        adopt: called with the settings that a write has decided, or found decided.
    """

    def __init__(
        self,
        store: CollectionStore,
        settings: Settings,
        encoder: Callable[[], Encoder],
        adopt: Callable[[Settings], None] = lambda settings: None,
    ) -> None:
        self.settings = settings
        self._store = store
        self._encoder = encoder
        self._adopt = adopt

    def write(
        self, documents: Sequence[Document | Prepared], progress: OnStage | None = None
    ) -> Written:
        """Insert or replace documents, all or none.

        Args:
            progress: receives the share of the texts that are encoded.

        Raises:
            InvalidRequest: documents that this collection cannot take, or two with one id; its
                details name each of them.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self._write_once(documents, progress)
            except StaleEntries:
                if self.settings.normalize is None:  # others have decided it meanwhile
                    self._adopt(Settings.of(self._store.settings()))
        return self._write_once(documents, progress)

    def prepare(self, document: Document) -> Prepared:
        """Check a document, and compute what is written beside its texts.

        Raises:
            InvalidRequest: this collection cannot take the document.
        """
        return _prepared(document, self.settings)

    def _write_once(
        self, documents: Sequence[Document | Prepared], progress: OnStage | None
    ) -> Written:
        settings = decided = self.settings
        batch = self._prepared(documents, settings)
        if settings.normalize is None and any(prepared.vectors for prepared in batch):
            decided = replace(settings, normalize=_have_length_one(batch))
            batch = [_settled(prepared, decided) for prepared in batch]
        stored = self._store.hashes([prepared.document.id for prepared in batch])
        plan = [
            (prepared, _verdict(stored.get(prepared.document.id), prepared.hashes))
            for prepared in batch
        ]
        fresh = [prepared for prepared, verdict in plan if verdict in ("added", "updated")]
        keys, encoded = self._keys(fresh, progress)
        entries = [
            Entry(document, hashes, keys.get(document.id))
            for (document, _, hashes), verdict in plan
            if verdict != "unchanged" and hashes is not None  # None never comes so far
        ]
        if entries and decided is settings:
            self._store.write(entries)
        elif entries:
            self._store.write(entries, {"normalize": decided.normalize})
            self._adopt(decided)
        return Written(**Counter(verdict for _, verdict in plan), encoded=encoded)

    def _keys(
        self, batch: Sequence[Prepared], progress: OnStage | None
    ) -> tuple[dict[str, list[KeyRow]], int]:
        """Return the keys of each document by its id, and the number of texts encoded for them."""
        keys = {
            document.id: [
                KeyRow(name, 0, 0, vector) for name in vectors for vector in vectors[name]
            ]
            for document, vectors, _ in batch
        }
        named = [
            (document.id, field, text)
            for document, vectors, _ in batch
            if self.settings.encoder is not None and WHOLE not in vectors
            for field, text in document.fields.items()
            if field not in vectors
        ]
        if not named:
            return keys, 0
        spans = self._spans([text for _, _, text in named])
        parts = [
            (id, field, start, stop, text[start:stop])
            for (id, field, text), passages in zip(named, spans, strict=True)
            for start, stop in passages
        ]
        embeddings = self._embeddings([part[-1] for part in parts], progress)  # (m, d)
        for (id, field, start, stop, _), embedding in zip(parts, embeddings, strict=True):
            keys[id].append(KeyRow(field, start, stop, embedding))
        return keys, len(parts)

    def _embeddings(self, texts: Sequence[str], progress: OnStage | None) -> Float32:
        """Encode texts (m, d); in blocks where somebody follows the progress."""
        encode = self._encoder().encode_documents
        if progress is None:
            return encode(texts)
        blocks = []
        for start in range(0, len(texts), FOLLOWED):
            progress("encoding texts", start / len(texts))
            blocks.append(encode(texts[start : start + FOLLOWED]))
        progress("encoding texts", 1.0)
        return np.concatenate(blocks)

    def _spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        if not self.settings.passages:
            return [[(0, len(text))] if text.strip() else [] for text in texts]
        by_text = self._encoder().passages(texts, self.settings.overlap)
        return [[(passage.start, passage.end) for passage in passages] for passages in by_text]

    def _prepared(
        self, documents: Sequence[Document | Prepared], settings: Settings
    ) -> list[Prepared]:
        """Return all documents prepared; raise InvalidRequest, with details, if one is wrong."""
        batch: list[Prepared] = []
        wrong: list[tuple[str, InvalidRequest]] = []
        ids: set[str] = set()
        for place, document in enumerate(documents):
            try:
                if isinstance(document, Document):
                    prepared = _prepared(document, settings)
                else:
                    prepared = _settled(document, settings)
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


def parse_documents(items: Documents) -> list[Document]:
    """Return documents from mappings of the fields of `DocumentRequest`, or from a table.

    Raises:
        InvalidRequest: one is wrong; its sentence begins with the position and the id.

    >>> parse_documents([{"id": 1, "text": "A whale, hunted."}])[0].fields
    {'text': 'A whale, hunted.'}
    """
    if hasattr(items, "__arrow_c_stream__"):
        # Here: pyarrow takes long to import, and few writes need it.
        from attend.api.arrow import arrow_documents

        return arrow_documents(items)
    documents = []
    for place, item in enumerate(items):
        if not isinstance(item, Document):
            with located(place, item.get("id") if isinstance(item, Mapping) else None):
                item = parse(DocumentRequest, item).document()
        documents.append(item)
    return documents


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


def _prepared(document: Document, settings: Settings) -> Prepared:
    check_id(document.id)
    _check_texts(document)
    if document.fields and not document.vectors and settings.encoder is None:
        raise InvalidRequest(
            f"The document {document.id!r} has text and no vector, but this collection was made "
            f"for vectors of {settings.dimension} dimensions. Send its vector too, or make a "
            f"collection with an encoder.",
            field="text",
        )
    is_blank = not any(map(str.strip, document.fields.values()))
    if document.fields and not document.vectors and is_blank:
        raise InvalidRequest(
            f"The texts of the document {document.id!r} are empty; send a text, or leave them out.",
            field="text",
        )
    vectors = {name: own_vectors(document, name, settings) for name in document.vectors}
    hashes = None
    if not vectors or settings.normalize is not None:
        keys = key_hash(document.fields, vectors, settings)
        hashes = Hashes(keys, value_hash(document.value, document.payload))
    return Prepared(document, vectors, hashes)


def _settled(prepared: Prepared, settings: Settings) -> Prepared:
    """Return a document as it is stored under settings that may be decided meanwhile."""
    return prepared if prepared.hashes is not None else _prepared(prepared.document, settings)


def _have_length_one(batch: Sequence[Prepared]) -> bool:
    """Tell whether all vectors of documents have length one, but for rounding.

    One of a single number that is not zero has it by chance: of these alone, nothing follows.
    """
    vectors = np.concatenate([v for prepared in batch for v in prepared.vectors.values()])
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    is_one = np.abs(lengths - 1) <= ROUNDING
    return bool(is_one.all() and (np.count_nonzero(vectors, axis=1) > 1).any())


def _verdict(stored: Hashes | None, new: Hashes | None) -> str:
    if stored is None or new is None:
        return "added"
    if stored.keys != new.keys:
        return "updated"
    return "unchanged" if stored.value == new.value else "revised"


def key_hash(
    fields: Mapping[str, str], vectors: Mapping[str, Float32], settings: Settings
) -> bytes:
    """Return a hash of what a document's keys are made of; its vectors (n, d) as stored."""
    numbers = {name: matrix.tobytes().hex() for name, matrix in vectors.items()}
    s = settings
    # Without text and vector it is the same before and after `normalize` is decided.
    scaled = bool(s.normalize) and (bool(vectors) or s.encoder is not None)
    return _digest([fields, numbers, s.encoder, s.passages, s.overlap, scaled])


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
