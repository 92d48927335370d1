"""`python -m tests.soak --minutes 10 --kills 200`"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from tests.soak.soak import GROWTH, READY_SECONDS, run


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="Minutes of load.")
@click.option("--kills", default=200, show_default=True, help="Times that the server is killed.")
@click.option("--keys", default=100_000, show_default=True, help="Vectors that lie there.")
@click.option("--readers", default=8, show_default=True, help="Clients that search.")
@click.option("--seed", default=0, show_default=True, help="Of all that is drawn.")
def main(minutes: float, kills: int, keys: int, readers: int, seed: int) -> None:
    """Load a server for some minutes, then kill it under load again and again."""
    with tempfile.TemporaryDirectory(prefix="attend-soak-") as folder:
        report = run(
            Path(folder), minutes=minutes, kills=kills, keys=keys, readers=readers, seed=seed
        )
    click.echo(report.told())
    if report.grown() > GROWTH or report.slowest_start() > READY_SECONDS:
        raise click.ClickException(
            f"Memory may grow to {GROWTH:g} of minute 2, and a start may take {READY_SECONDS:g} s."
        )


if __name__ == "__main__":
    main()
