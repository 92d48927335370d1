"""The options that commands share, and how they print and end.

An option is declared once: here, or by the field of a request's model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

import click
from pydantic import AfterValidator
from pydantic.fields import FieldInfo
from tqdm import tqdm

from attend.api.base import DEFAULT_COLLECTION, MAX_ROW, Request, descriptions, parse
from attend.cli import TARGET, main
from attend.cli import fail as fail
from attend.cli import interrupted as interrupted
from attend.collection.collection import Collection
from attend.collection.data import Data, is_address
from attend.core.errors import InvalidRequest
from attend.core.progress import Bar as Bar  # commands take it from here
from attend.core.types import Json
from attend.encoder import Precision
from attend.source import RowProblem, TableFormat
from attend.source.files import delimiter_of, encoding_of

Command = TypeVar("Command", bound=Callable[..., Any])
Fields = TypeVar("Fields", bound=Request)

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
VERSION = click.IntRange(1, MAX_ROW)

Column = Annotated[str | None, "F"]
"""An option that names a column or field."""

InputFile = Annotated[Path | None, FILE]
"""An option that names a file that exists."""

SHOWN_PROBLEMS = 20
"""Problems printed one by one; a file of an unexpected kind has one in every row."""

REJECTED = 3
"""The exit status of a command that did its work, but could not use every row."""


# -- the library or collection of a command --------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """The library and the collection that a command's options name, and how it prints."""

    folder: Path | None
    engine: str | None
    as_json: bool
    name: str = DEFAULT_COLLECTION
    precision: Precision = "auto"

    def check(self) -> None:
        """Raises UsageError if neither a folder nor an engine is named."""
        if self.folder is None and self.engine is None:
            raise click.UsageError("Missing option '--data'.")

    def library(self) -> Data:
        self.check()
        folder = self.folder or self.engine or ""
        return Data(folder, engine=self.engine, precision=self.precision)

    def collection(self) -> Collection:
        return self.library().collection(self.name)

    def advice(self) -> str:
        """Return what to do about a collection that does not exist."""
        folder = f"--data {self.folder}" if self.folder else f"--engine {self.engine}"
        missing = ""
        if self.folder is not None and not self.folder.exists():
            missing = f"The folder {self.folder} does not exist. "
        name = "" if self.name == DEFAULT_COLLECTION else f" --collection {self.name}"
        return f"{missing}Check --data, or build a collection: attend build SOURCE {folder}{name}"

    def named(self) -> list[str] | None:
        """Return the collection if --collection names it, else None for all collections."""
        source = click.get_current_context().get_parameter_source("name")
        return None if source is None or source.name == "DEFAULT" else [self.name]

    def show(self, result: Mapping[str, Any], text: str) -> None:
        """Print the result, for a program or for a person."""
        click.echo(json.dumps(result, ensure_ascii=False) if self.as_json else text)


def _address(text: str) -> str:
    if not is_address(text):
        raise click.BadParameter(f"{text!r} is not an address such as milvus://127.0.0.1:19530.")
    return text


_LIBRARY = (
    click.option("--data", "folder", type=FOLDER, help="The data folder."),
    click.option(
        "--engine",
        metavar="URL",
        envvar="ATTEND_ENGINE",
        show_envvar=True,
        type=_address,
        help="Where collections live instead: milvus://HOST:PORT/LIBRARY.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
)
_COLLECTION = (
    click.option(
        "--collection",
        "name",
        default=DEFAULT_COLLECTION,
        show_default=True,
        help="Collection name.",
    ),
    click.option(
        "--precision",
        type=click.Choice(get_args(Precision)),
        default="auto",
        help="Encoder precision; auto takes what is fastest on this processor.",
    ),
)


def with_options(command: Command, options: Iterable[Callable[[Command], Command]]) -> Command:
    """Decorate a command with options, in the order of its help."""
    for option in reversed(list(options)):
        command = option(command)
    return command


def on_library(command: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the options of a library, and pass them as the command's first argument."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        names = [field.name for field in fields(Target) if field.name in options]
        target = Target(**{name: options.pop(name) for name in names})
        # The commands of a group may only print their help: they check when they open it.
        context = click.get_current_context()
        context.meta[TARGET] = target
        if context.invoked_subcommand is None:
            target.check()
        return command(target, *arguments, **options)

    return with_options(run, _LIBRARY)


def on_collection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the options of a collection, and pass them as the command's first argument."""
    return on_library(with_options(command, _COLLECTION))


def collection_command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Add a function to the group as the command of a collection."""
    return lambda command: main.command(name)(on_collection(command))


# -- options generated from the fields of requests -------------------------------------------------


class JsonType(click.ParamType[Any]):
    """A JSON value; or a list or an object, or a file that holds one."""

    name = "json"

    def __init__(self, kind: type[list[Any]] | type[dict[str, Any]] | None = None) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            if self._kind is None or value.lstrip()[:1] in ("[", "{"):
                content = json.loads(value)
            else:
                content = json.loads(Path(value).read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            file = "" if self._kind is None else ", and no file that holds it"
            name, _, operand = value.partition("=")
            meant = json.dumps({name.strip(): operand.strip()}, ensure_ascii=False)
            example = f" Did you mean '{meant}'?" if operand and "{" not in value else ""
            self.fail(f"{quoted(value)} is not valid JSON{file} ({error}).{example}", param, ctx)
        if self._kind is not None and not isinstance(content, self._kind):
            noun = "list" if self._kind is list else "object"
            self.fail(f"{quoted(value)} holds no JSON {noun}.", param, ctx)
        return content


def number(text: str) -> int | str:
    """Read a whole number, or a word that the request checks."""
    return int(text) if text.isdecimal() else text


def model_options(model: type[Request], *names: str) -> Callable[[Command], Command]:
    """Declare an option for each field: its type, choices, default and help are the model's.

    In the annotation of a field, a text is the option's metavar (or a second flag), and a type of
    click its type. An option that is absent is None (a flag False, a list empty), and `present`
    leaves it out.
    """
    fields, texts = model.model_fields, descriptions(model)
    options = [_option(name, fields[name], texts.get(name)) for name in names or fields]
    return lambda command: with_options(command, options)


def _option(name: str, field: FieldInfo, text: str | None) -> Callable[[Command], Command]:
    kinds = list(_plain_types(field.annotation))
    is_list = any(get_origin(kind) is list for kind in kinds)
    word = name.removesuffix("s") if is_list else name
    flags = [f"-{word}" if len(word) == 1 else f"--{word.replace('_', '-')}"]
    help = field.description or text
    if field.default is not None and not is_list and kinds != [bool]:
        help = f"{help}  [default: {field.default}]"
    settings: dict[str, Any] = {"help": help, "multiple": is_list}
    if kinds == [bool]:
        settings["is_flag"] = True
    elif any(get_origin(kind) is dict for kind in kinds):
        settings["type"], settings["metavar"] = JsonType(), "JSON"
    elif int in kinds and len(kinds) > 1:
        settings["type"] = number
    elif len(kinds) == 1:
        kind = next(iter(get_args(kinds[0])), kinds[0]) if is_list else kinds[0]
        choices = [item for item in _plain_types(kind) if get_origin(item) is Literal]
        settings["type"] = click.Choice(get_args(choices[0])) if choices else None
        if kind in (int, float):
            settings["type"] = kind
    for extra in field.metadata:
        if isinstance(extra, click.ParamType):
            settings["type"] = extra
        elif isinstance(extra, str) and extra.startswith("--"):
            flags.append(extra)
        elif isinstance(extra, str):
            settings["metavar"] = extra
    return click.option(*flags, name, **settings)


def _plain_types(annotation: Any) -> Iterator[Any]:
    """Yield the alternatives of a type without None and without annotations."""
    if get_origin(annotation) is Annotated:
        yield from _plain_types(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for alternative in get_args(annotation):
            yield from _plain_types(alternative)
    elif annotation is not NoneType:
        yield annotation


def present(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the command line has; of several values a list."""
    # By identity: 0 equals False, and is a number that was given.
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.items()
        if value is not None and value is not False and value != ()
    }


def checked(model: type[Fields], fields: Mapping[str, Any]) -> Fields:
    """Return the fields of a command line as a model; raise UsageError if they are not valid."""
    try:
        return parse(model, fields)
    except InvalidRequest as error:
        raise click.UsageError(str(error)) from None


def flags_of(names: Iterable[str]) -> str:
    """Return the flags of some options.

    >>> flags_of(["label_column", "eta"])
    '--label-column, --eta'
    """
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


class CommandOptions(Request):
    """Options that belong to the command line alone, as fields of a model."""

    @classmethod
    def take(cls, options: dict[str, Any]) -> Self:
        """Remove these options from those of a command, and return them."""
        return checked(cls, present({name: options.pop(name) for name in cls.model_fields}))

    def flags(self, *names: str) -> str:
        """Return the flags of those of some options that the command line has."""
        return flags_of(name for name in names if name in self.model_fields_set)


# -- options of text files -------------------------------------------------------------------------


class FormatOptions(CommandOptions):
    """The format of text files, where it is not to be detected."""

    delimiter: Annotated[str | None, "C", AfterValidator(delimiter_of)] = None
    """The character between the cells of a table, such as ';' or tab; else detected. With it, a
    file of any ending is a table."""
    encoding: Annotated[str | None, "NAME", AfterValidator(encoding_of)] = None
    """The encoding of text files, such as cp1252 or utf-16; else detected."""
    no_header: bool = False
    """The first line of a table is a row; its columns are column_1, column_2 and so on."""

    def format(self) -> TableFormat:
        """Return the options as `open_source` takes them."""
        return TableFormat(self.delimiter, self.encoding, header=not self.no_header)


# -- output ---------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Quote the beginning of a text for an error.

    >>> quoted("[1, 2")
    "'[1, 2'"
    """
    return repr(text if len(text) <= 40 else f"{text[:39]}…")


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "row"), counted(2, "row")
    ('1 row', '2 rows')
    """
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def end(rejected: int) -> None:
    """Exit with status 3 if rows were rejected; the result was printed before."""
    if rejected:
        sys.exit(REJECTED)


def confirm(question: str, yes: bool) -> None:
    """Ask before data is lost, and exit with status 1 without a yes.

    Args:
        yes: the option --yes, which answers the question.
    """
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # nobody is there to answer
        click.echo(err=True)
        agreed = False
    if not agreed:
        click.echo("Nothing was deleted. Add --yes to delete without this question.", err=True)
        sys.exit(1)


class Problems:
    """Prints the first rows that cannot be used and every notice, and counts the rows."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, problem: RowProblem) -> None:
        self._count += problem.rejects
        if self._count <= SHOWN_PROBLEMS or not problem.rejects:
            tqdm.write(str(problem), file=sys.stderr)

    def summary(self) -> None:
        """Print the number of rows, if there are any."""
        if self._count:
            click.echo(f"{counted(self._count, 'row')} could not be used.", err=True)


def plain(value: Json) -> str:
    """Write a value for a person: no quotes around texts, and words for null and booleans.

    >>> [plain(value) for value in (None, True, 0.95, "dot", ["a", "b"], {"n": 1})]
    ['-', 'yes', '0.95', 'dot', 'a, b', '{"n": 1}']
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "-"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def rounded(value: Json) -> Json:
    """Round the numbers of an answer for a person; the small ones keep three digits.

    >>> rounded({"value": "a", "distribution": {"a": 0.8948027375074997, "b": 0.0001234567}})
    {'value': 'a', 'distribution': {'a': 0.895, 'b': 0.000123}}
    """
    if isinstance(value, float):
        return round(value, 3) or float(f"{value:.3g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def table(rows: Iterable[Sequence[object]], *, right: bool = False) -> str:
    """Align columns to the left; with `right`, all but the first to the right."""
    cells = [list(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if right and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)
