"""The commands of the server, `attend serve`, `attend config` and `attend keys`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from attend.api.base import NAME_PATTERN
from attend.cli import Commands, main
from attend.cli.common import table
from attend_service import logs
from attend_service.keys import SCOPES, ApiKey, KeyFile, Scope
from attend_service.server import CannotServe, NotAllowed, run
from attend_service.settings import read_settings, with_settings


class Program(click.Group):
    """Commands, of which `serve` is meant where the first argument names none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if is_named else ["serve", *args])


server = Program("service", help="Serve the collections of a data folder over HTTP.")
"""The command `python -m service` of a checkout."""


@server.command(epilog="Example: attend serve --data library --port 8000")
@with_settings
@click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON.")
def serve(as_json: bool, **flags: Any) -> None:
    """Serve the collections of a data folder over HTTP.

    `attend config` prints the effective settings.
    """
    settings, _ = read_settings(flags)
    if settings.data is None:
        raise click.UsageError("Missing option '--data': the folder to serve.")
    if settings.otel and not (find_spec("opentelemetry") and find_spec("opentelemetry.exporter")):
        raise click.ClickException(
            "Tracing needs OpenTelemetry, the extra 'otel'. Install it with: pip install "
            "'attend-retrieval[otel]'."
        )
    logs.configure(settings.log_format, settings.log_level)

    def announce(address: str) -> None:
        click.echo(json.dumps({"address": address}) if as_json else f"Serving on {address}")

    try:
        run(settings.data, settings, announce)
    except NotAllowed as error:
        raise click.UsageError(str(error)) from None
    except CannotServe as error:
        raise click.ClickException(str(error)) from None


@server.command(epilog="Example: attend config --config attend.toml --port 8001")
@with_settings
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def config(as_json: bool, **flags: Any) -> None:
    """Print the settings that `attend serve` with the same flags would have, with their sources.

    A flag comes before the environment, that before the file, and the file before the default.
    """
    settings, sources = read_settings(flags)
    values = {
        name.replace("_", "-"): value for name, value in settings.model_dump(mode="json").items()
    }
    named = zip(values, values.values(), sources.values(), strict=True)
    if as_json:
        click.echo(json.dumps({name: {"value": v, "from": source} for name, v, source in named}))
        return
    width = max(map(len, values))
    for name, value, source in named:
        click.echo(f"{name:<{width}} = {json.dumps(value)}  # {source}")


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


@click.group(cls=Commands, epilog="Example: attend keys list --data library")
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


def _names(_: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
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
    key, text = KeyFile(folder).add(name, scope, collections, expires)
    if as_json:
        click.echo(json.dumps({**_shown(key), "key": text}))
        return
    opens = "all collections" if key.collections is None else ", ".join(key.collections)
    until = f", {'over since' if key.is_over() else 'until'} {key.expires}" if key.expires else ""
    named = f"  ({name})" if name else ""
    click.echo(text)
    click.echo(f"{key.id}  {scope:<5}  {opens}{until}{named}. It is not shown again.", err=True)


@keys.command("list", epilog="Example: attend keys list --data library")
@on_folder
@as_json_option
def list_keys(folder: Path, as_json: bool) -> None:
    """List the keys, without their secrets."""
    stored = KeyFile(folder).all()
    if as_json:
        click.echo(json.dumps({"keys": [_shown(key) for key in stored]}))
        return
    if not stored:
        click.echo("There are no keys: whoever reaches the server may do everything.", err=True)
        return
    rows = [("id", "scope", "collections", "expires", "name")]
    for key in stored:
        opens = "all" if key.collections is None else ", ".join(key.collections)
        expires = f"{key.expires or 'never'}{' (expired)' if key.is_over() else ''}"
        rows.append((key.id, key.scope, opens, expires, key.name))
    click.echo(table(rows))


@keys.command(epilog="Example: attend keys remove 3f9a0c52b1de --data library")
@click.argument("id")
@on_folder
@as_json_option
def remove(id: str, folder: Path, as_json: bool) -> None:
    """Remove a key; the next request that is sent with it is refused."""
    file = KeyFile(folder)
    removed = file.remove(id)
    left = len(file.all())
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


server.add_command(keys)
for command in (serve, config, keys):
    main.add_command(command)
