"""Rows of answers: categories as soft answers, and confidence that knows when there is none."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import data_set, progress
from learning_contest import difference, unit
from learning_rows import Row, difference_row, not_behind, row_of
from learning_sets import HELD_OUT, SEED, Bench, encoder, trained
from scipy.stats import norm

from attend import Collection, Document
from attend.api.base import parse
from attend.api.search import MAX_BATCH, SearchRequest
from attend.encoder import DEFAULT
from attend.measure.statistics import Interval, mean_interval, reliability
from attend.types import Bool, Float32, Float64

WITHHELD = 15
"""Of banking77's intents, in each of DRAWS."""

DRAWS = 3

QUICK_MEMORY = 2_000

BATCH = 1_000


class Labelled(NamedTuple):
    """Texts with their categories."""

    texts: Sequence[str]
    labels: Sequence[str]

    def some(self, chosen: Bool) -> Labelled:
        at = np.flatnonzero(chosen).tolist()
        return Labelled([self.texts[i] for i in at], [self.labels[i] for i in at])


class Guess(NamedTuple):
    """What a contestant says of each text: whether it is right, and how sure it is."""

    correct: Float64  # (q,)
    sure: Float64  # (q,)

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
        yield Row("banking77.seconds", "  seconds of train", run.seconds)
    if not bench.options.peers:
        return
    peers = dict[str, Guess]()
    for name, peer in PEERS.items():
        progress(f"banking77: fitting {name}")
        peers[name] = peer(memory, asked, tune=not bench.options.quick)
        yield from _guess_rows(f"banking77.{name}", f"banking77, {name}", peers[name])
    best = max(peers, key=lambda name: peers[name].correct.mean())
    found = difference(ours.correct, peers[best].correct)
    row = difference_row("banking77.over_best", f"banking77, trained less {best}", found)
    yield not_behind(row, found.p)


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
    """The category of the largest share of each soft answer, and that share."""
    correct, sure = [], []
    for answer, label in zip(asked_of(collection, asked.texts, options), asked.labels, strict=True):
        found = answer.answer["distribution"]
        best = next(iter(found), None)
        correct.append(best == label)
        sure.append(found[best] if best is not None else 0.0)
    return Guess(np.array(correct, dtype=np.float64), np.array(sure, dtype=np.float64))


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
    return _guess(model.fit(known, memory.labels), wanted, asked.labels)


def logistic_with_words(memory: Labelled, asked: Labelled, *, tune: bool) -> Guess:
    from scipy.sparse import csr_array, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    known = hstack([csr_array(embedded(memory.texts)), words.fit_transform(memory.texts)]).tocsr()
    wanted = hstack([csr_array(embedded(asked.texts)), words.transform(asked.texts)]).tocsr()
    model = _tuned(LogisticRegression(max_iter=2000, C=10), {"C": [3, 10, 30]}, tune)
    return _guess(model.fit(known, memory.labels), wanted, asked.labels)


def support_vectors(memory: Labelled, asked: Labelled, *, tune: bool) -> Guess:
    """Right or wrong by its own prediction; how sure by a softmax at a fitted temperature."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.svm import SVC

    known, wanted = embedded(memory.texts), embedded(asked.texts)
    model = _tuned(SVC(C=10), {"C": [3, 10, 30]}, tune).fit(known, memory.labels)
    settled = model.best_estimator_ if tune else model
    calibrated = CalibratedClassifierCV(settled, method="temperature", ensemble=False, cv=3)
    sure = calibrated.fit(known, memory.labels)
    correct = model.predict(wanted) == np.array(asked.labels)
    return Guess(correct.astype(np.float64), sure.predict_proba(wanted).max(axis=1))


PEERS: dict[str, Callable[..., Guess]] = {
    "logistic regression": logistic,
    "RBF-SVM": support_vectors,
    "logistic regression with tf-idf": logistic_with_words,
}


def _tuned(model: Any, grid: dict[str, list[float]], tune: bool) -> Any:
    """The model, its numbers chosen by cross-validation within the memory."""
    from sklearn.model_selection import GridSearchCV

    return GridSearchCV(model, grid, cv=3) if tune else model


def _guess(model: Any, wanted: Any, labels: Sequence[str]) -> Guess:
    shares = model.predict_proba(wanted)  # (q, c)
    correct = model.classes_[shares.argmax(axis=1)] == np.array(labels)
    return Guess(correct.astype(np.float64), shares.max(axis=1))


def embedded(texts: Sequence[str]) -> Float32:
    """As queries of the collection's encoder; MiniLM has no prompts that tell them apart."""
    return unit(encoder(DEFAULT).encode_queries(list(texts)))


# -- "no answer" ----------------------------------------------------------------------------


def no_answer(bench: Bench) -> Iterator[Row]:
    """Whether confidence tells queries whose intent the memory lacks from the others."""
    memory, asked = banking(bench)
    intents = sorted(set(memory.labels))
    draws = 1 if bench.options.quick else DRAWS
    frozen, ours, notes = list[Interval](), list[Interval](), list[str]()
    for seed in range(draws):
        hidden = np.random.default_rng(seed).choice(intents, WITHHELD, replace=False)
        absent = np.isin(asked.labels, hidden)
        with remembered(bench, memory) as collection:
            collection.delete([str(at) for at in np.flatnonzero(np.isin(memory.labels, hidden))])
            untrained = collection.store.state().projection
            similar = {"projection": untrained, "lexical": False, "scale": 1.0}
            scores = [a.hits[0].score for a in asked_of(collection, asked.texts, similar)]
            run = trained(collection, objective="answers")
            sure = [a.confidence for a in asked_of(collection, asked.texts, {})]
        notes.append("promoted" if run.report["promoted"] else "not promoted")
        for found, told in ((frozen, scores), (ours, sure)):
            values = np.array(told, dtype=np.float64)
            found.append(auroc(values[~absent], values[absent]))
    what = f"No answer, {WITHHELD} intents withheld, AUROC: "
    yield row_of("no-answer.frozen", what + "frozen similarity", _pooled(frozen))
    row = row_of("no-answer.confidence", what + "confidence", _pooled(ours))
    yield row.wanted(">=", 0.92)._replace(note=f"{draws} draws: {', '.join(notes)}")


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
