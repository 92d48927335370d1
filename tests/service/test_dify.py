"""Requests as Dify sends them, and its 18 comparisons beside an oracle in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attend import Data
from attend.encoder import SentenceEncoder
from attend_service.app import create_app
from attend_service.keys import KeyFile
from attend_service.routes.dify import Comparison
from attend_service.settings import ServerSettings
from tests.index.search.test_foreign import FOREIGN, OWN, sentences

TEXTS = ["the whale swims in the sea", "a garden of roses", "the ship sails over the sea"]


@pytest.fixture
def library(tmp_path: Path, tiny_encoder: SentenceEncoder) -> Data:
    data = Data(tmp_path, load_encoder=lambda name: tiny_encoder)
    documents = [
        {"id": f"d{at}", "text": text, "value": at, "payload": {"title": f"Title {at}"}}
        for at, text in enumerate(TEXTS)
    ]
    data.create("sea").upsert(documents)
    return data


@pytest.fixture
def client(library: Data) -> FlaskClient:
    return create_app(library, ServerSettings()).test_client()


def retrieve(client: FlaskClient, status: int = 200, **sent: Any) -> Any:
    body = {"knowledge_id": "sea", "query": "the sea", "retrieval_setting": {"top_k": 4}, **sent}
    answer = client.post("/retrieval", json=body)
    assert answer.status_code == status, answer.text
    return answer.get_json()


def test_the_probe_is_answered_with_nothing(client: FlaskClient) -> None:
    """Dify registers an address by a POST without a body, and without a media type."""
    probe = client.post("/retrieval", headers={"Authorization": "Bearer anything"})
    assert (probe.status_code, probe.get_json()) == (200, {"records": []})
    assert client.post("/retrieval", json={}).get_json() == {"records": []}


def test_the_probe_needs_a_key_where_there_are_keys(client: FlaskClient, library: Data) -> None:
    key = KeyFile(library.folder).add(scope="read", collections=["sea"])[1]
    assert client.post("/retrieval").status_code == 401
    sent = {"Authorization": f"Bearer {key}"}
    assert client.post("/retrieval", headers=sent).status_code == 200
    body = {"knowledge_id": "sea", "query": "the sea"}
    assert len(client.post("/retrieval", headers=sent, json=body).get_json()["records"]) == 3
    other = client.post("/retrieval", headers=sent, json={**body, "knowledge_id": "other"})
    assert other.status_code == 403


def test_a_recorded_request(client: FlaskClient, library: Data) -> None:
    """All that Dify 1.10 sends, with what it may add."""
    records = retrieve(
        client,
        retrieval_setting={"top_k": 2, "score_threshold": 0.0, "score_threshold_enabled": False},
        metadata_condition=None,
        attachment_ids=[],
    )["records"]
    answer = library.collection("sea").search("the sea", k=2)
    assert [record["metadata"]["_id"] for record in records] == [hit.id for hit in answer.hits]
    assert [record["score"] for record in records] == pytest.approx(
        [hit.weight * (answer.confidence or 1.0) for hit in answer.hits]
    )
    best = answer.hits[0]
    assert records[0]["content"] == TEXTS[int(best.id[1])]
    assert records[0]["title"] == best.payload["title"]
    assert records[0]["metadata"] == {**best.payload, "_id": best.id, "value": best.value}


def test_records_below_the_threshold_are_left_out(client: FlaskClient) -> None:
    every = retrieve(client)["records"]
    assert len(every) == 3
    assert all(0 <= record["score"] <= 1 for record in every)
    scores = [record["score"] for record in every]
    assert scores == sorted(scores, reverse=True)
    setting = {"top_k": 4, "score_threshold": scores[1]}
    assert retrieve(client, retrieval_setting=setting)["records"] == every[:2]
    nothing = {"top_k": 4, "score_threshold": 1.0}
    assert retrieve(client, retrieval_setting=nothing)["records"] == []


@pytest.mark.parametrize(
    ("calibrated", "confidence", "factor"),
    [("collection", 0.5, 0.5), ("examples", 0.5, 1), (None, 0.5, 1), (None, None, 1)],
)
def test_a_score_has_the_confidence_once(
    library: Data, calibrated: Any, confidence: float | None, factor: float
) -> None:
    """The weights of an answer that a training calibrated sum to its confidence already."""
    answer = library.collection("sea").search("the sea")
    scored = replace(answer, calibrated=calibrated, confidence=confidence)
    assert scored.shares() == [factor * hit.weight for hit in answer.hits]


def test_metadata_is_always_an_object(client: FlaskClient, library: Data) -> None:
    library.create("plain").upsert([{"id": "only", "text": "no payload, no value"}])
    (record,) = retrieve(client, knowledge_id="plain")["records"]
    assert record["metadata"] == {"_id": "only", "value": None}
    assert record["title"] == record["content"] == "no payload, no value"


def test_what_nothing_answers_has_no_records(client: FlaskClient, library: Data) -> None:
    world = library.create("world")
    world.upsert([{"id": str(n), "text": text} for n, text in enumerate(sentences(1, 120))])
    world.publish()
    own, foreign = world.search(OWN), world.search(FOREIGN)
    assert (own.answered, foreign.answered) == (True, False)
    records = retrieve(client, knowledge_id="world", query=OWN)["records"]
    assert [record["metadata"]["_id"] for record in records] == [hit.id for hit in own.hits[:4]]
    # Before a training weights sum to one, and the confidence is beside them.
    assert records[0]["score"] == pytest.approx(own.confidence * own.hits[0].weight)
    assert retrieve(client, knowledge_id="world", query=FOREIGN) == {"records": []}


# -- the 18 comparisons ------------------------------------------------------------------------

MISSING = object()
VALUES: list[Any] = [
    "sea", "Sea wolf", "wolf", "", "5", "-2.5", "2024-05-17", "2024-05-17T12:00:00+02:00", 5, -2.5,
    7, 1715940000, None, [], ["sea", "5"], [5, 7], True, MISSING,
]  # fmt: skip
NAMES = ["a", "b"]
OPERANDS = ["sea", "wolf", "S", "5", "-2.5", "7", 5, -2.5, 6, "sea, 7", ""]
DATES = ["2024-05-17", "2024-05-17T10:30:00Z", "2024-05-18T00:00:00", 1715940000, "1715940001"]
LISTS = [["sea", "5"], [7], [], ["wolf", "-2.5", 5], "sea, wolf", "5"]
COMPARISONS = st.one_of(
    st.tuples(st.sampled_from(["contains", "not contains", "start with", "end with", "is", "is not",
                               "=", "≠"]), st.sampled_from(OPERANDS)),
    st.tuples(st.sampled_from(["<", ">", "≤", "≥"]), st.sampled_from(["5", "-2.5", 5, 6.5, -3])),
    st.tuples(st.sampled_from(["before", "after"]), st.sampled_from(DATES)),
    st.tuples(st.sampled_from(["in", "not in"]), st.sampled_from(LISTS)),
    st.tuples(st.sampled_from(["empty", "not empty"]), st.none()),
)  # fmt: skip


def number(value: Any) -> float | None:
    """The number that an operand is, or is written like."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None if isinstance(value, bool) else value


def date(text: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def holds(stored: Any, comparison: str, operand: Any) -> bool:
    if comparison in ("not contains", "is not", "≠", "not in", "not empty"):
        denied = {"not contains": "contains", "not in": "in", "not empty": "empty"}
        return not holds(stored, denied.get(comparison, "is"), operand)
    if comparison == "empty":
        return stored is MISSING or stored is None or stored in ("", [])
    items = stored if isinstance(stored, list) else [stored]
    texts = [item for item in items if isinstance(item, str)]
    numbers = [item for item in items if type(item) in (int, float)]
    match comparison:
        case "contains":
            return any(str(operand).lower() in text.lower() for text in texts)
        case "start with":
            return any(text.startswith(str(operand)) for text in texts)
        case "end with":
            return any(text.endswith(str(operand)) for text in texts)
        case "is" | "=":
            return operand in texts or number(operand) in numbers
        case "in":
            listed = operand.split(", ") if isinstance(operand, str) else operand
            return any(holds(stored, "is", item) for item in listed)
        case "<" | ">" | "≤" | "≥":
            bound = number(operand)
            signs = {"<": "__lt__", ">": "__gt__", "≤": "__le__", "≥": "__ge__"}
            return any(getattr(float(item), signs[comparison])(bound) for item in numbers)
    bound = date(operand)
    stored_as = numbers if bound is None else [day for text in texts if (day := date(text))]
    limit = number(operand) if bound is None else bound
    return any(item < limit if comparison == "before" else item > limit for item in stored_as)


def test_the_comparisons_are_those_of_the_contract() -> None:
    assert len(get_args(Comparison)) == 18


@pytest.fixture(scope="module")
def fields() -> dict[str, dict[str, Any]]:
    """A document for each value, beside some of the others."""
    return {
        f"d{at}": {
            name: value
            for name, value in (("a", VALUES[at]), ("b", VALUES[(7 * at + 3) % len(VALUES)]))
            if value is not MISSING
        }
        for at in range(len(VALUES))
    }


@pytest.fixture(scope="module")
def filtered(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder: SentenceEncoder, fields: Any
) -> Iterator[FlaskClient]:
    data = Data(tmp_path_factory.mktemp("dify"), load_encoder=lambda name: tiny_encoder)
    data.create("all").upsert(
        [{"id": id, "text": "the sea", "payload": payload} for id, payload in fields.items()]
    )
    yield create_app(data, ServerSettings()).test_client()
    data.close()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from([*NAMES, NAMES, "c"]), COMPARISONS), min_size=1, max_size=3),
    st.sampled_from(["and", "or", None]),
)
def test_comparisons_pass_what_the_oracle_passes(
    filtered: FlaskClient, fields: dict[str, dict[str, Any]], comparisons: Any, word: str | None
) -> None:
    conditions = [
        {"name": name, "comparison_operator": comparison, "value": operand}
        for name, (comparison, operand) in comparisons
    ]

    def passes(payload: dict[str, Any], name: Any, comparison: str, operand: Any) -> bool:
        names = name if isinstance(name, list) else [name]
        each = [holds(payload.get(name, MISSING), comparison, operand) for name in names]
        is_denial = comparison in ("not contains", "is not", "≠", "not in", "not empty")
        return all(each) if is_denial else any(each)

    join = any if word == "or" else all
    expected = {
        id
        for id, payload in fields.items()
        if join(passes(payload, name, *pair) for name, pair in comparisons)
    }
    records = retrieve(
        filtered,
        knowledge_id="all",
        retrieval_setting={"top_k": 100},
        metadata_condition={"logical_operator": word, "conditions": conditions},
    )["records"]
    assert {record["metadata"]["_id"] for record in records} == expected


@pytest.mark.parametrize("comparison", get_args(Comparison))
def test_every_comparison_with_every_operand(
    filtered: FlaskClient, fields: dict[str, dict[str, Any]], comparison: str
) -> None:
    operands: list[Any] = [*OPERANDS]
    if "empty" in comparison:
        operands = [None]
    elif comparison in ("in", "not in"):
        operands = LISTS
    elif comparison in ("before", "after"):
        operands = DATES
    elif comparison in ("<", ">", "≤", "≥"):
        operands = ["5", "-2.5", 5, 6.5, -3]
    sizes = set()
    for operand in operands:
        expected = {
            id
            for id, payload in fields.items()
            if holds(payload.get("a", MISSING), comparison, operand)
        }
        condition = {"name": "a", "comparison_operator": comparison, "value": operand}
        records = retrieve(
            filtered,
            knowledge_id="all",
            retrieval_setting={"top_k": 100},
            metadata_condition={"conditions": [condition]},
        )["records"]
        assert {record["metadata"]["_id"] for record in records} == expected, operand
        sizes.add(len(expected))
    assert any(0 < size < len(fields) for size in sizes), "no operand selects some"


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ({"name": "a", "comparison_operator": "like", "value": "x"}, "'contains', 'not contains'"),
        ({"name": "a", "comparison_operator": "is"}, "with a value, but none was sent"),
        ({"name": "a", "comparison_operator": "is", "value": ["x"]}, "one value was expected"),
        ({"name": "a", "comparison_operator": "in", "value": 5}, "a list of values was expected"),
        ({"name": "a", "comparison_operator": "after", "value": "17.05.2024"}, "ISO dates"),
        ({"comparison_operator": "is", "value": 1}, "name"),
    ],
)
def test_a_condition_that_means_nothing_is_refused(
    client: FlaskClient, condition: Any, sentence: str
) -> None:
    problem = retrieve(client, 422, metadata_condition={"conditions": [condition]})
    assert sentence in problem["detail"]


@pytest.mark.parametrize(
    ("sent", "status", "sentence"),
    [
        ({"query": "the sea"}, 422, "knowledge_id: it is required"),
        ({"knowledge_id": "sea"}, 422, "query: it is required"),
        ({"knowledge_id": "nothing", "query": "x"}, 404, "'nothing'"),
        ({"knowledge_id": "sea", "query": "x", "retrieval_setting": {"top_k": 0}}, 422, "top_k"),
        (
            {"knowledge_id": "sea", "query": "x", "retrieval_setting": {"score_threshold": 2}},
            422,
            "score_threshold",
        ),
    ],
)
def test_errors_name_what_is_wrong(
    client: FlaskClient, sent: Any, status: int, sentence: str
) -> None:
    answer = client.post("/retrieval", json=sent)
    assert answer.status_code == status
    assert sentence in answer.get_json()["detail"]
