"""`attend train`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np

from attend.api.base import parse
from attend.api.learning import PARTS
from attend.cli.common import Bar, interrupted, on_collection, open_collection, show
from attend.cli.interactions import InteractionFile, record_file, with_interactions
from attend.cli.interactions import sentence as recorded
from attend.cli.teach import Files, sentence, teach_files, with_files
from attend.collection import Collection
from attend.store import ROLES, State

VIEWS = {
    "ranking": {
        "random": "random queries",
        "unseen": "unseen documents",
        "mix": "mixed as in use",
    },
    "interactions": {
        "random": "withheld interactions",
        "unseen": "documents nobody met",
        "mix": "mixed as in use",
    },
    "ratings": {
        "random": "rated documents",
        "unseen": "unrated documents",
        "baseline": "above μ + b_i + b_u",
    },
}
"""The held-out views of objectives, as people read of them."""

HEADER = ("", "before", "after", "gain", "95 % interval", "p", "queries")


@click.command("train")
@on_collection
@with_files
@with_interactions
@click.option("--answers", is_flag=True, help="Learn from the stored values what makes them right.")
@click.option(
    "--share-seen",
    type=click.FloatRange(0, 1),
    help="Of queries in use, those about documents that examples speak of.  [default: 0.5]",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Of all that is drawn.")
@click.option("--dimensions", type=click.IntRange(1), help="d_k, where it is to be below d.")
@click.option(
    "--heads",
    type=click.IntRange(1, 1),
    help="1, as one head is learned; versions of several are added with their matrices.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help="What may take part, once for each; with 'matrices' alone, all of it can be exported.  "
    "[default: all]",
)
@click.option(
    "--error-rate",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Of queries that have an answer, those that may be told there is none.  [default: 0.05]",
)
@click.option(
    "--objective",
    type=click.Choice(["ranking", "answers", "interactions", "ratings"]),
    help="What is to come out better; --answers is short for answers, and --interactions FILE for "
    "interactions.  [default: ranking]",
)
@click.option("--no-promote", is_flag=True, help="Store what was learned without activating it.")
def train_command(
    folder: Path,
    collection: str,
    precision: str,
    as_json: bool,
    answers: bool,
    no_promote: bool,
    **given: Any,
) -> None:
    """Learn W_Q and W_K from examples, and answer by them if they are better beyond doubt.

    Learns from the files given, which are stored (see `teach`), and from all examples stored
    before, such as feedback. What was learned is measured on queries held out: unless the gain is
    significant, and nothing is lost where documents are new, nothing changes.

    With --interactions, or --objective interactions, it learns what `recommend` answers: what
    users meet next, from all that they met; and where these have numbers, what users would give
    documents as well, as with --objective ratings.

    \b
    Example:
      attend train --data library --queries queries.jsonl --qrels qrels.tsv
      attend train --data library --clicks clicks.csv --share-seen 0.8
      attend train --data library --answers --value price
      attend train --data library --dimensions 64 --part matrices --part offsets
      attend train --data library --interactions ratings.tsv --user reader --item book
    """
    met, chosen = _interactions(given), given["objective"] is not None
    files = Files.taken_from(given)
    request = _request(answers, no_promote, given, met is not None)
    if files and met is not None:
        raise click.UsageError("Examples and interactions teach different things; train for each.")
    if files.forget and not files and met is None:
        raise click.UsageError("--forget would leave nothing to learn from; give files as well.")
    opened = open_collection(folder, collection, precision)
    before = opened.store.state()
    try:
        taught = _taught(opened, files, met)
        report = _train(opened, request)
        also = _ratings_too(opened, request) if met is not None and not chosen else None
    except KeyboardInterrupt:
        _interrupted(opened, before)
    result = dict(report) if taught is None else {**report, "taught": taught}
    texts = [as_text(report)]
    if also is not None:
        result["ratings"] = dict(also)
        texts.append(f"What users would give documents:\n{as_text(also)}")
    show(as_json, result, "\n\n".join(texts))


def _interactions(given: dict[str, Any]) -> InteractionFile | None:
    """The file of interactions, if any; --value is one of its columns, or what --answers learns."""
    if given["interactions"] is None:
        given["value"] = given["value_column"]
        given["value_column"] = None
    return InteractionFile.taken_from(given)


def _taught(
    collection: Collection, files: Files, met: InteractionFile | None
) -> dict[str, int] | None:
    """What was stored of the files that were given, told on stderr."""
    if met is not None:
        taught = record_file(collection, met, strict=files.strict, forget=files.forget)
        click.echo(f"{collection.name}: {recorded(taught)}", err=True)
        return taught
    if not files:
        return None
    taught = teach_files(collection, files)
    click.echo(f"{collection.name}: {sentence(taught)}", err=True)
    return taught


def _request(
    answers: bool, no_promote: bool, given: Mapping[str, Any], met: bool
) -> dict[str, Any]:
    """The fields of a TrainRequest that were asked for; checked before anything is stored."""
    from attend.api.learning import TrainRequest

    fields = {name: value for name, value in given.items() if value not in (None, ())}
    if answers and fields.setdefault("objective", "answers") != "answers":
        raise click.UsageError("--answers is --objective answers; give one of them.")
    if met and fields.setdefault("objective", "interactions") in ("ranking", "answers"):
        raise click.UsageError("--interactions are learned from by interactions and ratings alone.")
    if "value" in fields and fields.get("objective") != "answers":
        raise click.UsageError(
            "--value says which value --answers learns from, or is a column of --interactions; "
            "give one of them."
        )
    if no_promote:
        fields["promote"] = False
    parse(TrainRequest, fields)
    return fields


def _train(collection: Collection, request: Mapping[str, Any]) -> Mapping[str, Any]:
    from attend.training import train

    with Bar() as bar:
        return train(collection, progress=bar, cancelled=None, **request)


def _ratings_too(collection: Collection, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The report of learning ratings, where interactions have different numbers."""
    values = collection.store.interactions().values
    if len(np.unique(values[np.isfinite(values)])) < 2:
        return None
    same = {name: value for name, value in request.items() if name in ("seed", "promote")}
    return _train(collection, {**same, "objective": "ratings"})


def _interrupted(collection: Collection, before: State) -> NoReturn:
    store, now = collection.store, collection.store.state()
    changed = [now.active(role) for role in ROLES if now.active(role) != before.active(role)]
    promoted = f"version {changed[0]} was promoted" if changed else "nothing was promoted"
    interrupted(
        f"{promoted}, and nothing was lost. {store.example_count()} examples and "
        f"{store.interaction_counts()[0]} interactions are stored; the same command begins again."
    )


def as_text(report: Mapping[str, Any]) -> str:
    """A report for a person: what was decided and why, with the figures."""
    before, after = report["before"], report["after"]
    rows = [
        _row(name, {"before": before[name], "after": after[name]})
        for name in before
        if name in after
    ]
    named = VIEWS.get((report.get("chosen") or {}).get("objective", "ranking"), {})
    rows += [_row(named.get(name, name), view) for name, view in report["views"].items() if view]
    lines = [_verdict(report), ""]
    if rows:  # a training that could not begin measured nothing
        lines += [*_aligned([HEADER, *rows]), ""]
    if chosen := report.get("chosen"):
        lines.append(f"chosen: {', '.join(f'{name} {_short(chosen[name])}' for name in chosen)}")
    return "\n".join([*lines, f"{report['seconds']:.1f} s"])


def _verdict(report: Mapping[str, Any]) -> str:
    version = report["version"]
    if report["promoted"]:
        return f"Version {version} answers from now on. {report['reason']}"
    stored = "" if version is None else f" 'projections activate {version}' makes it answer."
    return f"Nothing was promoted. {report['reason']}{stored}"


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


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
