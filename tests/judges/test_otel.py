"""Spans as OpenTelemetry's own in-memory exporter receives them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from attend.collection.data import Data
from attend.connect import otel
from attend.core.errors import InvalidRequest
from attend_service.app import create_app
from tests.places import PACKAGES, ROOT

STAGES = {"attend.encode", "attend.search", "attend.attend", "attend.fetch"}


@pytest.fixture
def spans():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    end = otel.instrument(provider)
    yield exporter, provider
    end()


@pytest.fixture
def library(tmp_path, tiny_encoder):
    data = Data(tmp_path / "data", load_encoder=lambda name: tiny_encoder)
    notes = data.create("notes")
    notes.upsert([{"id": str(n), "text": f"text number {n}"} for n in range(20)])
    yield data
    data.close()


def test_a_search_has_a_span_for_each_stage_within_its_own(library, spans):
    exporter, _ = spans
    exporter.clear()
    library.collection("notes").search("secret words")
    finished = {span.name: span for span in exporter.get_finished_spans()}
    assert finished.keys() == {"attend.retrieve", *STAGES}
    parent = finished["attend.retrieve"]
    assert parent.parent is None
    assert parent.attributes["db.collection.name"] == "notes"
    assert parent.attributes["attend.seconds.encode"] > 0
    for stage in STAGES:
        assert finished[stage].context.trace_id == parent.context.trace_id
        assert parent.start_time <= finished[stage].start_time <= finished[stage].end_time
        assert finished[stage].end_time <= parent.end_time
    assert "secret" not in "".join(span.to_json() for span in finished.values())


def test_what_is_encoded_in_other_threads_belongs_to_its_search(library, spans):
    exporter, provider = spans
    exporter.clear()
    with provider.get_tracer("test").start_as_current_span("outer") as outer:
        library.collection("notes").upsert(
            [{"id": f"new{n}", "text": f"{n} " * 100} for n in range(300)], progress=False
        )
    encoded = [span for span in exporter.get_finished_spans() if span.name == "attend.encode"]
    assert len(encoded) > 1
    assert {span.context.trace_id for span in encoded} == {outer.get_span_context().trace_id}


def test_searches_of_many_threads_do_not_mix(library, spans):
    exporter, provider = spans
    exporter.clear()
    tracer, expected = provider.get_tracer("test"), set()

    def ask(number: int) -> None:
        with tracer.start_as_current_span(f"caller {number}") as caller:
            library.collection("notes").search(f"text number {number}")
            expected.add(caller.get_span_context().trace_id)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    retrieved = [s for s in exporter.get_finished_spans() if s.name == "attend.retrieve"]
    assert {span.context.trace_id for span in retrieved} == expected
    assert all("attend.seconds.search" in span.attributes for span in retrieved)


def test_an_error_is_recorded_and_the_next_search_has_its_own_trace(library, spans):
    exporter, _ = spans
    exporter.clear()
    with pytest.raises(InvalidRequest):
        library.collection("notes").search([1.0, 2.0])
    (failed,) = [s for s in exporter.get_finished_spans() if s.name == "attend.retrieve"]
    assert not failed.status.is_ok
    exporter.clear()
    library.collection("notes").search("text")
    assert {s.status.is_ok for s in exporter.get_finished_spans()} == {True}


def test_requests_are_parents_within_that_of_traceparent(library, spans):
    exporter, provider = spans
    app = create_app(library)
    otel.trace_requests(app, provider)
    client = app.test_client()
    exporter.clear()
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    response = client.post(
        "/v1/collections/notes/search",
        json={"query": "text"},
        headers={"traceparent": f"00-{trace_id}-{span_id}-01"},
    )
    assert response.status_code == 200
    finished = {span.name: span for span in exporter.get_finished_spans()}
    request = finished["POST /v1/collections/<collection>/search"]
    assert (request.kind, request.parent.span_id) == (SpanKind.SERVER, int(span_id, 16))
    assert request.attributes["http.response.status_code"] == 200
    assert finished["attend.retrieve"].parent.span_id == request.context.span_id
    assert {span.context.trace_id for span in finished.values()} == {int(trace_id, 16)}
    exporter.clear()
    client.get("/nothing/here", headers={"traceparent": "nonsense"})
    (unknown,) = exporter.get_finished_spans()
    assert (unknown.name, unknown.parent) == ("GET", None)
    assert unknown.attributes["http.response.status_code"] == 404


def test_nothing_is_traced_once_it_ended(library):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    end = otel.instrument(provider)
    library.collection("notes").search("text")
    assert exporter.get_finished_spans()
    exporter.clear()
    end()
    end()
    library.collection("notes").search("text")
    assert not exporter.get_finished_spans()


def test_opentelemetry_is_imported_by_its_module_alone():
    code = (
        "import attend, attend.collection.collection, attend_service.app, sys; "
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    env = {"PYTHONPATH": ":".join(map(str, PACKAGES))}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def test_a_server_sends_its_spans_by_otlp(tmp_path):
    library = Data(tmp_path / "data")
    library.create("points", dimension=2).upsert([{"id": "a", "vector": [1, 0]}])
    library.close()
    received = []

    class Sink(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as sink:
        threading.Thread(target=sink.serve_forever, daemon=True).start()
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, PACKAGES)),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sink.server_port}",
            "OTEL_SERVICE_NAME": "books-search",
        }
        command = ["-m", "service", "--data", tmp_path / "data", "--port", "0", "--otel"]
        server = subprocess.Popen(
            [sys.executable, *map(str, command), "--json"],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            address = json.loads(server.stdout.readline())["address"]
            request = urllib.request.Request(
                f"{address}/v1/collections/points/search",
                data=b'{"query": {"vector": [1, 0]}}',
                headers={"Content-Type": "application/json"},
            )
            assert json.load(urllib.request.urlopen(request))["hits"][0]["id"] == "a"
        finally:
            server.terminate()  # what is not sent yet is sent as it ends
            server.wait(60)
        sink.shutdown()
    sent = b"".join(body for path, body in received if path == "/v1/traces")
    for part in (b"books-search", b"attend.retrieve", b"attend.fetch", b"/v1/collections"):
        assert part in sent
