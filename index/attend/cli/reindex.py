"""`attend reindex`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from attend.cli.options import Target, on_collection
from attend.cli.output import Bar, interrupted, table


@click.command("reindex")
@on_collection
@click.option("--encoder", metavar="NAME", help="Model name or folder of the new encoder.")
@click.option("--rollback", is_flag=True, help="Answer with the encoder before again.")
@click.option("--force", is_flag=True, help="Switch whatever the comparison says.")
def reindex_command(target: Target, encoder: str | None, rollback: bool, force: bool) -> None:
    """Change the encoder of a collection while it goes on answering.

    Encodes all texts beside the index in use, with all values, payloads, examples and interactions,
    and what is written meanwhile. Then both are compared on the stored examples: the new encoder
    answers if its gain is significant and a loss is ruled out, or with --force; with fewer than 20
    questions, which are too few to tell, it answers. The encoder before is kept for --rollback,
    with the versions that were learned for it, which are named. If a run is interrupted, rerun the
    command to resume it.

    Exit status: 0 if the collection switched, 1 if it did not.

    \b
    Example:
      attend reindex --data library --encoder ./models/multilingual
      attend reindex --data library --rollback
    """
    if rollback == (encoder is not None):
        raise click.UsageError("Give --encoder, or --rollback alone.")
    if rollback and force:
        raise click.UsageError("--force goes with --encoder: a rollback compares nothing.")
    from attend.write import reindex  # here: torch takes seconds to import

    library = target.library()
    try:
        with Bar() as bar:
            if encoder is None:
                result = reindex.rollback(library, target.name, on_stage=bar)
            else:
                result = reindex.reindex(library, target.name, encoder, force=force, on_stage=bar)
    except KeyboardInterrupt:
        now = library.collection(target.name).settings.encoder
        interrupted(f"the collection answers with {now}. To go on, run the same command again.")
    target.show(asdict(result), _as_text(asdict(result)))
    if not result.switched:
        raise SystemExit(1)


def _as_text(result: Mapping[str, Any]) -> str:
    rows = [
        (name, f"{split['before']:.3f}", f"{split['after']:.3f}", f"{split['p']:.4f}")
        for name, split in result["comparison"].items()
    ]
    verb = "answers with" if result["switched"] else "still answers with"
    lines = [f"{result['collection']} {verb} {result['encoder']}. {result['reason']}"]
    if rows:
        lines += ["", table([("", "before", "after", "p"), *rows], right=True), ""]
    if result["switched"]:
        lines.append(
            f"{result['spare']} keeps {result['previous']}; 'attend reindex --rollback' goes back."
        )
    else:
        lines.append(f"{result['spare']} keeps {result['previous']}; --force switches to it.")
    lines += result["left"]
    lines.append(
        f"{result['documents']} documents, {result['examples']} examples, "
        f"{result['interactions']} interactions; {result['encoded']} texts encoded in "
        f"{result['seconds']:.1f} s."
    )
    return "\n".join(lines)
