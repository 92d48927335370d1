"""The demo and SciFact, whole, as the commands build them, but for a tiny encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from click.testing import CliRunner

from attend import DEFAULT_COLLECTION, Collection, Data
from attend.cli import main
from attend.projection import given
from attend_service import demo
from attend_service.docstrings import standard_library
from tests.places import DATA

SCIFACT = DATA / "scifact"


def build(folder: Path, encoder: str) -> None:
    """Both collections in a data folder, each with a second version to compare with."""
    arguments = ["build", str(SCIFACT), "--data", str(folder), "--collection", "scifact"]
    data = Data(folder)
    # Whole abstracts are a key each: to cut them into passages takes longer than all the rest.
    data.create("scifact", encoder=encoder, passages=False)
    data.close()
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    data = Data(folder)
    # The demo goes on with a collection that is there: so the encoder may be another one.
    data.create(DEFAULT_COLLECTION, encoder=encoder, values=demo.VALUES)
    demo.build(data.collection(), standard_library())
    for name in ("scifact", DEFAULT_COLLECTION):
        turned(data.collection(name))
    data.close()


def turned(made: Collection) -> None:
    """A version under which documents rank otherwise, and which does not answer yet."""
    width = made.settings.dimension
    moved = np.eye(width) + 0.15 * np.random.default_rng(5).standard_normal((width, width))
    made.add_projection(given(moved, np.eye(width), kind="learned"))
