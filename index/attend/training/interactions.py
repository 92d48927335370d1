"""The objective of interactions: from what users met to a version that recommends what comes next.

Some of what users met is withheld, and some documents are withheld from everybody. What is better
on both than what recommends now is fitted again to everything, and recommends from then on.
"""

from __future__ import annotations

import numpy as np

from attend.attention import default_scale, resolve_scale
from attend.learn.choose import best, honest
from attend.learn.data import Memory
from attend.learn.fit import Watch
from attend.learn.gate import Verdict, decide
from attend.learn.mixture.fit import fit
from attend.learn.mixture.histories import lengths
from attend.learn.mixture.model import Mixture, as_queries, untrained
from attend.learn.mixture.next_items import Asking
from attend.learn.mixture.trial import RECIPES, MixtureTrial, Standing, Way
from attend.learn.mixture.withheld import withheld
from attend.learn.together import together
from attend.projection import given
from attend.store import KeyBatch
from attend.training.interaction_material import Material, gathered
from attend.training.publish import Found, Learned, nothing, objective_of, publish, report
from attend.training.request import FEWEST_QUESTIONS, Task
from attend.tuning import Tuning
from attend.types import Float32, Json

MEASURE = "ndcg@10"

VIEWS = {
    "random": "withheld interactions",
    "unseen": "documents that nobody met",
    "mix": "the mix",
}

GATE, QUERY = "gate", "query"
"""Terms of documents: how much one counts in a history (n, 1), and by how much it is moved as a
query, before W_Q (n, d)."""


def train_interactions(task: Task) -> dict[str, Json]:
    """Learn what comes next.

    Returns: the report (see `training.train`).
    """
    request, watch = task.request, task.watch
    watch("reading", 0.0)
    trained = objective_of(task.active) == "interactions"
    last = int(task.active.report.get("last_interaction", -1)) if trained else -1
    material = gathered(task.collection, last, request.seed)
    users = int((lengths(material.met) >= 2).sum())
    views = withheld(material.met, request.seed) if users >= FEWEST_QUESTIONS else []
    if not views:
        return nothing(task, _too_few(users), material.figures)
    trial = MixtureTrial(material.memory, views, _standing(task, material), request.seed)
    trial.run(lambda done: watch("trying", done))
    watch("judging", 0.0)
    judged = trial.judged()
    verdict = decide(honest(judged, request.share_seen), request.share_seen, MEASURE, names=VIEWS)
    way = best(judged, request.share_seen)
    found = _found(task, verdict, way, trial, material)
    if not verdict.promote and request.promote:
        return report(task, found)
    watch("fitting", 0.0)
    mixture = _final(task, material, way)
    return publish(task, found, _learned(task, mixture, material.memory))


def _too_few(users: int) -> str:
    return (
        f"{users} users met two documents or more, and {FEWEST_QUESTIONS} are the fewest from "
        f"which a gain can be proved; store more interactions."
    )


def _standing(task: Task, material: Material) -> Standing:
    """What recommends now, in a form that can stand trial."""
    chosen = task.active.report.get("chosen") or {}
    # Where what it learned from is gone, nothing can show again what it was worth: it stands trial
    # as it is. Of what judges it may have seen some, which speaks for it, and not against it.
    several = int((lengths(material.known) >= 2).sum())
    if objective_of(task.active) == "interactions" and several >= FEWEST_QUESTIONS:
        recipe = chosen.get("recipe")
        if recipe in RECIPES or recipe == "none":
            name = None if recipe == "none" else recipe
            way = Way(name, float(chosen["share"]), bool(chosen["offsets"]))
            return Standing(way, material.known)
    return Standing(asking=_asking(task, material.memory))


def _asking(task: Task, memory: Memory) -> Asking:
    """A version as it is, on the documents of a memory.

    Several heads are put side by side: an inner product is then the mean of theirs by gates.
    """
    version = task.collection.views.current(role="recommend").made
    projection, settings = version.projection, task.collection.settings
    rows = np.repeat(memory.rows, memory.counts)
    own = np.zeros(len(rows), dtype=bool)
    keys = version.keys(KeyBatch(memory.key_ids, rows, memory.embeddings, own)).vectors
    asking = version.asking(as_queries(memory), memory.rows)
    heads = projection.queries(asking)  # (n, H, d_k)
    unit = settings.unit_embeddings or projection.normalized
    usual = default_scale(settings.scorer, unit, projection.d_k)
    scales = version.tuning.scale or (resolve_scale(settings.scale, usual, projection.d_k),)
    weights = np.broadcast_to(projection.gates * np.array(scales), heads.shape[1:2])
    queries = (heads * weights[:, None]).astype(np.float32)
    shared = keys.reshape(len(keys), -1, queries.shape[2])
    by_head = np.broadcast_to(shared, (len(keys), *queries.shape[1:]))
    gates = version.gates(memory.rows).astype(np.float32)
    return Asking(_side_by_side(queries), _side_by_side(by_head), 1.0, gates)


def _side_by_side(heads: Float32) -> Float32:
    return np.ascontiguousarray(heads.reshape(len(heads), -1))


def _final(task: Task, material: Material, way: Way) -> Mixture:
    """The way, fitted to everything that users met."""
    if way.recipe is None:
        return untrained(material.memory)
    memory, met, seed = material.memory, material.met, task.request.seed
    recipe = RECIPES[way.recipe]

    def fitted(watch: Watch) -> Mixture:
        return fit(memory, met, recipe, seed=seed, watch=watch)

    return way.of(together([fitted], lambda done: task.watch("fitting", done))[0])


def _found(
    task: Task, verdict: Verdict, way: Way, trial: MixtureTrial, material: Material
) -> Found:
    mix = verdict.views["mix"]
    recall = trial.recalls(way, task.request.share_seen)
    chosen: dict[str, Json] = {
        "objective": "interactions",
        "recipe": way.recipe or "none",
        "share": way.share,
        "offsets": way.offsets,
        "share_seen": task.request.share_seen,
    }
    before, after = (
        {MEASURE: mix[side], "recall@10": value}
        for side, value in zip(("before", "after"), recall, strict=True)
    )
    return Found(verdict, before, after, chosen, material.figures)


def _learned(task: Task, mixture: Mixture, memory: Memory) -> Learned:
    """What is stored of it: gates and query offsets of the documents where there are any."""
    projection = given(
        mixture.w_q,
        mixture.w_k,
        center=mixture.center,
        kind="learned",
        normalize_queries=memory.unit,
        normalize_keys=memory.unit,
    )
    tuning = Tuning(scale=(mixture.scale,), attend="all", scorer=task.collection.settings.scorer)
    counted, moves = mixture.gates != 1, mixture.query_offsets(memory)
    moved = moves.any(axis=1)
    terms = {
        GATE: (memory.rows[counted], mixture.gates[counted, None]),
        QUERY: (memory.rows[moved], moves[moved]),
    }
    offsets = memory.key_ids[mixture.offset_keys], mixture.offsets
    calibration, last_key = {"scale": mixture.scale}, int(memory.key_ids.max())
    return Learned(projection, tuning, offsets, calibration, terms, last_key)
