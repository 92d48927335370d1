"""The settings of a server: each is declared once, in `ServerSettings`.

A setting comes from a flag (`--max-body`), the environment (`ATTEND_MAX_BODY`), a TOML file
(`max-body`) or its default, in this order.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

import click
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from attend.encoder import Precision

Command = TypeVar("Command", bound=Callable[..., Any])

PREFIX = "ATTEND_"
MEBIBYTE = 1024 * 1024
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def check_origin(origin: str) -> str:
    """Return an origin. Raises ValueError for anything else, such as `*`."""
    if not re.fullmatch(r"https?://(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:\d{1,5})?", origin):
        raise ValueError(
            f"{origin!r} is not an origin; give one such as https://example.org or "
            f"http://localhost:3000, without a path. No origin stands for all."
        )
    return origin


def check_webhook(address: str) -> str:
    """Return an address that can be posted to. Raises ValueError for another."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"{address!r} is not an address; give one such as https://example.org/hook"
        )
    return address


# An environment variable has words.
_split = BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)
Words = Annotated[tuple[str, ...], NoDecode, _split]
Origins = Annotated[tuple[Annotated[str, AfterValidator(check_origin)], ...], NoDecode, _split]


class ServerSettings(BaseModel):
    """The settings of one server; what stands below a setting is the help of its flag."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    config: Path | None = None
    """A TOML file with settings, named as here without the dashes: port = 8001."""

    data: Path | None = None
    """The data folder."""

    host: str = "127.0.0.1"
    """The address to listen on."""

    port: int = Field(default=8000, ge=0, le=65535)
    """The port; 0 for any free one."""

    health_port: int | None = Field(default=None, ge=1, le=65535)
    """A second port that answers /healthz and /readyz only, also while connections flood the
    first."""

    engine: str | None = None
    """Where collections live instead of the folder: milvus://HOST:PORT/LIBRARY. The folder then
    keeps what is this server's own: API keys."""

    processes: int = Field(default=1, ge=1, le=64)
    """Worker processes, at best one for each core; each has a model, threads and a queue."""

    threads: int = Field(default=32, ge=1, le=256)
    """Requests that run at once."""

    queue: int = Field(default=128, ge=0, le=1000)
    """Requests that may wait for a thread; more are answered 429."""

    deadline: float = Field(default=60, gt=0, le=3600)
    """Seconds for a request, once it is received, to be answered; then it is stopped, and answered
    503."""

    cache_mib: int = Field(default=64, ge=0, le=65536)
    """Memory for the embeddings of earlier queries, in MiB; 0 for none."""

    precision: Precision = "auto"
    """What encoders compute in; auto takes what is fastest on this processor, for documents and
    for queries, as it was measured when the first was loaded."""

    max_body: int = Field(default=64, ge=1, le=1024)
    """The largest request body, in MiB."""

    max_snapshot: int = Field(default=16_384, ge=1, le=1_048_576)
    """The largest snapshot that is restored over HTTP, in MiB."""

    allow_remote_without_keys: bool = False
    """Let other machines do everything, where they can reach --host and there are no API keys."""

    require_keys: bool = False
    """Ask for a key even if none exists, as behind a proxy."""

    cors_origin: Origins = ()
    """An origin, https://example.org, whose pages may read and write."""

    picture_origin: Origins = ()
    """An origin, https://example.org, from which pages show the pictures that documents name; it
    learns who looks at them."""

    max_collections: int = Field(default=1000, ge=1, le=100_000)
    """Collections that clients may make."""

    allow_encoder: Words = ()
    """An encoder, by name or folder, that clients may name besides the default one; the command
    line may name any."""

    recall: float = Field(default=0.95, gt=0, le=1)
    """The share of the ten nearest that large collections find, where clients that make them do
    not say; 1 for exact search."""

    exact_below: int | None = Field(default=None, ge=0)
    """Keys below which such collections are searched exactly; as many as take 5 ms if absent."""

    learn: Literal["off", "idle", "nightly"] = "off"
    """Train collections that log their searches by what was used, while nobody searches or at
    night; a version answers alone only if it is proved better, by what is held out or by use."""

    learn_pause: float = Field(default=1, ge=0, le=8760)
    """The least hours between two such trainings of a collection."""

    learn_minutes: float = Field(default=10, gt=0, le=1440)
    """The time of such a training, after which it is cancelled."""

    learn_interleaved: int = Field(default=2000, ge=0, le=1_000_000)
    """Searches with a report over which a new version is interleaved with the one before at most,
    until use tells which is better; 0 for none. Meanwhile a search takes about twice as long."""

    webhook: Annotated[str, AfterValidator(check_webhook)] | None = None
    """An address, https://example.org/hook, that is told as JSON of each version that was promoted
    or sent back by use."""

    read_only: bool = False
    """Write nothing: the folder may be one that cannot be written to."""

    log_format: Literal["text", "json"] = "text"
    """The form of a line on stderr."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged; requests are info."""

    log_texts: bool = False
    """Also log what clients send: paths, parameters and bodies."""

    otel: bool = False
    """Trace requests and searches, and send the spans by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT; needs
    the extra 'otel'."""

    trusted_host: Words = ()
    """A name in the Host header to answer to, besides the address itself."""

    @property
    def max_body_bytes(self) -> int:
        return self.max_body * MEBIBYTE

    @property
    def max_snapshot_bytes(self) -> int:
        return self.max_snapshot * MEBIBYTE

    def at(self, host: str) -> ServerSettings:
        """Return the settings of a server that listens on the numeric address `host`.

        On loopback it answers to its own names alone, which closes it to web pages whose own name
        was made to point here (DNS rebinding). Elsewhere it does not know its names, unless
        `trusted_host` has them: none stands for all. There, where it asks for keys, it goes on
        doing so when the last one is removed.
        """
        is_near = is_loopback(host)
        names = self.trusted_host
        if is_near or names:
            itself = f"[{host}]" if ":" in host else host
            names = tuple(dict.fromkeys((*LOOPBACK_NAMES, itself, *names)))
        keys = self.require_keys or not (is_near or self.allow_remote_without_keys)
        return self.model_copy(update={"host": host, "trusted_host": names, "require_keys": keys})


class _Sourced(BaseSettings, ServerSettings):
    """The settings as pydantic-settings reads them from the environment and a file."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True)


def read_settings(flags: Mapping[str, Any]) -> tuple[ServerSettings, dict[str, str]]:
    """Return the effective settings, and where each comes from.

    Args:
        flags: the settings of the command line, by field; None and () for those that it has not.

    Raises:
        click.UsageError: a value is wrong, wherever it comes from.
    """
    flags = {name: value for name, value in flags.items() if value not in (None, ())}
    environment = EnvSettingsSource(_Sourced)()
    path = flags.get("config") or environment.get("config")
    file = {} if path is None else _read_file(Path(path))
    values = file | environment | flags
    sources = dict.fromkeys(ServerSettings.model_fields, "default")
    sources |= dict.fromkeys(file, f"file {path}")
    sources |= {name: f"environment {variable_of(name)}" for name in environment}
    sources |= dict.fromkeys(flags, "flag")
    try:
        return ServerSettings.model_validate(values), sources
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        reason = first["msg"].removeprefix("Value error, ").rstrip(".")
        place = sources[name]
        written = flag_of(name) if name in flags else name.replace("_", "-")
        raise click.UsageError(
            f"The setting {written} is {first['input']!r} ({place}): {reason}."
        ) from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = TomlConfigSettingsSource(_Sourced, path)()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read as TOML: {error}.") from None
    if not path.is_file():
        raise click.UsageError(f"There is no file {path}; see --config.")
    names = [name.replace("_", "-") for name in ServerSettings.model_fields if name != "config"]
    settings: dict[str, Any] = {}
    for written, value in content.items():
        name = written.replace("_", "-")
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            meant = f"; did you mean {close[0]!r}?" if close else "."
            raise click.UsageError(
                f"{path} has the unknown setting {written!r}{meant} The settings are "
                f"{', '.join(names)}."
            )
        field = name.replace("-", "_")
        if field in settings:
            raise click.UsageError(f"{path} has the setting {name!r} twice; give it once.")
        # Not the texts that an environment variable may have: 'yes' for true, one for a list.
        kind, expected = {bool: (bool, "true or false"), tuple: (list, "a list")}.get(
            type(ServerSettings.model_fields[field].default), ((str, int, float), "one value")
        )
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise click.UsageError(
                f"{path} has {value!r} for {written!r}, but {expected} was expected."
            )
        settings[field] = value
    return settings


def with_settings(command: Command) -> Command:
    """Give a command a flag for each setting; without a value where the flag is absent."""
    for name, field in reversed(ServerSettings.model_fields.items()):
        names = [flag_of(name)]
        if name == "allow_remote_without_keys":
            names.append("--allow-remote")  # its older name
        choices = get_args(field.annotation) if field.default in ("text", "info", "off") else ()
        kind = str(field.annotation)
        metavar = "PATH" if "Path" in kind else "TEXT"
        if "int" in kind or "float" in kind:
            metavar = "NUMBER"
        is_several, is_flag = field.default == (), field.annotation is bool
        description = " ".join(str(field.description).split())
        repeated = " May be repeated." if is_several else ""
        default = "" if field.default in (None, (), False) else f"; default: {field.default}"
        command = click.option(
            *names,
            name,
            default=None,
            is_flag=is_flag,
            multiple=is_several,
            type=click.Choice(choices) if choices else None,
            metavar=None if choices or is_flag else metavar,
            help=f"{description}{repeated}  [env var: {variable_of(name)}{default}]",
        )(command)
    return command


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    return PREFIX + name.upper()


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    return ipaddress.ip_address(address).is_loopback
