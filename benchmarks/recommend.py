"""Recommending: goodbooks beside the usual libraries, withheld books, speed and explanations.

All is done through the package, in a temporary folder: books are stored and encoded, training
interactions recorded and learned from, and users of the test split recommended to. Peers are tuned
on a part of the training interactions. The test split is touched once, at the end.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ledger
import numpy as np
import recommend_films
import recommend_ratings
import recommend_speed
from common import DATA, parser, progress, tell
from learning_rows import Difference, Row, ahead, difference_row, not_behind, row_of
from recommend_peers import PEERS, QUICK, WITHHELD, peer, settings
from recommend_sets import Bench, Books, books, collection_of, matrix_of, words_of

from attend import Collection, Data
from attend.measure.interactions import (
    CUT,
    MEASURES,
    Protocol,
    TopNEvaluation,
    evaluate,
    protocol_of,
)
from attend.measure.statistics import LEVEL, difference_intervals, paired_randomisation
from attend.training import train

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
    """Simulated ratings, beside the Surprise library (see recommend_ratings.py)."""
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
    """Films with titles and genres (see recommend_films.py), beside those that take as much."""
    world = recommend_films.CHOOSING if bench.rehearse else recommend_films.JUDGING
    given = recommend_films.films(list(bench.books.titles.values()), world, bench.quick)
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
    "speed": recommend_speed.speed,
    "explanations": recommend_speed.explanations,
    "peers": beside,
    "ratings": ratings,
}


if __name__ == "__main__":
    main()
