"""Two services on one Milvus server: each sees what the other was told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from attend import Data
from attend_service.app import create_app
from attend_service.readiness import Readiness
from tests.milvus.server import MilvusServer

ALL = "/v1/collections/books/documents"
SEARCH = "/v1/collections/books/search"


@pytest.fixture(scope="module")
def replicas(
    milvus_server: MilvusServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[FlaskClient]]:
    """Services with nothing in common but the server's address."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    datas = [Data(each, engine=f"{milvus_server.engine}/service") for each in folders]
    yield [create_app(data).test_client() for data in datas]
    datas[0].drop("books")
    for data in datas:
        data.close()


def vector(seed: int) -> list[float]:
    return np.random.default_rng(seed).standard_normal(4).tolist()


def strong(client: FlaskClient, **asked: Any) -> dict[str, Any]:
    response = client.post(SEARCH, json={"consistency": "strong", **asked})
    assert response.status_code == 200, response.json
    answered: dict[str, Any] = response.json
    return answered


def test_each_reads_what_the_other_wrote(replicas: list[FlaskClient]) -> None:
    one, two = replicas
    assert one.put("/v1/collections/books", json={"dimension": 4}).status_code == 201
    for at in range(5):
        document = {"id": f"d{at}", "vector": vector(at), "value": at}
        written = one.post(ALL, json={"documents": [document]})
        assert written.status_code == 200, written.json
        hits = strong(two, query=vector(at), k=1, attend=1)["hits"]
        assert [(hit["id"], hit["value"]) for hit in hits] == [(f"d{at}", at)]
        read = two.get(f"{ALL}/d{at}?consistency=strong")
        assert read.json["value"] == at
        one, two = two, one
    assert two.delete(f"{ALL}/d1").status_code == 204
    assert one.get(f"{ALL}/d1?consistency=strong").status_code == 404
    assert one.get(f"{ALL}?limit=0&consistency=strong").json["total"] == 4


def test_what_the_engine_can_do_is_told(replicas: list[FlaskClient]) -> None:
    told = replicas[1].get("/v1/collections/books").json["capabilities"]
    assert told["engine"] == "milvus"
    assert told["jobs"] is False
    refused = replicas[0].post("/v1/collections/books/train", json={})
    assert refused.status_code == 422
    assert "Jobs are not supported by the engine milvus" in refused.json["detail"]
    refused = replicas[0].post(SEARCH, json={"query": vector(1), "attend": "all"})
    assert refused.status_code == 422
    assert refused.json["errors"][0]["field"] == "attend"


def test_a_server_that_does_not_answer_is_a_503(tmp_path: Path) -> None:
    data = Data(tmp_path, engine="milvus://127.0.0.1:1/none?patience=0.5")
    response = create_app(data).test_client().post(SEARCH, json={"query": vector(1)})
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    assert response.json["title"] == "The engine does not answer"


def test_a_service_waits_for_its_engine_and_is_ready_then(
    milvus_server: MilvusServer, tmp_path: Path
) -> None:
    readiness = Readiness()
    nowhere = Data(tmp_path, engine="milvus://127.0.0.1:1/none?patience=0.1")
    warming = threading.Thread(target=readiness.warm, args=[nowhere])
    warming.start()
    client = create_app(nowhere, readiness=readiness).test_client()
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200
    assert client.get("/metrics").status_code == 200
    # The same server, where another is by now.
    engine: Any = Data(milvus_server.engine)._engine
    nowhere._engine = engine
    warming.join(60)
    assert client.get("/readyz").status_code == 200
