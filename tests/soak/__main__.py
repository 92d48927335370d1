"""`python -m tests.soak --minutes 10 --kills 200`, `python -m tests.soak --faults`, and beside them
`python -m tests.soak.heaviest`: the heaviest request of each route, 30 at once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from tests.soak.faults import run_cells, table
from tests.soak.soak import GROWTH, READY_SECONDS, run


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="Minutes of load.")
@click.option("--kills", default=200, show_default=True, help="Times that the server is killed.")
@click.option("--keys", default=100_000, show_default=True, help="Vectors that lie there.")
@click.option("--readers", default=8, show_default=True, help="Clients that search.")
@click.option("--seed", default=0, show_default=True, help="Of all that is drawn.")
@click.option("--faults", is_flag=True, help="Let each operation fail at each stage instead.")
@click.option("--each", type=int, help="With --faults: cells of each operation, drawn.")
@click.option("--only", default="", help="With --faults: a pattern of the operations' names.")
@click.pass_context
def main(context: click.Context, faults: bool, **options: Any) -> None:
    """Load a server for some minutes, then kill it under load again and again."""
    context.invoke(fail if faults else load, **options)


def fail(each: int | None, only: str, seed: int, **_: object) -> None:
    """Let operations fail at their stages."""
    with tempfile.TemporaryDirectory(prefix="attend-faults-") as folder:
        outcomes = run_cells(Path(folder), each=each, only=only, seed=seed, say=click.echo)
    wrong = sum(bool(outcome.wrong) for outcome in outcomes)
    click.echo(f"{table(outcomes)}\n{len(outcomes)} cells, {wrong} wrong")
    if wrong or not outcomes:
        raise click.ClickException("What is wrong stands above, by operation, fault and stage.")


def load(minutes: float, kills: int, keys: int, readers: int, seed: int, **_: object) -> None:
    """Load a server, then kill it under load."""
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
