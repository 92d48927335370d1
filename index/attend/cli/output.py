"""Output of commands: problems, progress bars, tables, questions, and how a command ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

import click
from tqdm import tqdm

from attend.core.progress import Bar as Bar  # commands take it from here
from attend.core.types import Json
from attend.source import RowProblem

SHOWN_PROBLEMS = 20
"""Problems printed one by one; a file of an unexpected kind has one in every row."""

REJECTED = 3
"""The exit status of a command that did its work, but could not use every row."""

INTERRUPTED = 130
"""128 and the number of SIGINT: the exit status of a program that Ctrl-C ended."""


def quoted(text: str) -> str:
    """Quote the beginning of a text for an error.

    >>> quoted("[1, 2")
    "'[1, 2'"
    """
    return repr(text if len(text) <= 40 else f"{text[:39]}…")


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def fail(error: Exception) -> NoReturn:
    """Print an error's sentence and exit with status 1."""
    click.echo(f"Error: {error}", err=True)
    sys.exit(1)


def interrupted(state: str) -> NoReturn:
    """Print the state after Ctrl-C and exit."""
    click.echo(f"Interrupted: {state}", err=True)
    sys.exit(INTERRUPTED)


def end(rejected: int) -> None:
    """Exit with status 3 if rows were rejected; the result was printed before."""
    if rejected:
        sys.exit(REJECTED)


def confirm(question: str, yes: bool) -> None:
    """Ask before data is lost, and exit with status 1 without a yes.

    Args:
        yes: the option --yes, which answers the question.
    """
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # nobody is there to answer
        click.echo(err=True)
        agreed = False
    if not agreed:
        click.echo("Nothing was deleted. Add --yes to delete without this question.", err=True)
        sys.exit(1)


class Problems:
    """Prints the first rows that cannot be used and every notice, and counts the rows."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, problem: RowProblem) -> None:
        self._count += problem.rejects
        if self._count <= SHOWN_PROBLEMS or not problem.rejects:
            tqdm.write(str(problem), file=sys.stderr)

    def summary(self) -> None:
        """Print the number of rows, if there are any."""
        if self._count:
            click.echo(f"{counted(self._count, 'row')} could not be used.", err=True)


def plain(value: Json) -> str:
    """Write a value for a person: no quotes around texts, and words for null and booleans.

    >>> [plain(value) for value in (None, True, 0.95, "dot", ["a", "b"], {"n": 1})]
    ['-', 'yes', '0.95', 'dot', 'a, b', '{"n": 1}']
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "-"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def rounded(value: Json) -> Json:
    """Round the numbers of an answer for a person; the small ones keep three digits.

    >>> rounded({"value": "a", "distribution": {"a": 0.8948027375074997, "b": 0.0001234567}})
    {'value': 'a', 'distribution': {'a': 0.895, 'b': 0.000123}}
    """
    if isinstance(value, float):
        return round(value, 3) or float(f"{value:.3g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def table(rows: Iterable[Sequence[object]], *, right: bool = False) -> str:
    """Align columns to the left; with `right`, all but the first to the right."""
    cells = [list(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if right and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)
