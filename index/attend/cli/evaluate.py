"""`attend evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
from tqdm import tqdm

from attend.api.answers import Recommended
from attend.api.base import Request
from attend.api.search import SearchOptions
from attend.cli.comparison import as_text, span
from attend.cli.feedback import InteractionFile
from attend.cli.options import (
    VERSION,
    InputFile,
    Target,
    checked,
    model_options,
    on_collection,
    present,
    take,
)
from attend.cli.output import table
from attend.collection.collection import Collection
from attend.core.liking import Liking, chosen_liking, is_liked
from attend.core.types import QueryInput
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
from attend.measure.plots import check_installed, draw
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
from attend.values import as_numbers

PAGE = 10_000
"""Stored interactions read at once."""

_OPTIONS = ("attend", "scorer", "pool", "lexical", "memory", "rerank", "projection")
"""Options of the searches whose rankings are measured."""


class VersionType(click.ParamType[VersionName]):
    """A projection version, or `active`."""

    name = "version"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> VersionName:
        return "active" if value == "active" else VERSION.convert(value, param, ctx)


class EvaluationFiles(Request):
    """The files of an evaluation, and the options of a comparison."""

    queries: InputFile = None
    """JSON lines: _id, and text or vector."""
    qrels: InputFile = None
    """query id, document id, grade (any number)."""
    history: Annotated[str | None, "FILE"] = None
    """With --interactions: earlier interactions of the users.  [default: the stored ones]"""
    cold: InputFile = None
    """With --interactions: ids of withheld documents, one in a line; only these are ranked, and
    they are removed from histories."""
    plots: Annotated[Path | None, click.Path(file_okay=False, path_type=Path), "FOLDER"] = None
    """With --compare: write reliability.png and gains.png there."""
    measure: Annotated[str, click.Choice(list(MEASURES))] = MEASURE
    """With --compare: the measure by which queries gain and lose."""
    examples: Annotated[int, click.IntRange(0)] = EXAMPLES
    """With --compare: the number of most changed queries to list."""


@click.command("evaluate")
@on_collection
@model_options(EvaluationFiles, "queries", "qrels")
@model_options(InteractionFile)
@model_options(EvaluationFiles, "history", "cold")
@click.option(
    "--compare",
    "versions",
    nargs=2,
    type=VersionType(),
    metavar="A B",
    help="Two versions (numbers, or 'active'): the changes from A to B, and their queries.",
)
@model_options(EvaluationFiles, "plots", "measure", "examples")
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
    interactions = take(InteractionFile, options)
    files = take(EvaluationFiles, options)
    versions, options = options.pop("versions"), present(options)
    _check_options(files, interactions, versions, options)
    if files.plots is not None:
        check_installed()
    collection = target.collection()
    if interactions:
        result, text = _evaluate_recommendations(collection, interactions, files, options)
    else:
        encoding = interactions.encoding
        result, text = _evaluate_rankings(collection, files, versions, encoding, options)
    target.show(result, text)


def _check_options(
    files: EvaluationFiles,
    interactions: InteractionFile,
    versions: tuple[VersionName, VersionName] | None,
    options: Mapping[str, Any],
) -> None:
    """Raise UsageError for options that do not go together."""
    named = files.model_dump(exclude_unset=True)
    if versions and "projection" in options:
        raise click.UsageError("--compare names its versions itself; leave --projection out.")
    of_comparisons = [f"--{name}" for name in ("plots", "measure", "examples") if name in named]
    if of_comparisons and not versions:
        raise click.UsageError(f"{' and '.join(of_comparisons)} need a comparison; add --compare.")
    judgements = named.keys() & {"queries", "qrels"}
    if interactions and judgements:
        raise click.UsageError("Give --queries with --qrels, or --interactions; not both.")
    if not interactions and named.keys() & {"history", "cold"}:
        raise click.UsageError("--history and --cold go with --interactions; give it.")
    if not interactions and len(judgements) < 2:
        raise click.UsageError("Give --queries with --qrels, or --interactions.")
    if not interactions and {"delimiter", "no_header"} & interactions.model_fields_set:
        raise click.UsageError("--delimiter and --no-header are about --interactions; give it.")
    checked(SearchOptions, options)
    if interactions and (versions or options.keys() - {"projection"}):
        raise click.UsageError("Beside --interactions, of the options only --projection applies.")


def _evaluate_rankings(
    collection: Collection,
    files: EvaluationFiles,
    versions: tuple[VersionName, VersionName] | None,
    encoding: str | None,
    options: dict[str, Any],
) -> tuple[dict[str, Any], str]:
    """Rank the judged queries, with both versions if two are named; return measures and text."""
    assert files.queries is not None and files.qrels is not None  # noqa: PT018 # as was checked
    vectors = collection.settings.encoder is None
    queries = read_queries(files.queries, vectors=vectors, encoding=encoding)
    qrels = read_qrels(files.qrels, encoding)
    judged = judged_queries(queries, qrels)
    if versions is not None:
        return _compare(collection, judged, qrels, versions, files, options)
    with _ranking(len(judged)) as bar:
        evaluation = evaluate(collection, judged, qrels, on_progress=bar.update, **options)
    _warn(evaluation.unknown_documents)
    result, lines = _shown(evaluation.intervals())
    result["queries"] = evaluation.queries
    result["unknown_documents"] = evaluation.unknown_documents
    return result, f"{table(lines)}\nIn brackets: 95 % intervals."


def _compare(
    collection: Collection,
    queries: Mapping[str, QueryInput],
    qrels: Qrels,
    versions: tuple[VersionName, VersionName],
    files: EvaluationFiles,
    options: dict[str, Any],
) -> tuple[dict[str, Any], str]:
    """Rank the judged queries with both versions; return their comparison, also as text."""
    options |= {"by": files.measure, "examples": files.examples}
    with _ranking(2 * len(queries)) as bar:
        comparison = compare(
            collection, queries, qrels, versions, on_progress=bar.update, **options
        )
    _warn(comparison.unknown_documents)
    if comparison.disturbed:
        click.echo("Documents changed during the comparison; repeat it when none do.", err=True)
    plots = [] if files.plots is None else draw(comparison, files.plots)
    comparison.plots = [str(path) for path in plots]
    written = [f"Written: {', '.join(comparison.plots)}"] if plots else []
    return comparison.json(), "\n\n".join([as_text(comparison), *written])


def _ranking(queries: int) -> tqdm[Any]:
    return tqdm(total=queries, unit="query", desc="ranking", file=sys.stderr, disable=None)


def _warn(unknown: int) -> None:
    if unknown:
        click.echo(
            f"{unknown} relevant documents are not in the collection; they count as not retrieved.",
            err=True,
        )


def _evaluate_recommendations(
    collection: Collection, test: InteractionFile, files: EvaluationFiles, options: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Recommend to the users of a test, and compare with their interactions there."""
    later = test.read(collection).entries
    stored = files.history is None
    earlier = _stored(collection) if stored else test.read(collection, files.history).entries
    withheld = None if files.cold is None else _withheld(collection, files.cold)
    liking = _liking(collection, test.liked_from, [*earlier, *later])
    click.echo(f"{test.interactions}: {liking}", err=True)
    protocol = protocol_of(later, earlier, withheld, liking.liked_from)
    catalogue = collection.store.counts()[0] if withheld is None else len(withheld)
    condition = None if withheld is None else {"@id": {"in": withheld}}

    def recommend(user: str, interactions: UserHistory) -> Sequence[str]:
        likes = [is_liked(entry.value, liking.liked_from) for entry in interactions]
        history = [
            {"id": entry.document, "weight": float(liked)}
            for entry, liked in zip(interactions, likes, strict=True)
        ]
        answer = collection.recommend(history=history, k=CUT, filter=condition, **options)
        assert isinstance(answer, Recommended)  # as no target was named
        return [hit.id for hit in answer.hits]

    users = len(protocol.relevant)
    with tqdm(total=users, unit="user", file=sys.stderr, disable=None) as bar:
        evaluation = evaluate_recommendations(protocol, recommend, catalogue, bar.update)
    raters = numbers_by_user(
        entry for entry in later if withheld is None or entry.document in withheld
    )
    # Interactions without numbers have no predictions to show the progress of.
    hidden = not raters or None
    with tqdm(
        total=len(raters), unit="user", desc="predicting", file=sys.stderr, disable=hidden
    ) as bar:
        ratings = rating_errors(collection, protocol.histories, raters, bar.update)
    counts = {
        "users": len(evaluation.by_user),
        "users_without_history": protocol.without_history,
        "left_out": protocol.left_out,
        "ratings": 0 if ratings is None else len(ratings.errors),
    }
    result, lines = _shown(
        evaluation.intervals() | ({} if ratings is None else ratings.intervals())
    )
    lines += [
        ("coverage", f"{evaluation.coverage:.4f}"),
        ("novelty", f"{evaluation.novelty:.2f} bits"),
        *((name.replace("_", " "), str(count)) for name, count in counts.items()),
    ]
    result["liked_from"] = liking.liked_from
    result |= {"coverage": evaluation.coverage, "novelty": evaluation.novelty, **counts}
    return result, f"{table(lines)}\nIn brackets: 95 % intervals over users."


def _liking(
    collection: Collection, liked_from: float | None, entries: Sequence[Interaction]
) -> Liking:
    """Return the threshold of likes: as it is named, of the collection, or of these entries."""
    if liked_from is not None:
        return Liking(liked_from, "set")
    stored = collection.store.liking()
    return (
        chosen_liking(as_numbers([e.value for e in entries])) if stored.source is None else stored
    )


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
