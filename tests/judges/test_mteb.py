"""MTEB's own evaluation of a library beside `attend evaluate`, over parts of two data sets."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import mteb
import pytest
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import SearchProtocol

import attend
from attend.collection.data import Data
from attend.connect.mteb import AttendSearch
from attend.core.errors import InvalidRequest
from attend.measure import rankings
from tests.index.helpers import run_index
from tests.places import DATA

QUERIES, DOCUMENTS = 25, 90
FIGURES = {
    "ndcg@10": "ndcg_cut_10",
    "recall@10": "recall_10",
    "recall@100": "recall_100",
    "map@100": "map_cut_100",
    "precision@1": "P_1",
    "precision@10": "P_10",
}
"""Our measures → those of MTEB before it rounds the means to five digits."""


def part_of(source: Path, target: Path) -> None:
    """Write the first queries of a data set, their documents and others, in BEIR's layout."""
    with open(source / "qrels" / "test.tsv") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    names = list(dict.fromkeys(row["query-id"] for row in rows))[:QUERIES]
    # Of a query with hundreds of documents a few, so that encoding takes seconds.
    judged: dict[str, list[dict[str, str]]] = {name: [] for name in names}
    for row in rows:
        if row["query-id"] in judged and len(judged[row["query-id"]]) < 4:
            judged[row["query-id"]].append(row)
    relevant = {row["corpus-id"] for group in judged.values() for row in group}
    (target / "qrels").mkdir(parents=True)
    with open(target / "qrels" / "test.tsv", "w") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for group in judged.values():
            file.writelines(f"{r['query-id']}\t{r['corpus-id']}\t{r['score']}\n" for r in group)
    lines = (source / "queries.jsonl").read_text().splitlines()
    (target / "queries.jsonl").write_text(
        "\n".join(line for line in lines if json.loads(line)["_id"] in judged)
    )
    others = max(0, DOCUMENTS - len(relevant))
    with open(target / "corpus.jsonl", "w") as file:
        for line in (source / "corpus.jsonl").read_text().splitlines():
            row = json.loads(line)
            others -= row["_id"] not in relevant
            if row["_id"] in relevant or others >= 0:
                row["text"] = row["text"][:400]
                file.write(json.dumps(row) + "\n")


def task_of(name: str, folder: Path) -> AbsTaskRetrieval:
    """Return a retrieval task of MTEB over local files."""

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(
            dataset={"path": str(folder), "revision": "local"},
            name=name,
            description="A part of a data set in local files.",
            type="Retrieval",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, num_proc=None, **others):
            if self.data_loaded:
                return
            read = [
                [json.loads(line) for line in (folder / file).read_text().splitlines()]
                for file in ("queries.jsonl", "corpus.jsonl")
            ]
            self.queries = {"test": {row["_id"]: row["text"] for row in read[0]}}
            self.corpus = {"test": {row["_id"]: row for row in read[1]}}
            self.relevant_docs = {"test": rankings.read_qrels(folder / "qrels" / "test.tsv")}
            self.data_loaded = True

        def task_specific_scores(self, scores, qrels, results, hf_split, hf_subset):
            return {
                f"exact_{name}": sum(values[name] for values in scores.values()) / len(scores)
                for name in FIGURES.values()
            }

    return LocalRetrieval()


@pytest.mark.parametrize("name", ["scifact", "nfcorpus"])
def test_figures_are_those_of_evaluate(name, tmp_path):
    if not (DATA / name).is_dir():
        pytest.skip(f"the data set {name} is not beside the repository, in ../shared/data")
    folder = tmp_path / name
    part_of(DATA / name, folder)
    task = task_of(f"Local{name}", folder)
    model = AttendSearch(tmp_path / "library", lexical=True)
    assert isinstance(model, SearchProtocol)
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    (scores,) = result.task_results[0].scores["test"]
    on = ["--data", tmp_path / "own"]
    run_index("build", folder, *on)
    files = ["--queries", folder / "queries.jsonl", "--qrels", folder / "qrels" / "test.tsv"]
    ours = json.loads(run_index("evaluate", *on, *files, "--lexical", "true", "--json").stdout)
    for measure, theirs in FIGURES.items():
        assert scores[f"exact_{theirs}"] == pytest.approx(ours[measure], abs=1e-6), measure
    assert scores["mrr_at_10"] == pytest.approx(ours["mrr@10"], abs=1e-6)
    assert scores["main_score"] == pytest.approx(ours["ndcg@10"], abs=1e-5)
    assert 0.3 < ours["ndcg@10"] < 1  # neither nothing nor everything is right


CORPUS = [
    {"id": "a", "title": "", "text": "alpha beta"},
    {"id": "b", "title": "gamma", "text": "alpha"},
    {"id": "c", "title": "", "text": " "},
]


@pytest.fixture
def model(tmp_path, tiny_encoder):
    return AttendSearch(Data(tmp_path / "data", load_encoder=lambda name: tiny_encoder))


def test_a_collection_follows_its_corpus_and_keeps_apart_from_others(model):
    task = task_of("Local task!", Path())
    place = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default"}
    model.index(CORPUS, **place, encode_kwargs={}, num_proc=None)
    assert model.library.names() == ["Local_task_-default-test"]
    model.index(CORPUS[1:], **place)
    assert model.library.collection("Local_task_-default-test").ids() == {"b", "c"}
    model.index(CORPUS, **{**place, "hf_subset": "de"})
    assert len(model.library.names()) == 2


def test_top_ranked_documents_and_instructions(model):
    task = task_of("Local", Path())
    place = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default"}
    model.index(CORPUS, **place)
    queries = [{"id": "q", "text": "alpha", "instruction": "beta"}]
    run = model.search(queries, **place, top_k=2000)
    assert next(iter(run["q"])) == "a"
    assert run["q"]["a"] > run["q"]["b"]
    plain = model.search([{"id": "q", "text": "alpha beta"}], **place, top_k=10)
    assert plain == run
    ranked = model.search(queries, **place, top_k=10, top_ranked={"q": ["b"]})
    assert list(ranked["q"]) == ["b"]
    with pytest.raises(InvalidRequest, match="'q' is no text"):
        model.search([{"id": "q", "text": [{"role": "user"}]}], **place, top_k=10)


def test_results_name_the_version_and_the_options(model):
    meta = AttendSearch(model.library, lexical=True).mteb_model_meta
    assert (meta.name, meta.revision) == ("attend/attend", attend.__version__)
    assert meta.experiment_kwargs == {"lexical": True}
