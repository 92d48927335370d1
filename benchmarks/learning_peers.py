"""Peers of learning: what else one would do with the same examples and the same encoder.

All are trained on (query, relevant document) texts alone: none knows passages, grades or
negative labels.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from common import Row, ahead, difference_row, progress
from learning_ranking import unseen
from learning_sets import (
    DISJOINT,
    TITLES,
    Bench,
    Contest,
    Judged,
    RankingSet,
    by_rows,
    by_vectors,
    difference,
    divided,
    encoder,
    taught,
    unit,
    variant,
)
from numpy.typing import NDArray

import attend
from attend.core.settings import DEFAULT_COVERAGE, Tuning
from attend.encoder import DEFAULT, load
from attend.measure.rankings import DEPTH, RankedQueries, Ranking
from attend.projection import given as projection_of
from attend.search.queries import rows_by_id

Rows = NDArray[np.float32]

WARM_UP = 0.1
"""Of all steps, those in which the rate rises."""


class Task(NamedTuple):
    """What a peer is given: training queries, the whole corpus, and who is relevant to whom."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    qrels: Mapping[str, Mapping[str, float]]
    encoder: str

    def pairs(self) -> list[tuple[str, str]]:
        """(query id, document id) of everything relevant; ids without a text are left out."""
        return [
            (query, document)
            for query, judged in self.qrels.items()
            if query in self.queries
            for document, grade in judged.items()
            if grade > 0 and document in self.documents
        ]


@dataclass(frozen=True)
class Peer:
    """A trained peer. Rows of `embed_queries` and `document_rows` are compared by
    cosine.

    Attributes:
        training_seconds: of the training alone, models loaded and texts embedded.
        live_seconds: from there until all documents of the task are embedded by the new model;
            0 where documents stay as they are.
        document_rows: (n, d) the task's documents, as `live_seconds` made them.
        details: what was run: epochs, steps, examples.
    """

    name: str
    embed_queries: Callable[[Sequence[str]], Rows]
    training_seconds: float
    live_seconds: float
    document_rows: Rows
    details: Mapping[str, Any] = field(default_factory=dict)


# -- the adapter ----------------------------------------------------------------------------


@contextmanager
def quiet() -> Iterator[None]:
    """What libraries print goes to stderr: a benchmark's stdout is its result."""
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


ADAPTER_EPOCHS = 4


def linear_adapter(task: Task, *, epochs: int = ADAPTER_EPOCHS) -> Peer:
    """LlamaIndex's linear adapter on queries."""
    encoder = load(task.encoder)
    queries = encoder.encode_queries(list(task.queries.values()))
    documents = encoder.encode_documents(list(task.documents.values()))
    started = time.perf_counter()
    with quiet():
        weight = _adapted(task, queries, documents, epochs)
    seconds = time.perf_counter() - started

    def embed_queries(texts: Sequence[str]) -> Rows:
        return unit(encoder.encode_queries(texts) @ weight.T)  # (q, d) @ (d, d) -> (q, d)

    return Peer(
        name="LlamaIndex linear adapter",
        embed_queries=embed_queries,
        training_seconds=seconds,
        live_seconds=0.0,
        document_rows=documents,
        details={
            "examples": len(_first_pairs(task)),
            "epochs": epochs,
        },
    )


def _first_pairs(task: Task) -> dict[str, str]:
    """One relevant document for each query: the recipe takes the first."""
    first: dict[str, str] = {}
    for query, document in task.pairs():
        first.setdefault(query, document)
    return first


def _adapted(task: Task, queries: Rows, documents: Rows, epochs: int) -> Rows:
    from llama_index.finetuning import EmbeddingAdapterFinetuneEngine, EmbeddingQAFinetuneDataset

    pairs = _first_pairs(task)
    dataset = EmbeddingQAFinetuneDataset(
        queries={query: task.queries[query] for query in pairs},
        corpus={document: task.documents[document] for document in pairs.values()},
        relevant_docs={query: [document] for query, document in pairs.items()},
    )
    stored = _stored_embedding(
        dict(zip(task.queries.values(), queries, strict=True)),
        dict(zip(task.documents.values(), documents, strict=True)),
    )
    with tempfile.TemporaryDirectory() as folder:
        engine = EmbeddingAdapterFinetuneEngine(
            dataset,
            stored,
            epochs=epochs,
            dim=queries.shape[1],
            device="cpu",
            model_output_path=folder,
            show_progress_bar=False,
        )
        engine.finetune()
    weight: Rows = engine.model.linear.weight.detach().numpy()
    return weight


def _stored_embedding(queries: Mapping[str, Rows], documents: Mapping[str, Rows]) -> Any:
    """The library's embedding model over embeddings that there are, by text."""
    from llama_index.core.base.embeddings.base import BaseEmbedding

    class Stored(BaseEmbedding):  # type: ignore[misc]
        def _get_query_embedding(self, query: str) -> Any:
            return queries[query].tolist()

        def _get_text_embedding(self, text: str) -> Any:
            return documents[text].tolist()

        async def _aget_query_embedding(self, query: str) -> Any:
            return queries[query].tolist()

    return Stored()


# -- the encoder itself ---------------------------------------------------------------------

TUNING_EPOCHS = 10
"""More than the minutes allow on most sets: the clock is to end it, not this."""

TUNING_BATCH = 16
TUNING_RATE = 2e-5


def fine_tuned(task: Task, *, minutes: float = 30.0, epochs: int = TUNING_EPOCHS) -> Peer:
    """The whole encoder trained, and every document embedded by it.

    Needs `datasets` and `accelerate`, which sentence-transformers' trainer needs.

    Args:
        minutes: the training stops after the step that passes them, and what there is is used.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, training = _trainer(task, folder, minutes, epochs)
        started = core_seconds()
        with quiet():
            training.train()
        seconds = core_seconds() - started
        started = time.perf_counter()
        model.save_pretrained(folder + "/model", create_model_card=False)
        encoder = load(folder + "/model")
        documents = encoder.encode_documents(list(task.documents.values()))
        live = time.perf_counter() - started
    return Peer(
        name="sentence-transformers, all weights",
        embed_queries=encoder.encode_queries,
        training_seconds=seconds,
        live_seconds=live,
        document_rows=documents,
        details={
            "examples": len(task.pairs()),
            "steps": training.state.global_step,
            "epochs": round(float(training.state.epoch or 0), 2),
            "planned_epochs": epochs,
            "precision": encoder.precision,
        },
    )


def core_seconds() -> float:
    """Return the processor's seconds so far, over the number of cores."""
    return time.process_time() / (os.cpu_count() or 1)


def _trainer(task: Task, folder: str, minutes: float, epochs: int) -> tuple[Any, Any]:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.training_args import BatchSamplers

    from attend.encoder.loading import find

    pairs = task.pairs()
    model = SentenceTransformer(find(task.encoder).place, device="cpu", local_files_only=True)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=folder + "/training",
        num_train_epochs=epochs,
        per_device_train_batch_size=TUNING_BATCH,
        learning_rate=TUNING_RATE,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    examples = Dataset.from_dict(
        {
            "anchor": [task.queries[query] for query, _ in pairs],
            "positive": [task.documents[document] for _, document in pairs],
        }
    )
    steps = -(-len(pairs) // TUNING_BATCH) * epochs
    optimizer, clock = _optimizer(model, steps, minutes * 60)
    return model, SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=examples,
        loss=MultipleNegativesRankingLoss(model),
        optimizers=optimizer,
        callbacks=[clock],
    )


def _optimizer(model: Any, steps: int, seconds: float) -> tuple[tuple[Any, Any], Any]:
    """AdamW with its schedule, and the callback that ends the training with the time."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        started = float("inf")

        def passed(self) -> float:
            """The share of the time that is over."""
            return max(0.0, core_seconds() - self.started) / seconds

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.started = core_seconds()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= self.passed() >= 1

    def rate(step: int) -> float:
        share = min(1.0, max(step / steps, clock.passed()))
        return share / WARM_UP if share < WARM_UP else (1 - share) / (1 - WARM_UP)

    clock = Clock()
    optimizer = torch.optim.AdamW(model.parameters(), lr=TUNING_RATE, weight_decay=0.0)
    return (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)), clock


# -- both -----------------------------------------------------------------------------------

EPOCHS, BATCH, SCALE = 8, 128, 20.0
"""Of the query adapter: cross-entropy over cosines times SCALE, within batches."""

DEEP = 1000
"""Documents of which those with a constant taken off are ranked again."""

TUNINGS = tuple(
    Tuning(
        examples=examples,
        lexical=lexical,
        coverage=DEFAULT_COVERAGE if lexical else 0.0,
        memory=0.0,
    )
    for examples in (0.0, 1.0)
    for lexical in (0.0, 0.2, 0.5)
)

Fit = Callable[[Rows, Rows, float], Rows]
"""Queries (e, d), their documents (e, d) and a strength, as a matrix (d, d) on queries."""


class Way(NamedTuple):
    """A plain way: a matrix on queries and a constant on labelled documents, or neither.

    Attributes:
        strengths: of the fit, of which validation chooses one.
        penalties: taken from the cosine of each document that has an example.
    """

    name: str
    what: str
    fit: Fit | None = None
    strengths: tuple[float, ...] = (0.0,)
    penalties: tuple[float, ...] = (0.0,)
    tunings: tuple[Tuning, ...] = TUNINGS


class Choice(NamedTuple):
    strength: float
    penalty: float
    tuning: Tuning

    def note(self, way: Way) -> str:
        parts = {
            "strength": self.strength if way.fit else None,
            "constant": self.penalty or None,
            "λ": self.tuning.lexical,
            "examples": self.tuning.examples,
        }
        return ", ".join(f"{name} {value:g}" for name, value in parts.items() if value is not None)


def ridge(queries: Rows, documents: Rows, strength: float) -> Rows:
    """Fit documents ≈ q + W q by ridge regression, in closed form."""
    gram = queries.T @ queries + strength * np.eye(queries.shape[1])
    moves = np.linalg.solve(gram, queries.T @ (documents - queries))  # (d, d)
    matrix: Rows = (np.eye(queries.shape[1]) + moves.T).astype(np.float32)
    return matrix


def query_adapter(queries: Rows, documents: Rows, rate: float) -> Rows:
    """Fit a matrix on queries by AdamW, as adapters do, at a rate that moves it."""
    import torch
    from torch.nn.functional import cross_entropy, normalize

    torch.manual_seed(0)
    asked, meant = torch.from_numpy(queries), normalize(torch.from_numpy(documents))
    weight = torch.nn.Parameter(torch.eye(queries.shape[1]))
    optimizer = torch.optim.AdamW([weight], lr=rate)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(asked)).split(BATCH):
            cosines = normalize(asked[batch] @ weight.T) @ meant[batch].T  # (b, d) @ (d, b)
            loss = cross_entropy(cosines * SCALE, torch.arange(len(batch)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    matrix: Rows = weight.detach().numpy()
    return matrix


WAYS = (
    Way("words", "BM25 and examples as keys"),
    Way("constant", "the same, less a constant on labelled documents", penalties=(0.05, 0.1, 0.2)),
    Way("ridge", "the same with ridge regression of queries", ridge, (1.0, 10.0, 100.0)),
    Way("query_adapter", "the same with a query adapter", query_adapter, (1e-4, 3e-4, 1e-3)),
)


@dataclass
class Arena:
    """One division of a set: a collection that is taught its training queries, and the judges.

    Attributes:
        new: the documents that no training query is about, and the queries that only they answer.
    """

    collection: attend.Collection
    given: RankingSet
    everything: Contest = field(init=False)
    new: Contest = field(init=False)
    mask: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        taught(self.collection, self.given.train)
        labelled = self.given.train.documents()
        self.everything = Contest(self.collection, self.given.test)
        fresh = [
            id for id in self.given.test.queries if not self.given.test.relevant(id) & labelled
        ]
        self.new = Contest(self.collection, self.given.test.some(fresh))
        self.mask = {"mask": {"exclude": sorted(labelled)}}

    def pairs(self) -> tuple[Rows, Rows]:
        """Return training queries (e, d), and the mean key of each one's document (e, d)."""
        train = self.given.train
        pairs = [(id, document) for id in train.queries for document in train.relevant(id)]
        rows = rows_by_id(self.collection.store, sorted(train.documents()), "query")
        queries = encoder(DEFAULT).encode_queries(list(train.queries.values()))
        place = {id: at for at, id in enumerate(train.queries)}
        keys = self.collection.store.own_keys(np.unique(list(rows.values())))
        at = np.searchsorted(keys.rows, [rows[document] for _, document in pairs])
        means = np.asarray(keys.means(), dtype=np.float32)
        return queries[[place[id] for id, _ in pairs]], unit(means[at])

    def version(self, way: Way, strength: float) -> int:
        """Store the way's matrix as a version, once for all of its tunings."""
        if way.fit is None:
            return self.collection.store.projections()[0].version
        matrix = way.fit(*self.pairs(), strength)
        return self.collection.add_projection(
            projection_of(matrix, None, normalize_queries=True, normalize_keys=True)
        )

    def enter(self, way: Way, version: int, choice: Choice) -> str:
        """Let a choice rank all queries, over all documents and among new ones; return its name."""
        name = f"{way.name} {choice}"
        tuned = variant(self.collection, version, choice.tuning)
        if choice.penalty:
            self.everything.enter(name, self._penalised(tuned, choice.penalty))
        else:
            self.everything.search(name, projection=tuned, memory=0.0)
        self.new.search(name, projection=tuned, memory=0.0, **self.mask)
        return name

    def value(self, name: str) -> float:
        """Return the mean over both splits, by which choices are made."""
        return float((self.everything.values(name).mean() + self.new.values(name).mean()) / 2)

    def _penalised(self, version: int, penalty: float) -> RankedQueries:
        labelled = self.given.train.documents()
        rankings = {}
        options = {"projection": version, "k": DEEP, "attend": DEEP, "memory": 0.0}
        search = partial(self.collection.search, **options)
        for id, query in self.given.test.queries.items():
            hits = search(query).hits
            scores = {hit.id: hit.score - SCALE * penalty * (hit.id in labelled) for hit in hits}
            best = sorted(scores, key=scores.__getitem__, reverse=True)[:DEPTH]
            rankings[id] = Ranking(tuple(best), 0.0, 1.0)
        return RankedQueries(rankings, version, False, (0, 0))


def plain(name: str) -> Callable[[Bench], Iterator[Row]]:
    """The plain ways on a set, and how far the trained version is ahead of each."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        parts = divided(given.train, disjoint=name in DISJOINT)
        with ExitStack() as stack:
            validation, test = (
                Arena(stack.enter_context(bench.workshop.beir(given)), division)
                for division in (given._replace(train=parts[0], test=parts[1]), given)
            )
            for way in WAYS:
                choice = _choose(validation, way)
                entered = test.enter(way, test.version(way, choice.strength), choice)
                yield from _rows(bench, test, name, way, entered, choice)

    return section


def _choose(arena: Arena, way: Way) -> Choice:
    """Return the strength, constant and tuning that are best in validation."""
    values = dict[Choice, float]()
    for strength in way.strengths:
        version = arena.version(way, strength)
        for penalty, tuning in itertools.product(way.penalties, way.tunings):
            choice = Choice(strength, penalty, tuning)
            values[choice] = arena.value(arena.enter(way, version, choice))
    best = max(values, key=values.__getitem__)
    progress(f"-- {way.name}: {best.note(way)} of {len(values)} ({values[best]:.4f} in validation)")
    return best


def _rows(
    bench: Bench, test: Arena, set: str, way: Way, entered: str, choice: Choice
) -> Iterator[Row]:
    for short, contest in (("", test.everything), ("_new", test.new)):
        kind = "" if not short else f", {len(contest.judged.queries)} new among new"
        row = contest.row(f"{set}.{way.name}{short}", f"{TITLES[set]}, {way.what}{kind}", entered)
        yield row._replace(note=choice.note(way))
        ours = bench.results.rows.get(f"{set}.trained{short}")
        if ours is not None and len(ours.values) == len(row.values):
            gain = difference(np.array(ours.values), np.array(row.values))
            name = f"{set}.over_{way.name}{short}"
            yield ahead(difference_row(name, "  ours less that", gain), gain.p)


Ranker = Callable[[Judged, Collection[str]], RankedQueries]
"""What a peer ranks for queries, leaving out these documents."""


def adapter(name: str) -> Callable[[Bench], Iterator[Row]]:
    """LlamaIndex's adapter on a set: its queries search the same keys that ours do."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        peer = linear_adapter(_task(given))
        with bench.workshop.beir(given) as collection:

            def ranked(judged: Judged, left_out: Collection[str]) -> RankedQueries:
                queries = peer.embed_queries(list(judged.queries.values()))
                return by_vectors(collection, list(judged.queries), queries, left_out)

            yield from _peer_rows(bench, given, "adapter", peer, collection, ranked)

    return section


def tuned(name: str) -> Callable[[Bench], Iterator[Row]]:
    """The whole encoder fine-tuned on a set: its own keys, one for each document."""

    def section(bench: Bench) -> Iterator[Row]:
        given = bench.ranking_set(name)
        task = _task(given)
        progress(f"fine-tuning the encoder on {name}, at most {bench.options.minutes:g} minutes")
        peer = fine_tuned(task, minutes=bench.options.minutes)

        def ranked(judged: Judged, left_out: Collection[str]) -> RankedQueries:
            queries, ids = peer.embed_queries(list(judged.queries.values())), list(task.documents)
            rows = np.flatnonzero(~np.isin(ids, list(left_out)))
            kept = [ids[row] for row in rows]
            return by_rows(kept, peer.document_rows[rows], list(judged.queries), queries)

        with bench.workshop.beir(given) as collection:
            yield from _peer_rows(bench, given, "tuned", peer, collection, ranked)
        yield Row(
            f"{name}.tuned_live_seconds",
            f"  seconds until live ({len(task.documents)} documents embedded anew)",
            peer.live_seconds,
        )

    return section


def _task(given: RankingSet) -> Task:
    return Task(given.train.queries, given.texts(), given.train.qrels, DEFAULT)


def _peer_rows(
    bench: Bench,
    given: RankingSet,
    short: str,
    peer: Peer,
    collection: attend.Collection,
    ranked: Ranker,
) -> Iterator[Row]:
    """Rows among all documents and, for queries of new ones, among those that training lacks."""
    name, what = f"{given.name}.{short}", f"{TITLES[given.name]}, {peer.name}"
    told = ", ".join(f"{key} {value}" for key, value in peer.details.items())
    fresh = given.test.some(unseen(given))
    for end, judged, left_out in (("", given.test, ()), ("_new", fresh, given.train.documents())):
        contest = Contest(collection, judged)
        contest.enter("peer", ranked(judged, left_out))
        among = f", {len(judged.queries)} new among new" if end else ""
        yield contest.row(name + end, what + among, "peer")._replace(note=told)
        ours = bench.results.rows.get(f"{given.name}.trained{end}")
        if ours is not None:
            gain = difference(np.array(ours.values), contest.values("peer"))
            yield ahead(difference_row(f"{name}{end}_behind", "  ours less that", gain), gain.p)
    yield Row(f"{name}_seconds", "  seconds of training", peer.training_seconds)
