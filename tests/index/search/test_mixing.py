"""Mixtures over quantised keys: lists, scores and sums against a float64 loop over every key."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from attend.attention import Partition
from attend.collection.versions import CENTRED_SCALE
from attend.core.types import Document
from attend.keys import snapshot
from attend.keys.quantised import QuantisedVectors
from attend.search import attend as attending
from attend.search import estimate as mixing
from attend.search.memory import Queries
from attend.search.scoring import AttentionOptions, Scoring, plan_of
from tests.index.helpers import vector_data

KEYS, WIDTH, PARTS = 20_000, 32, 12


@pytest.fixture(autouse=True, scope="module")
def _small():
    """What is worth it with hundreds of thousands of keys, with twenty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "SCAN_SHARE", 2)
        patch.setattr(mixing, "SAMPLED", 4096)
        patch.setattr(snapshot, "SAMPLED", 4096)
        yield


def grown(count: int, seed: int) -> np.ndarray:
    """Clouds of keys on a sphere, and pairs of them mixed: as embeddings lie, in small."""
    centres = np.random.default_rng(7).normal(size=(300, WIDTH))
    rng = np.random.default_rng(seed)
    pairs = centres[rng.integers(300, size=(2, count))]
    share = rng.random((count, 1))
    mixed = share * pairs[0] + (1 - share) * pairs[1] + 0.3 * rng.normal(size=(count, WIDTH))
    return (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)


@cache
def center() -> np.ndarray:
    """The mean of the keys as they were published, whatever changed since."""
    return grown(KEYS + 300, 0)[:KEYS].astype(np.float64).mean(axis=0)


def documents(vectors, numbers) -> list[Document]:
    return [
        Document(f"d{at}", vectors={"v": vectors[at].tolist()}, payload={"rank": int(at)})
        for at in numbers
    ]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Published and quantised, then changed, deleted and added to."""
    keys = grown(KEYS + 300, 0)
    data = vector_data(tmp_path_factory.mktemp("filled"))
    collection = data.create(dimension=WIDTH, normalize=True, exact_below=1)
    for start in range(0, KEYS, 2000):
        collection.write(documents(keys, range(start, start + 2000)))
    collection.publish()
    changed, gone = np.arange(0, 900, 3), np.arange(1, 900, 3)
    keys[changed] = grown(len(changed), 10)
    collection.upsert(documents(keys, [*changed.tolist(), *range(KEYS, KEYS + 300)]))
    collection.delete([f"d{at}" for at in gone])
    view = collection.views.current(role="recommend")
    assert isinstance(view.keys.segments[0].vectors, QuantisedVectors)
    yield collection, keys.astype(np.float64), np.isin(np.arange(len(keys)), gone, invert=True)
    data.close()


def histories(keys, there, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Documents of a few tastes each, as those of users are, and their weights."""
    rng = np.random.default_rng(3)
    made = []
    for _ in range(count):
        tastes = keys[rng.choice(np.flatnonzero(there), 3, replace=False)]
        near = np.argsort(-np.where(there, tastes @ keys.T, -np.inf), axis=1)[:, :200]
        chosen = np.unique([rng.choice(each, PARTS // 3, replace=False) for each in near])
        made.append((chosen, rng.uniform(0.5, 2, len(chosen))))
    return made


def by_part(keys, there, history, allowed) -> np.ndarray:
    """log softmax of each part over the allowed documents, (p, n)."""
    centred = keys[history] - center()
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    logits = CENTRED_SCALE * centred @ keys.T
    logits[:, ~(there & allowed)] = -np.inf
    return log_softmax(logits, axis=1)


def mixed(logs, weights) -> np.ndarray:
    """log Σ π_j w_j(d), (n,)."""
    return logsumexp(logs + np.log(weights / np.sum(weights))[:, None], axis=0)


def asked(history, weights) -> list[dict]:
    return [{"id": f"d{at}", "weight": w} for at, w in zip(history, weights, strict=True)]


@pytest.mark.parametrize("case", ["unseen", "seen", "half", "few"])
def test_lists_over_quantised_keys_are_those_of_all_keys(filled, case):
    collection, keys, there = filled
    limit = {"half": 18_000, "few": 400}.get(case, len(keys))
    options = {} if limit == len(keys) else {"filter": {"rank": {"lt": limit}}}
    shares, errors = [], []
    for history, weights in histories(keys, there, 30):
        allowed = np.arange(len(keys)) < limit
        if case != "seen":
            allowed[history] = False
        found = collection.recommend(
            history=asked(history, weights), exclude_seen=case != "seen", **options
        )
        ids = np.array([int(hit.id[1:]) for hit in found.hits])
        expected = mixed(by_part(keys, there, history, allowed), weights)
        assert (there & allowed)[ids].all()
        assert found.attended == np.count_nonzero(there & allowed)
        # A few documents behind a filter are scanned.
        assert found.exact == (case == "few")
        shares.append(np.isin(np.argsort(-expected)[:10], ids).mean())
        errors += [hit.score - expected[at] for hit, at in zip(found.hits, ids, strict=True)]
    assert np.mean(shares) >= 0.95
    assert np.abs(errors).max() < (1e-4 if case == "few" else 0.1)
    assert np.abs(np.mean(errors)) < 0.02


def estimate(collection, keys, history, **rest):
    """The attention of a history as it is estimated."""
    view = collection.views.current(role="recommend")
    options = AttentionOptions(attend="all", best=51, scorer=view.version.tuning.scorer, **rest)
    parts = np.full(len(history), 1 / len(history))
    queries = Queries(keys[history].astype(np.float32), parts=parts)
    return attending.attend(view, collection.settings, queries, options, estimate=True)


def test_what_is_not_proposed_counts_in_the_sums_by_those_drawn(filled, monkeypatch):
    collection, keys, there = filled
    errors, without = [], []
    for history, _ in histories(keys, there, 20):
        found = estimate(collection, keys, history)
        exact = estimate(collection, keys, history, recall=1.0)
        assert (found.exact, exact.exact) == (False, True)
        sums = exact.attended[0].log_partition
        errors.append(found.attended[0].log_partition - sums)
        with monkeypatch.context() as patch:
            none = Partition(np.array(-np.inf), np.array(0.0))
            patch.setattr(mixing, "_beyond", lambda *_, none=none: none)
            without.append(estimate(collection, keys, history).attended[0].log_partition - sums)
    assert np.abs(errors).max() < 0.15
    assert np.abs(np.mean(errors)) < 0.02
    assert np.abs(without).max() > 0.5  # the sums of what was looked at alone are far off


def test_an_estimate_of_all_documents_is_exact(filled, monkeypatch):
    """Where as many are drawn as there are."""
    collection, keys, there = filled
    monkeypatch.setattr(snapshot, "SAMPLED", len(keys))
    collection.upsert([{"id": "d5", "vector": keys[5].tolist()}])  # a view of its own
    [(history, _)] = histories(keys, there, 1)
    found = estimate(collection, keys, history)
    allowed = np.ones(len(keys), dtype=bool)
    expected = mixed(by_part(keys, there, history, allowed), np.ones(len(history)))
    rows = {f"d{at}": at for at in range(len(keys))}
    names = collection.store.documents(found.attended[0].documents)
    ids = [rows[names[row].id] for row in found.attended[0].documents.tolist()]
    assert not found.exact
    # What is proposed and not scored counts by its bytes, which are a little off.
    np.testing.assert_allclose(found.attended[0].scores, expected[ids], atol=1e-3)


def test_explained_shares_and_the_exact_list_on_request(filled):
    collection, keys, there = filled
    [(history, weights)] = histories(keys, there, 1)
    allowed = ~np.isin(np.arange(len(keys)), history)
    logs = by_part(keys, there, history, allowed)
    expected = mixed(logs, weights)
    exact = collection.recommend(history=asked(history, weights), recall=1)
    assert exact.exact
    assert [hit.id for hit in exact.hits] == [f"d{at}" for at in np.argsort(-expected)[:10]]
    np.testing.assert_allclose(
        [h.score for h in exact.hits], np.sort(-expected)[:10] * -1, atol=1e-4
    )
    for hit in collection.recommend(history=asked(history, weights), explain=True).hits:
        told = {each["id"]: each["weight"] for each in hit.because}
        shares = np.exp(logs[:, int(hit.id[1:])] - expected[int(hit.id[1:])])
        shares *= weights / weights.sum()
        assert sum(told.values()) == pytest.approx(1)
        np.testing.assert_allclose([told[f"d{at}"] for at in history], shares, atol=0.05)


def test_a_search_by_a_mixture_attends_to_the_best_of_it(filled):
    collection, keys, there = filled
    found_shares = []
    for history, weights in histories(keys, there, 15):
        query = {"mixture": asked(history, weights)}
        found = collection.search(query, attend=100, k=100)
        exact = collection.search(query, attend=100, k=100, recall=1)
        assert (found.exact, exact.exact) == (False, True)
        assert collection.search(query, attend="all").exact
        assert found.attended == 100
        assert sum(hit.weight for hit in found.hits) == pytest.approx(1)
        true = {hit.id for hit in exact.hits}
        found_shares.append(len(true & {hit.id for hit in found.hits}) / len(true))
    assert np.mean(found_shares) >= 0.95


def test_negative_examples_and_a_history_of_thousands(filled):
    collection, keys, there = filled
    [(history, _)] = histories(keys, there, 1)
    liked = [f"d{at}" for at in history[:-1]]
    request = {"positive": liked, "negative": [f"d{history[-1]}"]}
    about, exact = (collection.recommend(**request, recall=share) for share in (None, 1))
    assert (about.exact, exact.exact) == (False, True)
    assert len({hit.id for hit in about.hits} & {hit.id for hit in exact.hits}) >= 9
    near = np.argsort(-np.where(there, keys @ keys[history[0]], -np.inf))[:500]
    met = [{"id": f"d{at}", "weight": 1.0 if at == history[0] else 0.0} for at in near]
    long = collection.recommend(history=met)
    assert not long.exact
    exact = collection.recommend(history=met, recall=1)
    # One part's documents are ordered by their scores, whatever these sum to.
    order = [hit.id for hit in exact.hits]
    found = [hit.id for hit in long.hits if hit.id in order]
    assert len(found) >= 9
    assert found == [id for id in order if id in found]


def test_what_the_index_does_not_know_is_scanned(filled):
    collection, keys, there = filled
    [(history, weights)] = histories(keys, there, 1)
    query = {"mixture": asked(history, weights)}
    for options in ({"scorer": "laplace"}, {"pool": "sum"}):
        assert collection.search(query, attend=20, **options).exact
    view = collection.views.current(role="recommend")
    plan = plan_of(view.version, collection.settings, AttentionOptions("all"), words=False)
    scoring = Scoring.of(view, plan, Queries(keys[history].astype(np.float32)))
    assert not mixing.worth_estimating(scoring, None, 10, None)  # no mixture
