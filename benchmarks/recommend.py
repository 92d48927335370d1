"""Recommending: goodbooks beside the usual libraries, withheld books, speed and explanations.

All is done through the package, in a temporary folder: books are stored and encoded, training
interactions recorded and learned from, and users of the test split recommended to. Peers are tuned
on a part of the training interactions. The test split is touched once, at the end.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import ledger
import numpy as np
from common import (
    Row,
    ahead,
    data_set,
    difference,
    difference_row,
    json_lines,
    not_behind,
    pairs,
    parser,
    progress,
    row_of,
    tell,
    timed,
    upsert,
)
from recommend_peers import PEERS, WITHHELD, Peer, settings
from recommend_ratings import PEERS as RATING_PEERS
from recommend_ratings import rows as ratings
from scale import grown, real

from attend import Collection, Data
from attend.core.liking import is_liked
from attend.learning import train
from attend.learning.data import histories_of
from attend.measure.interactions import (
    CUT,
    Protocol,
    TopNEvaluation,
    evaluate,
    protocol_of,
)
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
        liked_from: the number from which on an interaction is a like.
    """

    documents: Sequence[dict[str, str]]
    train: Sequence[Interaction]
    test: Sequence[Interaction]
    cold: Sequence[str]
    titles: Mapping[str, str] = {}
    liked_from: float | None = None

    def warm(self) -> Books:
        """As if nobody had met the withheld books before the test."""
        cold = set(self.cold)
        return self._replace(train=[each for each in self.train if each.document not in cold])

    def likes(self) -> list[Interaction]:
        """The training interactions with what users liked."""
        return [each for each in self.train if is_liked(each.value, self.liked_from)]

    def divided(self, seed: int, by_time: bool = False) -> Books:
        """A part of each user's training interactions in the place of the test; the latest."""
        random, by_user = np.random.default_rng(seed), dict[str, list[Interaction]]()
        for each in self.train:
            by_user.setdefault(each.user, []).append(each)
        before, after = list[Interaction](), list[Interaction]()
        for met in by_user.values():
            count = max(1, round(HELD_OUT * len(met))) if len(met) >= 3 else 0
            order = random.permutation(len(met)).tolist()
            if by_time:
                order.sort(key=lambda at, met=met: -met[at].time)
            out = set(order[:count])
            for at, each in enumerate(met):
                (after if at in out else before).append(each)
        return self._replace(train=before, test=after)


class Bench(NamedTuple):
    """What all sections share.

    Attributes:
        options: of the command line.
        peers: names of those in PEERS that take part.
        kept: what a section leaves for a later one.
    """

    options: argparse.Namespace
    books: Books
    data: Data
    peers: Sequence[str]
    kept: dict[str, TopNEvaluation]

    def protocol(self, given: Books, cold: Sequence[str] | None = None) -> Protocol:
        """Who is judged: all users, or some when quick."""
        found = protocol_of(given.test, given.train, cold, given.liked_from)
        if not self.options.quick:
            return found
        users = sorted(found.relevant)
        kept = np.random.default_rng(self.options.seed).permutation(len(users))[:QUICK_READERS]
        some = {users[at]: found.relevant[users[at]] for at in kept.tolist()}
        return replace(found, relevant=some)

    def trained(self, collection: Collection) -> Mapping[str, Any]:
        return train(collection, objective="interactions", seed=self.options.seed)


def books(folder: Path) -> Books:
    path = data_set(folder, "goodbooks")
    rows = json_lines(path / "books.jsonl")
    documents = [
        {
            "id": str(row["id"]),
            "text": f"{row['title']} {row.get('authors', '')} {', '.join(row.get('tags', []))}",
        }
        for row in rows
    ]
    known = {each["id"] for each in documents}
    train, test = (
        [Interaction(user, book) for user, book in pairs(path / f"{name}.tsv") if book in known]
        for name in ("train", "test")
    )
    cold = [id for id in (path / "cold_items.txt").read_text().split() if id in known]
    return Books(documents, train, test, cold, {str(row["id"]): row["title"] for row in rows})


def collection_of(data: Data, name: str, given: Books) -> Collection:
    """A collection of the books, with the training interactions."""
    collection = data.create(name)
    upsert(collection, given.documents, 500)
    add_interactions(collection, given.train)
    return collection


# -- the peers ----------------------------------------------------------------------------------


class Contest:
    """Peers that learn from the same books and are judged by the same protocol.

    Attributes:
        met: what users liked of the training interactions, a sparse matrix of ones (u, n) of
            `users` and `documents`.
        seen: all training interactions, which nobody is recommended.
    """

    def __init__(self, given: Books, protocol: Protocol) -> None:
        self.given, self.protocol = given, protocol
        self.documents = [each["id"] for each in given.documents]
        self.users = list(dict.fromkeys(each.user for each in given.train))
        rows, columns = (
            {name: at for at, name in enumerate(side)} for side in (self.users, self.documents)
        )

        def matrix(interactions: Sequence[Interaction]) -> Any:
            row = np.array([rows[each.user] for each in interactions])
            column = np.array([columns[each.document] for each in interactions])
            return histories_of(row, column, (len(rows), len(columns)))

        self.met, self.seen = matrix(given.likes()), matrix(given.train)

    @cached_property
    def words(self) -> Any:
        """The tf-idf of titles, authors and tags by book, sparse (n, t): rows of length one."""
        from sklearn.feature_extraction.text import TfidfVectorizer  # only peers need it

        texts = [each["text"] for each in self.given.documents]
        return TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(texts).tocsr()

    def evaluated(
        self, peer: Peer, chosen: Mapping[str, Any], among: Sequence[str] | None = None
    ) -> TopNEvaluation:
        """What is listed with these settings; `among` these documents, for a peer that can."""
        options: dict[str, Any] = {"words": self.words} if peer.reads else {}
        if self.seen.nnz > self.met.nnz:
            options["seen"] = self.seen
        if among is not None:
            options["among"] = np.isin(self.documents, among)
        found = peer.fit(self.met, **options, **chosen).tolist()
        lists = {
            user: [self.documents[at] for at in row if at >= 0]
            for user, row in zip(self.users, found, strict=True)
        }
        catalogue = len(self.documents if among is None else among)
        return evaluate(self.protocol, lambda user, _: lists[user], catalogue)


def _tuned(bench: Bench, given: Books, by_time: bool) -> dict[str, Mapping[str, Any]]:
    """The settings of each peer that are best on a part of the training interactions."""
    if bench.options.quick:
        quick = {name: peer.quick for name, peer in PEERS.items() if name in bench.peers}
        return {name: chosen for name, chosen in quick.items() if chosen is not None}
    part = given.divided(bench.options.seed + 2, by_time)
    contest = Contest(part, protocol_of(part.test, part.train, None, part.liked_from))
    found = dict[str, Mapping[str, Any]]()
    for name in bench.peers:
        judged = [
            (contest.evaluated(PEERS[name], chosen).measures["ndcg@10"], chosen)
            for chosen in settings(name)
        ]
        value, found[name] = max(judged, key=lambda each: each[0])
        progress(f"-- {name}: {found[name]} of {len(judged)} settings ({value:.4f} in validation)")
    return found


def _beside(
    bench: Bench,
    given: Books,
    name: str,
    ours: TopNEvaluation,
    wanted: Callable[[Row, float], Row],
    by_time: bool = False,
) -> Iterator[Row]:
    """Peers on the same histories, and the paired differences in nDCG from them."""
    if not bench.peers:
        return
    contest = Contest(given, bench.protocol(given))
    for other, chosen in _tuned(bench, given, by_time).items():
        theirs = contest.evaluated(PEERS[other], chosen)
        yield from _figures(f"{name}.{other}", f"{name}: {other}", theirs, _said(chosen))
        users = list(ours.by_user)
        gain = difference(*([each.by_user[user][0] for user in users] for each in (ours, theirs)))
        what = f"{name}: learned - {other}: ndcg@10"
        yield wanted(difference_row(f"{name}.over_{other}", what, gain), gain.p)


def _said(chosen: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in chosen.items())


# -- films ----------------------------------------------------------------------------------------


FILM_PEERS = ("ease",)

FILM_PROTOCOLS = tuple(product((False, True), ("random", "time")))
"""Without and with numbers, of which likes alone count; a fifth of each user's withheld at random,
or the latest."""


def films_of(folder: Path, by_time: bool, has_numbers: bool, seed: int) -> Books:
    """Films with titles and genres, and a fifth of each user's interactions as the test."""
    path = data_set(folder, "films")
    with (path / "movies.csv").open(encoding="utf-8", newline="") as lines:
        documents = [
            {"id": row["movieId"], "text": f"{row['title']}\n{row['genres'].replace('|', ', ')}"}
            for row in csv.DictReader(lines)
        ]
    with (path / "ratings.csv").open(encoding="utf-8", newline="") as lines:
        rated = [
            Interaction(
                row["userId"],
                row["movieId"],
                float(row["rating"]) if has_numbers else None,
                float(row["timestamp"]),
            )
            for row in csv.DictReader(lines)
        ]
    return Books(documents, rated, [], []).divided(seed, by_time)


def films(bench: Bench) -> Iterator[Row]:
    """Films with titles and genres, beside EASE, which is tuned by the same protocol."""
    for has_numbers, split in FILM_PROTOCOLS:
        by_time = split == "time"
        given = films_of(bench.options.folder, by_time, has_numbers, bench.options.seed)
        if bench.options.rehearse:
            given = given.divided(bench.options.seed + 1, by_time)
        name = f"films.{'liked.' if has_numbers else ''}{split}"
        collection = collection_of(bench.data, name.replace(".", "-"), given)
        report = bench.trained(collection)
        given = given._replace(liked_from=collection.store.liking().liked_from)
        ours = _evaluated(collection, bench.protocol(given))
        row = Row(f"{name}.seconds", "seconds of training", report["seconds"], note=_choice(report))
        yield row
        yield from _figures(name, f"{name}, learned", ours, _choice(report))
        few = bench._replace(peers=[peer for peer in FILM_PEERS if peer in bench.peers])
        yield from _beside(few, given, name, ours, not_behind, by_time)


# -- goodbooks ------------------------------------------------------------------------------------


def next_books(bench: Bench) -> Iterator[Row]:
    """What comes next."""
    collection = collection_of(bench.data, "books", bench.books)
    protocol = bench.protocol(bench.books)
    yield from _figures("goodbooks.untrained", "untrained", _evaluated(collection, protocol))
    report = bench.trained(collection)
    row = Row("goodbooks.seconds", "seconds of training", report["seconds"], note=_choice(report))
    yield row.wanted("<=", 60)
    ours = bench.kept["ours"] = _evaluated(collection, protocol)
    yield from _figures("goodbooks", "learned", ours, least={"ndcg": 0.248, "recall": 0.352})


def titles(bench: Bench) -> Iterator[Row]:
    """The same with titles as the only texts."""
    alone = [{**each, "text": bench.books.titles[each["id"]]} for each in bench.books.documents]
    collection = collection_of(bench.data, "titles", bench.books._replace(documents=alone))
    report = bench.trained(collection)
    found = _evaluated(collection, bench.protocol(bench.books))
    what, least = "titles alone, learned", {"ndcg": 0.2269}
    yield from _figures("titles", what, found, _choice(report), least)


def _choice(report: Mapping[str, Any]) -> str:
    """What a training chose, and whether it is in use."""
    chosen = report["chosen"]
    parts = _said({name: chosen[name] for name in ("recipe", "form") if name in chosen})
    return f"{'promoted' if report['promoted'] else 'not promoted'}: {parts}"


def _evaluated(collection: Collection, protocol: Protocol, **options: Any) -> TopNEvaluation:
    liked_from = collection.store.liking().liked_from

    def recommend(user: str, met: Sequence[Any]) -> list[str]:
        history = [
            {"id": each.document, "weight": float(is_liked(each.value, liked_from))} for each in met
        ]
        return [hit.id for hit in collection.recommend(history=history, k=CUT, **options).hits]

    ranked = protocol.candidates
    catalogue = collection.store.counts()[0] if ranked is None else len(ranked)
    return evaluate(protocol, recommend, catalogue)


def _figures(
    name: str,
    what: str,
    found: TopNEvaluation,
    note: str = "",
    least: Mapping[str, float] = {},
) -> Iterator[Row]:
    """A row for each measure; `least` is what was asked of some."""
    for measure, interval in found.intervals().items():
        short = measure.split("@")[0]
        row = row_of(f"{name}.{short}", f"{what}: {measure}", interval)._replace(note=note)
        yield row.wanted(">=", least[short]) if short in least else row
    yield Row(f"{name}.coverage", f"{what}: coverage", found.coverage, note=note)
    yield Row(f"{name}.novelty", f"{what}: novelty, bits", found.novelty, note=note)


# -- withheld books -------------------------------------------------------------------------------


RESERVE = 0.1
"""Of the mixed list: one place in ten for books that nobody met."""


def withheld_books(bench: Bench) -> Iterator[Row]:
    """Books that nobody met before the test: among themselves, and in the list with all others."""
    given, cold = bench.books.warm(), bench.books.cold
    collection = collection_of(bench.data, "cold", given)
    only = {"filter": {"@id": {"in": list(cold)}}}
    protocol = bench.protocol(given, cold)
    untrained = _evaluated(collection, protocol, **only)
    yield from _figures("cold.untrained", "withheld, untrained", untrained)
    bench.trained(collection)
    found, least = _evaluated(collection, protocol, **only), {"ndcg": 0.31, "recall": 0.49}
    yield from _figures("cold", "withheld, learned", found, least=least)
    if bench.peers:
        contest = Contest(given, protocol)
        for name, (peer, chosen) in WITHHELD.items():
            theirs = contest.evaluated(peer, chosen, cold)
            yield from _figures(f"cold.{name}", f"withheld, {name}", theirs, _said(chosen))
    # What is withheld from training is unknown whichever part it comes from.
    every = given._replace(test=[*bench.books.train, *bench.books.test])
    found = _evaluated(collection, bench.protocol(every, cold), **only)
    yield from _figures("cold.all", "withheld, learned, all who met them", found, least=least)
    hidden = set(cold)
    known, new = (
        bench.protocol(
            given._replace(test=[each for each in given.test if (each.document in hidden) is among])
        )
        for among in (False, True)
    )
    plain, mixed = (
        _evaluated(collection, known, reserve=share).measures["ndcg@10"] for share in (0.0, RESERVE)
    )
    what = f"lost by others for {RESERVE:.0%} of the list"
    yield Row("cold.warm_loss", what, 1 - mixed / plain).wanted("<=", 0.02)
    for share in (0.0, RESERVE):
        recall = _evaluated(collection, new, reserve=share).measures["recall@10"]
        what = f"withheld in the list of all, {share:.0%} reserved: recall@10"
        yield Row(f"cold.mixed_{share:g}", what, recall)


# -- speed and explanations -----------------------------------------------------------------------


SAMPLES = 1000
"""Recommendations whose explanations are looked at."""


def speed(bench: Bench) -> Iterator[Row]:
    """Of one request with 50 documents as history."""
    collection = bench.data.collection("books")
    ids = [each["id"] for each in bench.books.documents]
    random = np.random.default_rng(bench.options.seed)
    histories = [random.choice(ids, 50, replace=False).tolist() for _ in range(100)]
    for history in histories[:10]:
        collection.recommend(history=history)
    row = _speed_row("speed.small", f"{len(ids)} items", collection, histories)
    yield row.wanted("<=", 2)
    if bench.options.full:
        yield from _million(bench)


def _million(bench: Bench, count: int = 1_000_000, width: int = 384) -> Iterator[Row]:
    """Of keys grown as `benchmarks/scale.py` grows them.

    Quantised for a recall of 0.9, as what is promised is the list and not what one part finds.
    """
    random = np.random.default_rng(bench.options.seed)
    collection = bench.data.create("million", dimension=width, normalize=True, recall=0.9)
    vectors = chain.from_iterable(grown(real(bench.options.folder), count, bench.options.seed))
    upsert(collection, ({"id": str(at), "vector": each} for at, each in enumerate(vectors)), 10_000)
    collection.publish()
    histories = [random.integers(0, count, 50).astype(str).tolist() for _ in range(30)]
    collection.recommend(history=histories[0])
    what = f"{count} items, which nobody met before"
    yield _speed_row("speed.million_first", what, collection, histories).wanted("<=", 20)
    met = [each for history in histories for each in history]
    others = [random.choice(met, 50, replace=False).tolist() for _ in histories]
    what = f"{count} items, which other histories held"
    yield _speed_row("speed.million", what, collection, others).wanted("<=", 20)
    recalls = []
    for history in histories:
        answers = (
            collection.recommend(history=history, recall=1),
            collection.recommend(history=history),
        )
        exact, found = ({hit.id for hit in answer.hits} for answer in answers)
        recalls.append(len(exact & found) / len(exact))
    recall = float(np.mean(recalls))
    yield Row("speed.million_recall", "recall of the exact list", recall).wanted(">=", 0.95)


def _speed_row(
    name: str, what: str, collection: Collection, histories: Sequence[Sequence[str]]
) -> Row:
    spent = [timed(partial(collection.recommend, history=each))[1] for each in histories]
    return Row(name, f"{what}: ms of a request, p50", 1000 * float(np.median(spent)))


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
    what = f"scores lower without the first cause, of {len(sums)}"
    yield Row("explained.lowered", what, float(np.mean(lowered))).wanted(">=", 1.0)


# -- the run --------------------------------------------------------------------------------------


SECTIONS: Mapping[str, Callable[[Bench], Iterable[Row]]] = {
    "books": next_books,
    "titles": titles,
    "films": films,
    "withheld": withheld_books,
    "speed": speed,
    "explanations": explanations,
    "peers": lambda bench: _beside(bench, bench.books, "goodbooks", bench.kept["ours"], ahead),
    "ratings": lambda bench: ratings(bench.options.quick, bench.options.folder),
}
"""In the order in which each finds what it needs."""

SLOW = {"titles", "films", "withheld"}
"""Sections that a quick run leaves out."""


def main() -> None:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--data", type=Path, help="keep the collections in this empty folder")
    made.add_argument("--full", action="store_true", help="serve a million items too")
    made.add_argument(
        "--rehearse", action="store_true", help="a part of the training set instead of the test"
    )
    made.add_argument("--only", nargs="+", choices=list(SECTIONS), help="these parts of it")
    made.add_argument("--no-peers", action="store_true", help="leave out all peers")
    made.add_argument("--peers", nargs="+", choices=list(PEERS), help="these peers alone")
    made.add_argument("--seed", type=int, default=0)
    given = made.parse_args()
    if not given.rehearse:
        ledger.require_commit()
    every = books(given.folder)
    chosen = every.divided(given.seed + 1) if given.rehearse else every
    peers = () if given.no_peers else tuple(given.peers or PEERS)
    named = {*(given.only or SECTIONS.keys() - (SLOW if given.quick else set()))}
    if named & {"speed", "explanations", "peers"}:
        named.add("books")
    if not peers:
        named.discard("ratings")
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(given, chosen, Data(given.data or Path(temporary)), peers, {})
        for row in chain.from_iterable(SECTIONS[name](bench) for name in SECTIONS if name in named):
            rows[row.name] = row
            progress(row.line())
            if not given.rehearse:
                ledger.append(row, "quick" if given.quick else "full")
    told = {name: row.told() for name, row in rows.items()}
    figures = {"rehearsal": given.rehearse, "rows": told}
    tell(ratios(rows), figures if given.json else {}, given.json)


def ratios(rows: Mapping[str, Row]) -> dict[str, float]:
    """nDCG@10 over that of each peer, and each peer's RMSE over ours."""
    found = {name: row.measured for name, row in rows.items() if row.measured}
    ranked = {
        f"ndcg_over_{name}": found["goodbooks.ndcg"] / found[f"goodbooks.{name}.ndcg"]
        for name in PEERS
        if f"goodbooks.{name}.ndcg" in found
    }
    rated = {
        f"rmse_{name}_over_attend": found[f"ratings.{name}.rmse"] / found["ratings.attend.rmse"]
        for name in (*RATING_PEERS, "baseline")
        if f"ratings.{name}.rmse" in found
    }
    return {name: round(value, 4) for name, value in (ranked | rated).items()}


if __name__ == "__main__":
    main()
