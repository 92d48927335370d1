"""Attention as users reach it, through collections, against plain float64 arithmetic.

Embeddings are stored in 32 bits; the numbers drawn here are eighths and quarters, which 32
bits hold exactly, so that whatever differs is the arithmetic's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

import attend.keys.segment
from attend import AttendError, Collection, Data, Document
from attend.api.base import parse
from attend.api.search import SearchRequest
from attend.core.errors import DimensionMismatch, InvalidRequest, UnknownDocument, UnknownProjection
from attend.projection import Projection, given, identity
from tests.index.helpers import split_heads

NAMES = (f"collection-{number}" for number in itertools.count())

WEIGHT = 3e-6
"""The rounding of a weight: keys at length one are no eighths, and logits are 40 times as large."""

GAP = 1e-6
"""Documents whose scores differ by less may be ranked either way."""


@pytest.fixture(scope="module")
def data() -> Iterator[Data]:
    with TemporaryDirectory() as folder:
        opened = Data(Path(folder))
        yield opened
        opened.close()


def new(data: Data, keys: Sequence[np.ndarray], values: Sequence[Any] = (), **options: Any):
    """A collection of documents "0", "1", ..., each with keys (m, d)."""
    # Keys of length one by chance must not decide that queries are brought to it.
    settings = {"normalize": False, **options}
    collection = data.create(next(NAMES), dimension=keys[0].shape[1], **settings)
    collection.upsert(
        Document(
            id=str(at),
            vectors={f"key {number}": key.tolist() for number, key in enumerate(own)},
            value=values[at] if len(values) else None,
            payload={"odd": at % 2},
        )
        for at, own in enumerate(keys)
    )
    return collection


def use(collection: Collection, projection: Projection) -> None:
    collection.activate(collection.add_projection(projection))


# -- Every combination against a plain computation ----------------------------------------------


@dataclass
class Case:
    """A collection, a query and all settings of their attention, from one seed."""

    seed: int
    scorer: str
    pool: str
    heads: int
    documents: int
    mask: str
    stored_for: str
    projected: bool
    normalized: bool
    shared: bool
    options: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        d, d_k, a = (int(n) for n in rng.integers(1, 6, 3))
        counts = rng.integers(1, 4, self.documents)
        self.keys = [_directions(rng, count, d) for count in counts]
        self.query = _directions(rng, 1, d)[0]
        self.values = (rng.integers(-80, 81, self.documents) / 8).tolist()
        key_heads = 1 if self.shared else self.heads
        self.w_q, self.b_q = _quarters(rng, self.heads, d_k, d), _quarters(rng, self.heads, d_k)
        self.w_k, self.b_k = _quarters(rng, key_heads, d_k, d), _quarters(rng, key_heads, d_k)
        self.center = _quarters(rng, d)
        self.additive = (_quarters(rng, a, d_k), _quarters(rng, a, d_k), _quarters(rng, a))
        self.scale = float(rng.choice([0.5, 1.0, 2.0, 20.0]))
        self.temperature = float(rng.choice([0.5, 1.0, 1.5]))
        self.gates = rng.dirichlet(np.ones(self.heads)) if rng.random() < 0.5 else None
        self.options = {
            "scorer": self.scorer,
            "pool": self.pool,
            "scale": self.scale,
            "temperature": self.temperature,
            "heads": None if self.gates is None else (3 * self.gates).tolist(),
        } | self._masking(rng)

    def _masking(self, rng: np.random.Generator) -> dict[str, Any]:
        some = np.flatnonzero(rng.random(self.documents) < 0.5)
        self.allowed = np.ones(self.documents, dtype=bool)
        names = [str(at) for at in some]
        match self.mask:
            case "exclude":
                self.allowed[some] = False
                return {"mask": {"exclude": names}}
            case "only":
                self.allowed[:] = np.isin(np.arange(self.documents), some)
                return {"mask": {"only": names}}
            case "filter":
                self.allowed[:] = np.arange(self.documents) % 2 == 1
                return {"filter": {"odd": 1}}
        return {}

    def projection(self) -> Projection | None:
        if not self.projected:
            return None
        return given(
            self.w_q, self.w_k, b_q=self.b_q, b_k=self.b_k, center=self.center,
            additive=self.additive, normalize_queries=self.normalized,
            normalize_keys=self.normalized,
        )  # fmt: skip

    def logits(self) -> np.ndarray:
        """(H, n), with one head where nothing is projected."""
        heads = range(self.heads if self.projected else 1)
        return np.array([[self._logit(head, own) for own in self.keys] for head in heads])

    def _logit(self, head: int, own: np.ndarray) -> float:
        key_head = 0 if self.shared else head
        q = self._side(self.query, self.w_q[head], self.b_q[head])
        scores = [
            self.scale * self._score(q, self._side(key, self.w_k[key_head], self.b_k[key_head]))
            for key in own
        ]
        return max(scores) if self.pool == "max" else float(logsumexp(scores))

    def _side(self, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        if not self.projected:
            return x
        y = w @ (x - self.center) + b
        length = np.linalg.norm(y)
        return y / length if self.normalized and length else y

    def _score(self, q: np.ndarray, k: np.ndarray) -> float:
        match self.scorer:
            case "dot":
                return float(q @ k)
            case "laplace":
                return float(-np.abs(q - k).sum())
            case "cosine":
                lengths = np.linalg.norm(q) * np.linalg.norm(k)
                return float(q @ k / lengths) if lengths else 0.0
        w, u, v = self.additive
        return float(v @ np.tanh(w @ q + u @ k))

    def mixture(self) -> np.ndarray:
        heads = self.heads if self.projected else 1
        return np.full(heads, 1 / heads) if self.gates is None else self.gates


def _directions(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw vectors (…, d) in eighths; none is all zeros, which collections refuse."""
    vectors = rng.integers(-8, 9, shape) / 8
    vectors[~vectors.any(axis=-1), 0] = 1 / 8
    return vectors


def _quarters(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-4, 5, shape) / 4


def scored(z: np.ndarray, case: Case) -> np.ndarray:
    """Logits (H, n) as scores (n,): z itself for one head, the log of the weight for several."""
    if len(z) == 1:
        return z[0]
    return np.log(case.mixture() @ softmax(z / case.temperature, axis=1))


cases = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    scorer=st.sampled_from(["dot", "cosine", "laplace", "additive"]),
    pool=st.sampled_from(["max", "sum"]),
    heads=st.integers(1, 3),
    documents=st.integers(1, 8),
    mask=st.sampled_from(["none", "exclude", "only", "filter"]),
    stored_for=st.sampled_from(["dot", "laplace"]),
    projected=st.booleans(),
    normalized=st.booleans(),
    shared=st.booleans(),
)

slow = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


def built(data: Data, case: Case) -> Collection:
    """The case's collection; `stored_for` decides whether it keeps its keys folded."""
    assume(
        case.projected or (case.scorer != "additive" and (case.gates is None or case.heads == 1))
    )
    collection = new(data, case.keys, case.values, scorer=case.stored_for)
    projection = case.projection()
    if projection is not None:
        use(collection, projection)
    return collection


@slow
@drawn(case=cases, attend=st.integers(1, 8))
def test_all_of_attention_is_the_plain_computation(data: Data, case: Case, attend: int):
    collection = built(data, case)
    z = case.logits()
    allowed = np.flatnonzero(case.allowed)
    for size in (attend, "all"):
        listed = allowed
        if size != "all" and size < len(allowed):
            score = scored(z[:, allowed], case)
            ranking = np.argsort(-score, kind="stable")
            assume(score[ranking[size - 1]] - score[ranking[size]] > GAP)
            listed = allowed[ranking[:size]]
        k = 100 if size == "all" else size
        found = collection.search(
            case.query.tolist(), k=k, attend=size, mode="soft", **case.options
        )
        assert found.exact
        assert found.attended == len(listed)
        if len(listed) == 0:
            assert found.answer["reason"] == "nothing attended"
            continue
        weights = case.mixture() @ softmax(z[:, listed] / case.temperature, axis=1)
        scores = scored(z[:, listed], case)
        assert {int(hit.id): hit.weight for hit in found.hits} == pytest.approx(
            dict(zip(listed.tolist(), weights, strict=True)), abs=WEIGHT
        )
        assert {int(hit.id): hit.score for hit in found.hits} == pytest.approx(
            dict(zip(listed.tolist(), scores, strict=True)), abs=1e-5
        )
        given_scores = [hit.score for hit in found.hits]
        assert given_scores == sorted(given_scores, reverse=True)
        mean = weights @ np.array(case.values)[listed]
        assert found.answer["mean"] == pytest.approx(mean, abs=2e-5)


@settings(slow, max_examples=60)
@drawn(case=cases)
def test_matrices_are_the_plain_computation(data: Data, case: Case):
    """Self-attention of vectors: each row of the matrix is one query's softmax."""
    collection = built(data, case)
    z = case.logits()[:, case.allowed]
    request = parse(SearchRequest, {"query": case.query.tolist(), **case.options})
    found = collection.matrix([request, request])
    assert found.documents == [str(at) for at in np.flatnonzero(case.allowed)]
    if z.shape[1] == 0:
        return
    heads = softmax(z / case.temperature, axis=1)
    for query in range(2):
        np.testing.assert_allclose(found.logits[query], z, atol=1e-5)
        np.testing.assert_allclose(found.head_weights[query], heads, atol=1e-6)
        np.testing.assert_allclose(found.weights[query], case.mixture() @ heads, atol=1e-6)


# -- The set that is attended to ----------------------------------------------------------------


def test_a_document_that_is_no_heads_first_may_be_the_best_of_all(data: Data):
    """Each head alone prefers four others; their mixture prefers the one that pleases both."""
    keys = [np.array([key]) for key in [[5.0, 0.0]] * 4 + [[0.0, 5.0]] * 4 + [[4.9, 4.9]]]
    collection = new(data, keys)
    use(collection, split_heads(2, 2))
    found = collection.search([1.0, 1.0], k=1, attend=1, scale=1)
    assert [hit.id for hit in found.hits] == ["8"]
    assert found.exact


def test_blocks_of_unit_vectors_are_no_unit_vectors(data: Data):
    """A head's cosine is not its dot product, although whole embeddings have length one."""
    rng = np.random.default_rng(5)
    keys = [key[None] for key in rng.normal(size=(60, 4))]
    collection = new(data, keys, normalize=True)
    use(collection, split_heads(4, 2))
    query = rng.normal(size=4)
    found = collection.search(query.tolist(), k=3, attend=3, scorer="cosine", scale=1)
    z = np.array(
        [[_cosine(query[part], own[0][part]) for own in keys] for part in (slice(2), slice(2, 4))]
    )
    best = np.argsort(-softmax(z, axis=1).mean(axis=0))[:3]
    assert [hit.id for hit in found.hits] == [str(at) for at in best]


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("block", [7, 64, 8192])
def test_attention_over_all_is_dense_whatever_the_blocks(
    data: Data, monkeypatch: pytest.MonkeyPatch, block: int
):
    """The answer blends every document, not the few that are listed."""
    monkeypatch.setattr(attend.keys.segment, "BLOCK_KEYS", block)
    rng = np.random.default_rng(block)
    keys = rng.normal(size=(300, 2, 12)).astype(np.float32)
    values = rng.normal(size=300)
    collection = new(data, list(keys), values.tolist())
    w_q, w_k = rng.integers(-4, 5, (2, 2, 3, 12)) / 4
    use(collection, given(w_q, w_k))
    query = rng.normal(size=12).astype(np.float32)

    found = collection.search(query.tolist(), k=4, attend="all", mode="soft", scale=0.25)
    queries, projected = w_q @ query, np.einsum("hkd,nmd->hnmk", w_k, keys.astype(np.float64))
    z = 0.25 * np.einsum("hk,hnmk->hnm", queries.astype(np.float64), projected).max(axis=2)
    weights = softmax(z, axis=1).mean(axis=0)
    best = np.argsort(-weights)[:4]
    assert [hit.id for hit in found.hits] == [str(at) for at in best]
    assert [hit.weight for hit in found.hits] == pytest.approx(weights[best], abs=1e-6)
    assert found.answer["mean"] == pytest.approx(weights @ values, abs=1e-6)
    assert found.attended == 300


def test_top_k_attention_and_attention_over_all_are_told_apart(data: Data):
    """The same documents first; the weights differ by what the others take."""
    keys = [np.array([[float(at + 1)]]) for at in range(10)]
    collection = new(data, keys)
    top = collection.search([1.0], k=3, attend=3, scale=0.1)
    whole = collection.search([1.0], k=3, attend="all", scale=0.1)
    assert (top.attended, whole.attended) == (3, 10)
    assert [hit.id for hit in top.hits] == [hit.id for hit in whole.hits] == ["9", "8", "7"]
    z = np.arange(10) / 10
    assert [hit.weight for hit in top.hits] == pytest.approx(softmax(z[:6:-1]))
    assert [hit.weight for hit in whole.hits] == pytest.approx(softmax(z)[:6:-1])


# -- Peers: folding, and torch's own layer ------------------------------------------------------


def test_folded_and_materialised_keys_answer_alike(data: Data):
    """A collection for `dot` folds W_K into its queries; one for `laplace` cannot."""
    rng = np.random.default_rng(9)
    keys = list(rng.normal(size=(40, 2, 10)))
    w_q, w_k = rng.normal(size=(2, 3, 4, 10)) / 3
    biases = {"b_q": rng.normal(size=(3, 4)), "b_k": rng.normal(size=(3, 4))}
    projection = given(w_q, w_k, **biases, center=rng.normal(size=10))
    queries = [
        parse(SearchRequest, {"query": query.tolist(), "scorer": "dot", "pool": pool, "scale": 0.5})
        for pool in ("max", "sum")
        for query in rng.normal(size=(3, 10))
    ]
    folded, materialised = new(data, keys), new(data, keys, scorer="laplace")
    for collection in (folded, materialised):
        use(collection, projection)
    for three in (queries[:3], queries[3:]):
        one, other = folded.matrix(three), materialised.matrix(three)
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-4)
    top = folded.search_many(queries)
    for a, b in zip(top, materialised.search_many(queries), strict=True):
        assert [hit.weight for hit in a.hits] == pytest.approx(
            [hit.weight for hit in b.hits], abs=1e-5
        )


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_values_of_another_width_are_torchs_multi_head_attention(data: Data, heads: int):
    """W_Q, W_K, W_V and W_O of a layer whose values (d_v = 5) are narrower than its keys (8)."""
    torch.manual_seed(heads)
    layer = torch.nn.MultiheadAttention(8, heads, kdim=8, vdim=5, batch_first=True)
    torch.nn.init.normal_(layer.in_proj_bias)
    torch.nn.init.normal_(layer.out_proj.bias)
    queries, keys, values = torch.randn(3, 8), torch.randn(11, 8), torch.randn(11, 5)
    expected, shares = layer(queries, keys, values, average_attn_weights=False)

    collection = new(data, [key[None] for key in keys.numpy()], values.tolist())
    use(collection, given(heads=heads, **_weights_of(layer)))
    requests = [
        parse(SearchRequest, {"query": query, "mode": "soft", "attend": attend})
        for attend in (100, "all")
        for query in queries.tolist()
    ]
    answers = [found.answer["vector"] for found in collection.search_many(requests)]
    np.testing.assert_allclose(answers[:3], expected.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(answers[3:], expected.detach().numpy(), atol=1e-5)
    matrix = collection.matrix(requests[:3]).head_weights  # (q, H, n)
    np.testing.assert_allclose(matrix, shares.detach().numpy().swapaxes(0, 1), atol=1e-5)


def _weights_of(layer: torch.nn.MultiheadAttention) -> dict[str, np.ndarray]:
    biases = zip(("b_q", "b_k", "b_v"), layer.in_proj_bias.chunk(3), strict=True)
    parts = {
        "w_q": layer.q_proj_weight,
        "w_k": layer.k_proj_weight,
        "w_v": layer.v_proj_weight,
        "w_o": layer.out_proj.weight,
        "b_o": layer.out_proj.bias,
        **dict(biases),
    }
    return {name: part.detach().numpy() for name, part in parts.items()}


def test_without_a_value_in_one_head_there_is_no_vector(data: Data):
    """W_O needs every head's blend, and a head that saw no value has none to give."""
    far = 4000.0  # so that each head's softmax gives the other document exactly nothing
    collection = new(data, [np.array([[far, 0.0]]), np.array([[0.0, far]])], [[1.0, 2.0], None])
    use(collection, given(np.eye(2), np.eye(2), heads=2, w_o=np.eye(4)))
    found = collection.search([1.0, 1.0], mode="soft", scale=1)
    assert found.answer["vector"] is None
    assert found.answer["coverage"] == pytest.approx(0.5)


def test_numbers_are_blended_as_they_are_where_only_vectors_have_matrices(data: Data):
    """W_V is for vectors: a collection that answers with numbers does not need it."""
    collection = new(data, [np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])], [1, 2])
    use(collection, given(np.eye(2), np.eye(2), heads=2, w_v=np.ones((2, 1, 2))))
    found = collection.search([1.0, 0.0], mode="soft", scale=1)
    shares = (softmax([1, 0]) + softmax([0, 0])) / 2
    assert found.answer["mean"] == pytest.approx(shares @ [1, 2])


def test_decode_says_when_nothing_stored_has_the_answers_width(data: Data):
    collection = new(data, [np.eye(2)[:1]], [[1.0, 2.0]])
    use(collection, given(np.eye(2), np.eye(2), w_v=np.ones((1, 2))))
    for value in (None, "@key"):
        with pytest.raises(InvalidRequest, match="answer has 1 dimension") as refused:
            collection.search([1.0, 0.0], mode="soft", decode=True, value=value)
        assert_sentence(refused.value)


# -- What cannot be asked -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(data: Data) -> Collection:
    return new(data, [np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])], [1, 2])


REFUSED = [
    ({"scorer": "euclid"}, InvalidRequest, "scorer", "'euclid'"),
    ({"scorer": "additive"}, InvalidRequest, "scorer", "parameters"),
    ({"pool": "mean"}, InvalidRequest, "pool", "'mean'"),
    ({"scale": 0}, InvalidRequest, "scale", "more than 0"),
    ({"scale": -1}, InvalidRequest, "scale", "more than 0"),
    ({"scale": float("nan")}, InvalidRequest, "scale", "finite"),
    ({"scale": float("inf")}, InvalidRequest, "scale", "finite"),
    ({"temperature": 0}, InvalidRequest, "temperature", "more than 0"),
    ({"temperature": float("nan")}, InvalidRequest, "temperature", "finite"),
    ({"temperature": 1e-12}, InvalidRequest, "temperature", "1e-12"),
    ({"attend": 0}, InvalidRequest, "attend", "from 1 to"),
    ({"attend": "most"}, InvalidRequest, "attend", "'all'"),
    ({"heads": [0.5, 0.5]}, InvalidRequest, "heads", "1 head"),
    ({"heads": [0.0]}, InvalidRequest, "", "above zero"),
    ({"heads": [-1.0]}, InvalidRequest, "heads", "0 or more"),
    ({"mask": {"exclude": ["0", "nobody"]}}, UnknownDocument, "mask", "'nobody'"),
    ({"mask": {"only": ["nobody"]}}, UnknownDocument, "mask", "'nobody'"),
    ({"mask": {"none": []}}, InvalidRequest, "mask", "unknown field"),
    ({"projection": 7}, UnknownProjection, "projection", "7"),
]


@pytest.mark.parametrize(("options", "error", "about", "says"), REFUSED)
def test_bad_options_are_refused_in_a_sentence(
    plain: Collection, options: dict[str, Any], error: type[AttendError], about: str, says: str
):
    with pytest.raises(error, match=re.escape(says)) as refused:
        plain.search([1.0, 0.0], **options)
    assert (refused.value.field or "").startswith(about)
    assert_sentence(refused.value)


@pytest.mark.parametrize(
    ("query", "error", "says"),
    [
        ([1.0, 0.0, 0.0], DimensionMismatch, "has 3 dimensions"),
        ([1.0, float("nan")], InvalidRequest, "finite"),
        ([1e300, 0.0], InvalidRequest, "32 bits"),
        ([], InvalidRequest, "1 or more"),
        ({"id": "nobody"}, UnknownDocument, "'nobody'"),
        ("words", InvalidRequest, "made for vectors"),
    ],
)
def test_bad_queries_are_refused_in_a_sentence(
    plain: Collection, query: Any, error: type[AttendError], says: str
):
    with pytest.raises(error, match=re.escape(says)) as refused:
        plain.search(query)
    assert_sentence(refused.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: split_heads(10, 3), "3 heads do not divide"),
        (lambda: given(np.eye(5), np.eye(5), heads=2), "2 heads do not divide"),
        (lambda: given(np.eye(3), np.eye(4)), "w_k has shape"),
        (lambda: given(np.ones((2, 3, 4)), np.ones((3, 3, 4))), "w_q has shape"),
        (lambda: given(np.eye(3), np.full((3, 3), np.nan)), "NaN"),
        (lambda: given(np.eye(2), np.eye(2), gates=[1.0, 0.0]), "for 1 heads"),
    ],
)
def test_bad_projections_are_refused_in_a_sentence(make: Any, says: str):
    with pytest.raises(InvalidRequest, match=re.escape(says)) as refused:
        make()
    assert_sentence(refused.value)


def test_a_projection_for_other_embeddings_is_refused(plain: Collection):
    with pytest.raises(InvalidRequest, match="takes embeddings of 3 dimensions") as refused:
        plain.add_projection(identity(3))
    assert_sentence(refused.value)


def assert_sentence(error: Exception) -> None:
    """At most two sentences of readable length, and nothing of Python's own."""
    text = str(error)
    assert text.endswith(".")
    assert len(text) < 260
    assert len(re.findall(r"[.;:] ", text)) <= 3
    assert not re.search(r"<class|Traceback|pydantic|constrained|literal\[", text), text
