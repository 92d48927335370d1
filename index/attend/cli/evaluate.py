"""`attend evaluate`: measures of rankings and of recommendations, and two versions side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
from tqdm import tqdm

from attend.api.answers import Recommended
from attend.api.learning import ComparisonAnswer, QueryDifference
from attend.api.search import SearchOptions
from attend.cli.learning import InteractionFile
from attend.cli.options import (
    FOLDER,
    VERSION,
    CommandOptions,
    InputFile,
    Target,
    checked,
    collection_command,
    model_options,
    present,
)
from attend.cli.output import table
from attend.collection.collection import Collection
from attend.core.liking import Liking, chosen_liking, is_liked
from attend.measure import interactions, plots, rankings
from attend.measure.rankings import EXAMPLES, MEASURE, VersionName, compare
from attend.measure.statistics import Interval
from attend.store import Interaction
from attend.values import as_numbers

PAGE = 10_000
"""Stored interactions read at once."""

_OPTIONS = ("attend", "scorer", "pool", "lexical", "memory", "rerank", "projection")
"""Options of the searches whose rankings are measured."""


def version(text: Any) -> VersionName:
    """Read a projection version, or `active`."""
    return "active" if text == "active" else VERSION.convert(text, None, None)


class EvaluationFiles(CommandOptions):
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
    plots: Annotated[Path | None, FOLDER, "FOLDER"] = None
    """With --compare: write reliability.png and gains.png there."""
    measure: Annotated[str, click.Choice(list(rankings.MEASURES))] = MEASURE
    """With --compare: the measure by which queries gain and lose."""
    examples: Annotated[int, click.IntRange(0)] = EXAMPLES
    """With --compare: the number of most changed queries to list."""


@collection_command("evaluate")
@model_options(EvaluationFiles, "queries", "qrels")
@model_options(InteractionFile)
@model_options(EvaluationFiles, "history", "cold")
@click.option(
    "--compare",
    "versions",
    nargs=2,
    type=version,
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
    test, files = InteractionFile.take(options), EvaluationFiles.take(options)
    versions, options = options.pop("versions"), present(options)
    _check_options(files, test, versions, options)
    if files.plots is not None:
        plots.check_installed()
    collection = target.collection()
    if test:
        result, text = _evaluate_recommendations(collection, test, files, options)
    else:
        result, text = _evaluate_rankings(collection, files, versions, test.encoding, options)
    target.show(result, text)


def _check_options(
    files: EvaluationFiles,
    test: InteractionFile,
    versions: tuple[VersionName, VersionName] | None,
    options: Mapping[str, Any],
) -> None:
    """Raise UsageError for options that do not go together."""
    named = files.model_fields_set
    judgements = named & {"queries", "qrels"}
    if versions and "projection" in options:
        raise click.UsageError("--compare names its versions itself; leave --projection out.")
    of_comparisons = files.flags("plots", "measure", "examples").replace(", ", " and ")
    if of_comparisons and not versions:
        raise click.UsageError(f"{of_comparisons} need a comparison; add --compare.")
    if test:
        if judgements:
            raise click.UsageError("Give --queries with --qrels, or --interactions; not both.")
    elif named & {"history", "cold"}:
        raise click.UsageError("--history and --cold go with --interactions; give it.")
    elif len(judgements) < 2:
        raise click.UsageError("Give --queries with --qrels, or --interactions.")
    elif {"delimiter", "no_header"} & test.model_fields_set:
        raise click.UsageError("--delimiter and --no-header are about --interactions; give it.")
    checked(SearchOptions, options)
    if test and (versions or options.keys() - {"projection"}):
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
    queries = rankings.read_queries(files.queries, vectors=vectors, encoding=encoding)
    qrels = rankings.read_qrels(files.qrels, encoding)
    judged = rankings.judged_queries(queries, qrels)
    if versions is None:
        with _bar(len(judged), "query", "ranking") as bar:
            evaluation = rankings.evaluate(
                collection, judged, qrels, on_progress=bar.update, **options
            )
        unknown = evaluation.unknown_documents
        _warn(unknown)
        result, lines = _shown(evaluation.intervals())
        result |= {"queries": evaluation.queries, "unknown_documents": unknown}
        return result, f"{table(lines)}\nIn brackets: 95 % intervals."
    options |= {"by": files.measure, "examples": files.examples}
    with _bar(2 * len(judged), "query", "ranking") as bar:
        comparison = compare(collection, judged, qrels, versions, on_progress=bar.update, **options)
    _warn(comparison.unknown_documents)
    if comparison.disturbed:
        click.echo("Documents changed during the comparison; repeat it when none do.", err=True)
    pictures = [] if files.plots is None else plots.draw(comparison, files.plots)
    comparison.plots = [str(path) for path in pictures]
    written = [f"Written: {', '.join(comparison.plots)}"] if pictures else []
    return comparison.json(), "\n\n".join([as_text(comparison), *written])


def _bar(total: int, unit: str, stage: str | None = None) -> tqdm[Any]:
    """Return a bar on stderr, which nobody sees where there is nothing to do."""
    hidden = None if total else True
    return tqdm(total=total, unit=unit, desc=stage, file=sys.stderr, disable=hidden)


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
    withheld = None
    if files.cold is not None:
        ids = interactions.read_ids(files.cold)
        withheld = list(collection.store.rows_of(ids))
        if len(withheld) < len(ids):
            unknown = len(ids) - len(withheld)
            click.echo(f"{unknown} ids of {files.cold} are not in the collection.", err=True)
    liking = _liking(collection, test.liked_from, [*earlier, *later])
    click.echo(f"{test.interactions}: {liking}", err=True)
    protocol = interactions.protocol_of(later, earlier, withheld, liking.liked_from)
    catalogue = collection.store.counts()[0] if withheld is None else len(withheld)
    condition = None if withheld is None else {"@id": {"in": withheld}}

    def recommend(user: str, entries: interactions.UserHistory) -> Sequence[str]:
        history = [
            {"id": entry.document, "weight": float(is_liked(entry.value, liking.liked_from))}
            for entry in entries
        ]
        answer = collection.recommend(
            history=history, k=interactions.CUT, filter=condition, **options
        )
        assert isinstance(answer, Recommended)  # as no target was named
        return [hit.id for hit in answer.hits]

    with _bar(len(protocol.relevant), "user") as bar:
        evaluation = interactions.evaluate(protocol, recommend, catalogue, bar.update)
    raters = interactions.numbers_by_user(
        entry for entry in later if withheld is None or entry.document in withheld
    )
    with _bar(len(raters), "user", "predicting") as bar:
        ratings = interactions.rating_errors(collection, protocol.histories, raters, bar.update)
    counts = {
        "users": len(evaluation.by_user),
        "users_without_history": protocol.without_history,
        "left_out": protocol.left_out,
        "ratings": 0 if ratings is None else len(ratings.errors),
    }
    intervals = evaluation.intervals() | ({} if ratings is None else ratings.intervals())
    result, lines = _shown(intervals)
    lines += [
        ("coverage", f"{evaluation.coverage:.4f}"),
        ("novelty", f"{evaluation.novelty:.2f} bits"),
        *((name.replace("_", " "), str(count)) for name, count in counts.items()),
    ]
    result |= {"liked_from": liking.liked_from, "coverage": evaluation.coverage}
    result |= {"novelty": evaluation.novelty, **counts}
    return result, f"{table(lines)}\nIn brackets: 95 % intervals over users."


def _liking(
    collection: Collection, liked_from: float | None, entries: Sequence[Interaction]
) -> Liking:
    """Return the threshold of likes: as it is named, of the collection, or of these entries."""
    if liked_from is not None:
        return Liking(liked_from, "set")
    stored = collection.store.liking()
    return stored if stored.source else chosen_liking(as_numbers([e.value for e in entries]))


def _stored(collection: Collection) -> list[Interaction]:
    entries: list[Interaction] = []
    after: tuple[int, int] | None = (0, 0)
    while after is not None:
        page = collection.store.interaction_page(after, PAGE)
        entries += page.interactions
        after = page.next
    return entries


def _shown(intervals: Mapping[str, Interval]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return measures for --json, and the lines of a table."""
    measures = {name: interval.mean for name, interval in intervals.items()}
    bounds = {name: interval.bounds for name, interval in intervals.items()}
    lines = [(name, f"{value:.4f}  {span(bounds[name])}") for name, value in measures.items()]
    return {**measures, "intervals": bounds}, lines


def span(bounds: Sequence[float] | None, sign: str = "") -> str:
    """Write an interval as `[low, high]`."""
    if bounds is None:
        return "[one query]"
    return f"[{bounds[0]:{sign}.4f}, {bounds[1]:{sign}.4f}]"


def as_text(comparison: ComparisonAnswer) -> str:
    """Write the table, then the queries that gained and lost most."""
    before, after = comparison.before, comparison.after
    versions = f"before (version {before.projection})", f"after (version {after.projection})"
    rows: list[tuple[str, ...]] = [("", *versions, "after - before", "p")]
    for name, difference in comparison.differences.items():
        both = (f"{v.measures[name]:.4f} {span(v.intervals[name])}" for v in (before, after))
        gain = f"{difference.mean:+.4f} {span(difference.interval, '+')}"
        p = f"{difference.p:.4f}" if difference.p >= 0.0001 else "<0.0001"
        rows.append((name, *both, gain, p))
    errors = {
        name: f"{before.reliability[name].ece:.4f} before, {after.reliability[name].ece:.4f} after"
        for name in before.reliability
    }
    sections = [
        f"{table(rows)}\nIn brackets: 95 % intervals. p: paired randomisation, two-sided.",
        f"Expected calibration error of the best document's weight: {errors['weight']}; of the "
        f"confidence: {errors['confidence']}.",
        f"{comparison.measure}: {comparison.gained} of {comparison.queries} queries gained, "
        f"{comparison.lost} lost, {comparison.unchanged} did not change.",
    ]
    lists = {"Gained most": comparison.most_gained, "Lost most": comparison.most_lost}
    for title, queries in lists.items():
        if queries:
            sections.append(f"{title}:\n" + "\n".join(map(_query, queries)))
    return "\n\n".join(sections)


def _query(query: QueryDifference) -> str:
    lines = [
        f"  {query.query}  {query.before:.3f} -> {query.after:.3f} ({query.gain:+.3f})  "
        f"{' '.join(query.text.split())}"
    ]
    sides = {"before": query.documents_before, "after": query.documents_after}
    for name, documents in sides.items():
        for rank, document in enumerate(documents, start=1):
            grade = "not judged" if document.grade is None else f"grade {document.grade:g}"
            label = name if rank == 1 else ""
            line = f"    {label:<6} {rank}  {document.id} ({grade})  {document.text}"
            lines.append(line.rstrip())
        if not documents:
            lines.append(f"    {name:<6} nothing")
    return "\n".join(lines)
