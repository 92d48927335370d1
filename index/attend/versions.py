"""Versions: what turns embeddings into keys and queries, and the numbers that go with it."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from attend.errors import Damaged
from attend.key_table import KeyTable
from attend.projection import Projection
from attend.store import KeyBatch, Role, StoredVersion
from attend.tuning import Tuning
from attend.types import Float32, Float64, Int64

CENTRED_SCALE = 10.0
"""Of centred queries: less of a direction is left in which keys differ, but of many a history a
little. (nDCG@10 of books nobody had met, in a split of goodbooks' train part: .302 with 10, .296
with 20, .287 with 30.)"""


class Offsets(NamedTuple):
    """What is added to the embeddings of some keys before they are projected."""

    keys: Int64  # (m,) ids, ascending
    deltas: Float32  # (m, d)


class Terms(NamedTuple):
    """What was learned about some documents under one name."""

    rows: Int64  # (n,) ascending
    vectors: Float32  # (n, width)


NO_OFFSETS = Offsets(np.empty(0, dtype=np.int64), np.empty((0, 0), dtype=np.float32))


@dataclass(frozen=True)
class Version:
    """A projection with its tuning and its offsets, under the number that the store gave it.

    Attributes:
        number: 0 for an untrained one, which the store does not have.
        projection: in the form (folded or materialised) in which keys are made.
        terms: what was learned about documents, by name: `query`, what is added to the embedding
            of one that asks, and `gate`, how much it counts in a history.
        last_key: keys after it are of texts that nothing was learned about.
        plans: what searches derive from the version, by their options; small and bounded.

    Raises Damaged where the tuning is for another number of heads.
    """

    number: int
    projection: Projection
    tuning: Tuning = Tuning()  # noqa: RUF009 # frozen
    offsets: Offsets = NO_OFFSETS
    role: Role = "search"
    terms: Mapping[str, Terms] = field(default_factory=dict)
    last_key: int = 0
    plans: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("scale", "null"):
            numbers = getattr(self.tuning, name)
            if numbers is not None and len(numbers) not in (1, self.projection.heads):
                raise Damaged(
                    f"Version {self.number} has {self.projection.heads} heads, but its tuning has "
                    f"{len(numbers)} numbers for {name}; train again."
                )

    @classmethod
    def of(cls, number: int, stored: StoredVersion, scorer: str) -> Version:
        """A stored version, in the form that the collection's scorer allows."""
        whole = cls(
            number,
            Projection.from_bytes(stored.weights).materialised(),
            Tuning.of(stored.tuning),
            Offsets(*stored.offsets),
            stored.role,
            {name: Terms(*each) for name, each in stored.terms.items()},
            stored.last_key,
        )
        if whole.projection.fingerprint != stored.fingerprint:
            raise Damaged(
                f"Projection {number} has other matrices than were stored; activate another "
                f"version, train again, or restore the collection from a copy."
            )
        if whole.moved:
            return whole
        return replace(whole, projection=whole.projection.form_for(scorer))

    @classmethod
    def centred(cls, mean: Float32, *, unit: bool, scorer: str) -> Version:
        """The untrained version to recommend with: queries less the mean of all keys (d,).

        What all documents have in common says nothing about whom a document is for. Keys stay as
        they are: their own mean adds the same to every logit of a query.

        Args:
            unit: whether embeddings have length one; queries then keep it.
            scorer: the collection's.
        """
        cosine = scorer == "cosine"
        projection = Projection(
            kind="given",
            d_in=len(mean),
            gates=np.ones(1),
            center=mean,
            normalize_queries=unit,
            folded=True,
        )
        tuning = Tuning(
            scale=(CENTRED_SCALE,) if unit or cosine else None,
            scorer="cosine" if cosine else "dot",
        )
        return cls(0, projection, tuning, role="recommend")

    @property
    def examples(self) -> bool:
        """Whether example keys take part."""
        return self.tuning.examples > 0

    def asking(self, embeddings: Float32, rows: Int64) -> Float32:
        """Queries (n, d), those of documents moved by what was learned of how they ask.

        Args:
            rows: (n,) the document that each is, 0 for none.
        """
        if "query" not in self.terms:
            return embeddings
        return embeddings + self._term("query", rows, 0.0)

    def gates(self, rows: Int64) -> Float64:
        """(n,) how much documents count in a history; 1 where nothing was learned of them."""
        return self._term("gate", rows, 1.0)[:, 0].astype(np.float64)

    def without(self, added: KeyBatch) -> Version:
        """The version without terms of documents that have got keys of their own meanwhile.

        Such a document has another text now, of which nothing was learned.
        """
        other = added.documents[~added.examples & (added.ids > self.last_key)]
        if not self.terms or not len(other):
            return self
        kept = {
            name: Terms(term.rows[same], term.vectors[same])
            for name, term in self.terms.items()
            if (same := np.isin(term.rows, other, invert=True)).any()
        }
        return replace(self, terms=kept)

    def _term(self, name: str, rows: Int64, default: float) -> Float32:
        """(n, width) of one name, the default where a document has none."""
        if name not in self.terms or not len(self.terms[name].rows):
            return np.full((len(rows), 1), default, dtype=np.float32)
        known, vectors = self.terms[name]
        at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
        found: Float32 = np.where((known[at] == rows)[:, None], vectors[at], np.float32(default))
        return found

    @property
    def moved(self) -> bool:
        """Whether a key is more than the projection of its embedding: such keys do not fold."""
        return self.examples or len(self.offsets.keys) > 0

    @cached_property
    def layout(self) -> str:
        """Names how keys are laid out: versions of one layout share a published index."""
        if not self.moved:
            return self.projection.key_fingerprint[:16]
        # By the version's number and not by what the offsets hold: when a document goes, its
        # offsets do, and the index of all others stays as good as it was.
        offsets = self.number if len(self.offsets.keys) else 0
        named = f"{self.projection.fingerprint} {offsets} {self.tuning.examples!r}"
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    @cached_property
    def width(self) -> int:
        """Numbers in a key: all heads side by side."""
        _, heads, width = self._probe.shape
        return int(heads * width)

    @property
    def key_heads(self) -> int:
        """Heads that have keys of their own; 1 where all share them."""
        return int(self._probe.shape[1])

    @cached_property
    def _probe(self) -> Float32 | Float64:
        """No keys (0, Hk, d)."""
        return self.projection.keys(np.empty((0, self.projection.d_in), dtype=np.float32))

    def keys(self, batch: KeyBatch) -> KeyTable:
        """Stored embeddings as keys (m, width)."""
        own = ~batch.examples
        if own.all():
            return KeyTable.of_keys(
                self._own(batch.ids, batch.embeddings), batch.ids, batch.documents
            )
        vectors = np.empty((len(batch.ids), self.width), dtype=np.float32)
        vectors[own] = self._own(batch.ids[own], batch.embeddings[own])
        vectors[~own] = self._examples(batch.embeddings[~own])
        return KeyTable.of_keys(vectors, batch.ids, batch.documents)

    def _own(self, ids: Int64, embeddings: Float32) -> Float32:
        if not len(ids):
            return np.empty((0, self.width), dtype=np.float32)
        keys = self.projection.keys(self._shifted(ids, embeddings))  # (m, Hk, d)
        return keys.reshape(len(keys), -1).astype(np.float32, copy=False)

    def _shifted(self, ids: Int64, embeddings: Float32) -> Float32:
        if not len(self.offsets.keys):
            return embeddings
        at = np.searchsorted(self.offsets.keys, ids)
        at[at == len(self.offsets.keys)] = 0
        found = self.offsets.keys[at] == ids
        shifted = embeddings.copy()
        shifted[found] += self.offsets.deltas[at[found]]
        return shifted

    def _examples(self, embeddings: Float32) -> Float32:
        """A question is the key that its like would look for; (m, d_in) -> (m, width)."""
        queries = self.projection.queries(embeddings)  # (m, H, d)
        flat: Float32 | Float64 = queries.reshape(len(queries), -1)
        if flat.shape[1] != self.width:  # the heads share their keys
            flat = self.projection.keys(embeddings).reshape(len(embeddings), -1)
        return (flat * self.tuning.examples).astype(np.float32)
