"""What an answer has: always the same keys, no spread of one document, texts for its reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from attend import Collection, Data
from attend.core.errors import InvalidRequest
from attend.values.blends import ANSWER_KEYS

FOUR = "See the page on refunds, which says when money comes back, and how soon."
LONG = "A long paragraph about something else altogether. " * 20
DOCUMENTS: list[dict[str, Any]] = [
    *({"id": f"r{n}", "text": f"refund number {n}", "value": FOUR} for n in range(4)),
    {"id": "other", "text": "delivery by mail", "value": "See the page on deliveries."},
    {
        "id": "long",
        "fields": {"title": "Whales", "body": f"{LONG}The great white whale swims. {LONG}"},
        "value": "See the page on whales.",
        "payload": {"year": 1851, "title": "in the payload"},
    },
]


@pytest.fixture(scope="module")
def faq(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Any) -> Iterator[Collection]:
    data = Data(tmp_path_factory.mktemp("faq"), load_encoder=lambda name: tiny_encoder)
    collection = data.create("faq")
    collection.upsert(DOCUMENTS)
    yield collection
    data.close()


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Documents with a value of every type in their payload."""
    data = Data(tmp_path_factory.mktemp("prices"))
    collection = data.create("prices", dimension=2, scale=1.0)
    collection.upsert(
        {
            "id": f"d{n}",
            "vector": [1.0 - n / 4, n / 4],
            "payload": {
                "number": n,
                "boolean": n == 0,
                "category": "ab"[n % 2],
                "labels": ["x", "y"],
                "text": f"a sentence that is different from the others, {n}",
                "object": {"price": n, "kind": "ab"[n % 2]},
            },
        }
        for n in range(4)
    )
    yield collection
    data.close()


TYPES = ["number", "boolean", "category", "labels", "text", "object", "@key"]


@pytest.mark.parametrize("value", TYPES)
@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_an_answer_always_has_the_same_keys(prices: Collection, value: str, mode: Any) -> None:
    some = prices.search([1.0, 0.0], value=value, mode=mode)
    nothing = prices.search([1.0, 0.0], value=value, mode=mode, filter={"number": 99})
    assert set(some.answer) == set(nothing.answer) == set(ANSWER_KEYS)
    assert (some.answered, nothing.answered) == (True, False)
    assert (nothing.answer["type"], nothing.answer["reason"]) == ("nothing", "nothing attended")
    if value == "object":  # a script may read the fields, too
        assert nothing.answer["fields"]["kind"]["distribution"] is None


@pytest.mark.parametrize("value", TYPES)
def test_a_hard_answer_has_no_spread(prices: Collection, value: str) -> None:
    found = prices.search([1.0, 0.0], value=value, mode="hard")
    parts = [found.answer, *(found.answer["fields"] or {}).values()]
    for part in parts:
        for name in ("distribution", "probability", "std", "effective_sample_size"):
            assert part.get(name) is None
    assert 0.25 < found.hits[0].weight < 0.5
    if value == "text":
        assert [entry["weight"] for entry in found.answer["values"]] == [found.hits[0].weight]
    soft = prices.search([1.0, 0.0], value="category", mode="soft").answer
    assert sum(soft["distribution"].values()) == pytest.approx(1)
    assert soft["distribution"]["a"] < 1


def test_equal_texts_are_one_entry_with_their_summed_weight(faq: Collection) -> None:
    found = faq.search("refund number 2", mode="soft", temperature=5.0)
    assert (found.answer["type"], found.answer["value"]) == ("text", FOUR)
    entries = found.answer["values"]
    assert [entry["value"] for entry in entries].count(FOUR) == 1
    weights = {hit.id: hit.weight for hit in found.hits}
    heaviest = max((id for id in weights if id.startswith("r")), key=weights.__getitem__)
    assert entries[0]["id"] == heaviest
    same = sum(weight for id, weight in weights.items() if id.startswith("r"))
    assert entries[0]["weight"] == pytest.approx(same)
    assert sum(entry["weight"] for entry in entries) == pytest.approx(1)


def test_a_hit_has_its_text_and_the_passage_that_matched(faq: Collection) -> None:
    found = faq.search("the great white whale", include=["text"], k=2)
    hit = next(hit for hit in found.hits if hit.id == "long")
    assert hit.text == f"Whales\n\n{LONG}The great white whale swims. {LONG}"
    assert hit.passage
    assert hit.passage in hit.text
    assert len(hit.passage) < len(hit.text)
    passages = faq.search("the great white whale", include=["passage"], k=2).hits
    assert [hit.passage for hit in passages] == [hit.passage for hit in found.hits]
    assert [hit.text for hit in passages] == [None, None]
    plain = faq.search("the great white whale", k=2).json()["hits"][0]
    assert "text" not in plain
    assert "passage" not in plain
    soft = faq.search("the great white whale", include="text", mode="soft", k=2)
    assert [hit.text for hit in soft.hits] == [hit.text for hit in found.hits]


def test_fields_name_texts_too_and_the_payload_goes_first(faq: Collection) -> None:
    only = {"only": ["long"]}
    found = faq.search("whale", fields=["year", "title", "body", "none"], mask=only).hits[0]
    assert found.payload["year"] == 1851
    assert found.payload["title"] == "in the payload"
    assert found.payload["body"].startswith("A long paragraph")
    assert "none" not in found.payload


def test_recommendations_and_several_collections_have_texts_as_well(faq: Collection) -> None:
    first = faq.recommend(history=["r0"], include=["text"], k=2).hits[0]
    assert first.text
    assert first.text.startswith("refund number")
    assert first.passage == first.text
    named = faq.recommend(positive=["r0"], fields=["text"], k=1).hits[0]
    assert named.payload == {"text": named.payload["text"]}
    assert named.text is None


def test_a_document_without_a_text_has_an_empty_one(prices: Collection) -> None:
    hit = prices.search([1.0, 0.0], include=["text"], k=1).hits[0]
    assert (hit.text, hit.passage) == ("", "")


def test_what_cannot_be_included_is_told(faq: Collection) -> None:
    with pytest.raises(InvalidRequest, match="'text' or 'passage'"):
        faq.search("whale", include=["documents"])


def test_a_page_is_read_in_one_query(faq: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bool] = []
    read = faq.store.documents

    def counted(rows: Any, *, texts: bool = True) -> Any:
        reads.append(texts)
        return read(rows, texts=texts)

    monkeypatch.setattr(faq.store, "documents", counted)
    faq.search("whale", k=3)
    faq.search("whale", k=3, include=["text"])
    assert reads == [False, True]
