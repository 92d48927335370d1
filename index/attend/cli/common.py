"""What all commands share: their options, their output, and how they fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from tqdm import tqdm

from attend.api.base import DEFAULT_COLLECTION
from attend.collection import Collection
from attend.data import Data
from attend.encoder import load
from attend.engines import SCHEME
from attend.source import RowProblem

Command = TypeVar("Command", bound=Callable[..., Any])

SHOWN_PROBLEMS = 20
"""Problems told one by one; a file of another kind than expected has one in every row."""

INTERRUPTED = 130
"""128 and the number of SIGINT: what shells say of a program that Ctrl-C ended."""

ENGINE = "attend.engine"
"""Under which a command's context has the address of the engine."""

PRECISIONS = click.Choice(["auto", "bfloat16", "float32"])


def _remember_engine(
    context: click.Context, _option: click.Parameter, given: str | None
) -> str | None:
    if given is not None and not given.startswith(SCHEME):
        raise click.BadParameter(f"{given!r} is no address such as {SCHEME}127.0.0.1:19530.")
    context.meta[ENGINE] = given
    return given


def _needs_folder(
    context: click.Context, option: click.Parameter, given: Path | None
) -> Path | None:
    if given is None and context.meta.get(ENGINE) is None:
        raise click.MissingParameter(ctx=context, param=option)
    return given


def on_library(command: Command) -> Command:
    """The options by which a command finds its library: a folder, or another engine."""
    options = (
        click.option(
            "--engine",
            metavar="URL",
            envvar="ATTEND_ENGINE",
            show_envvar=True,
            is_eager=True,  # with it there need be no folder
            expose_value=False,
            callback=_remember_engine,
            help="Where collections live instead: milvus://HOST:PORT/LIBRARY.",
        ),
        click.option(
            "--data",
            "folder",
            type=click.Path(file_okay=False, path_type=Path),
            callback=_needs_folder,
            help="The data folder.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def on_collection(command: Command) -> Command:
    """The options by which a command finds its collection, and --json."""
    options = (
        on_library,
        click.option(
            "--collection", default=DEFAULT_COLLECTION, show_default=True, help="Its name."
        ),
        click.option(
            "--precision",
            type=PRECISIONS,
            default="auto",
            help="Of the encoder; auto takes bfloat16 where the CPU has instructions for it.",
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def open_data(folder: Path | None, precision: str = "auto") -> Data:
    """The library at the folder or engine that the command names."""
    engine = click.get_current_context().meta.get(ENGINE)
    where = folder or engine or ""
    loads = partial(load, precision=precision)  # type: ignore[arg-type]
    return Data(where, load_encoder=loads, engine=engine)


def open_collection(folder: Path | None, name: str, precision: str) -> Collection:
    return open_data(folder, precision).collection(name)


def show(as_json: bool, result: dict[str, Any], text: str) -> None:
    """The result, for a program or for a person."""
    click.echo(json.dumps(result, ensure_ascii=False) if as_json else text)


def fail(error: Exception) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    sys.exit(1)


def interrupted(state: str) -> NoReturn:
    """End after Ctrl-C, and say how things stand."""
    click.echo(f"Interrupted: {state}", err=True)
    sys.exit(INTERRUPTED)


class Problems:
    """Tells the first rows that cannot be used and counts them all; tells every notice."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, problem: RowProblem) -> None:
        self._count += problem.rejects
        if self._count <= SHOWN_PROBLEMS or not problem.rejects:
            tqdm.write(str(problem), file=sys.stderr)

    def summary(self) -> None:
        if self._count:
            click.echo(f"{self._count} rows could not be used.", err=True)


class Bar:
    """A bar on stderr with the stage of what goes on; called with it and the share done, 0 to 1."""

    def __init__(self) -> None:
        # Stages have no common unit: a share is all there is to count.
        shape = "{desc}{percentage:3.0f}%|{bar}| {elapsed}"
        self._bar = tqdm(total=1.0, bar_format=shape, file=sys.stderr)
        self._told: tuple[str, int] | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._bar.close()

    def __call__(self, stage: str, fraction: float) -> None:
        done = min(max(fraction, 0.0), 1.0)
        told = stage, int(100 * done)
        if told == self._told:  # a training tells thousands of steps, and a log keeps every line
            return
        self._told = told
        self._bar.set_description(stage, refresh=False)
        self._bar.n = done
        self._bar.refresh()


def table(rows: list[tuple[str, object]]) -> str:
    """Names and figures, aligned."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
