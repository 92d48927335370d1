"""A server whose trainings end when the file `may-finish` appears in the data folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attend import Collection
from attend_service.server import run
from attend_service.settings import ServerSettings


def train(
    collection: Collection,
    *,
    progress: Callable[[str, float], None],
    cancelled: Callable[[], bool],
    **_fields: Any,
) -> Mapping[str, Any]:
    progress("fit", 0.5)
    while not (collection.folder.parent.parent / "may-finish").exists():
        if cancelled():
            raise InterruptedError
        time.sleep(0.01)
    return {"promoted": False, "reason": "It was let go."}


if __name__ == "__main__":
    run(
        Path(sys.argv[1]),
        ServerSettings(port=0, log_level="warning"),
        lambda text: print(text, flush=True),
        train,
    )
