"""Writing documents: hash, split, encode, store; only what is new is encoded.

The encoder runs before the write lock is taken, so that a batch holds the lock for the
milliseconds of its transaction and not for the seconds of its encoding.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from attend.api.base import MAX_DETAILS, MAX_ID, MAX_TEXT
from attend.api.documents import Written
from attend.errors import DimensionMismatch, InvalidRequest
from attend.settings import Settings
from attend.store import CollectionStore, Entry, Hashes, KeyRow, StaleEntries
from attend.types import Document, Float32, Json

ATTEMPTS = 5
"""How often a batch is planned again when others change its documents meanwhile."""


MAX_ABSOLUTE = 1e15
"""Of a vector's numbers: squares of 1e15, summed over 65,536 dimensions, fit float32."""


class Passage(Protocol):
    """A part of a text, in characters."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class DocumentEncoder(Protocol):
    """What writing asks of an encoder."""

    def encode_documents(self, texts: Sequence[str]) -> Float32: ...

    def passages(
        self, texts: Sequence[str], overlap: int | None = None
    ) -> Sequence[Sequence[Passage]]: ...


class Ingest:
    """Turns documents into stored entries of one collection.

    `encoder` is called at the first text that must be encoded: a batch without one needs no model.
    """

    def __init__(
        self, store: CollectionStore, settings: Settings, encoder: Callable[[], DocumentEncoder]
    ) -> None:
        self._store = store
        self._settings = settings
        self._encoder = encoder

    def write(self, documents: Sequence[Document]) -> Written:
        """Insert or replace documents, all or none.

        Raises:
            InvalidRequest: documents that this collection cannot take, or two with one id; its
                details name each of them.
        """
        self._check_all(documents)
        hashes = [self._hashes(document) for document in documents]
        for _ in range(ATTEMPTS - 1):
            try:
                return self._write_once(documents, hashes)
            except StaleEntries:
                continue
        return self._write_once(documents, hashes)

    def _write_once(self, documents: Sequence[Document], hashes: Sequence[Hashes]) -> Written:
        stored = self._store.hashes([document.id for document in documents])
        plan = [
            (document, new, _verdict(stored.get(document.id), new))
            for document, new in zip(documents, hashes, strict=True)
        ]
        fresh = [document for document, _, verdict in plan if verdict in ("added", "updated")]
        keys, encoded = self._keys(fresh)
        entries = [
            Entry(document, new, keys.get(document.id))
            for document, new, verdict in plan
            if verdict != "unchanged"
        ]
        if entries:
            self._store.write(entries)
        return Written(**Counter(verdict for _, _, verdict in plan), encoded=encoded)

    def _keys(self, documents: Sequence[Document]) -> tuple[dict[str, list[KeyRow]], int]:
        """The keys of each document by its id, and how many texts were encoded for them."""
        keys: dict[str, list[KeyRow]] = {document.id: [] for document in documents}
        for document in documents:
            for field, vector in document.vectors.items():
                keys[document.id].append(KeyRow(field, 0, 0, self._own(vector)))
        named = [(d.id, field, text) for d in documents for field, text in d.fields.items()]
        if not named:
            return keys, 0
        spans = self._spans([text for _, _, text in named])
        parts = [
            (id, field, start, stop, text[start:stop])
            for (id, field, text), found in zip(named, spans, strict=True)
            for start, stop in found
        ]
        embeddings = self._encoder().encode_documents([part[-1] for part in parts])  # (m, d)
        for (id, field, start, stop, _), embedding in zip(parts, embeddings, strict=True):
            keys[id].append(KeyRow(field, start, stop, embedding))
        return keys, len(parts)

    def _spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        if not self._settings.passages:
            return [[(0, len(text))] if text.strip() else [] for text in texts]
        found = self._encoder().passages(texts, self._settings.overlap)
        return [[(passage.start, passage.end) for passage in each] for each in found]

    def _own(self, vector: Sequence[float]) -> Float32:
        return own_vector(vector, self._settings)

    def check(self, document: Document) -> None:
        """Raises InvalidRequest for a document that this collection cannot take."""
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
        for vector in document.vectors.values():
            self._own(vector)

    def _check_all(self, documents: Sequence[Document]) -> None:
        wrong = [*_repeated(documents), *self._unfit(documents)]
        if not wrong:
            return
        field, error = wrong[0]
        if len(wrong) > 1:
            error = InvalidRequest(
                f"{len(wrong)} of {len(documents)} documents cannot be stored, and none was. "
                f"{field}: {error}",
                field=field,
            )
        error.details = [{"field": at, "reason": str(each)} for at, each in wrong[:MAX_DETAILS]]
        raise error

    def _unfit(self, documents: Sequence[Document]) -> Iterator[tuple[str, InvalidRequest]]:
        for at, document in enumerate(documents):
            try:
                self.check(document)
            except InvalidRequest as error:
                yield f"documents.{at}.{error.field}", error

    def _hashes(self, document: Document) -> Hashes:
        own = {name: self._own(vector) for name, vector in document.vectors.items()}
        return Hashes(
            key_hash(document.fields, own, self._settings),
            value_hash(document.value, document.payload),
        )


def check_id(id: str) -> None:
    """Refuse what cannot be an id, whichever way it came.

    Control characters too: SQLite's JSON functions end a text at NUL.
    """
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID:
        raise InvalidRequest(
            f"The id {id!r:.80} is not a text of 1 to {MAX_ID} characters; send one that is.",
            field="id",
        )
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in id):
        raise InvalidRequest(
            f"The id {id!r:.80} holds control characters or half of a surrogate pair; send one "
            f"without.",
            field="id",
        )


def _check_texts(document: Document) -> None:
    for field, text in document.fields.items():
        if len(text) > MAX_TEXT:
            raise InvalidRequest(
                f"The text {field!r} of the document {document.id!r} has {len(text)} characters, "
                f"but at most {MAX_TEXT} are taken; split it into several documents.",
                field=f"fields.{field}",
            )


def own_vector(vector: Sequence[float], settings: Settings) -> Float32:
    """A caller's vector as an embedding (d,): as given, or at length one if all others are.

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


def _repeated(documents: Sequence[Document]) -> Iterator[tuple[str, InvalidRequest]]:
    seen: set[str] = set()
    for at, document in enumerate(documents):
        if document.id in seen:
            sentence = f"The id {document.id!r} occurs more than once in this batch; send it once."
            yield f"documents.{at}.id", InvalidRequest(sentence, field="id")
        seen.add(document.id)


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
    brought = {name: each.tobytes().hex() for name, each in vectors.items()}
    s = settings
    return _digest([fields, brought, s.encoder, s.passages, s.overlap, s.normalize])


def value_hash(value: Json, payload: Mapping[str, Json]) -> bytes:
    """A fingerprint of what a document returns.

    Raises:
        InvalidRequest: it holds NaN or infinity, which JSON cannot say.
    """
    return _digest([value, payload])


def _digest(given: Sequence[Json | Mapping[str, Sequence[float]]]) -> bytes:
    """A fingerprint of JSON; objects with the same fields in another order are the same."""
    try:
        text = json.dumps(given, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise InvalidRequest(
            f"A value or payload holds what JSON cannot say ({error}); send finite numbers.",
            field="value",
        ) from None
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
