"""The base of all requests: closed models, field types, limits, and sentences for errors."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from dataclasses import Field as DataclassField
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, dataclass_transform, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    GetJsonSchemaHandler,
    JsonValue,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue

from attend.api.names import remedy
from attend.core.errors import Detail, InvalidRequest
from attend.core.types import MAX_ID
from attend.source.rows import joined, seconds_of

DEFAULT_COLLECTION = "default"

HALF_LIFE = 36_500.0
"""Days, at most."""
MAX_ATTEND = 100_000
MAX_CURSOR = 1024
MAX_DOCUMENTS = 10_000
MAX_FACETS = 32
MAX_FIELDS = 256
MAX_K = 10_000
MAX_PAGE = 1000
MAX_ROW = 2**63 - 1
MAX_TEXT = 1_000_000
MAX_VALUES = 1000
MAX_WIDTH = 65_536
MAX_DETAILS = 100
MAX_DIVERSE = 1000
"""Documents that diversity orders: each is compared with all before it."""
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,62}$"

Consistency = Literal["bounded", "strong"]
"""Freshness of reads. bounded: what others wrote in the last seconds may be missing; strong:
nothing acknowledged is missing. A data folder is always strong."""

Method = TypeVar("Method", bound=Callable[..., Any])
Model = TypeVar("Model", bound="Request")


def _numbers(vector: object) -> object:
    """Return arrays, of NumPy or another library, and tuples as lists."""
    if hasattr(vector, "tolist"):
        return vector.tolist()
    return list(vector) if isinstance(vector, tuple) else vector


def _id_text(id: object) -> object:
    """Return an id as text: many sources have whole numbers."""
    return str(id) if isinstance(id, int) and not isinstance(id, bool) else id


def _attend_size(size: object) -> object:
    """Check the size before the union is tried: its report would name both of its branches."""
    number = int(size) if isinstance(size, str) and size.isdecimal() else size
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if number == "all" or (is_whole and 1 <= number <= MAX_ATTEND):  # type: ignore[operator]
        return number
    raise ValueError(f"Send a whole number from 1 to {MAX_ATTEND}, or 'all'")


_IdText = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
DocumentId = Annotated[_IdText, BeforeValidator(_id_text, json_schema_input_type=_IdText | int)]
UserId = DocumentId
Time = Annotated[
    float | str,
    AfterValidator(seconds_of),
    Field(description="Seconds since 1970, or an ISO date; UTC where it names no zone."),
]
Vector = Annotated[
    list[FiniteFloat],
    Field(min_length=1, max_length=MAX_WIDTH, fail_fast=True),
    BeforeValidator(_numbers, json_schema_input_type=list[float]),
]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
_Texts = Annotated[list[Text], Field(min_length=1)]
JoinedText = Annotated[Text, BeforeValidator(joined, json_schema_input_type=Text | _Texts)]
"""A text, or a list of strings such as tags, which are joined by commas."""
Path = Annotated[str, Field(min_length=1, max_length=256)]
Filter = Annotated[
    dict[str, JsonValue],
    Field(description='Conditions on payload and value, such as {"year": {"gte": 1900}}.'),
]
AttendSize = Annotated[
    Annotated[int, Field(ge=1, le=MAX_ATTEND)] | Literal["all"], BeforeValidator(_attend_size)
]


Diversity = Annotated[FiniteFloat, Field(ge=0, le=1)]


def _names(include: object) -> object:
    """Return names as a list; in an address line they are one text, with commas."""
    return include.split(",") if isinstance(include, str) else include


Included = Annotated[
    list[Literal["text", "passage"]],
    BeforeValidator(_names, json_schema_input_type=list[Literal["text", "passage"]] | str),
]
"""What to return of a document's texts with a hit."""


class Request(BaseModel):
    """Base of all request models: frozen, closed to unknown fields, described by docstrings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nullable: ClassVar[Sequence[str]] = ()
    """Fields in which null says something else than that the field is left out."""
    alternatives: ClassVar[Sequence[Sequence[str]]] = ()
    """Fields of which exactly one is sent, each with those that may stand beside it."""

    def check(self) -> None:
        """Raise ValueError, or WrongField, where fields do not go together."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: Any, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        json_schema = handler(schema)
        properties = handler.resolve_ref_schema(json_schema).get("properties", {})
        for name, text in descriptions(cls).items():
            properties[name].setdefault("description", text)
        for name in properties.keys() - set(cls.nullable):
            properties[name] = _without_null(properties[name])
        if cls.alternatives:
            schema = handler.resolve_ref_schema(json_schema)
            names = {name for alternative in cls.alternatives for name in alternative}
            # Whole objects: many generators of clients read nothing beside a `oneOf`.
            schema["oneOf"] = [
                {
                    **schema,
                    "title": f"{cls.__name__}By{first.capitalize()}",
                    "required": [first],
                    "properties": properties
                    | {name: {"type": "null"} for name in sorted(names - {first, *beside})},
                }
                for first, *beside in cls.alternatives
            ]
        return json_schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field that is left out and never null."""
    if schema.get("default", ABSENT) is not None or "anyOf" not in schema:
        return schema
    options = [option for option in schema["anyOf"] if option != {"type": "null"}]
    rest = {key: schema[key] for key in schema if key not in ("anyOf", "default")}
    return {**options[0], **rest} if len(options) == 1 else {"anyOf": options, **rest}


@cache
def descriptions(model: type[Request]) -> Mapping[str, str]:
    """Return the docstrings of a model's fields, read when they are first asked for.

    Pydantic can read them too, but does so as it makes a class, which takes a twelfth of the time
    in which the command starts.
    """
    texts: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, Request) and kind is not Request:
            texts |= _docstrings(kind.__module__).get(kind.__name__, {})
    return texts


_parsing = threading.Lock()


@cache
def _docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return class → field → docstring, of the source of a module."""
    with _parsing:  # Python 3.11 counts the depth of the trees of all threads as one (gh-106905)
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    texts: dict[str, dict[str, str]] = {}
    for kind in tree.body:
        if not isinstance(kind, ast.ClassDef):
            continue
        texts[kind.name] = {}
        for entry, text in pairwise(kind.body):
            if isinstance(entry, ast.AnnAssign) and isinstance(text, ast.Expr):
                docstring = inspect.cleandoc(ast.literal_eval(text.value))
                texts[kind.name][ast.unparse(entry.target)] = docstring
    return texts


ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
"""Stands for a value that was not requested, where null would be a value."""


@dataclass_transform(field_specifiers=(field,))
class Reply:
    """Base of all answers: its subclasses are dataclasses, which become JSON and OpenAPI schemas.

    A field with the default None is left out of the JSON while it is None; the others are always
    there, also as null.
    They are not frozen: a frozen one takes six times as long to make, and a page has thousands.
    """

    __dataclass_fields__: ClassVar[dict[str, DataclassField[Any]]]
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", use_attribute_docstrings=True
    )

    def __init_subclass__(cls, *, repr: bool = True) -> None:
        dataclass(repr=repr)(cls)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: Any, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        json_schema = handler(schema)
        resolved = handler.resolve_ref_schema(json_schema)
        resolved["required"] = []
        for item in fields(cls):
            details = resolved["properties"][item.name]
            if item.default is None:
                resolved["properties"][item.name] = _without_null(details)
            elif item.default_factory is MISSING or item.default_factory() is not ABSENT:
                resolved["required"].append(item.name)
            details.pop("default", None)
        return json_schema

    def json(self) -> dict[str, Any]:
        """Return plain data, as the service sends it.

        >>> books.search([1.0, 0.1], k=1).json()["hits"][0]["id"]
        'whale'
        """
        return {name: _plain(value) for name, value in json_fields(self).items()}


def json_fields(reply: Any) -> dict[str, Any]:
    """Return the fields of a reply that its JSON has; orjson calls this for each object."""
    return {
        name: value
        for name, omitted in _omitted(reply.__class__)
        if (value := getattr(reply, name)) is not omitted
    }


@cache
def _omitted(kind: type[Reply]) -> list[tuple[str, object]]:
    """Return the names of a reply's fields with the value that its JSON leaves out."""
    return [(item.name, None if item.default is None else ABSENT) for item in fields(kind)]


def _plain(value: object) -> object:
    if isinstance(value, Reply):
        return value.json()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


class WrongField(ValueError):
    """A fault of a whole request that a validator found; the error names one of its fields."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


def check_one(item: BaseModel, noun: str, names: tuple[str, ...]) -> None:
    """Raise WrongField unless exactly one of some fields is there."""
    sent = [name for name in names if getattr(item, name) is not None]
    if len(sent) != 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        got = f"{' and '.join(sent)} were given" if sent else "none of them was given"
        field = sent[-1] if sent else names[0]
        raise WrongField(field, f"{noun} has exactly one of {listed}; {got}")


def check_page(listed: int, attend: int | Literal["all"]) -> None:
    """Raise WrongField where more documents are to be listed than are attended."""
    if attend != "all" and listed > attend:
        raise WrongField(
            "k",
            f"k + offset is {listed}, but only {attend} documents are attended; lower k or raise "
            f"attend",
        )


def check_diverse(diversity: float, listed: int) -> None:
    """Raise WrongField where diversity would order more places than it may."""
    if diversity and listed > MAX_DIVERSE:
        raise WrongField(
            "diversity",
            f"k + offset is {listed}, but diversity reorders at most {MAX_DIVERSE} places; "
            f"lower k, or leave out diversity",
        )


def parse(model: type[Model], content: Model | Mapping[str, Any], *, strict: bool = False) -> Model:
    """Validate `content` as `model`; one that is a `model` already comes back.

    Args:
        strict: refuse text for numbers and numbers for truth values, which JSON distinguishes.

    Raises:
        InvalidRequest: its sentence lists every wrong field and the reason.
    """
    try:
        return model.model_validate(content, strict=strict or None)
    except ValidationError as error:
        raise invalid(error, model) from None


def invalid(error: ValidationError, model: type[BaseModel] | None = None) -> InvalidRequest:
    """Return a validation report as an error with a sentence for each wrong field.

    Args:
        model: the model that the request was validated as, to suggest names of its fields.
    """
    details: list[Detail] = [
        {"field": _field(entry), "reason": _reason(entry, model)}
        for entry in error.errors(include_url=False)[:MAX_DETAILS]
    ]
    sentences = [f"{detail['field']}: {detail['reason']}" for detail in details[:5]]
    sentence = " ".join(text if text.endswith("?") else f"{text}." for text in sentences)
    problem = InvalidRequest(sentence, field=details[0]["field"])
    problem.details = details
    return problem


def _field(entry: Any) -> str:
    """Return the field that an entry of a report is about, as a dotted path."""
    fault = entry.get("ctx", {}).get("error")
    location = entry["loc"] or (getattr(fault, "field", "request"),)
    return ".".join(str(part) for part in location)


EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
}
"""What a value should have been, by the first word of the validator's name of the fault."""

WRONG_TYPE = ("_type", "_parsing", "_from_float", "finite_number")
"""The ends of the names of such faults."""


BOUNDS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "string_too_short": "a text of {min_length} or more characters",
    "string_too_long": "a text of at most {max_length} characters",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of at most {max_length}",
    "enum": "{expected}",
    "literal_error": "{expected}",
}
"""Bounds that a value misses, by the validator's name of the fault."""


def _reason(entry: Any, model: type[BaseModel] | None) -> str:
    kind, value = entry["type"], entry["input"]
    if kind == "extra_forbidden":
        names = _names_at(model, entry["loc"][:-1])
        return f"unknown field; {remedy(str(entry['loc'][-1]), names)}"
    if kind == "missing":
        return "it is required, but was not sent"
    word = kind.partition("_")[0]
    is_type = kind.endswith(WRONG_TYPE) and word in EXPECTED
    expected = EXPECTED[word] if is_type else BOUNDS.get(kind)
    if kind == "string_pattern_mismatch" and entry["ctx"]["pattern"] == NAME_PATTERN:
        message = "a name has up to 63 letters, digits, - and _, and does not begin with -"
    elif expected:
        limits = entry.get("ctx", {}).items()
        plain = {name: int(n) if isinstance(n, float) and n == n // 1 else n for name, n in limits}
        message = f"{expected.format(**plain)} was expected"
    else:
        message = str(entry["msg"]).removeprefix("Value error, ")
    # A model is the whole object: repeating it back helps nobody.
    if isinstance(value, BaseModel):
        return message
    if isinstance(value, dict | list | tuple):
        noun = "an object" if isinstance(value, dict) else "a list"
        return f"{message}, but {noun} was given" if is_type else message
    if not isinstance(value, str | int | float | bool | None):
        return message
    text = repr(value)
    return f"{message}, but {text if len(text) <= 80 else f'{text[:77]}...'} was given"


def _names_at(model: type[BaseModel] | None, location: Sequence[int | str]) -> list[str]:
    """Return the names of the fields that an object at a place in a request may have."""
    models = [] if model is None else [model]
    for part in location:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        # Places in lists, and a union's name for its branch, lead to no other model.
        if fields:
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return list(dict.fromkeys(name for model in models for name in model.model_fields))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a type, such as those of the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def check_name(name: str) -> None:
    """Raises InvalidRequest for what is no name of a collection."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidRequest(
            f"{name[:80]!r} is no collection name: up to 63 letters, digits, - and _, not "
            f"beginning with -.",
            field="collection",
        )


def keywords_of(model: type[Request]) -> Callable[[Method], Method]:
    """Let a method show the fields of a model in its signature, with their defaults.

    For `help` and for notebooks, which read the signature as the program runs.
    """

    def decorate(method: Method) -> Method:
        signature = inspect.signature(method)
        shown = {p.name: p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD}
        for name, info in model.model_fields.items():
            default = [] if info.is_required() or info.default_factory else info.default
            keyword = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=info.annotation
            )
            shown.setdefault(name, keyword)
        parameters = list(shown.values())
        method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return method

    return decorate
