"""Rows of ranking: what learning gains on sets with judgements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from common import progress
from learning_contest import Contest, first, found, unit, variant
from learning_live import CALM, switched
from learning_rows import Row, ahead, difference_row, not_behind
from learning_sets import TITLES, Bench, RankingSet, encoder, taught, trained
from threadpoolctl import threadpool_limits

from attend import Collection
from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.core.settings import DEFAULT_COVERAGE, DEFAULT_LEXICAL, Tuning
from attend.encoder import DEFAULT
from attend_service.worker import BLAS_THREADS

RERANKED = 20
TIMED = 50
"""Queries whose reranking is timed, each with passages that are new, then cached."""

UNLIKE = 0.8
"""A test query whose cosine to every training query is below this is no other one's twin."""

MEMORIES = (
    Tuning(examples=1.0, lexical=DEFAULT_LEXICAL, coverage=DEFAULT_COVERAGE),
    Tuning(examples=1.0, lexical=0.2),
    Tuning(examples=1.0, lexical=0.4),
)
"""Frozen, with words and with examples as keys, by fixed numbers: what no learning gives. The
best of them on the test queries is what learning is held against."""


def conala(bench: Bench) -> Iterator[Row]:
    given = bench.ranking_set("conala")
    with bench.workshop.beir(given) as collection:
        taught(collection, given.train)
        contest = _untrained(collection, given)
        yield contest.row("conala.frozen", "CoNaLa, frozen", "frozen")
        hybrid = contest.row("conala.hybrid", "CoNaLa, hybrid untrained (one default)", "hybrid")
        yield not_behind(hybrid, contest.difference("hybrid", "frozen").p)
        run = trained(collection)
        contest.search("trained")
        row = contest.row("conala.trained", "CoNaLa, trained", "trained").wanted(">=", 0.78)
        yield row._replace(note=run.said)
        yield from _among_new(collection, given)
        yield _gain(contest, "conala.gain", "CoNaLa, trained less frozen", "frozen")
        yield Row("conala.seconds", "CoNaLa, seconds of train with both views", run.seconds)


def scifact(bench: Bench) -> Iterator[Row]:
    given = bench.ranking_set("scifact")
    with bench.workshop.beir(given) as collection:
        taught(collection, given.train)
        contest = _untrained(collection, given)
        yield contest.row("scifact.frozen", "SciFact, frozen", "frozen")
        hybrid = contest.row("scifact.hybrid", "SciFact, hybrid untrained (one default)", "hybrid")
        yield hybrid.wanted(">=", 0.71)
        run = trained(collection)
        contest.search("trained")
        row = contest.row("scifact.trained", "SciFact, trained", "trained").wanted(">=", 0.88)
        yield row._replace(note=run.said)
        yield from _among_new(collection, given)
        yield from _against_memory(contest)
        yield from _by_kind_of_query(contest, given)
        yield from _times(run.recipe_seconds, run.seconds)
        yield from _live(collection, given)


def reranked(name: str, least: float) -> Callable[[Bench], Iterator[Row]]:
    """Return the section of a set's untrained rankings whose 20 best are scored by tokens."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        with bench.workshop.beir(given) as collection:
            version = collection.store.state().projection
            # First, while no passage is cached.
            times = list(_rerank_times(collection, name, list(given.test.queries.values())[:TIMED]))
            contest = Contest(collection, given.test)
            contest.search("frozen", projection=version, lexical=False)
            contest.search("reranked", projection=version, lexical=False, rerank=RERANKED)
            what = f"{name}, frozen, the {RERANKED} best by MaxSim"
            yield contest.row(f"{name}.rerank", what, "reranked").wanted(">=", least)
            difference = contest.difference("reranked", "frozen")
            row = difference_row(f"{name}.rerank_gain", "  less frozen", difference)
            yield ahead(row, difference.p)
            yield from times

    return section


def _rerank_times(collection: Collection, name: str, queries: Sequence[str]) -> Iterator[Row]:
    """Time rerank against the encoder: the medians of queries whose passages are new or cached."""
    seconds: dict[str, list[float]] = {"encoded": [], "plain": [], "new": [], "cached": []}

    def timed(kind: str, act: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = act()
        seconds[kind].append(time.perf_counter() - start)
        return result

    for query in queries:
        search = partial(collection.search, query, k=RERANKED, fields=[])
        passages = [hit.passage or "" for hit in search(include=["passage"]).hits]
        collection.encoder().unit_tokens(["another query", query], "query")
        timed("encoded", partial(collection.encoder().encode_documents, passages))
        with threadpool_limits(BLAS_THREADS, "blas"):  # as a server has it
            timed("plain", search)
            for kind in ("new", "cached"):
                timed(kind, partial(search, rerank=RERANKED))
    median = {kind: float(np.median(values)) for kind, values in seconds.items()}
    share = (median["new"] - median["plain"]) / median["encoded"]
    yield Row(f"{name}.rerank_new", "  times the encoder's, new passages", share).wanted("<=", 1.2)
    extra = 1000 * (median["cached"] - median["plain"])
    yield Row(f"{name}.rerank_cached", "  ms, cached passages", extra).wanted("<=", 5)


def _among_new(collection: Collection, given: RankingSet) -> Iterator[Row]:
    """Questions that only new documents answer, ranked among documents that no example names.

    A gain that comes from pushing labelled documents down shows here as none.
    """
    contest = Contest(collection, given.test.some(unseen(given)))
    mask = {"mask": {"exclude": sorted(given.train.documents())}}
    untrained = collection.store.projections()[0].version
    contest.search("frozen", projection=untrained, lexical=False, memory=0.0, **mask)
    contest.search("trained", **mask)
    name, title = given.name, TITLES[given.name]
    what = f"{title}, {len(contest.judged.queries)} new among new"
    yield contest.row(f"{name}.frozen_new", f"{what}, frozen", "frozen")
    row = contest.row(f"{name}.trained_new", f"{what}, trained", "trained")
    yield row.wanted(">=", 0.865) if name == "conala" else row
    found = contest.difference("trained", "frozen")
    yield ahead(difference_row(f"{name}.gain_new", "  trained less frozen", found), found.p)


def _untrained(collection: Collection, given: RankingSet) -> Contest:
    contest = Contest(collection, given.test)
    version = collection.store.state().projection
    progress(f"ranking {len(given.test.queries)} queries of {given.name} untrained")
    contest.search("frozen", projection=version, lexical=False, memory=0.0)
    contest.search("hybrid", projection=version, lexical=True, memory=0.0)
    return contest


def _gain(
    contest: Contest, name: str, what: str, before: str, ids: Sequence[str] | None = None
) -> Row:
    found = contest.difference("trained", before, ids)
    return ahead(difference_row(name, what, found), found.p)


def _against_memory(contest: Contest) -> Iterator[Row]:
    """Against the best of MEMORIES, chosen by the very queries that judge: hard on learning."""
    collection = contest.collection
    untrained = collection.store.projections()[0].version
    for at, tuning in enumerate(MEMORIES):
        contest.search(f"memory {at}", projection=variant(collection, untrained, tuning))
    names = [f"memory {at}" for at in range(len(MEMORIES))]
    memory = max(names, key=lambda name: float(contest.values(name).mean()))
    tuning = MEMORIES[names.index(memory)]
    row = contest.row("scifact.memory", "SciFact, frozen + lexical + examples as keys", memory)
    yield row._replace(note=f"λ {tuning.lexical:g}, γ {tuning.coverage:g}: the best of 3")
    yield _gain(contest, "scifact.over_memory", "SciFact, trained less that", memory)


def _by_kind_of_query(contest: Contest, given: RankingSet) -> Iterator[Row]:
    kinds = {
        "unlike": (f"queries under cosine {UNLIKE:g} to training", unlike(given)),
        "unseen": ("queries whose documents training lacks", unseen(given)),
    }
    for kind, (named, ids) in kinds.items():
        if len(ids) < 2:
            continue
        row = contest.row(f"scifact.{kind}", f"SciFact, {len(ids)} {named}", "trained", ids)
        yield row
        yield contest.row(f"scifact.{kind}_frozen", "  frozen", "frozen", ids)
        yield contest.row(f"scifact.{kind}_hybrid", "  frozen + lexical", "hybrid", ids)
        found = contest.difference("trained", "hybrid", ids)
        row = difference_row(f"scifact.{kind}_gain", "  trained less frozen + lexical", found)
        yield not_behind(row, found.p) if kind == "unseen" else row


def _times(recipe: float | None, whole: float) -> Iterator[Row]:
    if recipe is not None:
        what = "SciFact, seconds of the chosen recipe on all questions"
        yield Row("scifact.recipe_seconds", what, recipe).wanted("<=", 20)
    what = "SciFact, seconds of the whole train with both views"
    yield Row("scifact.seconds", what, whole).wanted("<=", 90)


def _live(collection: Collection, given: RankingSet) -> Iterator[Row]:
    """Activation of the trained version, stored once more so that nothing of it is ready."""
    active = collection.store.state().projection
    again = variant(collection, active)
    collection.activate(collection.store.projections()[0].version)
    requests = [parse(SearchRequest, {"query": text}) for text in given.test.queries.values()]
    switch = switched(collection, again, requests[:CALM])
    documents = collection.store.counts()[0]
    yield from switch.rows("live", f"Live switch, {documents} documents", most=1)


NARROW: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "dense",
        "SciFact, 64 dimensions trained, dense alone",
        {"parts": ["matrices", "offsets"]},
    ),
    ("whole", "  with words and examples", {}),
)


def scifact_narrow(bench: Bench) -> Iterator[Row]:
    """64 learned dimensions, dense alone."""
    given = bench.ranking_set("scifact")
    with bench.workshop.beir(given) as collection:
        taught(collection, given.train)
        contest = Contest(collection, given.test)
        pca = collection.add_projection(collection.fit_projection("lsi", 64))
        contest.search("untrained", projection=pca, lexical=False)
        yield contest.row("scifact-64.untrained", "SciFact, 64 dimensions untrained", "untrained")
        for name, what, parts in NARROW:
            run = trained(collection, dimensions=64, promote=False, **parts)
            contest.search(name, projection=run.report["version"])
            row = contest.row(f"scifact-64.{name}", what, name)
            yield (row.wanted(">=", 0.77) if parts else row)._replace(note=run.said)


def bilingual(bench: Bench) -> Iterator[Row]:
    given = bench.ranking_set("bilingual-en-fr")
    with bench.workshop.beir(given) as collection:
        taught(collection, given.train)
        contest = Contest(collection, given.test)
        contest.search("before", lexical=False, memory=0.0)
        run = trained(collection)
        contest.search("after")
        for when in ("before", "after"):
            name, what = f"bilingual.{when}", f"bilingual-en-fr, {when}: right at "
            yield contest.row(f"{name}_1", what + "1 (precision@1)", when, by=first)
            yield contest.row(f"{name}_10", what + "one of 10 (precision@10)", when, by=found)
        yield Row(
            "bilingual.seconds", "bilingual-en-fr, seconds of train", run.seconds, note=run.said
        )


def unlike(given: RankingSet) -> list[str]:
    """Test queries whose cosine to every training query is under UNLIKE."""
    model = encoder(DEFAULT)
    known, asked = (
        unit(model.encode_queries(list(part.queries.values())))
        for part in (given.train, given.test)
    )
    nearest = (asked @ known.T).max(axis=1)
    return [id for id, cosine in zip(given.test.queries, nearest, strict=True) if cosine < UNLIKE]


def unseen(given: RankingSet) -> list[str]:
    """Test queries none of whose relevant documents is relevant to a training query."""
    known = given.train.documents()
    return [id for id in given.test.queries if not given.test.relevant(id) & known]
