"""The interactions objective: from histories to a version that recommends what comes next.

Some interactions are withheld, the latest where they have times, and some documents from everybody.
What is better on both than what recommends now is fitted again to everything, and recommends then.
The first choices are closed forms of items and words; attention, by itself or beside one of them,
has to be better, on documents that are known, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from attend.core.settings import Tuning
from attend.core.types import Floats, Int64, Json
from attend.learning import next_items, promotion, selection
from attend.learning.closed_form import ClosedForm, item_weights
from attend.learning.data import Memory, Sparse, lengths
from attend.learning.fit import Fitted, Watch
from attend.learning.held_out import HistoryFold, history_folds
from attend.learning.history_ranking import HistoryRanker, Measured, measure
from attend.learning.material import HistoryMaterial, read_histories
from attend.learning.task import FEWEST_QUESTIONS, NothingToLearn
from attend.learning.version import (
    NewVersion,
    ObjectiveRun,
    ServedVersion,
    TrainingOutcome,
    objective_of,
    offsets_of,
    projection_of,
)
from attend.recommend.weights import ItemWeights
from attend.store import Terms

MEASURE = "ndcg@10"

LABELS = {
    "random": "withheld interactions",
    "latest": "the latest interactions",
    "new": "documents that nobody interacted with",
    "mix": "the mix",
}

GATE, QUERY, ITEMS = "gate", "query", "items"
"""Terms of documents: how much one counts in a history (n, 1), by how much it is moved as a query,
before W_Q (n, d), and its weights for others."""

FORMS: Mapping[str, ClosedForm] = {
    "items": ClosedForm(2.0, 0.0),
    "items and words": ClosedForm(2.0, 0.5),
    "items and more words": ClosedForm(4.0, 1.0),
    "regularised items": ClosedForm(16.0, 0.0),
    "regularised items and words": ClosedForm(16.0, 0.5),
}
"""The last two suit long histories. (nDCG@10 of items alone on validation parts: of simulated users
with 70 films each .212 with ridge 2, .242 with 16; of readers of goodbooks .197, .178.)"""

BESIDE = "items and words"
"""The form that every learned attention is tried beside, where texts have words."""

STRENGTH = 5.0
"""The factor from the weights of a closed form to logits, which order documents as its scores do.
(nDCG@10 on a validation part of goodbooks: .197; so .197 with 2, .198 with 5, .194 with 20.)"""

SOFTENED = 0.4
"""The factor on the scale of a learned attention beside a closed form, for both speak of the same.
(nDCG@10 on validation parts of goodbooks: new books .278 with 0.7, .280 with 0.4; all .204.)"""

FAINT = 0.01
"""The scale of texts beside a closed form alone: they order what it has no weight for."""

SHARES = (0.5, 1.0)
"""How far from the start to the fit: part of the way often serves new documents best by itself, but
not beside a closed form. (nDCG@10 on a validation part of goodbooks: .206; half: .203.)"""

HALVES = 2
"""Users judge in halves: each by what the other would choose."""


class NextItemsChoice(NamedTuple):
    """A recipe (None: untrained), how far to go, whether keys have offsets, and a closed form."""

    recipe: str | None
    share: float = 1.0
    offsets: bool = True
    form: str | None = None

    @property
    def cost(self) -> float:
        """The gain in nDCG that its parts must be worth together."""
        learned = 0 if self.recipe is None else 1 + self.offsets
        return selection.PART_COST * (learned + (self.form is not None))

    @property
    def plain(self) -> bool:
        """A closed form alone."""
        return self.recipe is None and self.form is not None

    def of(self, fitted: Fitted) -> Fitted:
        """Return that much of a fit."""
        part = fitted.mixed(np.eye(len(fitted.w_q), dtype=np.float32), self.share)
        if self.form is not None:
            scale = FAINT if self.recipe is None else SOFTENED * part.scale
            part = part._replace(scale=scale)
        return part if self.offsets else part.without_offsets()


def choices_of(forms: Sequence[str]) -> list[NextItemsChoice]:
    """Return what is tried where these closed forms are possible."""
    beside = BESIDE if BESIDE in forms else forms[0]
    return [
        NextItemsChoice(None),
        *(NextItemsChoice(None, form=form) for form in forms),
        *(
            NextItemsChoice(name, share, moved, form)
            for name in next_items.RECIPES
            for share in SHARES
            for moved in (False, True)
            for form in (None, beside)
            if form is None or share == 1
        ),
    ]


class Learned(NamedTuple):
    """A choice after its fit; item weights (n, n) on the scale of logits, None for none."""

    fitted: Fitted
    items: Sparse | None

    def ranker(self, memory: Memory) -> HistoryRanker:
        """Return it as what ranks documents for a history."""
        return HistoryRanker.of(self.fitted, memory, self.items)


Measures = dict[NextItemsChoice | None, Measured]
"""The figures of a fold's users under every choice, and of what recommends now by None."""


class InteractionsObjective(ObjectiveRun):
    """Learns what comes next."""

    material: HistoryMaterial
    choice: NextItemsChoice
    learned: Learned

    def read(self) -> None:
        active = self.task.active
        trained = objective_of(active) == "interactions"
        last = int(active.report.get("last_interaction", -1)) if trained else -1
        self.material = read_histories(self.task.collection, last, self.request.seed)
        users = int((lengths(self.material.histories) >= 2).sum())
        several = users >= FEWEST_QUESTIONS
        division = self.material.histories, self.request.seed, self.material.times
        self.folds = history_folds(*division) if several else []
        held_out: dict[str, Json] = {fold.split: fold.figures for fold in self.folds}
        self.figures = {**self.material.figures, "held_out": held_out}
        self.choices = choices_of([name for name in FORMS if self._is_possible(name)])
        self.items: dict[tuple[str, str], Sparse] = {}
        self.lock = threading.Lock()
        if not self.folds:
            raise NothingToLearn(
                f"{users} users interacted with two documents or more, and {FEWEST_QUESTIONS} are "
                f"the fewest from which a gain can be proved; store more interactions.",
                self.figures,
            )

    def cross_validate(self, watch: Watch) -> None:
        tries: list[Callable[[HistoryFold, Watch], Measures]] = [
            *(partial(self._try_recipe, name) for name in (*next_items.RECIPES, None)),
            self._try_current,
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
            "form": self.choice.form or "none",
            "share_seen": request.share_seen,
        }
        before, after = (
            {MEASURE: verdict.views["mix"][side], "recall@10": self._recall(choice)}
            for side, choice in (("before", None), ("after", self.choice))
        )
        return TrainingOutcome(verdict, before, after, choices)

    def fit(self, watch: Watch) -> None:
        self.learned = self._fit(self.choice, self.material.histories, watch)

    def version(self) -> NewVersion:
        memory, (fitted, items) = self.material.memory, self.learned
        gates = np.ones(len(memory)) if fitted.gates is None else fitted.gates
        counted, moves = gates != 1, fitted.document_moves(memory)
        moved = moves.any(axis=1)
        terms = {
            GATE: Terms(memory.rows[counted], gates[counted, None].astype(np.float32)),
            QUERY: Terms(memory.rows[moved], moves[moved]),
        }
        if items is not None and items.nnz:
            terms[ITEMS] = ItemWeights.of(memory.rows, items / fitted.scale).packed()
        return NewVersion(
            projection_of(fitted, memory, self.settings),
            Tuning(scale=(fitted.scale,), attend="all", scorer=self.settings.scorer),
            {"scale": fitted.scale},
            offsets_of(fitted, memory),
            terms,
            int(memory.ids.max()),
        )

    # -- one fold ----------------------------------------------------------------------------------

    def _try_recipe(self, name: str | None, fold: HistoryFold, watch: Watch) -> Measures:
        fitted = self._fit_recipe(name, fold.training, watch)
        measures: Measures = {}
        for choice in self.choices:
            if choice.recipe == name:
                learned = Learned(choice.of(fitted), self._items(choice.form, fold))
                measures[choice] = measure(learned.ranker(self.material.memory), fold)
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
            learned = self._fit(choice if several else self.choices[0], training, watch)
            recommender = learned.ranker(self.material.memory)
        watch(1.0)
        return {None: measure(recommender, fold)}

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
        form = choices.get("form", "none")  # versions from before closed forms name none
        if form != "none" and not self._is_possible(form):
            return None
        form = None if form == "none" else form
        return NextItemsChoice(name, float(choices["share"]), bool(choices["offsets"]), form)

    def _served(self) -> HistoryRanker:
        """Return the active version as it is, on the documents of the memory."""
        version = self.task.collection.views.current(role="recommend").version
        memory = self.material.memory
        served = ServedVersion(version, self.settings, memory)
        moved_queries = version.asking(memory.document_embeddings(), memory.rows)
        items = None
        if version.items is not None:
            scale = float(served.mechanism.scale[0])
            items = scale * version.items.matrix(memory.rows)

        def logits(documents: Int64, candidates: Int64) -> Floats:
            by_head = served.logits(moved_queries[documents], candidates)  # (i, H, c)
            z = np.tensordot(by_head, served.mechanism.gates, axes=(1, 0))
            return z if items is None else z + items[documents].toarray()[:, candidates]

        return HistoryRanker(logits, version.gates(memory.rows), items)

    def _fit(self, choice: NextItemsChoice, histories: Sparse, watch: Watch) -> Learned:
        fitted = self._fit_recipe(choice.recipe, histories, watch)
        return Learned(choice.of(fitted), self._item_weights(choice.form, histories))

    def _fit_recipe(self, name: str | None, histories: Sparse, watch: Watch) -> Fitted:
        memory, seed = self.material.memory, self.request.seed
        if name is None:
            return next_items.untrained(memory)
        recipe = next_items.RECIPES[name]
        return next_items.fit_next_items(memory, histories, recipe, seed=seed, watch=watch)

    # -- closed forms ------------------------------------------------------------------------------

    def _is_possible(self, form: str) -> bool:
        """Return whether a form is known, and texts have the words that it takes."""
        return form in FORMS and (not FORMS[form].words or self.material.words.nnz > 0)

    def _items(self, form: str | None, fold: HistoryFold) -> Sparse | None:
        """Return the item weights of a fold; they are made once, whoever asks first."""
        if form is None:
            return None
        with self.lock:
            key = fold.split, form
            if key not in self.items:
                self.items[key] = self._item_weights(form, fold.training)
            return self.items[key]

    def _item_weights(self, form: str | None, histories: Sparse) -> Sparse | None:
        """Return the weights of a closed form (n, n) on the scale of logits."""
        if form is None:
            return None
        return STRENGTH * item_weights(histories, self.material.words, FORMS[form])

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
