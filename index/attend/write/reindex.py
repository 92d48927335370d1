"""Another encoder for a collection that goes on answering.

The documents are encoded into a spare collection beside the one in use, which goes on taking
writes; what was written meanwhile follows. Both are compared by the promotion test, and change
places in one step. The spare one is then the one before, to which a rollback goes back.

Where there are many documents, the spare one gets mapped keys first: those of the encoder before,
turned into the space of the new one (`attend.learning.encoders`). If they are good enough and pass
the promotion test, the collections change places within a minute. Then the texts are encoded in the
collection that answers, those that logged searches need most first; each takes the place of the
mapped keys of its document, and both kinds are searched as one index. At the end both encoders are
compared once more, and the one before answers again if the new one does not pass.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from attend.api.base import parse
from attend.api.documents import CollectionSettings
from attend.api.search import MAX_BATCH, SearchRequest
from attend.collection.collection import Collection
from attend.collection.data import Data
from attend.collection.versions import Version
from attend.core.errors import CollectionExists, Conflict, EncoderError, InvalidRequest
from attend.core.types import Document, Json, OnStage
from attend.encoder import canonical_name
from attend.learning.encoders import EmbeddingMap, compare_encoders, fit_map
from attend.learning.interactions import ITEMS
from attend.learning.task import FEWEST_QUESTIONS, NothingToLearn, objective_of
from attend.recommend.weights import ItemWeights
from attend.search.foreign import PASSAGES, passages
from attend.store import ROLES, KeyRow, Role, StoredDocument, StoredProjection
from attend.store.copying import copy_feedback, count_own_vectors, digests
from attend.store.database import Store
from attend.store.mapped import (
    ALL,
    SETTING,
    delete_state,
    embedded_keys,
    mapped_ids,
    replace_keys,
)
from attend.store.searches import FILE
from attend.write.build import WINDOW, delete_others
from attend.write.ingest import Ingest

SPARE = "-spare"
"""The end of a spare collection's name."""

ROUNDS = 10
"""How often the spare collection follows the writes before writers wait for it."""

TEXTS, FEWEST_TEXTS, FIT_SECONDS = 3000, 1000, 15.0
"""Texts that both encoders encode for a map, of which fewer do where they take longer."""

SEED = 20170612

FEWEST_MAPPED = 2 * TEXTS
"""With fewer documents no keys are mapped: their texts are encoded in little more time."""

LEAST_RECALL = 0.7
"""Of a map, from which on mapped keys answer."""

MAPPED_AT_ONCE = 2048

LOGGED = 10_000
"""Searches of the log by which documents are put in order."""

DEPTH = 50
"""Hits of a logged text: by mapped keys they have .87 to 1 of the ten nearest (CoNaLa, SciFact)."""

ORDERED = 16 * WINDOW
"""Documents encoded before they are put in order again, by what searches have shown meanwhile."""


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
        bridge: the map of keys: whether mapped ones answered, why (`reason`), its kind (`map`), its
            `recall` of the ten nearest, the `texts` that it was fitted on, and the `seconds` until
            the first answer of the new encoder; None where none was fitted.
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
    bridge: Mapping[str, Json] | None = None


Decision: TypeAlias = tuple[bool, str, Mapping[str, Mapping[str, Json]]]
"""Whether to switch, why, and the comparison."""


def reindex(
    data: Data,
    name: str,
    encoder: str,
    *,
    force: bool = False,
    bridge: bool = True,
    on_stage: OnStage = lambda stage, done: None,
) -> Reindexed:
    """Encode a collection with another encoder, and let it answer unless the old one is better.

    An interrupted call is resumed by the next: documents that are encoded are not encoded again.

    Args:
        encoder: the name or the folder of a model.
        force: switch whatever the comparison says.
        bridge: let mapped keys answer while the texts of many documents are encoded.
        on_stage: receives the stage and its progress, 0 to 1.

    Raises:
        InvalidRequest: the collection has vectors of its own, or this encoder already.
        CollectionExists: another collection has the name of the spare one.
        Conflict: the collection is on its way to another encoder.
        Unsupported: the engine is not a data folder.
    """
    if not data.capabilities.reindex:
        raise data.capabilities.lacking("reindex")
    started = time.perf_counter()
    source = data.collection(data.resolve(name))
    if _state(source):
        if source.settings.encoder == canonical_name(encoder):
            return _finish(data, source.name, force, on_stage)
        raise Conflict(
            f"The collection {source.name!r} is on its way to {source.settings.encoder}: run "
            f"'attend reindex --encoder {source.settings.encoder}' to its end, or --rollback.",
            field="encoder",
        )
    target = _spare_with(data, source, encoder)
    move = _Move(data, source, target, on_stage)
    move.started = started  # a new encoder is read and measured before
    if bridge and move.bridge(force):
        return _finish(data, source.name, force, on_stage, move.started)
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
        self.started = time.perf_counter()
        self._data, self._on_stage = data, on_stage
        self._source, self._target = source, target
        self._stores = _local(source), _local(target)
        self._copied: Mapping[str, bytes] = {}
        self._revision = -1, -1
        self._encoded = 0
        self._left: list[str] = []
        self._bridge: dict[str, Json] | None = None
        self._map: EmbeddingMap | None = None
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
        self._left = [*self._leave().values()]
        # First: they count from the moment that the folder has this name.
        marks = {"spare_of": self._source.name, "replaced": self._target.name}
        self._stores[0].put_settings(marks, soon=False)
        # Writers wait from here on, and then find that the collection was replaced.
        with self._stores[0].connections.writing():
            self._catch_up()
            _take_log(self._source, self._target)
            self._data.exchange(self._source.name, self._target.name)
        # What was logged meanwhile; a search that is not written by now is lost.
        before, now = map(self._data.collection, (self._target.name, self._source.name))
        _take_log(before, now)
        if before.log is not None:
            before.log.delete()
        self._on_stage("switching", 1.0)

    def _leave(self) -> dict[Role, str]:
        """Return a sentence for each version that does not answer after the switch, by role."""
        encoder, left = self._source.settings.encoder, dict[Role, str]()
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
            left[role] = (
                f"Version {version.version} ({version.role}) is for embeddings of {encoder} and "
                f"was left there; {again} again."
            )
        return left

    def bridge(self, force: bool) -> bool:
        """Let the target answer with mapped keys if they are good enough; return whether it does.

        What was learned goes on answering until the texts are encoded, unless mapped keys are
        proved better. Their promotion test does not count as a look: it is the last that decides.
        """
        state = _state(self._target)
        if not state or state["until"] == ALL:
            state = self._map_keys(state.get("after"))
        else:
            self.follow()
        if not state:
            return False
        if self._target.views.has_fresh():  # the test of foreign queries can wait
            self._target.views.publish(self._on_stage)
        answers, reason, comparison = _decide(
            self._source, self._target, force, self._on_stage, counts=False
        )
        self.follow()
        left = self._leave()
        unproved = [left[role] for role in left if role != "search" or not comparison]
        if answers and unproved:
            answers, reason = False, f"What was learned answers until the end. {unproved[0]}"
        seconds = round(time.perf_counter() - self.started, 3) if answers else None
        state |= {"answers": answers, "reason": reason, "force": force, "seconds": seconds}
        state["left"] = [*left.values()]
        self._stores[1].put_settings({SETTING: state})
        if answers:
            self.switch()
        return answers

    def _map_keys(self, after: int | None) -> dict[str, Any]:
        """Write the source's documents with mapped keys, and return the state; empty for none.

        Args:
            after: the last key before mapped ones, where a run was interrupted here.
        """
        ids = list(digests(self._stores[0])[1])
        fitted = self._fit(ids) if len(ids) >= FEWEST_MAPPED else None
        if fitted is None:
            return {}
        to_target, recall, texts = fitted
        state: dict[str, Any] = {
            "encoder": self._source.settings.encoder,
            "map": to_target.kind,
            "recall": round(recall, 4),
            "texts": texts,
            "after": self._stores[1].state().last_key if after is None else after,
            "until": ALL,
            "answers": False,
            "reason": "",
            "seconds": None,
            "force": False,
            "left": [],
        }
        if recall < LEAST_RECALL:
            reason = f"Mapped keys have a recall of {recall:.2f}, below {LEAST_RECALL:g}."
            self._bridge = _bridge_of({**state, "reason": reason})
            return {}
        self._stores[1].put_settings({SETTING: state})  # before any mapped key is there
        self._map = to_target
        self.follow()
        self._map = None
        state["until"] = self._stores[1].state().last_key
        self._stores[1].put_settings({SETTING: state})
        return state

    def _fit(self, ids: Sequence[str]) -> tuple[EmbeddingMap, float, int] | None:
        """Fit a map on a passage of each of some documents; None where too few have keys.

        Returns: the map, its recall, and the number of passages.
        """
        began, encoder = time.perf_counter(), self._target.encoder()
        order = np.random.default_rng(SEED).permutation(len(ids))
        sampled = [ids[place] for place in order[:TEXTS].tolist()]
        documents: list[StoredDocument] = []
        before, after = list[Any](), list[Any]()
        for start in range(0, len(sampled), WINDOW):
            self._on_stage("mapping", start / len(sampled))
            window = list(self._stores[0].find(sampled[start : start + WINDOW]).values())
            keys = embedded_keys(self._stores[0], [document.row for document in window])
            window = [document for document in window if document.row in keys]
            first = [keys[document.row][0] for document in window]
            texts = [
                document.fields[key.field][key.start : key.stop]
                for document, key in zip(window, first, strict=True)
            ]
            documents += window
            before += [key.embedding for key in first]
            after.append(encoder.encode_documents(texts))
            is_late = time.perf_counter() - began > FIT_SECONDS
            if is_late and len(documents) >= FEWEST_TEXTS:
                break
        if len(documents) < FEWEST_TEXTS:
            return None
        queries = [text for text in passages(documents[:PASSAGES]) if text]
        questions = encoder.encode_queries(queries)
        to_target, recalls = fit_map(np.stack(before), np.concatenate(after), questions)
        return to_target, recalls[to_target.kind], len(documents)

    def run(self, decide: Callable[[], Decision]) -> Reindexed:
        """Bring the target up to date, let it answer if that is decided, and return the figures."""
        self.follow()
        bridge = self._bridge or _bridge_of(_state(self._target))
        if _state(self._target):
            self._encoded += _encode_mapped(self._target, self._source, self._on_stage)
            self.follow()
            delete_state(self._stores[1])
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
            seconds=round(time.perf_counter() - self.started, 3),
            bridge=bridge,
        )

    def _catch_up(self) -> bool:
        """Copy what changed since the last call; return whether anything did."""
        revision, documents = digests(self._stores[0])
        if revision == self._revision:
            return False
        changed = [id for id, digest in documents.items() if self._copied.get(id) != digest]
        mapped = self._map is not None
        step, stage = (MAPPED_AT_ONCE, "mapping") if mapped else (WINDOW, "encoding")
        for start in range(0, len(changed), step):
            self._write(changed[start : start + step])
            self._on_stage(stage, (start + step) / len(changed))
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
        if self._map is not None:
            documents = self._written_mapped(documents, self._map)
        self._encoded += self._target.write(_documents(documents)).encoded

    def _written_mapped(
        self, documents: Sequence[StoredDocument], to_target: EmbeddingMap
    ) -> list[StoredDocument]:
        """Write documents whose texts the target lacks, with mapped keys; return the others."""
        entries = list(map(self._target.prepare, _documents(documents)))
        stored = self._stores[1].hashes([document.id for document in documents])
        keys = embedded_keys(self._stores[0], [document.row for document in documents])
        others, lacking = [], []
        for document, entry in zip(documents, entries, strict=True):
            hashes = stored.get(document.id)
            if hashes is not None and hashes.keys == entry.hashes.keys:
                others.append(document)
            else:
                lacking.append(replace(entry, keys=keys.get(document.row, [])))
        rows = [key for entry in lacking for key in entry.keys or ()]
        if rows:
            mapped = iter(to_target(np.stack([key.embedding for key in rows])))
            lacking = [
                replace(
                    entry,
                    keys=[KeyRow(*key[:3], next(mapped), "mapped") for key in entry.keys or ()],
                )
                for entry in lacking
            ]
        self._stores[1].write(lacking)
        return others


def _take_log(source: Collection, target: Collection) -> None:
    """Copy the log of searches, with the rows that the same documents have there."""
    if source.log is None:
        return
    (target.folder / FILE).touch()
    assert target.log is not None  # its file is there
    rows, theirs = (one.store.rows_of([*_local(one).all_ids()]) for one in (source, target))
    target.log.take(source.log, {row: theirs[id] for id, row in rows.items() if id in theirs})


def _documents(stored: Sequence[StoredDocument]) -> list[Document]:
    return [Document(one.id, dict(one.fields), {}, one.value, one.payload) for one in stored]


def _state(collection: Collection) -> dict[str, Any]:
    """Return the state of a move by mapped keys; empty where there is none."""
    state: dict[str, Any] = collection.store.settings().get(SETTING) or {}
    return state


def _bridge_of(state: Mapping[str, Any]) -> dict[str, Json] | None:
    names = ("answers", "reason", "map", "recall", "texts", "seconds")
    return {name: state.get(name) for name in names} if state else None


def _finish(
    data: Data, name: str, force: bool, on_stage: OnStage, started: float | None = None
) -> Reindexed:
    """Encode the texts of a collection that answers with mapped keys, and compare at the end."""
    started = time.perf_counter() if started is None else started
    target, spare = data.collection(name), _spare_name(name)
    state = _state(target)
    previous = data.collection(spare) if spare in data.names() else None
    encoded = _encode_mapped(target, previous, on_stage)
    decision: Decision = True, state["reason"], {}
    settled = force or state["force"] or _local(target).question_count() < FEWEST_QUESTIONS
    if previous is not None and not settled:
        back = _Move(data, target, previous, on_stage)
        try:
            back.follow()
            decision = _decide(previous, target, False, on_stage)
        except EncoderError as error:
            decision = True, f"The encoders could not be compared. {error}", {}
        if decision[0]:
            previous.store.put_settings({"replaced": spare}, soon=False)
        else:
            back.switch()
    switched, reason, comparison = decision
    target = data.collection(name if switched else spare)
    store = _local(target)
    delete_state(store)
    target.publish(on_stage)  # as the index of any collection
    other = target if previous is None else previous
    now, other = (target, other) if switched else (other, target)
    return Reindexed(
        collection=name,
        encoder=now.settings.encoder or "",
        previous=other.settings.encoder or "",
        spare=spare,
        switched=switched,
        reason=reason,
        documents=store.counts()[0],
        encoded=encoded,
        examples=store.example_count(),
        interactions=store.interaction_counts()[0],
        left=state["left"] if switched else [],
        comparison=comparison,
        seconds=round(time.perf_counter() - started, 3),
        bridge=_bridge_of(state),
    )


def _encode_mapped(target: Collection, before: Collection | None, on_stage: OnStage) -> int:
    """Encode the documents that have mapped keys, those that logged searches need most first.

    Args:
        before: a collection whose log counts too.

    Returns: the number of texts encoded.
    """
    store, encoded, state = _local(target), 0, _state(target)
    span = state["after"], state["until"]
    total = len(ids := mapped_ids(store, span))
    ingest = Ingest(store, target.settings, target.encoder)
    while ids:
        needed = _needed(target, before)
        ids.sort(key=lambda id: -needed.get(id, 0))
        for start in range(0, min(len(ids), ORDERED), WINDOW):
            window = ids[start : start + WINDOW]
            hashes = store.hashes(window)  # first: a text that changes now has another
            stored = [one for one in store.find(window).values() if one.id in hashes]
            entries, count = ingest.encode(_documents(stored))
            pairs = zip(stored, entries, strict=True)
            replace_keys(store, [(one.row, new, hashes[one.id].keys) for one, new in pairs], span)
            encoded += count
            target.merge_if_due()
            on_stage("encoding", 1 - (len(ids) - start - len(window)) / total)
        ids = mapped_ids(store, span)
    return encoded


def _needed(target: Collection, before: Collection | None) -> dict[str, float]:
    """Return how much the searches of the log need each document.

    The most frequent texts are searched again, deeper: the right hits are among those of mapped
    keys, in another order. A hit that was shown counts as the last of them.
    """
    needed, texts = defaultdict[str, float](float), Counter[str]()
    for collection in (target, before):
        if collection is None or collection.log is None:
            continue
        searches = collection.log.latest(LOGGED)
        texts.update(search.query for search in searches if search.query)
        rows = Counter(row for search in searches for row in search.rows)
        documents = collection.store.documents(np.array(sorted(rows), np.int64), texts=False)
        for row, document in documents.items():
            needed[document.id] += rows[row] / DEPTH
    frequent = texts.most_common(MAX_BATCH)
    options = {"k": DEPTH, "lexical": False}
    requests = [parse(SearchRequest, {"query": text, **options}) for text, _ in frequent]
    for result, (_, count) in zip(target.answered(requests, live=False), frequent, strict=True):
        for rank, hit in enumerate(result.answer.hits, 1):
            needed[hit.id] += count / rank
    return needed


def _decide(
    source: Collection,
    target: Collection,
    force: bool,
    on_stage: OnStage,
    *,
    counts: bool = True,
) -> Decision:
    def progress(stage: str, done: float) -> None:
        on_stage("comparing", done)

    try:
        verdict = compare_encoders(source, target, progress, counts=counts)
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
