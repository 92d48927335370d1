"""`attend evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from attend.api.base import MAX_ATTEND
from attend.cli.common import on_collection, open_collection, show, table
from attend.cli.evaluate_interactions import evaluate_interactions
from attend.cli.interactions import InteractionFile, with_interactions
from attend.collection import Collection
from attend.measure.compare import EXAMPLES, MEASURE, VersionName, compare
from attend.measure.plots import draw
from attend.measure.rankings import (
    MEASURES,
    Evaluation,
    Qrels,
    evaluate,
    judged_queries,
    read_qrels,
    read_queries,
)
from attend.measure.report import as_json as comparison_json
from attend.measure.report import as_text, bounds, span
from attend.types import QueryInput

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_WITH_COMPARE = ("plots", "measure", "examples")
"""Options that say something of a comparison alone."""


class VersionType(click.ParamType[VersionName]):
    """A projection version, or `active`."""

    name = "version"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> VersionName:
        if value == "active":
            return "active"
        return click.IntRange(1, 2**63 - 1).convert(value, param, ctx)


class AttendType(click.ParamType[int | str]):
    """A number of documents, or `all`."""

    name = "attend"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        return "all" if value == "all" else click.IntRange(1, MAX_ATTEND).convert(value, param, ctx)


@click.command("evaluate")
@on_collection
@click.option("--queries", type=_FILE, help="JSON lines: _id, and text or vector.")
@click.option("--qrels", type=_FILE, help="query id, document id, grade (any number).")
@with_interactions
@click.option(
    "--history",
    metavar="FILE",
    help="With --interactions: what the users met before; what is stored of them if absent.",
)
@click.option(
    "--cold",
    type=_FILE,
    help="With --interactions: ids of withheld documents, one in a line; they alone are ranked "
    "and right, and no history holds them.",
)
@click.option(
    "--projection", type=click.IntRange(1, 2**63 - 1), help="A version other than the active one."
)
@click.option(
    "--compare",
    "versions",
    nargs=2,
    type=VersionType(),
    metavar="A B",
    help="Two versions (numbers, or 'active'): what changed from A to B, for which queries.",
)
@click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="With --compare: write reliability.png and gains.png there.",
)
@click.option(
    "--measure",
    type=click.Choice(list(MEASURES)),
    help=f"With --compare: by which queries gain and lose.  [default: {MEASURE}]",
)
@click.option(
    "--examples",
    type=click.IntRange(0),
    help=f"With --compare: queries told of those that changed most.  [default: {EXAMPLES}]",
)
@click.option("--attend", type=AttendType(), metavar="N", help="A number of documents, or all.")
@click.option("--scorer", metavar="NAME", help="dot, cosine, laplace or additive.")
@click.option("--pool", metavar="NAME", help="max or sum: how a document's keys make its logit.")
@click.option("--lexical", metavar="X", help="The weight of shared words: a number, on or off.")
def evaluate_command(
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    queries: Path | None,
    qrels: Path | None,
    versions: tuple[VersionName, VersionName] | None,
    history: str | None,
    cold: Path | None,
    **given: Any,
) -> None:
    """Measure rankings against judgements, as trec_eval does; or recommendations.

    With --compare, two versions side by side: every measure with its interval, the difference
    and whether it could be chance, the queries that gained and lost most, and how true the
    confidence is.

    Queries are read as `teach` reads them. A grade above 0 is relevant, to nDCG by its size; one
    of 0 or below is not.

    With --interactions, what is recommended to its users against what they met there: nDCG and
    recall of the first ten of all documents but those of the history, and the share of all
    documents (coverage) and the surprise (novelty) in these lists. Where they gave numbers, the
    errors (rmse, mae) of what is predicted from their history.

    \b
    Example:
      attend evaluate --data library --queries queries.jsonl --qrels qrels/test.tsv
      attend evaluate --data library --queries queries.jsonl --qrels qrels/test.tsv \\
        --compare 1 active --plots pictures
      attend evaluate --data library --interactions test.tsv --history train.tsv
    """
    met = InteractionFile.taken_from(given)
    options = {name: value for name, value in given.items() if value is not None}
    _check_options(options, versions)
    _check_what(met is not None, queries, qrels, (history, cold))
    if met is not None and (versions or options.keys() - {"projection"}):
        raise click.UsageError("Beside --interactions, of the options only --projection applies.")
    opened = open_collection(folder, collection, precision)
    if met is not None:
        evaluate_interactions(opened, met, history, cold, options.get("projection"), as_json)
        return
    assert queries is not None  # as was checked
    assert qrels is not None
    asked = read_queries(queries, vectors=opened.settings.encoder is None)
    grades = read_qrels(qrels)
    if versions is None:
        _evaluate(opened, asked, grades, as_json, options)
    else:
        _compare(opened, asked, grades, as_json, versions, options)


def _evaluate(
    collection: Collection,
    queries: dict[str, QueryInput],
    qrels: Qrels,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    with _progress(len(judged_queries(queries, qrels))) as progress:
        found = evaluate(collection, queries, qrels, on_progress=progress.update, **options)
    _tell_unknown(found)
    intervals = found.intervals()
    measures = {name: round(value, 5) for name, value in found.measures.items()}
    result = {
        **measures,
        "intervals": {name: bounds(each) for name, each in intervals.items()},
        "queries": found.queries,
        "unknown_documents": found.unknown_documents,
    }
    rows: list[tuple[str, object]] = [
        (name, f"{value:.4f}  {span(intervals[name])}") for name, value in measures.items()
    ]
    show(as_json, result, f"{table(rows)}\nIn brackets: 95 % intervals.")


def _compare(
    collection: Collection,
    queries: dict[str, QueryInput],
    qrels: Qrels,
    as_json: bool,
    versions: tuple[VersionName, VersionName],
    options: dict[str, Any],
) -> None:
    folder = options.pop("plots", None)
    by = options.pop("measure", MEASURE)
    with _progress(2 * len(judged_queries(queries, qrels))) as progress:
        found = compare(
            collection, queries, qrels, versions, by=by, on_progress=progress.update, **options
        )
    _tell_unknown(found.after.evaluation)
    if found.disturbed:
        click.echo("Documents changed during the comparison; repeat it when none do.", err=True)
    plots = [] if folder is None else draw(found, folder)
    written = [f"Written: {', '.join(map(str, plots))}"] if plots else []
    show(as_json, comparison_json(found, plots).json(), "\n\n".join([as_text(found), *written]))


def _check_options(
    options: dict[str, Any], versions: tuple[VersionName, VersionName] | None
) -> None:
    if versions is not None and "projection" in options:
        raise click.UsageError("--compare names its versions itself; leave --projection out.")
    alone = [f"--{name}" for name in _WITH_COMPARE if name in options]
    if versions is None and alone:
        raise click.UsageError(f"{' and '.join(alone)} speak of a comparison; add --compare A B.")


def _check_what(
    met: bool, queries: Path | None, qrels: Path | None, beside: tuple[object, ...]
) -> None:
    """Raises UsageError unless it is queries with qrels, or interactions."""
    if met and (queries or qrels):
        raise click.UsageError("Give --queries with --qrels, or --interactions; not both.")
    if not met and any(beside):
        raise click.UsageError("--history and --cold go with --interactions; give it.")
    if not met and not (queries and qrels):
        raise click.UsageError("Give --queries with --qrels, or --interactions.")


def _progress(queries: int) -> tqdm[Any]:
    return tqdm(total=queries, unit="query", desc="ranking", file=sys.stderr)


def _tell_unknown(found: Evaluation) -> None:
    if found.unknown_documents:
        click.echo(
            f"{found.unknown_documents} relevant documents are not in the collection; they count "
            f"as not found.",
            err=True,
        )
