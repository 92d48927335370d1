"""Builds over real files: what is read, what is refused, and what is left alone."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from attend.cli.common import SHOWN_PROBLEMS, Problems
from attend.collection.data import Data
from attend.core.errors import EncoderError, InvalidRequest, SourceError
from attend.source import RowProblem, TableFormat, guess, open_source, sample
from attend.write.build import Built, Mapped, MappingChanged, Refused, Shard, build, collection_for
from tests.index.helpers import published, vector_data, write_jsonl


@pytest.fixture
def collection(tmp_path, tiny_encoder):
    data = Data(tmp_path / "data", load_encoder=lambda name: tiny_encoder)
    yield data.create()
    data.close()


def run(collection, *paths, problems: list | None = None, **options) -> Built:
    mapped = []
    for path in paths:
        source = open_source(str(path))
        fields = {name: options.pop(name) for name in ("id", "text", "value") if name in options}
        mapped.append(Mapped(source, guess(sample(source), source=source, **fields)))
    told = problems if problems is not None else []
    return build(collection, mapped, on_problem=lambda p: told.append(str(p)), **options)


def test_shards_take_every_document_once(collection, tmp_path):
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"id": f"d{at}", "text": f"t {at}"} for at in range(30)]
    )
    added = [run(collection, path, shard=Shard(at, 3)).added for at in (1, 2, 3)]
    assert sum(added) == 30
    assert all(added)
    assert run(collection, path, shard=Shard.of("2/3")).unchanged == added[1]
    assert run(collection, path).unchanged == 30
    with pytest.raises(InvalidRequest, match="cannot tell which no source has"):
        run(collection, path, shard=Shard(1, 3), sync=True)
    for wrong in ("0/3", "4/3", "1", "a/b"):
        with pytest.raises(InvalidRequest, match="is no shard; write 2/8"):
            Shard.of(wrong)


def ids(collection) -> list[str]:
    return sorted(collection.store.all_ids())


def docs(count: int, **changes) -> list[dict]:
    return [{"id": f"d{n}", "text": f"words number {n}", "n": n, **changes} for n in range(count)]


GOOD = {"id": "good", "text": "fine words"}
BAD_LINES = {
    "no id": ('{"text": "x"}', "has no id: its field 'id' is missing"),
    "null id": ('{"id": null, "text": "x"}', "has no id"),
    "an id of a wrong type": ('{"id": 1.5, "text": "x"}', "The id in 'id' is a number"),
    "duplicate id": ('{"id": "good", "text": "x"}', "'good' was used before, at rows.jsonl:1"),
    "empty text": ('{"id": "a", "text": "  "}', "has no text: 'text' is empty"),
    "no text": ('{"id": "a"}', "has no text"),
    "text of a wrong type": ('{"id": "a", "text": 5}', "'text' holds a number"),
    "broken JSON": ('{"id": "a", "text": ', "JSON is broken at character"),
    "no object": ("[1, 2]", "is a list, but an object"),
    "NaN": ('{"id": "a", "text": "x", "n": NaN}', "NaN is not a JSON number"),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_a_row_that_cannot_be_used_is_told_with_its_line_and_the_rest_goes_on(
    tmp_path, collection, what
):
    line, said = BAD_LINES[what]
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n{json.dumps({**GOOD, 'id': 'last'})}\n")
    problems: list[str] = []
    built = run(collection, path, problems=problems, text=["text"])
    assert (built.read, built.added, built.refused) == (2, 2, 1)
    assert ids(collection) == ["good", "last"]
    assert len(problems) == 1
    assert problems[0].startswith("rows.jsonl:2: ")
    assert said in problems[0]


@pytest.mark.parametrize("what", BAD_LINES)
def test_a_strict_build_stops_at_the_first_such_row(tmp_path, collection, what):
    line, said = BAD_LINES[what]
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n")
    with pytest.raises(Refused) as refused:
        run(collection, path, strict=True, text=["text"])
    assert "rows.jsonl:2" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"id": 1, "text": ""}\n{"id": 2, "text": " "}\n{"id": 2}\n'),
        ("b.jsonl", "no JSON\nneither\n"),
        ("c.csv", "id,text\n1,\n2,\n"),
        ("d.jsonl", ""),
    ],
)
def test_a_source_without_a_usable_row_is_a_failure(tmp_path, collection, name, content):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(SourceError):
        run(collection, path, **({} if name == "b.jsonl" else {"text": ["text"]}))
    assert ids(collection) == []


def test_of_two_sources_the_one_without_a_usable_row_is_named(tmp_path, collection):
    good = write_jsonl(tmp_path / "good.jsonl", docs(3))
    bad = write_jsonl(tmp_path / "bad.jsonl", [{"id": "x", "text": 7}, {"id": "y", "text": "\n"}])
    mapped = [
        Mapped(open_source(str(path)), guess(sample(open_source(str(good)))))
        for path in (good, bad)
    ]
    with pytest.raises(SourceError, match=r"bad\.jsonl has no usable row\. Check --id, --text"):
        build(collection, mapped)


def test_an_id_may_come_from_one_source_only(tmp_path, collection):
    one = write_jsonl(tmp_path / "one.jsonl", docs(3))
    two = write_jsonl(tmp_path / "two.jsonl", [*docs(1), {"id": "other", "text": "y", "n": 0}])
    problems: list[str] = []
    built = run(collection, one, two, problems=problems)
    assert (built.added, built.refused) == (4, 1)
    assert problems == [
        "two.jsonl:1: The id 'd0' was used before, at one.jsonl:1. Give each row its own."
    ]


def test_sources_without_ids_are_not_numbered_over_each_other(tmp_path, collection):
    paths = [write_jsonl(tmp_path / f"{n}.jsonl", [{"text": "some words"}]) for n in (1, 2)]
    with pytest.raises(SourceError, match=r"1\.jsonl has no id field"):
        run(collection, *paths)
    run(collection, paths[0])
    assert ids(collection) == ["1"]


# -- what a second run does ---------------------------------------------------------------------


def test_an_unchanged_rebuild_encodes_nothing_and_publishes_nothing(tmp_path, collection):
    path = write_jsonl(tmp_path / "rows.jsonl", docs(40))
    first = run(collection, path)
    assert (first.added, first.encoded, first.documents, first.keys) == (40, 40, 40, 40)
    generation, change = published(collection), collection.store.state().change
    second = run(collection, path)
    assert (second.unchanged, second.encoded, second.added) == (40, 0, 0)
    assert published(collection) == generation
    assert collection.store.state().change == change


def test_an_unchanged_rebuild_needs_no_model(tmp_path, tiny_encoder):
    path = write_jsonl(tmp_path / "rows.jsonl", docs(10))
    run(Data(tmp_path / "d", load_encoder=lambda name: tiny_encoder).create(), path)
    assert run(vector_data(tmp_path / "d").collection(), path).unchanged == 10


def test_a_changed_value_is_revised_without_encoding(tmp_path, collection):
    rows = docs(10)
    run(collection, write_jsonl(tmp_path / "rows.jsonl", rows), value=["n"])
    rows[3]["n"] = 99
    rows[4]["text"] = "other words"
    del rows[5]
    rows.append({"id": "new", "text": "new words", "n": 1})
    built = run(collection, write_jsonl(tmp_path / "rows.jsonl", rows), value=["n"])
    assert (built.added, built.updated, built.revised, built.unchanged) == (1, 1, 1, 7)
    assert (built.encoded, built.removed, built.documents) == (2, 0, 11)
    assert collection.document("d3").value == 99
    assert collection.document("d5").value == 5


def test_what_a_key_was_made_of_is_part_of_its_hash(tmp_path, tiny_encoder):
    path = write_jsonl(tmp_path / "rows.jsonl", docs(5, more="and more"))
    data = Data(tmp_path / "data", load_encoder=lambda name: tiny_encoder)
    collection = data.create()
    assert run(collection, path, text=["text"]).encoded == 5
    assert run(collection, path, text=["text", "more"]).updated == 5
    assert run(collection, path, text=["text", "more"]).unchanged == 5
    assert run(collection, path, text=["more"], value=["text"]).updated == 5


def test_sync_mirrors_the_sources(tmp_path, collection):
    run(collection, write_jsonl(tmp_path / "rows.jsonl", docs(10)))
    collection.upsert([{"id": "by hand", "text": "words"}])
    fewer = write_jsonl(tmp_path / "rows.jsonl", docs(4))
    assert run(collection, fewer).removed == 0
    built = run(collection, fewer, sync=True)
    assert (built.removed, built.documents, built.keys) == (7, 4, 4)
    assert ids(collection) == ["d0", "d1", "d2", "d3"]
    assert collection.search("words number 9", k=20).attended == 4
    assert collection.info().index["keys"] == 4


@pytest.mark.parametrize("what", BAD_LINES)
def test_sync_deletes_nothing_if_a_row_could_not_be_read(tmp_path, collection, what):
    run(collection, write_jsonl(tmp_path / "rows.jsonl", docs(3)))
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{BAD_LINES[what][0]}\n")
    built = run(collection, path, sync=True, text=["text"])
    assert (built.removed, built.refused) == (0, 1)
    assert ids(collection) == ["d0", "d1", "d2", "good"]


@pytest.mark.parametrize("kind", ["sqlite", "parquet"])
def test_a_column_of_bytes_is_a_notice_and_stops_neither_strict_nor_sync(
    tmp_path, collection, kind
):
    collection.upsert([{"id": "gone", "text": "words"}])
    source = open_source(_with_covers(tmp_path, kind))
    told: list[RowProblem] = []
    seen: list[int] = []
    built = build(
        collection,
        [Mapped(source, guess(sample(source), source=source))],
        sync=True,
        strict=True,
        on_problem=told.append,
        on_progress=seen.append,
    )
    assert (built.added, built.refused, built.removed) == (2, 0, 1)
    assert ids(collection) == ["a", "b"]
    assert ["'cover' holds bytes" in problem.reason for problem in told] == [True]
    assert sum(seen) == 2


def _with_covers(folder, kind: str) -> str:
    rows = [("a", "one", b"\x00"), ("b", "two", b"\xff")]
    if kind == "parquet":
        pa = pytest.importorskip("pyarrow", reason="Parquet is read with pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        table = pa.table(dict(zip(("id", "text", "cover"), zip(*rows, strict=True), strict=True)))
        pq.write_table(table, folder / "x.parquet")
        return str(folder / "x.parquet")
    with closing(sqlite3.connect(folder / "x.db")) as database, database:
        database.execute("CREATE TABLE t (id TEXT PRIMARY KEY, text TEXT, cover BLOB)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    return f"{folder / 'x.db'}:t"


def test_the_command_tells_notices_however_many_rows_failed_and_counts_only_those(capsys):
    problems = Problems()
    for line in range(SHOWN_PROBLEMS + 5):
        problems(RowProblem(f"x:{line}", "The row fails."))
    problems(RowProblem("x", "A column is left out.", rejects=False))
    problems.summary()
    said = capsys.readouterr().err
    assert said.count("The row fails.") == SHOWN_PROBLEMS
    assert "A column is left out." in said
    assert f"{SHOWN_PROBLEMS + 5} rows could not be used." in said


def test_the_width_is_found_after_rows_without_a_vector(tmp_path):
    rows = [{"id": n} for n in range(150)] + [{"id": "late", "vector": [1.0, 2.0, 3.0]}]
    source = open_source(str(write_jsonl(tmp_path / "rows.jsonl", rows)))
    found = guess(sample(source), source=source, vector="vector")
    assert Mapped(source, found).width() == 3


def test_an_id_with_a_nul_is_refused_alone(tmp_path, collection):
    rows = [*docs(2), {"id": "d0\x00tail", "text": "words", "n": 0}]
    problems: list[str] = []
    built = run(collection, write_jsonl(tmp_path / "rows.jsonl", rows), problems=problems)
    assert (built.added, built.refused) == (2, 1)
    assert problems[0].startswith("rows.jsonl:3: The id in 'id' holds the control character U+0000")


def test_a_build_that_fails_midway_keeps_what_it_stored(tmp_path, collection, monkeypatch):
    monkeypatch.setattr("attend.write.build.WINDOW", 4)
    path = write_jsonl(tmp_path / "rows.jsonl", [*docs(10), {"id": "bad"}])
    with pytest.raises(Refused):
        run(collection, path, strict=True)
    assert len(ids(collection)) == 8
    again = run(collection, path)
    assert (again.unchanged, again.added, again.encoded, again.refused) == (8, 2, 2, 1)


class Calling:
    """The encoder of the tests, which calls a function before it encodes a block of texts."""

    def __init__(self, encoder, before):
        self.name, self.dimension = encoder.name, encoder.dimension
        self.passages, self.encode_queries = encoder.passages, encoder.encode_queries
        self.encoder, self.before, self.blocks = encoder, before, 0

    def encode_documents(self, texts):
        self.blocks += 1
        self.before(self.blocks)
        return self.encoder.encode_documents(texts)


def test_a_window_is_stored_while_the_next_is_encoded(tmp_path, tiny_encoder, monkeypatch):
    monkeypatch.setattr("attend.write.build.WINDOW", 4)

    def release(block):
        if block == 2:
            other.execute("COMMIT")  # the first window waits for it

    with closing(Data(tmp_path, load_encoder=lambda name: Calling(tiny_encoder, release))) as data:
        collection = data.create()
        path = data.collection("default").store.path
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert run(collection, write_jsonl(tmp_path / "rows.jsonl", docs(10))).added == 10
        assert list(collection.store.all_ids()) == [row["id"] for row in docs(10)]


def test_the_first_window_of_vectors_decides_whether_all_are_scaled(tmp_path, monkeypatch):
    """The second one is ready before the first one is stored."""
    monkeypatch.setattr("attend.write.build.WINDOW", 4)
    vectors = [[0.6, 0.8]] * 4 + [[3.0, 4.0]] * 4
    rows = [{"id": f"d{n}", "vector": vector} for n, vector in enumerate(vectors)]
    with closing(vector_data(tmp_path / "data")) as data:
        collection = data.create(dimension=2, normalize=None)
        run(collection, write_jsonl(tmp_path / "rows.jsonl", rows))
        assert collection.settings.normalize is True
        with collection.store.all_keys() as (_, tables):
            lengths = np.linalg.norm(next(tables).vectors, axis=1)
        assert lengths == pytest.approx(1)
        again = run(collection, tmp_path / "rows.jsonl")
        assert (again.unchanged, again.updated) == (8, 0)


@pytest.mark.parametrize("error", [EncoderError, KeyboardInterrupt])
def test_what_stands_before_texts_that_cannot_be_encoded_is_stored(
    tmp_path, tiny_encoder, monkeypatch, error
):
    monkeypatch.setattr("attend.write.build.WINDOW", 4)
    seen, path = [], write_jsonl(tmp_path / "rows.jsonl", docs(10))

    def fail(block):
        if block == 3:
            raise error("It stops.")

    with closing(Data(tmp_path, load_encoder=lambda name: Calling(tiny_encoder, fail))) as data:
        collection = data.create()
        with pytest.raises(error):
            run(collection, path, on_progress=seen.append)
        assert seen == [4, 4]
        assert list(collection.store.all_ids()) == [row["id"] for row in docs(8)]
        again = run(collection, path)
        assert (again.unchanged, again.added, again.encoded) == (8, 2, 2)


def test_progress_adds_up_to_the_rows(tmp_path, collection, monkeypatch):
    monkeypatch.setattr("attend.write.build.WINDOW", 4)
    rows = [*docs(10), {"id": "bad"}]
    seen: list[int] = []
    run(collection, write_jsonl(tmp_path / "rows.jsonl", rows), on_progress=seen.append)
    assert sum(seen) == 11
    assert len(seen) == 4


def test_vectors_of_another_width_are_refused_row_by_row(tmp_path):
    rows = [{"id": n, "vector": [1.0] * (3 if n == 2 else 2)} for n in range(4)]
    rows.append({"id": 9, "vector": [1.0, "x"]})
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    problems: list[str] = []
    source = open_source(str(path))
    fields = guess(sample(source), vector="vector")
    collection = vector_data(tmp_path / "data").create(dimension=2)
    built = build(
        collection, [Mapped(source, fields)], on_problem=lambda p: problems.append(str(p))
    )
    assert (built.added, built.refused, built.encoded) == (3, 2, 0)
    assert "rows.jsonl:3" in problems[0]
    assert "3 dimensions" in problems[0]
    assert "rows.jsonl:5" in problems[1]
    wider = vector_data(tmp_path / "data").create("wider", dimension=5)
    with pytest.raises(SourceError, match="no usable row"):
        build(wider, [Mapped(source, fields)], on_problem=lambda p: problems.append(str(p)))
    assert "has 2 dimensions, but this collection's have 5" in problems[2]


def test_what_the_command_line_protects_is_protected_in_python(collection, tmp_path):
    def values() -> list[object]:
        return [document.value for document in collection.page().documents]

    path = tmp_path / "n.csv"
    path.write_text("id,title,price,genre\n1,Emma,7.5,love\n2,Dune,9,sand\n")
    build(collection, [Mapped.of(path, value=["price"])])
    assert build(collection, [Mapped.of(path)]).unchanged == 2  # the value of before
    with pytest.raises(MappingChanged, match=r"the value was price, and would be genre"):
        build(collection, [Mapped.of(path, value=["genre"])])
    with pytest.raises(MappingChanged, match=r"The id in n.csv was id, and would be title"):
        build(collection, [Mapped.of(path, id="title", text=["genre"])])
    path.write_text("id,title,price,genre\n1,Emma,7.5,love\n2,Dune,n/a,sand\n")
    built = build(collection, [Mapped.of(path)])
    assert (built.unchanged, built.refused) == (1, 1)
    assert values() == [7.5, 9]
    for emptied in (Mapped.of(path, value=""), Mapped.of(path, collection, value="")):
        with pytest.raises(MappingChanged, match=r"empty the values of 2 stored documents.* none"):
            build(collection, [emptied])
    assert values() == [7.5, 9]
    assert build(collection, [Mapped.of(path, value=["genre"])], remap=True).revised == 2
    assert values() == ["love", "sand"]


def test_fields_and_formats_of_before_are_recalled_in_python(collection, tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("key|title|price\n1|Emma, a novel|7.5\n2|Dune, sand|9\n")
    named = Mapped.of(path, collection, TableFormat("|"), id="key", value="price")
    assert named.notes == []
    build(collection, [named])
    again = Mapped.of(path, collection)
    assert again.map == named.map
    assert (again.format, again.named) == (named.format, named.named)
    assert again.notes == [
        "as before: delimiter: '|'",
        "as before: id: key · text: title · value: price",
    ]
    assert "as before: delimiter: '|'" in again.described(collection)
    assert build(collection, [again]).unchanged == 2
    (tmp_path / "m.csv").write_text("key|name|price\n3|Ulysses, Dublin|n/a\n")
    other = Mapped.of(tmp_path / "m.csv", collection)
    assert (other.map.id, other.map.value, other.map.guessed) == ("key", ("price",), ("text",))
    with pytest.raises(SourceError, match="no usable row"):
        build(collection, [other])  # its value is no number


def test_a_collection_is_made_for_its_sources(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": 1, "vector": [1.0, 2.0]}])
    other = write_jsonl(tmp_path / "b.jsonl", [{"id": 2, "vector": [1.0, 2.0, 3.0]}])
    nameless = write_jsonl(tmp_path / "c.jsonl", [{"vector": [1.0, 2.0]}])
    one, wide, numbered = map(Mapped.of, (path, other, nameless))
    with closing(Data(tmp_path / "data")) as data:
        with pytest.raises(SourceError, match="bring vectors of 2 and 3 dimensions"):
            collection_for(data, "points", [one, wide])
        with pytest.raises(SourceError, match=r"c.jsonl has no id field"):
            collection_for(data, "points", [one, numbered])
        assert data.names() == []
        points = collection_for(data, "points", [one], normalize=False)
        assert (points.settings.dimension, points.settings.normalize) == (2, False)
        assert build(collection_for(data, "points", [one]), [one]).added == 1


def test_the_column_of_the_values_is_no_setting_to_create_with(tmp_path, tiny_encoder):
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": "a", "text": "a text", "stars": 4}])
    with closing(Data(tmp_path / "data", load_encoder=lambda name: tiny_encoder)) as data:
        books = data.create("books")
        run(books, path, value=["stars"])
        assert data.create("books").settings.value_name == "stars"
        assert "value_name" not in books.info().settings
