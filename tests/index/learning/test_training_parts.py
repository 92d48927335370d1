"""The parts of a training: what it scores is what search scores, and what is left out stays out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend.collection.data import Data
from attend.collection.versions import Version
from attend.core.errors import InvalidRequest
from attend.core.types import Example
from attend.learning import ranking, selection, train
from attend.learning.data import UNIT_SCALE, answerable, start_of
from attend.learning.fit import run_parallel, unlearned
from attend.learning.ranking import MEASURE, RankingChoice
from attend.learning.ranking_model import RankingModel, find_candidates, read_questions
from attend.learning.task import PromotionVerdict
from attend.projection import Projection
from attend.store import USED
from attend.write.feedback import add_feedback
from tests.index.helpers import several_keys, vector_data
from tests.index.learning.planted import WIDTH, Planted, answers, teach_vectors, versions
from tests.index.world import WORDS, words

# -- what training scores is what search scores ----------------------------------------------------


def text_world(folder: Path, encoder: Any, scorer: str):
    """Documents of two fields, and questions in words of some of them."""
    rng = np.random.default_rng(7)
    collection = Data(folder, load_encoder=lambda name: encoder).create(scorer=scorer)
    fields = [{"title": words(rng, 3), "body": words(rng, 9)} for _ in range(40)]
    collection.upsert([{"id": f"d{at}", "fields": each} for at, each in enumerate(fields)])
    texts = sorted({" ".join(rng.choice(WORDS, 3)) + f" {at % 5}" for at in range(36)})
    pairs = [(text, int(rng.integers(40)), 1.0) for text in texts]
    pairs += [(text, int(rng.integers(40)), 2.0) for text in texts[:9]]
    pairs += [(text, int(rng.integers(40)), -1.0) for text in texts[5:9]]
    add_feedback(
        collection, [{"query": q, "id": f"d{at}", "label": label} for q, at, label in pairs]
    )
    return collection, [{"text": text} for text in texts]


def vector_world(folder: Path, encoder: Any, scorer: str):
    """Documents of one to three keys of any length, without words."""
    rng = np.random.default_rng(8)
    collection = vector_data(folder).create(dimension=WIDTH, scorer=scorer)
    lengths = rng.uniform(0.5, 2, 40)
    collection.upsert(
        [
            several_keys(f"d{at}", length * rng.normal(size=(1 + at % 3, WIDTH)))
            for at, length in enumerate(lengths)
        ]
    )
    queries = rng.normal(size=(30, WIDTH)).astype(np.float32)
    teach_vectors(collection, queries, rng.integers(0, 40, 30))
    return collection, [{"vector": query.tolist()} for query in queries]


CHOICES = {
    "nothing": RankingChoice(0.0),
    "learned": RankingChoice(0.6),
    "examples": RankingChoice(0.0, 0.8),
    "everything": RankingChoice(0.6, 0.8, 0.5, 1.0),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("scorer", ["dot", "cosine"])
@pytest.mark.parametrize("made", [text_world, vector_world])
def test_what_training_scores_is_what_search_scores(
    made, scorer, choice, tmp_path, tiny_encoder, quick, monkeypatch
):
    collection, queries = made(tmp_path, tiny_encoder, scorer)
    forced(monkeypatch, CHOICES[choice])
    parts = ["matrices", "offsets", "examples", "words"]
    report = train(collection, dimensions=5 if choice == "learned" else None, parts=parts)
    assert report["promoted"]
    version = collection.store.version(report["version"])
    expected = held_in(collection, CHOICES[choice])  # (q, n)
    assert (len(version.offsets[0]) > 0) == (CHOICES[choice].share > 0)
    (scale,) = version.tuning["scale"]
    ids = [each.id for each in collection.page(limit=40).documents]
    for query, row in zip(queries, expected, strict=True):
        answer = collection.search(query, attend="all", k=40)
        found = {hit.id: hit.score / scale for hit in answer.hits}
        np.testing.assert_allclose([found[id] for id in ids], row, atol=1e-4)


def forced(monkeypatch, choice: RankingChoice) -> None:
    """Whatever was tried, this is chosen, and promoted."""
    figures = {"before": 0.0, "after": 1.0}
    verdict = PromotionVerdict(True, "as the test has it", {"mix": figures})
    monkeypatch.setattr(selection, "contest", lambda *given, **named: (choice, [], []))
    monkeypatch.setattr(selection, "decide", lambda *given, **named: verdict)


def held_in(collection, choice: RankingChoice) -> np.ndarray:
    """Scores (q, n) by attend.learning of all questions, under the choice fitted to all of them."""
    material = read_questions(collection, -1, 0)
    memory, questions = material.memory, material.questions
    start = start_of(memory, 5 if choice is CHOICES["learned"] else None)
    known = questions.some(answerable(questions))

    def fit(watch):
        return RankingModel(memory, known, ranking.RECIPE, start, seed=0, offsets=True).fit(watch)

    fitted = unlearned(memory, start)
    if choice.share:
        (fitted,) = run_parallel([fit], lambda done: None)
    mixed = fitted.mixed(start, choice.share)
    (found,) = find_candidates(memory, mixed, questions, questions)
    scored = found.scores(*choice[1:4])
    dense = np.full((questions.count, len(memory)), np.nan)
    for at, documents in enumerate(found.documents):
        dense[at, documents[documents >= 0]] = scored[at][documents >= 0]
    assert np.isfinite(dense).all()
    return dense


def test_weights_are_as_true_whatever_unit_vectors_are_in(tmp_path, quick, monkeypatch):
    """Dot products of vectors a hundred times as long are ten thousand times as large."""
    forced(monkeypatch, CHOICES["nothing"])
    losses = []
    for times in (1.0, 100.0):
        planted = Planted(3, 60, 0.0, 0.1)
        collection = vector_data(tmp_path / str(times)).create(dimension=WIDTH)
        rows = (3 * times * planted.documents).tolist()
        collection.upsert([{"id": f"d{at}", "vector": each} for at, each in enumerate(rows)])
        teach_vectors(collection, planted.asked(range(40)) * 3 * times, range(40))
        losses.append(train(collection)["calibration"]["nll_after"])
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


# -- what is asked for -----------------------------------------------------------------------------


def test_parts_that_are_not_asked_for_take_no_part(small):
    _, collection = small
    report = train(collection, parts=["matrices"], promote=False)
    chosen = report["chosen"]
    assert (chosen["examples"], chosen["lexical"], chosen["parts"]) == (0, 0, ["matrices"])
    assert chosen["recipe"] != "none"
    stored = collection.store.version(report["version"])
    assert len(stored.offsets[0]) == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"parts": ["offsets", "words"]}, "learned together with matrices; add matrices"),
        ({"objective": "answers", "parts": ["matrices"]}, "train for ranking"),
        ({"parts": []}, "parts"),
        ({"parts": ["heads"]}, "parts"),
        ({"heads": 0}, "heads"),
        ({"heads": 2}, "heads"),
        ({"parts": ["additive"]}, "parts"),
    ],
)
def test_parts_that_cannot_be_learned_are_refused(small, fields, said):
    _, collection = small
    with pytest.raises(InvalidRequest, match=said):
        train(collection, **fields)
    assert versions(collection) == [(1, True)]


def test_confidence_is_fitted_to_what_somebody_judged(small):
    """What was used was shown: a fit to it would take other queries for answered, too."""
    planted, collection = small
    collection.store.delete_examples()

    def add(source: str, which: range) -> None:
        queries = planted.asked(which).tolist()
        pairs = zip(queries, which, strict=True)
        add_feedback(collection, [Example(q, f"d{at}", 1.0, None, source) for q, at in pairs])

    def calibrated() -> tuple[int, float, float | None]:
        report = train(collection, promote=False)
        tuning = collection.store.version(report["version"]).tuning
        figures = report["calibration"]
        assert (tuning.get("threshold") is None) == (tuning.get("null") is None)
        assert ("somebody labelled" in (figures["note"] or "")) == (tuning.get("null") is None)
        (scale,) = tuning["scale"]
        return figures["questions"], scale, tuning.get("null")

    add(USED, range(60))
    add("given", range(60, 79))
    untrained = UNIT_SCALE, None
    assert calibrated() == (0, *untrained)
    add("given", range(79, 80))
    few, scale, null = calibrated()
    assert (scale, null) != untrained
    add("given", range(60))  # in other words, of the same documents
    assert few == 20 * 2  # once with known documents, and once with new ones
    assert calibrated()[0] == 80 * 2


def test_promote_false_stores_and_activates_nothing(small):
    planted, collection = small
    queries = planted.asked(range(10))
    before = answers(collection, queries)
    report = train(collection, promote=False)
    assert report["promoted"] is False
    assert versions(collection) == [(1, True), (report["version"], False)]
    assert collection.projections()[-1].report["promoted"] is False
    assert answers(collection, queries) == before
    assert answers(collection, queries, projection=report["version"]) != before
    collection.activate(report["version"])
    assert collection.search(queries[0].tolist()).projection == report["version"]


def test_narrower_keys(small):
    planted, collection = small
    report = train(collection, dimensions=3, promote=False)
    stored = collection.store.version(report["version"])
    assert Projection.from_bytes(stored.weights).d_k == 3
    assert Version.of(report["version"], stored, "dot").width == 3
    assert report["chosen"]["dimensions"] == 3
    found = answers(collection, planted.asked(range(5)), projection=report["version"])
    assert all(len(hits) == 10 for hits in found)
    with pytest.raises(InvalidRequest, match="dimensions is 9, but embeddings have 8"):
        train(collection, dimensions=WIDTH + 1)


def test_narrower_keys_do_not_promote_a_loss(tmp_path, quick):
    """Frozen answers are right, and two of eight dimensions cannot tell so many documents apart."""
    planted = Planted(4, 100, 0.0, 0.05)
    collection = planted.collection(tmp_path)
    planted.teach(collection, 60)
    report = train(collection, dimensions=2)
    assert not report["promoted"]
    assert report["after"][MEASURE] < report["before"][MEASURE]
    assert versions(collection) == [(1, True), (report["version"], False)]


@pytest.mark.parametrize(
    "fields",
    [{"share_seen": 1.5}, {"dimensions": 0}, {"seed": -1}, {"error_rate": 0}, {"speed": 3}],
)
def test_fields_out_of_range(small, fields):
    with pytest.raises(InvalidRequest, match=next(iter(fields))):
        train(small[1], **fields)
