"""Measures against numbers worked out by hand, and against formulas in float64."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap

from attend.collection.data import Data
from attend.core.errors import InvalidRequest, SourceError
from attend.measure.rankings import MEASURES, evaluate, measure, rank, read_qrels, read_queries
from attend.write.labels import read_judgements
from tests.index.helpers import run_index, vector_data, write_jsonl
from tests.places import DATA

CONALA = DATA / "conala"


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    made = vector_data(tmp_path_factory.mktemp("evaluation")).create(dimension=2)
    made.upsert([{"id": f"d{n}", "vector": [1, n]} for n in range(150)])
    return made


def by_rank(*ids: str) -> dict[str, float]:
    """A run in which the documents stand in this order."""
    return {id: float(-at) for at, id in enumerate(ids)}


def test_measures_by_hand(collection):
    """Graded: d1 is 3, d2 is 1, d3 is 2, d4 is judged and 0; ranked d4 d3 d9 d1, d2 missed."""
    qrels = {"q": {"d1": 3, "d2": 1, "d3": 2, "d4": 0}}
    found = measure(qrels, {"q": by_rank("d4", "d3", "d9", "d1")}, collection)
    dcg = 2 / math.log2(3) + 3 / math.log2(5)
    ideal = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert found.measures == pytest.approx(
        {
            "ndcg@10": dcg / ideal,
            "mrr@10": 1 / 2,
            "recall@10": 2 / 3,
            "recall@100": 2 / 3,
            "map@100": (1 / 2 + 2 / 4) / 3,
            "precision@1": 0,
            "precision@10": 2 / 10,
        }
    )
    assert (found.queries, found.unknown_documents) == (1, 0)
    assert dict(found.by_query["q"]) == pytest.approx(dict(found.measures))


def test_means_are_over_all_judged_queries(collection):
    qrels = {"q": {"d1": 1}, "r": {"d2": 1}, "missed": {"d3": 1}, "unanswered": {"d4": 1}}
    run = {"q": by_rank("d1"), "r": by_rank("d9", "d2"), "missed": by_rank("d1")}
    found = measure(qrels, run, collection)
    assert found.queries == 4
    assert found.measures["mrr@10"] == pytest.approx((1 + 1 / 2 + 0 + 0) / 4)
    assert found.measures["ndcg@10"] == pytest.approx((1 + 1 / math.log2(3)) / 4)
    assert list(found.by_query) == list(qrels)
    assert set(found.by_query["unanswered"].values()) == {0.0}


def test_a_negative_grade_is_not_relevant(collection):
    """Training takes it for an example of what not to find; a ranking loses no more by it."""
    run = {"q": by_rank("d1", "d2", "d3")}
    negative = measure({"q": {"d1": -2, "d2": 1, "d9": -1}}, run, collection)
    zero = measure({"q": {"d1": 0, "d2": 1, "d9": 0}}, run, collection)
    assert negative == zero
    assert zero.measures["ndcg@10"] == pytest.approx(1 / math.log2(3))


def test_intervals_are_those_of_a_bootstrap_over_queries(collection):
    qrels = {f"q{n}": {f"d{n}": 1} for n in range(40)}
    run = {f"q{n}": by_rank(*(f"d{m}" for m in range(n - n % 7, n + 1))) for n in range(40)}
    found = measure(qrels, run, collection)
    values = np.array([each["mrr@10"] for each in found.by_query.values()])
    wanted = bootstrap((values,), np.mean, n_resamples=20_000, rng=1).confidence_interval
    interval = found.intervals()["mrr@10"]
    assert interval.mean == pytest.approx(found.measures["mrr@10"])
    assert (interval.low, interval.high) == pytest.approx((wanted.low, wanted.high), abs=0.01)
    assert found.columns().shape == (40, len(MEASURES))


def test_documents_nobody_has_count_as_not_found(collection):
    qrels = {"q": {"d1": 1, "gone": 1, "also gone": 2, "irrelevant and gone": 0}}
    found = measure(qrels, {"q": by_rank("d1")}, collection)
    assert found.unknown_documents == 2
    assert found.measures["recall@100"] == pytest.approx(1 / 3)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 149), max_size=120, unique=True),
    st.dictionaries(st.integers(0, 149), st.integers(0, 3), min_size=1, max_size=20),
)
def test_measures_by_formula(collection, ranking, grades):
    qrels = {"q": {f"d{n}": grade for n, grade in grades.items()}}
    run = {"q": by_rank(*(f"d{n}" for n in ranking[:100]))}
    found = measure(qrels, run, collection).measures
    assert found == pytest.approx(_formulas(ranking[:100], grades), abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 149), max_size=120, unique=True),
    st.dictionaries(
        st.integers(0, 149), st.fractions(-1, 3, max_denominator=8), min_size=1, max_size=20
    ),
)
def test_real_grades_are_those_of_trec_eval_in_smaller_units(collection, ranking, grades):
    """It takes whole ones alone: every n/8, n/7, … is whole in units of 1/840."""
    unit = Fraction(1, math.lcm(*range(1, 9)))
    whole = {"q": {f"d{n}": max(0, int(grade / unit)) for n, grade in grades.items()}}
    real = {"q": {f"d{n}": float(grade) for n, grade in grades.items()}}
    run = {"q": by_rank(*(f"d{n}" for n in ranking[:100]))}
    found = measure(real, run, collection).measures
    names = {ir_measures.parse_measure(each): name for name, each in MEASURES.items()}
    wanted = {
        names[each]: value
        for each, value in ir_measures.calc_aggregate(list(names), whole, run).items()
    }
    assert found == pytest.approx(wanted if ranking else dict.fromkeys(MEASURES, 0), abs=1e-9)


def test_half_a_grade_is_relevant_and_half_the_gain(collection):
    run = {"q": by_rank("d1", "d2", "d3")}
    found = measure({"q": {"d1": 0.5, "d2": 1.0, "d3": -0.5}}, run, collection)
    ideal = 1 + 0.5 / math.log2(3)
    assert found.measures["ndcg@10"] == pytest.approx((0.5 + 1 / math.log2(3)) / ideal)
    assert (found.measures["precision@1"], found.measures["recall@10"]) == (1, 1)


def _formulas(ranking: list[int], grades: dict[int, int]) -> dict[str, float]:
    gains = np.array([grades.get(n, 0) for n in ranking] + [0] * 200, dtype=np.float64)
    best = np.array(sorted(grades.values(), reverse=True) + [0] * 200, dtype=np.float64)
    discount = 1 / np.log2(np.arange(2, 12))
    ideal = float(best[:10] @ discount)
    hits, relevant = gains > 0, sum(grade > 0 for grade in grades.values())
    first = np.flatnonzero(hits[:10])
    precisions = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    share = 1 / relevant if relevant else 0.0
    return {
        "ndcg@10": float(gains[:10] @ discount) / ideal if ideal else 0.0,
        "mrr@10": 1 / (1 + first[0]) if len(first) else 0.0,
        "recall@10": hits[:10].sum() * share,
        "recall@100": hits[:100].sum() * share,
        "map@100": float((precisions * hits)[:100].sum()) * share,
        "precision@1": float(hits[0]),
        "precision@10": hits[:10].sum() / 10,
    }


def test_equal_scores_stand_in_the_order_in_which_they_are_returned(tmp_path, tiny_encoder):
    """The libraries behind the measures break ties in ways of their own, and not all alike."""
    collection = Data(tmp_path, load_encoder=lambda name: tiny_encoder).create()
    collection.upsert([{"id": id, "text": "one text"} for id in ("m", "z", "a")])
    returned = [hit.id for hit in collection.search("one text").hits]
    assert returned == ["m", "z", "a"]
    for place, id in enumerate(returned, start=1):
        found = evaluate(collection, {"q": "one text"}, {"q": {id: 1}}).measures
        assert found["mrr@10"] == pytest.approx(1 / place)
        assert found["ndcg@10"] == pytest.approx(1 / math.log2(place + 1))


def test_a_collection_is_ranked_by_its_own_search(tmp_path, tiny_encoder):
    collection = Data(tmp_path, load_encoder=lambda name: tiny_encoder).create()
    texts = {f"d{n}": f"{word} {word}" for n, word in enumerate(["whale", "ship", "bread", "sea"])}
    collection.upsert([{"id": id, "text": text} for id, text in texts.items()])
    queries = {"a": "whale", "b": "bread", "unjudged": "sea"}
    found = evaluate(collection, queries, {"a": {"d0": 1}, "b": {"d2": 2}, "elsewhere": {"x": 1}})
    assert found.queries == 2
    assert found.measures["ndcg@10"] == found.measures["mrr@10"] == 1.0
    assert found.measures.keys() == MEASURES.keys()
    assert set(found.by_query) == {"a", "b"}
    with pytest.raises(SourceError, match="None of the 1 queries has a judgement among the 1"):
        evaluate(collection, {"a": "whale"}, {"b": {"d1": 1}})


def test_queries_may_be_vectors(collection):
    queries = {"a": [0, -1], "b": np.float32([1, 1])}
    qrels = {"a": {"d7": 1}, "b": {"d149": 1}}  # of the keys (1, n), the shortest and the longest
    with pytest.raises(InvalidRequest, match=r"'c' has 3 dimensions, but this collection's have 2"):
        evaluate(collection, {**queries, "c": [1, 0, 0]}, {**qrels, "c": {"d1": 1}})
    found = evaluate(collection, queries, qrels)
    reached = [found.by_query[id]["mrr@10"] for id in queries]
    assert reached == pytest.approx([1 / 8, 1])


def test_a_ranking_says_what_the_search_said(tmp_path, tiny_encoder):
    """Batches, fewer attended than are ranked by default, and progress."""
    collection = Data(tmp_path, load_encoder=lambda name: tiny_encoder).create()
    collection.upsert([{"id": f"d{n}", "text": f"word {n}"} for n in range(30)])
    queries = {f"q{n}": f"word {n % 30}" for n in range(300)}
    steps: list[int] = []
    found = rank(collection, queries, on_progress=steps.append, attend=7)
    assert sum(steps) == 300
    assert len(steps) > 1
    assert list(found.rankings) == list(queries)
    for id in ("q3", "q299"):
        answer = collection.search(queries[id], k=7, attend=7)
        ranking = found.rankings[id]
        assert ranking.documents == tuple(hit.id for hit in answer.hits)
        assert len(ranking.documents) == 7
        assert ranking.weight == pytest.approx(answer.hits[0].weight)
        assert (ranking.confidence, answer.confidence) == (1.0, None)  # all is answered, untested
    assert found.revisions == (answer.generation, answer.generation)
    assert (found.projection, found.calibrated) == (answer.projection, False)


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td 3\t1\n",
        "q1\td1\t2\nq1\td2\t0\nq2\td 3\t1\n",
        "q1\t0\td1\t2\nq1\tQ0\td2\t0\r\n\nq2\t0\td 3\t1",
        "q1\td1\t2.0\nq1\td2\t-0.0\nq2\td 3\t1e0\n",
    ],
)
def test_qrels_come_in_two_layouts(tmp_path, content):
    path = tmp_path / "qrels.tsv"
    path.write_bytes(content.encode())
    assert read_qrels(path) == {"q1": {"d1": 2, "d2": 0}, "q2": {"d 3": 1}}


def test_qrels_may_be_separated_by_spaces(tmp_path):
    path = tmp_path / "qrels.txt"
    path.write_text("q1 0 d1 2\nq1 0  d2 0\n")
    assert read_qrels(path) == {"q1": {"d1": 2, "d2": 0}}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("q1\td1\t1\nq1\td2\n", ":2 "),
        ("q1\td1\t1\nq1\td2\thigh\n", ":2 "),
        ("query-id\tcorpus-id\tscore\nquery-id\tcorpus-id\tscore\n", ":2 "),
        ("q1\td1\n", ":1 "),
        ("q1\td1\t1e7\n", ":1 "),
        ("q1\td1\t1\nq1\td2\t-1e300\n", ":2 "),
        ("q1\td1\t1\nq1\td2\tnan\n", ":2 "),
        ("q1\td1\t1\nq1\td2\tinf\n", ":2 "),
        ("q1\t0\td1\t1\textra\n", ":1 "),
        ("", "has no judgements"),
        ("query-id\tcorpus-id\tscore\n", "has no judgements"),
    ],
)
def test_a_broken_judgement_is_told_with_its_line(tmp_path, content, place):
    path = tmp_path / "qrels.tsv"
    path.write_text(content)
    with pytest.raises(SourceError) as error:
        read_qrels(path)
    assert f"{path}{place}" in str(error.value) or f"{path} {place}" in str(error.value)


def test_grades_may_be_any_numbers(tmp_path):
    path = tmp_path / "qrels.tsv"
    path.write_text("\ufeffq1\td1\t0.5\nq1\td2\t-1.25\nq1\td3\t3\n", encoding="utf-8")
    found = read_qrels(path)
    assert found == {"q1": {"d1": 0.5, "d2": -1.25, "d3": 3}}
    assert isinstance(found["q1"]["d3"], int)  # so that it is told as it was given


def test_what_is_taught_can_be_evaluated(tmp_path):
    """One pair of files serves both."""
    queries = tmp_path / "queries.jsonl"
    rows = [{"_id": "a", "vector": [1, 0.5]}, {"query_id": 7, "query_vector": "[0.25, 1]"}]
    write_jsonl(queries, rows)
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\na\td1\t0.5\n7\td2\t-1\n")
    found = read_queries(queries, vectors=True)
    assert {id: list(vector) for id, vector in found.items()} == {"a": [1, 0.5], "7": [0.25, 1]}
    grades = read_qrels(tmp_path / "qrels.tsv")
    rows = read_judgements(queries, tmp_path / "qrels.tsv", vectors=True)
    for id, row in zip(grades, rows, strict=True):
        assert list(found[id]) == list(row.item.query)
        assert grades[id] == {row.item.document: row.item.weight}
    write_jsonl(queries, [{"_id": "a", "text": "a whale"}])
    with pytest.raises(SourceError, match=r"queries\.jsonl:1 cannot be used: .* a list of finite"):
        read_queries(queries, vectors=True)


def test_queries_by_either_name_of_the_id(tmp_path):
    path = tmp_path / "queries.jsonl"
    path.write_text('{"_id": "a", "text": "x", "metadata": {}}\n\n{"id": 7, "text": "é"}\n')
    assert read_queries(path) == {"a": "x", "7": "é"}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('{"_id": "a", "text": "x"}\n{"_id": "b"}\n', ":2 "),
        ('{"_id": "a", "text": "x"}\nplain\n', ":2 "),
        ('["a", "x"]\n', ":1 "),
        ('{"text": "x"}\n', ":1 "),
        ('{"_id": "a", "text": null}\n', ":1 "),
        ('{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n', ":2 "),
        ("", "has no queries"),
    ],
)
def test_a_broken_query_is_told_with_its_line(tmp_path, content, place):
    path = tmp_path / "queries.jsonl"
    path.write_text(content)
    with pytest.raises(SourceError) as error:
        read_queries(path)
    assert f"{path}{place}" in str(error.value) or f"{path} {place}" in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"nothing\.tsv cannot be read"):
        read_qrels(tmp_path / "nothing.tsv")
    path = tmp_path / "latin.tsv"
    path.write_bytes(b"q\xe9\td\t1\n")
    with pytest.raises(SourceError, match=r"latin\.tsv:1 cannot be used: .* not UTF-8"):
        read_qrels(path)


# -- the real encoder on real data ---------------------------------------------------------------


@pytest.mark.skipif(not CONALA.is_dir(), reason=f"the CoNaLa set is not at {CONALA}")
def test_conala_by_the_command_line(tmp_path):
    built = run_index("build", CONALA, "--data", tmp_path, "--json")
    assert built.returncode == 0, built.stderr
    assert json.loads(built.stdout)["documents"] == 2810
    measured = run_index(
        "evaluate", "--data", tmp_path, "--json",
        "--queries", CONALA / "queries.jsonl", "--qrels", CONALA / "qrels" / "test.tsv",
    )  # fmt: skip
    assert measured.returncode == 0, measured.stderr
    result = json.loads(measured.stdout)
    assert result["queries"] == 500
    assert result["unknown_documents"] == 0
    assert result["ndcg@10"] == pytest.approx(0.679, abs=0.01)
    low, high = result["intervals"]["ndcg@10"]
    assert low < result["ndcg@10"] < high
    assert high - low == pytest.approx(4 * 0.0184, rel=0.1)  # four standard errors of the mean
