"""Run files of TREC, measured by trec_eval itself (pytrec_eval) and by ir_measures."""

from __future__ import annotations

import json

import ir_measures
import numpy as np
import pytest
import pytrec_eval

from attend.measure.rankings import falling
from tests.index.cli.test_cli import invoke
from tests.index.helpers import vector_data, write_jsonl

NAMES = {
    "ndcg@10": "ndcg_cut_10",
    "recall@10": "recall_10",
    "recall@100": "recall_100",
    "map@100": "map_cut_100",
    "precision@1": "P_1",
    "precision@10": "P_10",
}


@pytest.fixture
def files(tmp_path):
    """Documents of which many have the same score, or one that float32 cannot tell."""
    random = np.random.default_rng(5)
    vectors = np.repeat(random.normal(size=(60, 3)), 3, axis=0)
    vectors[1::3] += 1e-9
    order = random.permutation(len(vectors))
    collection = vector_data(tmp_path / "data").create(dimension=3, normalize=True)
    collection.upsert(
        [{"id": f"d{order[n]}", "vector": vector.tolist()} for n, vector in enumerate(vectors)]
    )
    queries = [{"_id": f"q{n}", "vector": random.normal(size=3).tolist()} for n in range(25)]
    rows = [
        (query["_id"], f"d{document}", grade)
        for query in queries
        for document, grade in zip(
            random.choice(180, 12, replace=False), [3, 2, 1, 0] * 3, strict=True
        )
    ]
    qrels = tmp_path / "qrels.tsv"
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
    qrels.write_text("\n".join(lines) + "\n")
    return {
        "data": tmp_path / "data",
        "queries": write_jsonl(tmp_path / "queries.jsonl", queries),
        "qrels": qrels,
        "run": tmp_path / "run.trec",
    }, rows


def evaluated(files, *more):
    options = [part for name, path in files.items() for part in (f"--{name}", path)]
    return invoke("evaluate", *options, *more)


def test_others_measure_the_run_as_evaluate_does(files):
    paths, rows = files
    ours = json.loads(evaluated(paths, "--json").stdout)
    assert ours["run"] == str(paths["run"])
    run: dict[str, dict[str, float]] = {}
    for line in paths["run"].read_text().splitlines():
        query, _, document, rank, score, tag = line.split()
        run.setdefault(query, {})[document] = float(score)
        assert (int(rank), tag) == (len(run[query]), "attend-1")
    qrels: dict[str, dict[str, int]] = {}
    for query, document, grade in rows:
        qrels.setdefault(query, {})[document] = grade
    measures = {"ndcg_cut.10", "recall.10,100", "map_cut.100", "P.1,10"}
    by_query = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    for name, theirs in NAMES.items():
        mean = np.mean([values[theirs] for values in by_query.values()])
        assert ours[name] == pytest.approx(mean, abs=1e-9), name
    read = list(ir_measures.read_trec_run(str(paths["run"])))
    (mrr,) = ir_measures.calc_aggregate([ir_measures.RR @ 10], qrels, read).values()
    assert ours["mrr@10"] == pytest.approx(mrr, abs=1e-9)


def test_scores_fall_in_single_precision():
    scores = np.float32(falling([1.0, 1.0, 1 - 1e-12, 0.5, -3.0, -3.0]))
    assert (np.diff(scores) < 0).all()
    assert scores.tolist() == pytest.approx([1, 1, 1, 0.5, -3, -3], rel=1e-6)


def test_what_the_format_cannot_hold_is_an_error(files, tmp_path):
    paths, _ = files
    vector_data(paths["data"]).collection().upsert([{"id": "a b", "vector": [1, 1, 1]}])
    failed = evaluated(paths)
    assert failed.exit_code == 1
    assert "The id 'a b' has a space, which a run file of TREC cannot hold" in failed.stderr
    assert not paths["run"].exists()
    both = evaluated(paths, "--compare", "1", "active")
    assert both.exit_code == 2
    assert "leave --compare and --interactions out" in both.stderr
