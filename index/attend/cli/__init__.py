"""The command line: `attend build | search | evaluate | info | …`.

Results go to stdout, progress and warnings to stderr. Exit status: 0 success, 1 failure,
2 usage error, 3 success without some rows that could not be used, 130 interrupted.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Any

import click

from attend import __version__
from attend.cli.build import build_command
from attend.cli.configure import configure_command
from attend.cli.delete import delete_command, drop_command
from attend.cli.evaluate import evaluate_command
from attend.cli.exchange import export_command, import_command
from attend.cli.feedback import teach_command
from attend.cli.library import alias_command, info_command, projections_group, verify_command
from attend.cli.options import TARGET
from attend.cli.output import fail, interrupted
from attend.cli.reindex import reindex_command
from attend.cli.search import recommend_command, search_command
from attend.cli.train import train_command
from attend.core.errors import AttendError, UnknownCollection

__all__ = ["main"]


class Commands(click.Group):
    """A group whose commands fail with a sentence instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UnknownCollection as error:
            target = ctx.meta[TARGET]
            fail(UnknownCollection(f"{error} {target.advice()}"))
        except (AttendError, OSError, sqlite3.Error) as error:
            fail(error)
        except KeyboardInterrupt:
            interrupted("completed steps are stored, and everything else is unchanged.")


@click.group(cls=Commands, context_settings={"max_content_width": 100})
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


for command in (
    build_command,
    search_command,
    recommend_command,
    alias_command,
    evaluate_command,
    teach_command,
    train_command,
    info_command,
    configure_command,
    delete_command,
    drop_command,
    verify_command,
    reindex_command,
    projections_group,
    export_command,
    import_command,
):
    main.add_command(command)
