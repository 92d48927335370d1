"""Trying ways to answer on held-out questions: one fit for each recipe and fold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from attend.learn.choose import Choice, Judged, weights
from attend.learn.data import PARTS, Memory, Part, Questions, answerable
from attend.learn.fit import Watch, unlearned
from attend.learn.folds import Fold, View
from attend.learn.rankings.candidates import parts
from attend.learn.rankings.learned import Learned, candidates, learn
from attend.learn.rankings.ranking import Parts, head_scores, ndcg, scores
from attend.learn.rankings.ways import NOTHING, SHARES, Way, choices, way_of, ways, weights_of
from attend.learn.space import Space, space_of
from attend.learn.together import Steady, one_thread_each
from attend.types import Bool, Float32, Float64, Int64

MOST_HELD = 1500
"""Questions by which a fold is judged: more make its figures no truer than they need to be."""


Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Before:
    """What answers now.

    Attributes:
        choice: the way it came about, to be tried on each fold as all others are.
        start: (d_k, d), where its matrices began, if examples went into them.
        parts: what took part in learning it.
        fitted: where its queries and keys meet, if no example went into that; else None.
        known: which questions and judgements (q, n) it learned from, where it did.
        temperature, null: at which several heads are mixed, and the null key's logit in each.
    """

    choice: Choice
    start: Float32
    parts: Collection[Part] = PARTS
    fitted: Space | None = None
    known: Questions | None = None
    temperature: float = 1.0
    null: float | None = None


class HeldOut(NamedTuple):
    """What a choice makes of all held-out questions, each view counting as much as in use.

    Attributes:
        scores: (H, q, c) of candidates, -inf where padded; of several heads their logits.
        relevant: (q, c), which of them are.
        counts: (q,) how much each question counts.
    """

    scores: Float64
    relevant: Bool
    counts: Float64


@dataclass
class Trial:
    """Held-out questions under every choice.

    Attributes:
        parts: what may take part.
        heads: H; None tries one, and several.
        judged: one for each fold.
        kept: what each fold's questions found, by what was fitted and how far it went.
    """

    memory: Memory
    questions: Questions
    start: Float32
    before: Before
    seed: int
    parts: Collection[Part] = PARTS
    heads: int | None = 1
    judged: list[Judged[Choice]] = field(default_factory=list)
    kept: dict[tuple[int, Way, float], Parts] = field(default_factory=dict)

    def run(self, folds: Sequence[Fold], watch: Watch) -> None:
        """Judge every choice on every fold."""
        tasks = [(at, way) for at in range(len(folds)) for way in ways(self.parts, self.heads)]
        steady = Steady(watch, len(tasks))
        with one_thread_each() as workers:
            running = [
                workers.submit(self._try, at, folds[at], way, steady.part()) for at, way in tasks
            ]
            try:
                found = [each.result() for each in running]
            except BaseException:
                steady.stop()
                raise
            held = [workers.submit(self._before, fold, steady.part()) for fold in folds]
            before = [each.result() for each in held]
        for at, fold in enumerate(folds):
            after = {
                choice: values
                for (task, _), judged in zip(tasks, found, strict=True)
                if task == at
                for choice, values in judged.items()
            }
            held_out = _sampled(fold.held_out, self.seed)
            self.judged.append(Judged(fold.view, held_out, before[at], after))

    def held_out(self, choice: Choice, share_seen: float) -> HeldOut:
        """All held-out questions under a choice."""
        found = self._kept(choice)
        views = [self.judged[at].view for at in found]
        shares = weights(dict.fromkeys(views), share_seen)
        sizes: dict[View, int] = dict.fromkeys(views, 0)
        for view, part in zip(views, found.values(), strict=True):
            sizes[view] += len(part.documents)
        width = max(part.documents.shape[1] for part in found.values())
        scored, relevant, counts = [], [], []
        for view, part in zip(views, found.values(), strict=True):
            by_head = head_scores(part, weights_of(choice)).astype(np.float64)
            if len(by_head) > 1:
                by_head = by_head * part.heads.scales[:, None, None]
            scored.append(_widened(np.where(part.documents < 0, -np.inf, by_head), width, -np.inf))
            relevant.append(_widened(part.grades, width, 0) > 0)
            counts.append(np.full(len(part.grades), shares[view] / sizes[view]))
        return HeldOut(np.concatenate(scored, axis=1), *map(np.concatenate, (relevant, counts)))

    def calibrate(self, choice: Choice, temperature: float, null: float | None) -> None:
        """Judge a choice of several heads as it will be used: of one head nothing changes, but
        temperature and null key move several against each other."""
        for at, part in self._kept(choice).items():
            found = part._replace(heads=part.heads.calibrated(temperature, null))
            after = {**self.judged[at].after, choice: _judged(choice, found)}
            self.judged[at] = self.judged[at]._replace(after=after)

    def _kept(self, choice: Choice) -> dict[int, Parts]:
        """What each fold found."""
        wanted = way_of(choice), choice.share
        return {at: part for (at, *how), part in self.kept.items() if tuple(how) == wanted}

    def _try(self, at: int, fold: Fold, way: Way, watch: Watch) -> dict[Choice, Float64]:
        """One recipe on one fold."""
        learned = self._learned(fold.training, way, self.start, self.parts, watch)
        asked = self.questions.some(_sampled(fold.held_out, self.seed))
        judged: dict[Choice, Float64] = {}
        for share in SHARES if way != NOTHING else SHARES[-1:]:
            so_far = learned.mixed(self.start, share)
            found = candidates(self.memory, so_far, fold.training, asked)
            self.kept[at, way, share] = found
            for choice in choices(way, share, self.parts, worded=bool(found.lexical.any())):
                judged[choice] = _judged(choice, found)
        watch(1.0)
        return judged

    def _before(self, fold: Fold, watch: Watch) -> Float64:
        """What answers now, as it would on questions that it has not seen either."""
        before = self.before
        choice, known = before.choice, before.known
        asked = self.questions.some(_sampled(fold.held_out, self.seed))
        factors = (choice.examples or 1.0,)
        if known is None:
            space = before.fitted or space_of(self.memory, unlearned(self.memory, before.start))
            return _judged(
                choice, parts(self.memory, space, fold.training, asked, asked.relevant, factors)
            )
        then = known.without(fold.blocked)
        training = then.some(fold.trained & answerable(then))
        way = way_of(choice) if training.count else NOTHING
        learned = self._learned(training, way, before.start, before.parts, watch)
        so_far = learned.mixed(before.start, choice.share)
        found = candidates(self.memory, so_far, training, asked, factors)
        heads = found.heads.calibrated(before.temperature, before.null)
        return _judged(choice, found._replace(heads=heads))

    def _learned(
        self, training: Questions, way: Way, start: Float32, parts: Collection[Part], watch: Watch
    ) -> Learned:
        return learn(self.memory, training, way, parts, start=start, seed=self.seed, watch=watch)


def _judged(choice: Choice, found: Parts) -> Float64:
    return ndcg(found, scores(found, weights_of(choice)))


def _sampled(held: Int64, seed: int) -> Int64:
    if len(held) <= MOST_HELD:
        return held
    return np.sort(np.random.default_rng(seed).choice(held, MOST_HELD, replace=False))


def _widened(array: NDArray[Number], width: int, blank: float) -> NDArray[Number]:
    more = width - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, more)], constant_values=blank)
