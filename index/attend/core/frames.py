"""JSON in columns of Arrow: the type that holds a column, and the way there and back.

Cells of one kind get its type: booleans, numbers, texts, lists of such, and objects as structs.
Where kinds meet that no type of Arrow holds together, the column is JSON text, so that nothing is
lost. pyarrow is imported by the functions that need it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import chain
from typing import Any, ClassVar, TypeAlias

from attend.core.types import Json, StoredDocument

Kind: TypeAlias = str | list[Any] | dict[str, Any] | None
"""`bool`, `int`, `float`, `number` (both, and no float is whole), `text` or `json`; ["list", the
kind of items]; of an object {member: [kind, whether some lack it]}; None without any value."""

MAX_MEMBERS = 256
"""Members of a struct; objects with more, as those that use ids as names, are JSON text."""

EXACT = 2**53
"""Beyond, a whole number may not be among the floats."""

SCALARS = {"bool": "bool_", "int": "int64", "text": "string", "json": "string"} | dict.fromkeys(
    ("float", "number"), "float64"
)
"""Kind → the function of pyarrow that returns its type."""

KNOWN = {"str": "text", "float": "float", "int": "int", "bool": "bool"}
"""Annotation of a field → its kind, so that empty columns have a type, too."""

METADATA = "attend"
"""The key of the metadata of a file that holds the kinds of its columns."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class Cells:
    """Finds the kind of a column, one cell at a time.

    Args:
        exact: lose nothing: objects that lack a member are told from those in which it is null, and
            empty lists and objects from null.

    >>> cells = Cells()
    >>> cells.add({"year": 1851, "tags": ["sea"]})
    >>> cells.add({"year": 1815.5})
    >>> cells.kind()
    {'year': ['number', False], 'tags': [['list', 'text'], True]}
    """

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self._kinds: set[str] = set()
        self._count = self._nulls = self._objects = 0
        self._items: Cells | None = None
        self._members: dict[str, Cells] = {}

    def add(self, cell: Json) -> None:
        """Take in a cell."""
        self._count += 1
        if cell is None:
            self._nulls += 1
        elif isinstance(cell, Mapping):
            self._objects += 1
            self._kinds.add("object" if all(map(_is_text, cell)) else "json")
            if len(self._members.keys() | cell.keys()) > MAX_MEMBERS:
                self._kinds.add("json")
            if "json" not in self._kinds:
                for name, member in cell.items():
                    if name not in self._members:
                        self._members[name] = Cells(exact=self._exact)
                    self._members[name].add(member)
        elif isinstance(cell, list | tuple):
            self._kinds.add("list")
            self._items = self._items or Cells(exact=self._exact)
            for item in cell:
                self._items.add(item)
        else:
            self._kinds.add(_scalar(cell))

    def kind(self) -> Kind:
        """Return the kind of all cells so far."""
        if not self._kinds:
            return None
        if self._kinds in ({"long"}, {"int", "long"}):
            return "int"
        if self._kinds == {"int", "float"}:
            return "number"
        if self._kinds <= {"int", "float", "whole"} and self._kinds != {"int"}:
            return "float"
        if len(self._kinds) > 1:
            return "json"
        (name,), empty = self._kinds, "json" if self._exact else None
        if name == "list":
            items = None if self._items is None else self._items.kind()
            return empty if items is None else ["list", items]
        if name == "object":
            members = {key: self._member(cells) for key, cells in self._members.items()}
            return members or empty
        return name

    def _member(self, cells: Cells) -> list[Any]:
        is_optional = cells._count < self._objects
        is_both = self._exact and is_optional and cells._nulls  # a null cell stands for one of them
        return ["json" if is_both else cells.kind(), is_optional]


def _scalar(cell: Json) -> str:
    match cell:
        case bool():
            return "bool"
        case int():
            return "int" if abs(cell) <= EXACT else "long" if abs(cell) < 2**63 else "json"
        case float():
            return "whole" if cell.is_integer() else "float"
        case str() if _is_text(cell):
            return "text"
    return "json"


def _is_text(text: str) -> bool:
    return text.isascii() or not _SURROGATE.search(text)


def arrow_type(kind: Kind) -> Any:
    """Return the type of Arrow for a kind.

    >>> arrow_type(["list", {"year": ["int", True]}])
    ListType(list<item: struct<year: int64>>)
    """
    import pyarrow as pa

    match kind:
        case None:
            return pa.null()
        case str():
            return getattr(pa, SCALARS[kind])()
        case list():
            return pa.list_(arrow_type(kind[1]))
    return pa.struct({name: arrow_type(member) for name, (member, _) in kind.items()})


def encode(cell: Any, kind: Kind, *, is_optional: bool = False) -> Any:
    """Return a cell as pyarrow takes it for the type of its kind; `decode` undoes it.

    >>> encode({"n": [1, "x"]}, {"n": ["json", False]})
    {'n': '[1, "x"]'}
    """
    if kind == "json" and (cell is not None or is_optional):
        return json.dumps(cell, ensure_ascii=bool(_SURROGATE.search(str(cell))))
    if kind is None or cell is None or isinstance(kind, str):
        return None if kind is None else cell
    if isinstance(kind, list):
        return [encode(item, kind[1]) for item in cell]
    return {
        name: encode(member, kind[name][0], is_optional=kind[name][1])
        for name, member in cell.items()
    }


def decode(cell: Any, kind: Kind) -> Any:
    """Return the JSON of a cell of pyarrow.

    >>> decode({"n": '[1, "x"]', "year": None}, {"n": ["json", False], "year": ["int", True]})
    {'n': [1, 'x']}
    """
    if cell is None or isinstance(kind, str | None):
        if kind == "json" and cell is not None:
            return json.loads(cell)
        return int(cell) if kind == "number" and cell is not None and cell.is_integer() else cell
    if isinstance(kind, list):
        return [decode(item, kind[1]) for item in cell]
    return {
        name: decode(cell[name], member)
        for name, (member, is_optional) in kind.items()
        if cell[name] is not None or not is_optional
    }


def column(cells: Sequence[Any], kind: Kind = None) -> Any:
    """Return cells as an array of Arrow; without a kind, of the one that holds them."""
    import pyarrow as pa

    if kind is None:
        every = Cells()
        for cell in cells:
            every.add(cell)
        kind = every.kind()
        cells = [encode(cell, kind) for cell in cells]
    return pa.array(cells, arrow_type(kind))


def table_stream(columns: Mapping[str, Any], schema: object = None) -> object:
    """Return arrays of Arrow by name as a stream of its C interface (a PyCapsule)."""
    import pyarrow as pa

    return pa.table(dict(columns)).__arrow_c_stream__(schema)


class Tabular:
    """A reply with a list that data frames read: pandas, Polars, DuckDB, `datasets`, pyarrow.

    Attributes:
        listed: the name of the list, and the class of its items; None for plain objects.

    >>> import pyarrow
    >>> table = pyarrow.table(books.search([1.0, 0.1], k=2))
    >>> table.column_names, table["id"].to_pylist()
    (['id', 'score', 'weight', 'value', 'payload'], ['whale', 'ship'])
    """

    listed: ClassVar[tuple[str, type | None]]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the list as a stream of Arrow's C interface; cells of several types are JSON.

        A column stands for each field that every item has, or one of these.
        """
        name, kind = self.listed
        items = getattr(self, name) or ()
        rows = [dict(item) if kind is None else item.json() for item in items]
        columns = dict.fromkeys(chain.from_iterable(rows), None)
        if kind is not None:  # in the order of the class, and also without any item
            columns = {
                field.name: KNOWN.get(str(field.type))
                for field in fields(kind)
                if field.name in columns or field.default is field.default_factory is MISSING
            }
        return table_stream(
            {name: column([row.get(name) for row in rows], kind) for name, kind in columns.items()},
            requested_schema,
        )


@dataclass(frozen=True)
class Page:
    """Some documents; `next` is the cursor of the following page, None at the end.

    `hints` names fields of a filter that no document has, where no document passes it. Data frames
    read the documents, with the columns `id`, `fields`, `value` and `payload`."""

    documents: Sequence[StoredDocument]
    next: str | None
    total: int
    hints: Sequence[str] | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the documents as a stream of Arrow's C interface."""
        kinds = {"id": "text", "fields": None, "value": None, "payload": None}
        columns = {
            name: column([getattr(document, name) for document in self.documents], kind)
            for name, kind in kinds.items()
        }
        return table_stream(columns, requested_schema)
