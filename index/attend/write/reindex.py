"""Another encoder for a collection that goes on answering.

The documents are encoded into a spare collection beside the one in use, which goes on taking
writes; what was written meanwhile follows. Both are compared by the promotion test, and change
places in one step. The spare one is then the one before, to which a rollback goes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from attend.api.documents import CollectionSettings
from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.collection.versions import Version
from attend.core.errors import CollectionExists, Conflict, InvalidRequest
from attend.core.types import Document, Json, OnStage
from attend.encoder import canonical_name
from attend.learning.encoders import compare_encoders
from attend.learning.interactions import ITEMS
from attend.learning.task import NothingToLearn, objective_of
from attend.recommend.weights import ItemWeights
from attend.store import ROLES, StoredProjection
from attend.store.copying import copy_feedback, count_own_vectors, digests
from attend.store.database import Store
from attend.write.build import WINDOW, delete_others

SPARE = "-spare"
"""The end of a spare collection's name."""

ROUNDS = 10
"""How often the spare collection follows the writes before writers wait for it."""


@dataclass(frozen=True)
class Reindexed:
    """What a change of the encoder did.

    Attributes:
        encoder, previous: the encoder of the collection now, and that of the spare one.
        spare: the name of the other collection: the one before, or the one that did not switch.
        switched: whether the collection answers with another encoder now.
        encoded: the texts that were encoded.
        left: a sentence for each version that answered before the switch and does not now: it
            was learned in the embeddings of the encoder before.
        comparison: the figures of the promotion test by split; empty if nothing was compared.
    """

    collection: str
    encoder: str
    previous: str
    spare: str
    switched: bool
    reason: str
    documents: int
    encoded: int
    examples: int
    interactions: int
    left: Sequence[str]
    comparison: Mapping[str, Mapping[str, Json]]
    seconds: float


Decision: TypeAlias = tuple[bool, str, Mapping[str, Mapping[str, Json]]]
"""Whether to switch, why, and the comparison."""


def reindex(
    data: Data,
    name: str,
    encoder: str,
    *,
    force: bool = False,
    on_stage: OnStage = lambda stage, done: None,
) -> Reindexed:
    """Encode a collection with another encoder, and let it answer unless the old one is better.

    An interrupted call is resumed by the next: documents that are encoded are not encoded again.

    Args:
        encoder: the name or the folder of a model.
        force: switch whatever the comparison says.
        on_stage: receives the stage and its progress, 0 to 1.

    Raises:
        InvalidRequest: the collection has vectors of its own, or this encoder already.
        CollectionExists: another collection has the name of the spare one.
        Unsupported: the engine is not a data folder.
    """
    if not data.capabilities.reindex:
        raise data.capabilities.lacking("reindex")
    source = data.collection(data.resolve(name))
    target = _spare_with(data, source, encoder)
    move = _Move(data, source, target, on_stage)
    return move.run(lambda: _decide(source, target, force, on_stage))


def rollback(data: Data, name: str, *, on_stage: OnStage = lambda stage, done: None) -> Reindexed:
    """Answer with the encoder before again, with everything that was written since.

    Raises:
        Conflict: no collection was kept.
    """
    name = data.resolve(name)
    spare = _spare_name(name)
    previous = data.collection(spare) if spare in data.names() else None
    if previous is None or previous.store.settings().get("replaced") is None:
        raise Conflict(
            f"The collection {name!r} has no encoder to go back to: {spare!r} is not there, or it "
            f"never answered. 'attend reindex --encoder' makes one.",
            field="collection",
        )
    move = _Move(data, data.collection(name), previous, on_stage)
    return move.run(lambda: (True, "The encoder before answers again.", {}))


class _Move:
    """Brings one collection up to date with another, and lets them change places."""

    def __init__(
        self, data: Data, source: Collection, target: Collection, on_stage: OnStage
    ) -> None:
        self._started = time.perf_counter()
        self._data, self._on_stage = data, on_stage
        self._source, self._target = source, target
        self._stores = _local(source), _local(target)
        self._copied: Mapping[str, bytes] = {}
        self._revision = -1, -1
        self._encoded = 0
        self._left: list[str] = []
        if self._stores[1].settings().get("replaced") is not None:
            # It takes writes again, and stays one that has answered: a rollback can be repeated.
            self._stores[1].put_settings({"replaced": False})

    def follow(self) -> None:
        """Write what the source has, and what it gets meanwhile."""
        for _ in range(ROUNDS):
            if not self._catch_up():
                return

    def switch(self) -> None:
        """Let the target take the source's name, with every write that the source took."""
        self.follow()
        encoder, self._left = self._source.settings.encoder, []
        for role in ROLES:
            version = self._stores[0].active(role)
            if version is None or not (
                version.kind != "identity" or version.tuning or version.report
            ):
                continue  # nothing was learned
            if role == "recommend" and self._carry(version):
                continue
            objective = objective_of(version)
            again = f"'attend train --objective {objective}' learns it" if objective else "learn it"
            self._left.append(
                f"Version {version.version} ({version.role}) is for embeddings of {encoder} and "
                f"was left there; {again} again."
            )
        # First: they count from the moment that the folder has this name.
        marks = {"spare_of": self._source.name, "replaced": self._target.name}
        self._stores[0].put_settings(marks, soon=False)
        # Writers wait from here on, and then find that the collection was replaced.
        with self._stores[0].connections.writing():
            self._catch_up()
            self._data.exchange(self._source.name, self._target.name)
        self._on_stage("switching", 1.0)

    def run(self, decide: Callable[[], Decision]) -> Reindexed:
        """Bring the target up to date, let it answer if that is decided, and return the figures."""
        self.follow()
        self._target.publish(self._on_stage, only_fresh=True)
        switched, reason, comparison = decide()
        if switched:
            self.switch()
        source, target = self._source, self._target
        now, other = (target, source) if switched else (source, target)
        store = self._stores[1]
        return Reindexed(
            collection=source.name,
            encoder=now.settings.encoder or "",
            previous=other.settings.encoder or "",
            spare=target.name,
            switched=switched,
            reason=reason,
            documents=store.counts()[0],
            encoded=self._encoded,
            examples=store.example_count(),
            interactions=store.interaction_counts()[0],
            left=self._left,
            comparison=comparison,
            seconds=round(time.perf_counter() - self._started, 3),
        )

    def _catch_up(self) -> bool:
        """Copy what changed since the last call; return whether anything did."""
        revision, documents = digests(self._stores[0])
        if revision == self._revision:
            return False
        changed = [id for id, digest in documents.items() if self._copied.get(id) != digest]
        for start in range(0, len(changed), WINDOW):
            self._write(changed[start : start + WINDOW])
            self._on_stage("encoding", (start + WINDOW) / len(changed))
        delete_others(self._target, documents)
        copy_feedback(*self._stores, self._target.encoder().encode_queries)
        self._copied, self._revision = documents, revision
        return True

    def _carry(self, version: StoredProjection) -> bool:
        """Let the target recommend by the same weights between documents, if it has no version.

        Returns: whether it does. Only a closed form without attention holds for any encoder.
        """
        before, after = self._stores
        origin, present = f"{version.version} {version.fingerprint}", after.active("recommend")
        carried = None if present is None else present.note.get("carried")
        if carried == origin:
            return True
        terms = before.version(version.version).terms.get(ITEMS)
        plain = (version.report.get("chosen") or {}).get("recipe") == "none"
        if terms is None or not plain or (present is not None and carried is None):
            return False
        documents = before.documents(terms.rows, texts=False)
        ids = {row: document.id for row, document in documents.items()}
        rows = after.rows_of(list(ids.values()))
        sources = np.array([row for row in ids if ids[row] in rows], dtype=np.int64)
        targets = np.array([rows[ids[row]] for row in sources.tolist()], dtype=np.int64)
        order = np.argsort(targets)
        weights = ItemWeights.unpacked(terms).matrix(sources)[order][:, order]
        settings, mean = self._target.settings, self._target.views.mean()
        unit, scorer = settings.unit_embeddings, settings.scorer
        projection = Version.centred(mean, unit=unit, scorer=scorer).projection.materialised()
        number = after.add_projection(
            projection.kind,
            projection.to_bytes(),
            projection.fingerprint,
            {**version.note, "carried": origin},
            tuning=version.tuning,
            # Without the last interaction that it knows, whose number is another here.
            report={**version.report, "last_interaction": -1},
            terms={ITEMS: ItemWeights.of(targets[order], weights).packed()},
            role="recommend",
        )
        self._target.activate(number)
        return True

    def _write(self, ids: Sequence[str]) -> None:
        documents = sorted(self._source.store.find(ids).values(), key=lambda one: one.row)
        self._encoded += self._target.write(
            [Document(one.id, dict(one.fields), {}, one.value, one.payload) for one in documents]
        ).encoded


def _decide(source: Collection, target: Collection, force: bool, on_stage: OnStage) -> Decision:
    def progress(stage: str, done: float) -> None:
        on_stage("comparing", done)

    try:
        verdict = compare_encoders(source, target, progress)
    except NothingToLearn as nothing:
        return True, f"The encoders could not be compared. {nothing}", {}
    if verdict.promote or not force:
        return verdict.promote, verdict.reason, verdict.views
    return True, f"Switched by force. {verdict.reason}", verdict.views


def _spare_name(name: str) -> str:
    return name[: 63 - len(SPARE)] + SPARE


def _spare_with(data: Data, source: Collection, encoder: str) -> Collection:
    """Return the spare collection with an encoder: an interrupted one, or a new one."""
    _check_texts(source, encoder)
    name = _spare_name(source.name)
    spare = data.collection(name) if name in data.names() else None
    if spare is not None:
        if spare.store.settings().get("spare_of") != source.name and spare.store.counts()[0]:
            raise CollectionExists(
                f"The collection {name!r} exists, and its name is needed for the new index; give "
                f"it another name or drop it.",
                field="collection",
            )
        if spare.settings.encoder != canonical_name(encoder):
            data.drop(name)
            spare = None
    if spare is None:
        stored: dict[str, Any] = {**source.settings.stored(), "encoder": encoder}
        fields = CollectionSettings.model_fields.keys() - {"dimension"}
        settings = {field: stored[field] for field in fields}  # all others are copied
        spare = data.create(name, **settings)
    spare.store.put_settings({"spare_of": source.name})  # before any document is in it
    return spare


def _check_texts(source: Collection, encoder: str) -> None:
    if source.settings.encoder is None:
        raise InvalidRequest(
            f"The collection {source.name!r} has vectors of its own and no texts to encode; build "
            f"another collection from other vectors.",
            field="encoder",
        )
    if source.settings.encoder == canonical_name(encoder):
        raise InvalidRequest(
            f"The collection {source.name!r} has the encoder {encoder!r} already.", field="encoder"
        )
    count = count_own_vectors(_local(source))
    if count:
        raise InvalidRequest(
            f"{count} documents of {source.name!r} bring vectors of their own, which another "
            f"encoder cannot make; build another collection.",
            field="encoder",
        )


def _local(collection: Collection) -> Store:
    store = collection.store
    assert isinstance(store, Store)  # `reindex` is a capability of data folders alone
    return store
