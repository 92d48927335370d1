"""Hard and soft search on either engine, against a product in float64 and SciPy's softmax."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from scipy.special import softmax

from attend.collection.collection import Collection
from tests.index.helpers import brute_logits, ranked
from tests.milvus.contract import SCALE, Drawn, check, drawn, query

IDS = [f"s{at}" for at in range(40)]


@pytest.fixture(scope="module")
def made(vectors: Collection) -> Mapping[str, Drawn]:
    """Forty documents in the shared collection, and nothing else."""
    vectors.delete(sorted(vectors.ids()))
    found = drawn(IDS, 17)
    vectors.upsert([each.document for each in found.values()])
    return found


def keys(made: Mapping[str, Drawn], colour: str | None = None) -> dict[str, np.ndarray]:
    return {id: each.keys for id, each in made.items() if colour in (None, each.colour)}


@pytest.mark.parametrize("pool", ["max", "sum"])
@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_scores_and_weights(
    vectors: Collection, made: Mapping[str, Drawn], pool: str, temperature: float
) -> None:
    asked = query(1)
    answer = vectors.search(asked, k=100, pool=pool, temperature=temperature)
    check(answer, keys(made), asked, pool=pool, temperature=temperature)
    assert sum(hit.weight for hit in answer.hits) == pytest.approx(1.0)


@pytest.mark.parametrize("attend", [1, 3, 10])
def test_only_the_attended_share_the_weights(
    vectors: Collection, made: Mapping[str, Drawn], attend: int
) -> None:
    asked = query(2)
    check(vectors.search(asked, k=attend, attend=attend), keys(made), asked, attend=attend)


def test_k_and_offset_list_and_do_not_weigh(vectors: Collection, made: Mapping[str, Drawn]) -> None:
    whole = vectors.search(query(3), k=20)
    part = vectors.search(query(3), k=4, offset=5)
    assert [hit.id for hit in part.hits] == [hit.id for hit in whole.hits[5:9]]
    np.testing.assert_allclose(
        [hit.weight for hit in part.hits], [hit.weight for hit in whole.hits[5:9]], atol=1e-9
    )


def test_diversity_reorders_by_the_likeness_of_the_keys(
    vectors: Collection, made: Mapping[str, Drawn]
) -> None:
    """Maximal marginal relevance as a plain loop over the means of keys."""
    whole = vectors.search(query(3), k=20, attend=20)
    scores = np.array([hit.score for hit in whole.hits])
    relevance = (scores - scores.min()) / np.ptp(scores)
    means = np.array([made[hit.id].keys.astype(np.float64).mean(axis=0) for hit in whole.hits])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    order: list[int] = []
    for _ in range(8):
        likeness = (means @ means[order].T).max(axis=1) if order else np.zeros(20)
        gains = 0.4 * relevance - 0.6 * likeness
        gains[order] = -np.inf
        order.append(int(np.argmax(gains)))
    answer = vectors.search(query(3), k=8, attend=20, diversity=0.6)
    assert [hit.id for hit in answer.hits] == [whole.hits[place].id for place in order]
    assert order != list(range(8))
    assert answer.answer == whole.answer


@pytest.mark.parametrize("colour", ["red", "blue", "green", "none"])
def test_a_filtered_search_attends_to_all_that_pass(
    vectors: Collection, made: Mapping[str, Drawn], colour: str
) -> None:
    asked = query(4)
    answer = vectors.search(asked, k=100, filter={"colour": colour})
    check(answer, keys(made, colour), asked)


def test_a_mask_leaves_out_and_keeps(vectors: Collection, made: Mapping[str, Drawn]) -> None:
    asked, some = query(5), IDS[3:9]
    without = {id: each for id, each in keys(made).items() if id not in some}
    check(vectors.search(asked, k=100, mask={"exclude": some}), without, asked)
    only = {id: each for id, each in keys(made).items() if id in some}
    check(vectors.search(asked, k=100, mask={"only": some}), only, asked)


def test_a_hard_answer_is_the_best_documents_value(
    vectors: Collection, made: Mapping[str, Drawn]
) -> None:
    asked = query(6)
    best = ranked(brute_logits(asked, keys(made), scale=SCALE), 1)[0]
    assert vectors.search(asked).hits[0].value == made[best].value


def test_a_soft_answer_is_the_weighted_mean(vectors: Collection, made: Mapping[str, Drawn]) -> None:
    asked = query(7)
    logits = brute_logits(asked, keys(made), scale=SCALE)
    attended = ranked(logits, 15)
    weights = softmax([logits[id] for id in attended])
    values = np.array([made[id].value for id in attended])
    mean = float(weights @ values)
    answer = vectors.search(asked, attend=15, mode="soft").answer
    assert answer["mean"] == pytest.approx(mean, abs=1e-4)
    assert answer["std"] == pytest.approx(np.sqrt(weights @ (values - mean) ** 2), abs=1e-4)
    assert answer["coverage"] == pytest.approx(1.0)


def test_a_soft_answer_over_labels_is_a_distribution(
    vectors: Collection, made: Mapping[str, Drawn]
) -> None:
    asked = query(8)
    logits = brute_logits(asked, keys(made), scale=SCALE)
    weights = dict(zip(IDS, softmax([logits[id] for id in IDS]), strict=True))
    shares = {
        colour: sum(weights[id] for id, each in made.items() if each.colour == colour)
        for colour in ("red", "blue", "green")
    }
    found = vectors.search(asked, mode="soft", value="colour").answer["distribution"]
    assert found == pytest.approx(shares, abs=1e-6)


def test_a_query_by_document_leaves_that_document_out(
    vectors: Collection, made: Mapping[str, Drawn]
) -> None:
    one_key = next(id for id, each in made.items() if len(each.keys) == 1)
    answer = vectors.search({"id": one_key}, k=100)
    others = {id: each for id, each in keys(made).items() if id != one_key}
    check(answer, others, made[one_key].keys[0].tolist())


def test_a_blend_is_the_weighted_mean_of_its_parts(
    vectors: Collection, made: Mapping[str, Drawn]
) -> None:
    one, other = np.array(query(10)), np.array(query(11))
    parts = [{"vector": one.tolist(), "weight": 3}, {"vector": other.tolist(), "weight": 1}]
    answer = vectors.search({"blend": parts}, k=100)
    check(answer, keys(made), ((3 * one + other) / 4).tolist())


def test_a_batch_answers_as_its_queries_do_alone(
    vectors: Collection, made: Mapping[str, Drawn]
) -> None:
    from attend.api.base import parse
    from attend.api.search import SearchRequest

    asked = [query(20 + at) for at in range(5)]
    answers = vectors.search_many([parse(SearchRequest, {"query": q, "k": 100}) for q in asked])
    for each, answer in zip(asked, answers, strict=True):
        check(answer, keys(made), each)


@pytest.mark.parametrize("scorer", ["cosine", "laplace"])
def test_another_scorer_is_exact_or_says_that_it_is_not(
    vectors: Collection, made: Mapping[str, Drawn], scorer: str
) -> None:
    asked = query(12)
    answer = vectors.search(asked, k=100, scorer=scorer)
    scale = 20.0 if scorer == "cosine" else 1.0
    logits = brute_logits(asked, keys(made), scorer=scorer, scale=scale)
    for hit in answer.hits:
        assert hit.score == pytest.approx(logits[hit.id], rel=1e-4, abs=1e-4)
    best = ranked(logits, 100)
    if answer.exact:
        assert [hit.id for hit in answer.hits] == best
    # Fewer than are attended: the candidates are all there are, and so are the scored.
    assert {hit.id for hit in answer.hits} == set(best)
