"""Examples in the store: replaced, counted, turned into keys, gone with what they speak of."""

from __future__ import annotations

import random
import re
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attend.core.errors import UnknownDocument
from attend.core.types import Document
from attend.store import Entry, NewExample, Question
from attend.store.words import register
from attend.write.ingest import value_hash
from tests.index.helpers import embeddings_of, entry, fresh_store


@pytest.fixture
def store(tmp_path):
    opened = fresh_store(tmp_path / "documents.db")
    opened.write([entry(id, [(n, 1)]) for n, id in enumerate("abcd")])
    yield opened
    opened.close()


def question(text, *embedding) -> Question:
    return Question(text, np.array(embedding or (0.5, 0.25), dtype=np.float32))


def teach(store, *examples, text="q", embedding=(0.5, 0.25)) -> tuple[int, int]:
    """Examples (document, weight) of one question."""
    rows = [NewExample(0, document, weight) for document, weight in examples]
    return store.add_examples([question(text, *embedding)], rows)


def told(store) -> dict[tuple[str | None, str], float]:
    """Weights by question text and document id."""
    learned = store.examples()
    ids = {row: document.id for row, document in store.documents(learned.rows).items()}
    return {
        (learned.texts[at], ids[row]): weight
        for at, row, weight in zip(
            learned.questions.tolist(), learned.rows.tolist(), learned.weights, strict=True
        )
    }


def example_keys(store) -> dict[int, tuple[str, list[float]]]:
    """Document and embedding of each example key, by key id."""
    with store.all_keys(examples=True) as (_, batches):
        found = {
            key: (int(row), embedding.tolist())
            for batch in batches
            for key, row, embedding, is_one in zip(
                batch.ids.tolist(), batch.documents, batch.vectors, batch.is_example, strict=True
            )
            if is_one
        }
    ids = store.documents(np.array([row for row, _ in found.values()], dtype=np.int64))
    return {key: (ids[row].id, embedding) for key, (row, embedding) in found.items()}


def questions(store) -> int:
    return store.connections.reader().execute("SELECT count(*) FROM questions").fetchone()[0]


# -- added and replaced --------------------------------------------------------------------------


def test_examples_are_read_as_they_were_given(store):
    asked = [question("first", 1, 2), question("unused", 9, 9), question(None, 3, 4)]
    given = [
        NewExample(2, "b", 1.5, position=3, source="click"),
        NewExample(0, "a", 2),
        NewExample(0, "c", 0.0),
        NewExample(2, "a", -1),
    ]
    change = store.state().change
    assert store.add_examples(asked, given) == (4, 0)
    learned = store.examples()
    assert learned.texts == ["first", None]
    assert learned.embeddings.tolist() == [[1, 2], [3, 4]]
    assert learned.embeddings.dtype == np.float32
    assert learned.questions.tolist() == [1, 0, 0, 1]
    rows = {id: document.row for id, document in store.find(list("abc")).items()}
    assert learned.rows.tolist() == [rows[each.document] for each in given]
    assert learned.weights.tolist() == [1.5, 2, 0, -1]
    assert learned.positions.tolist() == [3, 0, 0, 0]
    assert (np.diff(learned.ids) > 0).all()
    assert store.example_count() == 4
    assert store.state().change == change + 1
    read = store.connections.reader().execute("SELECT source FROM examples ORDER BY id")
    assert [source for (source,) in read] == ["click", "given", "given", "given"]


def test_nothing_taught_reads_as_nothing(store):
    assert store.add_examples([question("q")], []) == (0, 0)
    learned = store.examples()
    assert learned.texts == []
    assert learned.embeddings.shape == (0, 0)
    assert [part.shape for part in learned[2:]] == [(0,)] * 6
    assert {part.dtype for part in learned[2:4]} == {np.dtype(np.int64)}
    assert (store.example_count(), questions(store)) == (0, 0)


def test_an_example_written_again_replaces_the_old(store):
    assert teach(store, ("a", 1), ("b", 1)) == (2, 0)
    ids, keys = store.examples().ids.tolist(), example_keys(store)
    assert teach(store, ("b", 2), ("c", 1), ("c", 3)) == (1, 2)
    assert told(store) == {("q", "a"): 1, ("q", "b"): 2, ("q", "c"): 3}
    assert store.examples().ids.tolist()[:2] == ids
    # The key of an example that was relevant and is, is the same key: nothing to index again.
    assert example_keys(store).items() >= keys.items()


def test_questions_are_the_same_by_text_else_by_embedding(store):
    teach(store, ("a", 1), text="x", embedding=(1, 0))
    teach(store, ("b", 1), text="x", embedding=(1, 0.001))  # in other rounding
    teach(store, ("a", 1), text=None, embedding=(1, 0))
    teach(store, ("b", 1), text=None, embedding=(1, 0.001))
    teach(store, ("c", 1), text=None, embedding=(1, 0))
    teach(store, ("c", 1), text="", embedding=(1, 0))
    learned = store.examples()
    assert learned.texts == ["x", None, None, ""]
    assert learned.embeddings.tolist() == np.float32([[1, 0], [1, 0], [1, 0.001], [1, 0]]).tolist()
    assert learned.questions.tolist() == [0, 0, 1, 2, 1, 3]


def test_a_question_whose_embedding_moved_gets_other_keys(store):
    teach(store, ("a", 1), ("b", 1), ("c", -1), embedding=(1, 0))
    old, state = example_keys(store), store.state()
    teach(store, ("d", 1), embedding=(0, 1))
    new = example_keys(store)
    assert sorted(new.values()) == [(id, [0, 1]) for id in "abd"]
    assert old.keys().isdisjoint(new)
    assert set(store.changes_since(state.last_key, state.last_removal).removed) == old.keys()


@pytest.mark.parametrize(
    ("example", "error", "said"),
    [
        (
            NewExample(0, "nobody", 1),
            UnknownDocument,
            "The examples name 'nobody', and no",
        ),
        (NewExample(0, "a\0", 1), UnknownDocument, r"name 'a\x00', and"),
        (NewExample(0, "\ud800", 1), UnknownDocument, "and no document has such an id"),
    ],
)
def test_an_example_that_is_none_is_named_and_none_is_stored(store, example, error, said):
    before = store.state()
    with pytest.raises(error) as refused:
        store.add_examples([question("q")], [NewExample(0, "b", 1), example])
    assert said in str(refused.value)
    assert (store.example_count(), questions(store), store.state()) == (0, 0, before)


def test_many_unknown_documents_are_counted(store):
    unknown = [NewExample(0, f"n{n}", 1) for n in range(25)]
    with pytest.raises(UnknownDocument, match=r"'n0', .*'n9' and 15 others, and no document"):
        store.add_examples([question("q")], unknown)


# -- examples as keys ----------------------------------------------------------------------------


def test_only_relevant_examples_are_keys_and_follow_their_weight(store):
    teach(store, ("a", 2), ("b", 0.1), ("c", 0), ("d", -1))
    assert sorted(document for document, _ in example_keys(store).values()) == ["a", "b"]
    teach(store, ("a", 0), ("b", -2), ("c", 1), ("d", 1))
    assert sorted(document for document, _ in example_keys(store).values()) == ["c", "d"]


def test_example_keys_are_seen_only_where_asked_for(store):
    before = store.state()
    own = store.changes_since(0, 0).added
    teach(store, ("a", 1), ("b", 1), embedding=(7, 8))
    assert store.counts() == (4, 4)
    with store.all_keys() as (_, batches):
        plain = [key for batch in batches for key in batch.ids.tolist()]
    assert plain == own.ids.tolist()
    assert own.examples is None
    row = store.find(["a"])["a"].row
    assert embeddings_of(store, row).tolist() == [[0, 1]]
    assert len(store.changes_since(before.last_key, before.last_removal).added.ids) == 0
    added = store.changes_since(before.last_key, before.last_removal, examples=True).added
    assert added.examples.all()
    assert added.ids.tolist() == list(example_keys(store))
    assert added.vectors.tolist() == [[7, 8], [7, 8]]
    assert store.state().last_key == added.ids.max()


def test_an_example_key_says_which_question_it_is(store):
    teach(store, ("a", 1), text="asked", embedding=(7, 8))
    teach(store, ("a", 1), text=None, embedding=(9, 9))
    keys = list(example_keys(store))
    origins = store.keys_of(np.array([*keys, 1]))
    assert [origins[key].question for key in keys] == ["asked", None]
    assert {origins[key].field for key in keys} == {"@example"}
    assert (origins[1].field, origins[1].question) == ("vector", None)
    found = store.embeddings([keys[1], 1, keys[0]])
    assert [each.tolist() for each in found] == [[9, 9], [0, 1], [7, 8]]


def test_example_keys_share_the_questions_embedding(store):
    teach(store, ("a", 1), ("b", 1), ("c", 1))
    read = store.connections.reader().execute("SELECT embedding FROM keys WHERE example NOTNULL")
    assert [blob for (blob,) in read] == [b""] * 3


# -- gone with what they speak of ----------------------------------------------------------------


def test_other_keys_take_the_examples_and_other_values_do_not(store):
    for text in ("q", "r"):
        teach(store, ("a", 1), ("b", 1), ("c", -1), text=text)
    held, state = example_keys(store), store.state()
    store.revise("b", lambda stored: stored._replace(value=2), value_hash)
    store.write([Entry(Document("b", value=3), store.hashes(["b"])["b"], None)])
    assert example_keys(store) == held
    store.write([entry("a", [(5, 5)])])
    store.write([entry("c", [(5, 6)])])
    assert told(store) == {("q", "b"): 1, ("r", "b"): 1}
    assert example_keys(store) == {k: v for k, v in held.items() if v[0] == "b"}
    removed = store.changes_since(state.last_key, state.last_removal).removed.tolist()
    assert len(removed) == len(set(removed)) == 4  # a's own, a's of two questions, c's own


def test_a_document_takes_its_examples_with_it(store):
    teach(store, ("a", 1), ("b", -1), text="q")
    teach(store, ("a", 1), text="only a")
    store.delete(["a"])
    assert told(store) == {("q", "b"): -1}
    assert (example_keys(store), questions(store)) == ({}, 1)
    with sqlite3.connect(store.path) as other:
        register(other)
        other.execute("PRAGMA foreign_keys = ON")
        other.execute("DELETE FROM documents WHERE id = 'b'")
    other.close()
    assert (store.example_count(), questions(store)) == (0, 0)


def test_questions_are_counted_without_being_read(store):
    assert store.question_count() == 0
    teach(store, ("a", 1), ("b", 0))
    teach(store, ("a", 1), text="another")
    assert (store.question_count(), store.example_count()) == (2, 3)
    store.delete_examples(documents=["a"])
    assert store.question_count() == questions(store) == 1


def test_what_was_stored_is_forgotten_in_the_step_that_stores_the_new(store):
    teach(store, ("a", 1), ("b", 0))
    asked = [question("new", 1.0, 0.0)]
    with pytest.raises(UnknownDocument):
        store.add_examples(asked, [NewExample(0, "nobody", 1)], forget=True)
    assert store.example_count() == 2
    given = [NewExample(0, "b", 1), NewExample(0, "a", 1)]
    assert store.add_examples(asked, given, forget=True) == (2, 0)
    assert told(store) == {("new", "a"): 1, ("new", "b"): 1}
    assert store.add_examples([], [], forget=True) == (0, 0)
    assert (store.example_count(), store.question_count()) == (0, 0)


def test_examples_are_deleted_by_id_by_document_or_all(store):
    for text in ("q", "r", "s"):
        teach(store, ("a", 1), ("b", 1), ("c", 0), text=text)
    first = store.examples().ids.tolist()[0]
    change = store.state().change
    assert store.delete_examples(ids=[first, 10**9]) == 1
    assert store.delete_examples(documents=["b", "nobody", "b\0"]) == 3
    assert told(store).keys() == {("q", "c"), ("r", "a"), ("r", "c"), ("s", "a"), ("s", "c")}
    assert store.delete_examples(ids=[], documents=[]) == 0
    by_either = store.examples().ids.tolist()[:1]
    assert store.delete_examples(ids=by_either, documents=["a"]) == 3
    assert questions(store) == 2
    assert store.delete_examples() == 2
    assert (store.example_count(), questions(store), example_keys(store)) == (0, 0, {})
    assert store.state().change > change
    assert store.counts() == (4, 4)


def test_deleting_examples_reads_indexes_and_no_whole_table(store):
    """SQLite says itself how it finds the rows: SCAN reads a whole table, SEARCH an index."""
    for text in ("q", "r", "s"):
        teach(store, ("a", 1), ("b", 1), ("c", 0), text=text)
    statements: list[str] = []
    with store.connections.writing() as db:
        db.conn.set_trace_callback(statements.append)
    store.delete_examples(ids=[store.examples().ids.tolist()[0]])
    store.delete_examples(documents=["b"])
    store.write([entry("a", [(5, 5)])])
    store.delete(["c"])
    assert store.example_count() == 0
    deletions = [sql for sql in statements if sql.startswith("DELETE")]
    assert len({sql.split(" WHERE ")[0] for sql in deletions}) == 3  # documents, examples, keys
    # What goes with a row goes by triggers and foreign keys, of which no statement tells.
    deletions += triggered(store)
    for child, column in references(store, {"documents", "examples", "questions"}):
        deletions.append(f"SELECT 1 FROM {child} WHERE {column} = 1")
    plans = {sql: steps(store, sql) for sql in deletions}
    assert any("INDEX examples_by_document" in step for plan in plans.values() for step in plan)
    scans = {
        step: sql for sql, plan in plans.items() for step in plan
        if re.match(r"SCAN (?!json_each|CONSTANT)\w", step)
    }  # fmt: skip
    assert scans == {}


def triggered(store) -> list[str]:
    """The statements of the triggers of deletions, with a number for what the row has."""
    read = store.connections.reader().execute(
        "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%AFTER DELETE%'"
    )
    bodies = [re.search(r"BEGIN(.*)END", sql, re.DOTALL)[1] for (sql,) in read]
    statements = [sql.strip() for body in bodies for sql in body.split(";")]
    assert any(sql.startswith("DELETE FROM questions") for sql in statements)
    return [re.sub(r"\bold\.\w+", "1", sql) for sql in statements if sql]


def steps(store, sql: str) -> list[str]:
    """The steps of SQLite's plan of a statement."""
    plan = store.connections.reader().execute(f"EXPLAIN QUERY PLAN {sql}")
    return [step for *_, step in plan]


def references(store, parents: set[str]) -> list[tuple[str, str]]:
    """Tables and columns that refer to some tables, by which their rows go."""
    read = store.connections.reader().execute(
        'SELECT child.name, reference."from", reference."table" FROM sqlite_master AS child, '
        "pragma_foreign_key_list(child.name) AS reference WHERE child.type = 'table'"
    )
    return [(child, column) for child, column, parent in read if parent in parents]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["teach", "unteach", "write", "delete"]),
        st.sampled_from("qrs"),
        st.sampled_from("abcd"),
        st.sampled_from([-1.0, 0.0, 1.0, 2.5]),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_a_reader_of_changes_holds_the_keys_of_the_examples_that_are(tmp_path_factory, steps):
    store = fresh_store(tmp_path_factory.mktemp("steps") / "documents.db")
    expected: dict[tuple[str, str], float] = {}
    held: set[int] = set()
    seen, there = (0, 0), set()
    for action, text, id, weight in [*steps, ("unteach", "q", "none", 0.0)]:
        if action == "teach" and id in there:
            teach(store, (id, weight), text=text, embedding=(ord(text), 1))
            expected[text, id] = weight
        elif action == "unteach":
            store.delete_examples(documents=[id])
        elif action == "write":
            store.write([entry(id, [(weight, 1)])])
            there.add(id)
        elif action == "delete":
            store.delete([id])
            there.discard(id)
        if action != "teach":
            expected = {pair: each for pair, each in expected.items() if pair[1] != id}
        changes = store.changes_since(*seen, examples=True)
        held = (held - set(changes.removed.tolist())) | set(
            changes.added.ids[changes.added.is_example].tolist()
        )
        seen = changes.state.last_key, changes.state.last_removal
    assert told(store) == expected
    keys = example_keys(store)
    assert keys.keys() == held
    assert sorted(keys.values()) == sorted(
        (id, [ord(text), 1]) for (text, id), weight in expected.items() if weight > 0
    )
    assert questions(store) == len({text for text, _ in expected})
    store.close()


# -- many ----------------------------------------------------------------------------------------


def size(store) -> int:
    """Of the database, in bytes."""
    read = store.connections.reader().execute
    pages = read("PRAGMA page_count").fetchone()[0]
    return pages * read("PRAGMA page_size").fetchone()[0]


def test_a_hundred_thousand_examples_take_little_room(tmp_path):
    store = fresh_store(tmp_path / "documents.db", 384)
    rng = np.random.default_rng(0)
    store.write([entry(str(n), [np.zeros(384)]) for n in range(100)])
    before = size(store)
    questions = [question(f"q{n}", *row) for n, row in enumerate(rng.normal(size=(2600, 384)))]
    pairs = random.Random(0).sample([(q, d) for q in range(2600) for d in range(100)], 110_000)
    examples = [NewExample(q, str(d), 1 + d % 2) for q, d in pairs]
    assert store.add_examples(questions, examples) == (110_000, 0)
    assert store.add_examples(questions, examples[:50_000]) == (0, 50_000)
    ids = store.examples().ids
    assert len(ids) == 110_000
    for id in ids[:200].tolist():
        assert store.delete_examples(ids=[id]) == 1
    # 2,600 embeddings are 4 MB; 110,000 would be 169.
    assert size(store) - before < 40e6
    store.close()


def test_a_question_stays_where_its_only_label_from_use_makes_way_for_another(store) -> None:
    for document in "ab":
        rows = [NewExample(0, document, 1.0, source="used")]
        store.add_examples([question("q")], rows, only="used")
        assert told(store) == {("q", document): 1.0}
    assert store.add_examples([], [], only="used") == (0, 0)
    assert told(store) == {}
