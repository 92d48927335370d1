"""`attend search` and `recommend`; and `evaluate`: measures of both, and two versions compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field
from tqdm import tqdm

from attend.api.answers import Answer, Hit, Predicted, Recommendation, Recommended, shortened
from attend.api.learning import ComparisonAnswer, QueryDifference
from attend.api.recommend import RecommendRequest
from attend.api.search import SearchOptions
from attend.cli import common
from attend.cli.learning import InteractionFile
from attend.collection.collection import Collection
from attend.core.errors import InvalidRequest
from attend.core.liking import Liking, chosen_liking, is_liked
from attend.core.types import Json
from attend.measure import interactions, plots, rankings
from attend.measure.rankings import EXAMPLES, MEASURE, VersionName, compare
from attend.measure.statistics import Interval
from attend.measure.uses import MAX_USED
from attend.search.foreign import FEW
from attend.source.rows import as_vector
from attend.store import Interaction, StoredDocument
from attend.values.kinds import as_numbers

SNIPPET = 100
"""Characters of a text that are printed."""

MOST_ID = 24
"""Characters up to which the column of ids is as wide as its longest."""

REMINDERS = 3
"""Questions that are printed of those that moved the query."""

LEAST_SHARE = 0.05
"""Questions with less of a share are not printed."""

_INDENT = " " * 14


class OtherQueries(common.CommandOptions):
    """What a search may have beside or instead of QUERY."""

    likes: Annotated[list[str], "ID"] = Field([])
    """More like this document; repeatable."""
    vector: Annotated[Any, common.JsonType(list), "V"] = None
    """Query vector: a JSON list of numbers, or a file that holds one."""


class UserOptions(common.CommandOptions):
    """What the command line tells of a user, in place of the lists of a request."""

    likes: Annotated[list[str], "ID"] = Field([])
    """More like it; repeatable."""
    unlikes: Annotated[list[str], "ID"] = Field([])
    """Less like it; repeatable."""
    facts: Annotated[list[str], "TEXT|F=V"] = Field([])
    """A part of the user's profile: a text, or a field with its value; repeatable."""
    targets: Annotated[list[str], "ID"] = Field([])
    """Predict the user's value of it from the values of the history; repeatable."""
    with_seen: bool = False
    """Also list documents of the user's history."""
    request: Annotated[dict[str, Any] | None, common.JsonType(dict)] = None
    """The whole request as HTTP takes it (weights, values, times, vectors), or a file of it."""

    def fields(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the fields of a request: those of --request, then the others."""
        request = self.request or {}
        lists = {
            "positive": self.likes,
            "negative": self.unlikes,
            "target": self.targets,
            "facts": [_fact(fact) for fact in self.facts],
            "history": [*request.get("history", []), *ids] if ids else [],
        }
        seen = {"exclude_seen": False} if self.with_seen else {}
        return request | {name: items for name, items in lists.items() if items} | seen


@common.collection_command("search")
@click.argument("query", required=False)
@common.model_options(
    SearchOptions, "k", "mode", "value", "attend", "filter", "temperature", "scorer"
)
@common.model_options(
    SearchOptions, "scale", "pool", "recall", "lexical", "min_confidence", "projection"
)
@common.model_options(SearchOptions, "coverage", "recency", "now")
@common.model_options(SearchOptions, "memory", "rerank")
@common.model_options(OtherQueries)
@common.model_options(
    SearchOptions, "include", "fields", "offset", "min_score", "group_by", "diversity", "facets"
)
@common.model_options(SearchOptions, "highlight", "cursor")
def search_command(target: common.Target, query: str | None, **options: Any) -> None:
    """Search documents.

    QUERY is text, or a JSON list of numbers for a collection of vectors. --vector takes its
    place, also in a collection of texts; beside it, QUERY counts by its words (--lexical) and the
    vector is compared with the keys. With --like it may be left out; with both, the query is
    a blend of them.

    \b
    Example:
      attend search "compress a file" --data library --mode soft --value module
      attend search "[0.1, 0.7]" --data library --collection vectors
      attend search --vector query.json --data library --collection vectors
    """
    others = OtherQueries.take(options)
    vector = others.vector
    if vector is not None and as_vector(vector) is None:
        raise click.UsageError(
            f"--vector is {common.quoted(str(vector))}, but a list of finite numbers is expected."
        )
    if query is None and vector is None and not others.likes:
        raise click.UsageError("Give a QUERY, a --vector, or --like with the id of a document.")
    collection = target.collection()
    request: Any = vector
    if query is not None:
        both = {"text": query, "vector": vector}
        request = _parsed_query(query, collection) if vector is None else both
    if request is None:
        blend: Any = {"ids": others.likes}
    elif others.likes:
        blend = {"blend": [request, *({"id": id} for id in others.likes)]}
    else:
        blend = request
    if isinstance(request, str):
        collection.encoder()  # loaded now: took_ms is the time of the search
    answer = collection.search(blend, explain=True, **common.present(options))
    target.show(answer.json(), _text(answer, str(options["mode"])))


def _parsed_query(query: str, collection: Collection) -> str | list[float]:
    """Return a text, or a vector where the collection has no encoder.

    Raises:
        InvalidRequest: the collection needs a vector, and QUERY is no list.
    """
    # Text may begin with a bracket: a list of numbers is a vector where there is no encoder.
    if collection.settings.encoder:
        return query
    vector = as_vector(query)
    if vector is None:
        width = collection.settings.dimension
        raise InvalidRequest(
            f"The collection {collection.name!r} was made for vectors of {width} dimensions, but "
            f"QUERY is {common.quoted(query)}; give a JSON list of {width} numbers, or --vector "
            f"with such a list or a file that holds one.",
            field="query",
        )
    return vector


def _text(answer: Answer, mode: str) -> str:
    lines = _listing(answer.hits, [_passage(hit) for hit in answer.hits], digits=3)
    if not answer.attended:
        lines.append("No documents: none passes the filter, or the collection is empty.")
    elif not answer.answered:
        confidence = "" if answer.confidence is None else f" (confidence {answer.confidence:.3f})"
        lines.append(f"No answer: nothing here answers that{confidence}.")
    if answer.coverage is not None and not answer.coverage.covers:
        most = answer.coverage.k
        lines.append(
            f"No list of at most {most} documents covers at a rate of {answer.coverage.rate:g}."
        )
    # That a small collection has no test is no news at every search; `info` says it.
    lines += [hint for hint in answer.hints or () if hint != FEW]
    if mode == "soft":
        parts = {name: part for name, part in answer.answer.items() if part is not None}
        lines.append(f"answer: {json.dumps(common.rounded(parts), ensure_ascii=False)}")
    reminders = [share for share in answer.memory or () if share.share >= LEAST_SHARE]
    for share in reminders[:REMINDERS]:
        query = "a vector" if share.query is None else json.dumps(share.query, ensure_ascii=False)
        lines.append(f"moved by feedback: {share.share:.3f} {query} ({', '.join(share.documents)})")
    for name, facet in (answer.facets or {}).items():
        counts = [
            f"{json.dumps(entry.value, ensure_ascii=False)} {entry.documents}"
            for entry in facet.values
        ]
        lines.append(f"{name}: {', '.join(counts)} ({facet.distinct} values)")
    return "\n".join(lines)


def _listing(hits: Sequence[Hit | Recommendation], texts: Sequence[str], digits: int) -> list[str]:
    """Return a header, and a line for each hit with the beginning of its text below.

    Args:
        texts: the passage that matched, or the document's text.
        digits: of the weights, after the point.
    """
    if not hits:
        return []
    width = min(max(len("id"), *(len(hit.id) for hit in hits)), MOST_ID)
    has_values = any(hit.value is not None for hit in hits)
    lines = [f"rank  weight  {'id':<{width}}{'  value' if has_values else ''}".rstrip()]
    for rank, (hit, text) in enumerate(zip(hits, texts, strict=True), start=1):
        value = "" if hit.value is None else f"  {json.dumps(hit.value, ensure_ascii=False)}"
        line = f"{rank:>4}  {hit.weight:6.{digits}f}  {hit.id:<{width}}{value}"
        full = hit.text or hit.passage  # the caller wants all of it
        below = [full.replace("\n", f"\n{_INDENT}") if full else shortened(text, SNIPPET)]
        if isinstance(hit, Recommendation):
            below += [] if hit.because is None else [f"because of {_shares(hit.because)}"]
            below += [] if hit.against is None else [f"against it {_shares(hit.against)}"]
        elif hit.group_size is not None:
            line += f"  ({hit.group_size} in {json.dumps(hit.group)})"
        lines += [line.rstrip(), *(f"{_INDENT}{part}" for part in below if part)]
    return lines


def _passage(hit: Hit) -> str:
    """Return the passage that matched, with highlighted words in brackets."""
    if hit.highlight is None:
        return str((hit.explanation or {}).get("passage") or "")
    passage = hit.highlight.passage or ""
    for start, stop in reversed(hit.highlight.spans):
        passage = f"{passage[:start]}[{passage[start:stop]}]{passage[stop:]}"
    return passage


@common.collection_command("recommend")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@common.model_options(RecommendRequest, "user")
@common.model_options(UserOptions, "likes", "unlikes", "facts", "targets")
@common.model_options(RecommendRequest, "k", "filter")
@common.model_options(UserOptions, "with_seen")
@common.model_options(
    RecommendRequest, "on_missing", "half_life", "diversity", "reserve", "explain"
)
@common.model_options(RecommendRequest, "projection", "include", "fields")
@common.model_options(UserOptions, "request")
def recommend_command(target: common.Target, ids: tuple[str, ...], **options: Any) -> None:
    """Recommend what may come next after the documents IDs.

    \b
    Example:
      attend recommend dune emma --data library -k 5 --explain
      attend recommend --user ann --data library --diversity 0.3
      attend recommend --user ann --target dune --data library
    """
    fields = UserOptions.take(options).fields(ids)
    collection = target.collection()
    answer = collection.recommend(**fields | common.present(options))
    if isinstance(answer, Predicted):
        text = _predictions(answer, options["explain"])
    else:
        text = _recommended(answer, collection.store.find([hit.id for hit in answer.hits]))
    target.show(answer.json(), text)


def _fact(text: str) -> dict[str, Json]:
    """Parse `field=value`, or a text. A value that reads as a number or boolean is one."""
    field, equals, value = text.partition("=")
    if not equals or not field.strip() or " " in field.strip():
        return {"text": text}
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = value
    plain = isinstance(parsed, str | int | float | bool)
    return {"field": field.strip(), "value": parsed if plain else value}


def _recommended(answer: Recommended, documents: Mapping[str, StoredDocument]) -> str:
    stored = [documents.get(hit.id) for hit in answer.hits]
    # A document of vectors has no text.
    texts = [next(iter(document.fields.values()), "") if document else "" for document in stored]
    lines = _listing(answer.hits, texts, digits=4)
    if not lines:
        lines = ["Nothing is left to recommend: every document is seen or filtered out."]
    return "\n".join([*lines, *_omissions(answer)])


def _shares(because: Any) -> str:
    return ", ".join(f"{_name(part)} {part['weight']:.2f}" for part in because[:3])


def _predictions(answer: Predicted, explain: bool) -> str:
    lines = []
    for prediction in answer.predictions:
        value = prediction.get("mean", prediction.get("value"))
        text = f"{value:.3f}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
        std = prediction.get("std")
        spread = f" ± {std:.3f}" if isinstance(std, float) else ""
        confidence = f"(confidence {prediction['confidence']:.3f})"
        lines.append(f"{_name(prediction)}  {text}{spread}  {confidence}")
        if explain:
            nothing = f"nothing in the history {prediction['null']:.2f}"  # the no-answer weight
            lines.append(f"   because of {_shares(prediction['because'])}, {nothing}")
    return "\n".join([*lines, *_omissions(answer)])


def _omissions(answer: Recommended | Predicted) -> list[str]:
    lines = []
    if answer.history["used"] < answer.history["given"]:
        lines.append(f"{answer.history['used']} of {answer.history['given']} parts were used.")
    if answer.missing:
        lines.append(f"Missing: {', '.join(_name(part) for part in answer.missing)}.")
    return lines


def _name(part: Any) -> str:
    kind = next(name for name in ("id", "text", "fact", "user", "vector") if name in part)
    if kind == "fact" and "value" in part:
        return f"{part['fact']}={part['value']}"
    return "a vector" if kind == "vector" else str(part[kind])


# -- evaluate --------------------------------------------------------------------------------------


def version(text: Any) -> VersionName:
    """Read a projection version, or `active`."""
    return "active" if text == "active" else common.VERSION.convert(text, None, None)


class EvaluationFiles(common.CommandOptions):
    """The files of an evaluation, and the options of a comparison."""

    queries: common.InputFile = None
    """JSON lines: _id, and text or vector."""
    qrels: common.InputFile = None
    """query id, document id, grade (any number)."""
    run: Annotated[Path | None, click.Path(dir_okay=False, path_type=Path)] = None
    """Also write the rankings there, as a run file of TREC for trec_eval, ranx and others."""
    history: Annotated[str | None, "FILE"] = None
    """With --interactions: earlier interactions of the users.  [default: the stored ones]"""
    cold: common.InputFile = None
    """With --interactions: ids of withheld documents, one in a line; only these are ranked, and
    they are removed from histories."""
    plots: Annotated[Path | None, common.FOLDER, "FOLDER"] = None
    """With --compare: write reliability.png and gains.png there."""
    measure: Annotated[str, click.Choice(list(rankings.MEASURES))] = MEASURE
    """With --compare: the measure by which queries gain and lose."""
    examples: Annotated[int, click.IntRange(0)] = EXAMPLES
    """With --compare: the number of most changed queries to list."""


@common.collection_command("evaluate")
@common.model_options(EvaluationFiles, "queries", "qrels", "run")
@common.model_options(InteractionFile)
@common.model_options(EvaluationFiles, "history", "cold")
@click.option(
    "--compare",
    "versions",
    nargs=2,
    type=version,
    metavar="A B",
    help="Two versions (numbers, or 'active'): the changes from A to B, and their queries.",
)
@common.model_options(EvaluationFiles, "plots", "measure", "examples")
@common.model_options(SearchOptions, "attend", "scorer", "pool", "lexical", "memory", "rerank")
@common.model_options(SearchOptions, "projection", "recency", "now")
def evaluate_command(target: common.Target, **options: Any) -> None:
    """Measure rankings against judgements, as trec_eval does; or recommendations.

    With --compare, two versions side by side: every measure with its interval, the difference
    and its significance, the queries that gained and lost most, and the calibration of the
    confidence.

    With --run, the rankings are written, too, for other tools.

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
      attend evaluate --data library --queries queries.jsonl --qrels qrels/test.tsv --run run.trec
      attend evaluate --data library --interactions test.tsv --history train.tsv
    """
    test, files = InteractionFile.take(options), EvaluationFiles.take(options)
    versions, options = options.pop("versions"), common.present(options)
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
    if files.run is not None and (versions or test):
        raise click.UsageError(
            "--run writes the rankings of one version; leave --compare and --interactions out."
        )
    if test:
        if judgements:
            raise click.UsageError("Give --queries with --qrels, or --interactions; not both.")
    elif named & {"history", "cold"}:
        raise click.UsageError("--history and --cold go with --interactions; give it.")
    elif len(judgements) < 2:
        raise click.UsageError("Give --queries with --qrels, or --interactions.")
    elif {"delimiter", "no_header"} & test.model_fields_set:
        raise click.UsageError("--delimiter and --no-header are about --interactions; give it.")
    common.checked(SearchOptions, options)
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
            ranked = rankings.rank(collection, judged, on_progress=bar.update, **options)
        evaluation = rankings.measure({id: qrels[id] for id in judged}, ranked.run(), collection)
        unknown = evaluation.unknown_documents
        _warn(unknown)
        result, lines = _shown(evaluation.intervals())
        result |= {"queries": evaluation.queries, "unknown_documents": unknown}
        text = f"{common.table(lines)}\nIn brackets: 95 % intervals."
        if files.run is not None:
            ranked.write(files.run)
            result["run"] = str(files.run)
            text += f"\nThe rankings are in {files.run}."
        return result, text
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
    if files.history is not None:
        earlier: Sequence[Interaction] = test.read(collection, files.history).entries
    else:
        count, _ = collection.store.interaction_counts()
        earlier = collection.store.interaction_page((0, 0), count)[0]
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
    shares = {"coverage": evaluation.coverage, "novelty": evaluation.novelty}
    result |= {"liked_from": liking.liked_from, **shares, **counts}
    return result, f"{common.table(lines)}\nIn brackets: 95 % intervals over users."


def _liking(
    collection: Collection, liked_from: float | None, entries: Sequence[Interaction]
) -> Liking:
    """Return the threshold of likes: as it is named, of the collection, or of these entries."""
    if liked_from is not None:
        return Liking(liked_from, "set")
    stored = collection.store.liking()
    return stored if stored.source else chosen_liking(as_numbers([e.value for e in entries]))


def _shown(intervals: Mapping[str, Interval]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return measures for --json, and the lines of a table."""
    measures = {name: interval.mean for name, interval in intervals.items()}
    bounds = {name: interval.bounds for name, interval in intervals.items()}
    lines = [(name, f"{value:.4f}  {span(bounds[name])}") for name, value in measures.items()]
    return {**measures, "intervals": bounds}, lines


@common.collection_command("compare")
@click.argument("before", type=version)
@click.argument("after", type=version)
@click.option("--from-log", is_flag=True, help="By what people used of logged searches.")
def compare_command(
    target: common.Target, before: VersionName, after: VersionName, from_log: bool
) -> None:
    """Compare two versions (numbers, or 'active') on the stored feedback, or by use.

    With --from-log, by which hits of logged searches served: interleaved searches tell which
    version is better, with a p-value that holds whenever you look, and all used searches how well
    either orders what was shown.

    \b
    Example:
      attend compare 1 active --data library
      attend compare 3 4 --from-log --data library
    """
    collection = target.collection()
    if not from_log:
        comparison = rankings.compare_judged(collection, (before, after))
        target.show(comparison.json(), as_text(comparison))
        return
    numbers = [None if name == "active" else name for name in (before, after)]
    logged = collection.compare_from_log(*numbers, queries=MAX_USED)
    rows = [("version", "wins", "gain of a use", "95 % interval", "hits shown")]
    for side in (logged.before, logged.after):
        shown = "-" if side.coverage is None else f"{side.coverage:.2f}"
        gain = "-" if side.gain is None else f"{side.gain:.4f}"
        bounds = "-" if side.interval is None else span(side.interval)
        rows.append((str(side.projection), str(side.wins), gain, bounds, shown))
    lines = [logged.sentence, "", common.table(rows)]
    if logged.gain is not None and logged.gain_interval is not None:
        difference = f"{logged.gain:+.4f} {span(logged.gain_interval, '+')}"
        lines.append(f"Gain, after less before: {difference}, by {logged.searches} used searches.")
    target.show(logged.json(), "\n".join(lines))


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
        f"{common.table(rows)}\nIn brackets: 95 % intervals. p: paired randomisation, two-sided.",
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
