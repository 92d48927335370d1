"""All of attention against plain loops in float64, over shapes that Hypothesis chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.attention import Additive, Attended, attend_many, weights_by_block
from attend.core.arrays import KeyTable
from attend.core.errors import InvalidRequest
from tests.index.attention.single import attend_all, attend_top, mechanism, table

SCORERS = ("dot", "cosine", "laplace", "additive")


@dataclass
class Case:
    """A collection, its queries and every setting, drawn from one seed."""

    scorer: str
    pool: str
    heads: int
    shared: bool
    null: bool
    masked: float
    seed: int
    documents: int = 7

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.d, self.q = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        counts = rng.integers(1, 4, self.documents)
        self.ids = rng.permutation(500)[: self.documents].astype(np.int64)
        self.starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        key_heads = 1 if self.shared else self.heads
        self.keys = rng.normal(size=(int(counts.sum()), key_heads, self.d))
        self.queries = rng.normal(size=(self.q, self.heads, self.d))
        self.shift = rng.normal(size=(self.q, self.heads))
        self.bias = rng.normal(size=(self.q, self.documents))
        self.allowed = rng.random((self.q, self.documents)) >= self.masked
        self.scale = rng.uniform(0.2, 3, self.heads)
        self.gates = rng.dirichlet(np.ones(self.heads))
        self.tau = float(rng.uniform(0.3, 2))
        self.null_logit = float(rng.normal()) if self.null else None
        self.additive = Additive(*rng.normal(size=(2, 4, self.d)), rng.normal(size=4))

    def mechanism(self):
        return mechanism(
            self.scorer,
            scale=self.scale,
            pool=self.pool,
            temperature=self.tau,
            gates=self.gates,
            null=self.null_logit,
            additive=self.additive if self.scorer == "additive" else None,
        )

    def added(self, documents):
        """(n,) ids to (q, H, n), whatever block they come in: -inf where masked."""
        column = {int(document): i for i, document in enumerate(self.ids)}
        places = [column[int(d)] for d in documents]
        bias = np.where(self.allowed, self.bias, -np.inf)[:, None, places]
        return bias + self.shift[:, :, None]

    def blocks(self, size):
        """The collection in blocks of `size` documents."""
        edges = np.append(self.starts, len(self.keys))
        for lo in range(0, self.documents, size):
            hi = min(lo + size, self.documents)
            keys = self.keys[edges[lo] : edges[hi]]
            yield table(keys, self.ids[lo:hi], edges[lo:hi] - edges[lo])


def score(case: Case, q, k) -> float:
    if case.scorer == "dot":
        return sum(a * b for a, b in zip(q, k, strict=True))
    if case.scorer == "cosine":
        return sum(a * b for a, b in zip(q, k, strict=True)) / (math.hypot(*q) * math.hypot(*k))
    if case.scorer == "laplace":
        return -sum(abs(a - b) for a, b in zip(q, k, strict=True))
    p = case.additive
    hidden = [math.tanh(sum(p.w[i] * q) + sum(p.u[i] * k)) for i in range(len(p.v))]
    return sum(v * h for v, h in zip(p.v, hidden, strict=True))


def oracle_logits(case: Case, i: int) -> list[list[float]]:
    """z[h][d] of query i, None where masked."""
    edges = [*case.starts.tolist(), len(case.keys)]
    rows = []
    for h in range(case.heads):
        row = []
        for d in range(case.documents):
            keys = case.keys[edges[d] : edges[d + 1], 0 if case.shared else h]
            logits = [case.scale[h] * score(case, case.queries[i, h], key) for key in keys]
            z = max(logits) if case.pool == "max" else math.log(sum(map(math.exp, logits)))
            z += case.shift[i, h] + case.bias[i, d]
            row.append(z if case.allowed[i, d] else None)
        rows.append(row)
    return rows


def oracle_weights(case: Case, z, documents) -> tuple[dict[int, float], float]:
    """Mixed weights by column, and the null's, over the columns given."""
    weights, null = dict.fromkeys(documents, 0.0), 0.0
    for h in range(case.heads):
        shares = {d: math.exp(z[h][d] / case.tau) for d in documents}
        rest = math.exp(case.null_logit / case.tau) if case.null else 0.0
        total = sum(shares.values()) + rest
        for d in documents:
            weights[d] += case.gates[h] * shares[d] / total
        null += case.gates[h] * rest / total if total else 0.0
    return weights, null


cases = st.builds(
    Case,
    scorer=st.sampled_from(SCORERS),
    pool=st.sampled_from(["max", "sum"]),
    heads=st.integers(1, 4),
    shared=st.booleans(),
    null=st.booleans(),
    masked=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
    documents=st.integers(1, 9),
)


def assert_attended(case: Case, i: int, found: Attended, z, columns) -> None:
    """`found` is the attention of query i over those columns, and lists the best of them."""
    weights, null = oracle_weights(case, z, columns)
    column = {int(document): d for d, document in enumerate(case.ids)}
    listed = [column[int(document)] for document in found.documents]
    np.testing.assert_allclose(found.weights, [weights[d] for d in listed], atol=1e-6)
    np.testing.assert_allclose(found.logits, [[z[h][d] for d in listed] for h in range(case.heads)],
                               atol=1e-6)  # fmt: skip
    np.testing.assert_allclose(found.null_weight, null, atol=1e-6)
    np.testing.assert_allclose(case.gates @ found.head_weights, found.weights, atol=1e-12)
    assert (np.diff(found.weights) <= 1e-12).all()
    assert (np.diff(found.scores) <= 0).all()
    assert found.total_documents == len(columns)
    best = sorted(weights.values(), reverse=True)[: len(listed)]
    np.testing.assert_allclose(found.weights, best, atol=1e-6)


@settings(max_examples=120, deadline=None)
@given(cases, st.sampled_from([1, 2, 3, 100]), st.integers(0, 10))
def test_streamed_attention_is_the_dense_one(case: Case, size: int, keep: int):
    found = attend_many(case.queries, lambda: case.blocks(size), case.mechanism(), keep, case.added)
    assert len(found) == case.q
    for i, one in enumerate(found):
        columns = [d for d in range(case.documents) if case.allowed[i, d]]
        assert len(one.documents) == min(keep, len(columns))
        assert_attended(case, i, one, oracle_logits(case, i), columns)
        if keep >= len(columns) > 0:
            assert one.weights.sum() + one.null_weight == pytest.approx(1)


@settings(max_examples=120, deadline=None)
@given(cases, st.integers(1, 10))
def test_top_attention_is_the_softmax_over_the_best(case: Case, attend: int):
    z = oracle_logits(case, 0)
    allowed = [d for d in range(case.documents) if case.allowed[0, d]]
    weights, _ = oracle_weights(case, z, allowed)
    best = sorted(allowed, key=lambda d: (-weights[d], case.ids[d]))[:attend]
    found = attend_top(
        case.queries[0],
        list(case.blocks(3)),
        case.mechanism(),
        attend,
        lambda documents: case.added(documents)[:1],
    )
    assert set(found.documents) == set(case.ids[best])
    assert_attended(case, 0, found, z, best)


@settings(max_examples=40, deadline=None)
@given(cases, st.sampled_from([1, 2, 100]))
def test_weights_by_block_are_those_of_the_whole(case: Case, size: int):
    how = case.mechanism()

    def blocks():
        return case.blocks(size)

    found = attend_many(case.queries, blocks, how, 0, case.added)
    parts = list(weights_by_block(case.queries, blocks, how, found, case.added))
    mixed = np.concatenate([case.gates @ part.heads for part in parts], axis=-1)  # (q, n)
    for i in range(case.q):
        columns = [d for d in range(case.documents) if case.allowed[i, d]]
        weights, _ = oracle_weights(case, oracle_logits(case, i), columns)
        expected = [weights.get(d, 0.0) for d in range(case.documents)]
        np.testing.assert_allclose(mixed[i], expected, atol=1e-6)


@pytest.mark.parametrize("scorer", SCORERS)
def test_float32_keys_stay_within_a_millionth_of_float64(scorer: str):
    case = Case(scorer, "max", 2, False, False, 0.0, seed=5, documents=400)
    case.keys = case.keys / np.linalg.norm(case.keys, axis=-1, keepdims=True)
    case.queries = case.queries / np.linalg.norm(case.queries, axis=-1, keepdims=True)
    exact = attend_many(case.queries, lambda: case.blocks(64), case.mechanism(), 400)
    case.keys = case.keys.astype(np.float32)
    rough = attend_many(
        case.queries.astype(np.float32), lambda: case.blocks(64), case.mechanism(), 400
    )
    for one, other in zip(exact, rough, strict=True):
        by_id = dict(zip(one.documents.tolist(), one.weights, strict=True))
        expected = [by_id[d] for d in other.documents.tolist()]
        np.testing.assert_allclose(other.weights, expected, atol=1e-6)


def plain(n: int, rows=None, documents=None) -> KeyTable:
    return table(np.ones((n, 2)) if rows is None else np.asarray(rows, float), documents)


def test_ties_go_to_the_lower_row_id_whatever_the_blocks():
    how = mechanism()
    ids = [9, 4, 7, 1, 8]
    for blocks in ([plain(5, documents=ids)], [plain(1, documents=[id]) for id in ids]):
        assert attend_all(np.ones((1, 2)), blocks, how, 3).documents.tolist() == [1, 4, 7]
        assert attend_top(np.ones((1, 2)), blocks, how, 3).documents.tolist() == [1, 4, 7]


def test_weights_sum_to_one_however_large_the_logits():
    how = mechanism(scale=1e30, temperature=1e-9)
    for found in (
        attend_all(np.ones((1, 2)), [plain(1), plain(2, documents=[2, 3])], how, 3),
        attend_top(np.ones((1, 2)), [plain(3)], how, 3),
    ):
        np.testing.assert_allclose(found.weights, 1 / 3)


def test_documents_too_far_off_to_have_a_weight_still_have_an_order():
    how = mechanism(scale=1000, gates=[0.5, 0.5])
    rows = [[1, 0], [0.1, 0], [0.2, 0]]
    found = attend_all(np.array([[1.0, 0], [1.0, 0]]), [plain(3, rows)], how, 3)
    assert found.weights.tolist() == [1, 0, 0]
    assert found.documents.tolist() == [0, 2, 1]


@pytest.mark.parametrize("null", [None, 0.5])
def test_with_everything_masked_nothing_is_attended(null: float | None):
    for gates in ([1.0], [0.5, 0.5]):
        how = mechanism(null=null, gates=gates)
        query = np.ones((len(gates), 2))

        def nobody(documents):
            return np.full(len(documents), -np.inf)

        for found in (
            attend_all(query, [plain(3)], how, 5, nobody),
            attend_top(query, [plain(3)], how, 5, nobody),
            attend_all(query, [], how, 5),
            attend_top(query, [], how, 5),
        ):
            assert found.documents.tolist() == found.weights.tolist() == []
            assert found.total_documents == 0
            assert found.confidence == 0
            assert found.null_weight == (0 if null is None else pytest.approx(1))


def test_a_filter_leaves_the_null_logit_alone():
    how = mechanism(scale=1, null=2.0)
    few = attend_all(
        np.ones((1, 2)), [plain(3)], how, 5, lambda rows: np.where(rows == 1, 0.0, -np.inf)
    )
    assert few.null_weight == pytest.approx(0.5)  # one document of logit 2 beside it
    assert few.confidence == pytest.approx(0.5)


BAD = {
    "NaN in a key": (plain(2, [[np.nan, 0], [0, 0]]), "no finite score"),
    "-inf in a key": (plain(2, [[-np.inf, 0], [0, 0]]), "no finite score"),
    "a key beyond all measure": (plain(2, [[1e200, 0], [0, 0]]), "too large"),
    "a key beyond float64": (plain(2, [[1e308, 1e308], [0, 0]]), "too large"),
}


@pytest.mark.parametrize(("block", "sentence"), BAD.values(), ids=BAD.keys())
def test_keys_without_a_finite_score_are_refused(block: KeyTable, sentence: str):
    for attend in (attend_all, attend_top):
        with pytest.raises(InvalidRequest, match=sentence):
            attend(np.ones((1, 2)), [block], mechanism(), 5)
