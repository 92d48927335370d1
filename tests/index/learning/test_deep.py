"""A change of the encoder for queries: learned, judged, stored, and used by searches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attend import Data
from attend.core.errors import InvalidRequest
from attend.encoder import load
from attend.encoder.loading import find
from attend.learning import ranking_model, selection, train
from attend.learning.ranking import RankingChoice
from attend.learning.task import PromotionVerdict
from attend.projection import Projection

torch = pytest.importorskip("torch")
forward = pytest.importorskip("attend.encoder.forward")

ANIMALS = ["cat", "dog", "horse", "cow", "sheep", "goat", "hen", "duck", "bee", "frog", "mouse"]
PLACES = ["farm", "town", "river"]
TEXTS = ["a short text", "one that is a good deal longer, so that there is padding", "bell"]


def drawn(tuning: Any, seed: int = 1, size: float = 0.02) -> Any:
    """Numbers as a training could leave them."""
    noise = torch.randn(len(tuning.numbers), generator=torch.Generator().manual_seed(seed))
    return (tuning.numbers.detach() + size * noise).requires_grad_()


def embedded(tuning: Any) -> Any:
    return tuning(np.arange(len(TEXTS)), torch.zeros(len(TEXTS), 384))


def test_at_first_it_changes_nothing() -> None:
    encoder = load(precision="float32")
    tuning = encoder.query_tuning([*TEXTS, None], 0)
    np.testing.assert_allclose(
        embedded(tuning).detach().numpy(), encoder.encode_queries(TEXTS), atol=2e-6
    )
    # What is a vector stays one.
    vector = torch.full((1, 384), 0.5)
    assert torch.equal(tuning(np.array([len(TEXTS)]), vector), vector)
    np.testing.assert_allclose(
        encoder.tuned(tuning.learned()).encode_queries(TEXTS),
        encoder.encode_queries(TEXTS),
        atol=2e-6,
    )


def test_what_is_learned_is_what_is_served_and_what_the_library_computes() -> None:
    """The products B A, added to the weights of the library's model."""
    from sentence_transformers import SentenceTransformer

    encoder = load(precision="float32")
    tuning = encoder.query_tuning([*TEXTS, None], 0)
    tuning.numbers = drawn(tuning)
    ours = embedded(tuning).detach().numpy()
    served = encoder.tuned(tuning.learned()).encode_queries(TEXTS)
    np.testing.assert_allclose(served, ours, atol=5e-6)
    assert np.abs(served - encoder.encode_queries(TEXTS)).max() > 0.01

    model = SentenceTransformer(find("all-MiniLM-L6-v2").place, device="cpu")
    at, numbers, rank = 0, tuning.learned(), forward.RANK
    for layer in model[0].auto_model.encoder.layer:
        reader = layer.attention.self
        for modules in (
            [reader.query, reader.key, reader.value],
            [layer.attention.output.dense],
            [layer.intermediate.dense],
            [layer.output.dense],
        ):
            inputs, outputs = modules[0].in_features, sum(each.out_features for each in modules)
            a = numbers[at : at + rank * inputs].reshape(rank, inputs)
            at += rank * inputs
            b = numbers[at : at + outputs * rank].reshape(outputs, rank)
            at += outputs * rank
            parts = np.split(b @ a, len(modules))
            for module, part in zip(modules, parts, strict=True):
                module.weight.data += torch.from_numpy(part)
    assert at == len(numbers)
    theirs = model.encode_query(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(served, theirs, atol=5e-6)


def test_the_gradient_is_that_of_the_embeddings() -> None:
    """Against differences of the loss, along the gradient and along a drawn direction."""
    tuning = load(precision="float32").query_tuning([*TEXTS, None], 0)
    tuning.numbers = drawn(tuning)
    goal = torch.nn.functional.normalize(
        torch.randn(len(TEXTS), 384, generator=torch.Generator().manual_seed(2)), dim=1
    )
    (embedded(tuning) * goal).sum().backward()
    at, gradient = tuning.numbers.detach().clone(), tuning.numbers.grad.clone()
    other = torch.randn(len(at), generator=torch.Generator().manual_seed(3))
    for direction in (gradient, other):
        direction = direction / direction.norm()
        sides = []
        for step in (0.05, -0.05):
            tuning.numbers = at + step * direction
            with torch.no_grad():
                sides.append(float((embedded(tuning) * goal).sum()))
        expected = float(gradient @ direction)
        assert (sides[0] - sides[1]) / 0.1 == pytest.approx(expected, rel=0.02, abs=2e-4)


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Questions that are answered by another animal than they name."""
    quick = replace(ranking_model.DEEP, steps=(8, 8), batch=16, epochs=1, drop=0.0)
    monkeypatch.setattr("attend.learning.ranking.DEEP", quick)
    data = Data(tmp_path / "data")
    collection = data.create("farm")
    names = [f"{animal} at the {place}" for animal in ANIMALS for place in PLACES]
    collection.upsert({"id": name, "text": f"The {name} is here."} for name in names)
    collection.teach(
        {"query": f"where is the {name} today", "id": names[(place + len(PLACES)) % len(names)]}
        for place, name in enumerate(names)
    )
    yield collection
    data.close()


def chosen(monkeypatch: pytest.MonkeyPatch, choice: RankingChoice) -> None:
    """Whatever was tried, this is chosen, and promoted."""
    verdict = PromotionVerdict(True, "as the test has it", {"mix": {"before": 0.0, "after": 1.0}})
    monkeypatch.setattr(selection, "contest", lambda *given, **named: (choice, [], []))
    monkeypatch.setattr(selection, "decide", lambda *given, **named: verdict)


def test_a_search_asks_by_the_learned_encoder(farm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, RankingChoice(1.0, deep=0.5))
    report = train(farm, deep=True, parts=["matrices"])
    assert report["promoted"]
    assert report["chosen"]["deep"] == 0.5
    assert report["chosen"]["recipe"] == "query encoder"
    projection = Projection.from_bytes(farm.store.version(report["version"]).weights)
    assert projection.deep is not None
    text, document = "where is the cat at the farm today", "dog at the farm"
    plain, changed = farm.encoder(), farm.encoder().tuned(projection.deep)
    (key,) = projection.keys(plain.encode_documents([f"The {document} is here."]))
    for encoder, is_served in ((changed, True), (plain, False)):
        (query,) = projection.queries(encoder.encode_queries([text]))
        answer = farm.search(text, k=50, memory=0.0, lexical=False, scale=1.0)
        score = next(hit.score for hit in answer.hits if hit.id == document)
        assert (score == pytest.approx(float(query[0] @ key[0]), abs=1e-3)) == is_served
    # What is no text of a query is asked as it was.
    (vector,) = plain.encode_queries([text])
    (query,) = projection.queries(vector[None])
    by_vector = farm.search(vector.tolist(), k=50, scale=1.0)
    score = next(hit.score for hit in by_vector.hits if hit.id == document)
    assert score == pytest.approx(float(query[0] @ key[0]), abs=1e-3)
    # Feedback is found by the query as it was, and moves it besides.
    moved = farm.search(text, k=50, memory=0.5, explain=True)
    assert moved.memory[0].query == text
    assert moved.hits[0].explanation["memory"] != 0


def test_a_version_stands_trial_with_its_encoder(
    farm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next training fits it anew, without the questions that judge."""
    with monkeypatch.context() as patched:
        chosen(patched, RankingChoice(0.6, deep=1.0))
        train(farm, deep=True)
    learned: list[int] = []
    fit = ranking_model.RankingModel.fit

    def counted(model: Any, watch: Any) -> Any:
        learned.append(model.deep is not None)
        return fit(model, watch)

    monkeypatch.setattr(ranking_model.RankingModel, "fit", counted)
    train(farm)
    assert any(learned)
    assert not all(learned)


def test_what_it_cannot_learn_of_is_refused(tmp_path: Path, farm: Any) -> None:
    with pytest.raises(InvalidRequest, match="together with matrices"):
        train(farm, deep=True, parts=["words"])
    with pytest.raises(InvalidRequest, match="deep is for the objective ranking"):
        train(farm, deep=True, objective="interactions")
    data = Data(tmp_path / "vectors")
    vectors = data.create("v", dimension=3)
    vectors.upsert([{"id": "a", "vector": [1.0, 0.0, 0.0]}])
    with pytest.raises(InvalidRequest, match="holds vectors and has none"):
        train(vectors, deep=True)
    data.close()
    encoder = load()
    with pytest.raises(InvalidRequest, match="another encoder than 'all-MiniLM-L6-v2'"):
        encoder.tuned(np.zeros(7, dtype=np.float32))
