"""The command `attend keys`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from attend.api.base import NAME_PATTERN
from attend.cli.output import table
from attend.core.errors import AttendError
from attend_service.security.keys import SCOPES, ApiKey, KeyFile, Scope

UNITS = {"h": "hours", "d": "days", "w": "weeks"}
MAX_NAME = 100

on_folder = click.option(
    "--data",
    "folder",
    required=True,
    envvar="ATTEND_DATA",
    show_envvar=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The data folder.",
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(epilog="Example: attend keys list --data library")
def keys() -> None:
    """Make, list and remove API keys; running servers follow at once."""


def _expiry(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    spelled = re.fullmatch(r"(\d{1,4})([hdw])", text)
    if spelled:
        return datetime.now(UTC) + timedelta(**{UNITS[spelled[2]]: int(spelled[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; give 12h, 30d, 8w, or a date such as 2030-12-31."
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment <= datetime.now(UTC):
        raise click.BadParameter(f"{text!r} is past: the key would open nothing.")
    return moment


def _names(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    for name in values:
        if not re.fullmatch(NAME_PATTERN, name):
            raise click.BadParameter(f"{name[:80]!r} is no collection name.")
    return values


def _label(_context: click.Context, _option: click.Parameter, text: str) -> str:
    if len(text) > MAX_NAME or not text.isprintable():
        raise click.BadParameter(f"up to {MAX_NAME} printable characters were expected.")
    return text


@keys.command(epilog="Example: attend keys add --data library --scope write --collection books")
@on_folder
@click.option("--name", default="", callback=_label, help="For whom or what it is.")
@click.option(
    "--scope",
    type=click.Choice(SCOPES),
    default="read",
    show_default=True,
    help="read: search and look; write: documents and feedback too; admin: everything.",
)
@click.option(
    "--collection",
    "collections",
    multiple=True,
    callback=_names,
    help="A collection that the key may access, which need not exist yet. Default: all.",
)
@click.option("--expires", callback=_expiry, help="When it ends: 12h, 30d, 8w, or a date.")
@as_json_option
def add(
    folder: Path,
    name: str,
    scope: Scope,
    collections: tuple[str, ...],
    expires: datetime | None,
    as_json: bool,
) -> None:
    """Make a key and print it, this once: only its hash is stored."""
    try:
        new = KeyFile(folder).add(name, scope, collections, expires)
    except AttendError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({**_shown(new.key), "key": new.text}))
        return
    click.echo(new.text)
    click.echo(f"{_sentence(new.key)}. It is not shown again.", err=True)


@keys.command("list", epilog="Example: attend keys list --data library")
@on_folder
@as_json_option
def list_keys(folder: Path, as_json: bool) -> None:
    """List the keys, without their secrets."""
    try:
        stored = KeyFile(folder).all()
    except AttendError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({"keys": [_shown(key) for key in stored]}))
        return
    if stored:
        header = ("id", "scope", "collections", "expires", "name")
        click.echo(table([header, *map(_cells, stored)]))
    else:
        click.echo("There are no keys: whoever reaches the server may do everything.", err=True)


@keys.command(epilog="Example: attend keys remove 3f9a0c52b1de --data library")
@click.argument("id")
@on_folder
@as_json_option
def remove(id: str, folder: Path, as_json: bool) -> None:
    """Remove a key; the next request that is sent with it is refused."""
    file = KeyFile(folder)
    try:
        removed = file.remove(id)
        left = len(file.all())
    except AttendError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({"removed": removed.id, "left": left}))
    elif left == 0:
        click.echo(
            "Removed. No key is left: servers that run go on asking for one, and those started "
            "from now on do not (--require-keys makes them)."
        )
    else:
        click.echo("Removed.")


def _shown(key: ApiKey) -> dict[str, Any]:
    return {name: value for name, value in asdict(key).items() if name not in ("salt", "hash")}


def _cells(key: ApiKey) -> tuple[str, ...]:
    opens = "all" if key.collections is None else ", ".join(key.collections)
    expires = "never" if key.expires is None else str(key.expires)
    return key.id, key.scope, opens, f"{expires} (expired)" if key.is_over() else expires, key.name


def _sentence(key: ApiKey) -> str:
    opens = "all collections" if key.collections is None else ", ".join(key.collections)
    until = f", {'over since' if key.is_over() else 'until'} {key.expires}" if key.expires else ""
    return f"{key.id}  {key.scope:<5}  {opens}{until}{f'  ({key.name})' if key.name else ''}"
