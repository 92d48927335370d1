"""Snapshots of strangers, sent to a running server: each is refused, and leaves nothing behind.

The mutated ones by the thousand are in tests/index/exchange/test_fuzz_snapshots.py.
"""

from __future__ import annotations

import http.client
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask.testing import FlaskClient

from attend import Data
from attend.collection.verify import verify
from attend.core.errors import Damaged
from attend.exchange import backup
from attend.store.checks import expected_schema
from attend_service.app import create_app
from attend_service.keys import KeyFile
from attend_service.routes.server import MAX_SNAPSHOTS
from tests.service.conftest import LIMIT
from tests.service.test_security_server import served
from tests.snapshots import BOOKS, Member, changed, header, packed, repacked, rows, run, unpacked

TAR = "application/x-tar"
COPY = "/v1/collections/copy/snapshot"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
ALLOWED = 1 << 20
"""Bytes of a body that the server takes: --max-snapshot is one MiB."""


class Running(NamedTuple):
    """A server, its data folder, and a snapshot of its collection of three books."""

    place: tuple[str, int]
    folder: Path
    snapshot: bytes

    def send(self, method: str, path: str, body: bytes, media: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(*self.place, timeout=LIMIT)
        connection.request(method, path, body, {"Content-Type": media})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, json.loads(content) if content[:1] == b"{" else content

    def restore(self, sent: bytes) -> tuple[int, Any]:
        return self.send("PUT", COPY, sent, TAR)

    def files(self) -> list[str]:
        names = (path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*"))
        return sorted(name for name in names if "books" not in name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("hostile")
    with served(folder, "--max-snapshot", "1") as (_, place):
        running = Running(place, folder, b"")
        books = [{"id": f"b{n}", "vector": [n, 1, 2], "payload": {"n": n}} for n in range(3)]
        for method, path, body in (
            ("PUT", "/v1/collections/books", {"dimension": 3}),
            ("POST", "/v1/collections/books/documents", books),
        ):
            sent = running.send(method, path, json.dumps(body).encode(), "application/json")
            assert sent[0] in (200, 201), sent
        taken = running.send("POST", "/v1/collections/books/snapshot", b"", TAR)
        assert taken[0] == 200
        yield running._replace(snapshot=taken[1])


def of_sql(*statements: str) -> Callable[[bytes, Path], bytes]:
    return lambda snapshot, folder: repacked(snapshot, changed(snapshot, folder, run(*statements)))


def in_schema(*rows: tuple[str, str, str, int, str]) -> Callable[[bytes, Path], bytes]:
    """Rows of the schema whose names SQLite keeps to itself."""

    def change(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA writable_schema = ON")
        db.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", rows)

    return lambda snapshot, folder: repacked(snapshot, changed(snapshot, folder, change))


def fresh(*statements: str) -> Callable[[bytes, Path], bytes]:
    """A database that is nothing but what these statements make."""

    def make(snapshot: bytes, folder: Path) -> bytes:
        with sqlite3.connect(folder / "fresh.db") as db:
            for sql in statements:
                db.execute(sql)
        db.close()
        return repacked(snapshot, (folder / "fresh.db").read_bytes())

    return make


def with_headers(*extra: tuple[str, bytes, bytes]) -> Callable[[bytes, Path], bytes]:
    """(name, content, type) of members before the database."""

    def make(snapshot: bytes, _: Path) -> bytes:
        manifest, files = unpacked(snapshot)
        members = [Member("manifest.json", json.dumps(manifest).encode())]
        members += [Member(name, content, {"type": kind}) for name, content, kind in extra]
        return packed([*members, Member(BOOKS, files[BOOKS])])

    return make


def sparse(snapshot: bytes, _: Path) -> bytes:
    """A hole of two gigabytes where the database should be, in 2,560 bytes."""
    manifest, _ = unpacked(snapshot)
    manifest["files"][BOOKS] = [2**31, "0" * 64]
    block = bytearray(header(BOOKS, 512, {"type": b"S"}))
    block[386:410] = b"00000000000\x0000000001000\x00"
    block[483:495] = b"20000000000\x00"
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    manifest_part = packed([Member("manifest.json", json.dumps(manifest).encode())])[:-1024]
    return manifest_part + bytes(block) + b"x" * 512 + b"\0" * 1024


def manifested(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes, Path], bytes]:
    def make(snapshot: bytes, _: Path) -> bytes:
        manifest, files = unpacked(snapshot)
        change(manifest)
        return packed(
            [Member("manifest.json", json.dumps(manifest).encode()), Member(BOOKS, files[BOOKS])]
        )

    return make


def many_views(snapshot: bytes, folder: Path) -> bytes:
    """Views that SQLite would read in quadratic time."""
    return in_schema(
        *(("view", f"v{n}", f"v{n}", 0, f"CREATE VIEW v{n} AS SELECT 1") for n in range(9000))
    )(snapshot, folder)


def set_to(name: str, value: object) -> Callable[[bytes, Path], bytes]:
    text = json.dumps(value).replace("'", "''")
    return of_sql(f"UPDATE settings SET value = '{text}' WHERE name = '{name}'")


HOSTILE = {
    # finding 2: objects in the place of tables
    "a view in the place of a table": (
        of_sql("DROP TABLE removals", f"CREATE VIEW removals AS {ENDLESS}"),
        "table removals is missing, or is not as this program makes it",
    ),
    "a table with one more column": (
        of_sql("ALTER TABLE documents ADD COLUMN more TEXT AS (hex(zeroblob(1e9)))"),
        "table documents is missing, or is not",
    ),
    "a virtual table in the place of a table": (
        of_sql(
            "DROP TABLE removals", "CREATE VIRTUAL TABLE removals USING fts5(id, document, key)"
        ),
        "table removals is missing, or is not",
    ),
    # finding 3: what ran before any check
    "a trigger on the log of migrations": (
        fresh(
            "CREATE TABLE _sqlite_migrations "
            "(id INTEGER PRIMARY KEY, migration_set TEXT, name TEXT, applied_at TEXT)",
            f"CREATE TRIGGER evil AFTER INSERT ON _sqlite_migrations BEGIN {ENDLESS}; END",
        ),
        "is missing",
    ),
    "a view as the log of migrations": (
        fresh(f"CREATE VIEW _sqlite_migrations AS {ENDLESS}"), "is missing",
    ),
    "a broken log of migrations": (
        of_sql("DELETE FROM _sqlite_migrations WHERE name LIKE 'm003%'"), "log of migrations",
    ),
    "another program's log of migrations": (
        of_sql("UPDATE _sqlite_migrations SET migration_set = 'x'"), "log of migrations",
    ),
    "no database": (lambda snapshot, _: repacked(snapshot, b"x" * 9000), "cannot be read"),
    "an empty database": (fresh(), "cannot be read"),
    "nine thousand views": (many_views, "more than 1000 tables"),
    "a long statement": (
        of_sql(f"CREATE VIEW long AS SELECT '{'x' * 30_000}'"), "cannot be read",
    ),
    # findings 4 and 5: what is in a tar besides files
    "a header of many digits": (with_headers(("x", b"9" * 40_000, b"x")), "not a plain file"),
    "a global header": (with_headers(("x", b"19 path=a/long/one\n", b"g")), "not a plain file"),
    "a sparse file by its header": (
        with_headers(("x", b"22 GNU.sparse.major=1\n", b"x")), "not a plain file",
    ),
    "a sparse file": (sparse, "not a plain file|bytes, but at most"),
    "a long name of GNU's": (with_headers(("x", b"y" * 600, b"L")), "not a plain file"),
    "a link": (with_headers(("x", b"", b"2")), "not a plain file"),
    "more than is allowed": (
        manifested(lambda m: m["files"].update({BOOKS: [ALLOWED + 1, "0" * 64]})),
        "but at most 1,048,576 are restored here",
    ),
    "a negative size": (
        manifested(lambda m: m["files"].update({BOOKS: [-1, "0" * 64]})), "cannot be read",
    ),
    "a deep manifest": (
        lambda snapshot, _: packed([Member("manifest.json", b"[" * 100_000)]), "cannot be read",
    ),
    # finding 11: what was answered 500, or taken
    "figures of other names": (
        manifested(lambda m: m["collections"]["books"].update(x=1)), "cannot be read",
    ),
    "wrong figures": (
        manifested(lambda m: m["collections"]["books"].update(keys=7)), "manifest says",
    ),
    "a huge dimension": (set_to("dimension", 10**9), "not 1000000000 finite numbers"),
    "a huge dimension of nothing": (
        of_sql(
            "PRAGMA foreign_keys = ON",
            "DELETE FROM documents",
            "UPDATE settings SET value = '1000000000' WHERE name = 'dimension'",
        ),
        "65536 or less",
    ),
    "a dimension that the embeddings do not have": (set_to("dimension", 4), "not 4 finite numbers"),
    "a folder as an encoder": (set_to("encoder", "/etc"), "/etc"),
    "an encoder that is no text": (set_to("encoder", ["x"]), "encoder"),
    "an unknown scorer": (set_to("scorer", "x"), "scorer"),
    "mapped keys that end nowhere": (
        of_sql("INSERT INTO settings VALUES ('bridge', '{\"after\": 1}')"), "'bridge' is",
    ),
    "an unknown type of values": (set_to("values", {"x": "y"}), "is not a value type"),
    "a recall beyond one": (set_to("recall", 2), "recall"),
    "a setting that is deep": (set_to("published", json.loads("[" * 900 + "]" * 900)), "published"),
    "a huge change": (set_to("change", 10**400), "change"),
    "a version that is not there": (set_to("projection", 9), "Projection 9 is active"),
    "a missing setting": (of_sql("DELETE FROM settings WHERE name = 'uuid'"), "uuid"),
    "an embedding of another length": (
        of_sql("UPDATE keys SET embedding = x'00000000'"), "embeddings of keys are not",
    ),
    "an embedding that is a number": (
        of_sql("UPDATE keys SET embedding = 7"), "have a embedding that is no BLOB",
    ),
    "an embedding of infinity": (
        of_sql("UPDATE keys SET embedding = x'0000807f0000807f0000807f'"), "finite numbers",
    ),
    "matrices that are none": (of_sql("UPDATE projections SET weights = x'00'"), "cannot be read"),
    "a payload that is deep": (
        of_sql(f"""UPDATE documents SET payload = '{{"a": {"[" * 201}{"]" * 201}}}'"""),
        "more than 200 deep",
    ),
    "a payload that is a list": (of_sql("UPDATE documents SET payload = '[]'"), "a payload that"),
    "a payload that is no JSON": (of_sql("UPDATE documents SET payload = '{'"), "no JSON"),
    "an id that is not UTF-8": (
        of_sql("UPDATE documents SET id = CAST(x'c328' AS TEXT) WHERE row = 1"), "UTF-8",
    ),
    "a counter at its end": (
        of_sql("UPDATE sqlite_sequence SET seq = 9223372036854775807"), "not a valid counter",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_snapshot_is_refused_and_leaves_nothing(
    server: Running, tmp_path: Path, case: str
) -> None:
    make, sentence = HOSTILE[case]
    sent = make(server.snapshot, tmp_path)
    assert len(sent) <= ALLOWED
    before = server.files()
    status, answer = server.restore(sent)
    assert status == 422, answer
    assert any(part in answer["detail"] for part in sentence.split("|")), answer["detail"]
    assert len(answer["detail"]) < 1000
    assert server.files() == before
    assert server.send("GET", "/healthz", b"", TAR)[0] == 200


HARMLESS = {
    "a trigger of SQLite's kind of name": of_sql(
        "CREATE TRIGGER _sqlite_evil AFTER INSERT ON documents BEGIN "
        "UPDATE documents SET payload = '{\"owned\":true}' WHERE row = new.row; END"
    ),
    "an endless trigger": of_sql(
        f"CREATE TRIGGER _sqlite_evil AFTER INSERT ON documents BEGIN {ENDLESS}; END"
    ),
    "a trigger of a reserved name": in_schema(
        (
            "trigger", "sqlite_x", "keys", 0,
            f"CREATE TRIGGER sqlite_x AFTER INSERT ON keys BEGIN {ENDLESS}; END",
        )
    ),
    "a view": of_sql(f"CREATE VIEW _sqlite_view AS {ENDLESS}"),
    "views that double": of_sql(
        "CREATE VIEW v0 AS SELECT 1 AS a",
        *(f"CREATE VIEW v{n} AS SELECT x.a FROM v{n - 1} x, v{n - 1} y" for n in range(1, 60)),
    ),
    "a table": of_sql("CREATE TABLE _sqlite_more (a)"),
    "statistics": of_sql("ANALYZE"),
    "an index of an expression": of_sql("CREATE INDEX more ON documents (abs(row))"),
    "a trigger that does more than ours": of_sql(
        "DROP TRIGGER log_removed_key",
        "CREATE TRIGGER log_removed_key AFTER DELETE ON keys BEGIN INSERT INTO removals "
        "(document, key) VALUES (old.document, old.id); DELETE FROM documents; END",
    ),
    "options of the index of words": of_sql(
        "INSERT INTO lexical (lexical, rank) VALUES ('rank', 'bm25(0)')"
    ),
    "no index of words": of_sql("DROP TABLE lexical"),
}  # fmt: skip
"""Snapshots with more than rows, or less: the rows are restored, and nothing else."""


@pytest.mark.parametrize("case", HARMLESS)
def test_of_a_hostile_schema_only_rows_are_restored(
    server: Running, tmp_path: Path, case: str
) -> None:
    sent = HARMLESS[case](server.snapshot, tmp_path)
    status, answer = server.restore(sent)
    assert status == 201, answer
    database = server.folder / "collections" / "copy" / "documents.db"
    assert rows(database, tmp_path) == rows(unpacked(server.snapshot)[1][BOOKS], tmp_path)
    with closing(sqlite3.connect(database)) as db:
        stored = set(db.execute("SELECT type, name, tbl_name FROM sqlite_master"))
    assert stored == {(type, name, table) for type, name, table, _ in expected_schema()}
    assert server.send("DELETE", "/v1/collections/copy", b"", TAR)[0] == 204


@pytest.mark.parametrize(
    "form",
    ["7", '"x"', "[[1]]", '{"items": [{"x": 1}], "relevant": []}', '{"1": {"to": "x"}, "to": 1}'],
)
def test_reports_and_notes_of_any_form_are_listed(
    server: Running, tmp_path: Path, form: str
) -> None:
    report = f'{{"promoted": true, "used": {form}, "views": {form}, "changed": {form}, '
    report += f'"by_use": {form}}}'
    make = of_sql(
        f"UPDATE projections SET report = '{report}'",
        f"INSERT INTO settings VALUES ('rolled_back', '{form}'), ('drift', '{form}'), "
        f"('learned', '{form}'), ('interleaved_since', '{form}')",
    )
    status, answer = server.restore(make(server.snapshot, tmp_path))
    assert status == 201, answer
    path = "/v1/collections/copy"
    for end in ("", "/projections", "/projections/1", "/projections/1/questions"):
        assert server.send("GET", path + end, b"", TAR)[0] == 200, end
    assert server.send("DELETE", path, b"", TAR)[0] == 204


def test_the_snapshot_itself_is_restored(server: Running) -> None:
    status, answer = server.restore(server.snapshot)
    assert (status, answer["documents"]) == (201, 3)
    assert server.send("DELETE", "/v1/collections/copy", b"", TAR)[0] == 204


def test_mutated_snapshots_are_answered_201_or_422(server: Running) -> None:
    outcomes = set()
    for number in range(60):
        rng = random.Random(number)
        content = bytearray(unpacked(server.snapshot)[1][BOOKS])
        for _ in range(rng.choice([1, 4])):
            content[4096 * rng.randrange(len(content) // 4096) + rng.randrange(64)] ^= (
                1 << rng.randrange(8)
            )
        status, _ = server.restore(repacked(server.snapshot, bytes(content)))
        outcomes.add(status)
        if status == 201:
            query = json.dumps({"query": [1, 0, 0]}).encode()
            path = "/v1/collections/copy/search"
            assert server.send("POST", path, query, "application/json")[0] == 200
            assert server.send("DELETE", "/v1/collections/copy", b"", TAR)[0] == 204
    assert outcomes == {201, 422}


def test_checking_has_a_deadline(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "SECONDS", 0.0)
    monkeypatch.setattr(backup, "BYTES_A_SECOND", 1e12)
    with_data = Data(tmp_path)
    client = create_app(with_data).test_client()
    answer = client.put(COPY, data=server.snapshot, content_type=TAR)
    assert answer.status_code == 422
    assert "could not be checked within 0 s" in answer.get_json()["detail"]
    assert list(tmp_path.rglob("*.db")) == []
    with_data.close()


def test_a_long_manifest_is_not_read(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "MAX_MANIFEST", 100)
    with closing(Data(tmp_path)) as data:
        refused = create_app(data).test_client().put(COPY, data=server.snapshot, content_type=TAR)
        assert refused.status_code == 422
        assert "does not begin with manifest.json" in refused.get_json()["detail"]
        assert data.names() == []


def test_few_snapshots_are_worked_on_at_once(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object, **__: object) -> None:
        refused.append(client.put(COPY, data=server.snapshot, content_type=TAR))
        raise Damaged("One more was begun.")

    refused: list[Any] = []
    monkeypatch.setattr("attend_service.routes.server.restore_backup", check)
    with closing(Data(tmp_path)) as data:
        client = create_app(data).test_client()
        client.put(COPY, data=server.snapshot, content_type=TAR)
    assert [answer.status_code for answer in refused] == [429] + [422] * (MAX_SNAPSHOTS - 1)
    assert refused[0].headers["Retry-After"] == "10"
    assert f"{MAX_SNAPSHOTS} snapshots are taken or restored" in refused[0].get_json()["detail"]


def test_restoring_takes_a_key_to_all_collections(
    client: FlaskClient, data: Data, server: Running
) -> None:
    keys = KeyFile(data.folder)
    for collections, status in ((["copy"], 403), (["copy", "books"], 403), ([], 201)):
        key = keys.add(scope="admin", collections=collections)[1]
        client.application.config["MAX_CONTENT_LENGTH"] = ALLOWED
        answer = client.put(
            COPY, data=server.snapshot, content_type=TAR, headers={"X-Api-Key": key}
        )
        assert answer.status_code == status, answer.data
    assert data.names() == ["copy"]


def test_verify_names_what_is_strange_in_a_collection_that_is_there(
    data: Data, books: FlaskClient
) -> None:
    collection = data.collection("books")
    with collection.store.connections.writing() as db:
        db.execute(
            "CREATE TRIGGER _sqlite_evil AFTER INSERT ON documents BEGIN "
            "UPDATE documents SET payload = '{\"owned\":true}' WHERE row = new.row; END"
        )
        db.execute("CREATE VIEW _sqlite_view AS SELECT 1")
    assert verify(collection).problems == [
        "trigger _sqlite_evil is nothing that this program makes.",
        "view _sqlite_view is nothing that this program makes.",
    ]
    assert verify(collection, mend=True).mended
    added = [{"id": "x", "vector": [1, 1, 1], "payload": {"mine": 1}}]
    assert books.post("/v1/collections/books/documents", json=added).status_code == 200
    stored = books.get("/v1/collections/books/documents/x").get_json()
    assert stored["payload"] == {"mine": 1}
