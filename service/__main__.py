"""The command `python -m service`."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click

from service.server import CannotServe, Refused, ServerOptions, run
from service.settings import MEBIBYTE


@click.command(
    context_settings={"auto_envvar_prefix": "ATTEND", "show_default": True},
    epilog="Example: python -m service --data library --port 8000",
)
@click.option(
    "--data",
    "folder",
    required=True,
    envvar="ATTEND_DATA",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="The data folder.",
)
@click.option("--host", default="127.0.0.1", show_envvar=True, help="The address to listen on.")
@click.option(
    "--port",
    default=8000,
    type=click.IntRange(0, 65535),
    show_envvar=True,
    help="The port; 0 for any free one.",
)
@click.option(
    "--threads",
    default=8,
    type=click.IntRange(1, 256),
    show_envvar=True,
    help="Requests that are worked on at once.",
)
@click.option(
    "--max-body",
    default=64,
    type=click.IntRange(1, 1024),
    show_envvar=True,
    help="The largest request body, in MiB.",
)
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Listen on an address that other machines reach; there are no keys to ask for.",
)
@click.option(
    "--trusted-host",
    "trusted_hosts",
    multiple=True,
    help="A name in the Host header to answer to, besides the address itself; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as one line of JSON.")
def main(
    folder: Path,
    host: str,
    port: int,
    threads: int,
    max_body: int,
    allow_remote: bool,
    trusted_hosts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Serve the collections of a data folder over HTTP."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    options = ServerOptions(host, port, threads, max_body * MEBIBYTE, allow_remote, trusted_hosts)
    try:
        run(folder, options, lambda address: _announce(address, as_json))
    except Refused as error:
        raise click.UsageError(str(error)) from None
    except CannotServe as error:
        raise click.ClickException(str(error)) from None


def _announce(address: str, as_json: bool) -> None:
    click.echo(json.dumps({"address": address}) if as_json else f"Serving on {address}")


if __name__ == "__main__":
    main()
