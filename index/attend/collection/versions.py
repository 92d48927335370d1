"""Versions: a projection with its tuning and offsets turns embeddings into keys and queries.

A view is one version over one state of a collection; searches take it, and it never changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from attend.core.arrays import KeyTable, locate
from attend.core.errors import Conflict, Damaged, InvalidRequest, WrongKeys
from attend.core.settings import UNFITTED, UNFITTED_WORDS, Tuning
from attend.core.types import Float32, Float64, Int64, Json
from attend.keys import SearchableKeys
from attend.projection import Projection
from attend.recommend.weights import ItemWeights
from attend.store import NO_OFFSETS, Offsets, Role, StoredProjection, StoredVersion, Terms

CENTRED_SCALE = 10.0
"""Scale of centred queries: a smaller one attends to more of a history. (nDCG@10 of books that
nobody had met, in a split of goodbooks' train part: .302 with 10, .296 with 20, .287 with 30.)"""


UNTRAINED = 0
"""The number of the version that is made in memory, in roles that have no other yet."""

ATTEMPTS = 5
"""Attempts at a reading, each over a newer snapshot."""


@dataclass(frozen=True)
class Version:
    """A projection with its tuning and its offsets, under the number that the store gave it.

    Attributes:
        number: 0 for an untrained one, which the store does not have.
        projection: in the form (folded or materialised) in which keys are made.
        terms: learned vectors of documents, by name: `query` is added to the embedding of one
            that asks, `gate` says how much it counts in a history, `items` what it says there
            for others.
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
    def of(cls, number: int, stored: StoredVersion, scorer: str, *, words: bool = False) -> Version:
        """Return a stored version, in the form that the collection's scorer allows.

        Args:
            words: whether words count where nothing was fitted.
        """
        projection = Projection.from_bytes(stored.weights).materialised()
        tuning = Tuning.of(stored.tuning)
        if projection.kind == "identity" and tuning == Tuning() and not len(stored.offsets.keys):
            tuning = UNFITTED_WORDS if words else UNFITTED
        version = cls(
            number,
            projection,
            tuning,
            stored.offsets,
            stored.role,
            stored.terms,
            stored.last_key,
        )
        if version.projection.fingerprint != stored.fingerprint:
            raise Damaged(
                f"Projection {number} has other matrices than were stored; activate another "
                f"version, train again, or restore the collection from a copy."
            )
        if version.moved:
            return version
        return replace(version, projection=version.projection.form_for(scorer))

    @classmethod
    def centred(cls, mean: Float32, *, unit: bool, scorer: str) -> Version:
        """Return the untrained version to recommend with: queries less a mean of keys (d,).

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
        """True where example queries are keys too."""
        return self.tuning.examples > 0

    @property
    def memory(self) -> float:
        """α, how far stored feedback moves a query; 0 where a training did not choose it."""
        return self.tuning.memory or 0.0

    @property
    def unfitted(self) -> bool:
        """True where nothing was fitted: feedback then moves queries only where it helps."""
        return self.tuning in (UNFITTED, UNFITTED_WORDS)

    def asking(self, embeddings: Float32, rows: Int64) -> Float32:
        """Return queries (n, d), those of documents moved by what was learned of how they ask.

        Args:
            rows: (n,) the document that each is, 0 for none.
        """
        if "query" not in self.terms:
            return embeddings
        return embeddings + self._term("query", rows, 0.0)

    def gates(self, rows: Int64) -> Float64:
        """Return how much documents count in a history (n,); 1 where nothing was learned."""
        return self._term("gate", rows, 1.0)[:, 0].astype(np.float64)

    @cached_property
    def items(self) -> ItemWeights | None:
        """The learned weights between documents; None where there are none."""
        terms = self.terms.get("items")
        return None if terms is None or not len(terms.rows) else ItemWeights.unpacked(terms)

    def without(self, added: KeyTable, learned: Int64) -> Version:
        """Leave out the terms of documents that have new keys of their own.

        Such a document has another text now, of which nothing was learned.

        Args:
            learned: documents whose terms are still stored: their texts are the same.
        """
        other = added.documents[~added.is_example & (added.ids > self.last_key)]
        other = np.setdiff1d(other, learned)
        if not any(np.isin(other, term.rows).any() for term in self.terms.values()):
            return self
        terms = {
            name: Terms(term.rows[same], term.vectors[same])
            for name, term in self.terms.items()
            if (same := np.isin(term.rows, other, invert=True)).any()
        }
        return replace(self, terms=terms)

    def _term(self, name: str, rows: Int64, default: float) -> Float32:
        """Return the vectors (n, width) of one name, the default where a document has none."""
        if name not in self.terms or not len(self.terms[name].rows):
            return np.full((len(rows), 1), default, dtype=np.float32)
        places, present = locate(self.terms[name].rows, rows)
        vectors = self.terms[name].vectors[places]
        return np.where(present[:, None], vectors, np.float32(default)).astype(np.float32)

    @property
    def moved(self) -> bool:
        """True where a key is more than the projection of its embedding: such keys do not fold."""
        return self.examples or len(self.offsets.keys) > 0

    @cached_property
    def layout(self) -> str:
        """The name of the layout of keys: versions of one layout share a published index."""
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

    def keys(self, stored: KeyTable) -> KeyTable:
        """Return the same table with keys (m, width) in the place of embeddings (m, d)."""
        if stored.examples is None or not stored.examples.any():
            vectors = self._text_keys(stored.ids, stored.vectors)
        else:
            texts, embeddings = ~stored.examples, stored.vectors
            vectors = np.empty((len(stored.ids), self.width), dtype=np.float32)
            vectors[texts] = self._text_keys(stored.ids[texts], embeddings[texts])
            # Similar queries look for example queries, as keys.
            examples = embeddings[~texts]
            queries = self.projection.queries(examples)  # (m, H, d)
            flat: Float32 | Float64 = queries.reshape(len(queries), -1)
            if flat.shape[1] != self.width:  # the heads share their keys
                flat = self.projection.keys(examples).reshape(len(examples), -1)
            vectors[~texts] = (flat * self.tuning.examples).astype(np.float32)
        return replace(stored, vectors=vectors, examples=None)

    def _text_keys(self, ids: Int64, embeddings: Float32) -> Float32:
        if not len(ids):
            return np.empty((0, self.width), dtype=np.float32)
        keys = self.projection.keys(self.shifted(ids, embeddings))  # (m, Hk, d)
        return keys.reshape(len(keys), -1).astype(np.float32, copy=False)

    def shifted(self, ids: Int64, embeddings: Float32) -> Float32:
        """Return the embeddings (m, d) of keys, moved by their learned offsets."""
        if not len(self.offsets.keys):
            return embeddings
        places, present = locate(self.offsets.keys, ids)
        shifted = embeddings.copy()
        shifted[present] += self.offsets.deltas[places[present]]
        return shifted


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Vanished(Exception):
    """A document was deleted between the search and the reading of its value."""


def until_stable(read: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a reading begin again, over a newer snapshot, while it raises Vanished or WrongKeys."""

    @wraps(read)
    def reading(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for _ in range(ATTEMPTS):
            try:
                return read(*args, **kwargs)
            except (Vanished, WrongKeys):
                continue
        raise Conflict("The documents change faster than they can be read; try again.")

    return reading


def by_hand(
    stored: Sequence[StoredProjection], version: int, force: bool
) -> Mapping[str, Json] | None:
    """Return the report of a version that is activated by hand, where it takes another one.

    Raises:
        InvalidRequest: its training has not promoted it, and it is not forced.
    """
    report = next((one.report for one in stored if one.version == version), {})
    if not report.get("kept"):
        return None
    reason = report.get("reason")
    if not force:
        raise InvalidRequest(
            f"Its training has not promoted version {version}: {reason} Teach more and train again,"
            f" or force it.",
            field="force",
        )
    return {**report, "kept": False, "forced": True, "reason": f"Activated by hand. {reason}"}


@dataclass(frozen=True)
class View:
    """One version over one state of the collection.

    Attributes:
        version: in the form (folded or materialised) of the keys.
        keys: keys of width Hk * d.
        change: the number of this state.
    """

    version: Version
    keys: SearchableKeys
    change: int

    def give_up(self, damage: str) -> None:
        """Let the next search take other keys than these, which are damaged."""

    @property
    def index_stats(self) -> dict[str, Json]:
        """Statistics of the index."""
        return {
            **{name: value for name, value in self.keys.index.items() if name != "points"},
            "exact": self.keys.promises() == 1,
            "published": self.keys.generation,
            "keys": self.keys.indexed,
            "fresh": self.keys.fresh,
        }
