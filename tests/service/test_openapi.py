"""The OpenAPI document says what is there, and what is there does what it says."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from pydantic import TypeAdapter

from attend import Data
from attend.api.answers import ValueAnswer
from attend.projection import identity
from attend_service import openapi
from attend_service.context import Operation
from attend_service.jobs import Jobs
from attend_service.openapi import PATH_PARAMETERS
from attend_service.routes import all_operations, server
from tests.service.conftest import SlowTrainer
from tests.service.test_jobs import reached

OPERATIONS = all_operations()
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
    if operation.name in ("plain_search", "retrieve_knowledge"):  # it takes vectors alone
        assert response.status_code == 422
        return
    assert response.status_code in operation.returns, response.text
    model = operation.returns[response.status_code]
    if model is not None:
        TypeAdapter(model).validate_json(response.data)
    response.close()


def test_an_error_is_as_documented(client: FlaskClient) -> None:
    response = client.post("/v1/collections/books/search", json={"k": 0})
    documented = openapi.document(OPERATIONS)["components"]["schemas"]["ProblemDetails"]
    assert set(response.get_json()) == set(documented["properties"])


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
    data.create("ages", dimension=2).upsert([{"id": "a", "vector": [0, 1], "value": {"age": 3}}])
    values = [
        {"mode": mode, "value": value}
        for mode in ("hard", "soft")
        for value in (None, "age", "@id")
    ]
    for options in [*values, {"mask": {"only": []}}]:
        response = client.post("/v1/collections/ages/search", json={"query": [0, 1], **options})
        answer = response.get_json()["answer"]
        assert answer.keys() == schemas["ValueAnswer"]["properties"].keys()
        TypeAdapter(ValueAnswer).validate_python(answer)


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
