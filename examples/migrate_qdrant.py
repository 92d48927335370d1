"""Copy a collection of Qdrant into an Attend library: ids, texts, vectors and payloads.

    python examples/migrate_qdrant.py http://localhost:6333 articles --text body --data library

SOURCE is the address of a server, or a folder of qdrant-client's local mode. --text names the
field of the payload that has the text. The vectors are taken as they are, so nothing is encoded,
and queries bring vectors of the same model. With --encode the texts are encoded by Attend's own
encoder instead, and queries are texts. Run the command again to continue after an interruption:
documents that are there are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from tqdm import tqdm

import attend

BATCH = 500


def points(client: Any, collection: str, with_vectors: bool) -> Iterator[list[Any]]:
    """Yield the points of a Qdrant collection in batches."""
    offset = None
    while True:
        batch, offset = client.scroll(
            collection, limit=BATCH, offset=offset, with_payload=True, with_vectors=with_vectors
        )
        if batch:
            yield batch
        if offset is None:
            return


def document(point: Any, text: str | None, encode: bool) -> dict[str, Any]:
    """Return a point as Attend takes a document.

    Raises:
        click.ClickException: its text is missing, or it has named or sparse vectors.
    """
    payload = dict(point.payload or {})
    copy: dict[str, Any] = {"id": str(point.id), "payload": payload}
    words = payload.pop(text, None) if text else None
    if words:
        copy["text"] = str(words)
    elif encode:
        raise click.ClickException(f"The point {point.id} has no text in {text!r} to encode.")
    if not encode:
        if not isinstance(point.vector, list):
            raise click.ClickException(
                f"The point {point.id} has named vectors; copy its texts with --encode."
            )
        copy["vector"] = point.vector
    return copy


@click.command()
@click.argument("source")
@click.argument("collection")
@click.option("--text", help="The field of the payload that has the text.")
@click.option("--data", default="library", help="The folder of the Attend library.")
@click.option("--encode", is_flag=True, help="Encode the texts; do not copy the vectors.")
def main(source: str, collection: str, text: str | None, data: str, encode: bool) -> None:
    """Copy COLLECTION of the Qdrant server or folder SOURCE."""
    from qdrant_client import QdrantClient

    if encode and not text:
        raise click.UsageError("--encode needs --text, the field of the payload that has the text.")
    is_address = source.startswith(("http://", "https://"))
    client = QdrantClient(url=source) if is_address else QdrantClient(path=source)
    total = client.count(collection).count
    library = attend.open(data)
    target = None
    with tqdm(total=total, unit=" documents") as bar:
        for batch in points(client, collection, not encode):
            documents = [document(point, text, encode) for point in batch]
            if target is None:
                settings = {} if encode else {"dimension": len(documents[0]["vector"])}
                target = library.ensure(collection, **settings)
            target.upsert(documents)
            bar.update(len(documents))
    if target is None:
        raise click.ClickException(f"The collection {collection!r} of {source} is empty.")
    stored = target.info().documents
    click.echo(f"{total} documents in Qdrant, {stored} in {data}/{collection}.")
    library.close()


if __name__ == "__main__":
    main()
