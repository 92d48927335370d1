"""The ranking objective's loss: W_Q, W_K and key offsets from questions and relevant documents.

The loss is the cross-entropy of a softmax over documents against the grades of each question
(the listwise loss of Cao et al. 2007 with its softmax over candidates sampled, as in sampled
softmax, Jean et al. 2015). Only documents that examples label compete: nothing pushes away a
document that no example speaks of.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attend.attention import log_shares
from attend.errors import InvalidRequest
from attend.learn.data import Memory, Questions
from attend.learn.fit import Recipe, Watch, count_batches, descend, shuffled_batches
from attend.learn.residual import Fitted, Residual
from attend.types import Float32, Int64

RECIPE = Recipe(
    "known documents", rates={"maps": 3e-3, "scale": 1.5e-2, "offsets": 1e-2}, batch=256
)

LABELLED = 800
"""Labelled documents drawn for each step beside those of its own questions."""


class Competitors(NamedTuple):
    """Documents of one step (c,), ascending, and the log of the number that each stands for."""

    documents: Int64
    log_counts: Float32


class RankingModel:
    """Parameters, and the loss of a batch of questions."""

    def __init__(
        self,
        memory: Memory,
        questions: Questions,
        recipe: Recipe,
        start: Float32,
        *,
        seed: int,
        offsets: bool,
    ) -> None:
        self.questions, self.recipe = questions, recipe
        self.labelled = np.unique(questions.judged.indices).astype(np.int64)
        movable = memory.positions(self.labelled if offsets else self.labelled[:0])
        self.maps = Residual(memory, start, scale=memory.scale, offset_keys=movable, seed=seed)

    @property
    def parameters(self) -> dict[str, list[Any]]:
        maps = self.maps
        return {
            "maps": [maps.delta_q, maps.delta_k],
            "scale": [maps.log_scale],
            "offsets": [maps.offsets],
        }

    def loss(self, batch: Int64) -> Any:
        """Return the mean cross-entropy of some questions (b,)."""
        torch = self.maps.torch
        relevant, judged = self.questions.relevant[batch], self.questions.judged[batch]
        candidates = self.candidates(judged)
        grades = torch.from_numpy(relevant[:, candidates.documents].toarray().astype(np.float32))
        target = grades / grades.sum(dim=1, keepdim=True)
        # A document that counts twice in the softmax is as hard to stay above as two.
        competing = np.log(np.maximum(judged[:, candidates.documents].toarray(), 1))
        counts = torch.from_numpy(candidates.log_counts + competing.astype(np.float32))
        logits = self.maps.log_scale.exp() * self._scores(batch, candidates.documents) + counts
        return -(target * log_shares(logits)).sum(dim=1).mean()

    def candidates(self, judged: Any) -> Competitors:
        """Draw the documents that compete in one step: those judged, and some other labelled."""
        judged_documents = np.unique(judged.indices)
        others = np.setdiff1d(self.labelled, judged_documents, assume_unique=True)
        count = 1.0
        if len(others) > LABELLED:
            count = len(others) / LABELLED
            others = self.maps.random.choice(others, LABELLED, replace=False)
        documents = np.concatenate([judged_documents, others]).astype(np.int64)
        counts = np.concatenate([np.ones(len(judged_documents)), np.full(len(others), count)])
        order = np.argsort(documents)
        return Competitors(documents[order], np.log(counts[order]).astype(np.float32))

    def _scores(self, batch: Int64, documents: Int64) -> Any:
        """(b, c): each question's best key in each document."""
        maps, torch = self.maps, self.maps.torch
        positions = maps.memory.positions(documents)
        questions = torch.from_numpy(self.questions.embeddings[batch])
        queries = maps.project(maps.thinned(questions, self.recipe.drop), maps.delta_q)  # (b, d_k)
        count = len(positions)
        moves = maps.moves(positions, np.arange(count), count, self.recipe.drop_offsets)
        embeddings = torch.from_numpy(maps.memory.vectors[positions]) + moves
        keys = maps.project(embeddings, maps.delta_k)  # (m', d_k)
        return maps.best(queries @ keys.T, documents)


def fit_ranking(
    memory: Memory,
    questions: Questions,
    *,
    start: Float32,
    offsets: bool = True,
    recipe: Recipe = RECIPE,
    seed: int = 0,
    watch: Watch = lambda done: None,
) -> Fitted:
    """Learn from questions, each with at least one relevant document.

    Args:
        start: (d_k, d), where W_Q and W_K begin.
        offsets: whether the keys of labelled documents get offsets.

    Raises:
        Conflict: the loss is not finite.
    """
    if questions.count == 0:
        raise InvalidRequest("No question with a relevant document was given; teach examples.")
    model = RankingModel(memory, questions, recipe, start, seed=seed, offsets=offsets)
    steps = recipe.count_steps(count_batches(questions.count, recipe.batch))
    members = np.arange(questions.count)
    batches = shuffled_batches(members, recipe.batch, steps, model.maps.random)
    descend(model, recipe, batches, steps, watch)
    return model.maps.fitted()
