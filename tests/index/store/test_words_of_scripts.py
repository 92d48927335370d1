"""Words of scripts without blanks, accents and identifiers: found, matched and marked."""

from __future__ import annotations

import json
import sqlite3

import pytest
from sqlite_utils import Database

from attend.search.hits import word_spans
from attend.store.checks import schema_problems
from attend.store.database import Store
from attend.store.filters import compile_filter
from attend.store.migrations import migrations
from attend.store.words import indexed_text, register, traced_text
from tests.index.helpers import FIRST_WORDS, entry, fresh_store
from tests.index.store.scripts import QUERIES, SENTENCES

CODE = {
    "camel": "call getHTTPResponse first",
    "snake": "call read_csv_file first",
    "dotted": "call os.path.join first",
    "product": "written in JavaScript",
    "accents": "un café déjà vu à Łódź",
    "decomposed": "ame\u0301lie poulain",
    "other": "nothing of it is here",
    "more": "neither is it there",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    opened = fresh_store(tmp_path_factory.mktemp("scripts") / "documents.db")
    opened.write(
        [
            entry(f"{language} {name}", fields={"t": text})
            for language, texts in {**SENTENCES, "code": CODE}.items()
            for name, text in texts.items()
        ]
    )
    yield opened
    opened.close()


def ranking(store, query: str) -> list[str]:
    answer = store.lexical(query)
    order = sorted(zip(-answer.scores, answer.rows.tolist(), strict=True))
    documents = store.documents(answer.rows)
    return [documents[row].id for _, row in order]


def matching(store, query: str, field: str = "@text") -> set[str]:
    predicate = compile_filter({field: {"match": query}})
    return {document.id for document in store.scroll(0, 100, predicate)}


def marked(query: str, text: str) -> list[str]:
    return [text[start:stop] for start, stop in word_spans([query], [text])[0]]


@pytest.mark.parametrize("language", SENTENCES)
def test_a_word_of_a_sentence_without_blanks_finds_it(store, language):
    ranks = [
        ranking(store, query).index(f"{language} {name}")
        for spoken, name, query in QUERIES
        if spoken == language
    ]
    assert ranks
    assert ranks.count(0) >= 0.8 * len(ranks)
    assert max(ranks) <= 2


def test_a_run_matches_as_a_whole(store):
    assert matching(store, "しりとり") == {"Japanese shiritori"}
    assert matching(store, "しりとり", "t") == {"Japanese shiritori"}
    assert matching(store, "東京タワー 電波塔") == {"Japanese tokyo"}
    assert matching(store, "東京 古い") == set()
    # All pairs of it are in the text, but not beside each other.
    assert matching(store, "古い神社") == set()
    # One letter begins a word, stands in it, or ends it.
    assert matching(store, "猫") == {"Japanese cat", "Chinese panda"}
    assert matching(store, "학교") == {"Korean school"}
    assert matching(store, "ไทย") == {"Thai language", "Thai food"}


@pytest.mark.parametrize(
    ("query", "name"),
    [
        *((query, "camel") for query in ("response", "HTTP", "getHTTPResponse")),
        *((query, "snake") for query in ("csv", "read_csv_file", "csv_file", "readCsvFile")),
        *((query, "dotted") for query in ("os.path", "join", "os.path.join")),
        *((query, "product") for query in ("javascript", "JavaScript", "script")),
        *((query, "accents") for query in ("cafe", "CAFÉ", "deja", "dé\u0301jà")),
        *((query, "decomposed") for query in ("amelie", "Amélie")),
    ],
)
def test_parts_and_wholes_find_an_identifier(store, query, name):
    assert ranking(store, query)[0] == f"code {name}"


def test_an_identifier_matches_by_parts_and_whole(store):
    for query in ("response", "getHTTPResponse", "gethttpresponse", "http get"):
        assert matching(store, query) == {"code camel"}, query
    for query in ("csv", "read_csv_file", "file csv"):
        assert matching(store, query) == {"code snake"}, query
    assert matching(store, "JavaScript") == matching(store, "javascript") == {"code product"}
    assert matching(store, "getResponse") == set()


@pytest.mark.parametrize(
    ("query", "text", "spans"),
    [
        ("タワー", "東京タワーは高い", ["タワー"]),
        ("猫", "黒猫は猫だ", ["猫", "猫"]),
        ("ガイド", "ｶﾞｲﾄﾞ本", ["ｶﾞｲﾄﾞ"]),
        ("학교", "학교에서 공부", ["학교"]),
        ("ภาษาไทย", "เรียนภาษาไทยง่าย", ["ภาษาไทย"]),
        ("response", "the getHTTPResponse of it", ["Response"]),
        ("getHTTPResponse", "no getHTTPResponse", ["getHTTPResponse"]),
        ("path", "use os.path.join", ["path"]),
        ("os.path.join", "use os.path.join", ["os.path.join"]),
        ("deja", "un cafe\u0301, de\u0301ja\u0300 vu", ["de\u0301ja\u0300"]),
        ("life on a ship", "A life and a ship on a sea", ["life", "ship"]),
        ("to be or not", "to be a tree", ["to", "be"]),
        ("the", "the ship", ["the"]),
    ],
)
def test_marks_stand_where_the_word_is(query, text, spans):
    assert marked(query, text) == spans


def test_what_most_documents_have_is_not_marked(tmp_path):
    store = fresh_store(tmp_path / "documents.db")
    store.write([entry(str(n), fields={"t": f"der Wal n{n}"}) for n in range(60)])
    common = store.common_words(["der Walfang n7"])
    assert common == {"der"}
    text = "der Walfang des Jahres"
    assert [text[a:b] for a, b in word_spans(["der Walfang"], [text], common)[0]] == ["Walfang"]
    store.close()


def test_a_traced_text_is_the_indexed_text():
    for text in (
        *SENTENCES["Japanese"].values(),
        *CODE.values(),
        "x getHTTPResponse か\u3099き 3.14",
    ):
        traced, places = traced_text(text)
        assert traced == indexed_text(text)
        assert places is None or len(places) == len(traced)


def test_the_index_of_an_older_database_is_made_again_once(tmp_path):
    path = tmp_path / "documents.db"
    fresh_store(path).close()
    before = tmp_path / "before.db"
    with sqlite3.connect(before) as other:
        db = Database(other, execute_plugins=False)
        migrations.apply(db, stop_before="m006_words_of_all_scripts")
        for statement in FIRST_WORDS:
            db.execute(statement)
        other.execute("ATTACH ? AS new", [str(path)])
        other.execute("INSERT OR REPLACE INTO settings SELECT * FROM new.settings")
        fields = json.dumps({"t": SENTENCES["Japanese"]["shiritori"]})
        other.execute(
            "INSERT INTO documents (id, fields, payload, key_hash, value_hash) "
            "VALUES ('a', ?, '{}', x'00', x'00'), ('b', '{}', '{}', x'00', x'00'), "
            """('c', '{"t": "x"}', '{}', x'00', x'00'), ('d', '{"t": "y"}', '{}', x'00', x'00')""",
            [fields],
        )
    other.close()
    store = Store(before)
    assert ranking(store, "しりとり") == ["a"]
    store.delete(["a"])
    assert ranking(store, "しりとり") == []
    store.close()
    again = Store(before)
    assert not migrations.pending(again.connections.reader())
    assert schema_problems(again.connections.reader()) == []
    again.close()


def test_an_interrupt_while_words_are_indexed_is_one_and_stores_nothing(tmp_path):
    """SQLite makes an error of its own of what is raised in a function."""
    store = fresh_store(tmp_path / "documents.db")

    def stopped(text: str) -> str:
        raise KeyboardInterrupt

    with store.connections.writing() as db:
        db.conn.create_function("document_text", 1, stopped, deterministic=True)
    with pytest.raises(KeyboardInterrupt):
        store.write([entry("a", fields={"t": "words"})])
    with store.connections.writing() as db:
        register(db.conn)
    assert store.counts() == (0, 0)
    store.write([entry("a", fields={"t": "words"})])
    assert matching(store, "words") == {"a"}
    store.close()


def test_what_stands_between_identifiers_is_indexed_once():
    text = "first readFile then write_file last"
    assert indexed_text(text).split() == [
        *("first", "readFile", "read", "File", "then"),
        *("write_file", "writefile", "last"),
    ]
