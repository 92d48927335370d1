"""`attend alias`."""

from __future__ import annotations

from pathlib import Path

import click

from attend.cli.common import on_library, open_data, show


@click.command("alias")
@click.argument("alias", required=False)
@click.argument("collection", required=False)
@on_library
@click.option("--delete", is_flag=True, help="Delete ALIAS; its collection stays.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def alias_command(
    alias: str | None, collection: str | None, folder: Path, delete: bool, as_json: bool
) -> None:
    """Let ALIAS stand for COLLECTION, in every process at once; without either, list all.

    \b
    Example:
      attend alias books books-2024 --data library
      attend alias --data library
    """
    if delete == (collection is not None) and alias is not None:
        raise click.UsageError("Give ALIAS with COLLECTION, or with --delete.")
    if delete and alias is None:
        raise click.UsageError("Give the ALIAS to delete.")
    data = open_data(folder)
    if alias is not None and collection is not None:
        data.set_alias(alias, collection)
    elif alias is not None:
        data.drop_alias(alias)
    found = data.aliases()
    lines = [f"{name}  {target}" for name, target in found.items()]
    show(as_json, {"aliases": found}, "\n".join(lines) or "There are no aliases.")
