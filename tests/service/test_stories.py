"""The stories of the start page: what collections have for it, and who may see which."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from attend import Collection, Data
from attend_service.keys import KeyFile, Scope
from attend_service.pages import FOREIGN, StartQuestion, store_questions, vector_query
from attend_service.stories import gather_stories, offer_of

HTML = {"Accept": "text/html"}
DOCUMENTS = [
    {
        "id": f"d{at}",
        "fields": {
            "title": f"Entry {at}",
            "text": f"Entry {at} tells how careful {word} build wooden boats, by hand.",
        },
    }
    for at, word in enumerate(("sailors", "farmers", "builders", "painters"))
]


@pytest.fixture
def boats(data: Data, tiny_encoder_folder: Path) -> Collection:
    made = data.create("boats", encoder=str(tiny_encoder_folder))
    made.upsert(DOCUMENTS)
    return made


def test_questions_are_parts_of_texts(boats: Collection) -> None:
    offer = offer_of("boats", boats, writes=True)
    assert offer.asks[0].query == "careful sailors build wooden"
    assert not offer.stored
    assert offer.unanswered == StartQuestion(query=FOREIGN, kind="unanswered")
    assert [story.kind for story in gather_stories([offer])] == ["ask", "unanswered"]


def test_stored_questions_come_first_and_by_their_kind(
    data: Data, boats: Collection, tiny_encoder_folder: Path
) -> None:
    other = data.create("other", encoder=str(tiny_encoder_folder))
    other.upsert(DOCUMENTS)
    asked = [
        StartQuestion(query="wooden boats", value="kind"),
        StartQuestion(query="a cake", kind="unanswered"),
    ]
    store_questions(other, asked)
    offers = [offer_of(made.name, made, writes=True) for made in (boats, other)]
    ask, unanswered = gather_stories(offers)
    assert (ask.collection, ask.parameters["q"]) == ("other", "wooden boats")
    assert ask.parameters["value"] == "kind"
    assert (unanswered.collection, unanswered.text, unanswered.others) == ("other", "a cake", ())


def test_what_a_snapshot_may_hold_is_no_question(boats: Collection) -> None:
    boats.store.put_settings({"questions": [{"query": 7}, "x"]})
    assert not offer_of("boats", boats, writes=True).stored


def test_a_collection_of_vectors_asks_for_what_is_near(data: Data) -> None:
    made = data.create("points", dimension=2)
    assert gather_stories([offer_of("points", made, writes=True)]) == []
    made.upsert([{"id": "north", "vector": [0, 1]}])
    (story,) = gather_stories([offer_of("points", made, writes=True)])
    assert (story.text, story.parameters["q"]) == ("What is nearest to north", "north")


def test_users_are_for_keys_that_may_write(data: Data, client: FlaskClient) -> None:
    made = data.create("points", dimension=2)
    made.upsert([{"id": "north", "vector": [0, 1]}, {"id": "east", "vector": [1, 0]}])
    seen = [{"user": user, "id": "north"} for user in ("Ann", "12")]
    made.add_interactions([*seen, {"user": "12", "id": "east"}])
    keys = KeyFile(data.folder)
    expected: dict[Scope, bool] = {"read": False, "write": True}
    for scope, may in expected.items():
        text = keys.add(scope=scope)[1]
        page = client.get("/", headers={"Authorization": f"Bearer {text}", **HTML}).text
        assert ("Recommend for user 12" in page) is may
        assert ("Ann" in page) is may
        assert "What is nearest to" in page


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ("[0, 1.5 -2]", [0.0, 1.5, -2.0]),
        ("north", {"id": "north"}),
        ("7", {"id": "7"}),
        ("1 and 2", {"id": "1 and 2"}),
    ],
)
def test_what_is_typed_where_vectors_are_searched(line: str, query: object) -> None:
    assert vector_query(line) == query


def test_an_address_of_a_document_among_vectors_opens(books: FlaskClient) -> None:
    assert "emma" in books.get("/search?collection=books&q=emma", headers=HTML).text
