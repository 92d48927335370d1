"""`attend evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from attend.api.answers import Recommended
from attend.api.search import SearchOptions
from attend.cli.comparison import as_text, span
from attend.cli.feedback import InteractionFile, with_interactions
from attend.cli.options import (
    FILE,
    VERSION,
    Target,
    check_fields,
    model_options,
    on_collection,
    present,
    table,
)
from attend.collection import Collection
from attend.measure.compare import EXAMPLES, MEASURE, VersionName, compare
from attend.measure.interactions import (
    CUT,
    UserHistory,
    numbers_by_user,
    protocol_of,
    rating_errors,
    read_ids,
)
from attend.measure.interactions import evaluate as evaluate_recommendations
from attend.measure.plots import draw
from attend.measure.rankings import (
    MEASURES,
    Qrels,
    evaluate,
    judged_queries,
    read_qrels,
    read_queries,
)
from attend.measure.statistics import Interval
from attend.store import Interaction
from attend.types import QueryInput

PAGE = 10_000
"""Stored interactions read at once."""

_OPTIONS = ("attend", "scorer", "pool", "lexical", "projection")
"""Options of the searches whose rankings are measured."""

_WITH_COMPARE = ("plots", "measure", "examples")
"""Options of a comparison alone."""


class VersionType(click.ParamType[VersionName]):
    """A projection version, or `active`."""

    name = "version"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> VersionName:
        return "active" if value == "active" else VERSION.convert(value, param, ctx)


@click.command("evaluate")
@on_collection
@click.option("--queries", type=FILE, help="JSON lines: _id, and text or vector.")
@click.option("--qrels", type=FILE, help="query id, document id, grade (any number).")
@with_interactions
@click.option(
    "--history",
    metavar="FILE",
    help="With --interactions: earlier interactions of the users.  [default: the stored ones]",
)
@click.option(
    "--cold",
    type=FILE,
    help="With --interactions: ids of withheld documents, one in a line; only these are ranked, "
    "and they are removed from histories.",
)
@click.option(
    "--compare",
    "versions",
    nargs=2,
    type=VersionType(),
    metavar="A B",
    help="Two versions (numbers, or 'active'): the changes from A to B, and their queries.",
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
    help=f"With --compare: the measure by which queries gain and lose.  [default: {MEASURE}]",
)
@click.option(
    "--examples",
    type=click.IntRange(0),
    help=f"With --compare: the number of most changed queries to list.  [default: {EXAMPLES}]",
)
@model_options(SearchOptions, *_OPTIONS)
def evaluate_command(target: Target, **options: Any) -> None:
    """Measure rankings against judgements, as trec_eval does; or recommendations.

    With --compare, two versions side by side: every measure with its interval, the difference
    and its significance, the queries that gained and lost most, and the calibration of the
    confidence.

    Queries are read as `teach` reads them. A grade above 0 is relevant, to nDCG by its size; one
    of 0 or below is not.

    With --interactions, recommendations to its users against their interactions there: nDCG and
    recall of the first ten of all documents but those of the history, and the share of all
    documents (coverage) and the surprise (novelty) in these lists. If the interactions have
    numbers, also the errors (rmse, mae) of predictions from the users' histories.

    \b
    Example:
      attend evaluate --data library --queries queries.jsonl --qrels qrels/test.tsv
      attend evaluate --data library --queries queries.jsonl --qrels qrels/test.tsv \\
        --compare 1 active --plots pictures
      attend evaluate --data library --interactions test.tsv --history train.tsv
    """
    interactions = InteractionFile.taken_from(options)
    options = present(options)
    _check_options(options, interactions)
    if interactions is not None:
        _evaluate_recommendations(target, interactions, options)
    elif "versions" in options:
        _compare(target, options)
    else:
        _evaluate(target, options)


def _check_options(options: Mapping[str, Any], interactions: InteractionFile | None) -> None:
    """Raises UsageError for options that do not go together."""
    if "versions" in options and "projection" in options:
        raise click.UsageError("--compare names its versions itself; leave --projection out.")
    of_comparisons = [f"--{name}" for name in _WITH_COMPARE if name in options]
    if "versions" not in options and of_comparisons:
        raise click.UsageError(f"{' and '.join(of_comparisons)} need a comparison; add --compare.")
    judgements = options.keys() & {"queries", "qrels"}
    if interactions is not None and judgements:
        raise click.UsageError("Give --queries with --qrels, or --interactions; not both.")
    if interactions is None and options.keys() & {"history", "cold"}:
        raise click.UsageError("--history and --cold go with --interactions; give it.")
    if interactions is None and len(judgements) < 2:
        raise click.UsageError("Give --queries with --qrels, or --interactions.")
    check_fields(SearchOptions, {name: options[name] for name in _OPTIONS if name in options})
    if interactions is not None and options.keys() - {"history", "cold", "projection"}:
        raise click.UsageError("Beside --interactions, of the options only --projection applies.")


def _evaluate(target: Target, options: dict[str, Any]) -> None:
    collection = target.collection()
    queries, qrels = _judgements(collection, options)
    with _progress(len(queries)) as progress:
        evaluation = evaluate(collection, queries, qrels, on_progress=progress.update, **options)
    _print_unknown(evaluation.unknown_documents)
    counts = {
        "queries": evaluation.queries,
        "unknown_documents": evaluation.unknown_documents,
    }
    result, text = _shown(evaluation.intervals())
    target.show(result | counts, f"{table(text)}\nIn brackets: 95 % intervals.")


def _judgements(
    collection: Collection, options: dict[str, Any]
) -> tuple[dict[str, QueryInput], Qrels]:
    """Read the judged queries, and the judgements."""
    vectors = collection.settings.encoder is None
    queries = read_queries(options.pop("queries"), vectors=vectors)
    qrels = read_qrels(options.pop("qrels"))
    return judged_queries(queries, qrels), qrels


def _compare(target: Target, options: dict[str, Any]) -> None:
    folder = options.pop("plots", None)
    versions = tuple(options.pop("versions"))
    by = options.pop("measure", MEASURE)
    collection = target.collection()
    queries, qrels = _judgements(collection, options)
    with _progress(2 * len(queries)) as progress:
        comparison = compare(
            collection, queries, qrels, versions, by=by, on_progress=progress.update, **options
        )
    _print_unknown(comparison.unknown_documents)
    if comparison.disturbed:
        click.echo("Documents changed during the comparison; repeat it when none do.", err=True)
    plots = [] if folder is None else draw(comparison, folder)
    comparison.plots = [str(path) for path in plots]
    written = [f"Written: {', '.join(comparison.plots)}"] if plots else []
    target.show(comparison.json(), "\n\n".join([as_text(comparison), *written]))


def _evaluate_recommendations(
    target: Target, test: InteractionFile, options: dict[str, Any]
) -> None:
    """Recommend to the users of a test, and compare with their interactions there."""
    collection = target.collection()
    later = test.read(collection).entries
    if "history" in options:
        earlier = test.read(collection, options["history"]).entries
    else:
        earlier = _stored(collection)
    withheld = _withheld(collection, options["cold"]) if "cold" in options else None
    protocol = protocol_of(later, earlier, withheld)
    catalogue = collection.store.counts()[0] if withheld is None else len(withheld)
    fields: dict[str, Any] = {"k": CUT, "projection": options.get("projection")}
    if withheld is not None:
        fields["filter"] = {"@id": {"in": withheld}}

    def recommend(user: str, interactions: UserHistory) -> Sequence[str]:
        history = [{"id": entry.document, "value": entry.value} for entry in interactions]
        answer = collection.recommend(history=history, **fields)
        assert isinstance(answer, Recommended)  # as no target was named
        return [hit.id for hit in answer.hits]

    with tqdm(total=len(protocol.relevant), unit="user", file=sys.stderr) as progress:
        evaluation = evaluate_recommendations(protocol, recommend, catalogue, progress.update)
    tested = [entry for entry in later if withheld is None or entry.document in withheld]
    raters = numbers_by_user(tested)
    # Interactions without numbers have no predictions to show the progress of.
    with tqdm(
        total=len(raters), unit="user", desc="predicting", file=sys.stderr, disable=not raters
    ) as progress:
        ratings = rating_errors(collection, protocol.histories, raters, progress.update)
    intervals = evaluation.intervals() | ({} if ratings is None else ratings.intervals())
    counts = {
        "users": len(evaluation.by_user),
        "users_without_history": protocol.without_history,
        "left_out": protocol.left_out,
        "ratings": 0 if ratings is None else len(ratings.errors),
    }
    result, lines = _shown(intervals)
    lines += [
        ("coverage", f"{evaluation.coverage:.4f}"),
        ("novelty", f"{evaluation.novelty:.2f} bits"),
        *((name.replace("_", " "), str(count)) for name, count in counts.items()),
    ]
    result |= {"coverage": evaluation.coverage, "novelty": evaluation.novelty, **counts}
    target.show(result, f"{table(lines)}\nIn brackets: 95 % intervals over users.")


def _withheld(collection: Collection, cold: Path) -> list[str]:
    """Return the withheld documents that the collection has."""
    ids = read_ids(cold)
    rows = collection.store.rows_of(ids)
    if len(rows) < len(ids):
        click.echo(f"{len(ids) - len(rows)} ids of {cold} are not in the collection.", err=True)
    return list(rows)


def _stored(collection: Collection) -> list[Interaction]:
    interactions: list[Interaction] = []
    after: tuple[int, int] | None = (0, 0)
    while after is not None:
        page = collection.store.interaction_page(after, PAGE)
        interactions += page.interactions
        after = page.next
    return interactions


def _shown(intervals: Mapping[str, Interval]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return measures for --json, and the lines of a table."""
    measures = {name: interval.mean for name, interval in intervals.items()}
    bounds = {name: interval.bounds for name, interval in intervals.items()}
    lines = [(name, f"{value:.4f}  {span(bounds[name])}") for name, value in measures.items()]
    return {**measures, "intervals": bounds}, lines


def _progress(queries: int) -> tqdm[Any]:
    return tqdm(total=queries, unit="query", desc="ranking", file=sys.stderr)


def _print_unknown(documents: int) -> None:
    if documents:
        click.echo(
            f"{documents} relevant documents are not in the collection; they count as not "
            f"retrieved.",
            err=True,
        )
