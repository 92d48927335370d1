"""The stored documents, examples, interactions and ratings, as arrays to learn from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from attend.collection.stored import StoredCollection
from attend.core.arrays import KeyTable, locate
from attend.core.errors import InvalidRequest
from attend.core.types import Bool, Float32, Float64, Int64, Json
from attend.learning.closed_form import MOST_ITEMS
from attend.learning.data import Memory, Questions, Ratings, Sparse, histories_of
from attend.learning.held_out import sampled
from attend.store import ExampleSet, InteractionSet, compile_filter
from attend.store.words import TOKENIZER, Lexical
from attend.write.labels import propensity

MOST_QUESTIONS = 10_000
MOST_DOCUMENTS = 100_000
"""What is learned from at once; beyond, a sample with every document that examples label."""

MOST_USERS = 200_000
MOST_RATINGS = 1_000_000
"""Users and ratings that are learned from; of more, those of some of the users."""

MOST_WORDS = 4096
"""Words by which documents are alike, those first that tell most documents apart."""

SEPARATORS = re.compile(r"[,;|\n]")

MOST_IN_NAME = 4
"""Words of what is a term by itself between separators, such as an author or a tag. (nDCG@10 of
withheld books on a validation part of goodbooks: .285 with stems alone, .287 with names.)"""

MOST_MATCHES = 50_000_000
FEWEST_MATCHES = 1000
"""Documents that share words with questions, of all together and of one: 400 MB and no less than
ten times as many as can come into an answer."""

READ_DOCUMENTS = 1000
"""Documents whose texts are read at once."""


def memory_of(collection: StoredCollection, rows: Int64 | None) -> Memory:
    """Read the keys of the documents of some rows, ascending; of all if None."""
    with collection.store.all_keys() as (_, stored):
        tables = [part if rows is None else part.some(part.places(rows)) for part in stored]
    if not tables:
        raise InvalidRequest(
            f"The collection {collection.name!r} has no documents to learn about; add some."
        )
    unit = collection.settings.unit_embeddings or collection.settings.scorer == "cosine"
    table = KeyTable.joined(tables)
    return Memory(table.rows, table.starts, table.vectors, table.ids, unit=unit)


def start_of(memory: Memory, dimensions: int | None) -> Float32:
    """Return where W_Q and W_K begin: the identity, or the directions of most variance."""
    width = memory.vectors.shape[1]
    if dimensions is None:
        return np.eye(width, dtype=np.float32)
    if dimensions > width:
        raise InvalidRequest(
            f"dimensions is {dimensions}, but embeddings have {width}; send at most that.",
            field="dimensions",
        )
    # Uncentred, as scores are inner products: the best approximation of all of them (Eckart
    # and Young 1936).
    moments = memory.vectors.T.astype(np.float64) @ memory.vectors
    _, directions = np.linalg.eigh(moments)
    return np.ascontiguousarray(directions[:, ::-1][:, :dimensions].T.astype(np.float32))


# -- examples --------------------------------------------------------------------------------------


class RankingMaterial(NamedTuple):
    """Questions with their labels.

    Attributes:
        previous: what the active version learned from.
        texts: (q,) of the questions; None of one that is a vector.
    """

    memory: Memory
    questions: Questions
    previous: Questions
    figures: Mapping[str, Json]
    texts: Sequence[str | None]


def read_questions(
    collection: StoredCollection, last: int, seed: int, *, with_texts: bool = False
) -> RankingMaterial:
    """Read examples and keys.

    Args:
        last: the last example that the active version learned from.
        with_texts: leave out questions without a text.
    """
    with collection.store.reading():  # all of one moment
        learned = collection.store.examples()
        memory = memory_of(collection, _labelled_rows(collection, learned, seed))
        labels = _labels(learned, memory)
        usable = np.flatnonzero(np.diff(labels(learned.ids >= 0)[0].indptr) > 0)
        if with_texts:
            usable = usable[[learned.texts[index] is not None for index in usable]]
        members = sampled(usable, MOST_QUESTIONS, np.random.default_rng(seed))
        texts = [learned.texts[index] for index in members]
        lexical, coverage = shared_words_of(collection, texts, memory)
        documents = collection.store.counts()[0]

    def questions(examples: Bool) -> Questions:
        relevant, judged = (matrix[members] for matrix in labels(examples))
        return Questions(learned.embeddings[members], relevant, judged, lexical, coverage)

    figures: dict[str, Json] = {
        "questions": len(learned.texts),
        "examples": len(learned.ids),
        "documents": documents,
        "last_example": int(learned.ids.max(initial=-1)),
    }
    everything, previous = questions(learned.ids >= 0), questions(learned.ids <= last)
    return RankingMaterial(memory, everything, previous, figures, texts)


def _labels(learned: ExampleSet, memory: Memory) -> Callable[[Bool], tuple[Sparse, Sparse]]:
    """Return a function of some examples (e,): the grades above zero, and all labels."""
    index, there = locate(memory.rows, learned.rows)
    shape = len(learned.texts), len(memory)
    weights = _debiased(learned)

    def labels(examples: Bool) -> tuple[Sparse, Sparse]:
        mask = examples & there
        place = learned.questions[mask], index[mask]
        grades = np.maximum(weights[mask], 0).astype(np.float32)
        against = (1 + np.maximum(-weights[mask], 0)).astype(np.float32)
        relevant = sparse.csr_array((grades, place), shape=shape)
        relevant.eliminate_zeros()
        judged = sparse.csr_array((against, place), shape=shape)
        for matrix in (relevant, judged):
            matrix.sort_indices()
        return relevant, judged

    return labels


def _labelled_rows(collection: StoredCollection, learned: ExampleSet, seed: int) -> Int64 | None:
    """Return the rows of the documents to learn about; None for all."""
    if collection.store.counts()[0] <= MOST_DOCUMENTS:
        return None
    rows = collection.store.matching(compile_filter({}))
    return np.union1d(sampled(rows, MOST_DOCUMENTS, np.random.default_rng(seed)), learned.rows)


def _debiased(learned: ExampleSet) -> Float64:
    """Return weights (e,) by inverse propensity where the place on the page is known."""
    shown = (learned.positions > 0) & (learned.weights > 0)
    weights = learned.weights.copy()
    weights[shown] /= [propensity(int(place)) for place in learned.positions[shown]]
    return weights


def shared_words_of(
    collection: StoredCollection, texts: Sequence[str | None], memory: Memory
) -> tuple[Sparse, Float32]:
    """Return BM25 over each question's maximum (q, n), and its coverage (q,).

    Of each question the best documents by words, as many as there is room for.
    """
    room, able = room_of(len(texts)), collection.capabilities.lexical
    matches = (collection.store.lexical(text, room) if text and able else None for text in texts)
    return word_shares(matches, len(texts), memory)


def room_of(questions: int) -> int:
    """Return the number of documents that are read for the words of each of some questions."""
    return max(FEWEST_MATCHES, MOST_MATCHES // max(1, questions))


def word_shares(
    matches: Iterable[Lexical | None], count: int, memory: Memory
) -> tuple[Sparse, Float32]:
    """Return BM25 over the maximum of each of `count` questions (q, n), and its coverage (q,)."""
    columns, shares = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    counts, coverage = np.zeros(count, np.int64), np.zeros(count, np.float32)
    for question, match in enumerate(matches):
        if match is not None and match.maximum > 0:
            index, there = locate(memory.rows, match.rows)
            columns.append(index[there].astype(np.int32))
            shares.append((match.scores[there] / match.maximum).astype(np.float32))
            counts[question] = there.sum()
            coverage[question] = min(1.0, match.maximum / match.ideal)
    pointers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)  # as the columns are
    entries = np.concatenate(shares), np.concatenate(columns), pointers
    return sparse.csr_array(entries, shape=(count, len(memory))), coverage


# -- interactions ----------------------------------------------------------------------------------


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
        memory = memory_of(collection, _popular_rows(collection, stored, random))
        documents = collection.store.counts()[0]
        liking = collection.store.liking()
        index, there = locate(memory.rows, stored.rows)
        counts = np.bincount(index[there], minlength=len(memory))
        members = np.sort(np.argsort(-counts, kind="stable")[:MOST_ITEMS])
        words = words_of(collection, memory.rows[members])
    users = np.zeros(len(stored.users), dtype=bool)
    users[sampled(np.arange(len(users)), MOST_USERS, random)] = True
    mask = stored.liked & users[stored.user_indices] & there
    shape = len(users), len(memory)

    def histories(members: Bool) -> Sparse:
        return histories_of(stored.user_indices[members], index[members], shape)

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


def words_of(collection: StoredCollection, rows: Int64) -> Sparse:
    """Return the terms in the texts of documents by inverse document frequency, sparse (n, t).

    Rows have length one; a document without text, or with terms of its own only, has zeros. How
    often a text has a term counts little beside that it has it, and is left out.
    """
    numbers: dict[str, int] = {}
    columns, counts = [np.empty(0, np.int64)], np.zeros(len(rows), np.int64)
    for start in range(0, len(rows), READ_DOCUMENTS):
        part = rows[start : start + READ_DOCUMENTS]
        documents = collection.store.documents(part)
        for place, row in enumerate(part.tolist(), start):
            fields = documents[row].fields if row in documents else {}
            terms = terms_of("\n".join(fields.values()))
            columns.append(np.array([numbers.setdefault(t, len(numbers)) for t in terms], int))
            counts[place] = len(terms)
    column = np.concatenate(columns)
    frequency = np.bincount(column, minlength=len(numbers))
    rarity = np.log((len(rows) + 1) / (frequency + 1))
    # What one document alone has connects it with none; what nearly all have says nothing.
    worth = np.where(frequency > 1, frequency * rarity**2, 0.0)
    used = np.flatnonzero(worth > 0)
    used = np.sort(used[np.argsort(-worth[used], kind="stable")[:MOST_WORDS]])
    pointers = np.concatenate([[0], np.cumsum(counts)])
    shape = len(rows), len(numbers)
    present = sparse.csr_array((rarity[column], column, pointers), shape=shape)[:, used].tocsr()
    lengths = np.sqrt(present.power(2).sum(axis=1))
    return (sparse.diags_array(1 / np.where(lengths > 0, lengths, 1)) @ present).tocsr()


def terms_of(text: str) -> list[str]:
    """Return the stems of a text, and the short names that stand between its separators.

    >>> terms_of("Stephen King, horror")
    ['stephen', 'king', 'horror', ',stephen king', ',horror']
    """
    names = (part.casefold().split() for part in SEPARATORS.split(text))
    listed = ("," + " ".join(name) for name in names if 0 < len(name) <= MOST_IN_NAME)
    return [*TOKENIZER.words(text), *dict.fromkeys(listed)]


def _popular_rows(
    collection: StoredCollection, stored: InteractionSet, random: np.random.Generator
) -> Int64 | None:
    """Return rows of the documents with most interactions, and a sample; None for all."""
    if collection.store.counts()[0] <= MOST_DOCUMENTS:
        return None
    rows, counts = np.unique(stored.rows, return_counts=True)
    most = rows[np.argsort(-counts, kind="stable")[: MOST_DOCUMENTS // 2]]
    others = np.setdiff1d(collection.store.matching(compile_filter({})), most)
    return np.union1d(most, sampled(others, MOST_DOCUMENTS - len(most), random))


# -- ratings ---------------------------------------------------------------------------------------


class RatingMaterial(NamedTuple):
    """Ratings, with the documents that have one.

    Attributes:
        rows: (n,) of the documents; embeddings: (n, d), the mean of each one's keys, of which
            `last_key` is the last.
    """

    ratings: Ratings
    rows: Int64
    embeddings: Float32
    last_key: int
    figures: Mapping[str, Json]


def read_ratings(collection: StoredCollection, seed: int) -> RatingMaterial:
    """Read the interactions that have a number, and the texts they are about."""
    with collection.store.reading():  # all of one moment
        stored = collection.store.interactions()
        rated = np.flatnonzero(np.isfinite(stored.values))
        users, items, values = stored.user_indices[rated], stored.rows[rated], stored.values[rated]
        members = _of_some_users(users, seed)
        keys = collection.store.own_keys(np.unique(items[members]))
    rows, embeddings = keys.rows, np.asarray(keys.means(), dtype=np.float32)
    members = members[np.isin(items[members], rows)]  # of documents without keys nothing is said
    places = np.searchsorted(rows, items[members])
    ratings = Ratings(users[members], places, values[members], len(stored.users), len(rows))
    figures: dict[str, Json] = {
        "interactions": len(stored.rows),
        "ratings": len(rated),
        "users": len(np.unique(users)),
        "documents": len(rows),
    }
    return RatingMaterial(ratings, rows, embeddings, int(keys.ids.max(initial=0)), figures)


def _of_some_users(users: Int64, seed: int) -> Int64:
    """Return the places of the ratings to learn from: all, or those of some users."""
    if len(users) <= MOST_RATINGS:
        return np.arange(len(users))
    names, counts = np.unique(users, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    sampled_users = names[order[np.cumsum(counts[order]) <= MOST_RATINGS]]
    return np.flatnonzero(np.isin(users, sampled_users))
