"""`teach`, `train` and `projections` on the command line: files in, figures out.

Trainings are stood in for by one that reports fixed figures: what is learned has tests of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
import types

import pytest
from click.testing import CliRunner

from attend.api.base import parse
from attend.api.learning import TrainRequest
from attend.cli import main
from attend.cli.common import REJECTED
from attend.projection import identity
from tests import warm
from tests.index.helpers import vector_data, write_jsonl

WORDS = ["whale", "ship", "bread", "sea", "flour"]

REPORT = {
    "promoted": True,
    "reason": "The gain of 0.186 is significant.",
    "version": 2,
    "before": {"ndcg@10": 0.645, "mrr@10": 0.5},
    "after": {"ndcg@10": 0.831, "mrr@10": 0.75},
    "views": {
        "random": {
            "label": "random questions",
            "before": 0.645,
            "after": 0.831,
            "difference": 0.186,
            "interval": [0.15, 0.22],
            "p": 0.0001,
            "queries": 162,
        },
        "unseen": None,
    },
    "previous": 1,
    "tests": 3,
    "groups": 60,
    "level": 0.00338,
    "seconds": 12.34,
    "chosen": {"rate": 0.001, "heads": 2, "objective": "ranking"},
    "examples": {"examples": 4},
}


PAIR = ["--queries", __file__, "--qrels", __file__]


class StandIn(types.ModuleType):
    """`attend.learning` with a training that reports fixed figures."""

    def __init__(self) -> None:
        super().__init__("attend.learning")
        self.fields: dict[str, object] = {}
        self.report = dict(REPORT)
        self.seen = -1

    def train(self, collection, *, progress=None, cancelled=None, **fields):
        parse(TrainRequest, fields)
        self.fields = fields
        self.seen = collection.store.example_count()
        progress("fitting", 0.5)
        progress("measuring", 1.0000001)
        return self.report


@pytest.fixture
def training(monkeypatch):
    module = StandIn()
    monkeypatch.setitem(sys.modules, "attend.learning", module)
    return module


def invoke(*arguments: object):
    return CliRunner().invoke(main, [str(each) for each in arguments], prog_name="attend")


def one_object(result, status: int = 0) -> dict:
    assert result.exit_code == status, result.output
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


@pytest.fixture
def library(tmp_path, tiny_encoder_folder):
    rows = [{"id": f"d{n}", "text": word, "value": n} for n, word in enumerate(WORDS)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    built = invoke("build", path, "--data", tmp_path / "data", "--encoder", tiny_encoder_folder)
    assert built.exit_code == 0, built.output
    return tmp_path / "data"


@pytest.fixture
def judged(tmp_path):
    """--queries and --qrels with one bad row of each kind that a collection can refuse."""
    queries = write_jsonl(
        tmp_path / "queries.jsonl",
        [{"_id": "q1", "text": "a hunt"}, {"_id": "q2", "text": "to bake"}],
    )
    qrels = tmp_path / "qrels.tsv"
    rows = ["query-id\tcorpus-id\tscore", "q1\td0\t2", "q1\tgone\t1", "q2\td2\t1", "q2\td4\tx"]
    qrels.write_text("\n".join(rows), encoding="utf-8")
    return ["--queries", queries, "--qrels", qrels]


def examples_of(library) -> list[tuple[str | None, float]]:
    learned = vector_data(library).collection().store.examples()
    weights = zip(learned.questions.tolist(), learned.weights.tolist(), strict=True)
    return [(learned.texts[at], weight) for at, weight in weights]


# -- teach -----------------------------------------------------------------------------------------


def test_teach_stores_what_can_be_used_and_tells_the_rest(library, judged):
    result = invoke("teach", "--data", library, "--json", *judged)
    assert one_object(result, REJECTED) == {
        **{"added": 2, "replaced": 0, "examples": 2, "questions": 2},
        **{"skipped": 2, "repeated": 0, "forgotten": 0, "collection": "default"},
    }
    assert "qrels.tsv:3: No document has the id 'gone'; store the document first" in result.stderr
    assert "qrels.tsv:5: The label in 'score' is 'x', but a number is expected." in result.stderr
    assert "2 rows could not be used." in result.stderr
    assert examples_of(library) == [("a hunt", 2.0), ("to bake", 1.0)]


def test_teach_says_it_in_a_sentence(library, judged):
    result = invoke("teach", "--data", library, *judged)
    assert result.stdout == (
        "default: 2 examples added, 0 replaced, 0 repeated, 2 rows skipped; 2 queries. "
        "2 examples are stored.\n"
    )


def test_files_of_all_kinds_together(library, judged, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("asked,id,stars\na hunt,d0,5\na hunt,d1,-1\n")
    log = tmp_path / "log.tsv"
    log.write_text("query\tid\trank\tclick\nto sail\td1\t2\t1\nto sail\td2\t1\t0\n")
    columns = ["--query-column", "asked", "--label-column", "stars"]
    given = ["--examples", table, *columns]
    result = invoke("teach", "--data", library, "--json", *judged, *given)
    found = one_object(result, REJECTED)
    assert (found["added"], found["skipped"]) == (3, 3)
    assert "labels.csv: query: asked · document: id · label: stars" in result.stderr
    assert "is contradicted by 5 at labels.csv:2" in result.stderr
    result = invoke("teach", "--data", library, "--json", "--clicks", log, "--eta", 2)
    assert one_object(result)["added"] == 1
    assert "1 of 2 rows were shown and not clicked." in result.stderr
    result = invoke("teach", "--data", library, "--json", "--clicks", log, "--negatives")
    assert (one_object(result)["added"], one_object(result)["replaced"]) == (1, 1)
    assert sorted(examples_of(library)) == [
        ("a hunt", -1.0),
        ("a hunt", 5.0),
        ("to bake", 1.0),
        ("to sail", -1.0),
        ("to sail", 2.0),
    ]


def test_info_says_how_much_was_taught(library, judged):
    invoke("teach", "--data", library, *judged)
    info = one_object(invoke("info", "--data", library, "--json"))
    assert (info["examples"], info["questions"], info["keys"]) == (2, 2, len(WORDS))
    assert re.search(r"^questions +2$", invoke("info", "--data", library).stdout, re.MULTILINE)


def test_forget_deletes_what_was_there_but_not_for_nothing(library, judged, tmp_path):
    assert invoke("teach", "--data", library, *judged).exit_code == REJECTED
    table = tmp_path / "labels.csv"
    table.write_text("query,id\nanother,gone\n")
    again = ["teach", "--data", library, "--json", "--forget", "--examples", table]
    failed = invoke(*again)
    assert failed.exit_code == 1
    assert "No row can be used, and nothing was changed." in failed.stderr
    assert len(examples_of(library)) == 2
    table.write_text("query,id\nanother,d3\n")
    assert one_object(invoke(*again))["forgotten"] == 2
    assert examples_of(library) == [("another", 1.0)]


def test_strict_stops_and_stores_nothing(library, judged, training):
    for command in ("teach", "train"):
        result = invoke(command, "--data", library, "--strict", *judged)
        assert result.exit_code == 1
        assert "Error: Stopped at qrels.tsv:5: The label in 'score' is 'x'" in result.stderr
    assert examples_of(library) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["teach"], "Give examples"),
        (["teach", "--qrels", __file__], "--queries and --qrels belong together"),
        (["train", "--queries", __file__], "--queries and --qrels belong together"),
        (["train", "--forget"], "--delete-stored would leave nothing to learn from"),
        (["train", "--value", "price"], "value is for the objective answers, and ranking"),
        (["train", "--answers", "--objective", "ranking"], "--answers is --objective answers"),
        (["train", "--objective", "fame"], "'fame' is not one of 'ranking', 'answers'"),
        (["train", "--error-rate", "1"], "error_rate: less than 1 was expected"),
        (["train", "--share-seen", "2"], "share_seen: "),
        (["train", "--answers", "--share-seen", "0.3"], "Leave share_seen out"),
        (["train", "--objective", "ratings", "--error-rate", "0.1"], "Leave error_rate out"),
        (["train", "--delimiter", ";"], "--interactions with --delimiter,"),
        (["train", "--encoding", "cp1252"], "--interactions with --encoding,"),
        (["teach", *PAIR, "--no-header"], "--interactions with --no-header,"),
        (
            ["teach", *PAIR, "--query-column", "q"],
            "Give --examples or --clicks with",
        ),
        (["teach", "--clicks", "x", "--label-column", "q"], "Give --examples with --label-column,"),
        (["teach", *PAIR, "--eta", "2"], "Give --clicks with --eta,"),
        (["evaluate", *PAIR, "--delimiter", ";"], "--delimiter and --no-header are about"),
        (["export", "--projection", "1", "--jsonl", "-"], "--projection selects a version"),
        (["import", "--snapshot", __file__, "--activate"], "--activate is about SOURCE"),
        (["teach", "--clicks", "x.csv", "--clip", "0"], "0.0 is not in the range"),
    ],
)
def test_a_wrong_call_exits_with_2(library, training, arguments, said):
    result = invoke(*arguments, "--data", library)
    assert result.exit_code == 2, result.output
    assert said in result.stderr


def test_vectors_are_taught_to_a_collection_of_vectors(tmp_path):
    vector_data(tmp_path / "d").create(dimension=2).upsert([{"id": "a", "vector": [1, 0]}])
    table = tmp_path / "t.csv"
    table.write_text('vector,id\n"[1, 0.5]",a\n"[1, 2, 3]",a\n')
    result = invoke("teach", "--data", tmp_path / "d", "--json", "--examples", table)
    counts = one_object(result, REJECTED)
    assert (counts["added"], counts["skipped"]) == (1, 1)
    assert "t.csv:3: The vector has 3 dimensions, but this collection's have 2." in result.stderr


# -- train -----------------------------------------------------------------------------------------


def test_train_teaches_trains_and_gives_one_object(library, judged, training):
    result = invoke("train", "--data", library, "--json", *judged)
    found = one_object(result, REJECTED)
    counts = found.pop("taught")
    assert (counts["added"], counts["skipped"]) == (2, 2)
    assert found == REPORT
    assert training.seen == 2
    assert training.fields == {}
    assert "default: 2 examples added" in result.stderr
    assert "\nfitting\n" in result.stderr


def test_train_without_files_learns_from_what_is_stored(library, judged, training):
    assert invoke("teach", "--data", library, *judged).exit_code == REJECTED
    result = invoke("train", "--data", library, "--json")
    assert one_object(result) == REPORT
    assert training.seen == 2


def test_train_passes_on_what_was_asked(library, training):
    options = ["--tolerance", 0.25, "--seed", 7, "--dimensions", 3, "--no-promote"]
    options += ["--error-rate", 0.1]
    result = invoke("train", "--data", library, *options, "--answers", "--value", "price")
    assert result.exit_code == 0, result.output
    assert training.fields == {
        **{"tolerance": 0.25, "seed": 7, "dimensions": 3, "promote": False, "error_rate": 0.1},
        **{"objective": "answers", "value": "price"},
    }


def test_the_ratings_of_interactions_are_trained_with_what_was_asked(library, training, tmp_path):
    path = tmp_path / "met.csv"
    path.write_text("user,item,value\nu,d0,5\nv,d1,1\n")
    options = ["--tolerance", 0.2, "--seed", 3, "--share-seen", 0.4, "--no-promote"]
    result = invoke("train", "--data", library, "--interactions", path, *options)
    assert result.exit_code == 0, result.output
    assert training.fields == {
        **{"objective": "ratings", "tolerance": 0.2, "seed": 3, "promote": False},
    }


def test_a_wrong_field_stops_before_anything_is_stored(library, judged, training):
    result = invoke("train", "--data", library, "--dimensions", 65_537, *judged)
    assert result.exit_code == 2
    assert "Error: dimensions: " in result.stderr
    assert examples_of(library) == []


def test_the_report_for_people(library, training):
    result = invoke("train", "--data", library)
    assert result.exit_code == 0, result.output
    assert result.stdout == textwrap.dedent(
        """\
        Version 2 answers from now on. The gain of 0.186 is significant.

        ndcg@10           before  after    gain     95 % interval       p  queries
        random questions   0.645  0.831  +0.186  [+0.150, +0.220]  0.0001      162
        mrr@10             0.500  0.750  +0.250

        look 3 at 60 groups against version 1, level 0.0034
        chosen: rate 0.001, heads 2, objective "ranking"
        12.3 s
        """
    )


def test_what_is_not_promoted_exits_with_0_and_says_why(library, training):
    training.report |= {"promoted": False, "reason": "The gain could be chance.", "version": None}
    result = invoke("train", "--data", library)
    assert result.exit_code == 0
    assert result.stdout.startswith("Nothing was promoted. The gain could be chance.\n")
    training.report["version"] = 4
    said = invoke("train", "--data", library).stdout
    assert "chance. 'projections activate 4' makes it answer.\n" in said
    training.report["kept"] = True
    said = invoke("train", "--data", library).stdout
    assert "chance. 'projections activate 4 --force' makes it answer.\n" in said


INTERRUPTED = """
import os, signal, sys, types
def train(collection, *, progress=None, cancelled=None):
    progress("fitting", 0.1)
    print("fitting", flush=True)
    while True:
        signal.pause()

sys.modules["attend.learning"] = types.ModuleType("attend.learning")
sys.modules["attend.learning"].train = train
from attend.cli import main
main(prog_name="attend")
"""


def test_an_interrupted_training_promotes_and_loses_nothing(library, judged):
    arguments = ["train", "--data", library, *judged]
    with warm.start("-c", INTERRUPTED, *arguments) as process:
        assert process.stdout.readline() == "fitting\n"
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert (
        "Interrupted: nothing was promoted, and nothing was lost. 2 examples and 0 interactions "
        "are stored; the same command begins again." in stderr
    )
    assert "Traceback" not in stderr
    assert len(examples_of(library)) == 2


TEACHING = """
import sys
from attend import Collection

def stop(*arguments, **options):
    raise KeyboardInterrupt

Collection.encoder = stop
from attend.cli import main
main(prog_name="attend")
"""


def test_an_interrupted_teaching_stores_nothing(library, judged):
    ran = warm.run("-c", TEACHING, "teach", "--data", library, *judged)
    assert (ran.returncode, ran.stdout) == (130, "")
    assert "Interrupted: 0 examples are stored; none comes by halves." in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_training_tells_a_log_each_stage_once(library, training, monkeypatch):
    def train(collection, *, progress=None, cancelled=None, **fields):
        for stage in ("trying", "fitting"):
            for step in range(5001):
                progress(stage, step / 5000)
        return training.report

    monkeypatch.setattr(training, "train", train)
    told = invoke("train", "--data", library).stderr
    assert told.count("trying\n") == told.count("fitting\n") == 1
    assert "\r" not in told


@pytest.mark.parametrize(
    "command", ["train", "teach", "export", "import", "projections", "evaluate", "info"]
)
def test_help_has_an_example_that_names_real_options(command):
    told = invoke(command, "--help")
    assert told.exit_code == 0
    example = told.stdout.split("Example:")[1].split("Options:")[0]
    assert f"attend {command} --data library" in example
    offered = set(re.findall(r"--[a-z-]+", told.stdout.split("Options:")[1]))
    assert set(re.findall(r"--[a-z-]+", example)) <= offered
    assert {"--data", "--json"} <= offered


def test_every_field_of_a_training_has_an_option():
    from attend.api.learning import TrainRequest

    told = invoke("train", "--help").stdout
    fields = {name.replace("_", "-") for name in TrainRequest.model_fields}
    missing = {field for field in fields - {"promote", "parts", "used"} if f"--{field}" not in told}
    assert not missing
    assert "--part " in told
    assert "--no-promote" in told
    assert "--no-used" in told


# -- versions --------------------------------------------------------------------------------------


@pytest.fixture
def versions(tmp_path):
    """A collection with two versions, of which the second was learned and is active."""
    collection = vector_data(tmp_path).create(dimension=2)
    collection.upsert([{"id": "a", "vector": [1, 0]}])
    made = identity(2)
    version = collection.store.add_projection(
        made.kind, made.to_bytes(), made.fingerprint, {}, report=REPORT
    )
    collection.activate(version)
    return tmp_path


def test_versions_are_listed_with_their_evidence(versions):
    header, first, second = invoke("projections", "--data", versions).stdout.splitlines()
    names = ["version", "role", "kind", "created", "fingerprint", "after", "measure"]
    assert header.split() == names
    assert first.split()[:3] == ["1", "search", "identity"]
    assert first.endswith("  -")
    assert second.split()[:4] == ["*", "2", "search", "identity"]
    assert second.endswith("1      ndcg@10 0.645 -> 0.831")
    assert header.index("measure") == second.index("ndcg")
    listed = one_object(invoke("projections", "--data", versions, "--json"))["projections"]
    assert [(each["version"], each["parent"], each["active"]) for each in listed] == [
        (1, None, False),
        (2, 1, True),
    ]
    assert listed[1]["report"]["reason"] == REPORT["reason"]


def test_rollback_goes_back_and_says_when_it_cannot(versions):
    rolled = invoke("projections", "--data", versions, "--json", "rollback")
    assert one_object(rolled) == {"projection": 1, "active": True}
    assert vector_data(versions).collection().search([1, 0]).projection == 1
    again = invoke("projections", "--data", versions, "rollback")
    assert again.exit_code == 1
    assert "no version was active before it" in again.stderr
    back = invoke("projections", "--data", versions, "activate", 2)
    assert back.stdout == "Projection 2 is active.\n"


def test_a_training_that_could_not_begin_shows_no_table():
    from attend.cli.learning import as_text

    nothing = {
        "before": {},
        "after": {},
        "views": {},
        "chosen": {},
        "version": None,
        "seconds": 0.1,
    }
    said = as_text({**nothing, "promoted": False, "reason": "Too few."})
    assert said == "Nothing was promoted. Too few.\n\n0.1 s"
