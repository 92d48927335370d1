"""The interactions objective: from histories to a version that recommends what comes next.

Some interactions are withheld, the latest where they have times, and some documents from everybody.
What is better on both than what recommends now is fitted again to everything, and recommends then.
The first choices are closed forms of items and words; attention, by itself or beside one of them,
has to be better, on documents that are known, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from attend.attention import summed
from attend.core.arrays import locate
from attend.core.settings import Tuning
from attend.core.types import Bool, Float64, Floats, Int64, Json
from attend.engines.engine import StoredCollection
from attend.learning import data, next_items, selection
from attend.learning.data import Memory, ServedVersion, Sparse, lengths, products, without
from attend.learning.fit import Fitted, Watch, run_parallel
from attend.learning.next_items import (
    FORMS,
    MOST_ITEMS,
    RECIPES,
    ItemModel,
    fit_next_items,
    item_weights,
)
from attend.learning.selection import (
    LEAST_GAIN,
    PART_COST,
    Judged,
    Split,
    cross_validate,
    sampled,
)
from attend.learning.task import (
    FEWEST_QUESTIONS,
    NewVersion,
    NothingToLearn,
    Task,
    Trained,
    objective_of,
)
from attend.measure.statistics import CUT, dcg, ndcg
from attend.recommend.weights import ItemWeights, joint
from attend.store import Terms, compile_filter

MOST_USERS = 200_000


class HistoryMaterial(NamedTuple):
    """Histories, sparse (u, n), and the words of the documents, sparse (n, t).

    Attributes:
        times: (t,) of the entries of the histories, in seconds since 1970; NaN where one has none.
        previous: what the active version learned from.
    """

    memory: Memory
    histories: Sparse
    times: Float64
    previous: Sparse
    words: Sparse
    figures: Mapping[str, Json]


def read_histories(collection: StoredCollection, last: int, seed: int) -> HistoryMaterial:
    """Read interactions and keys.

    What a user did not like is no sign of what comes next, and is left out.

    Args:
        last: the last interaction that the active version learned from.
    """
    random = np.random.default_rng(seed)
    with collection.store.reading():  # all of one moment
        stored = collection.store.interactions()
        documents, rows = collection.store.counts()[0], None
        if documents > data.MOST_DOCUMENTS:  # those with most interactions, and a sample
            names, popularity = np.unique(stored.rows, return_counts=True)
            most = names[np.argsort(-popularity, kind="stable")[: data.MOST_DOCUMENTS // 2]]
            others = np.setdiff1d(collection.store.matching(compile_filter({})), most)
            rows = np.union1d(most, sampled(others, data.MOST_DOCUMENTS - len(most), random))
        memory = data.memory_of(collection, rows)
        liking = collection.store.liking()
        index, there = locate(memory.rows, stored.rows)
        counts = np.bincount(index[there], minlength=len(memory))
        members = np.sort(np.argsort(-counts, kind="stable")[:MOST_ITEMS])
        words = next_items.words_of(collection, memory.rows[members])
    users = np.zeros(len(stored.users), dtype=bool)
    users[sampled(np.arange(len(users)), MOST_USERS, random)] = True
    mask = stored.liked & users[stored.user_indices] & there
    shape = len(users), len(memory)

    def histories(members: Bool) -> Sparse:
        return data.histories_of(stored.user_indices[members], index[members], shape)

    figures: dict[str, Json] = {
        "interactions": len(stored.ids),
        "users": len(users),
        "documents": documents,
        "last_interaction": int(stored.ids.max(initial=-1)),
        "liked_from": liking.liked_from,
        "liked": int(np.count_nonzero(stored.liked)),
    }
    previous = histories(mask & (stored.ids <= last))
    places = sparse.csr_array(
        (np.ones(len(members)), (members, np.arange(len(members)))), (len(memory), len(members))
    )
    # Interactions come by user and document, as the entries of the histories do.
    times = stored.times[mask]
    return HistoryMaterial(memory, histories(mask), times, previous, places @ words, figures)


# -- held-out histories ----------------------------------------------------------------------------


WITHHELD = 0.2
"""The share of a user's interactions, and of all documents, that is withheld."""

JUDGED = 0.5
"""The share of users whose interactions are withheld. A model fitted without a fifth of all
interactions is another model than the one that will serve."""

MOST_JUDGES = 3000
"""Users that judge a split: more make its figures no truer than they need to be."""

MOST_CELLS = 30_000_000
"""Users times documents of a split: each choice that is tried ranks all of these."""

FEWEST_RANKED = 200
"""Users that judge in however large a catalogue."""

FEWEST_USERS = 500
"""Users that judge where there are as many, however few are left to learn from."""


class HistoryFold(NamedTuple):
    """One division of interactions.

    Attributes:
        training: sparse (u, n), what is learned from.
        users: (h,) who judge.
        history, target: sparse (h, n): the history of each, and what is withheld of it.
        candidates: (n,) what is ranked, but for the history; None for everything.
        after: the time after which everything is withheld, in seconds since 1970; None where what
            is withheld does not go by one time.
    """

    split: Split
    training: Sparse
    users: Int64
    history: Sparse
    target: Sparse
    candidates: Bool | None
    after: float | None = None

    @property
    def ranked(self) -> Bool:
        """(n,) what is ranked."""
        everything = np.ones(self.history.shape[1], dtype=bool)
        return everything if self.candidates is None else self.candidates

    @property
    def figures(self) -> dict[str, Json]:
        """Return what judges, for the report."""
        interactions = int(self.target.nnz)
        return {"users": len(self.users), "interactions": interactions, "after": self.after}


def history_folds(histories: Sparse, seed: int, times: Float64 | None = None) -> list[HistoryFold]:
    """Divide histories (u, n) in splits; one that nobody could judge is left out.

    In the random split a fifth of what some users interacted with is withheld, and all is ranked.
    Where interactions have times, the latest split stands beside it: everything after one time is
    withheld from everybody, so that nothing is learned from the future of those who judge (Ji et
    al. 2023, "A critical study on data leakage in recommender system offline evaluation"); where
    too few users have interactions on both sides of any such time, each one's latest are withheld.
    In the new split a fifth of the documents in any history is withheld from everybody, and
    ranked by itself: among documents of which more is known, a new one is judged by how much that
    is.

    Args:
        times: (t,) of the entries of the histories, in their order; NaN where one has none.
    """
    random = np.random.default_rng(seed)
    moments = None if times is None else data.moments_of(times)
    folds = [] if moments is None else [_latest_histories(histories, moments, random)]
    folds.append(_random_histories(histories, random))
    folds.append(_new_histories(histories, np.random.default_rng(seed + 1)))
    return [fold for fold in folds if len(fold.users) and (lengths(fold.training) >= 2).any()]


def _latest_histories(
    histories: Sparse, times: Float64, random: np.random.Generator
) -> HistoryFold:
    """Withhold everything after one time, or each user's latest where few users could judge so."""
    several = int((lengths(histories) >= 2).sum())
    enough = min(FEWEST_USERS, several // 3)
    for share, fewest in ((data.LATEST, FEWEST_USERS), (WITHHELD, enough)):
        after = float(np.quantile(times, 1 - share, method="lower"))
        out = times > after
        training, target = without(histories, out), without(histories, ~out)
        judges = np.flatnonzero((lengths(training) > 0) & (lengths(target) > 0))
        if len(judges) >= fewest:
            users = sampled(judges, _most_users(histories), random)
            return HistoryFold(
                "latest", training, users, training[users], target[users], None, after
            )
    return _random_histories(histories, random, times)


def _random_histories(
    histories: Sparse, random: np.random.Generator, times: Float64 | None = None
) -> HistoryFold:
    """Withhold a fifth of what some users interacted with; the latest, where times are given."""
    counts = lengths(histories)
    able = random.permutation(np.flatnonzero(counts >= 2))
    judged = np.zeros(len(counts), dtype=bool)
    judges = max(FEWEST_USERS, round(JUDGED * len(able)))
    judged[able[: min(_most_users(histories), judges)]] = True
    user = np.repeat(np.arange(len(counts)), counts)
    # At least one; and as many in every ten as the share says, however short the histories.
    taken = np.maximum(1, np.round(WITHHELD * counts)).astype(np.int64)
    age = None if times is None else -times
    out = judged[user] & (next_items.shuffled_ranks(user, counts, random, age) < taken[user])
    training, users = without(histories, out), np.flatnonzero(judged)
    target = without(histories, ~out)[users]
    split: Split = "random" if times is None else "latest"
    return HistoryFold(split, training, users, training[users], target, None)


def _new_histories(histories: Sparse, random: np.random.Generator) -> HistoryFold:
    visible = np.unique(histories.indices)
    out = np.zeros(histories.shape[1], dtype=bool)
    out[random.permutation(visible)[: round(WITHHELD * len(visible))]] = True
    new = out[histories.indices]
    training, target = without(histories, new), without(histories, ~new)
    able = random.permutation(np.flatnonzero((lengths(training) > 0) & (lengths(target) > 0)))
    users = np.sort(able[: _most_users(histories)])
    return HistoryFold("new", training, users, training[users], target[users], out)


def _most_users(histories: Sparse) -> int:
    return int(min(MOST_JUDGES, max(FEWEST_RANKED, MOST_CELLS // histories.shape[1])))


# -- ranking ---------------------------------------------------------------------------------------


class HistoryRanker(NamedTuple):
    """A version, as what ranks documents for a history.

    Attributes:
        logits: gives (i, c), of documents (i,) as queries over candidates (c,), without items.
        gates: (n,) how much each document counts in a history.
        items: item weights (n, n) on the scale of logits; None for none.
    """

    logits: Callable[[Int64, Int64], Floats]
    gates: Floats
    items: Sparse | None = None

    @classmethod
    def of(cls, fitted: Fitted, memory: Memory, items: Sparse | None = None) -> HistoryRanker:
        """Return a fit as a ranker, with item weights (n, n) on the scale of logits."""
        queries, keys = fitted.document_queries(memory), fitted.keys(memory)
        gates = np.ones(len(memory)) if fitted.gates is None else fitted.gates

        def logits(documents: Int64, candidates: Int64) -> Floats:
            table = memory.with_vectors(keys).some(candidates)
            return table.best(
                np.float32(fitted.scale) * products(queries[documents], table.vectors)
            )

        return cls(logits, gates, items)

    def shares(self, history: Sparse, documents: Int64) -> tuple[Int64, Floats]:
        """Return the documents in a history (i,), ascending, and the exponentials of their logits
        over others, each of the largest (i, c)."""
        sources = np.unique(history.indices)
        shares = np.empty((len(sources), len(documents)), dtype=np.float32)
        for part in data.blocks(len(sources), 4 * len(documents)):
            z = self.logits(sources[part], documents)
            if self.items is not None:
                z = z + self.items[sources[part]].toarray()[:, documents]
            shares[part] = summed(z)[1]
        return sources, shares


MOST_SHARES = 100_000_000
"""Exponentials of all histories that are kept at once: 400 MB."""


def measure(recommender: HistoryRanker, fold: HistoryFold) -> tuple[Float64, Float64]:
    """Rank everything but the history for each user of a fold; nobody's history is empty.

    Returns: figures of each user (h,), with binary relevance: nDCG@10, and recall@10 of what was
        withheld.
    """
    ranked, documents = fold.ranked, np.flatnonzero(fold.ranked)
    every, longest = None, int(lengths(fold.history).max())
    if len(np.unique(fold.history.indices)) * len(documents) <= MOST_SHARES:
        # Once for all users: long histories have most documents in common.
        every, longest = recommender.shares(fold.history, documents), 1
    weigh = partial(history_weights, recommender, ranked=ranked, every=every)
    return measured(fold, weigh, longest * len(documents))


def measured(
    fold: HistoryFold, weigh: Callable[[Sparse], Floats], numbers: int
) -> tuple[Float64, Float64]:
    """Return the figures of each user of a fold, by what gives weights to histories: (h, r), with
    so many numbers for each."""
    column_of, figures = np.cumsum(fold.ranked) - 1, []
    for part in data.blocks(len(fold.users), 4 * numbers):
        weights, target = weigh(fold.history[part]), fold.target[part]
        right, withheld = np.zeros(weights.shape, dtype=bool), lengths(target)
        right[np.repeat(np.arange(len(weights)), withheld), column_of[target.indices]] = True
        hits = np.take_along_axis(right, data.top_places(weights, CUT), axis=1)
        ideal = dcg(np.arange(CUT) < withheld[:, None])
        figures.append((ndcg(hits, ideal), hits.sum(axis=1) / withheld))
    gains, recall = (np.concatenate(column) for column in zip(*figures, strict=True))
    return gains, recall


def history_weights(
    recommender: HistoryRanker,
    history: Sparse,
    ranked: Bool,
    every: tuple[Int64, Floats] | None = None,
) -> Float64:
    """(h, r): w(d) of each user over the ranked documents; -1 for what is in their history.

    Args:
        every: the `shares` of documents over those that are ranked, where they are known.
    """
    documents, users = (
        np.flatnonzero(ranked),
        np.repeat(np.arange(history.shape[0]), lengths(history)),
    )
    gates = recommender.gates[history.indices].astype(np.float64)
    gates /= np.bincount(users, gates)[users]
    sources, shares = every or recommender.shares(history, documents)
    row = np.searchsorted(sources, history.indices)
    weights = np.ones((history.shape[0], len(documents)))  # (h, r)
    if recommender.items is not None:
        counts = joint(lengths(history))[users] * gates
        counted = sparse.csr_array((counts, history.indices, history.indptr), history.shape)
        common = (counted @ recommender.items).toarray()[:, documents]
        weights = np.exp(common - common.max(axis=1, keepdims=True, initial=-np.inf))
    inside = ranked[history.indices]
    seen = users[inside], (np.cumsum(ranked) - 1)[history.indices[inside]]
    weights[seen] = 0  # what is in a history takes no part in the softmaxes of its documents
    for mine, (first, last) in zip(weights, pairwise(history.indptr), strict=True):
        # In float64: a history may hold nearly all of a sum, and the rest is what counts.
        parts = shares[row[first:last]].astype(np.float64)
        outside = np.maximum(parts @ mine, 1e-30)
        mine *= (gates[first:last] / outside) @ parts
    weights[seen] = -1.0
    return weights


# -- the objective ---------------------------------------------------------------------------------


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

FINALISTS = 3
"""Forms that are judged as they would serve: those whose weights, added up, rank best."""

SHARES = (0.5, 1.0)
"""How far from the start to the fit: part of the way often serves new documents best by itself, but
not beside a closed form. (nDCG@10 on a validation part of goodbooks: .206; half: .203.)"""

HALVES = 2
"""Users judge in halves: each by what the other would choose."""


class NextItemsChoice(NamedTuple):
    """A recipe (None: untrained), how far to go, whether keys have offsets, and a closed form with
    how much texts count beside it alone (0: faintly), and by what factor its weights are logits."""

    recipe: str | None
    share: float = 1.0
    offsets: bool = True
    form: str | None = None
    texts: float = 0.0
    strength: float = next_items.STRENGTHS[0]

    @property
    def cost(self) -> float:
        """The gain in nDCG that its parts must be worth together."""
        learned = 0 if self.recipe is None else 1 + self.offsets
        return PART_COST * (learned + (self.form is not None))

    @property
    def reach(self) -> float:
        """A closed form alone is plain, and anything else has to lead it."""
        return float(self.recipe is not None or self.form is None)

    def of(self, fitted: Fitted) -> Fitted:
        """Return that much of a fit."""
        part = fitted.mixed(np.eye(len(fitted.w_q), dtype=np.float32), self.share)
        if self.form is not None:
            share = self.texts if self.recipe is None else next_items.SOFTENED
            part = part._replace(scale=share * part.scale or next_items.FAINT)
        return part if self.offsets else part.without_offsets()

    def logits(self, weights: Sparse) -> Sparse:
        """Return the weights of its closed form on the scale of logits."""
        return self.strength * weights


def choices_of(forms: Sequence[str]) -> list[NextItemsChoice]:
    """Return what is tried of closed forms, best first: attention is tried beside the first."""
    best, strong = forms[0], next_items.STRONG
    return [
        NextItemsChoice(None),
        *(NextItemsChoice(None, form=form) for form in forms),
        *(NextItemsChoice(None, 1.0, True, best, share, strong) for share in next_items.TEXTS),
        *(
            NextItemsChoice(name, share, moved)
            for name, share, moved in product(RECIPES, SHARES, (False, True))
        ),
        *(
            NextItemsChoice(name, form=best, strength=strength)
            for name, strength in product(RECIPES, next_items.STRENGTHS)
        ),
    ]


Measures = dict[NextItemsChoice | None, tuple[Float64, Float64]]
"""nDCG@10 and recall@10 of a fold's users under every choice, and of what recommends now by
None."""

Weighed = tuple[tuple[Float64, Float64], Sparse | None]
"""The measures of a closed form alone, and its weights where attention is tried beside it."""


class InteractionsTrainer:
    """Histories, of which some interactions are withheld, and some documents from everybody.

    Attributes:
        choices: what is tried.
    """

    lesson: ClassVar[str] = "interactions what comes next"

    def __init__(self, task: Task) -> None:
        """
        Raises:
            NothingToLearn: too little is stored.
        """
        self.task, self.request = task, task.request
        trained = objective_of(task.active) == "interactions"
        last = int(task.active.report.get("last_interaction", -1)) if trained else -1
        self.material = read_histories(task.collection, last, self.request.seed)
        self.memory, histories, times, *_ = self.material
        users = int((lengths(histories) >= 2).sum())
        several = users >= FEWEST_QUESTIONS
        self.folds = history_folds(histories, 0, times) if several else []
        self.share_seen = self.request.share_seen, "request"
        if "share_seen" not in self.request.model_fields_set:
            self.share_seen = data.read_share_seen(histories, times)
        # Forms count in the interactions of what they are judged by, and are fitted as judged.
        self.mean = next_items.mean_count(self.folds[0].training) if self.folds else 1.0
        held_out: dict[str, Json] = {fold.split: fold.figures for fold in self.folds}
        self.figures = {**self.material.figures, "held_out": held_out}
        self.forms = [name for name in FORMS if self._is_possible(name)]
        if not self.folds:
            raise NothingToLearn(
                f"{FEWEST_QUESTIONS} users with two documents or more are the fewest from which a "
                f"gain can be proved, and this collection has {users}; store more interactions.",
                self.figures,
            )

    def cross_validate(self) -> list[Measures]:
        """Measure the choices, and what recommends now, on what is withheld."""
        watch = self.task.watching("trying")

        places = range(len(self.folds))
        models = [ItemModel(one.training, self.material.words, self.mean) for one in self.folds]
        sums = [partial(self._weigh, models, form, False) for form in self.forms]
        by_fold = cross_validate(places, sums, lambda done: watch(done / 3))
        shares = selection.weights({fold.split: fold for fold in self.folds}, self.share_seen[0])
        mix = dict.fromkeys(self.forms, 0.0)
        for fold, weighed in zip(self.folds, by_fold, strict=True):
            for choice, ((gains, _), _) in weighed.items():
                mix[choice.form or ""] += shares[fold.split] * float(gains.mean())
        self.forms = sorted(mix, key=lambda form: -mix[form])[:FINALISTS]
        self.choices = choices_of(self.forms)
        weighings = [partial(self._weigh, models, form, True) for form in self.forms]
        judged = cross_validate(places, weighings, lambda done: watch((1 + done) / 3))
        tries: list[Callable[[int, Watch], Measures]] = [
            *(partial(self._try_recipe, judged, name) for name in (*RECIPES, None)),
            self._try_current,
        ]
        return cross_validate(places, tries, lambda done: watch((2 + done) / 3))

    def judge(self, measures: Sequence[Measures]) -> Trained:
        """Choose, and put the choice to the promotion test."""
        share_seen, source = self.share_seen
        look = self.task.look(int((lengths(self.material.histories) >= 2).sum()))
        # Each split in halves of its users; a user is in one half, whatever the split.
        random = np.random.default_rng(0)
        half = random.integers(HALVES, size=self.material.histories.shape[0])
        judged = []
        for (fold, row), side in product(zip(self.folds, measures, strict=True), range(HALVES)):
            mine = half[fold.users] == side
            values = {choice: gains[mine] for choice, (gains, _) in row.items()}
            if mine.any():
                judged.append(Judged.of(fold.split, fold.users[mine], values))
        request = self.request.model_copy(update={"share_seen": share_seen})
        choice, criteria, _ = selection.contest(
            judged, request, look, labels=LABELS, least=LEAST_GAIN
        )
        verdict = selection.decide(criteria, look, measure=MEASURE, units="users")
        choices: dict[str, Json] = {
            "objective": "interactions",
            **choice._asdict(),
            "recipe": choice.recipe or "none",
            "form": choice.form or "none",
            "share_seen": share_seen,
            "share_seen_from": source,
        }
        shares = selection.weights({fold.split: fold for fold in self.folds}, share_seen)

        def recall(name: NextItemsChoice | None) -> float:
            pairs = zip(self.folds, measures, strict=True)
            return sum(shares[fold.split] * float(row[name][1].mean()) for fold, row in pairs)

        before, after = (
            {MEASURE: verdict.views["mix"][side], "recall@10": recall(name)}
            for side, name in (("before", None), ("after", choice))
        )
        fit = partial(self.fit, choice)
        return Trained(verdict, self.figures, before, after, choices, fit)

    def fit(self, choice: NextItemsChoice) -> NewVersion:
        """Fit a choice to everything."""
        job = partial(self.fitted, choice, self.material.histories, self.request.seed)
        ((fitted, items),) = run_parallel([job], self.task.watching("fitting"))
        self.task.watch("calibrating", 0.0)
        memory, settings = self.memory, self.task.settings
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
            fitted.projection(memory, settings),
            Tuning(scale=(fitted.scale,), attend="all", scorer=settings.scorer),
            {"scale": fitted.scale},
            fitted.stored_offsets(memory),
            terms,
            int(memory.ids.max()),
        )

    # -- one fold ----------------------------------------------------------------------------------

    def _weigh(
        self, models: Sequence[ItemModel], form: str, as_served: bool, place: int, watch: Watch
    ) -> dict[NextItemsChoice, Weighed]:
        """Measure a form as it would serve, or else its weights added up, which is cheap."""
        fold, model = self.folds[place], models[place].fitted(FORMS[form])
        faint = NextItemsChoice(None, form=form)
        if not as_served:
            weigh = partial(model.added, ranked=fold.ranked)
            return {faint: (measured(fold, weigh, fold.history.shape[1]), None)}
        weights, weighed = model.weights(), dict[NextItemsChoice, Weighed]()
        for choice in dict.fromkeys([faint, *self.choices]):
            if not choice.reach and choice.form == form:
                items, alone = choice.logits(weights), choice.of(next_items.untrained(self.memory))
                figures = measure(HistoryRanker.of(alone, self.memory, items), fold)
                is_beside = choice == faint and form == self.forms[0]
                weighed[choice] = figures, weights if is_beside else None
        return weighed

    def _try_recipe(
        self,
        by_fold: Sequence[Mapping[NextItemsChoice, Weighed]],
        name: str | None,
        place: int,
        watch: Watch,
    ) -> Measures:
        fold, measures, weighed = self.folds[place], Measures(), by_fold[place]
        fitted = self._fit_recipe(name, fold.training, 0, watch)
        for choice in self.choices:
            if not choice.reach and name is None:
                measures[choice] = weighed[choice][0]
            elif choice.recipe == name:
                beside = weighed.get(NextItemsChoice(None, form=choice.form))
                items = None if beside is None else choice.logits(beside[1])
                ranker = HistoryRanker.of(choice.of(fitted), self.memory, items)
                measures[choice] = measure(ranker, fold)
                watch(1.0)
        return measures

    def _try_current(self, place: int, watch: Watch) -> Measures:
        """Measure the active version as it would be without what is withheld."""
        fold, choice = self.folds[place], self._came_about()
        if choice is None:
            recommender = self._served()
        else:
            training = self.material.previous.multiply(fold.training).tocsr()
            several = bool((lengths(training) >= 2).any())
            fitted, items = self.fitted(choice if several else self.choices[0], training, 0, watch)
            recommender = HistoryRanker.of(fitted, self.memory, items)
        return {None: measure(recommender, fold)}

    def _came_about(self) -> NextItemsChoice | None:
        """Return the choice that the active version was learned by.

        Where what it learned from is gone, nothing can show again what it was worth: it is tried
        as it is. It may have seen some of what judges, which speaks for it, and not against it.
        """
        choices = self.task.chosen
        several = int((lengths(self.material.previous) >= 2).sum()) >= FEWEST_QUESTIONS
        recipe, form = choices.get("recipe"), choices.get("form", "none")
        known = recipe in (*RECIPES, "none") and (form == "none" or self._is_possible(form))
        if objective_of(self.task.active) != "interactions" or not several or not known:
            return None
        name, form = (None if part == "none" else part for part in (recipe, form))
        share, texts = float(choices["share"]), float(choices.get("texts", 0.0))
        once = next_items.STRONG if texts else next_items.STRENGTHS[0]  # it was not a choice
        strength = float(choices.get("strength", once))
        return NextItemsChoice(name, share, bool(choices["offsets"]), form, texts, strength)

    def _served(self) -> HistoryRanker:
        """Return the active version as it is, on the documents of the memory."""
        version = self.task.collection.views.current(role="recommend").version
        memory = self.memory
        served = ServedVersion(version, self.task.settings, memory)
        moved_queries = version.asking(memory.document_embeddings(), memory.rows)
        items = None
        if version.items is not None:
            scale = float(served.mechanism.scale[0])
            items = scale * version.items.matrix(memory.rows)

        def logits(documents: Int64, candidates: Int64) -> Floats:
            by_head = served.logits(moved_queries[documents], candidates)  # (i, H, c)
            return np.tensordot(by_head, served.mechanism.gates, axes=(1, 0))

        return HistoryRanker(logits, version.gates(memory.rows), items)

    def fitted(
        self, choice: NextItemsChoice, histories: Sparse, seed: int, watch: Watch
    ) -> tuple[Fitted, Sparse | None]:
        """Return a fit, and item weights (n, n) on the scale of logits, None for none."""
        fitted = self._fit_recipe(choice.recipe, histories, seed, watch)
        items = None
        if choice.form is not None:  # on the scale of logits
            form = FORMS[choice.form]
            weights = item_weights(histories, self.material.words, form, self.mean)
            items = choice.logits(weights)
        return choice.of(fitted), items

    def _fit_recipe(self, name: str | None, histories: Sparse, seed: int, watch: Watch) -> Fitted:
        if name is None:
            return next_items.untrained(self.memory)
        return fit_next_items(self.memory, histories, RECIPES[name], seed=seed, watch=watch)

    def _is_possible(self, form: str) -> bool:
        """Return whether a form is known, and texts have the words that it takes."""
        return form in FORMS and (not FORMS[form].words or self.material.words.nnz > 0)
