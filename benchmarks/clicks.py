"""Click models: which hits of a page a simulated user clicks on, given what is relevant.

Both are seeded and serve many pages at once. `noise` is the chance that a user who looks at a hit
takes the irrelevant for relevant, and the relevant for irrelevant.
"""

from __future__ import annotations

import numpy as np

from attend.core.types import Bool, Float64


class Position:
    """Users who look at the hit of rank r with chance r^-eta, at each on its own.

    The position-based model (Richardson, Dominowska and Ragno 2007; Joachims, Swaminathan and
    Schnabel 2017).
    """

    def __init__(self, eta: float, noise: float, rng: np.random.Generator) -> None:
        """Take how steeply attention falls with the rank, the noise, and the source of chance."""
        self.eta, self.noise, self.rng = eta, noise, rng

    def clicks(self, relevance: Float64) -> Bool:
        """Draw clicks on pages of k hits.

        Args:
            relevance: (n, k), within 0 to 1, by page and rank.

        Returns: (n, k).

        >>> Position(1.0, 0.0, np.random.default_rng(0)).clicks(np.array([[1.0, 0.0, 0.0]]))
        array([[ True, False, False]])
        """
        examined = np.arange(1.0, relevance.shape[1] + 1) ** -self.eta
        chance = examined * attraction(relevance, self.noise)
        return np.asarray(self.rng.random(relevance.shape) < chance)


class Cascade:
    """Users who look at the hits from the top on, click on the first good one, and stop.

    The cascade model (Craswell, Zoeter, Taylor and Ramsey 2008).
    """

    def __init__(self, noise: float, rng: np.random.Generator) -> None:
        """Take the noise, and the source of chance."""
        self.noise, self.rng = noise, rng

    def clicks(self, relevance: Float64) -> Bool:
        """Draw clicks on pages of k hits, at most one for each page.

        Args:
            relevance: (n, k), within 0 to 1, by page and rank.

        Returns: (n, k).

        >>> Cascade(0.0, np.random.default_rng(0)).clicks(np.array([[0.0, 1.0, 1.0]]))
        array([[False,  True, False]])
        """
        drawn = self.rng.random(relevance.shape) < attraction(relevance, self.noise)
        return np.asarray(drawn & (np.cumsum(drawn, axis=1) == 1))


def attraction(relevance: Float64, noise: float) -> Float64:
    """Return the chance of a click on hits (...) that are looked at, by their relevance (...).

    >>> attraction(np.array([1.0, 0.0]), 0.1)
    array([0.9, 0.1])
    """
    return relevance * (1 - noise) + (1 - relevance) * noise
