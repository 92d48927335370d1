"""The command `attend serve`: it serves, unless one of its other commands is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from attend_service import logs
from attend_service.configuration import in_force
from attend_service.flags import with_settings
from attend_service.listening import CannotServe, Refused, ServerOptions
from attend_service.security.command import keys
from attend_service.server import run
from attend_service.settings import MEBIBYTE


class Program(click.Group):
    """Commands, of which `serve` is meant where none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["serve", *args]
        return super().parse_args(ctx, args)


# Other commands register themselves here: main.add_command(…), at the end of this file.
main = Program("service", help="Serve the collections of a data folder over HTTP.")


@main.command(epilog="Example: attend serve --data library --port 8000")
@with_settings
@click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON.")
def serve(folder: Path, as_json: bool, config_path: Path | None, **settings: Any) -> None:
    """Serve the collections of a data folder over HTTP.

    There are other commands: `attend config` prints what is in force.
    """
    logs.configure(settings.pop("log_format"), settings.pop("log_level"))
    options = ServerOptions(**settings | {"max_body": settings["max_body"] * MEBIBYTE})
    try:
        run(folder, options, lambda address: _announce(address, as_json))
    except Refused as error:
        raise click.UsageError(str(error)) from None
    except CannotServe as error:
        raise click.ClickException(str(error)) from None


@main.command(epilog="Example: attend config --config attend.toml --port 8001")
@with_settings
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def config(context: click.Context, /, as_json: bool, **_settings: Any) -> None:
    """Print the settings that a server started in this way would have, and whence each is.

    A flag comes before the environment, that before the file, and the file before the default.
    """
    settings = in_force(context)
    if as_json:
        found = {each.name: {"value": each.value, "from": each.whence} for each in settings}
        click.echo(json.dumps(found))
        return
    width = max(len(each.name) for each in settings)
    for each in settings:
        click.echo(f"{each.name:<{width}} = {json.dumps(each.value)}  # {each.whence}")


for each in config.params:
    each.required = False  # what is not given anywhere is printed as null


def _announce(address: str, as_json: bool) -> None:
    click.echo(json.dumps({"address": address}) if as_json else f"Serving on {address}")


main.add_command(keys)

if __name__ == "__main__":
    main()
