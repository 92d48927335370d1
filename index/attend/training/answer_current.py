"""What answers now, on held-out documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from attend.attention import default_scale, resolve_scale
from attend.learn.answers.held import Fold, attended, best_keys
from attend.learn.answers.output import Output
from attend.learn.answers.targets import Answers
from attend.learn.data import Memory
from attend.training.answer_trial import Before, Choice, Trial
from attend.training.publish import objective_of
from attend.training.request import Task
from attend.types import Float32, Float64
from attend.versions import Version


def before_of(task: Task, answers: Answers, trial: Trial, divided: Sequence[Fold]) -> list[Before]:
    """How the active version answers each fold.

    A version that was learned from these values has seen them: it stands trial as it came about,
    by its recipe fitted without the documents that judge.
    """
    came = _came_about(task)
    if came in trial.held:
        tuning = task.active.tuning.get("scale") or [answers.memory.scale]
        ridge = (task.active.report.get("chosen") or {}).get("ridge")
        return [Before(held, float(tuning[0]), ridge=ridge) for held in trial.held[came]]
    current = Current(task, answers)
    output = current.output(task.request.value)
    return [Before(attended(current.answers, current, fold), 1.0, output) for fold in divided]


def _came_about(task: Task) -> Choice | None:
    """The choice that the active version was learned by, from the same values in the same way."""
    chosen, request = task.active.report.get("chosen") or {}, task.request
    asked = {"value": request.value, "dimensions": request.dimensions}
    if objective_of(task.active) != "answers" or any(
        chosen.get(name) != given for name, given in asked.items()
    ):
        return None
    share = 0.0 if chosen.get("recipe") == "none" else float(chosen["share"])
    return Choice(share, float(chosen.get("lexical", 0.0)))


class Current:
    """How the active version scores documents, with its offsets, its example keys, and its words.

    Scores are logits over the temperature; of several heads the logs of their mixed weights.
    """

    def __init__(self, task: Task, answers: Answers) -> None:
        collection, number = task.collection, task.active.version
        stored = collection.store.version(number)
        version = Version.of(number, stored, "cosine")
        projection, self.tuning = version.projection, version.tuning
        memory = _keys(task, version, answers)
        queries = projection.queries(answers.queries)  # (n, H, d)
        keys = memory.embeddings.reshape(len(memory.embeddings), -1, queries.shape[2])
        if collection.settings.scorer == "cosine" and not projection.normalized:
            queries, keys = _unit(queries), _unit(keys)
        self.answers = replace(answers, memory=memory)
        self.queries, self.keys = queries, keys  # (n, H, d), (m, Hk, d)
        self.gates, self.projection = projection.gates, projection
        unit = collection.settings.unit_embeddings or projection.normalized
        usual = default_scale(collection.settings.scorer, unit, projection.d_k)
        own = resolve_scale(collection.settings.scale, usual, projection.d_k)
        self.scales = np.broadcast_to(self.tuning.scale or (own,), len(self.gates))

    def __call__(self, fold: Fold, part: slice) -> Float32:
        z = np.stack([self._head(fold, part, head) for head in range(len(self.gates))], axis=1)
        z = z / np.float32(self.tuning.temperature)  # (b, H, m)
        if len(self.gates) == 1:
            return z[:, 0]
        logs = z - logsumexp(z, axis=2, keepdims=True) + np.log(self.gates)[:, None]
        mixed: Float32 = logsumexp(logs, axis=1).astype(np.float32)
        return mixed

    def output(self, path: str | None) -> Output | None:
        """The version's W_V and W_O as they meet these values; None where they do not.

        Of several heads each has a blend of its own, which is not looked at here.
        """
        targets, projection = self.answers.targets, self.projection
        if targets.center is None or len(self.gates) > 1 or not self.tuning.takes(path):
            return None
        width = len(targets.center)
        with_zeros, zero = np.eye(width), np.zeros(width)
        w_v = with_zeros if projection.w_v is None else projection.w_v[0]
        b_v = zero if projection.b_v is None else projection.b_v[0]
        w_o = np.eye(len(w_v)) if projection.w_o is None else projection.w_o
        w, b = w_o @ w_v, w_o @ b_v + (0 if projection.b_o is None else projection.b_o)
        if w.shape != (width, width) or (projection.w_v is None and projection.w_o is None):
            return None
        return Output(w.astype(np.float64), b.astype(np.float64)).scaled(
            targets.center, targets.spread
        )

    def _head(self, fold: Fold, part: slice, head: int) -> Float32:
        """(b, m) logits of one head."""
        memory, scale = self.answers.memory, np.float32(self.scales[head])
        keys = self.keys[memory.positions(fold.members), min(head, self.keys.shape[1] - 1)]
        by_key = scale * (self.queries[fold.held[part], head] @ keys.T)
        if self.tuning.pool == "sum":
            counts = memory.counts[fold.members]
            z = np.logaddexp.reduceat(by_key, np.cumsum(counts) - counts, axis=1)
        else:
            z = best_keys(by_key, memory, fold.members)
        if self.tuning.lexical and fold.words is not None:
            z = z + scale * fold.words.term(part, self.tuning.lexical, self.tuning.coverage)
        return z


def _keys(task: Task, version: Version, answers: Answers) -> Memory:
    """The version's own keys of the documents to learn from, all heads side by side."""
    with task.collection.store.all_keys(examples=version.examples) as (_, batches):
        made = [version.keys(batch) for batch in batches]
    vectors, ids, rows = (
        np.concatenate([getattr(each, name) for each in made])
        for name in ("vectors", "ids", "documents")
    )
    kept = np.flatnonzero(np.isin(rows, answers.memory.rows))
    order = kept[np.argsort(rows[kept], kind="stable")]
    _, starts = np.unique(rows[order], return_index=True)
    return Memory(vectors[order], starts, ids[order], answers.memory.rows, True)


def _unit(vectors: Float32) -> Float32:
    length: Float64 = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, np.where(length == 0, 1, length), dtype=np.float32)
