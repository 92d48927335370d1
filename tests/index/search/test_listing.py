"""What is listed of the attended: pages, groups, scores, fields, facets, passages."""

from __future__ import annotations

import base64
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attend.core.errors import InvalidRequest, LimitExceeded
from attend.projection import identity
from attend.search.hits import cursor, fingerprint, place, word_spans
from tests.index.helpers import vector_data
from tests.index.world import World

WIDTH = 4
GENRES = ["sea", "war", None, ["sea", "war"], 1, True, {"a": 1}]


@pytest.fixture
def many(tmp_path):
    """Sixty documents, some of them with equal keys."""
    rng = np.random.default_rng(3)
    made = vector_data(tmp_path).create(dimension=WIDTH, scale=1.0)
    made.upsert(
        [
            {
                "id": f"d{at}",
                "vector": rng.integers(-3, 4, WIDTH).tolist(),
                "value": {"n": at},
                "payload": {"genre": GENRES[at % 7], "deep": {"x": at % 3, "y": 0}, "at": at},
            }
            for at in range(60)
        ]
    )
    return made


QUERY = [1.0, 0.5, -0.25, 0.125]


def ids(hits) -> list[str]:
    return [hit.id for hit in hits]


def pages(collection, k, between=lambda: None, **options):
    """All hits, page by page."""
    answer = collection.search(QUERY, k=k, **options)
    found = list(answer.hits)
    while answer.next is not None:
        between()
        answer = collection.search(QUERY, k=k, cursor=answer.next, **options)
        found += answer.hits
    return found


@pytest.mark.parametrize("attend", [45, "all"])
@pytest.mark.parametrize("k", [1, 7, 45])
def test_pages_are_the_whole_list(many, attend, k):
    whole = many.search(QUERY, k=60 if attend == "all" else 45, attend=attend)
    assert whole.next is None
    found = pages(many, k, attend=attend)
    assert ids(found) == ids(whole.hits)
    assert [hit.weight for hit in found] == [hit.weight for hit in whole.hits]


def test_writes_between_pages_move_nothing(many):
    whole = ids(many.search(QUERY, k=60, attend=100).hits)
    at = iter(range(100))

    def write():
        number = next(at)
        many.upsert([{"id": f"new{number}", "vector": [9 + number, 9, -9, 9]}])  # ranks first
        many.delete([whole[number]])  # was listed already

    found = ids(pages(many, 7, write, attend=100))
    assert found == whole
    shifted = many.search(QUERY, k=7, offset=7).hits
    assert ids(shifted) != whole[7:14]  # as an offset would have it


def test_a_cursor_is_of_one_question(many):
    first = many.search(QUERY, k=5)
    again = many.search(QUERY, k=50, cursor=first.next, explain=True, fields=[])
    assert len(again.hits) == 50
    for other in ({"attend": 50}, {"filter": {"at": {"gt": 5}}}, {"min_score": 0.0}):
        with pytest.raises(InvalidRequest, match="belongs to another request"):
            many.search(QUERY, cursor=first.next, **other)
    with pytest.raises(InvalidRequest, match="belongs to another request"):
        many.search([1, 0, 0, 0], k=5, cursor=first.next)
    many.activate(many.add_projection(identity(WIDTH, normalize=True)))
    with pytest.raises(InvalidRequest, match="another projection version"):
        many.search(QUERY, k=5, cursor=first.next)
    with pytest.raises(InvalidRequest, match="not both"):
        many.search(QUERY, k=5, offset=5, cursor=first.next)


@given(st.text(max_size=40))
@example(base64.urlsafe_b64encode(b"[" * 100_000).decode())
@settings(max_examples=200, deadline=None)
def test_what_is_no_cursor_is_refused_with_a_sentence(given_text):
    with pytest.raises(InvalidRequest, match="is not a cursor"):
        place(given_text, "x", 2)


@pytest.mark.parametrize("numbers", [[float("nan"), 1], [float("inf"), 1], [2**70, 1], [1], ["a"]])
def test_a_forged_cursor_is_refused(numbers):
    with pytest.raises(InvalidRequest, match="is not a cursor"):
        place(cursor("x", numbers), "x", 2)


@given(st.tuples(st.floats(-1e9, 1e9), st.integers(0, 2**62)))
def test_a_cursor_keeps_every_digit(numbers):
    asked = fingerprint("a", "b")
    assert place(cursor(asked, numbers), asked, 2) == list(numbers)
    assert fingerprint("ab") != fingerprint("a", "b")


# -- scores and groups ---------------------------------------------------------------------------


def test_a_least_score_cuts_the_list_alone(many):
    whole = many.search(QUERY, k=60, mode="soft", value="n")
    least = whole.hits[9].score
    cut = many.search(QUERY, k=60, mode="soft", value="n", min_score=least)
    assert ids(cut.hits) == [hit.id for hit in whole.hits if hit.score >= least]
    assert (cut.answer, cut.attended) == (whole.answer, whole.attended)
    assert ids(pages(many, 3, min_score=least)) == ids(cut.hits)


@pytest.mark.parametrize("attend", [40, "all"])
def test_groups_are_led_by_their_best(many, attend):
    everyone = many.search(QUERY, k=60 if attend == "all" else 40, attend=attend).hits
    expected = defaultdict(list)
    for hit in everyone:
        genre = hit.payload["genre"]
        expected[hit.id if genre is None else repr(genre)].append(hit)
    found = many.search(QUERY, k=40, attend=attend, group_by="genre").hits
    assert ids(found) == [members[0].id for members in expected.values()]
    for hit, members in zip(found, expected.values(), strict=True):
        assert hit.group == members[0].payload["genre"]
        assert hit.group_size == len(members)
        assert hit.group_weight == pytest.approx(sum(each.weight for each in members))
    assert ids(pages(many, 2, attend=attend, group_by="genre")) == ids(found)
    by_value = many.search(QUERY, k=40, attend=attend, group_by="n").hits
    assert {hit.group_size for hit in by_value} == {1}


@pytest.mark.parametrize(
    "options", [{"group_by": "genre"}, {"fields": ["genre"]}, {"mode": "soft"}]
)
def test_a_search_begins_again_where_a_document_went_meanwhile(many, monkeypatch, options):
    whole = many.search(QUERY, **options)
    read, asked = many.store.documents, []

    def reading(rows, *args, **named):
        asked.append(rows)
        found = read(rows, *args, **named)
        return dict(list(found.items())[1:]) if len(asked) == 1 else found

    monkeypatch.setattr(many.store, "documents", reading)
    found = many.search(QUERY, **options)
    assert (found.hits, found.answer) == (whole.hits, whole.answer)
    assert len(asked) > 1


def test_ranks_of_too_many_are_refused(many, monkeypatch):
    monkeypatch.setattr("attend.search.attend.MAX_RANKED", 59)
    with pytest.raises(LimitExceeded, match="more than 59 ranks"):
        many.search(QUERY, attend="all", group_by="genre")
    assert many.search(QUERY, attend="all").hits


# -- fields and facets ---------------------------------------------------------------------------


def test_fields_choose_of_the_payload(many):
    def payload(fields):
        return many.search(QUERY, k=1, fields=fields).hits[0].payload

    whole = many.search(QUERY, k=1).hits[0].payload
    assert payload(["at", "no", "at.x"]) == {"at": whole["at"]}
    assert payload(["deep.x"]) == {"deep": {"x": whole["deep"]["x"]}}
    assert payload(["deep.x", "deep.y"]) == payload(["deep", "deep.y"]) == {"deep": whole["deep"]}
    assert payload([]) == {}


def test_facets_count_what_filter_and_mask_let_pass(many):
    everyone = {document.id: document.payload for document in many.page(limit=60).documents}
    passing = {id for id, payload in everyone.items() if payload["at"] >= 20} - {"d21", "d27"}
    expected = Counter(everyone[id]["deep"]["x"] for id in passing)
    answer = many.search(
        QUERY,
        k=1,
        attend=5,
        facets=["deep.x", "genre"],
        filter={"at": {"gte": 20}},
        mask={"exclude": ["d21", "d27"]},
    )
    found = answer.facets["deep.x"]
    assert {each.value: each.documents for each in found.values} == expected
    assert found.missing == 0
    only = many.search(QUERY, facets=["at"], mask={"only": ["d3", "d4"]}).facets["at"]
    assert [each.value for each in only.values] == [3, 4]
    plain = many.search(QUERY, facets=["genre"]).facets
    assert plain == many.facets(["genre"])
    assert many.search(QUERY).facets is None
    with pytest.raises(InvalidRequest, match="no values to count"):
        many.search(QUERY, facets=["@id"])


# -- passages ------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path, tiny_encoder):
    world = World(tmp_path, tiny_encoder)
    world.take("write", range(20))
    return world


def test_the_words_of_the_query_are_marked(world):
    text = "A <b>whale</b> of the seas; whales & ships. Nothing else."
    world.collection.upsert([{"id": "x", "text": text}])
    only = {"only": ["x"]}
    hit = world.collection.search("Whale ship", mask=only, highlight=True).hits[0]
    marked = hit.highlight
    assert marked.passage == text[marked.start : marked.stop]
    words = [marked.passage[start:stop] for start, stop in marked.spans]
    assert words == ["whale", "whales", "ships"]
    more = {"blend": ["whale", {"text": "ships", "weight": -1}]}
    hit = world.collection.search(more, mask=only, highlight=True).hits[0]
    assert [marked.passage[a:b] for a, b in hit.highlight.spans] == ["whale", "whales"]
    like = world.collection.search({"id": "d1"}, mask=only, highlight=True).hits[0].highlight
    assert (like.passage, like.spans) == (marked.passage, [])


def test_vectors_have_no_passage(many):
    marked = many.search(QUERY, k=1, highlight=True).hits[0].highlight
    assert (marked.field, marked.passage, marked.spans) == ("vector", None, [])


@given(
    st.lists(st.sampled_from(["whale", "Sea", "storm"]), max_size=3),
    st.text(alphabet=st.sampled_from("whale sea storm<>&\"'\x00\ufdd0\ufdd1é\ud800"), max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_spans_lie_in_the_text_and_hold_its_words(words, text):
    (spans,) = word_spans([" ".join(words)], [text])
    wanted = {word.lower() for word in words}
    assert all(text[start:stop].lower() in wanted for start, stop in spans)
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    plain = "".join(c if c.isalnum() else " " for c in text.replace("\x00", " ")).lower().split()
    assert len(spans) == sum(word in wanted for word in plain)


def test_an_explanation_tells_the_rank_before_words(world):
    everything = world.collection.search("gold rain", lexical=2.0, explain=True, k=20).hits
    parts = [hit.explanation for hit in everything]
    assert [each["rank"] for each in parts] == list(range(1, len(parts) + 1))
    by_keys = sorted(range(len(parts)), key=lambda at: -parts[at]["dense"])
    assert [parts[at]["rank_before_words"] for at in by_keys] == list(range(1, len(parts) + 1))
    assert any(each["rank"] != each["rank_before_words"] for each in parts)
    for hit in everything:
        total = hit.explanation["dense"] + hit.explanation["lexical"]
        assert total == pytest.approx(hit.score)


def test_only_the_facet_that_no_document_has_is_told(tmp_path):
    collection = vector_data(tmp_path).create(dimension=2)
    collection.upsert([{"id": "a", "vector": [1, 0], "payload": {"colour": "red"}}])
    told = collection.search([1, 0], facets=["colour", "nothing"]).hints
    assert [hint.partition("; ")[0].partition("has ")[2] for hint in told] == [
        "the field 'nothing' of facets"
    ]
    assert collection.search([1, 0], facets=["colour"]).hints is None
