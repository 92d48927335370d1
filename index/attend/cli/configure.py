"""`attend configure`, and the options of settings that may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import click
from pydantic import Field

from attend.api.base import Request
from attend.cli.options import Target, main, model_options, on_collection, take
from attend.cli.output import Bar, interrupted, plain
from attend.keys.choose import LEAST_KEYS

INFERRED = "auto"
"""The value type that stands for none: types are inferred again."""


class ChangeableOptions(Request):
    """Options for the settings that may change while a collection holds documents."""

    recall: Annotated[float | None, click.FloatRange(0, 1, min_open=True)] = None
    """The share of the ten nearest to find where keys are too many for exact search.  [default:
    0.95]"""
    exact_below: Annotated[int | None, click.IntRange(0)] = None
    """Search exactly below this number of keys; fewer than 1,000 are always searched exactly.
    [default: the number that takes 10 ms]"""
    scale: Annotated[float | None, click.FloatRange(0, min_open=True)] = None
    """Factor on scores before the softmax.  [default: 20 for embeddings of length one, else
    1/√d]"""
    value_types: Annotated[list[str], "[F=]TYPE"] = Field([])
    """The type of the value (number, category, labels, text, boolean, vector, image, mixed), or
    of one field of it; repeatable. auto infers it again."""

    def changes(self) -> dict[str, Any]:
        """Return the settings to change, by name."""
        changes = self.model_dump(include={"recall", "exact_below", "scale"}, exclude_none=True)
        if self.value_types:
            changes["values"] = value_types(self.value_types)
        return changes


def value_types(words: Sequence[str]) -> Any:
    """Return the value types of a command line as the setting `values` has them.

    Raises:
        UsageError: one type for the whole value, and others for its fields.

    >>> value_types(["number"]), value_types(["module=category", "score=number"])
    ('number', {'module': 'category', 'score': 'number'})
    """
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    if fields and len(fields) == len(words):
        return fields
    if len(words) > 1:
        raise click.UsageError(
            f"--value-type is {', '.join(words)}, but either one type is expected, or one for "
            f"each field of the value: --value-type module=category --value-type score=number."
        )
    return None if words[0] == INFERRED else words[0]


def warn_of_floor(exact_below: int | None) -> None:
    """Print that few keys are searched exactly, whatever the settings say."""
    if exact_below is not None and exact_below < LEAST_KEYS:
        click.echo(
            f"--exact-below {exact_below}: fewer than {LEAST_KEYS:,} keys are always searched "
            f"exactly.",
            err=True,
        )


@main.command("configure")
@on_collection
@model_options(ChangeableOptions)
def configure_command(target: Target, **options: Any) -> None:
    """Change settings of a collection, without its source.

    Servers that run have the new settings at their next request. With --recall or --exact-below
    the index is written again; searches go on meanwhile.

    \b
    Example:
      attend configure --data library --recall 0.99
      attend configure --data library --value-type price=number --value-type genre=category
    """
    selection = take(ChangeableOptions, options)
    changes = selection.changes()
    if not changes:
        raise click.UsageError(
            "Give a setting to change: --recall, --exact-below, --scale or --value-type."
        )
    collection = target.collection()
    before = collection.settings.stored()
    is_changed = collection.configure(**changes)
    warn_of_floor(selection.exact_below)
    if changes.keys() & {"recall", "exact_below"}:
        try:
            with Bar() as bar:
                collection.publish(bar)
        except KeyboardInterrupt:
            interrupted("the settings are stored. Run the same command to write the index.")
    after = collection.settings.stored()
    lines = [f"{name}: {plain(after[name])} (was {plain(before[name])})" for name in changes]
    result = {"collection": target.name, "changed": is_changed, "settings": after}
    target.show(result, "\n".join(lines))
