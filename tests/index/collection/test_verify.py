"""Verification: every way in which a database and its indexes can be wrong is told, and what can be
made again is mended without changing an answer."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from attend.cli import main
from attend.collection.data import Data
from attend.collection.verify import verify
from attend.store import NewExample, Question
from tests.index.helpers import index_fields, published, vector_data

WORDS = ("whale ship sea storm harbour gold island map pirate night").split()  # noqa: SIM905


@pytest.fixture
def collection(tmp_path, tiny_encoder):
    """Texts, vectors, an example, an indexed field, an offset, a published index."""
    data = Data(tmp_path, load_encoder=lambda name: tiny_encoder)
    found = data.create("default", encoder="tiny")
    rng = np.random.default_rng(0)
    found.upsert(
        [
            {
                "id": f"d{n}",
                "fields": {"title": WORDS[n % 10], "body": " ".join(rng.choice(WORDS, 8))},
                "value": n,
                "payload": {"year": 1800 + n, "tags": ["a", "b"][: n % 3]},
            }
            for n in range(30)
        ]
    )
    found.upsert([{"id": "v", "vector": [1.0] + [0.5] * 31, "payload": {"x": None, "é": "ü"}}])
    question = Question("gold at sea", tiny_encoder.encode_queries(["gold at sea"])[0])
    found.store.add_examples([question], [NewExample(0, "d3", 1.0), NewExample(0, "d4", -1.0)])
    index_fields(found.store, ["year"])
    found.revise("d7", {"payload": {"year": 1999}})
    found.delete(["d9"])
    found.publish()
    yield found
    data.close()


def ranking(collection, **options):
    answer = collection.search("gold island at night", k=30, attend="all", lexical=True, **options)
    return [(hit.id, round(hit.score, 5)) for hit in answer.hits]


def spoil(collection, *statements):
    with collection.store.connections.writing() as db:
        for each in statements:
            db.execute(each)


def without_foreign_keys(collection, *statements):
    db = collection.store.connections._writer
    db.execute("PRAGMA foreign_keys = OFF")
    spoil(collection, *statements)
    db.execute("PRAGMA foreign_keys = ON")


def test_a_sound_collection_has_no_problem(collection):
    found = verify(collection)
    assert (found.problems, found.mended, found.left) == ([], False, [])
    assert found.keys == collection.store.counts()[1]


MENDABLE = {
    "a missing trigger": ("schema", "DROP TRIGGER log_removed_key"),
    "another trigger": (
        "schema",
        "DROP TRIGGER remove_values",
        "CREATE TRIGGER remove_values AFTER DELETE ON documents BEGIN SELECT 1; END",
    ),
    "a missing index": ("schema", "DROP INDEX keys_by_document"),
    "a number given out twice": (
        "counters",
        "UPDATE sqlite_sequence SET seq = 3 WHERE name = 'keys'",
    ),
    "a counter that is gone": ("counters", "DELETE FROM sqlite_sequence WHERE name = 'documents'"),
    "an example without its key": ("examples", "DELETE FROM keys WHERE example IS NOT NULL"),
    "an example twice": (
        "examples",
        "INSERT INTO keys (document, field, start, stop, embedding, example) "
        "SELECT document, field, start, stop, embedding, example FROM keys "
        "WHERE example IS NOT NULL",
    ),
    "an example of another document": (
        "examples",
        "UPDATE keys SET document = 1 WHERE example IS NOT NULL",
    ),
    "a text that was not taken in": (
        "words",
        "DROP TRIGGER reindex_text",
        "INSERT INTO lexical (lexical) VALUES ('delete-all')",
    ),
    "one text of another document": ("words", "INSERT INTO lexical (rowid, text) VALUES (90, 'x')"),
    "a word too many": (
        "words",
        "DELETE FROM lexical_docsize WHERE id = 2",
    ),
    "a field's index with a hole": ("filters", "DELETE FROM field_values WHERE row = 3"),
    "a key that moved": (
        "index",
        "DROP TRIGGER log_removed_key",
        "UPDATE keys SET id = 900 WHERE id = 4",
    ),
}


@pytest.mark.parametrize("case", MENDABLE)
def test_what_can_be_made_again_is_mended(collection, case):
    check, *statements = MENDABLE[case]
    expected = ranking(collection)
    spoil(collection, *statements)
    found = verify(collection)
    assert check in {each.check for each in found.findings}
    assert all(each.can_mend for each in found.findings)
    assert found.left == found.problems
    mended = verify(collection, mend=True)
    assert mended.mended, mended.left
    assert verify(collection).problems == []
    assert ranking(collection) == expected


def test_rows_that_belong_to_nothing_are_removed(collection):
    # Without the move by questions, which are deleted here.
    expected = [each for each in ranking(collection, memory=0) if each[0] != "d5"]
    without_foreign_keys(
        collection, "DELETE FROM documents WHERE id = 'd5'", "DELETE FROM questions"
    )
    problems = verify(collection).problems
    assert "2 rows of keys belong to rows of documents that are not there." in problems
    assert "2 rows of examples belong to rows of questions that are not there." in problems
    assert verify(collection, mend=True).mended
    assert [id for id, _ in ranking(collection, memory=0)] == [id for id, _ in expected]


HOPELESS = {
    "a shorter embedding": ("embeddings", "UPDATE keys SET embedding = x'00' WHERE id = 1"),
    "a flipped bit of a vector": ("documents", None),
    "another text": (
        "documents",
        "DROP TRIGGER reindex_text",
        "UPDATE documents SET fields = '{\"title\":\"whale\"}' WHERE id = 'd8'",
    ),
    "another payload": (
        "documents",
        "UPDATE documents SET payload = '{\"year\":7}' WHERE id = 'd8'",
    ),
    "another value": ("documents", "UPDATE documents SET value = NULL WHERE id = 'd8'"),
    "no JSON": (
        "json",
        "DROP TRIGGER reindex_values",
        "UPDATE documents SET payload = '{' WHERE id = 'd8'",
    ),
    "a passage beyond its text": ("documents", "UPDATE keys SET stop = 10000 WHERE id = 1"),
    "no key": ("keys", "DELETE FROM keys WHERE document = 2"),
    "a lost setting": ("settings", "DELETE FROM settings WHERE name = 'uuid'"),
    "a setting of another kind": (
        "settings",
        "UPDATE settings SET value = '{}' WHERE name = 'change'",
    ),
    "a setting below zero": (
        "settings",
        "UPDATE settings SET value = '-1' WHERE name = 'change'",
    ),
    "other matrices": ("projections", "UPDATE projections SET fingerprint = 'x'"),
    "no matrices": ("projections", "UPDATE projections SET weights = x'00'"),
    "a table of its own": ("schema", "CREATE TABLE extra (x)"),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_what_cannot_be_made_again_is_told_with_what_to_do(collection, case):
    check, *statements = HOPELESS[case]
    if statements == [None]:
        flip_a_vector(collection)
    else:
        spoil(collection, *statements)
    found = verify(collection, mend=True)
    assert not found.mended
    assert found.left
    told = [each for each in found.findings if each.check == check]
    assert told, found.findings
    assert all(each.remedy.endswith(".") for each in told)


def flip_a_vector(collection):
    with collection.store.connections.writing() as db:
        rows = db.execute("SELECT id, embedding FROM keys WHERE field = 'vector'").fetchall()
        ((id, blob),) = rows
        changed = np.frombuffer(blob, dtype=np.float32).copy()
        changed[4] += 0.25
        db.execute("UPDATE keys SET embedding = ? WHERE id = ?", [changed.tobytes(), id])


def test_numbers_that_are_not_finite_are_told(collection):
    nan = np.full(32, np.nan, dtype=np.float32).tobytes()
    with collection.store.connections.writing() as db:
        db.execute("UPDATE questions SET embedding = ?", [nan])
        db.execute("UPDATE keys SET embedding = ? WHERE id = 5", [nan])
    assert verify(collection).problems[:2] == [
        "1 embeddings of keys are not 32 finite numbers, number 5 first.",
        "1 embeddings of questions are not 32 finite numbers, number 1 first.",
    ]


@pytest.mark.parametrize("name", ["vectors.npy", "keys.npy", "documents.npy", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_index_is_told_and_built_again(collection, name, damage):
    expected = ranking(collection)
    path = published(collection) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    found = verify(collection)
    assert [each.check for each in found.findings] == ["index"]
    assert path.name in found.problems[0] or "manifest" in found.problems[0]
    assert verify(collection).problems == found.problems  # looking changes nothing
    assert verify(collection, mend=True).mended
    assert ranking(collection) == expected


def test_a_page_of_the_database_that_was_overwritten(tmp_path):
    data = vector_data(tmp_path)
    made = data.create(dimension=8)
    rng = np.random.default_rng(0)
    made.upsert([{"id": str(n), "vector": rng.normal(size=8).tolist()} for n in range(500)])
    data.close()
    path = tmp_path / "collections" / "default" / "documents.db"
    content = bytearray(path.read_bytes())
    # Behind the pages of the schema: without these it could not be opened.
    for at in range(40 * 4096, len(content) - 4096, 3 * 4096):
        content[at : at + 200] = bytes(200)
    path.write_bytes(content)
    found = verify(vector_data(tmp_path).collection(), mend=True)
    assert not found.mended
    assert {each.check for each in found.findings} == {"file"}
    assert found.findings[0].remedy.startswith("Restore")


def test_it_can_be_asked_while_others_write(collection):
    writer = Data(collection.folder.parents[1], load_encoder=collection._encoders).collection()
    for n in range(5):
        writer.upsert([{"id": f"new{n}", "text": "a new text of the sea"}])
        writer.delete([f"d{n}"])
        assert verify(collection).problems == []


def test_the_command_says_what_is_left(collection):
    folder = str(collection.folder.parents[1])
    spoil(
        collection,
        "DELETE FROM keys WHERE example IS NOT NULL",
        "UPDATE documents SET value = NULL WHERE id = 'd8'",
    )
    done = CliRunner().invoke(main, ["verify", "--data", folder, "--mend", "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["mended"]) == (1, False)
    assert told["left"] == [
        "1 documents have another value or payload than was written, 'd8' first."
    ]
    assert [each["check"] for each in told["findings"]] == ["examples", "documents"]
    done = CliRunner().invoke(main, ["verify", "--data", folder])
    assert done.exit_code == 1
    assert "Send the documents again" in done.stdout


def test_the_command_says_that_a_database_cannot_be_opened(tmp_path):
    folder = tmp_path / "collections" / "default"
    folder.mkdir(parents=True)
    (folder / "documents.db").write_bytes(b"no database at all" * 500)
    done = CliRunner().invoke(main, ["verify", "--data", str(tmp_path), "--json"])
    told = json.loads(done.stdout)
    assert done.exit_code == 1
    assert "cannot be read" in told["problems"][0]
    assert told["findings"][0]["can_mend"] is False
