"""Files of interactions: every format gives the same, and every bad row is named."""

from __future__ import annotations

import csv
import json
import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from attend.api.feedback import InteractionsAdded
from attend.cli import main
from attend.cli.common import REJECTED
from attend.core.errors import InvalidRequest, SourceError, UnknownDocument
from attend.source import RowItem, open_source
from attend.source.columns import guess_columns
from attend.store import Interaction
from attend.write.feedback import add_interactions, gather
from attend.write.labels import INTERACTIONS, read_interactions
from tests.index.helpers import vector_data

ROWS = [
    {"user_id": "13", "movie": "a", "rating": 4.5, "timestamp": 100},
    {"user_id": "13", "movie": "b", "rating": 3, "timestamp": 50},
    {"user_id": "zoë", "movie": "a", "rating": 1, "timestamp": 7},
]
READ = [
    Interaction("13", "a", 4.5, 100.0),
    Interaction("13", "b", 3, 50.0),
    Interaction("zoë", "a", 1, 7.0),
]


def unfit(entries):
    """A collection that has the documents a, b and c."""
    return {
        position: UnknownDocument(f"No document has the id {entry.document!r}.")
        for position, entry in enumerate(entries)
        if entry.document not in {"a", "b", "c"}
    }


def read(path, **options):
    source = open_source(str(path))
    return gather(read_interactions(source, guess_columns(source, INTERACTIONS)), unfit, **options)


def written(folder, kind) -> str:
    path = folder / f"met.{kind}"
    if kind in ("csv", "tsv"):
        with path.open("w", newline="") as file:
            lines = csv.DictWriter(file, ROWS[0], delimiter="\t" if kind == "tsv" else ",")
            lines.writeheader()
            lines.writerows(ROWS)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE met (user_id, movie, rating, timestamp)")
            db.executemany("INSERT INTO met VALUES (?, ?, ?, ?)", [tuple(r.values()) for r in ROWS])
        db.close()
        return f"{path}:met"
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "db"])
def test_every_format_gives_the_same(tmp_path, kind):
    path = written(tmp_path, kind)
    found = read(path)
    assert found.entries == READ
    assert (found.skipped, found.repeated) == (0, 0)
    columns = guess_columns(open_source(path), INTERACTIONS)
    assert columns.describe().splitlines() == [
        "user: user_id · item: movie · value: rating · time: timestamp",
        "guessed: user, item, value, time (say --user/--item/--value/--time to choose)",
    ]


def test_two_columns_are_enough(tmp_path):
    path = tmp_path / "met.tsv"
    path.write_text("user\titem\n13\ta\n13\tb\n")
    found = read(path)
    assert found.entries == [Interaction("13", "a"), Interaction("13", "b")]


def test_bad_rows_are_listed_with_their_lines_and_the_rest_is_used(tmp_path):
    path = tmp_path / "met.csv"
    path.write_text(
        "reader,book,stars,date\n"
        "u,a,4,2024-05-17\n"
        "u,gone,4,2024-05-17\n"
        ",b,4,\n"
        "u,b,many,\n"
        "u,b,nan,\n"
        "u,c,3,yesterday\n"
        "u,c,3,\n"
    )
    problems: list[str] = []
    found = read(path, on_problem=lambda each: problems.append(str(each)))
    assert found.entries == [
        Interaction("u", "a", 4, 1715904000.0),
        Interaction("u", "c", 3, None),
    ]
    assert found.skipped == len(problems) == 5
    lines = sorted((each.split(": ")[0], each.split(": ", 1)[1]) for each in problems)
    assert [place for place, _ in lines] == [f"met.csv:{line}" for line in (3, 4, 5, 6, 7)]
    for (_, reason), part in zip(
        lines, ["'gone'", "'reader' is missing", "'many'", "'nan'", "'yesterday'"], strict=True
    ):
        assert part in reason
    with pytest.raises(SourceError, match=r"Stopped at met\.csv:4.*Nothing was stored"):
        read(path, strict=True)


def test_labels_are_values_where_most_are_none_of_numbers(tmp_path):
    path = tmp_path / "met.csv"
    path.write_text("user,item,label\nu,a,liked\nu,b,hated\nu,c,7\n")
    found = read(path)
    assert [each.value for each in found.entries] == ["liked", "hated", 7]


def test_of_a_user_and_item_the_latest_counts():
    def at(time, value):
        return RowItem("f:1", Interaction("u", "a", value, time))

    for times, kept in (((5.0, 3.0), 0), ((3.0, 5.0), 1), ((5.0, None), 1), ((5.0, 5.0), 1)):
        found = gather([at(time, n) for n, time in enumerate(times)], unfit)
        assert [each.value for each in found.entries] == [kept]
        assert found.repeated == 1


def test_columns_are_named_where_no_name_tells(tmp_path):
    path = tmp_path / "met.csv"
    path.write_text("who,what,user\nu,a,1\n")
    with pytest.raises(SourceError, match=r"looks like the item\. Choose with --item among"):
        read(path)
    with pytest.raises(SourceError, match="has no column 'when'"):
        guess_columns(open_source(str(path)), INTERACTIONS, time="when")
    columns = guess_columns(open_source(str(path)), INTERACTIONS, user="who", item="what")
    assert next(iter(read_interactions(open_source(str(path)), columns))).item == (
        Interaction("u", "a")
    )


# -- into a collection -----------------------------------------------------------------------------


@pytest.fixture
def collection(tmp_path):
    data = vector_data(tmp_path / "data")
    made = data.create("default", dimension=2)
    made.upsert([{"id": id, "vector": [1, 0]} for id in "abc"])
    yield made
    data.close()


def test_items_are_recorded_and_the_last_of_a_pair_counts(collection):
    items = [
        {"user": 7, "id": "a", "value": 1},
        {"user": "7", "id": "a", "value": 2, "time": "1970-01-01T01:00:00+01:00"},
        Interaction("v", "b"),
    ]
    assert add_interactions(collection, items) == InteractionsAdded(2, 0, 2, 2)
    met = collection.store.interactions_of("7")
    assert (met.documents, met.values, met.times.tolist()) == (["a"], [2], [0.0])
    assert add_interactions(
        collection, [{"user": "v", "id": "b", "value": "x"}], delete_stored=True
    ) == InteractionsAdded(1, 0, 1, 1)
    assert add_interactions(collection, [], delete_stored=True) == InteractionsAdded(0, 0, 0, 0)


TIMED = [(5, 300.0), (1, 100.0), (2, 200.0), (3, 300.0), (4, None), (6, 50.0), (7, 40.0)]
"""Values and times of one user and document, in the order in which they are sent."""


def test_every_way_in_has_one_rule_for_the_latest_interaction(collection, tmp_path):
    """The latest by time, of equal times the last sent; one without a time was sent last."""
    items = [{"user": "u", "id": "a", "value": value, "time": time} for value, time in TIMED]
    path = tmp_path / "met.csv"
    teach = ["teach", "--data", str(tmp_path / "data"), "--interactions", str(path)]
    cells = [f"u,a,{value},{'' if time is None else time}" for value, time in TIMED]

    def stored() -> tuple[list, list]:
        met = collection.store.interactions_of("u")
        return met.values, met.times.tolist()

    for count, value, time in [(2, 5, 300.0), (4, 3, 300.0), (7, 6, 50.0)]:
        path.write_text("\n".join(["user,item,value,time", *cells[:count]]))
        for add in (
            lambda n: CliRunner().invoke(main, teach, catch_exceptions=False),
            lambda n: add_interactions(collection, items[:n]),
            lambda n: [add_interactions(collection, [item]) for item in items[:n]],
        ):
            collection.store.delete_interactions()
            add(count)
            assert stored() == ([value], [time])


def test_a_history_that_is_sent_has_the_same_rule(collection):
    def predicted(*history: tuple[int, float | None]) -> float:
        items = [{"id": "a", "value": value, "time": time} for value, time in history]
        others = [{"id": "b", "value": 1}]
        answer = collection.recommend(history=[*items, *others], target="c")
        return answer.predictions[0]["mean"]

    assert predicted(*TIMED[:2]) == predicted(TIMED[0]) != predicted(TIMED[1])
    assert predicted(*TIMED) == predicted(TIMED[5])


def test_an_interaction_that_is_older_than_the_stored_one_is_left_out(collection):
    add_interactions(collection, [{"user": "u", "id": "a", "value": 5, "time": 300}])
    older = [{"user": "u", "id": "a", "value": 1, "time": 100}]
    assert add_interactions(collection, older) == InteractionsAdded(0, 0, 1, 1, 5.0)
    assert collection.store.interactions_of("u").values == [5]
    assert add_interactions(collection, older, delete_stored=True).added == 1
    assert collection.store.interactions_of("u").values == [1]


@pytest.mark.parametrize(
    ("item", "error", "said"),
    [
        ({"user": "", "id": "a"}, InvalidRequest, r"items.1.user|user"),
        ({"user": "u"}, InvalidRequest, "id"),
        ({"user": "u", "id": "gone"}, UnknownDocument, "'gone'"),
        ({"user": "u", "id": "a", "time": "soon"}, InvalidRequest, "'soon' is no time"),
        ({"user": "u", "id": "a", "stars": 3}, InvalidRequest, "stars"),
        ({"user": "u", "id": "a", "value": float("nan")}, InvalidRequest, "NaN"),
    ],
)
def test_items_that_cannot_be_recorded_leave_nothing(collection, item, error, said):
    with pytest.raises(error, match=said):
        add_interactions(collection, [{"user": "u", "id": "a"}, item])
    assert collection.store.interaction_counts() == (0, 0)


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("user,package,when", "u,{},2024-05-17", "user: user · item: package · time: when"),
        ("user,package,seen_on", "u,{},2024-05-17", "user: user · item: package · time: seen_on"),
        ("user,package,epoch", "u,{},1715904000", "user: user · item: package · time: epoch"),
        ("id,user,pkg,stars", "7,u,{},5", "user: user · item: pkg · value: stars"),
        ("user,package,count", "u,{},3", "user: user · item: package"),
        ("user,date,day,package", "u,spring,2024-05-17,{}", "item: package · time: day"),
    ],
)
def test_columns_are_told_by_what_they_hold(collection, tmp_path, header, row, said):
    path = tmp_path / "met.csv"
    path.write_text("\n".join([header, *(row.format(id) for id in ("a", "b", "gone"))]))
    teach = ["teach", "--data", str(tmp_path / "data"), "--interactions", str(path), "--json"]
    run = CliRunner().invoke(main, teach)
    assert f"{said}\n" in run.stderr
    assert run.exit_code == REJECTED
    assert json.loads(run.stdout)["added"] == 2
    # A column that the caller names stays, whatever it holds.
    named = CliRunner().invoke(main, [*teach, "--user", "user", "--item", header.split(",")[1]])
    assert f"item: {header.split(',')[1]}" in named.stderr


def test_the_command_stores_a_file(collection, tmp_path):
    path = tmp_path / "met.tsv"
    path.write_text("user\titem\trating\nu\ta\t3\nu\tgone\t3\nv\tb\t\n")
    run = CliRunner().invoke(
        main,
        ["teach", "--data", str(tmp_path / "data"), "--interactions", str(path), "--json"],
    )
    assert run.exit_code == REJECTED, run.output
    assert json.loads(run.stdout) == {
        "added": 2,
        "replaced": 0,
        "interactions": 2,
        "users": 2,
        "liked_from": 3.0,
        "skipped": 1,
        "repeated": 0,
        "forgotten": 0,
        "collection": "default",
    }
    assert "met.tsv:3: No document has the id 'gone'; store the document first" in run.stderr
    assert collection.store.interactions_of("u").values == [3]
    other = tmp_path / "other.tsv"
    other.write_text("user\titem\n13\tx\n")
    command = ["teach", "--data", str(tmp_path / "data"), "--interactions", str(other)]
    run = CliRunner().invoke(main, command)
    assert run.exit_code == 1
    assert "No row can be used, and nothing was changed." in run.stderr
    both = ["teach", "--data", str(tmp_path / "data"), "--value", "rating", "--clicks", str(path)]
    assert CliRunner().invoke(main, both).exit_code == 2
