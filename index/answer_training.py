"""Training by the answer objective: from stored values to a version that answers rightly.

Nothing is taught here but by the documents themselves: each one's value is what a query like it
should be answered with. Documents are held out in folds, near-duplicates together, and answered
by the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from index.answering import KEY, check_path, value_of
from index.collection import Collection
from index.errors import InvalidRequest
from index.learn.answers import Answers, Matrices, Recipe, Targets, fit
from index.learn.blended import (
    Held,
    attended,
    auroc,
    calibrate_answers,
    compared,
    confidences_before_null,
    fit_scale,
    gains,
    guards,
    joined,
)
from index.learn.calibrate import ATTEND, Calibration
from index.learn.data import Memory, twins
from index.learn.fit import Watch as Told
from index.learn.fit import unlearned
from index.learn.gate import SIGNIFICANCE
from index.learn.trial import one_thread_each
from index.searching import TYPE_SAMPLE
from index.statistics import difference_interval, paired_randomisation
from index.store import StoredDocument, StoredProjection
from index.training import TrainRequest, Watch, _active, _projection, _start
from index.tuning import Tuning
from index.types import Float32, Float64, Int64, Json
from index.values import ValueType, infer, parse_type
from index.versions import Version

FEWEST = 20
"""Documents with values: fewer prove nothing (see `training.FEWEST_QUESTIONS`)."""

FOLDS = 3

MOST_DOCUMENTS = 20_000
"""What is learned from; of more, a sample."""

MOST_HELD = 2500
"""Documents by which a fold is judged."""

TWIN_COSINE = 0.98
"""Documents nearer than this say the same but for case and stops: they share a fold, and are no
memory of each other."""

RECIPES: Mapping[str, Recipe] = {each.name: each for each in (Recipe("leave one out"),)}

BLOCK = 4096
"""Documents read at once."""

SHARES = (0.5, 1.0)
"""How far from the start to what was learned."""

LABELLED = ("category", "labels", "boolean")
NUMERIC = ("number", "vector")

Result = TypeVar("Result")


class Choice(NamedTuple):
    """A recipe, or none, and how far to go its way."""

    recipe: str | None
    share: float


FROZEN = Choice(None, 1.0)


class Material(NamedTuple):
    """What is learned from, and figures about it; or why nothing can be."""

    answers: Answers | None
    reason: str
    figures: Mapping[str, Json]


class Fold(NamedTuple):
    """Documents that are held out (h,), and those that answer them (m,)."""

    held: Int64
    members: Int64


class Judged(NamedTuple):
    """Every held-out document, by the active version and by what the other folds would choose."""

    before: Float64
    after: Float64
    guard_before: Float64
    guard_after: Float64


class Verdict(NamedTuple):
    """Whether to promote, why, and the figures of each measure."""

    promote: bool
    reason: str
    views: Mapping[str, Mapping[str, Json]]


def train_answers(collection: Collection, request: TrainRequest, watch: Watch) -> dict[str, Json]:
    """Learn what makes blended values right, and answer by it if that is better beyond doubt.

    Labels (categories, lists of labels, booleans) are judged by the log of the share that the
    right ones get in the answer, which sees every probability and not the largest alone; numbers
    and vectors by squared error. A version is promoted by a significant gain in that, and never
    with a significant loss in accuracy (of numbers, in absolute error).

    Returns: the report of `training.train`.

    Raises:
        InvalidRequest: values that cannot be learned as the request names them.
        Cancelled: whoever watches said so.
    """
    return _AnswerTraining(collection, request, watch).run()


class _AnswerTraining:
    """One training by the answer objective."""

    def __init__(self, collection: Collection, request: TrainRequest, watch: Watch) -> None:
        self.collection, self.request, self.watch = collection, request, watch
        self.began = time.perf_counter()
        scorer = collection.settings.scorer
        if scorer not in ("dot", "cosine"):
            raise InvalidRequest(
                f"The collection {collection.name!r} compares by {scorer!r}; W_Q and W_K are "
                f"learned for 'dot' and 'cosine'. Make a collection with one of these.",
                field="scorer",
            )

    def run(self) -> dict[str, Json]:
        self.watch("reading", 0.0)
        material = gathered(self.collection, self.request)
        if material.answers is None:
            return self._nothing(material)
        answers = material.answers
        start = _start(answers.memory, self.request.dimensions)
        divided = folds(answers.groups, FOLDS, self.request.seed)
        if len(divided) < FOLDS:
            reason = (
                "The documents are a few texts many times over, so that none can be held out to "
                "prove anything; add different ones."
            )
            return self._nothing(material._replace(reason=reason))
        trial = Trial(answers, start, self.request.seed)
        trial.run(divided, lambda done: self.watch("trying", done))
        self.watch("judging", 0.0)
        before = _before(self.collection, answers, trial, divided)
        verdict = decided(trial.judged(before), answers.targets)
        choice = trial.best(range(FOLDS))[0]
        if not verdict.promote and self.request.promote:
            return self._report(verdict, choice, material)
        self.watch("fitting", 0.0)
        matrices = trial.final(choice, lambda done: self.watch("fitting", done))
        self.watch("calibrating", 0.0)
        calibration, figures = self._calibrated(trial, choice)
        return self._store(verdict, choice, material, matrices, calibration, figures)

    def _calibrated(self, trial: Trial, choice: Choice) -> tuple[Calibration, dict[str, Json]]:
        """Scale, null and threshold by everything held out; and how well confidence tells."""
        held, targets = joined(trial.held[choice]), trial.answers.targets
        start = trial.answers.memory.scale
        found = calibrate_answers(held, targets, start, self.request.error_rate)
        known, hidden = confidences_before_null(held, found.scale)
        tells = auroc(known, hidden) if len(known) and len(hidden) else None
        return found, {**vars(found), "auroc": tells}

    def _store(
        self,
        verdict: Verdict,
        choice: Choice,
        material: Material,
        matrices: Matrices,
        calibration: Calibration,
        figures: Mapping[str, Json],
    ) -> dict[str, Json]:
        assert material.answers is not None  # something was learned
        settings, memory = self.collection.settings, material.answers.memory
        fitted = unlearned(memory, matrices.w_q)._replace(w_k=matrices.w_k)
        projection = _projection(fitted, memory, settings)
        tuning = Tuning(
            scale=(calibration.scale,),
            null=None if calibration.null is None else (calibration.null,),
            attend=ATTEND,
            scorer=settings.scorer,
            threshold=calibration.threshold,
            error_rate=calibration.error_rate,
        )
        self.watch("storing", 0.0)
        promote = self.request.promote and verdict.promote
        report = self._report(verdict, choice, material)
        report |= {"calibration": figures, "promoted": promote}
        version = self.collection.store.add_projection(
            projection.kind,
            projection.to_bytes(),
            projection.fingerprint,
            {"learned": True},
            tuning=tuning.stored(),
            report=report,
        )
        if promote:
            # Told, but no longer asked whether to stop: what is stored now is to be of use.
            self.watch.progress("activating", 0.0)
            self.collection.activate(version)
        self.watch.progress("done", 1.0)
        return report | {"version": version, "seconds": self._seconds()}

    def _report(self, verdict: Verdict, choice: Choice, material: Material) -> dict[str, Json]:
        return {
            "promoted": False,
            "reason": verdict.reason,
            "version": None,
            "before": {name: each["before"] for name, each in verdict.views.items()},
            "after": {name: each["after"] for name, each in verdict.views.items()},
            "views": dict(verdict.views),
            "chosen": {
                "objective": "answers",
                "recipe": choice.recipe or "none",
                "share": choice.share,
                "value": self.request.value,
                "attend": ATTEND,
                "dimensions": self.request.dimensions,
            },
            **material.figures,
            "seconds": self._seconds(),
        }

    def _nothing(self, material: Material) -> dict[str, Json]:
        empty: dict[str, Json] = {
            name: {} for name in ("before", "after", "views", "chosen", "calibration")
        }
        return {
            "promoted": False,
            "reason": material.reason,
            "version": None,
            **empty,
            **material.figures,
            "seconds": self._seconds(),
        }

    def _seconds(self) -> float:
        return round(time.perf_counter() - self.began, 3)


class Trial:
    """Held-out documents under every choice.

    Attributes:
        held: of each choice, what every fold's documents attend to.
    """

    def __init__(self, answers: Answers, start: Float32, seed: int) -> None:
        self.answers, self.start, self.seed = answers, start, seed
        self.frozen = Matrices(start, start)
        self.held: dict[Choice, list[Held]] = {}

    def run(self, divided: Sequence[Fold], watch: Told) -> None:
        """One fit for each fold and recipe; every share of it looked at."""
        names = [None, *RECIPES]
        jobs = [partial(self._try, name, fold) for name in names for fold in divided]
        for found in together(jobs, watch):
            for choice, held in found.items():
                self.held.setdefault(choice, []).append(held)

    def final(self, choice: Choice, watch: Told) -> Matrices:
        """The choice, fitted to all documents."""
        if choice.recipe is None:
            return self.frozen
        everything = np.arange(self.answers.memory.documents)
        job = partial(self._fitted, choice.recipe, everything)
        return together([job], watch)[0].mixed(self.start, choice.share)

    def best(self, by: Sequence[int]) -> tuple[Choice, float]:
        """The choice under which the documents of some folds are answered best, and its scale."""
        found = {}
        for choice, held in self.held.items():
            scale, gain = fit_scale(
                joined([held[at] for at in by]), self.answers.targets, self.answers.memory.scale
            )
            found[choice] = gain, scale
        choice = max(found, key=lambda each: (found[each][0], each.recipe is None))
        return choice, found[choice][1]

    def judged(self, before: Sequence[tuple[Held, float]]) -> Judged:
        """Each fold by the choice and the scale of the others: what a choice looks like on the
        documents that it was made by is better than it is."""
        targets = self.answers.targets
        columns: list[tuple[Float64, ...]] = []
        for at, (held, scale) in enumerate(before):
            choice, own = self.best([other for other in range(len(before)) if other != at])
            chosen = self.held[choice][at]
            columns.append(
                (
                    gains(held, targets, scale),
                    gains(chosen, targets, own),
                    guards(held, targets, scale),
                    guards(chosen, targets, own),
                )
            )
        return Judged(*(np.concatenate(each) for each in zip(*columns, strict=True)))

    def _try(self, name: str | None, fold: Fold, watch: Told) -> dict[Choice, Held]:
        if name is None:
            watch(1.0)
            return {FROZEN: self._attended(self.frozen, fold)}
        matrices = self._fitted(name, fold.members, watch)
        return {
            Choice(name, share): self._attended(matrices.mixed(self.start, share), fold)
            for share in SHARES
        }

    def _fitted(self, name: str, members: Int64, watch: Told) -> Matrices:
        recipe = RECIPES[name]
        return fit(self.answers, members, recipe, start=self.start, seed=self.seed, watch=watch)

    def _attended(self, matrices: Matrices, fold: Fold) -> Held:
        return attended(self.answers, compared(self.answers, matrices), *fold)


def together(jobs: Sequence[Callable[[Told], Result]], watch: Told) -> list[Result]:
    """The results of jobs that run at once, each told how to say how far it is.

    What one of them raises, or `watch` does, stops the others.
    """
    lock, done, stopped = threading.Lock(), [0.0] * len(jobs), threading.Event()

    def told(at: int) -> Told:
        def say(share: float) -> None:
            if stopped.is_set():
                raise InterruptedError
            with lock:
                done[at] = max(done[at], share)
                watch(sum(done) / len(jobs))

        return say

    with one_thread_each() as workers:
        running = [workers.submit(job, told(at)) for at, job in enumerate(jobs)]
        try:
            return [each.result() for each in running]
        except BaseException:
            stopped.set()
            raise


def folds(groups: Int64, count: int, seed: int) -> list[Fold]:
    """Documents in folds as large as each other; those of one group are never divided."""
    random = np.random.default_rng(seed)
    names, of = np.unique(groups, return_inverse=True)
    sizes = np.bincount(of)
    order = random.permutation(len(names))
    fold_of = np.empty(len(names), dtype=np.int64)
    fold_of[order] = (np.cumsum(sizes[order]) - 1) * count // max(1, sizes.sum())
    by_document = fold_of[of]
    found = []
    for at in range(count):
        held = np.flatnonzero(by_document == at)
        members = np.flatnonzero(by_document != at)
        if len(held) and len(members):
            found.append(Fold(_sampled(held, MOST_HELD, random), members))
    return found


def decided(judged: Judged, targets: Targets) -> Verdict:
    """A significant gain in what is learned, and no significant loss in the second measure.

    Significance is that of the paired randomisation test at 5 %.
    """
    labels = targets.shares is not None
    first, second = ("log likelihood", "accuracy") if labels else ("squared error", "error")
    sign = 1.0 if labels else -1.0
    views = {
        first: _figures(judged.before, judged.after, sign),
        second: _figures(judged.guard_before, judged.guard_after, sign),
    }
    gained = _significant(views[first]) and judged.after.mean() > judged.before.mean()
    lost = _significant(views[second]) and judged.guard_after.mean() < judged.guard_before.mean()
    if gained and not lost:
        why = f"The gain in {first} is significant, and {second} is no worse"
    elif lost:
        why = f"It loses in {second}"
    elif judged.after.mean() > judged.before.mean():
        why = "The gain may be chance; more documents with values may show it"
    else:
        why = "Nothing was found that answers held-out documents better"
    said = "; ".join(
        f"{name} {each['before']:.4f} → {each['after']:.4f} (p = {each['p']:.4f})"
        for name, each in views.items()
    )
    return Verdict(bool(gained and not lost), f"{why} ({said}).", views)


def gathered(collection: Collection, request: TrainRequest) -> Material:
    """Read documents, their keys and what they answer.

    Raises:
        InvalidRequest: the value named is one that no answer can be learned for.
    """
    documents, type = _read(collection, request)
    kind = type.kind
    figures: dict[str, Json] = {"documents": collection.store.counts()[0], "kind": kind}
    if kind == "object":
        names = ", ".join(type.fields or {})
        raise InvalidRequest(
            f"The values are objects; name the field to learn, one of {names}.", field="value"
        )
    if kind not in (*LABELLED, *NUMERIC):
        reason = (
            f"The values are of the kind {kind!r}, which answers list and do not blend; only "
            f"labels that repeat, numbers and vectors can be learned."
        )
        return Material(None, reason, figures)
    rows, values = _usable(documents, request.value, kind)
    figures["values"] = len(rows)
    if len(rows) < FEWEST:
        reason = (
            f"{len(rows)} documents have a value to learn from, and {FEWEST} are the fewest from "
            f"which a gain can be proved; add more."
        )
        return Material(None, reason, figures)
    kept = np.sort(_sampled(np.arange(len(rows)), MOST_DOCUMENTS, _random(request)))
    targets = _targets([values[at] for at in kept.tolist()], kind)
    if targets is None:
        return Material(None, "All values are the same, and every answer is right.", figures)
    return Material(_answers(collection, rows[kept], targets), "", figures)


def _read(collection: Collection, request: TrainRequest) -> tuple[list[StoredDocument], ValueType]:
    """All documents, and the type of what they answer, as a search would have it."""
    path, store = request.value, collection.store
    if path == KEY:
        raise InvalidRequest(
            f"value is {path!r}, but a key answers nothing that could be right or wrong; name a "
            f"field of the values.",
            field="value",
        )
    documents: list[StoredDocument] = []
    while block := store.scroll(documents[-1].row if documents else 0, BLOCK):
        documents += block
    check_path(path, documents)
    declared = collection.settings.values
    if path is not None:
        declared = declared.get(path) if isinstance(declared, Mapping) else None
    if declared is not None:
        return documents, parse_type(declared, field="values")
    return documents, infer([value_of(each, path) for each in store.sample(TYPE_SAMPLE)])


def _usable(
    documents: Sequence[StoredDocument], path: str | None, kind: str
) -> tuple[Int64, list[Any]]:
    """Rows of the documents whose value has the kind, ascending, and those values."""
    held: list[tuple[int, Any]] = [(each.row, value_of(each, path)) for each in documents]
    alike = _ALIKE.get(kind, (kind,))
    found = [
        (row, value) for row, value in held if value is not None and infer([value]).kind in alike
    ]
    if kind == "vector" and found:
        widths = [len(value) for _, value in found]
        usual = max(set(widths), key=widths.count)
        found = [(row, value) for row, value in found if len(value) == usual]
    return np.array([row for row, _ in found], dtype=np.int64), [value for _, value in found]


_ALIKE = {"category": ("category", "text", "image")}
"""A single string says nothing of whether it repeats."""


def _targets(values: Sequence[Any], kind: str) -> Targets | None:
    """Values as shares of labels or as numbers; None where they are all the same."""
    if kind in NUMERIC:
        numbers = np.array(values, dtype=np.float64).reshape(len(values), -1)
        spread = float(np.sqrt(numbers.var(axis=0).mean()))
        if spread == 0:
            return None
        centred = (numbers - numbers.mean(axis=0)) / spread
        return Targets(numbers=centred.astype(np.float32))
    labels = [tuple(dict.fromkeys(each)) if kind == "labels" else (each,) for each in values]
    names, columns = np.unique([str(name) for each in labels for name in each], return_inverse=True)
    if len(names) < 2:
        return None
    counts = np.array([len(each) for each in labels])
    shares = np.repeat(1 / counts, counts).astype(np.float32)
    pointers = np.concatenate([[0], np.cumsum(counts)])
    shape = len(labels), len(names)
    return Targets(shares=sparse.csr_array((shares, columns, pointers), shape=shape))


def _answers(collection: Collection, rows: Int64, targets: Targets) -> Answers:
    """The keys of some documents (rows ascending), with what they answer."""
    with collection.store.all_keys() as (_, batches):
        kept = []
        for batch in batches:
            chosen = np.isin(batch.documents, rows)
            kept.append((batch.ids[chosen], batch.documents[chosen], batch.embeddings[chosen]))
    ids, documents, embeddings = (np.concatenate(part) for part in zip(*kept, strict=True))
    found, starts = np.unique(documents, return_index=True)
    if not np.array_equal(found, rows):
        raise InvalidRequest("Documents went while they were read; train again.")
    settings = collection.settings
    unit = settings.unit_embeddings or settings.scorer == "cosine"
    memory = Memory(np.ascontiguousarray(embeddings), starts.astype(np.int64), ids, rows, unit)
    queries = (np.add.reduceat(embeddings, starts) / memory.counts[:, None]).astype(np.float32)
    if settings.unit_embeddings:
        length = np.linalg.norm(queries, axis=1, keepdims=True)
        queries = (queries / np.where(length == 0, 1, length)).astype(np.float32)
    return Answers(memory, queries, twins(queries, TWIN_COSINE), targets)


def _before(
    collection: Collection, answers: Answers, trial: Trial, divided: Sequence[Fold]
) -> list[tuple[Held, float]]:
    """What the active version attends to, with its scale; one for each fold.

    A version that was learned from these values has seen them: it stands trial as it came about,
    by its recipe fitted without the documents that judge.
    """
    active: StoredProjection = _active(collection)
    version = Version.of(active.version, collection.store.version(active.version), "cosine")
    chosen = active.report.get("chosen") or {}
    scale = (version.tuning.scale or (collection.settings.scale or answers.memory.scale,))[0]
    name = chosen.get("recipe")
    if chosen.get("objective") == "answers" and (name == "none" or name in RECIPES):
        came = FROZEN if name == "none" else Choice(name, float(chosen["share"]))
        if came in trial.held:
            return [(held, scale) for held in trial.held[came]]
    current = _Current(collection, answers, version)
    return [
        (attended(current.answers, current, *fold), 1.0 if current.several else scale)
        for fold in divided
    ]


class _Current:
    """How the active version scores documents, with its offsets and its example keys."""

    def __init__(self, collection: Collection, answers: Answers, version: Version) -> None:
        with collection.store.all_keys(examples=version.examples) as (_, batches):
            made = [version.keys(batch) for batch in batches]
        vectors, ids, rows = (
            np.concatenate([getattr(each, name) for each in made])
            for name in ("vectors", "ids", "documents")
        )
        kept = np.flatnonzero(np.isin(rows, answers.memory.rows))
        order = kept[np.argsort(rows[kept], kind="stable")]
        _, starts = np.unique(rows[order], return_index=True)
        memory = Memory(vectors[order], starts, ids[order], answers.memory.rows, True)
        projection = version.projection
        self.answers = replace(answers, memory=memory)
        self.queries = projection.queries(answers.queries)  # (n, H, d)
        width = self.queries.shape[2]
        self.keys = memory.embeddings.reshape(len(order), -1, width)  # (m, Hk, d)
        self.gates = projection.gates
        self.scales = np.asarray(version.tuning.scale or (answers.memory.scale,))
        self.several = projection.heads > 1

    def __call__(self, asked: Int64, positions: Int64) -> Float32:
        """(b, m) scores; of several heads the logs of their mixed weights."""
        keys = self.keys[positions]
        if not self.several:
            found: Float32 = self.queries[asked, 0] @ keys[:, 0].T
            return found
        z = np.stack(
            [
                self.queries[asked, head] @ keys[:, min(head, keys.shape[1] - 1)].T
                for head in range(len(self.gates))
            ],
            axis=1,
        ) * self.scales.reshape(-1, 1)  # (b, H, m)
        logs = z - logsumexp(z, axis=2, keepdims=True) + np.log(self.gates)[:, None]
        mixed: Float32 = logsumexp(logs, axis=1).astype(np.float32)
        return mixed


def _figures(before: Float64, after: Float64, sign: float) -> dict[str, Json]:
    """Means with the sign that people read, so that an error is above zero."""
    interval = difference_interval(sign * after, sign * before)
    return {
        "before": float(sign * before.mean()),
        "after": float(sign * after.mean()),
        "difference": float(interval.mean),
        "interval": [float(interval.low), float(interval.high)],
        "p": float(paired_randomisation(after, before)),
        "queries": len(before),
    }


def _significant(figures: Mapping[str, Json]) -> bool:
    p = figures["p"]
    return isinstance(p, float) and p < SIGNIFICANCE


def _sampled(given: Int64, most: int, random: np.random.Generator) -> Int64:
    if len(given) <= most:
        return given
    return np.sort(random.choice(given, most, replace=False))


def _random(request: TrainRequest) -> np.random.Generator:
    return np.random.default_rng(request.seed)
