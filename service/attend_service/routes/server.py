"""The server itself: its health, its figures, snapshots, its OpenAPI document, and the pages."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from flask import Response, render_template, request, send_file
from werkzeug.exceptions import TooManyRequests, UnsupportedMediaType

from attend.api.base import Reply, parse
from attend.api.documents import Restored
from attend.api.search import PlainSearch
from attend.core.errors import Damaged, EncoderError, InvalidRequest
from attend.core.settings import Settings
from attend.exchange.backup import restore_backup, save_backup
from attend_service import openapi
from attend_service.background import Work, shown_work
from attend_service.context import check_opened, collection_of, context
from attend_service.metrics import MEDIA_TYPE
from attend_service.operations import Operations
from attend_service.pages import LINKED, VIEWS, PageView, first_collection, page, search_page
from attend_service.replies import HTML, KINDS, TAR, reply
from attend_service.security import check_encoder, check_new_collection, visible

administration = Operations("Operation")
operations = Operations("Server")

SNAPSHOT = "/v1/collections/{collection}/snapshot"

MAX_SNAPSHOTS = 4
"""Snapshots that one process takes and restores at once: each needs its size on the disk."""

RETRY_SECONDS = 10

QDRANT_CLIENTS = ("python-client/", "qdrant-js/")
QDRANT_VERSION = "1.20.0"

_snapshots = threading.BoundedSemaphore(MAX_SNAPSHOTS)
_describing = threading.Lock()


class Health(Reply):
    """The process is alive."""

    status: str


class ReadinessAnswer(Reply):
    """The state of the server; `failed` names collections that cannot be opened, with the error,
    and `rebuilt` those whose index was damaged, and was built again since they were opened;
    `precisions` are what encoders compute in, by use, as it was measured on this processor."""

    status: str
    failed: Mapping[str, str]
    rebuilt: Sequence[str] = ()
    precisions: Mapping[str, Any] | None = None


@administration.add("GET", "/metrics", media="text/plain")
def metrics() -> Response:
    """Give the figures of the server, as Prometheus reads them."""
    return Response(context().metrics.text(), content_type=MEDIA_TYPE)


@administration.add("POST", SNAPSHOT, media=TAR, reads=True, patience=10, also=(429,))
def take_snapshot(collection: str) -> Response:
    """Take a snapshot of a collection, and download it.

    It is of one moment, while others write. Restore it with PUT here, or with
    `attend import --snapshot`.
    """
    data = context().data
    name = collection_of(collection).name
    if data.read_only:
        folder = Path(tempfile.mkdtemp())
    else:  # where what killed processes leave is swept up
        folder = data.folder / f"making-{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
    try:
        with _one_of_few():
            contents = save_backup(data, folder / "snapshot.tar", [name])
        check_opened([name], contents.collections)
        file = open(folder / "snapshot.tar", "rb")  # noqa: SIM115 # the response closes it
    finally:
        # An open file stays until it is closed, whatever becomes of this process.
        shutil.rmtree(folder, ignore_errors=True)
    day = contents.created.replace(":", "")
    response = send_file(file, TAR, as_attachment=True, download_name=f"{name}-{day}.tar")
    response.content_length = file.seek(0, 2)
    file.seek(0)
    return response


@administration.add(
    "PUT", SNAPSHOT, upload=TAR, statuses=(201,), patience=20, also=(429,), exact=True, to_all=True
)
def restore_snapshot(collection: str) -> tuple[Restored, int]:
    """Make a collection of a snapshot of one, which may have had another name.

    It appears once all of it is read and proved to be what this program writes, within a minute;
    its index is built again. A snapshot has a limit of its own, --max-snapshot; a larger one is
    restored by `attend import --snapshot`, beside a running server.
    """
    if request.mimetype != TAR:
        raise UnsupportedMediaType(f"A snapshot is sent as {TAR}, not as {request.mimetype!r}.")
    data, limits = context().data, context().settings
    check_new_collection(data, collection, limits.max_collections)
    try:
        with _one_of_few():
            contents = restore_backup(
                request.stream,
                data,
                into=collection,
                limit=limits.max_snapshot_bytes,
                check_settings=_check_encoder,
            )
    # What a client sent is the client's to mend.
    except Damaged as error:
        raise InvalidRequest(str(error), field="body") from error
    return Restored(collection, contents.created, **dict(*contents.collections.values())), 201


def _check_encoder(settings: Settings) -> None:
    """Check that the encoder that a snapshot names may be used here, as where a request names it.

    Raises:
        InvalidRequest: it cannot be loaded, or gives embeddings of another width.
    """
    if settings.encoder is None:
        return
    check_encoder(settings.encoder, context().settings.allow_encoder, field="body")
    try:
        width = context().data.encoder(settings.encoder).dimension
    except EncoderError as error:
        raise InvalidRequest(str(error), field="body") from error
    if width != settings.dimension:
        raise InvalidRequest(
            f"The snapshot has embeddings of {settings.dimension} dimensions, but the encoder "
            f"{settings.encoder!r} gives {width} here; restore it where its encoder is.",
            field="body",
        )


@operations.add("GET", "/healthz", answer={"status": "alive"}, scope="open")
def health() -> Health:
    """Say that the process is alive."""
    return Health("alive")


@operations.add("GET", "/readyz", statuses=(200, 503), scope="open")
def readiness() -> tuple[ReadinessAnswer, int]:
    """Say whether to send requests here: 503 while collections are opened, and while stopping."""
    state, failed, data = context().readiness.state, context().readiness.failed, context().data
    answer = ReadinessAnswer(state, failed, data.rebuilt(), data.precisions())
    if context().keys.asks():  # names of collections are for those who have a key
        answer = ReadinessAnswer(state, {})
    return answer, 200 if state == "ready" else 503


@operations.add(
    "GET", "/v1/progress", answer={"state": "idle", "message": ""}, checks_collections=True
)
def show_progress() -> Work:
    """Show what another process does to the data, such as the demo while it indexes and trains.

    Trainings that this server runs are jobs, and are not shown here.
    """
    return shown_work()


@operations.add("GET", "/openapi.json", checks_collections=True)
def openapi_document() -> Response:
    """Give the OpenAPI document of all this."""
    return reply(_document())


@operations.add("GET", "/docs", html=True, checks_collections=True)
def docs() -> Response:
    """Show the OpenAPI document to a reader."""
    operations = list(context().operations.values())
    text = render_template(
        "docs.html",
        document=_document(),
        operations=operations,
        problems=KINDS,
        work=shown_work(),
    )
    return Response(text, content_type=f"{HTML}; charset=utf-8")


@operations.add("GET", "/", html=True, checks_collections=True)
def home() -> Response:
    """Show where to begin.

    A client of Qdrant learns the version of its API that is spoken at /collections.
    """
    if request.user_agent.string.startswith(QDRANT_CLIENTS):
        return reply({"title": "Attend, by Qdrant's API", "version": QDRANT_VERSION})
    names = visible(context().data.names())
    named = request.args.get("collection")
    name = named if named in names else first_collection(names)
    query = parse(PlainSearch, {"collection": name, "mode": "soft"})
    return search_page(query, None)


for view in (*VIEWS[1:], *LINKED):  # the first is a search's own page

    def show(view: PageView = view) -> Response:
        return page(view)

    show.__name__, show.__doc__ = f"{view.path[1:]}_page", f"Show the page: {view.summary}"
    operations.add("GET", view.path, html=True, checks_collections=True)(show)


def _document() -> dict[str, Any]:
    with _describing:  # readers at once wait for one document
        return described()


@cache
def described() -> dict[str, Any]:
    """Return the OpenAPI document, which takes a second to make, and is the same for everyone."""
    return openapi.document(context().operations.values())


@contextmanager
def _one_of_few() -> Iterator[None]:
    """Work on a snapshot, unless as many are worked on as the disk has room for.

    Raises:
        TooManyRequests: there are `MAX_SNAPSHOTS` already.
    """
    if not _snapshots.acquire(blocking=False):
        raise TooManyRequests(
            f"{MAX_SNAPSHOTS} snapshots are taken or restored already, which is the limit. Send "
            f"this again after {RETRY_SECONDS} s.",
            retry_after=RETRY_SECONDS,
        )
    try:
        yield
    finally:
        _snapshots.release()
