"""The options of requests as keyword arguments, for editors and type checkers.

`python -m tests.keywords` writes them from the models; a test compares.
"""

from __future__ import annotations

import json
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from attend.api.documents import CollectionSettings
from attend.api.learning import TrainRequest
from attend.api.recommend import RecommendRequest
from attend.api.search import SearchRequest
from tests.places import ROOT

FILE = ROOT / "index" / "attend" / "api" / "keywords.pyi"

KEYWORDS: tuple[tuple[str, type[BaseModel], str | None], ...] = (
    ("SearchKeywords", SearchRequest, "query"),
    ("RecommendKeywords", RecommendRequest, "target"),
    ("CollectionKeywords", CollectionSettings, None),
    ("TrainKeywords", TrainRequest, None),
)
"""A class of keywords, the model of which it has the fields, and the one that methods declare."""

HEAD = '''"""The fields of requests as keyword arguments, made by `python -m tests.keywords`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
'''


def stub() -> str:
    """Return the source of the classes of keywords, which type checkers read."""
    parts = [HEAD]
    for name, model, declared in KEYWORDS:
        lines = [f"class {name}(TypedDict, total=False):"]
        lines += [
            f"    {field}: {' | '.join(accepted(info))}"
            for field, info in model.model_fields.items()
            if field != declared
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def accepted(annotation: Any) -> list[str]:
    """Return the alternatives of what a caller may send for a type."""
    if isinstance(annotation, FieldInfo):
        return _validated(annotation.annotation, annotation.metadata)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _validated(arguments[0], list(arguments[1:]))
    if origin in (Union, UnionType):
        union = list(dict.fromkeys(text for part in arguments for text in accepted(part)))
        # A list as one text is for address lines.
        is_list = any(text.startswith("Sequence") for text in union)
        return [text for text in union if text != "str" or not is_list]
    if origin is Literal:
        named = (json.dumps(item) if isinstance(item, str) else repr(item) for item in arguments)
        return [f"Literal[{', '.join(named)}]"]
    if origin is list:
        return [f"Sequence[{' | '.join(accepted(arguments[0]))}]"]
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return ["Mapping[str, Any]"]
    if annotation is NoneType:
        return ["None"]
    return [annotation.__name__ if annotation in (str, int, float, bool) else "Any"]


def _validated(annotation: Any, metadata: list[Any]) -> list[str]:
    before = [item for item in metadata if isinstance(item, BeforeValidator)]
    sent = before[0].json_schema_input_type if before else PydanticUndefined
    return accepted(annotation if sent is PydanticUndefined else sent)


if __name__ == "__main__":
    FILE.write_text(stub())
