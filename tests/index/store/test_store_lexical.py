"""The lexical index: in step with the documents, and BM25 as a plain loop computes it."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.store import words as store_words
from attend.store.database import Store
from attend.store.filters import compile_filter
from attend.store.words import MAX_STEMS, Tokenizer, register
from attend.write.ingest import value_hash
from tests import warm
from tests.index.helpers import entry, fresh_store

WORDS = ["aa", "bb", "cc", "dd", "ee", "ff"]  # too short for a stemmer to touch


@pytest.fixture
def store(tmp_path):
    opened = fresh_store(tmp_path / "documents.db")
    yield opened
    opened.close()


def write(store, texts):
    store.write([entry(id, fields={"t": text}) for id, text in texts.items()])


def found(store, text, limit=None) -> dict[str, float]:
    """Scores by document id."""
    answer = store.lexical(text, limit)
    ids = {row: document.id for row, document in store.documents(answer.rows).items()}
    return dict(zip([ids[row] for row in answer.rows.tolist()], answer.scores, strict=True))


def bm25(query: list[str], documents: dict[str, list[str]]) -> dict[str, float]:
    """BM25 by Robertson's formula with FTS5's constants, in a plain loop over words."""
    size = len(documents)
    mean = sum(map(len, documents.values())) / max(size, 1)
    scores: dict[str, float] = {}
    for word in set(query):
        having = [id for id, words in documents.items() if word in words]
        if len(having) > size / 2:
            continue
        idf = max(math.log((size - len(having) + 0.5) / (len(having) + 0.5)), 1e-6)
        for id in having:
            f, length = documents[id].count(word), len(documents[id])
            part = f * 2.2 / (f + 1.2 * (0.25 + 0.75 * length / mean))
            scores[id] = scores.get(id, 0) + idf * part
    return scores


def indexed(store) -> Counter[tuple[str, int]]:
    """(term, row) of each occurrence, from the index itself."""
    with sqlite3.connect(store.path) as other:
        other.execute("CREATE VIRTUAL TABLE temp.v USING fts5vocab('main', 'lexical', 'instance')")
        occurrences = Counter(other.execute("SELECT term, doc FROM temp.v").fetchall())
    other.close()
    return occurrences


# -- in step with the documents ------------------------------------------------------------------


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "revise", "delete", "delete matching"]),
        st.lists(st.sampled_from("pqrs"), min_size=1, max_size=3, unique=True),
        st.lists(st.sampled_from(WORDS), max_size=6),
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(STEPS, st.lists(st.sampled_from([*WORDS, "zz"]), max_size=4))
def test_whatever_was_done_a_search_is_bm25_of_what_is_there(tmp_path_factory, steps, query):
    store = fresh_store(tmp_path_factory.mktemp("steps") / "documents.db")
    held: dict[str, list[str]] = {}
    for action, ids, words in steps:
        for id in ids:
            mine = [*words, id * 2]
            if action == "write":
                store.write(
                    [entry(id, fields={"one": " ".join(mine[:2]), "b": "-".join(mine[2:])})]
                )
                held[id] = mine
            elif action == "revise":
                store.revise(id, lambda stored: stored._replace(value="zz aa"), value_hash)
            else:
                if action == "delete":
                    store.delete([id])
                else:
                    store.delete_matching(compile_filter({"@id": id}))
                held.pop(id, None)
        # In between as well: what is kept from an earlier search must not answer a later one.
        assert found(store, " ".join(query)) == pytest.approx(bm25(query, held), rel=1e-6)
    assert indexed(store) == Counter(
        (word, store.find([id])[id].row) for id, words in held.items() for word in words
    )
    store.close()


LETTERS = st.text(
    st.one_of(st.sampled_from('ab \0"*\\u\ud800\U0001f600éÉß\u0130\u0301{}[]:^-'), st.characters()),
    max_size=30,
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(LETTERS, LETTERS, max_size=3), min_size=1, max_size=4), LETTERS)
def test_any_text_goes_in_and_out_again(tmp_path_factory, texts, query):
    store = fresh_store(tmp_path_factory.mktemp("texts") / "documents.db")
    store.write([entry(str(at), fields=fields) for at, fields in enumerate(texts)])
    store.lexical(query)
    store.write([entry(str(at), fields=texts[at - 1]) for at in range(len(texts))])
    again = fresh_store(tmp_path_factory.mktemp("again") / "documents.db")
    again.write([entry(str(at), fields=texts[at - 1]) for at in range(len(texts))])
    assert indexed(store) == indexed(again)
    store.delete([str(at) for at in range(len(texts))])
    assert not indexed(store)
    store.close()
    again.close()


@settings(max_examples=50, deadline=None)
@given(LETTERS)
def test_a_document_is_found_by_each_of_its_words(tmp_path_factory, text):
    """The words of a query are those of the index, whatever the script."""
    store = fresh_store(tmp_path_factory.mktemp("words") / "documents.db")
    write(store, {"a": text, "b": "1", "c": "2", "d": "3"})
    for stem in Tokenizer().words(text):
        assert indexed(store)[stem, store.find(["a"])["a"].row] > 0
    # Beside three others, no word of it is one that half of the documents have.
    if Tokenizer().words(text).keys() - {"1", "2", "3"}:
        assert "a" in found(store, text)
    store.close()


def test_what_follows_a_nul_is_indexed_too(store):
    write(store, {"a": "before\0after", "b": "x", "c": "y"})
    assert set(found(store, "after")) == {"a"}
    assert set(found(store, "nothing\0after")) == {"a"}


def test_a_write_that_fails_leaves_the_index_as_it_was(store):
    write(store, {"a": "aa", "b": "bb", "c": "cc"})
    before = indexed(store)
    assert set(found(store, "aa dd")) == {"a"}
    with pytest.raises(ValueError, match="JSON"):
        store.write([entry("a", fields={"t": "dd"}), entry("d", value=float("nan"))])
    assert indexed(store) == before
    assert set(found(store, "aa dd")) == {"a"}


def test_the_schema_keeps_step_and_not_the_store(store):
    write(store, {"a": "aa", "b": "bb", "c": "cc"})
    assert set(found(store, "aa")) == {"a"}
    with sqlite3.connect(store.path) as other:
        register(other)
        other.execute("PRAGMA foreign_keys = ON")
        other.execute("""UPDATE documents SET fields = '{"t": "dd"}' WHERE id = 'a'""")
        other.execute("DELETE FROM documents WHERE id = 'b'")
    other.close()
    assert (found(store, "aa bb"), set(found(store, "dd"))) == ({}, {"a"})


WRITE_FROM_ELSEWHERE = """
import sys
from pathlib import Path
from attend.store.database import Store
from tests.index.helpers import entry
store = Store(Path(sys.argv[1]))
store.write([entry("a", fields={"t": "elsewhere"})])
store.close()
"""


def test_another_process_changes_a_text_and_the_next_search_knows(store):
    write(store, {"a": "here", "b": "bb", "c": "cc"})
    assert set(found(store, "here")) == {"a"}
    warm.run("-c", WRITE_FROM_ELSEWHERE, store.path).check_returncode()
    assert (found(store, "here"), set(found(store, "elsewhere"))) == ({}, {"a"})


def test_documents_without_texts_are_no_part_of_it(store):
    write(store, {"a": "aa bb", "b": "bb", "c": "cc"})
    alone = found(store, "aa")
    store.write([entry(str(n)) for n in range(20)])
    assert found(store, "aa") == alone


# -- BM25 ----------------------------------------------------------------------------------------


def test_stems_and_accents_meet(store):
    write(store, {"a": "Databases of naïve universities", "b": "x", "c": "y", "d": "z"})
    for query in ("databases", "DATABASE", "naive", "NAÏVE", "university", "nai\u0308ve"):
        assert set(found(store, query)) == {"a"}, query
    # The stem of a stem is another word: 'databas' would be looked for as 'databa'.
    assert Tokenizer().words("Databases DATABASE") == {"databas": "databases"}


def test_the_ideal_counts_what_no_document_has(store):
    write(store, {str(n): f"aa w{n}" if n < 2 else f"w{n}" for n in range(10)})
    answer = store.lexical("aa unknown w7 aa")
    parts = [math.log((10 - n + 0.5) / (n + 0.5)) * 2.2 for n in (0, 1, 2)]
    assert answer.ideal == pytest.approx(sum(parts))
    assert answer.terms == ("w7", "aa")
    assert answer.maximum == pytest.approx(answer.scores.max())
    assert 0 < answer.maximum < answer.ideal
    assert store.lexical("unknown").ideal == pytest.approx(parts[0])


def test_words_of_more_than_half_of_the_documents_change_no_order(store):
    """FTS5 asked for all words, those too, ranks alike: they weigh a millionth."""
    rng = np.random.default_rng(3)
    texts = {str(n): f"the {' '.join(rng.choice(WORDS, 5))}" for n in range(40)}
    write(store, texts)
    with sqlite3.connect(store.path) as other:
        everything = dict(
            other.execute(
                "SELECT rowid, -bm25(lexical) FROM lexical WHERE lexical MATCH 'the OR aa OR dd'"
            ).fetchall()
        )
    other.close()
    answer = store.lexical("the aa dd")
    assert "the" not in answer.terms
    assert len(answer.rows) < len(everything) == 40
    np.testing.assert_allclose(answer.scores, [everything[r] for r in answer.rows.tolist()], 1e-5)
    assert all(everything[r] < 1e-5 for r in everything.keys() - set(answer.rows.tolist()))


def test_a_limit_takes_the_best_and_keeps_the_maximum(store):
    write(store, {str(n): "aa " * (n % 5) + f"w{n} v{n}" for n in range(30)})
    everything = found(store, "aa w29")
    best = sorted(everything, key=lambda id: (-everything[id], int(id)))
    for limit in (0, 1, 7, 100):
        answer = store.lexical("aa w29", limit)
        assert set(found(store, "aa w29", limit)) == set(best[:limit])
        assert (np.diff(answer.rows) > 0).all()
        assert answer.maximum == everything[best[0]]


def test_many_texts_at_once_are_each_as_alone(store):
    write(store, {str(n): f"aa w{n % 7} v{n % 3}" for n in range(30)})
    texts = ["w1 v2", "", "w1 unknown", "aa", "w6 w6"]
    for text, answer in zip(texts, store.lexical_many(texts), strict=True):
        alone = store.lexical(text)
        np.testing.assert_array_equal(answer.rows, alone.rows)
        np.testing.assert_array_equal(answer.scores, alone.scores)
        assert answer[2:] == alone[2:]


@pytest.mark.parametrize("length", [6, None])
def test_without_some_documents_words_score_as_once_they_are_deleted(store, length):
    """But for the mean length of texts, of which a few documents change little."""
    rng = np.random.default_rng(4)
    size = [length or int(rng.integers(2, 11)) for _ in range(80)]
    texts = {str(n): " ".join(rng.choice([*WORDS, f"v{n % 9}"], size[n])) for n in range(80)}
    gone = [str(n) for n in range(0, 80, 9)]  # all that have v0
    if length is None:
        texts["none"] = ""
        gone.append("none")
    write(store, texts)
    absent = np.array([each.row for each in store.scroll(0, 100) if each.id in gone])
    queries = ["aa v0 v1", "bb cc unknown", "v0", "dd ee ff gg", ""]
    found = [store.lexical_many([query], without=absent)[0] for query in queries]
    whole = store.lexical(queries[0])
    store.delete(gone)
    for query, one in zip(queries, found, strict=True):
        expected = store.lexical(query)
        assert one.rows.tolist() == expected.rows.tolist(), query
        np.testing.assert_allclose(one.scores, expected.scores, 1e-5 if length else 0.05)
        assert one.ideal == pytest.approx(expected.ideal)
        assert one.terms == expected.terms
        assert one.maximum == pytest.approx(one.scores.max(initial=0.0))
        limited = store.lexical_many([query], 3, without=absent)[0]
        assert limited.rows.size <= 3
    assert found[0].ideal != pytest.approx(whole.ideal)


# -- whatever a query holds ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "AND", "OR NOT", 'aa"', '"aa" AND ("bb"', "aa*", "NEAR(aa bb)", "t:aa", "^aa", "-aa",
        "{t} : aa", "aa; DROP TABLE documents; --", "", "   ", "?!. ,;:", "\0", "\ud800",
        "aa\ud800bb", "'", '""', "text : aa", "lexical", "NEAR", "a" * 5000, "\u0301\u0308", "🙂🙂",
    ],
)  # fmt: skip
def test_a_query_is_words_and_never_syntax(store, query):
    write(store, {"a": "aa bb and near not or", "b": "xx", "c": "yy"})
    expected = set(Tokenizer().words(query)) & {"aa", "bb", "and", "near", "not", "or"}
    assert set(found(store, query)) == ({"a"} if expected else set())
    assert list(store.all_ids()) == ["a", "b", "c"]


def test_a_query_of_a_megabyte_is_answered_by_its_rarest_words(store):
    write(store, {str(n): f"w{n} v{n % 10} u{n % 3}" for n in range(200)})
    query = "u1 v1 v2 " + " ".join(f"w{n}" for n in range(170_000))
    assert len(query) > 1_000_000
    answer = store.lexical(query)
    assert len(answer.terms) == store_words.MAX_TERMS
    assert all(term.startswith("w") for term in answer.terms)
    assert len(Tokenizer().words(query)) == MAX_STEMS


def test_an_empty_collection_has_nothing(store):
    answer = store.lexical("aa")
    assert (answer.rows.tolist(), answer.maximum, answer.terms) == ([], 0, ())


def test_a_large_collection_is_asked_for_its_rarest_words_only(store, monkeypatch):
    write(store, {str(n): f"w{n} v{n % 6} u{n % 4} x{n % 3}" for n in range(60)})
    assert set(store.lexical("w1 v1 u1 x1").terms) == {"w1", "v1", "u1", "x1"}
    monkeypatch.setattr(store_words, "FULL_DOCUMENTS", 12)
    answer = store.lexical("x1 u1 v1 w1")
    assert answer.terms == ("w1", "v1")  # 1 + 10 documents; u1 would be 15 more
    assert sum(store.lexical(term).rows.size for term in answer.terms) <= 12
    assert store.lexical("u1").terms == ()


def test_a_word_is_common_before_and_after_somebody_searched_it(store, monkeypatch):
    monkeypatch.setattr(store_words, "FULL_DOCUMENTS", 12)
    write(store, {str(n): f"the w{n}" for n in range(60)})
    assert store.lexical("the w1").terms == ("w1",)
    assert store.common_words(["the w1"]) == {"the"}


# -- what is kept --------------------------------------------------------------------------------


def test_rows_far_apart_are_summed_alike(store, monkeypatch):
    write(store, {str(n): f"w{n % 7} v{n % 5}" for n in range(50)})
    near = store.lexical("w1 v2 v3")
    monkeypatch.setattr(store_words, "MAX_SPAN", 3)
    apart = store.lexical("w1 v2 v3")
    np.testing.assert_array_equal(near.rows, apart.rows)
    np.testing.assert_allclose(near.scores, apart.scores, rtol=1e-12)


def test_little_memory_gives_the_same_answers(store, monkeypatch):
    write(store, {str(n): f"w{n % 7} v{n % 5}" for n in range(50)})
    expected = store.lexical("w1 v2 v3")
    monkeypatch.setattr(store_words, "CACHED_SCORES", 60)
    monkeypatch.setattr(store_words, "MAX_COUNTS", 2)
    store._words = store_words.WordCache()
    for _ in range(3):
        np.testing.assert_array_equal(store.lexical("w1 v2 v3").scores, expected.scores)


def test_a_second_search_reads_no_text_and_a_change_makes_it_read(store, monkeypatch):
    write(store, {"a": "aa", "b": "bb", "c": "cc"})
    first = store.lexical("aa").scores
    matches = store._words.matches
    put, calls = matches.put, []
    monkeypatch.setattr(matches, "put", lambda *match: calls.append(1) or put(*match))
    np.testing.assert_array_equal(store.lexical("aa").scores, first)
    store.revise("b", lambda stored: stored._replace(value=1), value_hash)
    store.lexical("aa")
    assert calls == []
    write(store, {"b": "bb bb bb bb"})
    assert store.lexical("aa").scores > first  # shorter than the mean than before
    assert calls == [1]


def test_a_reader_of_an_earlier_state_is_not_answered_from_a_later_one(store):
    write(store, {"a": "aa", "b": "bb", "c": "cc"})
    old = store.find(["a", "b"])
    with store.connections.reading() as db:
        db.execute("SELECT 1 FROM documents").fetchone()  # the moment that is read
        done = threading.Thread(target=lambda: (write(store, {"b": "aa"}), store.lexical("aa cc")))
        done.start()
        done.join()
        assert store.lexical("aa").rows.tolist() == [old["a"].row]
    assert store.lexical("aa").rows.tolist() == []  # two of three now, and so said of most
    assert store.lexical("bb").rows.tolist() == []


def test_threads_that_ask_while_one_writes_meet_whole_states(store):
    """Each batch gives all documents one word: found are all four, or none."""
    ids = ["a", "b", "c", "d"]
    write(store, {**dict.fromkeys(ids, "n0"), **{f"x{n}": "filler" for n in range(8)}})
    stop, failed, sizes = threading.Event(), [], set()

    def ask():
        try:
            while not stop.is_set():
                for answer in store.lexical_many([f"n{n}" for n in range(30)]):
                    sizes.add(len(answer.rows))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 30):
        write(store, dict.fromkeys(ids, f"n{number}"))
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sizes == {0, 4}


def test_a_store_opened_again_finds_the_same(store):
    write(store, {str(n): f"w{n % 7} v{n % 5}" for n in range(50)})
    other = Store(store.path)
    np.testing.assert_array_equal(other.lexical("w1 v2").scores, store.lexical("w1 v2").scores)
    other.close()


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8), min_size=1, max_size=8))
def test_texts_that_are_documents_score_as_they_do(tmp_path_factory, texts):
    """As FTS5 scores the documents, by frequencies and lengths that it keeps itself."""
    store = fresh_store(tmp_path_factory.mktemp("same") / "documents.db")
    by_id = {str(n): " ".join(words) for n, words in enumerate(texts)}
    write(store, by_id)
    query = "aa bb cc zz"
    there, matches = store.lexical(query), store.lexical_texts(query, list(by_id.values()))
    scores = dict(zip(map(str, matches.rows.tolist()), matches.scores.tolist(), strict=True))
    assert scores == pytest.approx(found(store, query), rel=1e-6)
    assert matches.maximum == pytest.approx(there.maximum, rel=1e-6)
    assert matches.ideal == there.ideal
    store.close()


def test_the_mean_length_is_read_from_numbers_of_several_bytes(store):
    texts = {str(n): " ".join(["aa"] * (n + 1)) for n in range(200)}  # 20,100 tokens
    write(store, texts | {"x": "bb bb cc"})
    expected = found(store, "bb")["x"]
    assert store.lexical_texts("bb", ["bb bb cc"]).scores[0] == pytest.approx(expected, rel=1e-6)


def test_a_word_that_no_document_has_counts_in_a_text(store):
    write(store, {"a": "aa", "b": "bb", "c": "cc"})
    matches = store.lexical_texts("zz", ["aa", "zz"])
    assert matches.rows.tolist() == [1]
    assert matches.scores[0] == matches.maximum > 0
