"""The command `python -m service`: it serves, unless one of its other commands is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from service import logs
from service.configuration import config_file, in_force, setting
from service.security.command import keys
from service.server import CannotServe, Refused, ServerOptions, run
from service.settings import MEBIBYTE

Command = TypeVar("Command", bound=Callable[..., Any])


class Program(click.Group):
    """Commands, of which `serve` is meant where none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["serve", *args]
        return super().parse_args(ctx, args)


# Other commands register themselves here: main.add_command(…), at the end of this file.
main = Program("service", help="Serve the collections of a data folder over HTTP.")

SETTINGS = (
    config_file,
    setting(
        "--data", "folder", required=True, type=click.Path(path_type=Path), help="The data folder."
    ),
    setting("--host", default="127.0.0.1", help="The address to listen on."),
    setting(
        "--port", default=8000, type=click.IntRange(0, 65535), help="The port; 0 for any free one."
    ),
    setting(
        "--threads",
        default=ServerOptions.threads,
        type=click.IntRange(1, 256),
        help="Requests that are worked on at once.",
    ),
    setting(
        "--queue",
        default=ServerOptions.queue,
        type=click.IntRange(0, 1000),
        help="Requests that may wait for a thread; others are answered 429.",
    ),
    setting(
        "--cache-mib",
        default=ServerOptions.cache_mib,
        type=click.IntRange(0, 65536),
        help="Memory for the embeddings of queries asked before, in MiB; 0 for none.",
    ),
    setting(
        "--max-body",
        default=64,
        type=click.IntRange(1, 1024),
        help="The largest request body, in MiB.",
    ),
    setting(
        "--allow-remote-without-keys",
        "--allow-remote",
        "allow_remote",
        is_flag=True,
        help="Let other machines do everything, where --host is theirs to reach and there are no "
        "keys to ask for.",
    ),
    setting(
        "--require-keys",
        is_flag=True,
        help="Ask for a key even while there are none, as behind a proxy.",
    ),
    setting(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        help="An origin, https://example.org, whose pages may read and write; may be repeated.",
    ),
    setting(
        "--max-collections",
        default=1000,
        type=click.IntRange(1, 100_000),
        help="Collections that clients may make.",
    ),
    setting(
        "--read-only",
        is_flag=True,
        help="Write nothing: the folder may be one that cannot be written to.",
    ),
    setting(
        "--log-format",
        default="text",
        type=click.Choice(logs.FORMATS),
        help="What a line on stderr looks like.",
    ),
    setting(
        "--log-level",
        default="info",
        type=click.Choice(logs.LEVELS),
        help="The least that is logged; requests are info.",
    ),
    setting(
        "--log-texts",
        is_flag=True,
        help="Also log what is sent: paths, parameters and bodies; else routes only.",
    ),
    setting(
        "--trusted-host",
        "trusted_hosts",
        multiple=True,
        help="A name in the Host header to answer to, besides the address itself; may be repeated.",
    ),
)
"""What a server can be told, by flag, environment or file; `serve` and `config` share them."""


def with_settings(command: Command) -> Command:
    for each in reversed(SETTINGS):
        command = each(command)
    return command


@main.command(epilog="Example: python -m service --data library --port 8000")
@with_settings
@click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON.")
def serve(folder: Path, as_json: bool, config_path: Path | None, **settings: Any) -> None:
    """Serve the collections of a data folder over HTTP.

    There are other commands: `python -m service config` prints what is in force.
    """
    logs.configure(settings.pop("log_format"), settings.pop("log_level"))
    options = ServerOptions(**settings | {"max_body": settings["max_body"] * MEBIBYTE})
    try:
        run(folder, options, lambda address: _announce(address, as_json))
    except Refused as error:
        raise click.UsageError(str(error)) from None
    except CannotServe as error:
        raise click.ClickException(str(error)) from None


@main.command(epilog="Example: python -m service config --config attend.toml --port 8001")
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
