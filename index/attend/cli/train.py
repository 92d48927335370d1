"""`attend train`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import click
import numpy as np

from attend.api.learning import FOR_OBJECTIVES, TrainRequest
from attend.cli.feedback import InteractionFile, LabelFiles, add_files
from attend.cli.options import Target, checked, model_options, on_collection, present, take
from attend.cli.output import Bar, end, interrupted, table
from attend.collection.collection import Collection
from attend.store import ROLES, State

HEADER = ("before", "after", "gain", "95 % interval", "p", "queries")


@click.command("train")
@on_collection
@model_options(LabelFiles)
@model_options(InteractionFile)
@click.option("--answers", is_flag=True, help="Learn from the stored values; see --objective.")
@model_options(
    TrainRequest, "share_seen", "seed", "dimensions", "heads", "parts", "error_rate", "tolerance"
)
@model_options(TrainRequest, "objective")
@click.option(
    "--no-promote", is_flag=True, help="Store the trained version, but do not activate it."
)
def train_command(target: Target, answers: bool, no_promote: bool, **options: Any) -> None:
    """Learn W_Q and W_K from examples, and activate them if significantly better.

    Learns from the files given, which are stored (see `teach`), and from all examples stored
    before, such as feedback. The result is measured on held-out queries: unless the gain is
    significant, and a loss is ruled out where documents are new, nothing changes.

    With --interactions, or --objective interactions, it learns what `recommend` answers: the next
    interactions of users, from all before; and if these have numbers, also the users' ratings of
    documents, as with --objective ratings.

    Exit status: 0 if the training ended, promoted or not; 3 if some rows of the files were
    rejected (--json has their number as `taught.skipped`).

    \b
    Example:
      attend train --data library --queries queries.jsonl --qrels qrels.tsv
      attend train --data library --clicks clicks.csv --share-seen 0.8
      attend train --data library --answers --value price
      attend train --data library --dimensions 64 --part matrices --part offsets
      attend train --data library --interactions ratings.tsv --user reader --item book
    """
    value = None
    if options["interactions"] is None:  # then --value is what --answers learns
        value, options["value"] = options["value"], None
    interactions, labels = take(InteractionFile, options), take(LabelFiles, options)
    options["value"] = value
    request = _request(answers, no_promote, present(options), bool(interactions))
    interactions.check_format(labels)
    if labels and interactions:
        raise click.UsageError("Examples and interactions teach different things; train for each.")
    if labels.delete_stored and not labels and not interactions:
        raise click.UsageError(
            "--delete-stored would leave nothing to learn from; give files as well."
        )
    collection = target.collection()
    before = collection.store.state()
    both = interactions and options["objective"] is None
    try:
        counts = None
        if labels or interactions:
            counts, sentence = add_files(collection, labels, interactions)
            click.echo(f"{collection.name}: {sentence}", err=True)
        report = _train(collection, request)
        ratings = _train_ratings(collection, request) if both else None
    except KeyboardInterrupt:
        _interrupted(collection, before)
    result = dict(report) if counts is None else {**report, "taught": counts}
    texts = [as_text(report)]
    if ratings is not None:
        result["ratings"] = dict(ratings)
        texts.append(f"Ratings of documents by users:\n{as_text(ratings)}")
    target.show(result, "\n\n".join(texts))
    end(0 if counts is None else counts["skipped"])


def _request(
    answers: bool, no_promote: bool, fields: dict[str, Any], interactions: bool
) -> dict[str, Any]:
    """Return the fields of a TrainRequest, checked before anything is stored."""
    if answers and fields.setdefault("objective", "answers") != "answers":
        raise click.UsageError("--answers is --objective answers; give one of them.")
    if interactions and fields.setdefault("objective", "interactions") in ("ranking", "answers"):
        raise click.UsageError(
            "--interactions go with the objectives interactions and ratings alone."
        )
    if no_promote:
        fields["promote"] = False
    checked(TrainRequest, fields)
    return fields


def _train(collection: Collection, request: Mapping[str, Any]) -> Mapping[str, Any]:
    from attend.learning import train  # here: torch takes seconds to import

    with Bar() as bar:
        return train(collection, progress=bar, cancelled=None, **request)


def _train_ratings(collection: Collection, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the report of learning ratings, if interactions have different numbers."""
    values = collection.store.interactions().values
    if len(np.unique(values[np.isfinite(values)])) < 2:
        return None
    shared = {name: value for name, value in request.items() if name not in FOR_OBJECTIVES}
    return _train(collection, {**shared, "objective": "ratings"})


def _interrupted(collection: Collection, before: State) -> NoReturn:
    store, now = collection.store, collection.store.state()
    changed = [now.active(role) for role in ROLES if now.active(role) != before.active(role)]
    promoted = f"version {changed[0]} was promoted" if changed else "nothing was promoted"
    interrupted(
        f"{promoted}, and nothing was lost. {store.example_count()} examples and "
        f"{store.interaction_counts()[0]} interactions are stored; the same command begins again."
    )


def as_text(report: Mapping[str, Any]) -> str:
    """Format a report for a person: the decision, its reason and the figures."""
    views = [split for split in report["views"].values() if split]
    means = [(split["before"], split["after"]) for split in views]
    rows = [_row(split["label"], split) for split in views]
    # A measure that has the means of a split is named in the corner; others have a row.
    corner = []
    for name in [name for name in report["before"] if name not in report["views"]]:
        before, after = report["before"][name], report["after"].get(name)
        if (before, after) in means:
            corner.append(name)
        elif after is not None:
            rows.append(_row(name, {"before": before, "after": after}))
    lines = [_verdict(report), ""]
    if rows:  # a training that could not begin measured nothing
        lines += [table([(", ".join(corner), *HEADER), *rows], right=True), ""]
        before = f"version {report['previous']}" if report["previous"] else "the untrained version"
        lines.append(f"test {report['tests']} against {before}, level {report['level']:.4f}")
    if report.get("chosen"):
        listed = ", ".join(f"{name} {_short(value)}" for name, value in report["chosen"].items())
        lines.append(f"chosen: {listed}")
    return "\n".join([*lines, f"{report['seconds']:.1f} s"])


def _verdict(report: Mapping[str, Any]) -> str:
    version = report["version"]
    if report["promoted"]:
        return f"Version {version} answers from now on. {report['reason']}"
    if version is not None:
        advice = f" 'projections activate {version}' makes it answer."
    else:  # a training that measured nothing has nothing to store either
        advice = " --no-promote stores it, to look at or activate." if report["views"] else ""
    return f"Nothing was promoted. {report['reason']}{advice}"


def _row(name: str, figures: Mapping[str, Any]) -> list[str]:
    before, after = figures["before"], figures["after"]
    gain = figures.get("difference", after - before)
    interval, p = figures.get("interval"), figures.get("p")
    return [
        name,
        f"{before:.3f}",
        f"{after:.3f}",
        f"{gain:+.3f}",
        "" if interval is None else f"[{interval[0]:+.3f}, {interval[1]:+.3f}]",
        "" if p is None else f"{p:.4f}",
        str(figures.get("queries", "")),
    ]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
