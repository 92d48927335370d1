"""What a version has that no pair of layers can carry, said with its figures."""

from __future__ import annotations

from typing import NamedTuple

from attend.projection import Projection
from attend.tuning import Tuning


class Leftover(NamedTuple):
    """One thing that cannot travel; `in_use`: this version answers with it."""

    what: str
    in_use: bool
    detail: str

    def sentence(self) -> str:
        return f"{self.what}: {self.detail}"


def leftovers(
    projection: Projection, tuning: Tuning, *, offsets: int, examples: int, terms: int = 0
) -> list[Leftover]:
    """Everything that cannot travel, whether this version has it or not.

    Args:
        offsets: keys that this version moves.
        terms: documents of which it has learned something else.
        examples: examples that the collection holds.
    """
    return [
        _offsets(offsets),
        _terms(terms),
        _examples(tuning, examples),
        _lexical(tuning),
        _scale(tuning),
        _null(tuning),
        _tensors(projection),
    ]


def _offsets(count: int) -> Leftover:
    why = "they belong to stored keys, and a model knows only a text"
    detail = f"{count} keys are moved; {why}" if count else f"none; {why}"
    return Leftover("key offsets", count > 0, detail)


def _terms(count: int) -> Leftover:
    why = "how a document asks, and how much it counts in a history, is learned of each by itself"
    return Leftover("terms of documents", count > 0, f"{count or 'none'}; {why}")


def _examples(tuning: Tuning, count: int) -> Leftover:
    used = tuning.examples > 0 and count > 0
    why = "they are rows of the collection, and no function of a document's text"
    detail = f"{count}, at the factor {tuning.examples:g}; {why}" if used else f"not used; {why}"
    return Leftover("example keys", used, detail)


def _lexical(tuning: Tuning) -> Leftover:
    why = "BM25 needs the words of the whole collection"
    used = tuning.lexical > 0
    weights = f"weight {tuning.lexical:g}, coverage {tuning.coverage:g}"
    return Leftover("lexical bias", used, f"{weights if used else 'not used'}; {why}")


def _scale(tuning: Tuning) -> Leftover:
    why = "it changes weights and no ranking: multiply the scores by it before a softmax"
    return Leftover("scale", tuning.scale is not None, f"{_numbers(tuning.scale)}; {why}")


def _null(tuning: Tuning) -> Leftover:
    why = "add it as one more logit where 'nothing here answers that' is to be an answer"
    return Leftover("null key", tuning.null is not None, f"{_numbers(tuning.null)}; {why}")


def _tensors(projection: Projection) -> Leftover:
    kept = [name for name in projection.tensors if name[:3] in ("w_v", "b_v", "w_o", "b_o", "add")]
    detail = f"{', '.join(kept) or 'none'}; they work on values or pairs, not on one embedding"
    return Leftover("value matrices and additive scorer", bool(kept), detail)


def _numbers(fitted: tuple[float, ...] | None) -> str:
    return "not fitted" if fitted is None else ", ".join(f"{each:.6g}" for each in fitted)
