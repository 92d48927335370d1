"""A library on a server, for tests of whatever speaks to one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

from attend.collection.data import Data
from attend.connect.client import RemoteLibrary
from attend.encoder import SentenceEncoder
from attend_service.app import create_app
from attend_service.settings import ServerSettings


@contextmanager
def served(folder: Path, encoder: SentenceEncoder, **options: Any) -> Iterator[RemoteLibrary]:
    """A library on a server of a thread of this process, whose encoder is named tiny."""
    data = Data(folder, load_encoder=lambda name: encoder)
    app = create_app(data, ServerSettings(allow_encoder=("tiny",)))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with RemoteLibrary(f"http://127.0.0.1:{server.server_port}", **options) as library:
            library.behind = data  # type: ignore[attr-defined]
            yield library
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        data.close()


class Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Writes nothing: the requests of a test are in the test."""
