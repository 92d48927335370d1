"""The OpenAPI document says what is there, and what is there does what it says."""

from __future__ import annotations

import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import pytest
from flask import Flask
from flask.testing import FlaskClient
from pydantic import TypeAdapter, ValidationError

from attend import Data
from attend.api.answers import VALUE_KEYS, ValueAnswer
from attend.api.search import SearchRequest
from attend.projection import identity
from attend.values.blends import blend_for
from attend.values.kinds import Kind, ValueType
from attend_service import openapi
from attend_service.context import Operation
from attend_service.jobs import Jobs
from attend_service.openapi import PATH_PARAMETERS
from attend_service.routes import all_operations, server
from attend_service.routes.vector_stores import FILES, TEXTS
from tests.service.conftest import SlowTrainer
from tests.service.test_jobs import reached

OPERATIONS = all_operations()
NEEDS_TEXT = (
    "plain_search", "search_vector_store", "attach_file", "attach_files", "retrieve_knowledge",
    "map_columns", "use_hits",
)  # fmt: skip
"""What takes texts, eight documents or a logged search, and the example's collection has a few
vectors alone."""

LAST = ("delete_documents", "delete_document", "drop_collection")


def filled(path: str) -> str:
    """A path with the documented example of each parameter."""
    return re.sub(r"{(\w+)}", lambda found: str(PATH_PARAMETERS[found[1]]["example"]), path)


def call(client: FlaskClient, operation: Operation) -> Any:
    sent = {"json": operation.example} if operation.body is not None else {}
    query = {"q": "whales", "collection": "books"} if operation.name == "plain_search" else {}
    return client.open(filled(operation.path), method=operation.method, query_string=query, **sent)


@pytest.fixture
def prepared(client: FlaskClient, data: Data, jobs: Jobs, trainer: SlowTrainer) -> FlaskClient:
    """A client of a service in which the documented examples find what they name."""
    trainer.may_finish.set()
    for name in ("make_collection", "upsert_documents", "give_feedback", "start_training"):
        operation = next(each for each in OPERATIONS if each.name == name)
        assert call(client, operation).status_code in operation.returns
    file = {"id": "file-1", "filename": "a.txt", "bytes": 4, "created_at": 0, "purpose": "batch"}
    upload = {"id": "file-1", "payload": {**file, "object": "file"}}
    data.create(FILES, dimension=1).upsert([upload])
    data.create(TEXTS, dimension=1).upsert([{"id": "file-1", "value": "a b."}])
    books = data.collection("books")
    books.activate(books.add_projection(identity(3, normalize=True)))
    reached(jobs, 1, "done")
    return client


def test_every_route_is_documented_and_every_documented_path_is_there(app: Flask) -> None:
    routes = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in app.url_map.iter_rules()
        if rule.endpoint != "static"
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    documented = {
        (path, method)
        for path, methods in openapi.document(OPERATIONS)["paths"].items()
        for method in methods
    }
    assert routes == documented


def test_it_is_valid_openapi(client: FlaskClient) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(client.get("/openapi.json").get_json())


def test_every_reference_leads_somewhere(client: FlaskClient) -> None:
    document = client.get("/openapi.json").get_json()
    for reference in re.findall(r"'\$ref': '#/([^']+)'", str(document)):
        place = document
        for part in reference.split("/"):
            place = place[part]


def test_every_operation_says_what_it_does() -> None:
    for operation in OPERATIONS:
        assert operation.summary.endswith("."), operation.name
        assert (operation.body is None) == (operation.example is None), operation.name
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_the_documented_example_works_and_answers_as_documented(
    prepared: FlaskClient, operation: Operation
) -> None:
    if operation.name in ("show_alias", "delete_alias"):  # a collection with one stays
        assert call(prepared, next(each for each in OPERATIONS if each.name == "set_alias"))
    response = call(prepared, operation)
    if operation.upload is not None:  # what is sent there is no JSON, and has no example
        assert response.status_code == 415
        return
    if operation.name in NEEDS_TEXT:
        assert response.status_code == 422
        return
    assert response.status_code in operation.returns, response.text
    model = operation.returns[response.status_code]
    if model is not None:
        TypeAdapter(model).validate_json(response.data)
    if operation.answer is not None:
        assert shape(operation.answer) == shape(response.get_json())
    response.close()


def shape(content: Any) -> Any:
    """The fields of JSON content with their types."""
    if isinstance(content, dict):
        return {name: shape(value) for name, value in content.items()}
    return [shape(item) for item in content] if isinstance(content, list) else type(content)


def test_the_examples_are_as_their_schemas_say(client: FlaskClient) -> None:
    jsonschema = pytest.importorskip("jsonschema_rs")
    document = client.get("/openapi.json").get_json()
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names)) == len(OPERATIONS)
    shown = [content for operation in operations for content in contents(operation)]
    with_body = [operation for operation in OPERATIONS if operation.body is not None]
    with_answer = [operation for operation in OPERATIONS if operation.answer is not None]
    statuses = sum(len(operation.returns) for operation in with_answer)
    assert len(shown) == len(with_body) + statuses
    for schema, example in shown:
        whole = {**schema, "components": document["components"]}
        jsonschema.Draft202012Validator(whole).validate(example)


def contents(operation: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The schemas and examples of an operation's body and answers."""
    parts = [operation.get("requestBody", {}), *operation["responses"].values()]
    media = [media for part in parts for media in part.get("content", {}).values()]
    return [(each["schema"], each["example"]) for each in media if "example" in each]


def test_a_field_is_left_out_or_null_and_never_both(client: FlaskClient) -> None:
    """But for three fields of requests in which null says something, the end of a list, and what
    clients of OpenAI, Cohere and Dify may send as null."""
    schemas = client.get("/openapi.json").get_json()["components"]["schemas"]
    both = {
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, details in schema.get("properties", {}).items()
        if field not in schema.get("required", ())
        if {"type": "null"} in details.get("anyOf", ())
    }
    assert both == {
        *(
            "SettingsChange.exact_below",
            "SettingsChange.scale",
            "SettingsChange.about",
            "SettingsChange.interleave",
            "InteractionsRequest.liked_from",
        ),
        *("FeedbackPage.next", "RankingOptions.score_threshold", "RankRequest.return_documents"),
        *("MetadataCondition.logical_operator", "RetrievalSetting.score_threshold"),
    }


def test_a_query_is_one_of_its_forms(client: FlaskClient) -> None:
    jsonschema = pytest.importorskip("jsonschema_rs")
    components = client.get("/openapi.json").get_json()["components"]
    schema = {"$ref": "#/components/schemas/SearchRequest", "components": components}
    validator = jsonschema.Draft202012Validator(schema)
    vector = [1.0, 0.0]
    forms = [{"text": "a"}, {"vector": vector}, {"text": "a", "vector": vector}, {"id": 1}]
    blends = [{"ids": ["a"]}, {"blend": ["a", {"id": "b"}]}, {"mixture": [{"text": "a"}, vector]}]
    for query in ["whales", vector, *forms, *blends]:
        assert validator.is_valid({"query": query}), query
        SearchRequest.model_validate({"query": query})
    for query in [{}, {"text": "a", "id": "b"}, {"ids": ["a"], "vector": vector}, {"blend": [{}]}]:
        assert not validator.is_valid({"query": query}), query
        with pytest.raises(ValidationError):
            SearchRequest.model_validate({"query": query})


def test_an_error_is_as_documented(client: FlaskClient) -> None:
    response = client.post("/v1/collections/books/search", json={"k": 0})
    documented = openapi.document(OPERATIONS)["components"]["schemas"]["ProblemDetails"]
    assert {*response.get_json(), "error"} == set(documented["properties"])


def test_a_job_is_documented_with_its_headers(client: FlaskClient) -> None:
    document = client.get("/openapi.json").get_json()
    responses = document["paths"]["/v1/collections/{collection}/train"]["post"]["responses"]
    assert {"202", "404", "409", "422", "429"} <= set(responses)
    assert "Location" in responses["202"]["headers"]
    assert responses["429"] == {"$ref": "#/components/responses/too-many-jobs"}
    assert "Retry-After" in document["components"]["responses"]["too-many-jobs"]["headers"]


def test_one_judgement_is_documented_beside_a_list_of_them(client: FlaskClient) -> None:
    document = client.get("/openapi.json").get_json()
    body = document["paths"]["/v1/collections/{collection}/feedback"]["post"]["requestBody"]
    forms = body["content"]["application/json"]["schema"]["anyOf"]
    item = {"$ref": "#/components/schemas/FeedbackItem"}
    assert forms[0] == {"$ref": "#/components/schemas/FeedbackRequest"}
    assert (forms[1]["items"], forms[2]) == (item, item)


def test_the_value_of_an_answer_is_documented_key_by_key(client: FlaskClient, data: Data) -> None:
    schemas = client.get("/openapi.json").get_json()["components"]["schemas"]
    assert schemas["Answer"]["properties"]["answer"]["$ref"] == "#/components/schemas/ValueAnswer"
    keys = [field.name for field in dataclasses.fields(ValueAnswer)]
    for member in schemas["ValueAnswer"]["discriminator"]["mapping"].values():
        schema = schemas[member.removeprefix("#/components/schemas/")]
        assert [*schema["properties"]] == schema["required"] == keys
    data.create("ages", dimension=2).upsert([{"id": "a", "vector": [0, 1], "value": {"age": 3}}])
    values = [
        {"mode": mode, "value": value}
        for mode in ("hard", "soft")
        for value in (None, "age", "@id")
    ]
    for options in [*values, {"mask": {"only": []}}]:
        response = client.post("/v1/collections/ages/search", json={"query": [0, 1], **options})
        answer = response.get_json()["answer"]
        assert sorted(answer) == sorted(keys)
        TypeAdapter(ValueAnswer).validate_python(answer)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_documented_keys_of_a_type_are_those_of_its_blend(kind: Kind) -> None:
    decoded = {"decoded"} if kind == "vector" else set()
    assert {*VALUE_KEYS[kind]} == {*blend_for(ValueType(kind)).keys} | decoded


VALUES: dict[str, tuple[list[Any], Any]] = {
    "number": ([3, 4], "number"),
    "category": (["a", "b"], "category"),
    "labels": ([["a", "b"], ["b"]], "labels"),
    "boolean": ([True, False], "boolean"),
    "vector": ([[1, 2], [0, 1]], "vector"),
    "object": ([{"n": 1}, {"n": 2}], {"n": "number"}),
    "text": (["a whale", "a ship"], "text"),
    "image": (["a.png", "b.png"], "image"),
    "mixed": (["a", 1], "mixed"),
}
"""By type, the values of two documents, and the declaration of their type."""


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("mode", ["hard", "soft"])
@pytest.mark.parametrize("empty", [False, True])
def test_answers_of_every_type_are_as_documented(
    client: FlaskClient, kind: str, mode: str, empty: bool
) -> None:
    """The application's fixture validates them; without any value the type stays."""
    values, declared = VALUES[kind]
    types = {"values": declared}
    assert client.put("/v1/collections/one", json={"dimension": 2, **types}).status_code == 201
    vectors = [[1, 0], [0.9, 0.1]]
    documents = [
        {"id": str(vector), "vector": vector, "value": None if empty else value}
        for vector, value in zip(vectors, values, strict=True)
    ]
    assert client.post("/v1/collections/one/documents", json=documents).status_code == 200
    search = {"query": [1, 0], "mode": mode, "decode": kind == "vector" and not empty}
    answer = client.post("/v1/collections/one/search", json=search).get_json()["answer"]
    assert (answer["type"], answer["coverage"] > 0) == (kind, not empty)


def test_snapshots_are_documented_as_bytes(client: FlaskClient) -> None:
    paths = client.get("/openapi.json").get_json()["paths"]
    snapshot = paths["/v1/collections/{collection}/snapshot"]
    taken, restored = snapshot["post"]["responses"]["200"], snapshot["put"]["requestBody"]
    for content in (taken["content"], restored["content"]):
        assert content["application/x-tar"]["schema"] == {"type": "string", "format": "binary"}


def test_readers_at_once_wait_for_one_document(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would take a second of the processor, for the same document."""
    made: list[int] = []

    def document(operations: list[Operation]) -> dict[str, Any]:
        made.append(len(operations))
        return {"openapi": "3.1.0"}

    monkeypatch.setattr(openapi, "document", document)
    server.described.cache_clear()
    try:
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda _: app.test_client().get("/openapi.json"), range(16)))
    finally:
        server.described.cache_clear()
    assert {answer.status_code for answer in answers} == {200}
    assert made == [len(OPERATIONS)]
