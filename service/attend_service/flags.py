"""What a server can be told on the command line, in the environment or in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from attend_service import logs
from attend_service.configuration import config_file, setting
from attend_service.listening import ServerOptions

Command = TypeVar("Command", bound=Callable[..., Any])

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
        "--engine",
        metavar="URL",
        help="Where collections live instead of the folder: milvus://HOST:PORT/LIBRARY. The folder "
        "then keeps what is this server's own: keys of access.",
    ),
    setting(
        "--processes",
        default=ServerOptions.processes,
        type=click.IntRange(1, 64),
        help="Processes that serve side by side, one for each core at best; each has a model, "
        "threads and a queue of its own.",
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
        "--picture-origin",
        "picture_origins",
        multiple=True,
        help="An origin, https://example.org, from which pages show the pictures that documents "
        "name; it learns who looks at them. May be repeated.",
    ),
    setting(
        "--max-collections",
        default=1000,
        type=click.IntRange(1, 100_000),
        help="Collections that clients may make.",
    ),
    setting(
        "--recall",
        default=ServerOptions.recall,
        type=click.FloatRange(0, 1, min_open=True),
        help="The share of the ten nearest that large collections find, where clients that make "
        "them do not say; 1 for exact search.",
    ),
    setting(
        "--exact-below",
        default=ServerOptions.exact_below,
        type=click.IntRange(0),
        help="Keys below which such collections are searched exactly; as many as take 10 ms if "
        "absent.",
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
