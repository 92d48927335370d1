"""The process of one training: `python -m attend_service.jobs.child`.

It reads what to do from stdin, one line of JSON, and then `cancel`, if that comes; it writes JSON
lines to stdout: how far it is, and at the end the result or the error. Where stdin ends, its
server has ended, and so does it.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

import orjson

from attend import Data
from attend.errors import AttendError
from attend.training import train

NICE = 5
"""How far a training stands back behind searches, as `nice` has it."""


def main() -> None:
    os.nice(NICE)
    given = sys.stdin.buffer
    # What a library prints must not stand among the lines.
    told = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asked = orjson.loads(given.readline())
    cancelled = threading.Event()
    threading.Thread(target=_listen, args=[given, cancelled], daemon=True).start()
    _tell(told, _outcome(asked, told, cancelled))


def _listen(given: IO[bytes], cancelled: threading.Event) -> None:
    for _ in given:
        cancelled.set()
    # Nobody is there any more who could be told how this ends.
    os._exit(1)


def _outcome(asked: dict[str, Any], told: IO[bytes], cancelled: threading.Event) -> dict[str, Any]:
    data = Data(Path(asked["folder"]))
    try:
        report = train(
            data.collection(asked["collection"]),
            progress=lambda stage, fraction: _tell(told, {"stage": stage, "fraction": fraction}),
            cancelled=cancelled.is_set,
            **asked["fields"],
        )
    except AttendError as error:
        kinds = [each.__name__ for each in type(error).__mro__]
        details = list(error.details)
        return {"error": kinds, "says": str(error), "field": error.field, "details": details}
    except Exception:
        return {"error": [], "says": traceback.format_exc()}
    finally:
        data.close()
    return {"result": report}


def _tell(told: IO[bytes], content: dict[str, Any]) -> None:
    options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    told.write(orjson.dumps(content, option=options))
    told.flush()


if __name__ == "__main__":
    main()
