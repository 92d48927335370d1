"""Rows of ranking: what learning gains on sets with judgements."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import psutil
from common import ROOT, Row, ahead, difference_row, not_behind, progress
from learning_sets import (
    SEED,
    TITLES,
    Bench,
    Contest,
    Judged,
    RankingSet,
    encoder,
    first,
    found,
    taught,
    trained,
    variant,
)
from threadpoolctl import threadpool_limits

from attend import Answer, Collection, Document
from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.core.arrays import unit
from attend.core.settings import DEFAULT_COVERAGE, DEFAULT_LEXICAL, Tuning
from attend.core.types import Floats
from attend.encoder import DEFAULT
from attend.learning.data import memory_of
from attend.projection import given
from attend_service.server import BLAS_THREADS

CALM = 20
"""Queries that are asked over and over during a switch."""

DIMENSION = 384

WATCHED = 0.02
"""Seconds between two looks at the memory."""


class Met(NamedTuple):
    """One search during a switch: which query, its seconds, and what it gave."""

    query: int
    seconds: float
    answer: Answer | None
    error: str | None


class Switch(NamedTuple):
    """An activation under load.

    Attributes:
        wrong: searches whose documents were those of neither version.
        peak: bytes of memory of the process's own at most, less those before.
    """

    seconds: float
    searches: int
    slowest: float
    errors: int
    wrong: int
    peak: int

    def rows(self, name: str, what: str, most: float) -> Iterator[Row]:
        yield Row(f"{name}.seconds", f"{what}: seconds", self.seconds).wanted("<=", most)
        yield Row(
            f"{name}.slowest",
            "  slowest search meanwhile, seconds",
            self.slowest,
            note=f"{self.searches} searches",
        )
        yield Row(f"{name}.errors", "  searches that failed", self.errors).wanted("<=", 0)
        yield Row(f"{name}.wrong", "  searches answered wrongly", self.wrong).wanted("<=", 0)
        what = "  peak of its own memory above that before, MiB"
        yield Row(f"{name}.peak_mib", what, self.peak / 2**20)


def switched(collection: Collection, version: int, requests: Sequence[SearchRequest]) -> Switch:
    """Activate a version while one thread searches without pause."""
    before = [_documents(collection, request) for request in requests]
    met: list[Met] = []
    stop = threading.Event()
    searching = threading.Thread(target=_search, args=(collection, requests, met, stop))
    searching.start()
    memory = Memory()
    started = time.perf_counter()
    collection.activate(version)
    seconds = time.perf_counter() - started
    risen = memory.risen()
    stop.set()
    searching.join()
    after = [_documents(collection, request) for request in requests]
    right = {
        answer.projection: [tuple(hit.id for hit in each.hits) for each in answers]
        for answers in (before, after)
        for answer in answers[:1]
    }
    return Switch(
        seconds=seconds,
        searches=len(met),
        slowest=max(each.seconds for each in met),
        errors=sum(each.error is not None for each in met),
        wrong=sum(_is_wrong(each, right) for each in met),
        peak=risen,
    )


def _search(
    collection: Collection, requests: Sequence[SearchRequest], met: list[Met], stop: threading.Event
) -> None:
    at = 0
    while not stop.is_set() or not met:
        started = time.perf_counter()
        answer, error = None, None
        try:
            answer = _documents(collection, requests[at])
        except Exception as problem:  # whatever it is, a user would have met it
            error = repr(problem)
            progress(f"a search during the switch failed: {error}")
        met.append(Met(at, time.perf_counter() - started, answer, error))
        at = (at + 1) % len(requests)


def _documents(collection: Collection, request: SearchRequest) -> Answer:
    return collection.search_many([request])[0]


def _is_wrong(met: Met, right: dict[int, list[tuple[str, ...]]]) -> bool:
    if met.answer is None:
        return False
    expected = right.get(met.answer.projection)
    return expected is None or tuple(hit.id for hit in met.answer.hits) != expected[met.query]


class Memory:
    """Watches the memory that is this process's own: a file that is mapped is not."""

    def __init__(self) -> None:
        self._before = self._peak = own_memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def risen(self) -> int:
        """Stop, and return by how many bytes the memory has risen at most."""
        self._done.set()
        self._thread.join()
        return self._peak - self._before

    def _watch(self) -> None:
        while not self._done.wait(WATCHED):
            self._peak = max(self._peak, own_memory())


def own_memory() -> int:
    """Return the bytes of this process that are not shared with files or other processes."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


# -- a million keys -------------------------------------------------------------------------


def many_keys(bench: Bench) -> Iterator[Row]:
    """The switch over as many keys as --keys says, vectors drawn at random."""
    count = bench.options.keys
    random = np.random.default_rng(SEED)

    def fill(collection: Collection) -> None:
        for at in range(0, count, 10_000):
            rows = random.standard_normal((min(10_000, count - at), DIMENSION), dtype=np.float32)
            collection.write(
                [Document(str(at + each), vectors={"vector": row}) for each, row in enumerate(rows)]
            )
            if at % 100_000 == 0:
                progress(f"stored {at} of {count} keys")
        collection.publish()

    name = f"random-{count}"
    with bench.workshop.copy(name, fill, dimension=DIMENSION, normalize=True) as collection:
        drawn = random.standard_normal((CALM, DIMENSION), dtype=np.float32)
        requests = [parse(SearchRequest, {"query": {"vector": row}}) for row in drawn]
        progress(f"activating over {count} keys")
        switch = switched(collection, collection.add_projection(_turned(random)), requests)
    yield from switch.rows("live-many", f"Live switch, {count} keys of {DIMENSION}", most=60)


def _turned(random: np.random.Generator):  # type: ignore[no-untyped-def]
    """A projection that makes every key anew, as a learned one does."""
    w_q, w_k = (
        np.eye(DIMENSION) + 0.01 * random.standard_normal((DIMENSION, DIMENSION)) for _ in range(2)
    )
    return given(w_q, w_k, normalize_queries=True, normalize_keys=True)


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


def conala_deep(bench: Bench) -> Iterator[Row]:
    """The same with a change of the encoder for queries, which takes minutes."""
    given = bench.ranking_set("conala")
    with bench.workshop.beir(given) as collection:
        taught(collection, given.train)
        contest = _untrained(collection, given)
        run = trained(collection, deep=True)
        contest.search("trained")
        row = contest.row("deep-conala.trained", "CoNaLa, trained with --deep", "trained")
        yield row._replace(note=run.said)
        for row in _among_new(collection, given):
            wanted = row.wanted(">=", 0.875) if row.name == "conala.trained_new" else row
            yield wanted._replace(name=row.name.replace("conala", "deep-conala"))
        yield Row("deep-conala.seconds", "CoNaLa, seconds of train --deep", run.seconds)


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


COUNTS = (20, 100, 500)
"""Questions that are taught."""

PROVABLE = 100
"""From this many on a gain was asked to be significant."""


def conala_feedback(bench: Bench) -> Iterator[Row]:
    conala = bench.ranking_set("conala")
    for count in COUNTS:
        yield from _new_among_new(bench, conala, count)


def _new_among_new(bench: Bench, dataset: RankingSet, count: int) -> Iterator[Row]:
    """Rank questions of new documents among documents that no example names."""
    ids = np.random.default_rng(SEED).permutation(sorted(dataset.train.queries))[:count]
    examples = dataset.train.some(sorted(ids.tolist()))
    labelled = examples.documents()
    new = [id for id in dataset.test.queries if not dataset.test.relevant(id) & labelled]
    with bench.workshop.beir(dataset) as collection:
        taught(collection, examples)
        contest = Contest(collection, dataset.test.some(new))
        mask = {"exclude": sorted(labelled)}
        contest.search("untrained", mask=mask, memory=0.0)
        contest.search("feedback", mask=mask)
    name = f"feedback.{dataset.name}_{count}"
    what = f"{TITLES[dataset.name]}, {len(new)} new among new"
    yield contest.row(f"{name}_untrained", f"{what}, untrained", "untrained")
    yield contest.row(name, f"  {count} examples, no training", "feedback")
    gain = contest.difference("feedback", "untrained")
    row = difference_row(f"{name}_gain", "  feedback less untrained", gain)
    yield ahead(row, gain.p) if count >= PROVABLE else row.wanted(">", 0)


DOCUMENTS, QUERIES, HELD = 3600, 2600, 300
"""Documents, queries to learn from, and queries that judge."""

GRADES = {3: 3, 2: 9, 1: 20, 0: 10}
"""Judgements of a query by grade: 110,000 of all."""

HIDDEN, SHARPNESS = 1.0, 30.0
"""How far the hidden W_Q is from the identity, and the scale of its scores."""


def judgements(bench: Bench) -> Iterator[Row]:
    """Train on judgements that are drawn from a model over SciFact's abstracts."""
    texts = bench.ranking_set("scifact").texts()
    documents = list(texts)[:DOCUMENTS]

    def fill(collection: Collection) -> None:
        collection.upsert([{"id": id, "text": texts[id]} for id in documents])

    with bench.workshop.copy("scifact-judgements", fill) as collection:
        learned, held = drawn(documents, memory_of(collection, None).means(), sentences(texts))
        taught(collection, learned)
        contest = Contest(collection, held)
        version = collection.store.state().projection
        contest.search("frozen", projection=version, lexical=False, memory=0.0)
        report, seconds, peak = trained_apart(collection)
        contest.search("trained")
        what = f"{sum(map(len, learned.qrels.values())):,} judgements"
        yield contest.row("judgements.frozen", f"{what}, frozen", "frozen")
        row = contest.row("judgements.trained", f"{what}, trained", "trained")
        yield row._replace(note="promoted" if report["promoted"] else "not promoted")
        yield Row("judgements.seconds", f"{what}: seconds of train", seconds).wanted("<=", 60)
        yield Row("judgements.peak", f"{what}: GB of memory", peak / 1e9).wanted("<=", 1.2)


def nfcorpus(bench: Bench) -> Iterator[Row]:
    """Train on 110,000 real judgements."""
    given = bench.ranking_set("nfcorpus")
    with bench.workshop.beir(given) as collection:
        taught(collection, given.train)
        contest = _untrained(collection, given)
        yield contest.row("nfcorpus.frozen", "NFCorpus, frozen", "frozen")
        yield contest.row("nfcorpus.hybrid", "NFCorpus, hybrid untrained", "hybrid")
        report, seconds, peak = trained_apart(collection)
        contest.search("trained")
        row = contest.row("nfcorpus.trained", "NFCorpus, trained", "trained").wanted(">=", 0.445)
        chosen = ", ".join(f"{name} {value}" for name, value in report["chosen"].items())
        yield row._replace(note=f"{'' if report['promoted'] else 'not '}promoted; {chosen}")
        what = "  unseen documents, held-out training queries"
        unseen_after = report["views"]["unseen"]["after"]
        yield Row("nfcorpus.unseen", what, unseen_after)
        yield Row("nfcorpus.seconds", "  seconds of train", seconds).wanted("<=", 90)
        yield Row("nfcorpus.peak", "  GB of memory", peak / 1e9).wanted("<=", 1.5)


def sentences(texts: Mapping[str, str]) -> dict[str, str]:
    """Return a sentence of each of some documents, by the name of a query."""
    random = np.random.default_rng(SEED)
    queries = {}
    for id in random.permutation(sorted(texts))[: QUERIES + HELD].tolist():
        parts = [part for part in texts[id].split(". ") if len(part) > 20] or [texts[id]]
        queries[f"q{id}"] = parts[int(random.integers(len(parts)))]
    return queries


def drawn(
    documents: Sequence[str], embeddings: Floats, queries: Mapping[str, str]
) -> tuple[Judged, Judged]:
    """Draw judgements of queries, and divide them into those to learn and those that judge.

    Documents are drawn by a softmax over scores under a hidden W_Q; the first of them have grade 3.
    """
    random = np.random.default_rng(SEED)
    names, keys = list(queries), unit(embeddings)
    embedded = encoder(DEFAULT).encode_queries(list(queries.values()))
    width = keys.shape[1]
    hidden = np.eye(width) + HIDDEN * random.normal(size=(width, width)) / np.sqrt(width)
    noise = random.gumbel(size=(len(names), len(keys))) / SHARPNESS
    scores = unit(embedded @ hidden) @ keys.T + noise
    best = np.argsort(-scores, axis=1)[:, : sum(GRADES.values())]
    grades = np.repeat(list(GRADES), list(GRADES.values())).tolist()
    qrels = {
        name: dict(zip((documents[place] for place in row), grades, strict=True))
        for name, row in zip(names, best, strict=True)
    }
    whole = Judged(queries, qrels)
    return whole.some(names[:QUERIES]), whole.some(names[QUERIES:])


def trained_apart(collection: Collection) -> tuple[dict[str, Any], float, float]:
    """Train by the command line; return its report, its seconds, and the bytes it took at most."""
    folder = collection.folder.parent.parent
    command = [sys.executable, "-m", "index", "train", "--data", str(folder), "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    report = json.loads(done.stdout)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return report, float(report["seconds"]), float(peak)
