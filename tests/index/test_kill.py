"""`kill -9` in the middle of a build, again and again: nothing lost, nothing done twice.

Each attempt is the real command line in a process of its own, forked from a server that has
imported the libraries and used none of them, so that twenty take seconds and not minutes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from attend.build import WINDOW
from attend.cli import main
from tests.index.helpers import integrity, run_index, vector_data, write_jsonl

KILLS = 20
DOCUMENTS = 120 * WINDOW
"""Twice what twenty attempts get to store, so that a faster machine does not finish early."""

SEED = 20240229
HEAVY = ["attend.cli", "tests.index.test_kill", "sentence_transformers", "attend.encoder.forward"]


class Stored(NamedTuple):
    documents: int
    keys: int
    last_key: int
    removals: int
    incomplete: int


def build(arguments: list[str], log: Path) -> None:
    """The command line, with its output in a file."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        main(arguments, prog_name="attend")


def look(database: Path) -> Stored | None:
    """What is committed, by plain SQL; None before there is a collection."""
    if not database.exists():
        return None
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        row = db.execute(
            "SELECT (SELECT count(*) FROM documents), (SELECT count(*) FROM keys), "
            "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'keys'), 0), "
            "(SELECT count(*) FROM removals), (SELECT count(*) FROM documents "
            "WHERE (SELECT count(*) FROM keys WHERE document = row) <> 1)"
        ).fetchone()
    return Stored(*row)


def count(database: Path) -> int:
    found = look(database)
    return 0 if found is None else found.documents


def killed(server, arguments: list[str], log: Path, database: Path, rng: random.Random) -> str:
    """Start a build and kill it at a random moment.

    Mostly soon after its first to third batch was stored; one in four at any time from its
    start, when it may have opened nothing, or be reading what is stored already.
    """
    before = count(database)
    process = server.Process(target=build, args=(arguments, log))
    process.start()
    early = rng.random() < 0.25
    wanted = 0 if early else before + rng.randint(0, 2) * WINDOW + 1
    deadline = time.monotonic() + 60
    while count(database) < wanted and process.is_alive():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.3 if early else 0.02))
    alive = process.is_alive()
    process.kill()
    process.join()
    return "killed" if alive and process.exitcode == -9 else f"ended: {log.read_text()[-500:]}"


@pytest.fixture
def source(tmp_path) -> Path:
    rows = (
        {"id": f"d{n}", "text": f"text number {n} of many", "value": n} for n in range(DOCUMENTS)
    )
    return write_jsonl(tmp_path / "rows.jsonl", rows)


def test_twenty_kills_lose_nothing_and_repeat_nothing(tmp_path, source, tiny_encoder_folder):
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(HEAVY)
    rng = random.Random(SEED)
    folder = tmp_path / "data"
    database = folder / "collections" / "default" / "documents.db"
    arguments = ["build", str(source), "--data", str(folder), "--encoder", str(tiny_encoder_folder)]
    arguments += ["--id", "id", "--text", "text", "--value", "value"]
    counts = [0]
    for attempt in range(KILLS):
        outcome = killed(server, arguments, tmp_path / f"{attempt}.log", database, rng)
        assert outcome == "killed", f"attempt {attempt} {outcome}"
        stored = look(database) or Stored(0, 0, 0, 0, 0)
        assert stored.documents >= counts[-1]
        # Batches land whole, each document with its key, and no key was ever made again.
        assert stored.documents % WINDOW == 0
        assert stored.keys == stored.last_key == stored.documents
        assert (stored.removals, stored.incomplete) == (0, 0)
        counts.append(stored.documents)
    assert len(set(counts)) > KILLS / 2, counts
    assert counts[-1] < DOCUMENTS, "all was stored before the last kill"

    done = run_index(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["unchanged"] == counts[-1]
    assert result["encoded"] == result["added"] == DOCUMENTS - counts[-1]
    assert result["documents"] == result["keys"] == DOCUMENTS
    check_whole(folder)


def check_whole(folder: Path) -> None:
    collection = vector_data(folder).collection()
    assert integrity(collection.store) == []
    assert sorted(collection.store.all_ids()) == sorted(f"d{n}" for n in range(DOCUMENTS))
    stored = collection.store.scroll(0, DOCUMENTS)
    assert all(document.value == int(document.id[1:]) for document in stored)
    index = {"type": "flat", "exact": True, "published": 1, "keys": DOCUMENTS, "fresh": 0}
    assert collection.info().index.items() >= index.items()
    assert sorted(path.name for path in folder.iterdir()) == ["collections"]
