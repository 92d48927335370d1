"""Text match against an oracle that splits at blanks, over words that are their own stems."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attend import Data
from attend.store.filters import compile_filter
from tests.index.helpers import entry, fresh_store

WORDS = ["cat", "dog", "owl", "map", "sun", "é", "日本"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
FIELDS = st.dictionaries(st.sampled_from(["title", "body", "a.b"]), TEXTS, max_size=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    opened = fresh_store(tmp_path_factory.mktemp("texts") / "documents.db")
    yield opened
    opened.close()


def replace_all(store, texts: list[dict[str, str]]) -> None:
    store.delete(list(store.all_ids()))
    store.write([entry(f"d{at}", fields=fields) for at, fields in enumerate(texts)])


def matching(store, condition) -> list[str]:
    return [each.id for each in store.scroll(0, 1000, compile_filter(condition))]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(FIELDS, min_size=1, max_size=6),
    st.sampled_from(["@text", "title", "body", "a.b"]),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
    st.booleans(),
)
@example([{"title": "cat", "body": "dog"}], "title", ["dog"], False)
@example([{"title": "cat", "body": "dog"}], "@text", ["dog", "cat"], True)
def test_a_match_has_every_word_in_the_named_text(store, texts, name, words, negated):
    replace_all(store, texts)
    asked = {name: {"match": " ".join(words)}}

    def matches(fields: dict[str, str]) -> bool:
        held = " ".join(fields.values()) if name == "@text" else fields.get(name, "")
        return set(words) <= set(held.split())

    expected = [f"d{at}" for at, fields in enumerate(texts) if matches(fields) != negated]
    assert matching(store, {"$not": asked} if negated else asked) == expected
    # Beside a condition that is scanned for, it is part of the scan.
    either = {"$or": [asked, {"nothing": 1}]}
    assert matching(store, {"$not": either} if negated else either) == expected


def test_a_part_of_one_of_the_texts_is_found_in_any_case(store):
    replace_all(
        store,
        [{"title": "A whale", "body": "Straße"}, {"body": "overWHALEming"}, {"body": "a wha"}],
    )
    assert matching(store, {"@text": {"substring": "Whale"}}) == ["d0", "d1"]
    assert matching(store, {"@text": {"substring": "STRASSE"}}) == ["d0"]
    assert matching(store, {"@text": {"exact_substring": "STRASSE"}}) == []
    assert matching(store, {"@text": {"exact_substring": "Straß"}}) == ["d0"]
    assert matching(store, {"@text": {"substring": "whale Str"}}) == []  # two texts are not one
    assert matching(store, {"$not": {"@text": {"substring": "ale"}}}) == ["d2"]
    both = {"@text": {"match": "straße", "substring": "HAL"}}
    assert matching(store, both) == ["d0"]


def test_stems_case_and_accents_are_as_in_the_index(store):
    replace_all(store, [{"body": "Two WORDS, déjà-vu"}, {"body": "a word"}, {"title": "words"}])
    assert matching(store, {"@text": {"match": "word"}}) == ["d0", "d1", "d2"]
    assert matching(store, {"body": {"match": "deja words"}}) == ["d0"]
    assert matching(store, {"body": {"match": "déjà-vu"}}) == ["d0"]


@pytest.mark.parametrize(
    "query",
    [
        *('"', 'cat"', "cat AND", "NOT cat", "cat*", "^cat", "text:cat", "(cat", "cat + dog"),
        *("{cat}", "NEAR(cat dog)", "cat -dog", "'; DROP TABLE lexical; --cat", "cat\x00dog"),
        "\ud800cat",
    ],
)
def test_nothing_in_a_match_is_syntax(store, query):
    text = "cat dog and not text near drop table lexical"
    replace_all(store, [{"body": text, "title": "x"}, {"body": "owl"}])
    if any(letter.isalpha() for letter in query):
        assert matching(store, {"body": {"match": query}}) == ["d0"]
        assert matching(store, {"@text": {"match": query}}) == ["d0"]
    assert store.counts()[0] == 2


def test_a_long_text_is_read_to_its_end(store):
    replace_all(store, [{"body": "cat\x00owl", "title": "x"}])
    assert matching(store, {"body": {"match": "owl"}}) == ["d0"]
    long = " ".join(f"w{at}" for at in range(3000))
    replace_all(store, [{"body": long, "title": "x"}])
    assert matching(store, {"body": {"match": "w2999"}}) == ["d0"]


def test_words_are_looked_for_among_few_documents_as_among_all(tmp_path):
    store = fresh_store(tmp_path / "documents.db")
    texts = [{"title": WORDS[n % 5], "body": WORDS[n % 3]} for n in range(300)]
    store.write([entry(f"d{n}", fields=fields) for n, fields in enumerate(texts)])
    few = {"@id": {"in": [f"d{n}" for n in range(0, 60, 2)]}}
    for name, fields in (("@text", ("title", "body")), ("title", ("title",)), ("body", ("body",))):
        predicate = compile_filter({**few, name: {"match": "owl"}})
        expected = [n + 1 for n in range(0, 60, 2) if "owl" in [texts[n][name] for name in fields]]
        assert store.matching(predicate).tolist() == expected
    store.close()


@pytest.mark.parametrize("bounds", [{"gt": "2024-01-31"}, {"date": {"gt": "2024-01-31"}}])
def test_dates_in_another_form_are_pointed_at(tmp_path, bounds):
    books = Data(tmp_path).create(dimension=1)
    books.upsert([{"id": "a", "vector": [1], "payload": {"day": "01.02.2025", "n": 2025}}])
    page = books.page({"day": bounds})
    assert page.total == 0
    assert page.hints == [
        'day is compared with dates, but documents have "01.02.2025"; write dates as 2024-05-17 or '
        "2024-05-17T12:30:00Z."
    ]
    assert books.page({"n": bounds}).hints is not None
    books.revise("a", {"payload": {"day": "2025-02-01"}})
    assert books.page({"day": bounds}).total == 1
