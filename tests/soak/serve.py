"""The server with a stand-in for trainings: it learns a rotation, which changes no answer.

W_Q = W_K = R with RᵀR = I leaves every cosine as it is, and yet keys and queries are other
numbers: an answer that mixes two versions is plainly wrong. Keys are normalised after W_K, so
that they must be made anew, all of them, before the version answers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from attend import Collection, encoder
from attend.encoder import Encoder
from attend.projection import given
from attend_service.jobs import train_in_process
from attend_service.server import run
from attend_service.settings import ServerSettings
from tests.soak.client import LOADED

REAL = 1
"""The seed with which a training is asked to be a real one."""


def rotate(collection: Collection, *, progress: Any, cancelled: Any, **fields: Any) -> Mapping:
    """Activate a random rotation; with the seed `REAL` train, and activate nothing."""
    if fields.get("seed") == REAL:
        return train_in_process(collection, progress=progress, cancelled=cancelled, **fields)
    progress("fit", 0.5)
    random = np.random.default_rng()
    width = collection.settings.dimension
    matrix, _ = np.linalg.qr(random.standard_normal((width, width)))
    made = given(matrix, matrix, normalize_queries=True, normalize_keys=True)
    collection.activate(collection.add_projection(made))
    return {"promoted": True, "reason": "Nothing was learned, and everything was turned."}


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--port", type=int)
@click.option("--json", is_flag=True)
def main(data: Path, port: int, json: bool) -> None:
    """As `python -m service --json`."""
    run(
        data,
        ServerSettings(port=port, log_level="warning", allow_encoder=(str(data.parent / "model"),)),
        _announce,
        trainer=rotate,
    )


def _timed(load: Callable[..., Encoder]) -> Callable[..., Encoder]:
    """Says on stderr how long the loading of an encoder took."""

    def loaded(*arguments: Any, **options: Any) -> Encoder:
        began = time.monotonic()
        try:
            return load(*arguments, **options)
        finally:
            print(f"{LOADED} {time.monotonic() - began:.3f}", file=sys.stderr, flush=True)

    return loaded


# The worker processes import this module, and load the encoders; so does a test, beside others.
if __name__ in ("__main__", "__mp_main__"):
    encoder.load = _timed(encoder.load)


def _announce(address: str) -> None:
    sys.stdout.write(f'{{"address": "{address}"}}\n')
    sys.stdout.flush()


if __name__ == "__main__":
    main()
