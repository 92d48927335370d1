"""Examples and problems, as readers give them → the examples that can be taught."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attend.errors import SourceError
from attend.examples.types import Example, same_question
from attend.source import Problem

Unfit = Callable[[Sequence[Example]], Mapping[int, Exception]]
"""What a collection has against examples, by their places in the list."""


@dataclass(frozen=True)
class Gathered:
    """What can be taught, and what was left out.

    Attributes:
        examples: each question and document once.
        skipped: rows that could not be used, those that a later one contradicts among them.
        repeated: rows that another says again.
    """

    examples: Sequence[Example]
    skipped: int
    repeated: int


def gather(
    items: Iterable[Example | Problem],
    unfit: Unfit,
    *,
    strict: bool = False,
    on_problem: Callable[[Problem], None] = lambda problem: None,
) -> Gathered:
    """Keep the examples that can be taught; of those that contradict each other, the last.

    Args:
        unfit: `attend.teaching.unfit` of a collection.
        strict: stop at the first row that cannot be used.
        on_problem: told of every row that cannot be used, and of every notice.

    Raises:
        SourceError: a row could not be used, and `strict` was set.
    """
    gathering = _Gathering(strict, on_problem)
    readable = list(gathering.readable(items))
    wrong = unfit(readable)
    for at, error in wrong.items():
        gathering.tell(Problem(readable[at].place, str(error)))
    last: dict[tuple[str | bytes, str], Example] = {}
    for at, example in enumerate(readable):
        if at not in wrong:
            gathering.keep(last, example)
    return Gathered(list(last.values()), gathering.skipped, gathering.repeated)


class _Gathering:
    """The running totals of one gathering."""

    def __init__(self, strict: bool, on_problem: Callable[[Problem], None]) -> None:
        self._strict = strict
        self._on_problem = on_problem
        self.skipped = 0
        self.repeated = 0

    def readable(self, items: Iterable[Example | Problem]) -> Iterator[Example]:
        for item in items:
            if isinstance(item, Problem):
                self.tell(item)
            else:
                yield item

    def keep(self, last: dict[tuple[str | bytes, str], Example], example: Example) -> None:
        """Put an example in the place of an earlier one for its question and document."""
        same = same_question(example.query), example.document
        earlier = last.pop(same, None)
        last[same] = example
        if earlier is None:
            return
        if earlier.weight == example.weight:
            self.repeated += 1
            return
        self.tell(
            Problem(
                earlier.place,
                f"The label {earlier.weight:g} of {earlier.document!r} is contradicted by "
                f"{example.weight:g} at {example.place}, for the same query. The later one counts.",
            )
        )

    def tell(self, problem: Problem) -> None:
        self._on_problem(problem)
        if not problem.refuses:
            return
        self.skipped += 1
        if self._strict:
            raise SourceError(
                f"Stopped at {problem} Nothing was taught: --strict takes no such row."
            )
