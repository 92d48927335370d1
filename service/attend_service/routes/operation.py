"""What who runs the server needs: figures, and snapshots."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, cast

from flask import Response, current_app, request, send_file
from werkzeug.exceptions import UnsupportedMediaType

from attend import Data
from attend.errors import Damaged, InvalidRequest
from attend.exchange import restore_backup, save_backup
from attend_service.context import context
from attend_service.metrics import MEDIA_TYPE, metrics_of
from attend_service.operations import Operations
from attend_service.replies import reply
from attend_service.schemas.stored import RestoredReply
from attend_service.security.limits import check_new_collection

operations = Operations("Operation")

SNAPSHOT = "/v1/collections/{collection}/snapshot"
TAR = "application/x-tar"


@operations.add("GET", "/metrics", returns={200: None}, media="text/plain")
def metrics() -> Response:
    """Give the figures of the server, as Prometheus reads them."""
    return Response(metrics_of(current_app).text(), content_type=MEDIA_TYPE)


@operations.add("POST", SNAPSHOT, returns={200: None}, media=TAR, reads=True)
def take_snapshot(collection: str) -> Response:
    """Take a snapshot of a collection, and download it.

    It is of one moment, while others write. Restore it with PUT here, or with
    `attend import --snapshot`.
    """
    data = context().data
    name = data.collection(collection).name
    folder = _staging(data)
    try:
        contents = save_backup(data, folder / "snapshot.tar", [name])
        file = open(folder / "snapshot.tar", "rb")  # noqa: SIM115 # the response closes it
    finally:
        # An open file stays until it is closed, whatever becomes of this process.
        shutil.rmtree(folder, ignore_errors=True)
    day = contents.created.replace(":", "")
    response = send_file(file, TAR, as_attachment=True, download_name=f"{name}-{day}.tar")
    response.content_length = file.seek(0, 2)
    file.seek(0)
    return response


@operations.add("PUT", SNAPSHOT, upload=TAR, returns={201: RestoredReply})
def restore_snapshot(collection: str) -> Response:
    """Make a collection of a snapshot of one, which may have had another name.

    It is seen once all of it was read and checked; its index is made anew. What exceeds the limit
    on bodies is restored by `attend import --snapshot`, beside a running server.
    """
    if request.mimetype != TAR:
        raise UnsupportedMediaType(f"A snapshot is sent as {TAR}, not as {request.mimetype!r}.")
    data = context().data
    check_new_collection(data, collection, context().settings.max_collections)
    try:
        contents = restore_backup(
            cast(BinaryIO, request.stream), data, into=collection, indexes=False
        )
    # What a client sent is the client's to mend.
    except Damaged as error:
        raise InvalidRequest(str(error), field="body") from error
    figures: dict[str, Any] = {"name": collection, "created": contents.created}
    return reply(figures | dict(*contents.collections.values()), 201)


def _staging(data: Data) -> Path:
    """A folder for a moment: where killed processes' leftovers are swept up, if it may be there."""
    if data.read_only:
        return Path(tempfile.mkdtemp())
    folder = data.folder / f"making-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    return folder
