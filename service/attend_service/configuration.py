"""The server's settings: from flags, the environment and a file, in this order of precedence.

click knows the order; here is what it reads, and how to tell where each setting came from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

Command = TypeVar("Command", bound=Callable[..., Any])

PREFIX = "ATTEND_"

WHENCE = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}


class Setting(NamedTuple):
    """One setting in force.

    Attributes:
        name: as a flag has it, without its dashes, and as the file has it.
        whence: flag, environment, file or default; with the variable's or the file's name.
    """

    name: str
    value: Any
    whence: str


def setting(flag: str, *names: str, **attributes: Any) -> Callable[[Command], Command]:
    """A click option that the environment can give too: --max-body is ATTEND_MAX_BODY."""
    variable = PREFIX + flag.removeprefix("--").replace("-", "_").upper()
    return click.option(
        flag, *names, envvar=variable, show_envvar=True, show_default=True, **attributes
    )


def config_file(command: Command) -> Command:
    """The option that names the file; it is read before the settings that it may give."""
    option = setting(
        "--config",
        "config_path",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        callback=_read_file,
        help="A TOML file with settings, named as here without the dashes: port = 8001.",
    )
    return option(command)


def in_force(context: click.Context) -> list[Setting]:
    """Every setting of a command's context, in the order of its help."""
    return [
        Setting(_name(option), _shown(context.params[option.name]), _whence(context, option))
        for option in _settings(context)
        if option.name is not None
    ]


def _read_file(context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        context.default_map = dict(_defaults(context, path, _toml(path)))
    return path


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read as TOML: {error}.") from None


def _defaults(
    context: click.Context, path: Path, given: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """What the file says, by the names that click has for it."""
    known = {_name(option): option for option in _settings(context)}
    del known["config"]
    for name, value in given.items():
        if name not in known:
            raise click.UsageError(
                f"{path} has the setting {name!r}, which there is not; there are "
                f"{', '.join(known)}."
            )
        yield str(known[name].name), _checked(path, name, value, known[name])


def _checked(path: Path, name: str, value: Any, option: click.Option) -> Any:
    """The value, if it is of the kind that the option takes; click would take any text for it."""
    kind = list if option.multiple else bool if option.is_flag else (str, int, float)
    if not isinstance(value, kind) or (isinstance(value, bool) and not option.is_flag):
        wanted = "a list" if option.multiple else "true or false" if option.is_flag else "one value"
        raise click.UsageError(f"{path} has {value!r} for {name!r}, but {wanted} was expected.")
    return value


def _settings(context: click.Context) -> list[click.Option]:
    """The options that a server has, and not those of how to print."""
    return [
        each
        for each in context.command.params
        if isinstance(each, click.Option) and str(each.envvar or "").startswith(PREFIX)
    ]


def _name(option: click.Option) -> str:
    return option.opts[0].removeprefix("--")


def _shown(value: Any) -> Any:
    """A value as JSON can have it."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _whence(context: click.Context, option: click.Option) -> str:
    source = context.get_parameter_source(str(option.name))
    word = WHENCE.get(source, "default") if source is not None else "default"
    if word == "environment":
        return f"environment {option.envvar}"
    return f"file {context.params['config_path']}" if word == "file" else word
