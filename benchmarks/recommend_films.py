"""Films of which nothing but a title and genres is stored, beside EASE on the same interactions.

No such data set is here, so users are simulated (see simulated_ratings.py) in the proportions of
MovieLens-100k: taste goes by genres in part, and by what no text tells for the most part. Titles
are those of books, drawn at random, and say nothing. What users rated is what they met; a fifth of
each one's is the test. A rehearsal draws another world.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from recommend_sets import Books
from simulated_ratings import ITEMS, RATINGS, USERS, World, simulated

from attend.store import Interaction

CHOOSING, JUDGING = 10, 11
"""Seeds of the worlds of a rehearsal and of the test."""

TASTE = World(pull=2.5)
"""Taste decides more of what is rated than among the books there: EASE is then about twice as good
as popularity, as it is on MovieLens."""

QUICK_USERS, QUICK_RATINGS = 250, 25_000

GENRES = (
    *("Drama", "Comedy", "Thriller", "Action", "Romance", "Adventure", "Children", "Crime"),
    *("Science Fiction", "Horror", "War", "Mystery", "Musical", "Documentary", "Animation"),
    *("Western", "Film Noir", "Fantasy"),
)
"""Those that most films have first."""

MOST_GENRES = 3


def films(titles: Sequence[str], seed: int, quick: bool) -> Books:
    """Films, who met which, and a fifth of each user's as the test."""
    random = np.random.default_rng(seed)
    genres = _genres(random)
    users, count = (QUICK_USERS, QUICK_RATINGS) if quick else (USERS, RATINGS)
    rated = simulated(genres, users=users, ratings=count, seed=seed, world=TASTE)
    names = random.choice(np.array(titles), ITEMS)
    documents = [
        {"id": str(place), "text": f"{name}\n{', '.join(np.array(GENRES)[row > 0])}"}
        for place, (name, row) in enumerate(zip(names, genres, strict=True))
    ]
    met = [
        Interaction(f"u{user}", str(film))
        for user, film in zip(rated.users.tolist(), rated.items.tolist(), strict=True)
    ]
    every = Books(documents, met, [], [], {each["id"]: each["text"] for each in documents})
    return every.divided(seed)


def _genres(random: np.random.Generator) -> np.ndarray:
    """(n, g) ones where a film has a genre: one to three of each, some far oftener than others."""
    shares = 1 / np.arange(1, len(GENRES) + 1)
    order = np.log(shares) + random.gumbel(size=(ITEMS, len(GENRES)))
    places = np.argsort(np.argsort(-order, axis=1), axis=1)
    counts = random.integers(1, MOST_GENRES + 1, ITEMS)
    return (places < counts[:, None]).astype(np.float32)
