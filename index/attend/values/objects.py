"""Objects, blended field by field, and the blend for each type."""

from __future__ import annotations

from collections.abc import Mapping

from attend.types import Json
from attend.values.blend import Blend, Block
from attend.values.kinds import ValueType
from attend.values.numeric import NumberBlend, VectorBlend
from attend.values.retrieved import RetrievedBlend
from attend.values.shares import BooleanBlend, category_blend, labels_blend


class ObjectBlend(Blend):
    """A blend for each field that the type names; other fields are left out.

    A document without the field, or without an object at all, counts in the field's
    coverage as missing.
    """

    keys = ("fields",)

    def __init__(self, fields: Mapping[str, ValueType]) -> None:
        super().__init__("object")
        self._weight = 0.0
        self._fields = {name: blend_for(field) for name, field in fields.items()}

    def _take(self, block: Block) -> None:
        objects = [value if isinstance(value, dict) else None for value in block.values]
        self._weight += float(block.weights[[item is not None for item in objects]].sum())
        for name, field in self._fields.items():
            values = [None if item is None else item.get(name) for item in objects]
            field.add(block.ids, values, block.weights)

    def _covered(self) -> float:
        return self._weight

    def _found(self) -> dict[str, Json]:
        return {"fields": {name: field.answer() for name, field in self._fields.items()}}

    def _blank(self) -> dict[str, Json]:
        # A reader of one field finds its null where it would find its value.
        return self._found()


def blend_for(value_type: ValueType) -> Blend:
    """A fresh blend for values of this type."""
    match value_type.kind:
        case "number":
            return NumberBlend()
        case "vector":
            return VectorBlend()
        case "boolean":
            return BooleanBlend()
        case "category":
            return category_blend()
        case "labels":
            return labels_blend()
        case "object":
            return ObjectBlend(value_type.fields or {})
        case "text" | "image" | "mixed":
            return RetrievedBlend(value_type.kind)
