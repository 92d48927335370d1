"""The interactions objective: from histories to a version that recommends what comes next.

Some interactions are withheld, and some documents are withheld from everybody. What is better on
both than what recommends now is fitted again to everything, and recommends from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from attend.learn import next_items, promotion, selection
from attend.learn.data import Sparse, lengths
from attend.learn.fit import Fitted, Watch
from attend.learn.held_out import HistoryFold, history_folds
from attend.settings import Tuning
from attend.store import Terms
from attend.training.material import HistoryMaterial, read_histories
from attend.training.task import FEWEST_QUESTIONS, NothingToLearn
from attend.training.version import (
    NewVersion,
    ObjectiveRun,
    ServedVersion,
    TrainingOutcome,
    objective_of,
    offsets_of,
    projection_of,
)
from attend.types import Floats, Int64, Json

MEASURE = "ndcg@10"

LABELS = {
    "random": "withheld interactions",
    "new": "documents that nobody interacted with",
    "mix": "the mix",
}

GATE, QUERY = "gate", "query"
"""Terms of documents: how much one counts in a history (n, 1), and by how much it is moved as a
query, before W_Q (n, d)."""

SHARES = (0.5, 0.75, 1.0)
"""How far from the start to the fit: part of the way often serves new documents best."""

HALVES = 2
"""Users judge in halves: each by what the other would choose."""


class NextItemsChoice(NamedTuple):
    """A recipe (None: untrained), how far to go, and whether keys are moved by offsets."""

    recipe: str | None
    share: float = 1.0
    offsets: bool = True

    @property
    def cost(self) -> float:
        """The gain in nDCG that its parts must be worth together."""
        return 0.0 if self.recipe is None else selection.PART_COST * (1 + self.offsets)

    def of(self, fitted: Fitted) -> Fitted:
        """Return that much of a fit."""
        part = fitted.mixed(np.eye(len(fitted.w_q), dtype=np.float32), self.share)
        return part if self.offsets else part.without_offsets()


CHOICES = (
    NextItemsChoice(None),
    *(
        NextItemsChoice(name, share, moved)
        for name in next_items.RECIPES
        for share in SHARES
        for moved in (False, True)
    ),
)

Measures = dict[NextItemsChoice | None, next_items.Measured]
"""The figures of a fold's users under every choice, and of what recommends now by None."""


class InteractionsObjective(ObjectiveRun):
    """Learns what comes next."""

    material: HistoryMaterial
    choice: NextItemsChoice
    fitted: Fitted

    def read(self) -> None:
        active = self.task.active
        trained = objective_of(active) == "interactions"
        last = int(active.report.get("last_interaction", -1)) if trained else -1
        self.material = read_histories(self.task.collection, last, self.request.seed)
        self.figures = self.material.figures
        users = int((lengths(self.material.histories) >= 2).sum())
        several = users >= FEWEST_QUESTIONS
        self.folds = history_folds(self.material.histories, self.request.seed) if several else []
        if not self.folds:
            raise NothingToLearn(
                f"{users} users interacted with two documents or more, and {FEWEST_QUESTIONS} are "
                f"the fewest from which a gain can be proved; store more interactions.",
                self.figures,
            )

    def cross_validate(self, watch: Watch) -> None:
        tries: list[Callable[[HistoryFold, Watch], Measures]] = [
            *(partial(self._try_recipe, name) for name in next_items.RECIPES),
            *(self._try_untrained, self._try_current),
        ]
        self.results = selection.cross_validate(self.folds, tries, watch)

    def judge(self) -> TrainingOutcome:
        request, judged = self.request, self._judged()
        tolerance = request.tolerance
        outcomes = selection.nested_outcomes(judged, request.share_seen, tolerance)
        comparisons = promotion.compare_splits(
            outcomes,
            request.share_seen,
            labels=LABELS,
            tolerance=tolerance,
            significance=self.significance,
        )
        verdict = promotion.decide(comparisons, measure=MEASURE, units="users")
        self.choice = selection.best(judged, request.share_seen, tolerance)
        choices: dict[str, Json] = {
            "objective": "interactions",
            **self.choice._asdict(),
            "recipe": self.choice.recipe or "none",
            "share_seen": request.share_seen,
        }
        before, after = (
            {MEASURE: verdict.views["mix"][side], "recall@10": self._recall(choice)}
            for side, choice in (("before", None), ("after", self.choice))
        )
        return TrainingOutcome(verdict, before, after, choices)

    def fit(self, watch: Watch) -> None:
        self.fitted = self._fit(self.choice, self.material.histories, watch)

    def version(self) -> NewVersion:
        memory, fitted = self.material.memory, self.fitted
        gates = np.ones(len(memory)) if fitted.gates is None else fitted.gates
        counted, moves = gates != 1, fitted.document_moves(memory)
        moved = moves.any(axis=1)
        return NewVersion(
            projection_of(fitted, memory, self.settings),
            Tuning(scale=(fitted.scale,), attend="all", scorer=self.settings.scorer),
            {"scale": fitted.scale},
            offsets_of(fitted, memory),
            {
                GATE: Terms(memory.rows[counted], gates[counted, None].astype(np.float32)),
                QUERY: Terms(memory.rows[moved], moves[moved]),
            },
            int(memory.ids.max()),
        )

    # -- one fold ----------------------------------------------------------------------------------

    def _try_recipe(self, name: str, fold: HistoryFold, watch: Watch) -> Measures:
        fitted = self._fit(NextItemsChoice(name), fold.training, watch)
        return {
            choice: self._measured(choice.of(fitted), fold)
            for choice in CHOICES
            if choice.recipe == name
        }

    def _try_untrained(self, fold: HistoryFold, watch: Watch) -> Measures:
        measures: Measures = {
            CHOICES[0]: self._measured(next_items.untrained(self.material.memory), fold)
        }
        watch(1.0)
        return measures

    def _try_current(self, fold: HistoryFold, watch: Watch) -> Measures:
        """Measure the active version as it would be without what is withheld."""
        choice = self._came_about()
        if choice is None:
            recommender = self._served()
        else:
            training = self.material.previous.multiply(fold.training).tocsr()
            several = bool((lengths(training) >= 2).any())
            fitted = self._fit(choice if several else CHOICES[0], training, watch)
            recommender = next_items.HistoryRanker.of(fitted, self.material.memory)
        watch(1.0)
        return {None: next_items.measure(recommender, fold)}

    def _came_about(self) -> NextItemsChoice | None:
        """Return the choice that the active version was learned by.

        Where what it learned from is gone, nothing can show again what it was worth: it is tried
        as it is. It may have seen some of what judges, which speaks for it, and not against it.
        """
        active = self.task.active
        choices = active.report.get("chosen") or {}
        several = int((lengths(self.material.previous) >= 2).sum()) >= FEWEST_QUESTIONS
        recipe = choices.get("recipe")
        if objective_of(active) != "interactions" or not several:
            return None
        if recipe not in next_items.RECIPES and recipe != "none":
            return None
        name = None if recipe == "none" else recipe
        return NextItemsChoice(name, float(choices["share"]), bool(choices["offsets"]))

    def _served(self) -> next_items.HistoryRanker:
        """Return the active version as it is, on the documents of the memory."""
        version = self.task.collection.views.current(role="recommend").version
        memory = self.material.memory
        served = ServedVersion(version, self.settings, memory)
        moved_queries = version.asking(memory.document_embeddings(), memory.rows)

        def logits(documents: Int64, candidates: Int64) -> Floats:
            by_head = served.logits(moved_queries[documents], candidates)  # (i, H, c)
            return np.tensordot(by_head, served.mechanism.gates, axes=(1, 0))

        return next_items.HistoryRanker(logits, version.gates(memory.rows))

    def _fit(self, choice: NextItemsChoice, histories: Sparse, watch: Watch) -> Fitted:
        memory = self.material.memory
        if choice.recipe is None:
            return next_items.untrained(memory)
        recipe, seed = next_items.RECIPES[choice.recipe], self.request.seed
        return choice.of(
            next_items.fit_next_items(memory, histories, recipe, seed=seed, watch=watch)
        )

    def _measured(self, fitted: Fitted, fold: HistoryFold) -> next_items.Measured:
        return next_items.measure(next_items.HistoryRanker.of(fitted, self.material.memory), fold)

    # -- judging -----------------------------------------------------------------------------------

    def _judged(self) -> list[selection.Judged[NextItemsChoice]]:
        """Return each split in halves of its users; a user is in one half, whatever the split."""
        users = self.material.histories.shape[0]
        half = np.random.default_rng(self.request.seed).integers(HALVES, size=users)
        judged = []
        for fold, measures in zip(self.folds, self.results, strict=True):
            for side in range(HALVES):
                mine = half[fold.users] == side
                values = {choice: item.ndcg[mine] for choice, item in measures.items()}
                if mine.any():
                    judged.append(selection.Judged.of(fold.split, fold.users[mine], values))
        return judged

    def _recall(self, choice: NextItemsChoice | None) -> float:
        """Recall@10 on the mix of the splits."""
        shares = selection.weights(
            {fold.split: fold for fold in self.folds}, self.request.share_seen
        )
        return sum(
            shares[fold.split] * float(measures[choice].recall.mean())
            for fold, measures in zip(self.folds, self.results, strict=True)
        )
