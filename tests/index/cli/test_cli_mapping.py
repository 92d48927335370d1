"""Later builds use the fields of earlier ones, and lose no values unless --remap is given."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.collection.data import Data
from attend.core.errors import InvalidRequest
from attend.write.build import entries_of
from attend_service.app import create_app
from attend_service.readiness import Readiness
from attend_service.settings import ServerSettings
from tests.index.helpers import write_jsonl

BOOKS = [
    {"key": "m", "title": "Moby", "body": "a whale", "genre": "sea", "price": 9.5},
    {"key": "d", "title": "Dracula", "body": "a count", "genre": "horror", "price": 7.0},
    {"key": "w", "title": "Wolf", "body": "a ship", "genre": "sea", "price": 8.5},
]
FIELDS = ["--id", "key", "--text", "title", "--value", "price"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def build(folder, tiny_encoder_folder):
    """Run a build of the collection, and return its result."""

    def run(*arguments: object, input: str | None = None, status: int = 0):
        words = ["build", *map(str, arguments), "--data", str(folder)]
        if not folder.exists():
            words += ["--encoder", str(tiny_encoder_folder)]
        result = CliRunner().invoke(main, words, prog_name="attend", input=input)
        assert result.exit_code == status, result.output
        return result

    return run


def values(folder) -> dict[str, object]:
    collection = Data(folder).collection()
    return {document.id: document.value for document in collection.page().documents}


def test_a_build_without_options_uses_the_fields_of_before(folder, build, tmp_path):
    path = write_jsonl(tmp_path / "books.jsonl", BOOKS)
    build(path, *FIELDS)
    again = build(path)
    assert "as before: id: key · text: title · value: price" in again.stderr
    assert "as before: encoder: " in again.stderr
    assert "guessed" not in again.stderr
    assert "3 unchanged" in again.stdout
    assert values(folder) == {"m": 9.5, "d": 7.0, "w": 8.5}
    settings = build(path, "--recall", 0.99)
    assert "3 unchanged" in settings.stdout
    more = build(path, "--text", "title", "--text", "body")
    assert "as before: id: key · value: price" in more.stderr
    assert "3 updated" in more.stdout
    assert "text: title, body" in build(path).stderr


def test_values_change_only_with_remap(folder, build, tmp_path):
    path = write_jsonl(tmp_path / "books.jsonl", BOOKS)
    build(path, *FIELDS)
    refused = build(path, "--value", "genre", status=1)
    assert refused.stdout == ""
    assert (
        "books.jsonl would change or empty the values of 3 stored documents: the value was price, "
        "and would be genre. No document was changed. Name it as before (--value price), or add "
        "--remap"
    ) in refused.stderr
    assert values(folder)["m"] == 9.5
    assert "empty the values of 3" in build(path, "--value", "", status=1).stderr
    assert "as before: id: key · text: title · value: price" in build(path).stderr
    remapped = build(path, "--value", "genre", "--remap")
    assert "3 revised" in remapped.stdout
    assert values(folder)["m"] == "sea"
    assert "value: genre" in build(path).stderr
    build(path, "--value", "", "--remap")
    assert values(folder)["m"] is None
    assert "value: none" in build(path).stderr
    assert build(path, "--value", "price").exit_code == 0  # no value is lost


def test_values_that_the_source_changes_are_taken(folder, build, tmp_path):
    path = write_jsonl(tmp_path / "books.jsonl", BOOKS)
    build(path, *FIELDS)
    write_jsonl(path, [{**BOOKS[0], "price": 1.0}, {**BOOKS[1], "price": None}, BOOKS[2]])
    assert "2 revised" in build(path).stdout
    assert values(folder) == {"m": 1.0, "d": None, "w": 8.5}


def test_a_source_of_another_name_follows_what_was_named(folder, build, tmp_path):
    build(write_jsonl(tmp_path / "monday.jsonl", BOOKS[:2]), *FIELDS)
    tuesday = build(write_jsonl(tmp_path / "tuesday.jsonl", BOOKS))
    assert "as before: id: key · text: title · value: price" in tuesday.stderr
    assert "1 added, 0 updated, 0 revised, 2 unchanged" in tuesday.stdout
    films = [{"key": "f", "title": "Film", "body": "a film", "label": "new"}]
    other = build(write_jsonl(tmp_path / "films.jsonl", films))
    assert "as before: id: key · text: title\n" in other.stderr
    assert "not as before: films.jsonl has no price (value)" in other.stderr
    assert values(folder)["f"] == "new"
    both = build(tmp_path / "tuesday.jsonl", tmp_path / "films.jsonl")
    assert "as before: id: key · text: title · value: price" in both.stderr
    assert "as before: id: key · text: title · value: label" in both.stderr
    assert "4 unchanged" in both.stdout


def test_a_source_without_the_value_empties_no_stored_one(folder, build, tmp_path):
    build(write_jsonl(tmp_path / "books.jsonl", BOOKS), *FIELDS)
    short = [{"key": "m", "title": "Moby"}, {"key": "new", "title": "Other"}]
    path = write_jsonl(tmp_path / "short.jsonl", short)
    refused = build(path, status=1)
    assert "values of 1 stored document: the value was price, and would be none" in refused.stderr
    assert values(folder)["m"] == 9.5
    build(path, "--remap")
    assert values(folder) == {"m": None, "d": 7.0, "w": 8.5, "new": None}


def test_standard_input_and_tables_are_remembered(folder, build, tmp_path):
    lines = "".join(json.dumps(book) + "\n" for book in BOOKS)
    build("-", *FIELDS, input=lines)
    assert "as before: id: key · text: title · value: price" in build("-", input=lines).stderr
    assert "values of 3" in build("-", "--value", "genre", input=lines, status=1).stderr
    with closing(sqlite3.connect(tmp_path / "b.db")) as db:
        db.execute("CREATE TABLE books (key TEXT PRIMARY KEY, title, body, genre, price)")
        db.executemany(
            "INSERT INTO books VALUES (?, ?, ?, ?, ?)", [list(book.values()) for book in BOOKS]
        )
        db.commit()
    table = build(f"{tmp_path / 'b.db'}:books")
    assert "as before: id: key · text: title · value: price" in table.stderr
    assert "3 unchanged" in table.stdout


def test_row_numbers_stay_the_ids(folder, build, tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}, {"text": "b"}])
    build(path)
    write_jsonl(path, [{"text": "a", "id": "x"}, {"text": "b", "id": "y"}])
    again = build(path)
    assert "as before: id: the row number · text: text" in again.stderr
    assert values(folder).keys() == {"1", "2"}
    build(path, "--id", "id", "--sync")
    assert values(folder).keys() == {"x", "y"}


def test_the_format_of_a_table_is_remembered(folder, build, tmp_path):
    rows = "m|Moby|9.5\nd|Drác|7\n"
    (tmp_path / "u.data").write_bytes(rows.encode("latin-1"))
    named = ["--id", "column_1", "--text", "column_2", "--value", "column_3"]
    build(tmp_path / "u.data", *named, "--delimiter", "|", "--encoding", "latin-1", "--no-header")
    again = build(tmp_path / "u.data")
    assert "as before: delimiter: '|' · encoding: latin-1 · no header" in again.stderr
    assert "2 unchanged" in again.stdout
    (tmp_path / "v.data").write_bytes(rows.encode("latin-1"))
    assert "2 unchanged" in build(tmp_path / "v.data").stdout
    assert values(folder) == {"m": 9.5, "d": 7}


def test_vectors_and_texts_are_remembered_apart(tmp_path):
    rows = [{"id": "1", "title": "a", "body": "a whale", "embedding": [1, 0]}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    build = ["build", path, "--data", tmp_path / "vectors"]

    def run(*options: str) -> str:
        words = [str(part) for part in (*build, *options)]
        result = CliRunner().invoke(main, words, prog_name="attend")
        assert result.exit_code == 0, result.output
        return result.stderr

    run("--vector", "embedding", "--text", "title")
    assert "as before: id: id · text: title · vector: embedding" in run()
    assert "as before: id: id · vector: embedding\n" in run("--text", "body")
    assert "text: body · vector: embedding" in run()
    assert "as before: id: id · vector: embedding\n" in run("--text", "")
    assert Data(tmp_path / "vectors").collection().document("1").fields == {}


def test_a_failed_build_is_not_remembered(folder, build, tmp_path):
    path = write_jsonl(tmp_path / "books.jsonl", BOOKS)
    build(path, "--id", "key", "--text", "price", status=1)
    assert entries_of(Data(folder).collection()) == []
    assert "as before: id" not in build(path).stderr


def test_values_that_no_build_has_written_are_not_emptied(folder, tmp_path, build, tiny_encoder):
    data = Data(folder, load_encoder=lambda name: tiny_encoder)
    data.create().upsert([{"id": "m", "text": "Moby", "value": 3}])
    data.close()
    path = write_jsonl(tmp_path / "books.jsonl", BOOKS)
    refused = build(path, "--id", "key", "--text", "title", status=1)
    assert "values of 1 stored document: the value would be none" in refused.stderr
    assert "Name it with --value, or add --remap" in refused.stderr
    build(path, *FIELDS)
    assert values(folder)["m"] == 9.5


def test_what_cannot_be_read_is_forgotten(folder, build, tmp_path):
    path = write_jsonl(tmp_path / "books.jsonl", BOOKS)
    build(path, *FIELDS)
    Data(folder).collection().store.put_settings({"mapping": [{"source": 3}]})
    assert "as before: id" not in build(path, *FIELDS).stderr
    assert "as before: id" in build(path).stderr


def table(path, *rows: str, header: str = "id,title,price"):
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return path


NUMBERS = {"1": 7.5, "2": 9, "3": 3}


@pytest.mark.parametrize("cell", ["n/a", '"12,5,0"', "true"])
def test_a_value_keeps_its_type_and_a_row_with_another_is_rejected(folder, build, tmp_path, cell):
    good = table(tmp_path / "n1.csv", "1,Emma,7.5", "2,Dune,9", "3,Ulysses,3")
    build(good, "--value", "price")
    bad = table(tmp_path / "n2.csv", "1,Emma,7.5", "2,Dune,9", f"3,Ulysses,{cell}")
    for _ in range(2):
        rejected = build(bad, status=3)
        assert "value: price (number)" in rejected.stderr
        shown = cell.strip('"')
        assert (
            f"n2.csv:4: The value 'price' is a number in this collection, but '{shown}' here. "
            f"Write a number, leave it empty, or add --remap" in rejected.stderr
        )
        assert "2 unchanged, 0 removed, 1 rejected" in rejected.stdout
        assert values(folder) == NUMBERS
    # A stream with types of its own may spell its numbers as texts.
    lines = [{"id": str(n), "title": "Emma", "price": str(n)} for n in (1, 2)]
    build(write_jsonl(tmp_path / "n3.jsonl", lines))
    assert values(folder) == NUMBERS | {"1": 1, "2": 2}
    build(good)
    changed = build(bad, "--remap")
    assert f"price (mixed, because of '{shown}' in row 4)" in changed.stderr or cell == "true"
    assert "1 revised, 2 unchanged" in changed.stdout
    assert values(folder) == NUMBERS | {"3": True if cell == "true" else shown}
    assert "2 unchanged" in build(bad).stdout.replace("3", "2")  # as it was stored


@pytest.mark.parametrize(
    ("rows", "header"),
    [
        (["1;Emma;7,5", "2;Dune;9", "3;Ulysses;1.200,50"], "id;title;price"),
        (['1,Emma,"7,5"', "2,Dune,9", '3,Ulysses,"1.200,50"'], "id,title,price"),
        (["1\tEmma\t7,5", "2\tDune\t9", "3\tUlysses\t1 200,50"], "id\ttitle\tprice"),
        (["1,Emma,7.5", "2,Dune,9", '3,Ulysses,"1,200.50"'], "id,title,price"),
    ],
)
def test_a_table_saved_again_with_other_marks_has_the_same_numbers(
    folder, build, tmp_path, rows, header
):
    plain = table(tmp_path / "n1.csv", "1,Emma,7.5", "2,Dune,9", "3,Ulysses,1200.5")
    build(plain, "--value", "price")
    again = build(table(tmp_path / "n2.csv", *rows, header=header))
    assert "3 unchanged" in again.stdout
    assert values(folder) == {"1": 7.5, "2": 9, "3": 1200.5}


def test_numbers_that_no_mark_tells_are_refused_beside_stored_ones(folder, build, tmp_path):
    build(table(tmp_path / "n1.csv", "1,Emma,7.5", "2,Dune,9"), "--value", "price")
    rows = ['1,Emma,"1,200"', '2,Dune,"3,400"']
    refused = build(table(tmp_path / "n2.csv", *rows), status=1)
    assert "commas may be decimal or group thousands: cells stay text (price)" in refused.stderr
    assert values(folder) == {"1": 7.5, "2": 9}


def test_a_declared_type_is_kept_from_the_first_build_on(folder, build, tmp_path):
    rows = table(tmp_path / "n.csv", "1,Emma,7", "2,Dune,n/a", "3,Ulysses,3")
    declared = build(rows, "--value", "price", "--value-type", "number", status=3)
    assert "1 rejected" in declared.stdout
    assert values(folder) == {"1": 7, "3": 3}
    codes = table(tmp_path / "c.csv", "1,Emma,7", "2,Dune,8", "3,Ulysses,3")
    build(codes, "--value", "price", "--value-type", "category", "--remap")
    build(codes)
    assert values(folder) == {"1": "7", "2": "8", "3": "3"}


def test_payload_keeps_its_types_too_but_no_row_is_lost_for_it(folder, build, tmp_path):
    def years() -> list[object]:
        collection = Data(folder).collection()
        return [document.payload["year"] for document in collection.page().documents]

    header = "id,title,year,code"
    build(table(tmp_path / "a.csv", "1,Emma,1815,A1", "2,Dune,1965,12", header=header))
    late = build(table(tmp_path / "b.csv", "1,Emma,1815,9", "2,Dune,unknown,12", header=header))
    assert "The column 'year' has numbers, but 'unknown' here, which stay text" in late.stderr
    assert "payload: year, code (text, as before)" in late.stderr
    assert years() == [1815, "unknown"]
    assert "2 unchanged" in build(tmp_path / "b.csv").stdout


def test_another_id_needs_a_word_as_all_documents_would_be_there_twice(folder, build, tmp_path):
    path = table(tmp_path / "s.csv", "A1,Emma", "A2,Dune", header="sku,title")
    build(path)
    refused = build(path, "--id", "sku", status=1)
    assert (
        "The id in s.csv was the row number, and would be sku: its rows would be stored once more, "
        "beside the 2 documents of before. No document was changed. Name it as before (--id ''), "
        "add --sync to delete the documents that no source has, or --remap to keep both."
        in refused.stderr
    )
    assert values(folder).keys() == {"1", "2"}
    assert "2 added" in build(path, "--id", "sku", "--sync").stdout
    assert values(folder).keys() == {"A1", "A2"}
    assert "--id sku" in build(path, "--id", "", status=1).stderr
    assert "4 documents" in build(path, "--id", "", "--remap").stdout


GAMES = ("1,Chess,games,1", "2,Go,games,2", "3,Vim,editors,1970")


@pytest.fixture
def games(folder, build, tmp_path):
    """The folder of a collection whose values were named by their column, and other processes."""
    path = table(tmp_path / "g.csv", *GAMES, header="id,title,section,year")
    build(path, "--value", "section")
    return folder


def test_the_column_of_the_value_keeps_its_name_on_the_command_line(games):
    def search(*options: str) -> dict:
        words = ["search", "board game", "--data", str(games), "--json", *options]
        result = CliRunner().invoke(main, words, prog_name="attend")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    found = search("--filter", '{"section": "games", "$not": {"section": "editors"}}')
    assert sorted(hit["id"] for hit in found["hits"]) == ["1", "2"]
    for name in ("section", "@value"):
        groups = search("--group-by", name, "--facet", name)
        assert {hit["group"]: hit["group_size"] for hit in groups["hits"]} == {
            "games": 2,
            "editors": 1,
        }
        assert groups["facets"][name]["values"][0] == {"value": "games", "documents": 2}
        assert search("--value", name)["answer"]["value"] in ("games", "editors")
    words = ["delete", "--data", str(games), "--filter", '{"section": "editors"}', "--yes"]
    assert "1 document deleted" in CliRunner().invoke(main, words).stdout


def test_the_column_of_the_value_keeps_its_name_in_python_and_over_http(games, build, tmp_path):
    data = Data(games)
    opened = data.collection()
    assert opened.page({"section": "games"}).total == 2
    assert opened.facets(["section"], {"section": {"ne": None}})["section"].distinct == 2
    grouped = opened.search({"id": "1"}, group_by="section", facets=["section", "@value"])
    assert [hit.group for hit in grouped.hits] == ["games", "editors"]
    assert grouped.facets["section"] == grouped.facets["@value"]
    liked = opened.recommend(history=["1"], filter={"section": "editors"})
    assert [hit.id for hit in liked.hits] == ["3"]
    facts = opened.recommend(facts=[{"field": "section", "value": "editors"}])
    assert facts.hits[0].id == "3"
    client = create_app(data, ServerSettings(data=games), Readiness()).test_client()
    base = "/v1/collections/default"
    search = {"query": "board", "group_by": "section", "filter": {"section": "games"}}
    (hit,) = client.post(f"{base}/search", json=search).get_json()["hits"]
    assert (hit["group"], hit["group_size"]) == ("games", 2)
    counted = client.post(f"{base}/documents/facets", json={"fields": ["section"]}).get_json()
    assert counted["facets"]["section"]["distinct"] == 2
    # Two columns: a name is the field of an object, as ever.
    path = tmp_path / "g.csv"
    build(path, "--value", "section", "--value", "year", "--remap")
    assert opened.page({"section": "games", "year": 2}).total == 1
    # Several sources with values of several names: none of them stands for all.
    build(path, "--value", "section", "--remap")
    assert opened.page({"section": "games"}).total == 2
    header = "id,title,kind"
    build(table(tmp_path / "h.csv", "9,Ed,editors", header=header), "--value", "kind")
    assert opened.page({"section": "games"}).hints[0].startswith("No document looked at (4) has")


@pytest.mark.parametrize(
    ("filter", "hint"),
    [
        ({"section": "Games"}, 'has "Games" in @value; did you mean "games"?'),
        ({"year": "1970"}, 'No document looked at has "1970" in year; did you mean 1970?'),
        ({"year": {"gt": "1"}}, 'year is compared with "1", but documents have 1; a text and a'),
        ({"sektion": "games"}, "(3) has the field 'sektion' of the filter; known are"),
        ({"year": 1971}, None),
    ],
)
def test_a_filter_without_documents_hints_at_what_they_have(games, filter, hint):
    hints = Data(games).collection().search("x", filter=filter).hints
    assert (hints is None) if hint is None else (hint in hints[0])


def test_a_group_or_facet_of_no_document_is_said(games):
    answer = Data(games).collection().search("x", facets=["sektion"], group_by="year.month")
    assert [hint for hint in answer.hints if "sektion" in hint or "year.month" in hint] == [
        "No document looked at (3) has the field 'sektion' of facets; known are year and title.",
        "No document looked at (3) has the field 'year.month' of group_by; known are year and "
        "title.",
    ]


def test_dates_that_do_not_sort_as_texts_are_refused_as_bounds(games):
    with pytest.raises(InvalidRequest, match=r"'year' gte takes dates as 2024-05-17, which sort"):
        Data(games).collection().search("x", filter={"year": {"gte": "01.01.2020"}})
    words = ["search", "x", "--data", str(games), "--filter", "section=games"]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 2
    assert """Did you mean '{"section": "games"}'?""" in refused.stderr


def test_a_log_has_no_progress_bars(folder, build, tmp_path):
    path = write_jsonl(tmp_path / "books.jsonl", BOOKS)
    assert "\r" not in build(path, *FIELDS).stderr  # a file is no terminal, either


def test_dots_lead_to_fields_of_objects(folder, build, tmp_path):
    rows = [
        {"event": {"id": n, "kind": "view"}, "what": {"text": f"a whale {n}"}, "by": {"id": "ann"}}
        for n in range(3)
    ]
    path = write_jsonl(tmp_path / "events.jsonl", rows)
    options = ["--id", "event.id", "--text", "what.text", "--value", "event.kind"]
    assert "id: event.id · text: what.text · value: event.kind" in build(path, *options).stderr
    assert values(folder) == {"0": "view", "1": "view", "2": "view"}
    assert "3 unchanged" in build(path).stdout
    assert Data(folder).collection().page({"event.kind": "view", "by.id": "ann"}).total == 3
    words = ["teach", "--interactions", path, "--user", "by.id", "--item", "event.id"]
    result = CliRunner().invoke(main, [*map(str, words), "--data", str(folder)])
    assert "3 interactions added" in result.stdout, result.output
    missing = build(path, "--id", "event.nr", status=1)
    assert "has no column 'event.nr'" in missing.stderr


def test_a_build_by_row_numbers_names_a_column_that_could_be_the_id(build, tmp_path):
    rows = [f"2024-05-{n + 10},R{n},a kettle in red,{n % 3}" for n in range(12)]
    told = build(table(tmp_path / "feed.csv", *rows, header="jour,ref,titre,rayon")).stderr
    assert "row numbers change with the rows, and ref is another in each (--id)" in told
