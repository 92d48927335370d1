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
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from attend.api.base import MAX_DETAILS, MAX_TEXT, parse
from attend.api.documents import DocumentRequest, Documents, Written, located
from attend.core.errors import AttendError, DimensionMismatch, InvalidRequest, UnknownDocument
from attend.core.settings import Settings
from attend.core.types import WHOLE, Document, Float32, Json, OnStage, id_fault
from attend.encoder import Encoder
from attend.store import CollectionStore, Entry, Hashes, KeyRow, StaleEntries

ATTEMPTS = 5
"""How often a batch is planned again when others change its documents meanwhile."""

FOLLOWED = 1024
"""Texts encoded between two reports of progress; more fill the encoder's batches no better."""


ROUNDING = 1e-3
"""The most by which a length of one may be off: twice what rounding to float16 does at worst."""


UNDECIDED = Hashes(b"", b"")
"""The hashes of an entry while it is not decided whether its vectors are scaled to length one."""


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
        self, documents: Sequence[Document | Entry], progress: OnStage | None = None
    ) -> Written:
        """Insert or replace documents, all or none.

        Args:
            documents: those that are entries are as `prepare` returned them.
            progress: receives the share of the texts that are encoded.

        Raises:
            InvalidRequest: documents that this collection cannot take, or two with one id; its
                details name each of them.
        """
        return self.begin(documents, progress)()

    def begin(
        self, documents: Sequence[Document | Entry], progress: OnStage | None = None
    ) -> Callable[[], Written]:
        """Do what `write` does up to the point where all texts are encoded.

        Returns: a function that does the rest, on any thread.
        """
        attempt = self._begin_once(documents, progress)

        def store() -> Written:
            nonlocal attempt
            for _ in range(ATTEMPTS - 1):
                try:
                    return attempt()
                except StaleEntries:
                    if self.settings.normalize is None:  # others have decided it meanwhile
                        self._adopt(Settings.of(self._store.settings()))
                attempt = self._begin_once(documents, progress)
            return attempt()

        return store

    def prepare(self, document: Document, settings: Settings | None = None) -> Entry:
        """Return a document as it is stored, with the keys of its own vectors alone.

        Args:
            settings: None: those of the collection.

        Raises:
            InvalidRequest: this collection cannot take the document.
        """
        settings = settings or self.settings
        check_id(document.id)
        _check_texts(document, settings)
        vectors = {name: own_vectors(document, name, settings) for name in document.vectors}
        hashes = UNDECIDED
        if not vectors or settings.normalize is not None:
            keys = key_hash(document.fields, vectors, settings)
            hashes = Hashes(keys, value_hash(document.value, document.payload))
        key_rows = [KeyRow(name, 0, 0, vector) for name in vectors for vector in vectors[name]]
        return Entry(document, hashes, key_rows)

    def encode(self, documents: Sequence[Document]) -> tuple[list[Entry], int]:
        """Return documents with the keys of their texts, and the number of texts encoded.

        Raises:
            InvalidRequest: this collection cannot take one of them.
        """
        entries = [self.prepare(document) for document in documents]
        keys, count = self._keys(entries, None)
        return [replace(entry, keys=keys[entry.document.id]) for entry in entries], count

    def _begin_once(
        self, documents: Sequence[Document | Entry], progress: OnStage | None
    ) -> Callable[[], Written]:
        settings = decided = self.settings
        batch = self._prepared(documents, settings)
        vectors = [key.embedding for entry in batch for key in entry.keys or ()]
        if vectors and settings.normalize is None:
            decided = replace(settings, normalize=_have_length_one(np.stack(vectors)))
            batch = self._prepared(batch, decided)
        stored = self._store.hashes([entry.document.id for entry in batch])
        verdicts = [_verdict(stored.get(entry.document.id), entry.hashes) for entry in batch]
        plan = list(zip(batch, verdicts, strict=True))
        fresh = [entry for entry, verdict in plan if verdict in ("added", "updated")]
        keys, encoded = self._keys(fresh, progress)
        entries = [
            replace(entry, keys=keys.get(entry.document.id))
            for entry, verdict in plan
            if verdict != "unchanged"
        ]

        def store() -> Written:
            if entries and decided is settings:
                self._store.write(entries)
            elif entries:
                self._store.write(entries, {"normalize": decided.normalize})
                self._adopt(decided)
            return Written(**Counter(verdicts), encoded=encoded)

        return store

    def _keys(
        self, entries: Sequence[Entry], progress: OnStage | None
    ) -> tuple[dict[str, list[KeyRow]], int]:
        """Return the keys of each document by its id, and the number of texts encoded for them."""
        keys = {entry.document.id: list(entry.keys or ()) for entry in entries}
        named = [
            (entry.document.id, field, text)
            for entry in entries
            if self.settings.encoder is not None and WHOLE not in entry.document.vectors
            for field, text in entry.document.fields.items()
            if field not in entry.document.vectors
        ]
        if not named:
            return keys, 0
        texts = [text for _, _, text in named]
        if self.settings.passages:
            passages = self._encoder().passages(texts, self.settings.overlap)
            spans = [[(passage.start, passage.end) for passage in parts] for parts in passages]
        else:
            spans = [[(0, len(text))] if text.strip() else [] for text in texts]
        parts = [
            (id, field, start, stop, text[start:stop])
            for (id, field, text), passages in zip(named, spans, strict=True)
            for start, stop in passages
        ]
        size = FOLLOWED if progress is not None else max(1, len(parts))
        embeddings = encoded(
            [text for *_, text in parts],
            lambda block: self._encoder().encode_documents(block),
            "encoding texts",
            size,
            progress,
        )
        # An encoder of the caller's own may lack it.
        format = getattr(self._encoder(), "precision", None) if parts else None
        for (id, field, start, stop, _), embedding in zip(parts, embeddings, strict=True):
            keys[id].append(KeyRow(field, start, stop, embedding, format))
        return keys, len(parts)

    def _prepared(self, documents: Sequence[Document | Entry], settings: Settings) -> list[Entry]:
        """Return all documents prepared; raise InvalidRequest, with details, if one is wrong."""
        batch: dict[str, Entry] = {}
        wrong: list[tuple[str, AttendError]] = []
        for place, entry in enumerate(documents):
            try:
                if isinstance(entry, Document):
                    entry = self.prepare(entry, settings)
                elif entry.hashes is UNDECIDED:
                    entry = self.prepare(entry.document, settings)
                if entry.document.id in batch:
                    raise InvalidRequest(
                        f"The id {entry.document.id!r} occurs more than once in this batch; send "
                        f"it once.",
                        field="id",
                    )
            except InvalidRequest as error:
                wrong.append((f"documents.{place}.{error.field}", error))
            else:
                batch[entry.document.id] = entry
        refuse(wrong, len(documents), "documents")
        return list(batch.values())


def encoded(
    texts: Sequence[str],
    encode: Callable[[Sequence[str]], Float32],
    stage: str,
    size: int,
    progress: OnStage | None,
) -> Iterator[Float32]:
    """Yield the embedding (d,) of each text.

    Args:
        stage: what is reported with the progress: before each `size` texts, and at the end.
    """
    for start in range(0, len(texts), size):
        if progress is not None:
            progress(stage, start / len(texts))
        yield from encode(texts[start : start + size])
    if progress is not None:
        progress(stage, 1.0)


def refuse(wrong: Sequence[tuple[str, AttendError]], count: int, kind: str) -> None:
    """Raise the error of what is wrong in a batch; of several, the first with details of all.

    Args:
        wrong: the field of each error, and the error.
        count, kind: the number of things in the batch, and what they are ("documents").
    """
    if not wrong:
        return
    field, error = wrong[0]
    if len(wrong) > 1:
        unknown = all(isinstance(other, UnknownDocument) for _, other in wrong)
        error = (UnknownDocument if unknown else InvalidRequest)(
            f"{len(wrong)} of {count} {kind} cannot be stored, and none was. {field}: {error}",
            field=field,
        )
    error.details = [{"field": path, "reason": str(one)} for path, one in wrong[:MAX_DETAILS]]
    raise error


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


def _check_texts(document: Document, settings: Settings) -> None:
    for name in (*document.fields, *document.vectors):
        if name != name.encode("utf-8", "replace").decode():
            where = "fields" if name in document.fields else "vectors"
            fault = f"The name {name!r} in {where} of the document {document.id!r} has half of a"
            raise InvalidRequest(f"{fault} surrogate pair; send valid Unicode.", field=where)
    for field, text in document.fields.items():
        if len(text) > MAX_TEXT:
            raise InvalidRequest(
                f"The text {field!r} of the document {document.id!r} has {len(text)} characters, "
                f"but at most {MAX_TEXT} are taken; split it into several documents.",
                field=f"fields.{field}",
            )
    if not document.fields or document.vectors:
        return
    if settings.encoder is None:
        raise InvalidRequest(
            f"The document {document.id!r} has text and no vector, but this collection was made "
            f"for vectors of {settings.dimension} dimensions. Send its vector too, or make a "
            f"collection with an encoder.",
            field="text",
        )
    if not any(map(str.strip, document.fields.values())):
        raise InvalidRequest(
            f"The texts of the document {document.id!r} are empty; send a text, or leave them out.",
            field="text",
        )


def _have_length_one(vectors: Float32) -> bool:
    """Tell whether vectors (n, d) of documents have length one, but for rounding.

    One of a single number that is not zero has it by chance: of these alone, nothing follows.
    """
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    is_one = np.abs(lengths - 1) <= ROUNDING
    return bool(is_one.all() and (np.count_nonzero(vectors, axis=1) > 1).any())


def _verdict(stored: Hashes | None, new: Hashes) -> str:
    if stored is None:
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


MAX_ABSOLUTE = 1e15
"""Of a vector's numbers: squares of 1e15, summed over 65,536 dimensions, fit float32."""


def own_vectors(document: Document, name: str, settings: Settings) -> Float32:
    """Return a document's vectors of one name as embeddings (n, d), as `as_embedding` does.

    Raises:
        DimensionMismatch: one has another width than the collection.
        InvalidRequest: one cannot be a key; the sentence names the document.
    """
    subject = f"The vector of the document {document.id!r}"
    field = WHOLE if name == WHOLE else f"vectors.{name}"
    try:
        with np.errstate(over="ignore"):  # what overflows is refused below
            embeddings = np.asarray(document.vectors[name], dtype=np.float32)
    except (TypeError, ValueError):
        embeddings = np.empty((0, 0, 0), dtype=np.float32)
    if embeddings.ndim == 1:
        return as_embedding(embeddings, settings, subject, field)[None]
    if embeddings.ndim != 2 or not len(embeddings):
        raise InvalidRequest(
            f"The vectors {name!r} of the document {document.id!r} are no list of vectors of "
            f"{settings.dimension} numbers; send one vector, or several as a list of lists.",
            field=field,
        )
    return np.stack([as_embedding(row, settings, subject, field) for row in embeddings])


def as_embedding(
    vector: Sequence[float] | Float32,
    settings: Settings,
    subject: str = "The vector",
    field: str = "vector",
) -> Float32:
    """Return a caller's vector as an embedding (d,), at length one if all others are.

    Args:
        subject, field: what an error is about.

    Raises:
        DimensionMismatch: it has another width than the collection.
        InvalidRequest: it holds NaN or infinity, or is all zeros.
    """
    with np.errstate(over="ignore"):  # what overflows is refused below
        embedding = np.asarray(vector, dtype=np.float32)
    if embedding.shape != (settings.dimension,):
        expected, got = settings.dimension, len(vector)
        raise DimensionMismatch(expected=expected, got=got, field=field, subject=subject)
    # In float64, where squares of float32 neither overflow nor vanish; NaN compares as false.
    wide = embedding.astype(np.float64)
    length = math.sqrt(np.dot(wide, wide))
    if not length <= MAX_ABSOLUTE and not np.abs(embedding).max() <= MAX_ABSOLUTE:
        raise InvalidRequest(
            f"{subject} holds NaN, infinity or a number beyond {MAX_ABSOLUTE:g} (products must "
            f"fit 32 bits); send finite numbers, or scale them.",
            field=field,
        )
    if length == 0:
        raise InvalidRequest(
            f"{subject} is all zeros and has no direction, so that nothing can be compared with "
            f"it; send another, or none.",
            field=field,
        )
    return (wide / length).astype(np.float32) if settings.unit_embeddings else embedding
