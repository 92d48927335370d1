"""The command line: `attend build | search | evaluate | info | …`.

Results go to stdout, progress and warnings to stderr. Exit status: 0 success, 1 failure,
2 usage error, 3 success without some rows that could not be used, 130 interrupted.

A command's module is imported when the command is called: the list of commands takes no library
but click.
"""

from __future__ import annotations

import atexit
import gc
import logging
import sqlite3
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

import click

from attend import __version__
from attend.core.errors import AttendError, UnknownCollection

__all__ = ["Commands", "main"]

TARGET = "attend.target"
"""The key of a command's target in the data that contexts of click share."""

INTERRUPTED = 130
"""128 and the number of SIGINT: the exit status of a program that Ctrl-C ended."""

COMMANDS = {
    "alias": ("attend.cli.library", "Point a name at a collection, in every process at once."),
    "build": ("attend.cli.build", "Read documents from files and index what changed."),
    "compare": ("attend.cli.search", "Compare two versions, by feedback or by use."),
    "configure": ("attend.cli.build", "Change settings of a collection, without its source."),
    "delete": ("attend.cli.library", "Delete documents by their ids or by a filter."),
    "drop": ("attend.cli.library", "Delete a collection with all that it has learned."),
    "evaluate": ("attend.cli.search", "Measure rankings, or compare two versions."),
    "export": ("attend.cli.build", "Write matrices, documents or a backup."),
    "import": ("attend.cli.build", "Store W_Q and W_K of others, or restore a backup."),
    "info": ("attend.cli.library", "Print the contents and settings of a collection."),
    "mcp": ("attend.cli.library", "Let language models search a library, over MCP."),
    "projections": ("attend.cli.library", "List, activate, fit and add versions of W_Q and W_K."),
    "recommend": ("attend.cli.search", "Recommend what may come next after some documents."),
    "reindex": ("attend.cli.library", "Change the encoder while searches go on."),
    "search": ("attend.cli.search", "Search documents."),
    "teach": ("attend.cli.learning", "Add feedback: labels, clicks, ratings, interactions."),
    "train": ("attend.cli.learning", "Learn W_Q and W_K, and activate them if they are better."),
    "verify": ("attend.cli.library", "Check databases and indexes, and repair them."),
}
"""The module of each command, and what it does, for the list of commands."""


class Commands(click.Group):
    """A group whose commands fail with a sentence instead of a traceback.

    Attributes:
        later: commands that are imported when they are called: their modules, and what they do.
    """

    def __init__(
        self, *given: Any, later: Mapping[str, tuple[str, str]] = {}, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self.later = dict(later)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.later})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in self.later and name not in self.commands:
            import_module(self.later[name][0])  # it adds the command
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.later:
            with formatter.section("Commands"):
                formatter.write_dl([(name, does) for name, (_, does) in sorted(self.later.items())])
        else:
            super().format_commands(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UnknownCollection as error:
            fail(UnknownCollection(f"{error} {ctx.meta[TARGET].advice()}"))
        except (AttendError, OSError, sqlite3.Error) as error:
            fail(error)
        except KeyboardInterrupt:
            interrupted("completed steps are stored, and everything else is unchanged.")


@click.group(cls=Commands, later=COMMANDS, context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="attend")
def main() -> None:
    """Find documents by their meaning, answer with their values, and learn from feedback.

    Begin with `build`, `search` and `serve`; the folder of --data has everything that is stored.

    Exit status: 0 success, 1 failure, 2 usage error, 3 done, but some rows were rejected,
    130 interrupted.

    \b
    Example:
      attend build books.csv --data library
      attend search "a whale hunt" --data library
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    # To look for garbage in all modules once more, at the end, takes torch half a second.
    atexit.register(gc.freeze)


def fail(error: Exception) -> NoReturn:
    """Print an error's sentence and exit with status 1."""
    click.echo(f"Error: {error}", err=True)
    sys.exit(1)


def interrupted(state: str) -> NoReturn:
    """Print the state after Ctrl-C and exit."""
    click.echo(f"Interrupted: {state}", err=True)
    sys.exit(INTERRUPTED)
