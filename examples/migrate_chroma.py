"""Copy a collection of Chroma into an Attend library: ids, texts, vectors and metadata.

    python examples/migrate_chroma.py chroma-folder articles --data library

The vectors are taken as they are, so nothing is encoded, and queries bring vectors of the same
model. With --encode the texts are encoded by Attend's own encoder instead, and queries are texts.
Run the command again to continue after an interruption: documents that are there are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from tqdm import tqdm

import attend

BATCH = 500


def documents(source: Any, encode: bool) -> Iterator[list[dict[str, Any]]]:
    """Yield the documents of a Chroma collection in batches, as Attend takes them."""
    parts = ["documents", "metadatas"] + ([] if encode else ["embeddings"])
    for offset in range(0, source.count(), BATCH):
        rows = source.get(limit=BATCH, offset=offset, include=parts)
        batch = []
        for number, id in enumerate(rows["ids"]):
            document: dict[str, Any] = {"id": id, "payload": rows["metadatas"][number] or {}}
            if rows["documents"] and rows["documents"][number]:
                document["text"] = rows["documents"][number]
            if not encode:
                document["vector"] = [float(x) for x in rows["embeddings"][number]]
            batch.append(document)
        yield batch


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.argument("collection")
@click.option("--data", default="library", help="The folder of the Attend library.")
@click.option("--encode", is_flag=True, help="Encode the texts; do not copy the vectors.")
def main(folder: str, collection: str, data: str, encode: bool) -> None:
    """Copy COLLECTION of the Chroma database in FOLDER."""
    import chromadb

    source = chromadb.PersistentClient(path=folder).get_collection(collection)
    if not source.count():
        raise click.ClickException(f"The collection {collection!r} of {folder} is empty.")
    library = attend.open(data)
    settings: dict[str, Any] = {}
    if not encode:
        settings["dimension"] = len(source.get(limit=1, include=["embeddings"])["embeddings"][0])
    target = library.ensure(collection, **settings)
    with tqdm(total=source.count(), unit=" documents") as bar:
        for batch in documents(source, encode):
            target.upsert(batch)
            bar.update(len(batch))
    stored = target.info().documents
    click.echo(f"{source.count()} documents in Chroma, {stored} in {data}/{collection}.")
    library.close()


if __name__ == "__main__":
    main()
