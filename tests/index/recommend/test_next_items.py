"""Recommendations against a float64 loop of the formula, and every odd request."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from attend.collection.versions import CENTRED_SCALE
from attend.core.errors import AttendError, InvalidRequest, UnknownDocument
from attend.projection import Projection
from attend.recommend import history as histories
from attend.recommend import next_items
from attend.write.feedback import add_interactions
from tests.index.helpers import several_keys, vector_data

WIDTH, DOCUMENTS = 6, 80
IDS = [f"d{at}" for at in range(DOCUMENTS)]


@pytest.fixture
def collection(tmp_path):
    rng = np.random.default_rng(5)
    data = vector_data(tmp_path)
    made = data.create(dimension=WIDTH, normalize=True)
    vectors = rng.normal(size=(DOCUMENTS, WIDTH)) + 0.5
    made.upsert(
        [
            {
                "id": id,
                "vector": vector.tolist(),
                "value": float(at),
                "payload": {"odd": at % 2, "shelf": at % 5},
            }
            for at, (id, vector) in enumerate(zip(IDS, vectors, strict=True))
        ]
    )
    yield made
    data.close()


def keys(collection) -> np.ndarray:
    with collection.store.all_keys() as (_, batches):
        return np.concatenate([each.vectors for each in batches]).astype(np.float64)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def by_part(collection, queries: np.ndarray, masked) -> np.ndarray:
    """log softmax of each part over the documents that are not masked, (p, n)."""
    stored = keys(collection)
    logits = CENTRED_SCALE * unit(queries - stored.mean(axis=0)) @ stored.T
    logits[:, list(masked)] = -np.inf
    return log_softmax(logits, axis=1)


def mixed(logs: np.ndarray, weights) -> np.ndarray:
    """log Σ π_j w_j(d), (n,)."""
    shares = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    return logsumexp(logs + np.log(shares)[:, None], axis=0)


def ids_of(found) -> list[str]:
    return [hit.id for hit in found.hits]


def ordered(logs: np.ndarray, count: int) -> list[str]:
    return [IDS[at] for at in np.argsort(-logs, kind="stable")[:count]]


def test_what_comes_next_is_the_mean_of_what_each_part_attends_to(collection):
    history = [{"id": "d3"}, {"id": "d10", "weight": 3}, "d20"]
    found = collection.recommend(history=history, k=12, explain=True)
    logs = by_part(collection, keys(collection)[[3, 10, 20]], [3, 10, 20])
    weights = [1, 3, 1]
    expected = mixed(logs, weights)
    assert ids_of(found) == ordered(expected, 12)
    for hit in found.hits:
        at = IDS.index(hit.id)
        assert hit.score == pytest.approx(expected[at], abs=1e-4)
        assert hit.weight == pytest.approx(np.exp(expected[at]), abs=1e-6)
        told = {each["id"]: each["weight"] for each in hit.because}
        assert sum(told.values()) == pytest.approx(1)
        shares = np.exp(logs[:, at] + np.log(np.array(weights) / 5) - expected[at])
        assert [told[id] for id in ("d3", "d10", "d20")] == pytest.approx(shares, abs=1e-4)
        assert hit.because[0]["weight"] == max(told.values())
    assert (found.projection, found.exact, found.attended) == (0, True, DOCUMENTS - 3)
    assert (found.history, found.missing) == ({"given": 3, "used": 3}, [])
    assert found.hits[0].payload["odd"] == IDS.index(found.hits[0].id) % 2


def test_taking_away_what_put_it_there_lowers_its_score(collection):
    history = IDS[:8]
    for hit in collection.recommend(history=history, k=20, explain=True).hits:
        rest = [id for id in history if id != hit.because[0]["id"]]
        kept = [*({"id": id} for id in rest), {"id": hit.because[0]["id"], "weight": 0}]
        lowered = {each.id: each.score for each in collection.recommend(history=kept, k=72).hits}
        assert lowered[hit.id] < hit.score


def test_seen_documents_come_only_where_they_are_wanted(collection):
    history = ["d1", {"id": "d2", "weight": 0}]
    assert not {"d1", "d2"} & set(ids_of(collection.recommend(history=history, k=80)))
    again = collection.recommend(history=history, k=80, exclude_seen=False)
    assert ids_of(again)[0] == "d1"
    assert len(again.hits) == DOCUMENTS


def test_filters_pages_and_fields(collection):
    asked = {"history": ["d1", "d6"], "filter": {"odd": 1}}
    whole = collection.recommend(k=40, **asked)
    logs = by_part(collection, keys(collection)[[1, 6]], {1, 6} | set(range(0, DOCUMENTS, 2)))
    assert ids_of(whole) == ordered(mixed(logs, [1, 1]), 39)
    page = collection.recommend(k=5, offset=10, fields=["shelf"], **asked)
    assert ids_of(page) == ids_of(whole)[10:15]
    assert [list(hit.payload) for hit in page.hits] == [["shelf"]] * 5
    nothing = collection.recommend(history=["d1"], filter={"odd": 7})
    assert (nothing.hits, nothing.attended) == ([], 0)


def test_a_number_of_documents_may_be_attended_to(collection):
    found = collection.recommend(history=["d1", "d6"], attend=15, k=15)
    assert sum(hit.weight for hit in found.hits) == pytest.approx(1)
    every = collection.recommend(history=["d1", "d6"], k=15)
    assert set(ids_of(found)) == set(ids_of(every))
    with pytest.raises(InvalidRequest, match="only 5 documents are attended"):
        collection.recommend(history=["d1"], attend=5, k=6)


def test_a_stored_user_is_a_history_and_what_is_sent_counts_besides(collection):
    add_interactions(
        collection,
        [{"user": "u", "id": "d4", "time": 5}, {"user": "u", "id": "d9", "time": 9}],
    )
    stored = collection.recommend(user="u", k=10)
    assert ids_of(stored) == ids_of(collection.recommend(history=["d4", "d9"], k=10))
    both = collection.recommend(user="u", history=["d30", {"id": "d4", "weight": 2}], k=10)
    sent = [{"id": "d4", "weight": 2}, "d9", "d30"]
    assert ids_of(both) == ids_of(collection.recommend(history=sent, k=10))
    add_interactions(collection, [{"user": "u", "id": "d50"}])  # at once
    assert "d50" not in ids_of(collection.recommend(user="u", k=80))


@pytest.mark.parametrize("value", [0, -2.5, False])
def test_what_was_not_liked_asks_for_nothing_and_is_left_out(collection, value):
    met = [{"id": "d4", "value": value}, {"id": "d9", "value": 3}, {"id": "d7", "value": "x"}]
    add_interactions(collection, [{"user": "u", **each} for each in met])
    expected = collection.recommend(history=["d9", "d7", {"id": "d4", "weight": 0}], k=20)
    for asked in ({"user": "u"}, {"history": met}):
        found = collection.recommend(k=20, explain=True, **asked)
        assert ids_of(found) == ids_of(expected)
        assert {each["id"] for each in found.hits[0].because} == {"d9", "d7"}
    said = collection.recommend(history=[{**met[0], "weight": 1}], k=20)
    assert ids_of(said) == ids_of(collection.recommend(history=["d4"], k=20))
    add_interactions(collection, [{"user": "v", **met[0]}])
    with pytest.raises(InvalidRequest, match=r"not liked \(valued") as error:
        collection.recommend(user="v")
    assert error.value.field == "user"
    stored = collection.store.interactions()
    assert stored.liked.tolist() == [False, True, True, False]  # d4, d7, d9 and d4 again


def test_older_parts_count_less_by_their_half_life(collection):
    day = 86_400
    history = [{"id": "d1", "time": 0}, {"id": "d2", "time": 10 * day}, "d3"]
    found = collection.recommend(history=history, half_life=5, k=20)
    logs = by_part(collection, keys(collection)[[1, 2, 3]], [1, 2, 3])
    assert ids_of(found) == ordered(mixed(logs, [0.25, 1, 0.25]), 20)
    dated = [{"id": "d1", "time": "1970-01-01"}, {"id": "d2", "time": "1970-01-11T00:00Z"}, "d3"]
    same = collection.recommend(history=dated, half_life=5, k=20)
    assert ids_of(same) == ids_of(found)


def test_negative_examples_take_away_by_their_share(collection):
    found = collection.recommend(
        history=["d1", "d2", "d3"],
        negative=["d4", {"vector": [0, 0, 1, 0, 0, 0], "weight": 3}],
        k=75,
    )
    stored = keys(collection)
    masked = [1, 2, 3, 4]
    liked = mixed(by_part(collection, stored[[1, 2, 3]], masked), [1, 1, 1])
    asked = np.vstack([stored[4], [0, 0, 1, 0, 0, 0]])
    against = mixed(by_part(collection, asked, masked), [1, 3]) + np.log(2)  # mean weights 2 and 1
    left = np.setdiff1d(np.arange(DOCUMENTS), masked)
    expected = np.full(DOCUMENTS, -np.inf)
    expected[left] = 2 * liked[left] - np.logaddexp(liked, against)[left]
    assert ids_of(found) == ordered(expected, 75)
    scores = [hit.score for hit in found.hits]
    assert scores == pytest.approx(sorted(expected, reverse=True)[:75], abs=1e-3)
    best = {hit.id: hit.weight for hit in found.hits}
    assert best["d5"] == pytest.approx(np.exp(liked[5]), abs=1e-5)


def test_what_negative_examples_push_down_is_looked_for_deep_enough(collection, monkeypatch):
    monkeypatch.setattr(next_items, "FEWEST", 1)
    monkeypatch.setattr(next_items, "POOLED", 2)
    asked = {"history": ["d1", "d2"], "negative": [{"id": id, "weight": 100} for id in IDS[40:]]}
    whole = collection.recommend(k=38, **asked)
    for k in (1, 2, 5):
        assert ids_of(collection.recommend(k=k, **asked)) == ids_of(whole)[:k]


def test_where_memory_ends_the_list_says_that_it_is_not_exact(collection, monkeypatch):
    monkeypatch.setattr(next_items, "FEWEST", 1)
    monkeypatch.setattr(next_items, "POOLED", 2)
    monkeypatch.setattr(next_items, "MAX_RANKED", 10)
    asked = {"history": ["d1", "d2"], "negative": [{"id": id, "weight": 100} for id in IDS[40:]]}
    found = collection.recommend(k=1, **asked)
    assert (found.exact, len(found.hits)) == (False, 1)


def test_a_negative_weight_in_a_history_is_a_negative_example(collection):
    one = collection.recommend(history=["d1", {"id": "d4", "weight": -2}], k=30)
    other = collection.recommend(history=["d1"], negative=[{"id": "d4", "weight": 2}], k=30)
    assert ids_of(one) == ids_of(other)


def test_weights_that_are_next_to_nothing_are_nothing(collection):
    history = ["d1", {"id": "d2", "time": 9, "weight": 5e-324}, {"id": "d3", "weight": -1e-7}]
    nothing = ["d1", {"id": "d2", "weight": 0}, {"id": "d3", "weight": 0}]
    found = collection.recommend(history=history, half_life=5e-324, k=80)
    assert found.hits == collection.recommend(history=nothing, k=80).hits


def test_positive_examples_may_be_vectors(collection):
    vector = [1.0, 0, 2, 0, 0, 0]
    found = collection.recommend(positive=[{"vector": vector}, "d7"], k=9, explain=True)
    queries = np.vstack([unit(np.array(vector)), keys(collection)[7]])
    assert ids_of(found) == ordered(mixed(by_part(collection, queries, [7]), [1, 1]), 9)
    named = [
        {name: each[name] for name in each if name != "weight"} for each in found.hits[0].because
    ]
    assert sorted(map(str, named)) == ["{'id': 'd7'}", "{'vector': True}"]


def test_a_fact_stands_for_the_documents_that_it_is_true_of(collection):
    facts = [{"field": "shelf", "value": 2, "weight": 2}]
    found = collection.recommend(history=["d1"], facts=facts, k=20, explain=True)
    stored = keys(collection)
    shelf = unit(stored[2::5].mean(axis=0))
    logs = by_part(collection, np.vstack([stored[1], shelf]), [1])
    assert ids_of(found) == ordered(mixed(logs, [1, 2]), 20)
    assert {"fact": "shelf", "value": 2}.items() <= found.hits[0].because[0].items()
    # A profile alone is enough for a user of whom nothing else is known.
    assert len(collection.recommend(facts=facts).hits) == 10
    with pytest.raises(InvalidRequest, match="No document has 'x' in the field 'shelf'"):
        collection.recommend(facts=[{"field": "shelf", "value": "x"}])


def test_documents_of_several_keys_ask_by_their_mean_and_are_found_by_their_best(tmp_path):
    rng = np.random.default_rng(6)
    made = vector_data(tmp_path).create(dimension=3, normalize=True)
    vectors = {f"m{at}": unit(rng.normal(size=(1 + at % 3, 3))) for at in range(20)}
    made.upsert([several_keys(id, each.tolist()) for id, each in vectors.items()])
    found = made.recommend(history=["m5", "m1"], k=18)
    mean = np.concatenate(list(vectors.values())).mean(axis=0)
    asked = np.array([unit(vectors[id].mean(axis=0)) for id in ("m5", "m1")])
    asked = unit(asked - mean)
    rest = [id for id in vectors if id not in ("m5", "m1")]
    logits = CENTRED_SCALE * np.array([(asked @ vectors[id].T).max(axis=1) for id in rest]).T
    expected = mixed(log_softmax(logits, axis=1), [1, 1])
    assert ids_of(found) == [rest[at] for at in np.argsort(-expected)]


# -- the list --------------------------------------------------------------------------------------


def test_diversity_follows_maximal_marginal_relevance(collection):
    asked = {"history": ["d1", "d2", "d3"]}
    pool = {hit.id: hit.score for hit in collection.recommend(k=60, **asked).hits}
    stored, names = keys(collection), list(pool)
    scores = np.array(list(pool.values()))
    relevance = (scores - scores.min()) / (scores.max() - scores.min())
    for diversity in (0.3, 0.8):
        chosen: list[int] = []
        for _ in range(6):
            gains = []
            for at, name in enumerate(names):
                near = [stored[IDS.index(name)] @ stored[IDS.index(names[c])] for c in chosen]
                gains.append((1 - diversity) * relevance[at] - diversity * max(near, default=0))
            gains = [-np.inf if at in chosen else gain for at, gain in enumerate(gains)]
            chosen.append(int(np.argmax(gains)))
        found = collection.recommend(k=6, diversity=diversity, **asked)
        assert ids_of(found) == [names[at] for at in chosen]
    assert ids_of(collection.recommend(k=6, **asked)) == names[:6]


@pytest.mark.parametrize("diversity", [0.0, 0.4])
def test_a_share_of_the_list_goes_to_what_nobody_met(collection, diversity):
    add_interactions(
        collection, [{"user": "x", "id": id} for id in IDS if id not in ("d70", "d71", "d72")]
    )
    asked = {"history": ["d1", "d2"], "k": 10, "diversity": diversity}
    plain, kept = collection.recommend(**asked), collection.recommend(reserve=0.2, **asked)
    fresh = [hit.id in ("d70", "d71", "d72") for hit in kept.hits]
    for count in range(1, 11):
        assert sum(fresh[:count]) >= int(0.2 * count)
    warm = [id for id in ids_of(plain) if id not in ("d70", "d71", "d72")]
    assert [hit.id for hit, new in zip(kept.hits, fresh, strict=True) if not new] == (
        warm[: 10 - sum(fresh)]
    )
    scores = {hit.id: hit.score for hit in collection.recommend(history=["d1", "d2"], k=78).hits}
    assert {hit.id: hit.score for hit in kept.hits} == pytest.approx(
        {id: scores[id] for id in ids_of(kept)}, abs=1e-4
    )
    every = collection.recommend(reserve=1, **asked)
    assert set(ids_of(every)[:3]) == {"d70", "d71", "d72"}
    assert len(every.hits) == 10


def test_what_nobody_met_is_found_however_far_down_it_is(collection, monkeypatch):
    monkeypatch.setattr(next_items, "FEWEST", 1)
    monkeypatch.setattr(next_items, "POOLED", 1)
    last = ids_of(collection.recommend(history=["d1", "d2"], k=80))[-3:]
    add_interactions(collection, [{"user": "x", "id": id} for id in IDS if id not in last])
    for diversity in (0.0, 0.5):
        found = collection.recommend(
            history=["d1", "d2"], negative=["d9"], k=4, reserve=0.5, diversity=diversity
        )
        assert [id in last for id in ids_of(found)] == [False, True, False, True]
        assert min(found.hits, key=lambda hit: hit.score).id in last


# -- what was learned ------------------------------------------------------------------------------


def learned(collection, **terms) -> int:
    rng = np.random.default_rng(8)
    projection = Projection(
        "given",
        WIDTH,
        np.ones(1),
        w_q=rng.normal(size=(1, 4, WIDTH)),
        w_k=rng.normal(size=(1, 4, WIDTH)),
        center=np.full(WIDTH, 0.1),
        normalize_queries=True,
        normalize_keys=True,
    )
    rows = np.array([collection.store.rows_of([f"d{at}"])[f"d{at}"] for at in (1, 2)])
    with collection.store.all_keys() as (_, batches):
        ids = np.concatenate([each.ids for each in batches])
    version = collection.store.add_projection(
        projection.kind,
        projection.to_bytes(),
        projection.fingerprint,
        {},
        tuning={"scale": [7.0]},
        offsets=(ids[[30, 31]], np.full((2, WIDTH), 0.3, np.float32)),
        terms={name: (rows, each) for name, each in terms.items()},
        role="recommend",
    )
    collection.activate(version)
    return version


def test_a_learned_version_moves_keys_queries_and_gates(collection):
    moves = np.array([[0.5] * WIDTH, [-1.0] * WIDTH])
    version = learned(collection, query=moves, gate=np.array([[0.2], [3.0]]))
    found = collection.recommend(history=["d1", "d2", "d3"], k=77, explain=True)
    projection = Projection.from_bytes(collection.store.version(version).weights)
    stored = keys(collection)
    moved = stored.copy()
    moved[[30, 31]] += 0.3
    asked = stored[[1, 2, 3]].copy()
    asked[:2] += moves
    queries = unit((asked - 0.1) @ projection.w_q[0].T.astype(np.float64))
    logits = 7.0 * queries @ unit((moved - 0.1) @ projection.w_k[0].T.astype(np.float64)).T
    logits[:, [1, 2, 3]] = -np.inf
    expected = mixed(log_softmax(logits, axis=1), [0.2, 3.0, 1.0])
    assert ids_of(found) == ordered(expected, 77)
    assert [hit.score for hit in found.hits] == pytest.approx(
        sorted(expected, reverse=True)[:77], abs=1e-3
    )
    assert found.projection == version
    assert collection.recommend(history=["d1"], projection=1).projection == 1


def test_a_search_by_id_asks_as_the_version_has_learned(collection):
    version = learned(collection, query=np.full((2, WIDTH), 2.0))
    found = collection.search({"id": "d1"}, projection=version, k=20)
    alone = collection.recommend(history=["d1"], k=20)
    assert [hit.id for hit in found.hits] == ids_of(alone)
    mixture = {"mixture": [{"id": "d1"}, {"id": "d5", "weight": 2}]}
    together = collection.search(mixture, projection=version, attend="all", k=20)
    both = collection.recommend(history=["d1", {"id": "d5", "weight": 2}], k=20)
    assert [hit.id for hit in together.hits] == ids_of(both)
    assert [hit.score for hit in together.hits] == pytest.approx([hit.score for hit in both.hits])


def test_a_document_of_another_text_asks_as_if_nothing_had_been_learned_of_it(collection):
    learned(collection, query=np.full((2, WIDTH), 2.0), gate=np.array([[1e-3], [0.5]]))
    before = collection.recommend(history=["d1", "d60"], k=5)
    stored = keys(collection)[1]
    collection.upsert([{"id": "d1", "vector": (stored + 1e-5).tolist()}])
    after = collection.recommend(history=["d1", "d60"], k=5)
    assert ids_of(after) != ids_of(before)
    # As any other process sees it, which never knew what was learned.
    made = collection.views.current(role="recommend").version
    rows = np.array([collection.store.rows_of([id])[id] for id in ("d1", "d2")])
    assert made.gates(rows).tolist() == [1.0, 0.5]
    assert (made.asking(np.zeros((2, WIDTH), np.float32), rows) == [[0.0], [2.0]]).all()


# -- odd requests ----------------------------------------------------------------------------------


def test_ids_that_are_missing_are_refused_or_listed(collection):
    history = ["d1", "gone", {"id": "lost", "weight": 2}]
    with pytest.raises(UnknownDocument, match=r"'gone', 'lost'.*on_missing"):
        collection.recommend(history=history)
    found = collection.recommend(history=history, negative=["no"], user="x", on_missing="skip")
    assert ids_of(found) == ids_of(collection.recommend(history=["d1"]))
    assert found.missing == [{"id": "gone"}, {"id": "lost"}, {"id": "no"}, {"user": "x"}]
    with pytest.raises(InvalidRequest, match="user 'x' are stored; store them, send a history"):
        collection.recommend(user="x", history=["d1"])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "Nothing is known of the user; send a history"),
        ({"history": []}, "Nothing is known of the user; send a history"),
        ({"history": ["a", "b"], "on_missing": "skip"}, "has any of the 2 ids that were sent"),
        ({"user": "x", "on_missing": "skip"}, "Nothing is known of the user"),
        ({"history": [{"id": "d1", "weight": 0}]}, "Every weight of the history is zero"),
        ({"negative": ["d1", "d2"]}, "Only negative examples"),
        ({"history": [{"id": "d1", "weight": -1}]}, "Only negative examples"),
        ({"history": [{"id": "d1", "weight": float("nan")}]}, "finite"),
        ({"history": [{"id": "d1", "time": "soon"}]}, "'soon' is no time"),
        ({"history": [{"id": "d1", "time": 1e300}]}, "beyond any time"),
        ({"history": ["d1"], "diversity": 2}, "1 or less"),
        ({"history": ["d1"], "reserve": -1}, "0 or more"),
        ({"history": ["d1"], "half_life": 0}, "more than 0"),
        ({"history": ["d1"], "k": 2000, "diversity": 0.5}, "at most 1000 places"),
        ({"history": ["d1"], "projection": 99}, "no projection 99"),
        ({"history": ["d1"], "unknown": 1}, "unknown field"),
        ({"history": ["d1"] * 100_001}, "at most 100000"),
        ({"positive": [{"id": "d1", "vector": [1]}]}, "id and vector were given"),
        ({"positive": [{"vector": [1, 2]}]}, "has 2 dimensions"),
        ({"positive": [{"text": "sea"}]}, "made for vectors"),
        ({"facts": [{"weight": 1}]}, "a fact has a text, or a field"),
        ({"facts": ["likes the sea"]}, "made for vectors"),
    ],
)
def test_what_cannot_be_answered_says_what_to_send(collection, asked, said):
    with pytest.raises(AttendError, match=said):
        collection.recommend(**asked)


def test_a_document_named_twice_counts_once_as_it_was_said_last(collection):
    twice = ["d1", {"id": "d2", "weight": 5}, {"id": "d2", "weight": 2}, "d1"]
    found = collection.recommend(history=twice, k=30)
    assert ids_of(found) == ids_of(
        collection.recommend(history=["d1", {"id": "d2", "weight": 2}], k=30)
    )
    assert found.history == {"given": 2, "used": 2}


def test_of_a_very_long_history_the_heaviest_and_latest_are_used(collection, monkeypatch):
    monkeypatch.setattr(histories, "MAX_USED", 3)
    history = [{"id": IDS[at], "time": at} for at in range(9)]
    history[2]["weight"] = 2
    found = collection.recommend(history=history, k=80, explain=True)
    assert found.history == {"given": 9, "used": 3}
    assert {each["id"] for each in found.hits[0].because} == {"d2", "d7", "d8"}
    assert not set(IDS[:9]) & set(ids_of(found))  # seen, used or not


def test_a_history_of_everything_leaves_nothing(collection):
    found = collection.recommend(history=IDS)
    assert (found.hits, found.attended) == ([], 0)


def test_a_history_of_ten_thousand_is_answered(tmp_path):
    rng = np.random.default_rng(9)
    made = vector_data(tmp_path).create(dimension=4, normalize=True)
    ids = [f"m{at}" for at in range(10_010)]
    vectors = rng.normal(size=(len(ids), 4)).tolist()
    documents = [{"id": id, "vector": v} for id, v in zip(ids, vectors, strict=True)]
    made.upsert(documents[:10_000])
    made.upsert(documents[10_000:])
    found = made.recommend(history=ids[:10_000], k=10)
    assert found.history == {"given": 10_000, "used": 1000}
    assert set(ids_of(found)) == set(ids[10_000:])
