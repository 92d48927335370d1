"""`python -m index evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from index.cli.common import on_collection, open_collection, show, table
from index.evaluation import evaluate, read_qrels, read_queries

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("evaluate")
@on_collection
@click.option("--queries", required=True, type=_FILE, help="JSON lines with _id and text.")
@click.option("--qrels", required=True, type=_FILE, help="query id, document id, grade.")
@click.option("--projection", type=int, help="A version other than the active one.")
def evaluate_command(
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    queries: Path,
    qrels: Path,
    projection: int | None,
) -> None:
    """Measure rankings against judgements, as trec_eval does.

    \b
    Example:
      python -m index evaluate --data library --queries queries.jsonl --qrels qrels/test.tsv
    """
    opened = open_collection(folder, collection, precision)
    options = {} if projection is None else {"projection": projection}
    found = evaluate(opened, read_queries(queries), read_qrels(qrels), **options)
    if found.unknown_documents:
        click.echo(
            f"{found.unknown_documents} relevant documents are not in the collection; they count "
            f"as not found.",
            err=True,
        )
    measures = {name: round(value, 5) for name, value in found.measures.items()}
    result = {**measures, "queries": found.queries, "unknown_documents": found.unknown_documents}
    show(as_json, result, table([(n, f"{v:.4f}") for n, v in measures.items()]))
