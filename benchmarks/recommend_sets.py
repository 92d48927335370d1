"""Goodbooks: its books, who read what, and collections of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import data_set

from attend import Collection, Data
from attend.feedback import add_interactions
from attend.learn.data import histories_of
from attend.measure.interactions import Protocol, TopNEvaluation, protocol_of
from attend.store import Interaction

QUICK_USERS = 1000

HELD_OUT = 0.2
"""Of each user's training interactions, to tune peers and in a rehearsal."""


class Books(NamedTuple):
    """Books, and interactions with them.

    Attributes:
        documents: as they are stored.
        train, test: who read what before and after.
        cold: ids to be withheld.
        titles: by id.
    """

    documents: Sequence[dict[str, str]]
    train: Sequence[Interaction]
    test: Sequence[Interaction]
    cold: Sequence[str]
    titles: Mapping[str, str] = {}

    def warm(self) -> Books:
        """As if nobody had met the withheld books before the test."""
        cold = set(self.cold)
        return self._replace(train=[each for each in self.train if each.document not in cold])

    def divided(self, seed: int) -> Books:
        """A part of each user's training interactions in the place of the test."""
        random, by_user = np.random.default_rng(seed), dict[str, list[Interaction]]()
        for each in self.train:
            by_user.setdefault(each.user, []).append(each)
        before, after = list[Interaction](), list[Interaction]()
        for met in by_user.values():
            count = max(1, round(HELD_OUT * len(met))) if len(met) >= 3 else 0
            out = set(random.permutation(len(met))[:count].tolist())
            for at, each in enumerate(met):
                (after if at in out else before).append(each)
        return self._replace(train=before, test=after)

    def with_titles_alone(self) -> Books:
        """As if nothing but titles were told of books."""
        return self._replace(
            documents=[{**each, "text": self.titles[each["id"]]} for each in self.documents]
        )


class Matrix(NamedTuple):
    """Interactions as a sparse matrix of ones (u, n), with the ids of both sides."""

    met: Any
    users: Sequence[str]
    documents: Sequence[str]


class Bench(NamedTuple):
    """What all sections share."""

    books: Books
    data: Data
    seed: int
    quick: bool
    full: bool
    peers: Sequence[str]
    folder: Path
    kept: dict[str, TopNEvaluation]
    rehearse: bool = False

    def protocol(self, given: Books, cold: Sequence[str] | None = None) -> Protocol:
        """Who is judged: all users, or some when quick."""
        found = protocol_of(given.test, given.train, cold)
        if not self.quick:
            return found
        users = sorted(found.relevant)
        kept = np.random.default_rng(self.seed).permutation(len(users))[:QUICK_USERS]
        some = {users[at]: found.relevant[users[at]] for at in kept.tolist()}
        return replace(found, relevant=some)


def words_of(given: Books) -> Any:
    """The tf-idf of titles, authors and tags by book, sparse (n, t): rows of length one."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # only peers need it

    texts = [each["text"] for each in given.documents]
    return TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(texts).tocsr()


def books(folder: Path) -> Books:
    path = data_set(folder, "goodbooks")
    with open(path / "books.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    documents = [{"id": str(row["id"]), "text": _text(row)} for row in rows]
    known = {each["id"] for each in documents}
    train, test = (
        [each for each in _pairs(path / f"{name}.tsv") if each.document in known]
        for name in ("train", "test")
    )
    cold = [id for id in (path / "cold_items.txt").read_text().split() if id in known]
    return Books(documents, train, test, cold, {str(row["id"]): row["title"] for row in rows})


def matrix_of(given: Books) -> Matrix:
    """The training interactions."""
    documents = [each["id"] for each in given.documents]
    users = list(dict.fromkeys(each.user for each in given.train))
    rows, columns = ({name: at for at, name in enumerate(side)} for side in (users, documents))
    places = np.array([(rows[each.user], columns[each.document]) for each in given.train])
    met = histories_of(places[:, 0], places[:, 1], (len(users), len(documents)))
    return Matrix(met, users, documents)


def collection_of(data: Data, name: str, given: Books) -> Collection:
    """A collection of the books, with the training interactions."""
    collection = data.create(name)
    for at in range(0, len(given.documents), 500):
        collection.upsert(list(given.documents[at : at + 500]))
    add_interactions(collection, given.train)
    return collection


def _text(row: dict[str, Any]) -> str:
    return f"{row['title']} {row.get('authors', '')} {', '.join(row.get('tags', []))}"


def _pairs(path: Path) -> list[Interaction]:
    with open(path, encoding="utf-8") as file:
        next(file)
        return [Interaction(user, book) for user, book, *_ in map(str.split, file)]
