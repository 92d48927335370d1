"""Indexing, training and searching open no connection: no download and no telemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.places import PACKAGES, ROOT

PROGRAM = """
import csv, sys
calls = []
NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
sys.addaudithook(lambda event, details: event in NETWORK and calls.append((event, details)))
import attend
from attend.learning import train
import attend_service.cli

desk = attend.open("library").create("desk", values="category")
rows = csv.DictReader(open(sys.argv[1]))
desk.upsert([{"id": row["id"], "text": row["text"], "value": row["intent"]} for row in rows])
assert train(desk, objective="answers")["promoted"]
assert desk.search("they took the money twice", mode="soft").answer["value"] == "billing"
assert not desk.search("what is the boiling point of tungsten?").answered
print(calls)
"""


def test_no_connection_is_opened(tmp_path: Path) -> None:
    # As on a user's machine, where no variable says that there is no network.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "examples" / "intents.csv")],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": os.pathsep.join(map(str, PACKAGES))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
