"""The stored half of a collection: its documents, its versions, and its index.

Feedback and trainings work on it, and so it stands apart from `Collection`, which uses them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from attend.api.answers import Facets
from attend.api.base import MAX_DOCUMENTS, parse
from attend.api.documents import CollectionInfo, Documents, SettingsChange, UpdateRequest, Written
from attend.attention import default_scale
from attend.core.errors import AttendError, EncoderMismatch, InvalidRequest, UnknownDocument
from attend.core.progress import Progress, reported
from attend.core.settings import Settings
from attend.core.types import Document, Json, OnStage
from attend.encoder import Encoder
from attend.engines.engine import OpenedCollection
from attend.projection import Projection, lsi, pca
from attend.search.foreign import BLOCK, ForeignTests
from attend.search.hits import cursor as cursor_of
from attend.search.hits import fingerprint, place
from attend.search.values import facets_by_name, filter_hints
from attend.store import Entry, Role, StoredDocument, StoredProjection, compile_filter
from attend.store.filters import by_value
from attend.store.selection import whole_number
from attend.values import merged, parse_type
from attend.write.ingest import Ingest, parse_documents, value_hash

log = logging.getLogger("attend")

MANY = 500  # documents, whose encoding takes seconds


class Page(NamedTuple):
    """Some documents; `next` is the cursor of the following page, None at the end.

    `hints` names fields of a filter that no document has, where no document passes it."""

    documents: Sequence[StoredDocument]
    next: str | None
    total: int
    hints: Sequence[str] | None = None


class StoredCollection:
    """Documents, versions and index of one collection; `Collection` searches them."""

    def __init__(
        self, name: str, opened: OpenedCollection, encoders: Callable[[str], Encoder]
    ) -> None:
        self.name, self.folder = name, opened.folder
        self.settings, self.store, self.views = opened.settings, opened.store, opened.views
        self.capabilities, self.checks = opened.capabilities, opened.checks
        self.consistent = opened.consistent
        self.views.on_settings = self._adopt
        self._encoders = encoders
        self._ingest = Ingest(self.store, self.settings, self.encoder, self._adopt)
        self.foreign = ForeignTests(
            self.store,
            self.settings,
            self.views,
            self.encoder,
            is_able=self.capabilities.foreign,
        )

    def close(self) -> None:
        """Close the files of the collection; it opens again when its library is asked for it.

        >>> books.close()
        """
        self.store.close()

    def _adopt(self, settings: Settings) -> None:
        """Work by settings as they are stored by now; called once they were changed anywhere."""
        self.settings = self._ingest.settings = self.foreign.settings = settings

    # -- documents --------------------------------------------------------------------------

    def upsert(self, documents: Documents, *, progress: Progress = None) -> Written:
        """Insert or replace documents, all or none; the next search finds them.

        A document whose texts are as stored is not encoded again.

        Args:
            documents: each with the fields of `DocumentRequest`, or a table with such columns
                (pandas, Polars, Arrow), whose other columns are the payload.
            progress: as for `train`; by default a bar is shown for many documents only.

        >>> books.upsert([{"id": "dune", "vector": [0.2, 0.9], "payload": {"year": 1965}}]).added
        1
        """
        parsed = parse_documents(documents)
        if len(parsed) > MAX_DOCUMENTS:
            raise InvalidRequest(
                f"{len(parsed)} documents were sent at once; at most {MAX_DOCUMENTS} are taken.",
                field="documents",
            )
        self.views.current()  # what cannot be searched must not be written to
        with reported(progress if len(parsed) >= MANY else progress or False) as report:
            written = self._ingest.write(parsed, report)
        self.merge_if_due()
        return written

    def write(self, documents: Sequence[Document | Entry]) -> Written:
        """Write documents as `upsert` does, but merge nothing: a build publishes at its end.

        >>> books.write([Document("dune", vectors={"vector": [0.2, 0.9]})]).added
        1
        >>> books.publish()
        """
        return self._ingest.write(documents)

    def revise(self, id: str, revision: UpdateRequest | Mapping[str, Any]) -> StoredDocument:
        """Change a document's value, its payload or both; nothing is encoded.

        A value is replaced, a payload merged by RFC 7396. The source stays the truth: a build from
        it, even an unchanged one, puts back the document of the source.

        Raises:
            UnknownDocument: no document has this id.
            InvalidRequest: neither value nor payload, or one with NaN or infinity.

        >>> books.revise("emma", {"payload": {"lent": True}}).payload
        {'year': 1815, 'lent': True}
        """
        if not isinstance(revision, UpdateRequest):
            revision = parse(UpdateRequest, revision)

        def revised(stored: StoredDocument) -> StoredDocument:
            value = revision.value if "value" in revision.model_fields_set else stored.value
            return stored._replace(value=value, payload=merged(stored.payload, revision.payload))

        document = self.store.revise(id, revised, value_hash)
        if document is None:
            raise self._unknown(id)
        return document

    def prepare(self, document: Document) -> Entry:
        """Check a document before it is written; raise InvalidRequest if it cannot be taken.

        >>> books.prepare(Document("dune", vectors={"vector": [0.2, 0.9]})).document.id
        'dune'
        """
        return self._ingest.prepare(document)

    def page(
        self,
        filter: Mapping[str, Json] | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Return documents that pass a filter, in the order in which they first came.

        Writes between two pages move nothing: no document comes twice, and none that stays is
        passed over.

        Args:
            cursor: `next` of the page before, with the same filter.
            limit: 0 only counts.

        Raises:
            InvalidRequest: the cursor belongs to another filter, or is not a cursor.

        >>> page = books.page({"year": {"lt": 1900}}, limit=1)
        >>> page.documents[0].id, page.total
        ('whale', 2)
        >>> books.page({"year": {"lt": 1900}}, limit=1, cursor=page.next).documents[0].id
        'emma'
        """
        filter = by_value(filter, self._value_name())
        predicate = compile_filter(filter or {})
        listing = fingerprint("documents", predicate.key)
        after = 0 if cursor is None else int(place(cursor, listing, 1)[0])
        limit = whole_number(limit, "limit", 0, 2**31)
        with self.store.reading():
            total = self.store.count(predicate) if filter else self.store.counts()[0]
            documents = self.store.scroll(after, limit + 1, predicate)
            hints = None if total else filter_hints(self.store, filter)
        more = len(documents) > limit > 0
        end = cursor_of(listing, [documents[limit - 1].row]) if more else None
        return Page(documents[:limit], end, total, hints)

    def facets(
        self, fields: Sequence[str], filter: Mapping[str, Json] | None = None, *, limit: int = 10
    ) -> Facets:
        """Count the documents that pass a filter by the values of fields of value or payload.

        Args:
            limit: the number of values listed for each field, the most frequent first.

        Raises:
            InvalidRequest: a wrong field name, too many of them, or a wrong limit.

        >>> books.facets(["year"])["year"].distinct
        3
        """
        filter = by_value(filter, self._value_name())
        predicate = compile_filter(filter) if filter else None
        return facets_by_name(self.store, fields, predicate, self.settings.value_name, limit)

    def ids(self) -> set[str]:
        """Return the ids of all documents.

        >>> sorted(books.ids())
        ['emma', 'ship', 'whale']
        """
        return set(self.store.all_ids())

    def delete_matching(self, filter: Mapping[str, Json]) -> int:
        """Delete what passes a filter, all or none, and return the number of deleted documents.

        Raises:
            InvalidRequest: the filter lets everything pass, which is more often a slip than meant.

        >>> books.delete_matching({"year": {"gte": 1900}})
        1
        """
        if not filter:
            raise InvalidRequest(
                "An empty filter would delete every document; name a condition, or delete the "
                "collection.",
                field="filter",
            )
        filter = by_value(filter, self._value_name())
        deleted = self.store.delete_matching(compile_filter(filter))
        self.merge_if_due()
        return deleted

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents, and return how many existed; unknown ids are passed over.

        >>> books.delete(["emma", "nobody"])
        1
        """
        deleted = self.store.delete(ids)
        self.merge_if_due()
        return deleted

    def document(self, id: str) -> StoredDocument:
        """Return one document as stored.

        Raises:
            UnknownDocument: no document has this id.

        >>> books.document("whale").payload
        {'year': 1851}
        """
        document = self.store.find([id]).get(id)
        if document is None:
            raise self._unknown(id)
        return document

    # -- versions -----------------------------------------------------------------------------

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
        self.foreign.refresh(BLOCK)

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
        version = self.store.rollback(role)
        self.foreign.refresh(BLOCK)
        return version

    # -- the collection itself --------------------------------------------------------------

    def publish(
        self, on_stage: OnStage = lambda stage, done: None, *, only_fresh: bool = False
    ) -> None:
        """Write the index of all keys to disk, and the test of foreign queries.

        Quantising may take a minute for a million keys; `on_stage` receives the progress.

        Args:
            only_fresh: write no index unless something was written since the last time.

        >>> books.publish()
        """
        if not only_fresh or self.views.has_fresh():
            self.views.publish(on_stage)
        # Also where nothing is fresh: the first look at many new keys has written the index.
        self.foreign.refresh()

    def merge_if_due(self) -> None:
        """Publish if too much was written to be searched as it is.

        The documents are stored already: a failure of the merge is logged, and does not fail them.

        >>> books.merge_if_due()
        """
        try:
            self.views.merge_if_due()
        except (AttendError, OSError) as error:
            log.warning("The index was not merged, and will be at the next write: %s", error)

    def configure(self, **changes: Any) -> bool:
        """Change settings; other processes see them at their next request.

        Args:
            changes: fields of `SettingsChange`. The index has another recall or exact_below from
                its next publication on.

        Returns: whether anything changed.

        Raises:
            InvalidRequest: no setting, one that cannot change, or a wrong value.

        >>> books.configure(recall=0.99)
        True
        """
        change = parse(SettingsChange, changes).model_dump(exclude_unset=True)
        if change.get("values") is not None:
            parse_type(change["values"], field="values")
        self.views.refresh()
        if replace(self.settings, **change) == self.settings:
            return False
        self.store.put_settings(change)
        self.views.refresh()
        return True

    def encoder(self) -> Encoder:
        """Return the encoder of this collection's texts; it is loaded at the first call.

        Raises:
            EncoderError: it cannot be loaded.
            EncoderMismatch: its embeddings have another width than the collection's.

        >>> collection.encoder().encode_queries(["a whale"]).shape  # doctest: +SKIP
        (1, 384)
        """
        encoder = self._encoders(self.settings.encoder or "")
        if encoder.dimension != self.settings.dimension:
            raise EncoderMismatch(
                f"The encoder {encoder.name!r} gives {encoder.dimension} dimensions, but the "
                f"collection {self.name!r} was built with {self.settings.dimension}: the model "
                f"has changed. Put the old one back, or build another collection."
            )
        return encoder

    def info(self) -> CollectionInfo:
        """Return the figures of the collection.

        >>> info = books.info()
        >>> info.documents, info.dimension, info.projection
        (3, 2, 1)
        """
        self.views.refresh()
        store, view, now = self.store, self.views.current(), self.settings
        with store.reading():
            (documents, keys), (interactions, users) = store.counts(), store.interaction_counts()
            examples, questions = store.example_count(), store.question_count()
        return CollectionInfo(
            name=self.name,
            documents=documents,
            keys=keys,
            examples=examples,
            questions=questions,
            interactions=interactions,
            users=users,
            dimension=now.dimension,
            encoder=now.encoder,
            scale=now.scale or default_scale(now.scorer, now.unit_embeddings, now.dimension),
            projection=view.version.number,
            memory=view.version.memory if self.capabilities.memory else 0.0,
            generation=view.change,
            index=view.index_stats,
            foreign=self.foreign.figures(),
            hints=self.foreign.missing(view),
            settings=self.settings.stored(),
            capabilities=self.capabilities.json(),
        )

    def _unknown(self, id: str) -> UnknownDocument:
        return UnknownDocument(f"The collection {self.name!r} has no document {id!r}.", field="id")

    def _value_name(self) -> str | None:
        """Return the name that stands for the value in filters."""
        self.views.refresh()  # another process may have built it meanwhile
        return self.settings.value_name
