"""Spans of OpenTelemetry for searches, their stages, and the requests of a server.

```
from attend.connect import otel

otel.instrument()
```

A search is a span `attend.retrieve`, with one for each stage within it: `attend.encode`,
`attend.search`, `attend.attend`, `attend.fetch` and the like (`attend.core.coalesce.STAGES`). Where
searches of several callers are answered together, the stages are spans of the one that did the
work, and each has the seconds as attributes. No text of a query or document is in a span.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from attend import __version__
from attend.core import coalesce

NAMES = {"collection": "db.collection.name", "searches": "db.operation.batch.size"}
"""Our attributes → those of OpenTelemetry's conventions."""


def instrument(tracer_provider: Any = None) -> Callable[[], None]:
    """Open spans for every search of this process from now on.

    Args:
        tracer_provider: of opentelemetry; the global one if None.

    Returns: a function that ends it.

    >>> instrument()()
    """
    tracer = trace.get_tracer("attend", __version__, tracer_provider)

    def open_span(name: str, attributes: Mapping[str, str | int]) -> AbstractContextManager[object]:
        fields = {NAMES[key]: value for key, value in attributes.items()}
        return tracer.start_as_current_span(f"attend.{name}", attributes=fields)

    def add_seconds(spent: Mapping[str, float]) -> None:
        fields = {f"attend.seconds.{stage}": seconds for stage, seconds in spent.items()}
        trace.get_current_span().set_attributes(fields)

    ends = [coalesce.trace(open_span), coalesce.listen(add_seconds)]

    def end() -> None:
        while ends:
            ends.pop()()

    return end


def trace_requests(app: Any, tracer_provider: Any = None) -> None:
    """Open a span for every request of a Flask application, within that of `traceparent`.

    >>> trace_requests(app)  # doctest: +SKIP
    """
    from flask import request

    tracer = trace.get_tracer("attend", __version__, tracer_provider)
    answer, propagator = app.wsgi_app, TraceContextTextMapPropagator()

    def traced(environ: dict[str, Any], start_response: Any) -> Any:
        sent = ("traceparent", "tracestate")
        headers = {name: environ.get(f"HTTP_{name.upper()}", "") for name in sent}
        method = environ["REQUEST_METHOD"][:20]
        with tracer.start_as_current_span(
            method,
            context=propagator.extract(headers),
            kind=trace.SpanKind.SERVER,
            attributes={"http.request.method": method},
        ):
            return answer(environ, start_response)

    def add_result(response: Any) -> Any:
        span, status = trace.get_current_span(), response.status_code
        span.set_attribute("http.response.status_code", status)
        if request.url_rule is not None:  # never the path itself, which may be a text
            span.set_attribute("http.route", request.url_rule.rule)
            span.update_name(f"{request.method} {request.url_rule.rule}")
        if status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        return response

    app.wsgi_app = traced
    app.after_request(add_result)


def export_requests(app: Any) -> Callable[[], object]:
    """Trace an application and its searches, and send the spans by OTLP.

    The variables of OpenTelemetry's SDK say where to and under which name, such as
    OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_SERVICE_NAME.

    Returns: a function that sends what is left, and ends.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    instrument(provider)
    trace_requests(app, provider)
    return provider.shutdown
