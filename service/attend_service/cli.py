"""The commands of the server, `attend serve`, `attend config` and `attend keys`."""

from __future__ import annotations

import json
from typing import Any

import click

from attend.cli import main
from attend_service import logs
from attend_service.security.command import keys
from attend_service.server import CannotServe, NotAllowed, run
from attend_service.settings import given_flags, read_settings, with_settings


class Program(click.Group):
    """Commands, of which `serve` is meant where the first argument names none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["serve", *args]
        return super().parse_args(ctx, args)


server = Program("service", help="Serve the collections of a data folder over HTTP.")
"""The command `python -m service` of a checkout."""


@server.command(epilog="Example: attend serve --data library --port 8000")
@with_settings
@click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON.")
def serve(as_json: bool, **flags: Any) -> None:
    """Serve the collections of a data folder over HTTP.

    `attend config` prints the effective settings.
    """
    settings, _ = read_settings(given_flags(flags))
    if settings.data is None:
        raise click.UsageError("Missing option '--data': the folder to serve.")
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
    settings, sources = read_settings(given_flags(flags))
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


server.add_command(keys)
for command in (serve, config, keys):
    main.add_command(command)
