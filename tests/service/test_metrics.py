"""`/metrics`, read as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from attend import Data
from attend.core.coalesce import listen, tell
from attend_service import metrics
from attend_service.app import create_app
from attend_service.context import EXTENSION
from attend_service.jobs import Jobs
from attend_service.readiness import Readiness
from attend_service.settings import ServerSettings

BOOKS = {"collection": "books"}


def samples(client: FlaskClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.mimetype == "text/plain"
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def value(client: FlaskClient, name: str, labels: Mapping[str, str] | None = None) -> float:
    return samples(client)[name, frozenset((labels or {}).items())]


def test_requests_are_counted_by_route_and_status(books: FlaskClient) -> None:
    for id in ("whale", "emma", "nobody"):
        books.get(f"/v1/collections/books/documents/{id}")
    books.get("/nowhere/at/all")
    books.open("/healthz", method="BREW")
    route = "/v1/collections/{collection}/documents/{id}"
    found = {"method": "GET", "route": route, "status": "200"}
    assert value(books, "attend_requests_total", found) == 2
    assert value(books, "attend_requests_total", found | {"status": "404"}) == 1
    assert value(books, "attend_request_seconds_count", {"route": route}) == 3
    names = {labels for name, labels in samples(books) if name == "attend_requests_total"}
    assert not any("nowhere" in text or "BREW" in text for each in names for _, text in each)


def test_a_collection_in_figures(books: FlaskClient, data: Data) -> None:
    assert value(books, "attend_documents", BOOKS) == 3
    assert value(books, "attend_index_fresh_keys", BOOKS) == 3
    assert value(books, "attend_last_merge_timestamp_seconds", BOOKS) == 0
    before = value(books, "attend_generation", BOOKS)
    data.collection("books").publish()
    books.delete("/v1/collections/books/documents/emma")
    found = samples(books)
    figures = {name: v for (name, labels), v in found.items() if labels == frozenset(BOOKS.items())}
    assert figures["attend_documents"] == figures["attend_keys"] == 2
    assert figures["attend_generation"] == before + 1
    assert (figures["attend_index_keys"], figures["attend_index_fresh_keys"]) == (3, 0)
    assert (figures["attend_index_generation"], figures["attend_projection"]) == (1, 1)
    assert figures["attend_last_merge_timestamp_seconds"] > 1.7e9
    assert figures["attend_index_bytes"] > 0
    assert figures["attend_database_bytes"] > 0
    assert figures["attend_index_exact"] == figures["attend_recall_estimate"] == 1
    assert set(figures) == set(metrics.BY_COLLECTION)


def test_the_server_in_figures(books: FlaskClient, data: Data) -> None:
    found = {name: v for (name, labels), v in samples(books).items() if not labels}
    assert found["attend_ready"] == 1
    assert found["attend_collections"] == 1
    assert found["attend_collections_failed"] == 0
    assert found["attend_cache_hits_total"] == 0
    assert found["process_resident_memory_bytes"] > 1e6


def test_jobs_by_state(books: FlaskClient) -> None:
    assert value(books, "attend_jobs", {"state": "running"}) == 0
    job = books.post("/v1/collections/books/train", json={"objective": "answers"}).get_json()["id"]
    active = samples(books)
    states = [active["attend_jobs", frozenset({("state", s)})] for s in ("queued", "running")]
    assert sum(states) == 1
    books.delete(f"/v1/jobs/{job}")


def test_the_queue_and_the_stages(books: FlaskClient, app: Any) -> None:
    own = app.extensions[EXTENSION].metrics
    own.queue = lambda: (7, 3)
    assert value(books, "attend_queue_length") == 7
    assert value(books, "attend_queue_refused_total") == 3
    stop = listen(own.stages)
    tell({"encode": 0.02, "search": 0.001})
    stop()
    tell({"encode": 9.0})
    assert value(books, "attend_stage_seconds_sum", {"stage": "encode"}) == 0.02
    assert value(books, "attend_stage_seconds_count", {"stage": "search"}) == 1


def test_not_ready_is_told(data: Data, jobs: Jobs) -> None:
    client = create_app(data, readiness=Readiness(), jobs=jobs).test_client()
    assert value(client, "attend_ready") == 0


def test_a_damaged_collection_hides_no_other(books: FlaskClient, data: Data) -> None:
    folder = data.folder / "collections" / "aaa"
    folder.mkdir()
    (folder / "documents.db").write_bytes(b"no database" * 1000)
    assert value(books, "attend_collections_failed") == 1
    assert value(books, "attend_documents", BOOKS) == 3


def test_labels_do_not_grow_without_end(books: FlaskClient, data: Data, monkeypatch: Any) -> None:
    monkeypatch.setattr(metrics, "MAX_COLLECTIONS", 2)
    for name in ("c1", "c2", "a1"):
        data.create(name, dimension=2)
    found = samples(books)
    labelled = {dict(labels)["collection"] for name, labels in found if name == "attend_keys"}
    assert labelled == {"a1", "books"}
    assert found["attend_collections", frozenset()] == 4


def test_applications_have_figures_of_their_own(data: Data, jobs: Jobs) -> None:
    one, other = (create_app(data, ServerSettings(), jobs=jobs).test_client() for _ in range(2))
    one.get("/healthz")
    counted = ("attend_request_seconds_count", frozenset({("route", "/healthz")}))
    assert counted in samples(one)
    assert counted not in samples(other)
