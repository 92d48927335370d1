"""Recommending: goodbooks beside the usual libraries, withheld books, speed and explanations.

All is done through the package, in a temporary folder: books are stored and encoded, training
interactions recorded and learned from, and users of the test split recommended to. Peers are tuned
on a part of the training interactions. The test split is touched once, at the end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import ledger
import numpy as np
import recommend_ratings
from common import (
    DATA,
    Difference,
    Row,
    ahead,
    data_set,
    difference_row,
    not_behind,
    parser,
    progress,
    row_of,
    tell,
)
from recommend_ratings import ITEMS, RATINGS, USERS, World, simulated
from scale import grown, real
from scipy import sparse

from attend import Collection, Data
from attend.core.types import Int64
from attend.learning import train
from attend.learning.data import histories_of
from attend.measure.interactions import (
    CUT,
    MEASURES,
    Protocol,
    TopNEvaluation,
    evaluate,
    protocol_of,
)
from attend.measure.statistics import LEVEL, difference_intervals, paired_randomisation
from attend.store import Interaction
from attend.write.feedback import add_interactions

QUICK_READERS = 1000

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
        kept = np.random.default_rng(self.seed).permutation(len(users))[:QUICK_READERS]
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


Fit = Callable[..., Int64]
"""Of histories (u, n) and settings: (u, 10) documents, best first."""


def popularity(met: Any) -> Int64:
    """What most users met."""
    counts = np.asarray(met.sum(axis=0)).ravel()
    return _top(met, lambda part: np.tile(counts, (part.shape[0], 1)))


def ease(met: Any, weight: float) -> Int64:
    """Steck 2019, "Embarrassingly shallow autoencoders": B = I − P / diag(P), where P is the
    inverse of X'X + λI."""
    items = _regressed((met.T @ met).toarray(), weight)
    return _top(met, lambda part: part @ items)


def cease(met: Any, words: Any, weight: float, side: float) -> Int64:
    """Jeunen, Van Balen and Goethals 2020: EASE of X'X + αSS', with the words S of the texts."""
    items = _regressed((met.T @ met + side * (words @ words.T)).toarray(), weight)
    return _top(met, lambda part: part @ items)


def tf_idf(met: Any, words: Any, among: Any = None) -> Int64:
    """Likeness by words, summed over the history."""
    likeness = (words @ words.T).toarray()
    return _top(met, lambda part: part @ likeness, among)


def lifted(
    met: Any, words: Any, weight: float, ridge: float, likeness: float, among: Any = None
) -> Int64:
    """EASE, whose columns a kernel ridge regression on words predicts for documents that nobody
    met, and likeness by words."""
    counts = np.asarray(met.sum(axis=0)).ravel()
    warm, cold = np.flatnonzero(counts), np.flatnonzero(counts == 0)
    by_words = (words @ words.T).toarray()
    items = _regressed((met.T @ met).toarray(), weight)
    kernel = by_words[np.ix_(warm, warm)] + ridge * np.eye(len(warm))
    items[:, cold] = items[:, warm] @ np.linalg.solve(kernel, by_words[np.ix_(warm, cold)])
    items[:, cold] += likeness * by_words[:, cold]
    return _top(met, lambda part: part @ items, among)


def _regressed(gram: Any, weight: float) -> Any:
    """B of a Gram matrix: the inverse of G + λI over its diagonal, which becomes zero."""
    inverse = np.linalg.inv(gram.astype(np.float64) + weight * np.eye(len(gram)))
    items = -inverse / np.diag(inverse)
    np.fill_diagonal(items, 0)
    return items


def item_knn(met: Any, kind: str, neighbours: int) -> Int64:
    from implicit import nearest_neighbours

    model = getattr(nearest_neighbours, kind)(K=neighbours, num_threads=1)
    return _by_library(model, met)


def als(met: Any, factors: int, regularization: float, alpha: float) -> Int64:
    from implicit.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(
        factors=factors,
        regularization=regularization,
        alpha=alpha,
        iterations=15,
        random_state=0,
        num_threads=1,
    )
    return _by_library(model, met)


def bpr(met: Any, factors: int, learning_rate: float, iterations: int) -> Int64:
    from implicit.bpr import BayesianPersonalizedRanking

    model = BayesianPersonalizedRanking(
        factors=factors,
        learning_rate=learning_rate,
        iterations=iterations,
        random_state=0,
        num_threads=1,
    )
    return _by_library(model, met)


PEERS: Mapping[str, Fit] = {
    "popularity": popularity,
    "bpr": bpr,
    "als": als,
    "itemknn": item_knn,
    "ease": ease,
    "tfidf": tf_idf,
    "cease": cease,
}

BY_WORDS: Mapping[str, Fit] = {"tfidf": tf_idf, "cease": cease, "lifted": lifted}
"""Peers that read the texts, too."""

WITHHELD: Mapping[str, Mapping[str, Any]] = {
    "tfidf": {},
    "lifted": {"weight": 100.0, "ridge": 1.0, "likeness": 0.02},
}
"""Peers for documents that nobody met, with settings chosen on a part of the training set."""

GRIDS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "popularity": {},
    "bpr": {"factors": (64, 128), "learning_rate": (0.02, 0.05), "iterations": (100, 200)},
    "als": {"factors": (64, 128, 256), "regularization": (0.01, 1.0), "alpha": (10.0, 30.0)},
    "itemknn": {
        "kind": ("CosineRecommender", "TFIDFRecommender", "BM25Recommender"),
        "neighbours": (50, 200, 1000),
    },
    "ease": {"weight": (10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)},
    "tfidf": {},
    "cease": {"weight": (20.0, 50.0, 100.0, 200.0, 500.0), "side": (5.0, 10.0, 20.0, 50.0)},
}

QUICK: Mapping[str, Mapping[str, Any]] = {
    "popularity": {},
    "itemknn": {"kind": "CosineRecommender", "neighbours": 1000},
    "ease": {"weight": 50.0},
    "cease": {"weight": 50.0, "side": 10.0},
}
"""Peers of a quick run, with the settings that a full run chose."""


def peer(name: str, words: Any) -> Fit:
    """A peer by its name; those that read texts are bound to their words (n, t)."""
    return partial(BY_WORDS[name], words=words) if name in BY_WORDS else PEERS[name]


def settings(name: str) -> Iterator[dict[str, Any]]:
    """All that are tried of a peer."""
    grid = GRIDS[name]
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _by_library(model: Any, met: Any) -> Int64:
    given = sparse.csr_matrix(met, dtype=np.float32)
    with warnings.catch_warnings():
        # It converts its own matrices, and says so.
        warnings.simplefilter("ignore")
        model.fit(given, show_progress=False)
        found, _ = model.recommend(
            np.arange(given.shape[0]), given, N=CUT, filter_already_liked_items=True
        )
    return np.asarray(found, dtype=np.int64)


def _top(met: Any, score: Callable[[Any], Any], among: Any = None, step: int = 1024) -> Int64:
    found = []
    for at in range(0, met.shape[0], step):
        part = met[at : at + step]
        scores = np.array(score(part), dtype=np.float64)
        scores[part.nonzero()] = -np.inf
        if among is not None:
            scores[:, ~among] = -np.inf
        found.append(np.argsort(-scores, axis=1, kind="stable")[:, :CUT])
    return np.concatenate(found)


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


def films_of(titles: Sequence[str], seed: int, quick: bool) -> Books:
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


SAMPLES = 1000
"""Recommendations whose explanations are looked at."""


def speed(bench: Bench) -> Iterator[Row]:
    """Of one request with 50 documents as history."""
    collection = bench.data.collection("books")
    ids = [each["id"] for each in bench.books.documents]
    random = np.random.default_rng(bench.seed)
    histories = [random.choice(ids, 50, replace=False).tolist() for _ in range(100)]
    for history in histories[:10]:
        collection.recommend(history=history)
    yield _timed("speed.small", f"{len(ids)} items", collection.recommend, histories).wanted(
        "<=", 2
    )
    if bench.full:
        yield from _million(bench)


def _million(bench: Bench, count: int = 1_000_000, width: int = 384) -> Iterator[Row]:
    """Of keys grown as `benchmarks/scale.py` grows them.

    Quantised for a recall of 0.9, as what is promised is the list and not what one part finds.
    """
    random = np.random.default_rng(bench.seed)
    collection = bench.data.create("million", dimension=width, normalize=True, recall=0.9)
    pool, at = real(bench.folder), 0
    for block in grown(pool, count, bench.seed):
        for vectors in np.array_split(block, 5):  # of 10,000, as many as are taken at once
            collection.upsert(
                [{"id": str(at + row), "vector": each.tolist()} for row, each in enumerate(vectors)]
            )
            at += len(vectors)
    collection.publish()
    histories = [random.integers(0, count, 50).astype(str).tolist() for _ in range(30)]
    collection.recommend(history=histories[0])
    what = f"{count} items, which nobody met before"
    yield _timed("speed.million_first", what, collection.recommend, histories).wanted("<=", 20)
    met = [each for history in histories for each in history]
    others = [random.choice(met, 50, replace=False).tolist() for _ in histories]
    what = f"{count} items, which other histories held"
    yield _timed("speed.million", what, collection.recommend, others).wanted("<=", 20)
    recalls = []
    for history in histories:
        lists = (
            collection.recommend(history=history, recall=1),
            collection.recommend(history=history),
        )
        exact, found = ({hit.id for hit in answer.hits} for answer in lists)
        recalls.append(len(exact & found) / len(exact))
    yield Row("speed.million_recall", "recall of the exact list", float(np.mean(recalls))).wanted(
        ">=", 0.95
    )


def _timed(
    name: str, what: str, call: Callable[..., Any], histories: Sequence[Sequence[str]]
) -> Row:
    spent = []
    for history in histories:
        began = time.perf_counter()
        call(history=history)
        spent.append(1000 * (time.perf_counter() - began))
    return Row(name, f"{what}: ms of a request, p50", float(np.median(spent)))


def explanations(bench: Bench) -> Iterator[Row]:
    """Whether what is named as the cause is one."""
    collection = bench.data.collection("books")
    protocol = bench.protocol(bench.books)
    sums, lowered = [], []
    for user in protocol.relevant:
        history = [each.document for each in protocol.histories[user]]
        if len(history) < 2:
            continue
        hit = collection.recommend(history=history, k=1, explain=True).hits[0]
        shares = {str(each["id"]): float(each["weight"]) for each in hit.because or ()}
        sums.append(abs(sum(shares.values()) - 1))
        top = max(shares, key=shares.__getitem__)
        left = [id for id in history if id != top]
        # What was removed is no new rival: it stays masked.
        rest = collection.recommend(history=[*left, {"id": top, "weight": 0}], k=100)
        scores = {each.id: each.score for each in rest.hits}
        lowered.append(scores.get(hit.id, -np.inf) < hit.score)
        if len(sums) == SAMPLES:
            break
    yield Row("explained.sum", "largest error of a sum of shares", max(sums)).wanted("<=", 1e-6)
    share = float(np.mean(lowered))
    yield Row(
        "explained.lowered", f"scores lower without the first cause, of {len(sums)}", share
    ).wanted(">=", 1.0)


SLOW = ("titles", "films", "withheld")
"""Sections that a quick run leaves out."""

FILM_PEERS = ("ease", "cease")

RESERVE = 0.1
"""Of the mixed list: one place in ten for books that nobody met."""


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as temporary:
        all_books = books(given.folder)
        chosen = all_books.divided(given.seed + 1) if given.rehearse else all_books
        folder = given.data or Path(temporary)
        bench = Bench(
            chosen,
            Data(folder),
            given.seed,
            given.quick,
            given.full,
            () if given.no_peers else tuple(given.peers or PEERS),
            given.folder,
            {},
            given.rehearse,
        )
        rows: dict[str, Row] = {}
        for section in sections(given):
            for row in section(bench):
                rows[row.name] = row
                progress(row.line())
                if not given.rehearse:
                    ledger.append(row, "quick" if given.quick else "full")
    figures = {name: row.told() for name, row in rows.items()}
    tell(
        ratios(rows),
        {"rehearsal": given.rehearse, "rows": figures} if given.json else {},
        given.json,
    )


def sections(given: argparse.Namespace) -> list[Callable[[Bench], Iterator[Row]]]:
    """What is run, in the order in which each finds what it needs."""
    named = given.only or [name for name in SECTIONS if not (given.quick and name in SLOW)]
    needed = {"books"} if {"speed", "explanations", "peers"} & set(named) else set()
    return [each for name, each in SECTIONS.items() if name in {*named, *needed}]


def arguments() -> argparse.Namespace:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--data", type=Path, help="keep the collections in this empty folder")
    made.add_argument("--folder", type=Path, default=DATA, help="folder of the data sets")
    made.add_argument("--full", action="store_true", help="serve a million items too")
    made.add_argument(
        "--rehearse", action="store_true", help="a part of the training set instead of the test"
    )
    made.add_argument("--only", nargs="+", choices=list(SECTIONS), help="these parts of it")
    made.add_argument("--no-peers", action="store_true", help="leave out all peers")
    made.add_argument("--peers", nargs="+", choices=list(PEERS), help="these peers alone")
    made.add_argument("--seed", type=int, default=0)
    return made.parse_args()


def ratings(bench: Bench) -> Iterator[Row]:
    """Simulated ratings, beside the Surprise library."""
    if bench.peers:
        yield from recommend_ratings.rows(bench.quick, bench.folder)


def ratios(rows: Mapping[str, Row]) -> dict[str, float]:
    """nDCG@10 over that of each peer, and each peer's RMSE over ours."""
    rated = recommend_ratings.ratios(rows) if "ratings.attend.rmse" in rows else {}
    ours = rows["goodbooks.ndcg"].measured if "goodbooks.ndcg" in rows else None
    found = {name: rows.get(f"goodbooks.{name}.ndcg") for name in PEERS}
    ranked = {
        f"ndcg_over_{name}": round(ours / row.measured, 4)
        for name, row in found.items()
        if row is not None and row.measured and ours
    }
    return ranked | rated


# -- goodbooks ------------------------------------------------------------------------------------


def next_books(bench: Bench) -> Iterator[Row]:
    """What comes next."""
    collection = collection_of(bench.data, "books", bench.books)
    protocol = bench.protocol(bench.books)
    yield from _figures("goodbooks.untrained", "untrained", _evaluated(collection, protocol))
    report = train(collection, objective="interactions", seed=bench.seed)
    seconds = float(report["seconds"])  # type: ignore[arg-type]
    row = Row("goodbooks.seconds", "seconds of training", seconds, note=_choice(report))
    yield row.wanted("<=", 60)
    ours = bench.kept["ours"] = _evaluated(collection, protocol)
    wanted = {"ndcg@10": 0.248, "recall@10": 0.352}
    for row in _figures("goodbooks", "learned", ours):
        measure = row.what.split()[-1]
        yield row.wanted(">=", wanted[measure]) if measure in wanted else row


def titles(bench: Bench) -> Iterator[Row]:
    """The same with titles as the only texts."""
    collection = collection_of(bench.data, "titles", bench.books.with_titles_alone())
    report = train(collection, objective="interactions", seed=bench.seed)
    found = _evaluated(collection, bench.protocol(bench.books))
    for row in _figures("titles", "titles alone, learned", found):
        named = row._replace(note=_choice(report))
        yield named.wanted(">=", 0.2269) if row.name == "titles.ndcg" else named


def _choice(report: Mapping[str, Any]) -> str:
    """What a training chose, and whether it is in use."""
    chosen = report["chosen"]
    parts = ", ".join(f"{name} {chosen[name]}" for name in ("recipe", "form") if name in chosen)
    return f"{'promoted' if report['promoted'] else 'not promoted'}: {parts}"


def beside(bench: Bench) -> Iterator[Row]:
    """The same of the peers."""
    yield from _beside(bench, bench.books, "goodbooks", bench.kept["ours"], ahead)


def films(bench: Bench) -> Iterator[Row]:
    """Films with titles and genres, beside those that take as much."""
    world = CHOOSING if bench.rehearse else JUDGING
    given = films_of(list(bench.books.titles.values()), world, bench.quick)
    collection = collection_of(bench.data, "films", given)
    report = train(collection, objective="interactions", seed=bench.seed)
    ours = _evaluated(collection, bench.protocol(given))
    for row in _figures("films", "films of titles and genres, learned", ours):
        yield row._replace(note=_choice(report))
    few = bench._replace(peers=[name for name in FILM_PEERS if name in bench.peers])
    yield from _beside(few, given, "films", ours, not_behind)


def _beside(
    bench: Bench,
    given: Books,
    name: str,
    ours: TopNEvaluation,
    wanted: Callable[[Row, float], Row],
) -> Iterator[Row]:
    """Peers on the same histories, and the paired differences in nDCG from them."""
    protocol, met, words = bench.protocol(given), matrix_of(given), words_of(given)
    for other, chosen in _tuned(bench, given).items():
        lists = _lists(met, peer(other, words)(met.met, **chosen))
        theirs = evaluate(protocol, lambda user, _, lists=lists: lists[user], len(met.documents))
        said = ", ".join(f"{key} {value}" for key, value in chosen.items())
        for row in _figures(f"{name}.{other}", f"{name}: {other}", theirs):
            yield row._replace(note=said)
        users = list(ours.by_user)
        one, two = ([each.by_user[user][0] for user in users] for each in (ours, theirs))
        (interval,) = difference_intervals(one, two, [LEVEL])
        p = paired_randomisation(one, two)
        found = Difference(interval.mean, interval.low, interval.high, p)
        what = f"{name}: learned - {other}: ndcg@10"
        yield wanted(difference_row(f"{name}.over_{other}", what, found), p)


def _tuned(bench: Bench, given: Books) -> dict[str, dict[str, Any]]:
    """The settings of each peer that are best on a part of the training interactions."""
    if not bench.peers:
        return {}
    if bench.quick:
        return {name: dict(chosen) for name, chosen in QUICK.items() if name in bench.peers}
    part = given.divided(bench.seed + 2)
    met, protocol, words = matrix_of(part), protocol_of(part.test, part.train), words_of(part)
    found = {}
    for name in bench.peers:
        judged = []
        for chosen in settings(name):
            lists = _lists(met, peer(name, words)(met.met, **chosen))
            value = evaluate(protocol, lambda user, _, lists=lists: lists[user], 1)
            judged.append((value.measures["ndcg@10"], chosen))
        best = max(judged, key=lambda each: each[0])
        progress(f"-- {name}: {best[1]} of {len(judged)} settings ({best[0]:.4f} in validation)")
        found[name] = best[1]
    return found


def _lists(met: Any, found: Any) -> dict[str, list[str]]:
    return {
        user: [met.documents[at] for at in row if at >= 0]
        for user, row in zip(met.users, found.tolist(), strict=True)
    }


def _evaluated(collection: Collection, protocol: Protocol, **options: Any) -> TopNEvaluation:
    def recommend(user: str, met: Sequence[Any]) -> list[str]:
        history = [{"id": each.document} for each in met]
        return [hit.id for hit in collection.recommend(history=history, k=CUT, **options).hits]

    ranked = protocol.candidates
    catalogue = collection.store.counts()[0] if ranked is None else len(ranked)
    return evaluate(protocol, recommend, catalogue)


def _figures(name: str, what: str, found: TopNEvaluation) -> Iterator[Row]:
    columns, intervals = found.columns(), found.intervals()
    for at, measure in enumerate(MEASURES):
        short = measure.split("@")[0]
        yield row_of(f"{name}.{short}", f"{what}: {measure}", intervals[measure], columns[:, at])
    yield Row(f"{name}.coverage", f"{what}: coverage", found.coverage)
    yield Row(f"{name}.novelty", f"{what}: novelty, bits", found.novelty)


# -- withheld books -------------------------------------------------------------------------------


def withheld_books(bench: Bench) -> Iterator[Row]:
    """Books that nobody met before the test: among themselves, and in the list with all others."""
    given, cold = bench.books.warm(), bench.books.cold
    collection = collection_of(bench.data, "cold", given)
    only = {"filter": {"@id": {"in": list(cold)}}}
    protocol = bench.protocol(given, cold)
    yield from _figures(
        "cold.untrained", "withheld, untrained", _evaluated(collection, protocol, **only)
    )
    train(collection, objective="interactions", seed=bench.seed)
    wanted = {"ndcg": 0.31, "recall": 0.49}
    for row in _figures("cold", "withheld, learned", _evaluated(collection, protocol, **only)):
        short = row.name.split(".")[-1]
        yield row.wanted(">=", wanted[short]) if short in wanted else row
    met, words = matrix_of(given), words_of(given)
    among = np.isin(met.documents, list(cold))
    for name, chosen in WITHHELD.items() if bench.peers else ():
        lists = _lists(met, peer(name, words)(met.met, among=among, **chosen))
        found = evaluate(protocol, lambda user, _, lists=lists: lists[user], len(cold))
        for row in _figures(f"cold.{name}", f"withheld, {name}", found):
            yield row._replace(note=", ".join(f"{key} {value}" for key, value in chosen.items()))
    # What is withheld from training is unknown whichever part it comes from.
    every = given._replace(test=[*bench.books.train, *bench.books.test])
    found = _evaluated(collection, bench.protocol(every, cold), **only)
    for row in _figures("cold.all", "withheld, learned, all who met them", found):
        short = row.name.split(".")[-1]
        yield row.wanted(">=", wanted[short]) if short in wanted else row
    known = given._replace(test=[each for each in given.test if each.document not in set(cold)])
    warm = bench.protocol(known)
    plain, mixed = (_evaluated(collection, warm, reserve=share) for share in (0.0, RESERVE))
    lost = 1 - mixed.measures["ndcg@10"] / plain.measures["ndcg@10"]
    yield Row("cold.warm_loss", f"lost by others for {RESERVE:.0%} of the list", lost).wanted(
        "<=", 0.02
    )
    new = bench.protocol(
        given._replace(test=[each for each in given.test if each.document in set(cold)])
    )
    for share in (0.0, RESERVE):
        found = _evaluated(collection, new, reserve=share)
        yield Row(
            f"cold.mixed_{share:g}",
            f"withheld in the list of all, {share:.0%} reserved: recall@10",
            found.measures["recall@10"],
        )


SECTIONS = {
    "books": next_books,
    "titles": titles,
    "films": films,
    "withheld": withheld_books,
    "speed": speed,
    "explanations": explanations,
    "peers": beside,
    "ratings": ratings,
}


if __name__ == "__main__":
    main()
