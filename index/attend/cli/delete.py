"""`attend drop` and `attend delete`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from attend.api.documents import DeletionRequest
from attend.cli.options import JsonType, Target, checked, on_collection, on_library, present
from attend.cli.output import confirm
from attend.collection.collection import Collection

yes_option = click.option("--yes", is_flag=True, help="Delete without a question, as in scripts.")


@click.command("drop")
@click.argument("collection")
@on_library
@yes_option
def drop_command(target: Target, collection: str, yes: bool) -> None:
    """Delete COLLECTION with its documents, feedback and versions.

    Servers that run answer 404 for it from the next request on. An alias of it must be deleted or
    pointed elsewhere first. `attend export --snapshot` makes a backup.

    \b
    Example:
      attend drop books --data library
      attend drop books --data library --yes
    """
    library = target.library()
    opened = library.collection(collection)
    library.check_droppable(collection)
    documents, _ = opened.store.counts()
    confirm(f"Delete the collection {collection!r} with {_count(documents)}?", yes)
    library.drop(collection)
    text = f"The collection {collection!r} with {_count(documents)} was deleted."
    target.show({"collection": collection, "documents": documents, "dropped": True}, text)


@click.command("delete")
@on_collection
@click.option("--id", "ids", multiple=True, metavar="ID", help="A document to delete; repeatable.")
@click.option(
    "--filter",
    type=JsonType(dict),
    metavar="JSON",
    help='Delete the documents that pass, such as {"year": {"lt": 1900}}; or a file of it.',
)
@yes_option
def delete_command(
    target: Target, ids: tuple[str, ...], filter: Mapping[str, Any] | None, yes: bool
) -> None:
    """Delete documents by their ids or by a filter, all or none.

    Feedback about them is deleted, too. Unknown ids are passed over. `attend drop` deletes a whole
    collection.

    \b
    Example:
      attend delete --data library --id moby-dick --id emma
      attend delete --data library --filter '{"year": {"lt": 1900}}' --yes
    """
    if bool(ids) == (filter is not None):
        raise click.UsageError("Give either --id or --filter: the documents to delete.")
    checked(DeletionRequest, present({"ids": ids, "filter": filter}))
    collection = target.collection()
    documents = _matching(collection, ids, filter)
    if documents:
        confirm(f"Delete {_count(documents)} of the collection {collection.name!r}?", yes)
    deleted = collection.delete(ids) if filter is None else collection.delete_matching(filter)
    left, _ = collection.store.counts()
    result = {"collection": collection.name, "deleted": deleted, "documents": left}
    target.show(result, f"{collection.name}: {_count(deleted)} deleted, {left} left.")


def _matching(
    collection: Collection, ids: tuple[str, ...], filter: Mapping[str, Any] | None
) -> int:
    """Return the number of documents that would be deleted; print why a filter may have none."""
    if filter is None:
        return len(collection.store.rows_of(ids))
    page = collection.page(filter, limit=0)
    for hint in page.hints or ():
        click.echo(hint, err=True)
    return page.total


def _count(documents: int) -> str:
    return "1 document" if documents == 1 else f"{documents} documents"
