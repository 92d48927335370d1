"""The parameter grid of the ranking objective, and the questions that feedback has moved."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from attend.core.settings import UNTRAINED_MEMORY
from attend.core.types import Float64
from attend.learning.data import Memory, Questions
from attend.learning.held_out import QuestionFold, Split
from attend.learning.hidden import feedback_of
from attend.learning.selection import PART_COST

SHARES = (0.3, 0.6, 1.0)
EXAMPLES = (0.0, 0.7, 0.8, 0.9, 1.0)
LEXICAL = (
    *((0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.3, 0.0), (0.5, 0.0)),
    *((0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (1.5, 1.0)),
)
MEMORY = (0.0, UNTRAINED_MEMORY)
"""The parameter grid: how far from the start to the fit, the factor on example keys, λ with γ, and
how far feedback moves a query."""

OFFSETS = "; key offsets move documents with examples away from the queries of all others"
"""What a reader of a promotion's reason must know where key offsets were learned."""


class RankingChoice(NamedTuple):
    """How far to go from the start to the fit, 0 for not at all; the factor on example keys, λ and
    γ; and how far feedback moves a query."""

    share: float
    examples: float = 0.0
    lexical: float = 0.0
    coverage: float = 0.0
    memory: float = 0.0

    @property
    def plain(self) -> bool:
        """Words, example keys and feedback alone."""
        return not self.share

    @property
    def cost(self) -> float:
        """The gain in nDCG that all its parts must be worth together."""
        return PART_COST * sum(part > 0 for part in (*self[:3], self.memory))


Values = dict[tuple[Split, RankingChoice | None], Float64]
"""nDCG of a fold's questions in its splits under every choice; by None of what answers now."""


class HeldOutQuestions:
    """The questions that judge, by fold, and as feedback moves them.

    Every fit ranks them, and none changes how far they move.
    """

    def __init__(self, questions: Questions, keys: Memory) -> None:
        self._questions = questions
        self._keys = keys
        self._known: dict[tuple[int, float], Questions] = {}

    def moved(self, fold: QuestionFold, strength: float) -> Questions:
        """Return a fold's questions, moved by those that the fold leaves to learn from.

        Args:
            strength: α; 0 for not at all.
        """
        key = id(fold), strength
        if key not in self._known:  # threads that come at once do the same
            self._known[key] = self._move(fold, strength)
        return self._known[key]

    def _move(self, fold: QuestionFold, strength: float) -> Questions:
        if not strength:
            return self._questions.some(fold.held_out)
        questions, memory = self.moved(fold, 0.0), feedback_of(fold.training, self._keys)
        if memory is None:
            return questions
        return replace(questions, embeddings=memory.moved(questions.embeddings, strength))
