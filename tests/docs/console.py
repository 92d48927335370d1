"""The blocks of Python of one page, in one namespace: a line of JSON with code, then its output."""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any


def main() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            exec(compile(request["code"], request["name"], "exec"), namespace)
            status = 0
        except BaseException:
            traceback.print_exc()
            status = 1
        print(f"\n{request['mark']} {status}", flush=True)


if __name__ == "__main__":
    main()
