"""OpenAI's, Cohere's and Jina's forms, as their clients send them, by plain HTTP."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from attend import Data
from attend.core.settings import Tuning
from attend.encoder import DEFAULT, SentenceEncoder
from attend.projection import identity
from attend_service.app import create_app
from attend_service.keys import KeyFile
from attend_service.routes import vector_stores
from attend_service.routes.vector_stores import FILES, TEXTS
from tests.places import ROOT
from tests.service.test_server import LIMIT, running, wait_until_ready

NOVELS = {
    "sealer.txt": ("A castaway is forced to work on a sealing ship.", {"year": 1904, "sea": True}),
    "treasure.md": ("A boy finds a map and sails with pirates.", {"year": 1883, "sea": True}),
    "garden.md": ("An orphan wakes a locked garden.", {"year": 1911, "sea": False}),
}
STORE = "/v1/vector_stores/novels"


@pytest.fixture
def data(tmp_path: Path, tiny_encoder: SentenceEncoder) -> Iterator[Data]:
    data = Data(tmp_path / "library", load_encoder=lambda name: tiny_encoder)
    yield data
    data.close()


@pytest.fixture
def client(data: Data) -> FlaskClient:
    return create_app(data).test_client()


def upload(client: FlaskClient, name: str, content: str | bytes, **headers: str) -> TestResponse:
    raw = content.encode() if isinstance(content, str) else content
    parts = (
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\n\r\n%b\r\n--x--\r\n'
    )
    kind = "multipart/form-data; boundary=x"
    body = parts % (name.encode(), raw)
    return client.post("/v1/files", data=body, content_type=kind, headers=headers)


def answered(response: TestResponse) -> Any:
    assert response.status_code == 200, response.text
    return response.get_json()


@pytest.fixture
def novels(client: FlaskClient) -> dict[str, str]:
    """A vector store of three files; their ids by name."""
    store = answered(client.post("/v1/vector_stores", json={"name": "novels"}))
    assert (store["id"], store["name"], store["object"]) == ("novels", "novels", "vector_store")
    ids = {}
    for name, (text, attributes) in NOVELS.items():
        ids[name] = answered(upload(client, name, text))["id"]
        body = {"file_id": ids[name], "attributes": attributes}
        attached = answered(client.post(f"{STORE}/files", json=body))
        assert attached["status"] == "completed"
        assert attached["attributes"] == attributes
        assert (attached["id"], attached["usage_bytes"]) == (ids[name], len(text))
    return ids


def search(client: FlaskClient, **body: Any) -> Any:
    return answered(client.post(f"{STORE}/search", json={"query": "a sealing ship", **body}))


def found(client: FlaskClient, filters: Any) -> set[str]:
    return {hit["filename"] for hit in search(client, filters=filters)["data"]}


# -- models and embeddings ------------------------------------------------------------------


def test_models_are_encoders_and_collections_with_one(
    client: FlaskClient, data: Data, novels: dict[str, str]
) -> None:
    data.create("vectors", dimension=2)
    models = answered(client.get("/v1/models"))
    assert models["object"] == "list"
    owned = {model["id"]: model["owned_by"] for model in models["data"]}
    assert owned[DEFAULT] == "encoder"
    assert [name for name, kind in owned.items() if kind == "collection"] == ["novels"]


def test_embeddings_are_those_of_the_encoder_in_both_formats(
    client: FlaskClient, tiny_encoder: SentenceEncoder
) -> None:
    texts = ["a whale", "a ship", "a whale"]
    expected = tiny_encoder.encode_documents(texts)
    body = {"model": DEFAULT, "input": texts, "user": "ann", "extra_body": {"a": 1}}
    plain = answered(client.post("/v1/embeddings", json=body))
    assert [item["index"] for item in plain["data"]] == [0, 1, 2]
    rows = np.array([item["embedding"] for item in plain["data"]])
    assert rows == pytest.approx(expected, abs=1e-6)
    assert plain["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    body["encoding_format"] = "base64"
    packed = answered(client.post("/v1/embeddings", json=body))
    same = [base64.b64decode(item["embedding"]) for item in packed["data"]]
    assert [np.frombuffer(raw, "<f4").tolist() for raw in same] == rows.tolist()
    one = answered(client.post("/v1/embeddings", json={"model": DEFAULT, "input": "a ship"}))
    assert one["data"][0]["embedding"] == rows[1].tolist()


def test_a_collection_embeds_by_what_it_has_learned(
    client: FlaskClient, data: Data, novels: dict[str, str], tiny_encoder: SentenceEncoder
) -> None:
    collection = data.collection("novels")
    version = collection.add_projection(collection.fit_projection("pca", 2))
    collection.activate(version)
    body = {"model": "novels", "input": ["a ship"]}
    whole = answered(client.post("/v1/embeddings", json=body))["data"][0]["embedding"]
    assert len(whole) == 2
    [key] = collection.fit_projection("pca", 2).keys(tiny_encoder.encode_documents(["a ship"]))
    assert whole == pytest.approx(key[0].tolist(), abs=1e-6)
    first = answered(client.post("/v1/embeddings", json={**body, "dimensions": 1}))
    assert first["data"][0]["embedding"] == pytest.approx([np.sign(whole[0])])
    data.set_alias("books", "novels")
    assert answered(client.post("/v1/embeddings", json={**body, "model": "books"}))["data"]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"input": [1, 2, 3]}, "input", "set check_embedding_ctx_length=False"),
        ({"input": [[1, 2], [3]]}, "input", "set check_embedding_ctx_length=False"),
        ({"input": []}, "input", "a list of 1 or more"),
        ({"input": ""}, "input.0", "1 or more characters"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": {"text": "a"}}, "input", "a list was expected"),
        ({"input": "a", "model": "gpt"}, "model", f"no model 'gpt'; the models are {DEFAULT}"),
        ({"input": "a", "model": "/etc"}, "model", "There is no model '/etc'"),
        ({"input": "a", "dimensions": 16}, "dimensions", "16 dimensions were asked for"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
    ],
)  # fmt: skip
def test_a_malformed_embedding_is_told_where_clients_read_it(
    client: FlaskClient, fields: Any, field: str, words: str
) -> None:
    response = client.post("/v1/embeddings", json={"model": DEFAULT, **fields})
    assert response.status_code == 422
    problem = response.get_json()
    assert words in problem["error"]["message"] == problem["detail"]
    assert problem["error"]["param"] == field
    assert problem["error"]["type"] == "invalid-request"
    assert len(problem["detail"]) < 400


def test_only_these_paths_have_the_error_of_clients(client: FlaskClient) -> None:
    assert "error" not in client.get("/v1/collections/none").get_json()
    assert "error" in client.get("/v1/vector_stores/none").get_json()


# -- re-ranking -----------------------------------------------------------------------------

RANKED = ["An orphan wakes a locked garden.", {"text": "A sealing ship."}, "", "A ship and a map."]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("model", [DEFAULT, "novels"])
def test_every_index_comes_best_first(
    client: FlaskClient, novels: dict[str, str], path: str, model: str
) -> None:
    body = {"model": model, "query": "a sealing ship", "documents": RANKED, "top_n": 4}
    whole = answered(client.post(path, json=body))
    assert sorted(result["index"] for result in whole["results"]) == [0, 1, 2, 3]
    scores = [result["relevance_score"] for result in whole["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert whole["results"][0]["index"] == 1
    assert "document" not in whole["results"][0]
    del body["top_n"]
    assert answered(client.post(path, json=body))["results"] == whole["results"]
    body |= {"top_n": 1, "return_documents": True}
    [best] = answered(client.post(path, json=body))["results"]
    assert best["document"] == {"text": "A sealing ship."}


def test_a_trained_collection_says_that_nothing_answers(
    client: FlaskClient, data: Data, novels: dict[str, str]
) -> None:
    """Its no-answer score counts, so that scores mean the same for every query."""
    collection = data.collection("novels")
    tuning = Tuning(scale=(20.0,), null=(12.0,), scorer="dot", attend=100)
    projection = identity(32)
    number = collection.store.add_projection(
        projection.kind, projection.to_bytes(), projection.fingerprint, {}, tuning=tuning.stored()
    )
    collection.activate(number, force=True)
    body = {"model": "novels", "documents": ["A sealing ship.", "An orphan wakes a garden."]}
    answers = [
        answered(client.post("/v1/rerank", json={**body, "query": query}))["results"][0]
        for query in ("a sealing ship.", "zzz qqq xxx")
    ]
    assert answers[0]["relevance_score"] > 0.99
    assert answers[1]["relevance_score"] < 0.1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"documents": []}, "documents"),
        ({"documents": [{"title": "a"}]}, "documents.0"),
        ({"documents": ["a"] * 1001}, "documents"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"model": "none"}, "model"),
    ],
)
def test_a_malformed_rerank_names_the_field(client: FlaskClient, fields: Any, field: str) -> None:
    body = {"model": DEFAULT, "query": "a", "documents": ["a"], **fields}
    response = client.post("/v1/rerank", json=body)
    assert response.status_code == 422
    assert response.get_json()["error"]["param"] == field


# -- vector stores --------------------------------------------------------------------------


def test_a_search_gives_the_page_of_the_form(client: FlaskClient, novels: dict[str, str]) -> None:
    page = search(client, max_num_results=2, rewrite_query=False)
    assert page["object"] == "vector_store.search_results.page"
    assert page["search_query"] == ["a sealing ship"]
    assert (page["has_more"], page["next_page"], len(page["data"])) == (False, None, 2)
    best = page["data"][0]
    assert best["file_id"] == novels["sealer.txt"]
    assert best["filename"] == "sealer.txt"
    assert best["content"] == [{"type": "text", "text": NOVELS["sealer.txt"][0]}]
    assert best["attributes"] == NOVELS["sealer.txt"][1]
    assert 0 < best["score"] <= 1


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"type": "eq", "key": "year", "value": 1904}, {"sealer.txt"}),
        ({"type": "ne", "key": "year", "value": 1904}, {"treasure.md", "garden.md"}),
        ({"type": "gt", "key": "year", "value": 1904}, {"garden.md"}),
        ({"type": "gte", "key": "year", "value": 1904}, {"sealer.txt", "garden.md"}),
        ({"type": "lt", "key": "year", "value": 1904}, {"treasure.md"}),
        ({"type": "lte", "key": "year", "value": 1904.0}, {"sealer.txt", "treasure.md"}),
        ({"type": "in", "key": "year", "value": [1883, 1911]}, {"treasure.md", "garden.md"}),
        ({"type": "nin", "key": "year", "value": [1883, 1911]}, {"sealer.txt"}),
        ({"type": "eq", "key": "sea", "value": False}, {"garden.md"}),
        (
            {
                "type": "and",
                "filters": [
                    {"type": "eq", "key": "sea", "value": True},
                    {
                        "type": "or",
                        "filters": [
                            {"type": "eq", "key": "year", "value": 1883},
                            {"type": "eq", "key": "year", "value": 1911},
                        ],
                    },
                ],
            },
            {"treasure.md"},
        ),
    ],
)
def test_filters(
    client: FlaskClient, novels: dict[str, str], filters: Any, names: set[str]
) -> None:
    assert found(client, filters) == names


def test_a_score_threshold_cuts_by_what_is_returned(
    client: FlaskClient, data: Data, novels: dict[str, str]
) -> None:
    every = search(client)["data"]
    ours = data.collection("novels").search("a sealing ship")
    assert ours.confidence is None
    assert [hit["score"] for hit in every] == pytest.approx([hit.weight for hit in ours.hits])
    least = every[1]["score"]
    kept = search(client, ranking_options={"ranker": "auto", "score_threshold": least})["data"]
    assert kept == every[:2]


def test_several_queries_attend_each_by_itself(client: FlaskClient, novels: dict[str, str]) -> None:
    page = search(client, query=["a sealing ship", "a locked garden"], max_num_results=2)
    assert page["search_query"] == ["a sealing ship", "a locked garden"]
    assert {hit["filename"] for hit in page["data"]} == {"sealer.txt", "garden.md"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_num_results": 51}, "50 or less"),
        ({"query": []}, "query"),
        ({"filters": {"type": "near", "key": "a", "value": 1}}, "'eq'"),
        ({"filters": {"type": "eq", "value": 1}}, "eq takes a key and a value"),
        ({"filters": {"type": "and", "key": "a", "value": 1}}, "take filters"),
        ({"ranking_options": {"score_threshold": 2}}, "1 or less"),
    ],
)
def test_a_malformed_search(
    client: FlaskClient, novels: dict[str, str], fields: Any, words: str
) -> None:
    response = client.post(f"{STORE}/search", json={"query": "a", **fields})
    assert response.status_code == 422
    assert words in response.get_json()["error"]["message"]


def test_a_store_keeps_its_title_and_metadata(client: FlaskClient, data: Data) -> None:
    body = {"name": "Sea novels, 2nd", "metadata": {"team": "a"}, "description": "ships"}
    store = answered(client.post("/v1/vector_stores", json=body))
    assert store["id"] == "Sea-novels-2nd"
    assert store["created_at"] > 1.7e9
    for name, said in body.items():
        assert store[name] == said
    assert answered(client.get(f"/v1/vector_stores/{store['id']}")) == store
    other = answered(client.post("/v1/vector_stores", json=body))
    assert other["id"].startswith("Sea-novels-2nd-")
    assert other["name"] == body["name"]
    nameless = [answered(client.post("/v1/vector_stores", json={}))["id"] for _ in range(2)]
    device = answered(client.post("/v1/vector_stores", json={"name": "con"}))["id"]
    assert {store["id"], other["id"], *nameless, device, FILES} == set(data.names())
    gone = answered(client.delete(f"/v1/vector_stores/{store['id']}"))
    assert gone == {"id": store["id"], "object": "vector_store.deleted", "deleted": True}
    assert client.get(f"/v1/vector_stores/{store['id']}").status_code == 404
    never = client.post("/v1/vector_stores", json={"name": "a", "expires_after": {"days": 1}})
    assert never.status_code == 422


def pages(client: FlaskClient, path: str) -> list[str]:
    """All ids of a list, as the official client reads its pages."""
    ids: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = answered(client.get(path, query_string=query))
        ids += [item["id"] for item in page["data"]]
        if not page["has_more"]:
            return ids
        assert page["last_id"] == ids[-1]
        query["after"] = ids[-1]


def test_lists_are_read_page_by_page(client: FlaskClient, novels: dict[str, str]) -> None:
    for name in ("a", "b", "c"):
        client.post("/v1/vector_stores", json={"name": name})
    assert pages(client, "/v1/vector_stores") == ["a", "b", "c", "novels"]
    assert pages(client, f"{STORE}/files") == list(novels.values())
    assert pages(client, "/v1/files") == list(novels.values())
    lost = client.get(f"{STORE}/files", query_string={"after": "nobody"})
    assert lost.status_code == 404
    assert client.get("/v1/files", query_string={"order": "desc"}).status_code == 422


def test_any_collection_with_an_encoder_is_a_store(client: FlaskClient, data: Data) -> None:
    documents = [
        {"id": "http://a/1", "text": "A sealing ship.", "payload": {"year": 1904, "tags": ["x"]}}
    ]
    data.create("others").upsert(documents)
    data.create("vectors", dimension=2)
    page = client.post("/v1/vector_stores/others/search", json={"query": "ship"})
    [hit] = answered(page)["data"]
    assert (hit["file_id"], hit["filename"]) == ("http://a/1", "http://a/1")
    assert hit["attributes"] == {"year": 1904}
    shown = answered(client.get("/v1/vector_stores/others/files/http://a/1"))
    assert (shown["created_at"], shown["usage_bytes"]) == (0, 15)
    gone = answered(client.delete("/v1/vector_stores/others/files/http://a/1"))
    assert gone["deleted"] is True
    assert not data.collection("others").ids()
    file = answered(upload(client, "a.txt", "a"))["id"]
    refused = client.post("/v1/vector_stores/vectors/files", json={"file_id": file})
    assert refused.status_code == 422


# -- files ----------------------------------------------------------------------------------


def test_an_upload_survives_a_restart_until_it_is_deleted(
    client: FlaskClient, data: Data, novels: dict[str, str], tiny_encoder: SentenceEncoder
) -> None:
    name, id = "sealer.txt", novels["sealer.txt"]
    with_it = Data(data.folder, load_encoder=lambda _: tiny_encoder)
    again = create_app(with_it).test_client()
    shown = answered(again.get(f"/v1/files/{id}"))
    assert (shown["filename"], shown["bytes"], shown["object"]) == (name, 47, "file")
    assert (shown["purpose"], shown["status"]) == ("assistants", "processed")
    store = answered(again.post("/v1/vector_stores", json={"name": "b", "file_ids": [id]}))
    assert store["file_counts"] == {
        "completed": 1, "total": 1, "in_progress": 0, "failed": 0, "cancelled": 0,
    }  # fmt: skip
    with_it.close()
    gone = answered(client.delete(f"/v1/files/{id}"))
    assert gone == {"id": id, "object": "file", "deleted": True}
    for method, path in (("GET", "/v1/files"), ("DELETE", "/v1/files")):
        assert client.open(f"{path}/{id}", method=method).status_code == 404
    assert data.collection(TEXTS).ids() == set(novels.values()) - {id}
    assert id not in data.collection(FILES).ids()
    assert found(client, None) == set(NOVELS), "a store keeps its documents"
    missing = client.post(f"{STORE}/files", json={"file_id": id})
    assert missing.status_code == 404
    assert "POST /v1/files first" in missing.get_json()["error"]["message"]
    record = client.get("/v1/files/store%2Fnovels")
    assert record.status_code == 404


def test_files_are_attached_together(
    client: FlaskClient, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_stores, "AT_ONCE", 2)
    client.post("/v1/vector_stores", json={"name": "novels"})
    ids = [answered(upload(client, name, text))["id"] for name, (text, _) in NOVELS.items()]
    batches = f"{STORE}/file_batches"
    body = {"file_ids": ids, "attributes": {"year": 1900}}
    batch = answered(client.post(batches, json=body))
    assert (batch["status"], batch["file_counts"]["completed"]) == ("completed", 3)
    assert answered(client.get(f"{batches}/{batch['id']}")) == batch
    assert data.collection("novels").ids() == set(ids)
    files = [{"file_id": ids[0], "attributes": {"year": 1}}, {"file_id": ids[1]}]
    answered(client.post(batches, json={"files": files, "attributes": {"year": 2}}))
    payloads = [data.collection("novels").document(id).payload for id in ids]
    assert [payload["year"] for payload in payloads] == [1, 2, 1900]
    before = data.collection("novels").info().generation
    assert client.post(batches, json={"file_ids": [ids[0], "file-x"]}).status_code == 404
    assert data.collection("novels").info().generation == before
    assert client.post(batches, json={}).status_code == 422
    assert client.get(f"{batches}/x").status_code == 404


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.pdf", b"%PDF-1.7", "another format than text"),
        ("a.txt", b"\x00\x01\x02\x03", "is no text"),
        ("a.txt", b" \n", "send 1 to 1,000,000"),
        ("a.txt", b"a" * 1_000_001, "1,000,001 characters"),
        ("a.txt", b"good \xff\xfe\xfd bad", "utf"),
    ],
)
def test_what_is_no_text_is_refused(
    client: FlaskClient, data: Data, name: str, content: bytes, words: str
) -> None:
    response = upload(client, name, content)
    assert response.status_code == 422
    assert words in response.get_json()["error"]["message"]
    assert not data.names()


def test_an_upload_is_a_form_with_a_file(client: FlaskClient) -> None:
    assert client.post("/v1/files", json={"file": "a"}).status_code == 415
    nothing = client.post("/v1/files", data={"x": (io.BytesIO(b"a"), "a")})
    assert nothing.get_json()["error"]["param"] == "file"
    assert upload(client, "a.txt", b"a" * (4 * 1024 * 1024)).status_code == 413
    latin = "Ein Mädchen hört Vögel über grünen Bäumen, schöne Häuser für müde Gäste." * 3
    assert answered(upload(client, "a.txt", latin.encode("cp1252")))["id"]


def test_files_have_a_most(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_stores, "MAX_FILES", 1)
    assert upload(client, "a.txt", "a").status_code == 200
    assert upload(client, "a.txt", "a").status_code == 413


def test_a_key_opens_files_by_their_collection(
    client: FlaskClient, data: Data, novels: dict[str, str]
) -> None:
    file = KeyFile(data.folder)

    def bearer(scope: Any, *collections: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {file.add(scope=scope, collections=collections)[1]}"}

    novel, both = bearer("write", "novels"), bearer("write", "novels", FILES)
    body = {"file_id": novels["sealer.txt"]}
    assert client.post(f"{STORE}/files", json=body, headers=novel).status_code == 403
    assert client.post(f"{STORE}/files", json=body, headers=both).status_code == 200
    assert upload(client, "a.txt", "a", **novel).status_code == 403
    assert upload(client, "a.txt", "a", **both).status_code == 200
    other = bearer("read", "others")
    names = {model["id"] for model in answered(client.get("/v1/models", headers=other))["data"]}
    assert names == {DEFAULT}
    hidden = client.post("/v1/embeddings", json={"model": "novels", "input": "a"}, headers=other)
    assert hidden.status_code == 422
    assert answered(client.get("/v1/vector_stores", headers=other))["data"] == []


def test_the_example_of_every_form_runs(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        wait_until_ready(server)
        script = str(ROOT / "examples" / "openai_forms.sh")
        command = ["sh", script, f"http://{server.host}:{server.port}"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        answers = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        searches = [one["data"] for one in answers if "search_query" in one]
        assert [[hit["filename"] for hit in page] for page in searches] == [
            ["sealer.txt", "garden.md"],
            ["sealer.txt"],
        ]
        pages = [answer["results"] for answer in answers if "results" in answer]
        ranked = [[one["index"] for one in page] for page in pages]
        assert [sorted(order) for order in ranked] == [[0, 1, 2]] * 2
        assert ranked[0] == ranked[1]
        assert ranked[0][-1] == 0, "a garden is not at sea"
        assert sum(bool(one.get("deleted")) for one in answers) == 4
