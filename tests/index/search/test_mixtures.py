"""Mixtures: parts that attend each by itself, against a float64 loop of the formula."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.core.errors import InvalidRequest, LimitExceeded, UnknownDocument
from attend.projection import Projection
from attend.search import attend as attending
from tests.index.helpers import vector_data
from tests.index.world import World

WIDTH, DOCUMENTS = 4, 60


@pytest.fixture
def collection(tmp_path):
    rng = np.random.default_rng(1)
    data = vector_data(tmp_path)
    made = data.create(dimension=WIDTH, scale=2.0)
    made.upsert(
        [
            {
                "id": f"d{at}",
                "vector": rng.normal(size=WIDTH).tolist(),
                "value": float(at),
                "payload": {"odd": at % 2},
            }
            for at in range(DOCUMENTS)
        ]
    )
    yield made
    data.close()


def keys(collection) -> np.ndarray:
    with collection.store.all_keys() as (_, batches):
        return np.concatenate([each.vectors for each in batches]).astype(np.float64)


def expected(logits: np.ndarray, gates, attend) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(documents, log weights, each head's share of them) of logits (heads, n), masked at -inf.

    The mixture over all chooses the attended set; weights are among that alone.
    """
    with np.errstate(divide="ignore"):
        log_gates = np.log(np.asarray(gates))[:, None]
    over_all = logsumexp(log_softmax(logits, axis=1) + log_gates, axis=0)
    chosen = np.argsort(-over_all, kind="stable")[:attend]
    chosen = chosen[~np.isneginf(over_all[chosen])]
    by_head = log_softmax(logits[:, chosen], axis=1) + log_gates
    mixed = logsumexp(by_head, axis=0)
    order = np.argsort(-mixed, kind="stable")
    return chosen[order], mixed[order], np.exp(by_head - mixed)[:, order]


PARTS = ([1.0, 0, 0, 0], [0, -2.0, 1.0, 0], [0.5, 0.5, 0.5, 3.0])
WEIGHTS = (1.0, 3.0, 0.5)
QUERY = {"mixture": [{"vector": v, "weight": w} for v, w in zip(PARTS, WEIGHTS, strict=True)]}
SHARES = np.array(WEIGHTS) / sum(WEIGHTS)


@pytest.mark.parametrize("attend", ["all", 7, 500])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_mixture_is_the_mean_of_its_parts_attention(collection, attend, filtered):
    options = {"filter": {"odd": 1}} if filtered else {}
    found = collection.search(QUERY, attend=attend, k=7, explain=True, mode="soft", **options)
    logits = 2.0 * np.array(PARTS) @ keys(collection).T
    if filtered:
        logits[:, ::2] = -np.inf
    limit = DOCUMENTS if attend == "all" else attend
    documents, logs, shares = expected(logits, SHARES, limit)
    assert [hit.id for hit in found.hits] == [f"d{at}" for at in documents[:7]]
    np.testing.assert_allclose([hit.score for hit in found.hits], logs[:7], atol=1e-5)
    np.testing.assert_allclose([hit.weight for hit in found.hits], np.exp(logs[:7]), atol=1e-6)
    for hit, share in zip(found.hits, shares.T, strict=False):
        told = {each["part"]: each["weight"] for each in hit.explanation["because"]}
        assert sum(told.values()) == pytest.approx(1)
        np.testing.assert_allclose([told[at] for at in range(3)], share, atol=1e-5)
        assert list(told.values()) == sorted(told.values(), reverse=True)
    assert found.answer["mean"] == pytest.approx(np.exp(logs) @ documents, abs=1e-3)
    assert (found.exact, found.calibrated, found.attended) == (True, None, len(documents))


@pytest.mark.parametrize("scorer", ["dot", "cosine", "laplace"])
@pytest.mark.parametrize("own_keys", [False, True])
def test_each_part_has_all_heads_of_the_projection(collection, scorer, own_keys):
    rng = np.random.default_rng(2)
    w_q = rng.normal(size=(2, 3, WIDTH)).astype(np.float32)
    w_k = rng.normal(size=(2 if own_keys else 1, 3, WIDTH)).astype(np.float32)
    gates = np.array([0.25, 0.75])
    collection.activate(
        collection.add_projection(Projection("given", WIDTH, gates, w_q=w_q, w_k=w_k))
    )
    found = collection.search(QUERY, attend="all", scorer=scorer, scale=1.5, k=DOCUMENTS)
    queries = np.einsum("hdi,pi->phd", w_q.astype(np.float64), np.array(PARTS))
    stored = np.einsum("hdi,ni->nhd", w_k.astype(np.float64), keys(collection))
    stored = np.broadcast_to(stored, (DOCUMENTS, 2, 3))
    if scorer == "laplace":
        logits = -np.abs(queries[:, :, None] - stored.transpose(1, 0, 2)).sum(-1)
    else:
        logits = np.einsum("phd,nhd->phn", queries, stored)
        if scorer == "cosine":
            logits /= np.linalg.norm(queries, axis=-1)[..., None]
            logits /= np.linalg.norm(stored, axis=-1).T
    both = np.outer(SHARES, gates).ravel()
    documents, logs, _ = expected(1.5 * logits.reshape(6, DOCUMENTS), both, DOCUMENTS)
    assert [hit.id for hit in found.hits] == [f"d{at}" for at in documents]
    np.testing.assert_allclose([hit.score for hit in found.hits], logs, atol=1e-4)


def test_values_go_through_the_heads_that_the_parts_share(collection):
    rng = np.random.default_rng(3)
    w_q, w_v = rng.normal(size=(2, WIDTH, WIDTH)), rng.normal(size=(2, 2, WIDTH))
    gates = np.array([0.5, 0.5])
    collection.activate(
        collection.add_projection(Projection("given", WIDTH, gates, w_q=w_q, w_v=w_v))
    )
    found = collection.search(QUERY, attend="all", mode="soft", value="@key", scale=1.0)
    logits = np.einsum("hdi,pi,nd->phn", w_q, np.array(PARTS), keys(collection))
    by_head = np.tensordot(SHARES, np.exp(log_softmax(logits, axis=2)), axes=1)  # (H, n)
    heads = np.einsum("hvd,hn,nd->hv", w_v, by_head, keys(collection))
    np.testing.assert_allclose(found.answer["vector"], heads.ravel(), atol=1e-4)


def test_a_mixture_of_one_part_is_that_query(collection):
    plain = collection.search(list(PARTS[0]), k=20)
    mixed = collection.search({"mixture": [{"vector": list(PARTS[0]), "weight": 7}]}, k=20)
    assert [hit.id for hit in mixed.hits] == [hit.id for hit in plain.hits]
    assert [hit.score for hit in mixed.hits] == pytest.approx([hit.score for hit in plain.hits])


def test_a_part_without_weight_changes_nothing(collection):
    more = {"mixture": [*QUERY["mixture"], {"vector": [9, 9, 9, 9], "weight": 0}]}
    one, other = (collection.search(query, explain=True) for query in (QUERY, more))
    assert [hit.id for hit in other.hits] == [hit.id for hit in one.hits]
    assert [hit.score for hit in other.hits] == pytest.approx([hit.score for hit in one.hits])
    assert other.hits[0].explanation["because"][-1] == {"part": 3, "weight": 0.0}


def test_documents_of_a_mixture_are_masked_and_named(collection):
    query = {"mixture": [{"id": "d3"}, {"id": "d8", "weight": 2}]}
    found = collection.search(query, k=DOCUMENTS, explain=True, attend="all")
    assert {"d3", "d8"} & {hit.id for hit in found.hits} == set()
    assert {each["id"] for each in found.hits[0].explanation["because"]} == {"d3", "d8"}
    assert len(collection.search(query, k=100, attend="all", exclude_self=False).hits) == DOCUMENTS


def test_mixtures_in_a_batch_answer_as_alone(collection):
    asked = [QUERY, list(PARTS[1]), {"mixture": [{"id": "d1"}, {"id": "d2"}]}, QUERY]
    together = collection.search_many([parse(SearchRequest, {"query": each}) for each in asked])
    for query, answer in zip(asked, together, strict=True):
        assert answer.hits == collection.search(query).hits


def test_pages_of_a_mixture_follow_each_other(collection):
    whole = [hit.id for hit in collection.search(QUERY, k=20, attend="all").hits]
    first = collection.search(QUERY, k=8, attend="all")
    second = collection.search(QUERY, k=12, attend="all", cursor=first.next)
    assert [hit.id for hit in [*first.hits, *second.hits]] == whole


@pytest.mark.parametrize("attend", [9, "all"])
def test_the_words_of_each_part_count_for_that_part(tmp_path, tiny_encoder, attend):
    world = World(tmp_path, tiny_encoder)
    world.take("write", range(30))
    search = world.collection.search
    texts = {"gold": 1.0, "ship island": 2.0}
    alone = {
        text: {hit.id: hit.explanation for hit in _all(search, text, lexical=0.5).hits}
        for text in texts
    }
    ids = sorted(alone["gold"])
    logits = np.array([[alone[text][id]["logits"][0] for id in ids] for text in texts])
    assert any(alone["gold"][id]["lexical"] > 0 for id in ids)
    mixture = [{"text": text, "weight": weight} for text, weight in texts.items()]
    found = search(
        {"mixture": mixture}, lexical=0.5, explain=True, attend=attend, k=9, highlight=True
    )
    limit = len(ids) if attend == "all" else attend
    documents, logs, _ = expected(logits, [1 / 3, 2 / 3], limit)
    assert [hit.id for hit in found.hits] == [ids[at] for at in documents[:9]]
    np.testing.assert_allclose([hit.score for hit in found.hits], logs[:9], atol=1e-4)
    assert set(found.hits[0].explanation["terms"]) == {"gold", "island", "ship"}
    assert {each["text"] for each in found.hits[0].explanation["because"]} == set(texts)


def _all(search, text, **options):
    return search(text, attend="all", k=30, explain=True, **options)


def test_a_thousand_parts_are_answered(collection):
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(1000, WIDTH))
    found = collection.search({"mixture": vectors.tolist()}, attend="all", k=5, explain=True)
    logits = 2.0 * vectors @ keys(collection).T
    documents, logs, _ = expected(logits, np.full(1000, 1e-3), DOCUMENTS)
    assert [hit.id for hit in found.hits] == [f"d{at}" for at in documents[:5]]
    np.testing.assert_allclose([hit.score for hit in found.hits], logs[:5], atol=1e-4)


@pytest.mark.parametrize(
    ("query", "error", "said"),
    [
        ({"mixture": []}, InvalidRequest, "a list of 1 or more"),
        ({"mixture": [{"id": "d1", "weight": 0}]}, InvalidRequest, "weight of the mixture is zero"),
        ({"mixture": [{"id": "d1", "weight": -1}]}, InvalidRequest, "0 or more"),
        ({"mixture": [{"id": "d1"}, {"id": "gone"}]}, UnknownDocument, "'gone'"),
        ({"mixture": [{"id": "d1"}], "id": "d1"}, InvalidRequest, "id and mixture were given"),
        ({"mixture": [{"id": "d1"}] * 1001}, InvalidRequest, "at most 1000"),
    ],
)
def test_a_mixture_that_is_none_says_why(collection, query, error, said):
    with pytest.raises(error, match=said):
        collection.search(query)


def test_more_than_fits_is_refused_with_the_numbers(collection, monkeypatch):
    monkeypatch.setattr(attending, "MAX_RANKED", 100)
    with pytest.raises(LimitExceeded, match="3 parts that attend to 50 documents"):
        collection.search(QUERY, attend=50)
    with pytest.raises(InvalidRequest, match="a mixture is several"):
        collection.matrix([parse(SearchRequest, {"query": QUERY})])
