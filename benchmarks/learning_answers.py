"""Rows of answers: categories as soft answers, beside classifiers at a fitted temperature."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import Difference, Row, data_set, difference_row, not_behind, progress, row_of
from learning_sets import (
    HELD_OUT,
    SEED,
    TITLES,
    Bench,
    difference,
    encoder,
    ranking_set,
    trained,
    unit,
)
from scipy.stats import norm

from attend import Collection, Document
from attend.api.base import parse
from attend.api.search import MAX_BATCH, SearchRequest
from attend.core.types import Bool, Float32, Float64, Int64
from attend.encoder import DEFAULT
from attend.learning.calibration import SHARES
from attend.measure.statistics import Interval, calibration_error, mean_interval, reliability
from attend.search.foreign import ERROR_RATE, SETTING

QUICK_MEMORY = 2_000

BATCH = 1_000

ATTEND = "all"
"""Documents that a soft answer blends. Of a number, a category that none of them has gets no share:
with 100, the right one of three of 1,931 held-out training texts, which is an infinite loss."""


class Labelled(NamedTuple):
    """Texts with their categories."""

    texts: Sequence[str]
    labels: Sequence[str]

    def some(self, chosen: Bool) -> Labelled:
        at = np.flatnonzero(chosen).tolist()
        return Labelled([self.texts[i] for i in at], [self.labels[i] for i in at])


class Guess(NamedTuple):
    """What a contestant says of each text: whether it is right, how sure it is, and the negative
    log of the share that the right category has, which may be infinite."""

    correct: Float64  # (q,)
    sure: Float64  # (q,)
    loss: Float64  # (q,)

    @property
    def ece(self) -> float:
        return reliability(np.clip(self.sure, 0, 1), self.correct).ece


# -- soft answers ---------------------------------------------------------------------------


def answers(bench: Bench) -> Iterator[Row]:
    memory, asked = banking(bench)
    with remembered(bench, memory) as collection:
        untrained = collection.store.state().projection
        before = soft(collection, asked, projection=untrained, lexical=False)
        yield from _guess_rows("banking77.frozen", "banking77, soft answers, frozen", before)
        run = trained(collection, objective="answers")
        ours = soft(collection, asked)
        rows = _guess_rows("banking77.trained", "banking77, soft answers, trained", ours)
        yield next(rows)._replace(note=run.said)
        yield next(rows).wanted("<=", 0.02)
        yield from rows
        yield Row("banking77.seconds", "  seconds of train", run.seconds)
    if not bench.options.peers:
        return
    peers = dict[str, Guess]()
    for name, peer in PEERS.items():
        progress(f"banking77: fitting {name}")
        peers[name] = peer(memory, asked, tune=not bench.options.quick)
        yield from _guess_rows(f"banking77.{name}", f"banking77, {name}", peers[name])
    yield from _against(ours, peers)


def _against(ours: Guess, peers: Mapping[str, Guess]) -> Iterator[Row]:
    """Ours against the best peer, by each of three measures."""
    best = max(peers, key=lambda name: peers[name].correct.mean())
    found = difference(ours.correct, peers[best].correct)
    row = difference_row("banking77.over_best", f"banking77, accuracy less that of {best}", found)
    yield not_behind(row, found.p)
    best = min(peers, key=lambda name: peers[name].loss.mean())
    what = f"  log loss under that of {best}"
    if np.isinf(ours.loss).any():
        row = Row("banking77.over_best_loss", what, None, asked="not below", holds=False)
        yield row._replace(note="ours is infinite")
    else:
        found = difference(-ours.loss, -peers[best].loss)
        yield not_behind(difference_row("banking77.over_best_loss", what, found), found.p)
    best = min(peers, key=lambda name: peers[name].ece)
    found = _less_error(ours, peers[best])
    row = difference_row("banking77.over_best_ece", f"  ECE under that of {best}", found)
    yield not_behind(row, found.p)


def _less_error(ours: Guess, other: Guess, draws: int = 2000) -> Difference:
    """How much less the calibration error of ours is, by a bootstrap over the same texts."""
    random, count = np.random.default_rng(SEED), len(ours.correct)

    def less(at: Int64 | slice) -> float:
        errors = (calibration_error(guess.sure[at], guess.correct[at]) for guess in (other, ours))
        first, second = errors
        return first - second

    drawn = np.array([less(random.integers(count, size=count)) for _ in range(draws)])
    low, high = np.quantile(drawn, [0.025, 0.975])
    p = 2 * min((drawn <= 0).mean(), (drawn >= 0).mean())
    return Difference(less(slice(None)), float(low), float(high), float(min(1.0, p)))


def banking(bench: Bench) -> tuple[Labelled, Labelled]:
    """The memory and the queries; to rehearse, queries are drawn from the memory."""
    folder = data_set(bench.options.sets, "banking77")
    random = np.random.default_rng(SEED)
    memory = _read(folder / "train.csv")
    if bench.options.rehearse:
        held = random.random(len(memory.texts)) < HELD_OUT
        memory, asked = memory.some(~held), memory.some(held)
    else:
        asked = _read(folder / "test.csv")
    if bench.options.quick:
        share = QUICK_MEMORY / len(memory.texts)
        memory = memory.some(random.random(len(memory.texts)) < share)
    return memory, asked


def soft(collection: Collection, asked: Labelled, **options: Any) -> Guess:
    """The category of the largest share of each soft answer, that share, and that of the right
    category: all of the distribution that the answer states."""
    correct, sure, right = [], [], []
    options = {"attend": ATTEND, **options}
    for answer, label in zip(asked_of(collection, asked.texts, options), asked.labels, strict=True):
        found = answer.answer["distribution"]
        best = next(iter(found), None)
        correct.append(best == label)
        sure.append(found[best] if best is not None else 0.0)
        right.append(found.get(label, 0.0))
    with np.errstate(divide="ignore"):
        loss = -np.log(np.array(right))
    return Guess(np.array(correct, dtype=np.float64), np.array(sure, dtype=np.float64), loss)


def asked_of(
    collection: Collection, texts: Sequence[str], options: dict[str, Any]
) -> Iterator[Any]:
    """The answers to texts, many at once."""
    # Never refused: what is measured is the answer, whatever the confidence.
    given = {"mode": "soft", "k": 1, "min_confidence": 0.0, **options}
    requests = [parse(SearchRequest, {"query": text, **given}) for text in texts]
    for at in range(0, len(requests), MAX_BATCH):
        yield from collection.search_many(requests[at : at + MAX_BATCH])


def _guess_rows(name: str, what: str, guess: Guess) -> Iterator[Row]:
    correct = guess.correct
    yield row_of(name, f"{what}: accuracy", mean_interval(correct), correct.tolist())
    yield Row(f"{name}_ece", "  expected calibration error", guess.ece)
    yield _loss_row(f"{name}_loss", guess)


def _loss_row(name: str, guess: Guess) -> Row:
    """The mean log loss; none where it is infinite."""
    without = int(np.isinf(guess.loss).sum())
    if without:
        note = f"infinite: the right category of {without} texts has no share"
        return Row(name, "  log loss", None, note=note)
    return row_of(name, "  log loss", mean_interval(guess.loss), guess.loss.tolist())


def remembered(bench: Bench, memory: Labelled) -> Any:
    """A collection whose documents are texts with their category as value, numbered from 0."""

    def fill(collection: Collection) -> None:
        for at in range(0, len(memory.texts), BATCH):
            pairs = zip(memory.texts[at : at + BATCH], memory.labels[at : at + BATCH], strict=True)
            collection.write(
                [
                    Document(str(at + number), {"text": text}, value=label)
                    for number, (text, label) in enumerate(pairs)
                ]
            )
        collection.publish()

    # Which texts these are depends on what is rehearsed: they are told apart by their number.
    return bench.workshop.copy(f"banking77-{len(memory.texts)}", fill, values="category")


def _read(path: Path) -> Labelled:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Labelled([row["text"] for row in rows], [row["category"] for row in rows])


# -- peers ----------------------------------------------------------------------------------


def logistic(memory: Labelled, asked: Labelled, *, tune: bool) -> Guess:
    from sklearn.linear_model import LogisticRegression

    known, wanted = embedded(memory.texts), embedded(asked.texts)
    model = _tuned(LogisticRegression(max_iter=2000, C=10), {"C": [3, 10, 30, 100]}, tune)
    return _guess(model, known, memory.labels, wanted, asked.labels)


def logistic_with_words(memory: Labelled, asked: Labelled, *, tune: bool) -> Guess:
    from scipy.sparse import csr_array, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    known = hstack([csr_array(embedded(memory.texts)), words.fit_transform(memory.texts)]).tocsr()
    wanted = hstack([csr_array(embedded(asked.texts)), words.transform(asked.texts)]).tocsr()
    model = _tuned(LogisticRegression(max_iter=2000, C=10), {"C": [3, 10, 30]}, tune)
    return _guess(model, known, memory.labels, wanted, asked.labels)


def support_vectors(memory: Labelled, asked: Labelled, *, tune: bool) -> Guess:
    from sklearn.svm import SVC

    known, wanted = embedded(memory.texts), embedded(asked.texts)
    model = _tuned(SVC(C=10, cache_size=1000), {"C": [3, 10, 30]}, tune)
    return _guess(model, known, memory.labels, wanted, asked.labels)


def neighbours(memory: Labelled, asked: Labelled, *, tune: bool) -> Guess:
    """k nearest neighbours by cosine; a softmax at a fitted temperature weighs them."""
    from sklearn.neighbors import KNeighborsClassifier

    known, wanted = embedded(memory.texts), embedded(asked.texts)
    scales = [partial(_closeness, scale=scale) for scale in (10.0, 20.0, 40.0)]
    grid = {"n_neighbors": [10, 30, 100], "weights": scales}
    model = KNeighborsClassifier(30, metric="cosine", weights=scales[1])
    return _guess(_tuned(model, grid, tune), known, memory.labels, wanted, asked.labels)


def _closeness(distances: Float64, scale: float) -> Float64:
    return np.asarray(np.exp(-scale * distances))


PEERS: dict[str, Callable[..., Guess]] = {
    "logistic regression": logistic,
    "logistic regression with tf-idf": logistic_with_words,
    "k nearest neighbours": neighbours,
    "RBF-SVM": support_vectors,
}


def _tuned(model: Any, grid: dict[str, list[Any]], tune: bool) -> Any:
    """The model, its numbers chosen on a part of the memory."""
    from sklearn.model_selection import GridSearchCV, ShuffleSplit

    division = ShuffleSplit(n_splits=1, test_size=HELD_OUT, random_state=SEED)
    return GridSearchCV(model, grid, cv=division) if tune else model


def _guess(
    model: Any, known: Any, labels: Sequence[str], wanted: Any, truth: Sequence[str]
) -> Guess:
    """What a model says of each text."""
    chosen = getattr(model.fit(known, labels), "best_estimator_", model)
    shares = tempered(chosen, known, labels, wanted)  # (q, c)
    correct = chosen.predict(wanted) == np.array(truth)
    right = shares[np.arange(len(truth)), np.searchsorted(np.unique(labels), truth)]
    with np.errstate(divide="ignore"):
        return Guess(correct.astype(np.float64), shares.max(axis=1), -np.log(right))


def tempered(model: Any, known: Any, labels: Sequence[str], wanted: Any) -> Float64:
    """The shares of categories at the temperature that cross-validation within the memory fits."""
    from sklearn.calibration import CalibratedClassifierCV

    calibrated = CalibratedClassifierCV(model, method="temperature", ensemble=False, cv=3)
    return np.asarray(calibrated.fit(known, labels).predict_proba(wanted))


def embedded(texts: Sequence[str]) -> Float32:
    """As queries of the collection's encoder; MiniLM has no prompts that tell them apart."""
    return _embedded(tuple(texts))


@cache
def _embedded(texts: tuple[str, ...]) -> Float32:
    return unit(encoder(DEFAULT).encode_queries(list(texts)))


WITHHELD = 15
"""Of banking77's intents, in each of DRAWS."""

DRAWS = 3

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Of the shared covariance towards the same variance in all directions."""


class Shape(NamedTuple):
    """How distances are measured."""

    shrinkage: float
    relative: bool


def no_answer(bench: Bench) -> Iterator[Row]:
    """Confidence on queries whose intent the memory lacks, and on the others."""
    memory, asked = banking(bench)
    intents = sorted(set(memory.labels))
    draws = 1 if bench.options.quick else DRAWS
    areas: dict[str, list[Interval]] = {
        name: [] for name in ("frozen", "logistic", "mahalanobis", "confidence")
    }
    errors, refused, notes = list[tuple[float, float]](), list[float](), list[str]()
    known, wanted = embedded(memory.texts), embedded(asked.texts)
    shape = _chosen(memory, known)
    for seed in range(draws):
        hidden = np.random.default_rng(seed).choice(intents, WITHHELD, replace=False)
        absent, left = np.isin(asked.labels, hidden), ~np.isin(memory.labels, hidden)
        with remembered(bench, memory) as collection:
            collection.delete([str(at) for at in np.flatnonzero(~left)])
            untrained = collection.store.state().projection
            similar = {"projection": untrained, "lexical": False, "scale": 1.0}
            scores = [a.hits[0].score for a in asked_of(collection, asked.texts, similar)]
            run = trained(collection, objective="answers")
            answers = list(asked_of(collection, asked.texts, {"min_confidence": None}))
        notes.append("promoted" if run.report["promoted"] else "not promoted")
        sure = np.array([answer.confidence for answer in answers], dtype=np.float64)
        distances = _distances(memory.some(left).labels, known[left], wanted, shape)
        largest = tempered(_logistic(), known[left], memory.some(left).labels, wanted).max(axis=1)
        told = {
            "frozen": np.array(scores),
            "logistic": largest,
            "mahalanobis": -distances,
            "confidence": sure,
        }
        for name, values in told.items():
            areas[name].append(auroc(values[~absent], values[absent]))
        errors.append((_error(np.ones(len(sure)), absent), _error(sure, absent)))
        refused.append(float(np.mean([not answers[at].answered for at in np.flatnonzero(~absent)])))
    what = f"No answer, {WITHHELD} intents withheld, AUROC: "
    yield row_of("no-answer.frozen", what + "frozen similarity", _pooled(areas["frozen"]))
    title = what + "logistic regression at its temperature"
    yield row_of("no-answer.logistic", title, _pooled(areas["logistic"]))
    row = row_of("no-answer.mahalanobis", what + "Mahalanobis", _pooled(areas["mahalanobis"]))
    relative = ", relative" if shape.relative else ""
    yield row._replace(note=f"shrinkage {shape.shrinkage:g}{relative}")
    row = row_of("no-answer.confidence", what + "confidence", _pooled(areas["confidence"]))
    yield row.wanted(">=", 0.94)._replace(note=f"{draws} draws: {', '.join(notes)}")
    yield Row("no-answer.own", "  at 5%: own questions refused", float(np.mean(refused)))
    before, after = np.mean(errors, axis=0).tolist()
    yield Row("no-answer.error_before", "  calibration error of the confidence before", before)
    yield Row("no-answer.error_after", "  after a training", after).wanted("<=", before)


def _error(sure: Float64, absent: Bool) -> float:
    """The calibration error of the confidence, where one query in ten has no answer."""
    counts = np.where(absent, SHARES[1] / absent.mean(), SHARES[0] / (~absent).mean())
    return calibration_error(sure, (~absent).astype(np.float64), counts)


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=2000, C=10)


# -- the Mahalanobis distance ---------------------------------------------------------------


def _chosen(memory: Labelled, known: Float32) -> Shape:
    """The shape that tells withheld intents best in a division of the memory."""
    random = np.random.default_rng(SEED)
    labels = np.array(memory.labels)
    held = random.random(len(labels)) < HELD_OUT
    absent = np.isin(labels, random.choice(np.unique(labels), WITHHELD, replace=False))
    part = ~held & ~absent

    def area(shape: Shape) -> float:
        values = -_distances(labels[part].tolist(), known[part], known[held], shape)
        return auroc(values[~absent[held]], values[absent[held]])[0]

    shapes = itertools.starmap(Shape, itertools.product(SHRINKAGES, (False, True)))
    return max(shapes, key=area)


def _distances(labels: Sequence[str], known: Float32, wanted: Float32, shape: Shape) -> Float64:
    """The squared distance of each query (q, d) from the nearest class mean of texts (m, d)."""
    names, place = np.unique(labels, return_inverse=True)
    means = np.stack([known[place == at].mean(axis=0) for at in range(len(names))])
    nearest = _squared(known - means[place], wanted, means, shape.shrinkage).min(axis=1)
    if not shape.relative:
        return nearest
    middle = known.mean(axis=0, keepdims=True)
    return nearest - _squared(known - middle, wanted, middle, shape.shrinkage)[:, 0]


def _squared(residuals: Float32, wanted: Float32, means: Float32, shrinkage: float) -> Float64:
    """(q, c): squared distances under the covariance of residuals (m, d)."""
    covariance = residuals.T.astype(np.float64) @ residuals / len(residuals)
    width = len(covariance)
    usual = np.trace(covariance) / width * np.eye(width)
    inverse = np.linalg.inv((1 - shrinkage) * covariance + shrinkage * usual)
    by_query = np.einsum("qd,qd->q", wanted @ inverse, wanted)
    by_class = np.einsum("cd,cd->c", means @ inverse, means)
    return np.asarray(by_query[:, None] - 2 * wanted @ inverse @ means.T + by_class)


# -- telling apart --------------------------------------------------------------------------


def auroc(higher: Float64, lower: Float64, level: float = 0.95) -> Interval:
    """The chance that one of `higher` (m,) exceeds one of `lower` (n,), ties half.

    The interval is DeLong's (DeLong, DeLong and Clarke-Pearson 1988).
    """
    above = _placements(higher, lower)
    below = 1 - _placements(lower, higher)
    area = float(above.mean())
    spread = above.var(ddof=1) / len(above) + below.var(ddof=1) / len(below)
    reach = float(norm.ppf((1 + level) / 2) * np.sqrt(spread))
    return Interval(area, max(0.0, area - reach), min(1.0, area + reach))


def _placements(values: Float64, others: Float64) -> Float64:
    """For each value the share of the others that it exceeds, ties half."""
    ordered = np.sort(others)
    under, upto = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((under + upto) / (2 * len(others)))


def _pooled(found: Sequence[Interval]) -> Interval:
    """The mean; its bounds are the means of theirs, as if all draws erred alike."""
    return Interval(*(float(np.mean(part)) for part in zip(*found, strict=True)))


RANKINGS = ("scifact", "conala")

OWN_REFUSED, RECOGNISED = 0.07, 0.95


class Asked(NamedTuple):
    """A collection to be opened, and the questions that belong to it, with their intents."""

    title: str
    collection: AbstractContextManager[Collection]
    questions: Sequence[str]
    intents: Sequence[str] = ()


def foreign(bench: Bench) -> Iterator[Row]:
    """Ask each collection its own questions and those of the others."""
    sets = {name: _set(bench, name) for name in (*RANKINGS, "banking77")}
    for name, asked in sets.items():
        title, questions = asked.title, asked.questions
        with asked.collection as collection:
            _made_again(collection)
            own = _refused(collection, questions)
            others = {
                other.title: _refused(collection, other.questions)
                for key, other in sets.items()
                if key != name
            }
            what = f"{title}, no labels, at {ERROR_RATE:.0%}: own questions refused"
            row = row_of(f"foreign.{name}.own", what, mean_interval(own), own.tolist())
            yield row.wanted("<=", OWN_REFUSED)
            for other, refused in others.items():
                what = f"  questions of {other} recognised as foreign"
                row = row_of(f"foreign.{name}.{other}", what, mean_interval(refused))
                yield row.wanted(">=", RECOGNISED)
            yield from _halves(name, collection, asked)


def _set(bench: Bench, name: str) -> Asked:
    if name in RANKINGS:
        judged = ranking_set(bench.options.sets, name, rehearse=bench.options.rehearse)
        return Asked(TITLES[name], bench.workshop.beir(judged), list(judged.test.queries.values()))
    memory, asked = banking(bench)
    return Asked("banking77", remembered(bench, memory), asked.texts, asked.labels)


def _halves(name: str, collection: Collection, asked: Asked) -> Iterator[Row]:
    """Keep the documents of one topic, and ask the questions of both."""
    leaving, topic = (_by_intent if asked.intents else _by_meaning)(collection, asked)
    collection.delete(leaving)
    _made_again(collection)
    refused = _refused(collection, asked.questions)
    for half, what in enumerate(("own questions refused", "those of the other half recognised")):
        told = refused[topic == half]
        label = f"  half of it by topic: {what}"
        yield row_of(f"foreign.{name}.half{half}", label, mean_interval(told))


def _by_intent(collection: Collection, asked: Asked) -> tuple[list[str], Int64]:
    """The ids of the documents with one half of the intents, and the half of each question."""
    intents = np.random.default_rng(SEED).permutation(sorted(set(asked.intents)))
    second = set(intents[len(intents) // 2 :].tolist())
    rows = collection.views.current().keys.rows
    documents = collection.store.documents(rows, texts=False).values()
    leaving = [document.id for document in documents if document.value in second]
    return leaving, np.array([intent in second for intent in asked.intents], dtype=np.int64)


def _by_meaning(collection: Collection, asked: Asked) -> tuple[list[str], Int64]:
    """The ids of the documents of one of two clusters, and the cluster of each question."""
    from sklearn.cluster import KMeans

    table = collection.store.own_keys(collection.views.current().keys.rows)
    topics = KMeans(2, n_init=4, random_state=SEED).fit(table.vectors)
    leaving = np.unique(table.documents[topics.labels_ == 1])
    documents = collection.store.documents(leaving, texts=False).values()
    topic = topics.predict(encoder(DEFAULT).encode_queries(list(asked.questions)))
    return [document.id for document in documents], np.asarray(topic, dtype=np.int64)


def _refused(collection: Collection, questions: Sequence[str]) -> Float64:
    """Return 1 where the collection says that nothing in it answers (q,)."""
    answers = asked_of(collection, questions, {"min_confidence": None, "mode": "hard"})
    return np.array([not answer.answered for answer in answers], dtype=np.float64)


def _made_again(collection: Collection) -> None:
    """Make the test of the documents that there are, whatever was stored."""
    collection.store.put_settings({SETTING: None}, soon=False)
    collection.publish()
