"""Files of examples: what each kind of file gives, and what is said of each bad row."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attend.core.errors import SourceError
from attend.core.types import Example
from attend.source import RowItem, RowProblem, open_source
from attend.source.files import SAVE_AS
from attend.write.feedback import gather
from attend.write.labels import (
    CLICKS,
    label_columns,
    propensity,
    read_clicks,
    read_judgements,
    read_labels,
)
from tests.index.helpers import write_jsonl


def fit(examples):
    """A collection that takes everything."""
    return {}


def split(items) -> tuple[list[Example], list[RowProblem]]:
    found = list(items)
    examples = [each.item for each in found if isinstance(each, RowItem)]
    return examples, [each for each in found if isinstance(each, RowProblem)]


def short(examples) -> list[tuple]:
    """Query, document and weight; vectors as lists."""
    return [
        (e.query if isinstance(e.query, str) else e.query.tolist(), e.document, e.weight)
        for e in examples
    ]


def write_csv(path, header, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([header, *rows])
    return path


def table(path, *, vectors=False, **named):
    source = open_source(str(path))
    columns = label_columns(source, vectors=vectors, **named)
    return split(read_labels(source, columns, vectors=vectors))


def clicks(path, **options):
    source = open_source(str(path))
    return split(read_clicks(source, label_columns(source, CLICKS), **options))


# -- judgements ------------------------------------------------------------------------------------


QUERIES = [
    {"_id": "q1", "text": "a whale"},
    {"_id": 2, "text": "bread"},
    {"_id": "q3", "text": "unused"},
]


@pytest.fixture
def queries(tmp_path):
    return write_jsonl(tmp_path / "queries.jsonl", QUERIES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("beir.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t2\n2\td 2\t0.25\nq1\td3\t-1\n"),
        ("bare.tsv", "q1\td1\t2\n2\td 2\t0.25\nq1\td3\t-1\n"),
        (
            "bom.tsv",
            "\ufeffquery-id\tcorpus-id\tscore\r\nq1\td1\t2\n2\td 2\t.25\r\n\r\nq1\td3\t-1",
        ),
        ("trec.txt", "q1\t0\td1\t2\n2\t0\td 2\t0.25\nq1\t0\td3\t-1\n"),
        ("cells.csv", "query-id,corpus-id,score\nq1,d1,2\n2,d 2,0.25\nq1,d3,-1\n"),
    ],
)
def test_judgements_are_graded_in_every_layout(tmp_path, queries, name, text):
    qrels = tmp_path / name
    qrels.write_text(text, encoding="utf-8")
    examples, problems = split(read_judgements(queries, qrels))
    assert problems == []
    assert short(examples) == [
        ("a whale", "d1", 2.0),
        ("bread", "d 2", 0.25),
        ("a whale", "d3", -1),
    ]
    assert {e.source for e in examples} == {name}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("q9\td1\t1", "There is no query 'q9' in queries.jsonl."),
        ("q1\td1\thigh", "The label in 'score' is 'high', but a number is expected."),
        ("q1\td1\tnan", "is nan, but a finite number"),
        ("q1\td1\tinf", "is inf, but a finite number"),
        ("q1\td1\t", "The label in 'score' is missing."),
        ("q1\t\t1", "has no id: its field 'corpus-id' is missing or empty"),
        ("q1\td1", "has 2 cells, but query id, document id and grade are expected"),
    ],
)
def test_a_bad_judgement_is_a_problem_of_its_line(tmp_path, queries, line, said):
    qrels = tmp_path / "qrels.tsv"
    for at, text in enumerate(["q1\td0\t1", "q1\td2\t1"], start=1):
        lines = ["q1\td0\t1", "q1\td2\t1"]
        lines.insert(at, line)
        qrels.write_text("\n".join(lines), encoding="utf-8")
        examples, [problem] = split(read_judgements(queries, qrels))
        assert problem.place == f"qrels.tsv:{at + 1}", text
        assert said in problem.reason
        assert [e.document for e in examples] == ["d0", "d2"]


def test_a_first_line_with_a_known_query_is_no_header(tmp_path, queries):
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("q1\td1\thigh\nq1\td2\t1\n")
    examples, [problem] = split(read_judgements(queries, qrels))
    assert problem.place == "qrels.tsv:1"
    assert len(examples) == 1


def test_bytes_that_are_no_utf8_are_a_problem_of_their_line(tmp_path, queries):
    qrels = tmp_path / "qrels.tsv"
    qrels.write_bytes(b"q1\td1\t1\nq1\td\xff\t1\nq1\td2\t1\n")
    examples, [problem] = split(read_judgements(queries, qrels))
    assert str(problem) == (f"qrels.tsv:2: The row holds bytes that are not UTF-8. {SAVE_AS}")
    assert len(examples) == 2


def test_bad_queries_are_problems_and_so_are_their_judgements(tmp_path):
    rows = [{"_id": "a", "text": " "}, {"_id": "b", "text": "x"}, {"_id": "b", "text": "y"}, {}]
    queries = write_jsonl(tmp_path / "queries.jsonl", rows)
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("a\td1\t1\nb\td1\t1\n")
    examples, problems = split(read_judgements(queries, qrels))
    assert short(examples) == [("x", "d1", 1.0)]
    said = [str(problem) for problem in problems]
    assert said[0].startswith("queries.jsonl:1: The query in 'text' is empty.")
    assert said[1].startswith("queries.jsonl:3: The query id 'b' was used before")
    assert said[2].startswith("queries.jsonl:4: The row is no query")
    assert said[3] == "qrels.tsv:1: There is no query 'a' in queries.jsonl."


def test_queries_may_be_vectors(tmp_path):
    queries = write_jsonl(tmp_path / "queries.jsonl", [{"_id": "a", "vector": [1, 0.5]}])
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("a\td1\t1\n")
    [example], [] = split(read_judgements(queries, qrels, vectors=True))
    assert short([example]) == [([1.0, 0.5], "d1", 1.0)]


def test_queries_without_a_usable_one_are_refused(tmp_path):
    queries = write_jsonl(tmp_path / "queries.jsonl", [{"_id": "a"}])
    with pytest.raises(SourceError, match="has no usable query"):
        list(read_judgements(queries, tmp_path / "qrels.tsv"))


# -- tables ----------------------------------------------------------------------------------------


ROWS = [("a whale", "d1", 2), ("bread", "7", 0.5), ("bread", "d1", -1)]
EXPECTED = [("a whale", "d1", 2.0), ("bread", "7", 0.5), ("bread", "d1", -1.0)]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_a_table_of_any_kind(tmp_path, suffix):
    path = tmp_path / f"labels{suffix}"
    names = ("Query Text", "doc-id", "label")
    objects = [dict(zip(names, row, strict=True)) for row in ROWS]
    if suffix in (".csv", ".tsv"):
        write_csv(path, names, ROWS)
    elif suffix == ".jsonl":
        write_jsonl(path, objects)
    elif suffix == ".json":
        path.write_text(json.dumps(objects))
    else:
        pq.write_table(
            pa.table(
                {
                    n: [str(row[n]) if n != "label" else float(row[n]) for row in objects]
                    for n in names
                }
            ),
            path,
        )
    examples, problems = table(path)
    assert problems == []
    assert short(examples) == EXPECTED
    assert all(e.source == path.name for e in examples)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (
            ["question", "document_id", "weight"],
            "query: question · document: document_id · label: weight",
        ),
        (
            ["text", "id", "relevance", "rank"],
            "query: text · document: id · label: relevance · position: rank",
        ),
        (["qid", "query", "pid", "score"], "query: query · document: pid · label: score"),
        (["q", "url"], "query: q · document: url · label: none, so that each row counts as 1"),
    ],
)
def test_columns_are_guessed_by_name(tmp_path, header, found):
    path = write_csv(tmp_path / "t.csv", header, [["1"] * len(header)])
    said = label_columns(open_source(str(path))).describe()
    assert said.splitlines()[0] == found
    assert said.splitlines()[1].startswith("guessed: query, document")


def test_columns_that_are_named_are_not_guessed(tmp_path):
    path = write_csv(
        tmp_path / "t.csv",
        ["query", "id", "asked", "label", "stars"],
        [["no", "d1", "yes", "9", "3"]],
    )
    examples, _ = table(path, query="asked", label="stars")
    assert short(examples) == [("yes", "d1", 3.0)]
    columns = label_columns(open_source(str(path)), query="asked", document="id", label="stars")
    assert columns.guessed == ()
    assert "guessed" not in columns.describe()


@pytest.mark.parametrize(
    ("header", "named", "said"),
    [
        (
            ["a", "id"],
            {},
            r"No column of t.csv looks like the query. Choose with --query-column "
            r"among a, id",
        ),
        (["query", "b"], {}, "looks like the document. Choose with --document-column"),
        (["query", "id"], {"label": "stars"}, "has no column 'stars' in its first 1 rows"),
        (["query", "id", "position", "clicked"], {}, "seems to be a click log. Give it with"),
    ],
)
def test_columns_that_cannot_be_found_are_named(tmp_path, header, named, said):
    path = write_csv(tmp_path / "t.csv", header, [["1"] * len(header)])
    with pytest.raises(SourceError, match=said):
        label_columns(open_source(str(path)), **named)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["", "d1", "1", ""], "The query in 'query' is empty."),
        ([" ", "d1", "1", ""], "The query in 'query' is empty."),
        (["q", "", "1", ""], "has no id: its field 'id'"),
        (["q", "d1", "good", ""], "The label in 'label' is 'good', but a number"),
        (["q", "d1", "", ""], "The label in 'label' is missing."),
        (["q", "d1", "NaN", ""], "is nan, but a finite"),
        (["q", "d1", "-inf", ""], "is -inf, but a finite"),
        (["q", "d1", "1e7", ""], "is 1e+07, but a finite number between -1e+06 and 1e+06"),
        (["q", "d1", "1", "0"], "The position in 'rank' is '0', but a whole number from 1"),
        (["q", "d1", "1", "1.5"], "The position in 'rank' is '1.5'"),
        (["q", "d1", "1"], "The row has 3 cells"),
    ],
)
def test_a_bad_row_of_a_table_is_a_problem_of_its_line(tmp_path, row, said):
    good = ["q", "d0", "1", "2"]
    path = write_csv(tmp_path / "t.csv", ["query", "id", "label", "rank"], [good, row, good])
    examples, [problem] = table(path)
    assert problem.place == "t.csv:3"
    assert said in problem.reason
    assert [e.position for e in examples] == [2, 2]


def test_true_and_false_are_labels_in_every_format(tmp_path):
    rows = [{"query": "q", "id": "a", "label": True}, {"query": "q", "id": "b", "label": False}]
    assert short(table(write_jsonl(tmp_path / "t.jsonl", rows))[0]) == [
        ("q", "a", 1.0),
        ("q", "b", 0.0),
    ]
    path = write_csv(tmp_path / "t.csv", ["query", "id", "label"], [["q", "a", "TRUE"]])
    assert short(table(path)[0]) == [("q", "a", 1.0)]


def test_vectors_in_tables(tmp_path):
    rows = [["[1, 0.5]", "a"], ["[1, null]", "b"], ["whale", "c"]]
    path = write_csv(tmp_path / "t.csv", ["vector", "id"], rows)
    examples, problems = table(path, vectors=True)
    assert short(examples) == [([1.0, 0.5], "a", 1.0)]
    assert [p.place for p in problems] == ["t.csv:3", "t.csv:4"]
    assert "'whale', but a list of finite numbers is expected" in problems[1].reason
    lists = write_jsonl(tmp_path / "t.jsonl", [{"query": [1, 2], "id": "a"}])
    assert short(table(lists)[0]) == [([1.0, 2.0], "a", 1.0)]


# -- click logs ------------------------------------------------------------------------------------


HEADER = ["query", "doc_id", "position", "clicked"]


def test_clicks_are_weighted_by_inverse_propensity(tmp_path):
    rows = [
        ("q", "a", 1, 1),
        ("q", "a", 1, 0),
        ("q", "a", 4, 1),
        ("q", "b", 2, 1),
        ("q", "c", 3, 0),
        ("r", "a", 50, 1),
    ]
    examples, [notice] = clicks(write_csv(tmp_path / "log.csv", HEADER, rows))
    # By hand: a was clicked at ranks 1 and 4 in three showings; 50 is clipped to 10.
    assert short(examples) == [
        ("q", "a", pytest.approx((1 + 4) / 3)),
        ("q", "b", 2.0),
        ("r", "a", 10.0),
    ]
    assert {e.position for e in examples} == {None}
    assert not notice.rejects
    assert notice.reason.startswith("2 of 6 rows were shown and not clicked.")


def test_what_was_not_clicked_is_negative_only_when_asked(tmp_path):
    rows = [("q", "a", 1, 1), ("q", "b", 2, 0), ("q", "b", 4, 0), ("q", "c", 1, "false")]
    path = write_csv(tmp_path / "log.csv", HEADER, rows)
    assert short(clicks(path)[0]) == [("q", "a", 1.0)]
    examples, problems = clicks(path, negatives=True)
    assert problems == []
    # b was probably seen less than c: 1/2 and 1/4 of the times it was shown.
    assert short(examples) == [("q", "a", 1.0), ("q", "b", -0.375), ("q", "c", -1.0)]


def test_eta_zero_knows_no_position_bias_and_clip_bounds_a_click(tmp_path):
    path = write_csv(tmp_path / "log.csv", HEADER, [("q", "a", 9, 1), ("q", "b", 4, 1)])
    assert [e.weight for e in clicks(path, eta=0)[0]] == [1, 1]
    assert [e.weight for e in clicks(path, eta=0.5)[0]] == [pytest.approx(3), pytest.approx(2)]
    assert [e.weight for e in clicks(path, clip=5)[0]] == [5, 4]


def test_weights_of_simulated_clicks_are_the_relevances(tmp_path):
    """The estimate is unbiased: ranks differ, relevances come out all the same."""
    rng = np.random.default_rng(7)
    relevance = {"a": 0.8, "b": 0.4, "c": 0.4}
    shown_at = {"a": 8, "b": 1, "c": 5}
    rows = []
    for document, rank in shown_at.items():
        seen = rng.random(20_000) < 1 / rank
        clicked = seen & (rng.random(20_000) < relevance[document])
        rows += [("q", document, rank, int(each)) for each in clicked]
    examples, _ = clicks(write_csv(tmp_path / "log.csv", HEADER, rows))
    found = {e.document: e.weight for e in examples}
    assert found == {name: pytest.approx(value, abs=0.04) for name, value in relevance.items()}


@given(st.integers(1, 10**6), st.floats(0, 5), st.floats(1, 1e6))
def test_propensity_is_a_probability_that_falls_with_rank(position, eta, clip):
    found = propensity(position, eta, clip)
    assert 1 / clip <= found <= 1
    assert propensity(position + 1, eta, clip) <= found
    assert found == pytest.approx(max(math.exp(-eta * math.log(position)), 1 / clip))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["q", "a", "", "1"], "The position in 'position' is missing"),
        (["q", "a", "-1", "1"], "The position in 'position' is '-1'"),
        (["q", "a", "1", "2"], "The click in 'clicked' is '2', but 0 or 1 is expected."),
        (["q", "a", "1", ""], "The click in 'clicked' is ''"),
        (["", "a", "1", "1"], "The query in 'query' is empty."),
        (["q", "", "1", "1"], "has no id"),
    ],
)
def test_a_bad_row_of_a_log_is_a_problem_of_its_line(tmp_path, row, said):
    path = write_csv(tmp_path / "log.csv", HEADER, [["q", "b", 1, 1], row])
    examples, [problem] = clicks(path)
    assert short(examples) == [("q", "b", 1.0)]
    assert problem.place == "log.csv:3"
    assert said in problem.reason


def test_a_log_needs_positions(tmp_path):
    path = write_csv(tmp_path / "log.csv", ["query", "id", "clicked"], [["q", "a", 1]])
    with pytest.raises(SourceError, match=r"looks like the position\. Choose with --position"):
        clicks(path)


# -- gathering -------------------------------------------------------------------------------------


def test_of_contradicting_examples_the_last_counts_and_is_reported():
    items = [
        RowItem("t:2", Example("q", "a", 1)),
        RowItem("t:3", Example("q", "b", 1)),
        RowItem("t:4", Example("q", "a", 0)),
        RowItem("t:5", Example("q", "b", 1)),
        RowProblem("t:6", "The row fails."),
        RowProblem("t", "A notice.", rejects=False),
    ]
    told: list[RowProblem] = []
    found = gather(items, fit, on_problem=told.append)
    assert found.entries == [Example("q", "a", 0), Example("q", "b", 1)]
    assert (found.skipped, found.repeated) == (2, 1)
    assert str(told[-1]) == (
        "t:2: The label 1 of 'a' is contradicted by 0 at t:4, for the same query. "
        "The later one counts."
    )
    assert len(told) == 3


def test_what_the_collection_refuses_is_a_problem_of_its_row():
    items = [RowItem("t:2", Example("q", "a")), RowItem("t:3", Example("q", "b"))]
    told: list[RowProblem] = []
    found = gather(items, lambda given: {1: ValueError("No such.")}, on_problem=told.append)
    assert [e.document for e in found.entries] == ["a"]
    assert [str(each) for each in told] == ["t:3: No such."]
    assert found.skipped == 1


@pytest.mark.parametrize(
    "items",
    [
        [RowProblem("t:6", "It fails.")],
        [RowItem("t:6", Example("q", "a", 1)), RowItem("t:7", Example("q", "a", 2))],
    ],
)
def test_strict_stops_at_the_first(items):
    with pytest.raises(SourceError, match=r"Stopped at t:6: .*Nothing was stored"):
        gather(items, fit, strict=True)
    notice = RowProblem("t", "A notice.", rejects=False)
    assert gather([notice], fit, strict=True).skipped == 0
