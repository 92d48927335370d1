"""The versions of a collection: stored, fitted, activated and rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attend.core.errors import InvalidRequest
from attend.core.types import Json
from attend.engines.engine import OpenedCollection
from attend.projection import Projection, lsi, pca
from attend.store import Role, StoredProjection
from attend.store.selection import whole_number


class VersionedCollection:
    """The projection versions of one collection, and which of them answer."""

    def __init__(self, opened: OpenedCollection) -> None:
        self.settings = opened.settings
        self.store, self.views = opened.store, opened.views

    def projections(self) -> list[StoredProjection]:
        """Return all versions, the first one first.

        >>> [(version.version, version.kind) for version in books.projections()]
        [(1, 'identity')]
        """
        return self.store.projections()

    def add_projection(self, projection: Projection, note: Mapping[str, Json] | None = None) -> int:
        """Store a projection and return its version; `activate` makes it answer.

        Raises:
            InvalidRequest: it takes embeddings of another width than the collection's.

        >>> books.add_projection(books.fit_projection("pca", 1))
        2
        """
        if projection.d_in != self.settings.dimension:
            raise InvalidRequest(
                f"The projection takes embeddings of {projection.d_in} dimensions, but this "
                f"collection's have {self.settings.dimension}."
            )
        weights = projection.to_bytes()
        return self.store.add_projection(
            projection.kind, weights, projection.fingerprint, note or {}
        )

    def fit_projection(
        self, kind: Literal["pca", "lsi", "lsi-scaled"], dimensions: int
    ) -> Projection:
        """Fit an untrained projection onto the directions in which the stored embeddings vary.

        Keys and queries of length one keep it, so that their scores stay cosines.

        >>> books.fit_projection("pca", 1).kind
        'pca'
        """
        normalize = self.settings.unit_embeddings
        with self.store.all_keys() as (_, tables):
            embeddings = (table.vectors for table in tables)
            if kind == "pca":
                return pca(embeddings, dimensions, normalize=normalize)
            return lsi(embeddings, dimensions, scaled=kind == "lsi-scaled", normalize=normalize)

    def activate(
        self,
        version: int,
        expected: int | None = None,
        *,
        report: Mapping[str, Json] | None = None,
    ) -> None:
        """Answer with this projection, in its role, from the next search on.

        Args:
            expected: activate only while this one answers (0: the untrained one), as the promotion
                test compared with it.
            report: takes the place of the version's own, in the same step.

        Raises:
            UnknownProjection: no such version exists.
            Conflict: another version than the expected one answers; nothing was changed.

        >>> books.activate(books.add_projection(books.fit_projection("pca", 1)))
        >>> books.info().projection
        2
        """
        version = whole_number(version, "version", 0, 2**53)
        if self.store.version(version).role != "predict":
            self.views.current(version)  # its keys are ready before anyone asks for them
        self.store.activate_projection(version, expected, report)

    def rollback(self, role: Role = "search") -> int:
        """Answer as before the last activation in a role.

        Returns: the version that answers now; 0 is the untrained one, in roles other than search.

        Raises:
            Conflict: nothing was active before.

        >>> books.activate(books.add_projection(books.fit_projection("pca", 1)))
        >>> books.rollback()
        1
        """
        active = self.store.active(role)
        if active is not None and active.parent and role != "predict":
            self.views.current(active.parent)
        return self.store.rollback(role)
