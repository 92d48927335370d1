"""Mixtures over quantised keys: lists and scores against a float64 softmax over all documents."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from attend.collection.versions import CENTRED_SCALE
from attend.core.types import Document
from attend.keys.segment import Delta, Segment
from attend.keys.snapshot import Snapshot
from attend.keys.vectors import FlatVectors, QuantisedVectors
from attend.search import attend as attending
from attend.search.queries import Queries
from attend.search.scoring import AttentionOptions
from tests.index.helpers import vector_data

KEYS, WIDTH, PARTS = 20_000, 32, 12

LISTED = 0.97
"""The share of the exact list that candidates give at least, on average."""


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


def attention_of(collection, keys, history, **rest):
    """The attention of a history as recommendations have it."""
    view = collection.views.current(role="recommend")
    options = AttentionOptions(attend="all", best=51, scorer=view.version.tuning.scorer, **rest)
    parts = np.full(len(history), 1 / len(history))
    queries = Queries(keys[history].astype(np.float32), parts=parts)
    [attention] = attending.attend(view, collection.settings, queries, options, approximate=True)
    return attention


@pytest.mark.parametrize("case", ["unseen", "seen", "half", "few"])
def test_lists_are_those_of_all_documents(filled, case):
    collection, keys, there = filled
    limit = {"half": 18_000, "few": 400}.get(case, len(keys))
    options = {} if limit == len(keys) else {"filter": {"rank": {"lt": limit}}}
    shares = []
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
        # A few documents behind a filter are scanned.
        assert found.exact == (case == "few")
        assert found.attended == np.count_nonzero(there & allowed)
        shares.append(np.isin(np.argsort(-expected)[:10], ids).mean())
    assert np.mean(shares) >= (1 if case == "few" else LISTED)


def test_words_take_one_look_into_quantised_keys(tmp_path, monkeypatch):
    """And list what a scan of all keys lists."""
    keys, rng = grown(KEYS, 0), np.random.default_rng(5)
    words = rng.integers(60, size=(KEYS, 6))
    data = vector_data(tmp_path)
    collection = data.create(dimension=WIDTH, normalize=True, exact_below=1)
    for start in range(0, KEYS, 2000):
        collection.write(
            [
                Document(
                    f"d{at}",
                    {"text": " ".join(f"word{word}" for word in words[at])},
                    vectors={"v": keys[at].tolist()},
                )
                for at in range(start, start + 2000)
            ]
        )
    collection.publish()
    looks: list[int] = []
    search = QuantisedVectors.search
    monkeypatch.setattr(attending, "SCAN_FLOATS", 0)

    def counted(vectors, queries, *rest):
        looks.append(len(queries))
        return search(vectors, queries, *rest)

    shares = []
    for vector in grown(20, 1):
        text = " ".join(f"word{word}" for word in rng.integers(60, size=4))
        query = {"vector": vector.tolist(), "text": text}
        exact = collection.search(query, lexical=0.3, recall=1)
        with monkeypatch.context() as patched:
            patched.setattr(QuantisedVectors, "search", counted)
            found = collection.search(query, lexical=0.3)
        assert exact.exact
        assert not found.exact
        shares.append(
            np.isin([hit.id for hit in exact.hits], [hit.id for hit in found.hits]).mean()
        )
    assert looks == [1] * 20
    assert np.mean(shares) >= 0.95
    data.close()


def test_candidates_that_cost_as_much_as_all_documents_are_not_looked_up(filled, monkeypatch):
    """Many parts take many candidates of each where many documents are listed."""
    collection, keys, there = filled
    looked_up: list[int] = []
    logits = attending._logits

    def counted(scoring, documents):
        looked_up.append(len(documents))
        return logits(scoring, documents)

    monkeypatch.setattr(attending, "_logits", counted)
    [(history, weights)] = histories(keys, there, 1)
    assert not collection.recommend(history=asked(history, weights), k=10).exact
    assert 100 < looked_up.pop() < np.count_nonzero(there) / attending.SCAN_SHARE
    assert collection.recommend(history=asked(history, weights), k=50).exact
    assert looked_up == []


def test_weights_are_shares_of_all_documents_as_a_sample_tells(filled):
    collection, keys, there = filled
    off = []
    for history, _ in histories(keys, there, 5):
        found = attention_of(collection, keys, history)
        assert (found.exact, found.recall) == (False, None)
        attended = found.attended
        rows = {
            row: int(d.id[1:]) for row, d in collection.store.documents(attended.documents).items()
        }
        places = [rows[row] for row in attended.documents.tolist()]
        logs = by_part(keys, there, history, np.ones(len(keys), bool))
        expected = mixed(logs, np.ones(len(history)))
        off += np.abs(attended.scores - expected[places]).tolist()
        np.testing.assert_allclose(attended.weights, np.exp(attended.scores), rtol=1e-6)
        assert attended.total_documents == np.count_nonzero(there)
        assert attention_of(collection, keys, history, recall=1.0).exact
    assert max(off) < 0.1
    assert np.mean(off) < 0.03


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
    options = {"history": asked(history, weights), "explain": True}
    for recall, tolerance in ((1, 1e-4), (None, 0.02)):
        for hit in collection.recommend(**options, recall=recall).hits:
            told = {each["id"]: each["weight"] for each in hit.because}
            shares = np.exp(logs[:, int(hit.id[1:])] - expected[int(hit.id[1:])])
            shares *= weights / weights.sum()
            assert sum(told.values()) == pytest.approx(1)
            np.testing.assert_allclose([told[f"d{at}"] for at in history], shares, atol=tolerance)


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
    assert len({hit.id for hit in about.hits} & {hit.id for hit in exact.hits}) >= 7
    near = np.argsort(-np.where(there, keys @ keys[history[0]], -np.inf))[:500]
    met = [{"id": f"d{at}", "weight": 1.0 if at == history[0] else 0.0} for at in near]
    long = collection.recommend(history=met)
    assert not long.exact
    exact = collection.recommend(history=met, recall=1)
    # One part's documents are ordered by their scores, whatever these sum to.
    order = [hit.id for hit in exact.hits]
    found = [hit.id for hit in long.hits if hit.id in order]
    assert len(found) >= 7
    assert found == [id for id in order if id in found]


def test_what_the_index_does_not_know_is_scanned(filled):
    collection, keys, there = filled
    [(history, weights)] = histories(keys, there, 1)
    query = {"mixture": asked(history, weights)}
    for options in ({"scorer": "laplace"}, {"pool": "sum"}):
        assert collection.search(query, attend=20, **options).exact


def test_more_like_a_document_lists_what_all_others_hold(filled):
    """Left out as the query is, or by a mask that makes a list of all others."""
    collection, keys, there = filled
    centred = keys - center()
    for at in np.flatnonzero(there)[::1500].tolist():
        query = {"id": f"d{at}"}
        answer = collection.search(query, attend=20)
        masked = collection.search(
            query, attend=20, exclude_self=False, mask={"exclude": [f"d{at}"]}
        )
        listed = [hit.id for hit in answer.hits]
        assert answer.attended == masked.attended == 20
        assert len(set(listed) & {hit.id for hit in masked.hits}) >= 9
        exact = np.argsort(-np.where(there, centred @ centred[at], -np.inf))[:12]
        assert query["id"] not in listed
        assert len(set(listed) & {f"d{other}" for other in exact}) >= 8


@pytest.mark.parametrize("limit", [KEYS + 300, 10_000])
def test_sums_over_all_are_told_by_few_documents(filled, limit):
    """As many even draws are some four times as far off."""
    collection, keys, there = filled
    view = collection.views.current(role="recommend")
    allowed = there & (np.arange(len(keys)) < limit)
    ids = collection.store.rows_of([f"d{at}" for at in np.flatnonzero(allowed)])
    rows = None if limit > KEYS else np.sort(np.array(list(ids.values())))
    rng, errors, even = np.random.default_rng(6), [], []
    for _ in range(10):
        parts = keys[rng.choice(np.flatnonzero(there), 12, replace=False)]
        queries, gates = (CENTRED_SCALE * parts).astype(np.float32), np.full(12, 1 / 12)
        exact = logsumexp(queries @ keys[allowed].T, axis=1)
        sample, rates = view.keys.drawn(queries, gates, rows, 256)
        assert 256 < len(sample) < 12 * 256 + 600
        assert np.isin(sample.rows, list(ids.values())).all()
        errors.append(logsumexp(queries @ sample.vectors.T - np.log(rates), axis=1) - exact)
        table, count = view.keys.sample(rows, len(sample))
        told = logsumexp(queries @ table.vectors.T, axis=1) + np.log(count / len(table))
        even.append(told - exact)
    assert abs(np.mean(errors)) < 0.02
    assert np.std(errors) < 0.08
    assert np.std(even) > 3 * np.std(errors)


def test_documents_of_several_keys_are_drawn_once():
    """And all of them, where as many are to be drawn as there are."""
    keys = grown(300, 0)
    owners = np.sort(np.append(np.arange(100), np.random.default_rng(0).integers(100, size=200)))
    segment = Segment.of(FlatVectors(keys), np.arange(300), owners)
    snapshot = Snapshot(segment, Delta.empty(WIDTH), 0, 0, 0)
    table, rates = snapshot.drawn(keys[:1], np.ones(1), None, 300)
    assert sorted(table.rows.tolist()) == list(range(100))
    assert (len(table.ids), rates.tolist()) == (300, [1.0] * 100)
    some, rates = snapshot.drawn(keys[:1], np.ones(1), np.arange(50), 60)
    assert set(some.rows.tolist()) <= set(range(50))
    assert np.sum(1 / rates) == pytest.approx(50, rel=0.5)
