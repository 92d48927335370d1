"""Learning: what a few hundred examples gain on held-out queries, beside the peers.

Each row is a figure with its 95 % interval, what was asked of it, and whether it holds. All is
done through the package: collections are built with the real encoder in a temporary folder,
taught the training judgements, trained, and evaluated on the test judgements.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ledger
from common import Results, Row, parser, progress, tell
from learning_answers import answers, foreign, no_answer
from learning_lists import labels, lists
from learning_peers import adapter, plain, tuned
from learning_ranking import (
    bilingual,
    conala,
    conala_deep,
    conala_feedback,
    judgements,
    many_keys,
    nfcorpus,
    reranked,
    scifact,
    scifact_narrow,
)
from learning_safety import (
    KINDS,
    cannot_gain,
    nightly,
    rare_losses,
    removed,
    simulated_losses,
    superseded,
)
from learning_sets import QUICK_QUERIES, Bench, Options, Workshop
from learning_used import SECTIONS as USED

Section = Callable[[Bench], Iterator[Row]]

SECTIONS: Mapping[str, Section] = {
    "conala": conala,
    "conala-plain": plain("conala"),
    "conala-adapter": adapter("conala"),
    "scifact": scifact,
    "scifact-64": scifact_narrow,
    "scifact-plain": plain("scifact"),
    "scifact-adapter": adapter("scifact"),
    "rerank-conala": reranked("conala", 0.675),
    "rerank-scifact": reranked("scifact", 0.69),
    "banking77": answers,
    "banking77-no-answer": no_answer,
    "foreign": foreign,
    "removed-conala": removed("conala"),
    "removed-scifact": removed("scifact"),
    "bilingual": bilingual,
    "feedback-conala": conala_feedback,
    **{f"cannot-gain-{kind}": cannot_gain(kind) for kind in KINDS},
    "superseded": superseded,
    "simulated-losses": simulated_losses,
    "simulated-rare-losses": rare_losses,
    "nightly": nightly,
    "judgements": judgements,
    "lists-conala": lists("conala"),
    "lists-nfcorpus": lists("nfcorpus"),
    "lists-scifact": lists("scifact"),
    "lists-banking77": labels,
    "nfcorpus": nfcorpus,
    **USED,
    "deep-conala": conala_deep,
    "live-many": many_keys,
    "conala-tuned": tuned("conala"),
    "scifact-tuned": tuned("scifact"),
}
"""In this order: what takes longest comes last."""

QUICK = ("conala", "conala-adapter", "cannot-gain-shuffled")

PEERS = tuple(name for name in SECTIONS if name.endswith(("-adapter", "-tuned", "-plain")))

SETS = (
    "conala",
    "scifact",
    "banking77",
    "foreign",
    "removed",
    "bilingual",
    "rerank",
    "feedback",
    "deep",
    "cannot-gain",
    "superseded",
    "simulated",
    "nightly",
    "judgements",
    "lists",
    "nfcorpus",
    "live",
    "used",
)

EPILOG = """examples:
  python benchmarks/learning.py --quick
  python benchmarks/learning.py --sets scifact,conala --out learning.jsonl --json
  python benchmarks/learning.py --rehearse --minutes 1 --keys 50000 --seeds 2

--rehearse divides the training queries again and leaves the test queries alone: use it for
everything but the final run. --quick takes CoNaLa with 600 of its training queries, the linear
adapter and one seed of shuffled labels; with --sets it takes those, cut down. A run with --out
that was interrupted goes on where it stopped.
"""


def main() -> None:
    given = arguments()
    count = given.seeds or (1 if given.quick else 20)
    seeds = range(given.first_seed, given.first_seed + count)
    options = Options(
        quick=given.quick,
        rehearse=given.rehearse,
        peers=not given.no_peers,
        minutes=given.minutes,
        seeds=seeds,
        keys=given.keys,
        sets=given.folder,
    )
    chosen = selected(given.sets, options)
    if not options.rehearse:
        ledger.require_commit()
    results = Results(given.out, options.setting())
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.data or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(options, Workshop(folder), results)
        for section in chosen:
            measured(bench, section, quiet=given.json)
    failed = [section for section in chosen if section not in results.finished]
    figures: dict[str, Any] = {
        "rehearsal": given.rehearse,
        "training_queries_at_most": QUICK_QUERIES if given.quick else None,
        "left_out": [section for section in SECTIONS if section not in chosen],
        "failed": failed,
        "ratios_of": primary(results),
    }
    if given.json:
        figures["rows"] = {name: row.told() for name, row in results.rows.items()}
    tell(ratios(results), figures, given.json)
    sys.exit(1 if failed else 0)


def arguments() -> argparse.Namespace:
    options = {"epilog": EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
    made = parser(__doc__.splitlines()[0], ["--folder"], **options)
    add = made.add_argument
    add("--sets", type=_names, help=f"of {', '.join(SETS)}, or one section as removed-scifact")
    add("--no-peers", action="store_true", help="leave out all peers")
    add("--minutes", type=_positive, default=30, help="of full fine-tuning at most, for each set")
    add("--rehearse", action="store_true", help="held-out training queries instead of test queries")
    add("--out", type=Path, help="save rows in this file, and pass over those it has already")
    add("--seeds", type=int, help="of each set that cannot gain; 20, or 1 when quick")
    add("--first-seed", type=int, default=0, help="of those; the ones after it follow")
    add("--keys", type=int, default=1_000_000, help="of the large live switch; 0 leaves it out")
    add("--data", type=Path, help="keep the built collections here for the next run")
    return made.parse_args()


def selected(sets: tuple[str, ...] | None, options: Options) -> list[str]:
    """The sections of these sets; of none named, all, or the few that make a quick run."""
    names = [name for name in SECTIONS if name.startswith(sets or SETS)]
    if sets is None and options.quick:
        names = list(QUICK)
    if not options.peers:
        names = [name for name in names if name not in PEERS]
    return names if options.keys else [name for name in names if name != "live-many"]


def measured(bench: Bench, section: str, *, quiet: bool) -> None:
    """Measure a section and tell its rows as they come; what an earlier run has is told only.

    What goes wrong in one section is told, and the others are measured all the same.
    """
    results = bench.results
    if section in results.finished:
        for name in results.finished[section]:
            _tell(results.rows[name], quiet)
        return
    progress(f"-- {section}")
    started, names = time.perf_counter(), list[str]()
    try:
        for row in SECTIONS[section](bench):
            results.add(section, row)
            if not bench.options.rehearse:
                ledger.append(row, bench.options.extent)
            names.append(row.name)
            _tell(row, quiet)
    except Exception:  # an hour of other rows must not go with it
        progress(f"-- {section} failed:\n{traceback.format_exc()}")
        return
    results.finish(section, names)
    progress(f"-- {section} took {time.perf_counter() - started:.0f} s")


def _tell(row: Row, quiet: bool) -> None:
    print(row.line(), file=sys.stderr if quiet else sys.stdout, flush=True)


def primary(results: Results) -> str:
    """The set by which ratios without a set's name are told."""
    return "scifact" if "scifact.trained" in results.rows else "conala"


def ratios(results: Results) -> dict[str, float]:
    """Those whose two sides were measured."""
    named = primary(results)
    sides = {
        "ndcg_over_linear_adapter": (f"{named}.trained", f"{named}.adapter"),
        "ndcg_over_fine_tuned": (f"{named}.trained", f"{named}.tuned"),
        "seconds_fine_tuned_over_ours": (f"{named}.tuned_seconds", f"{named}.seconds"),
        "live_seconds_fine_tuned_over_ours": ("scifact.tuned_live_seconds", "live.seconds"),
        "hybrid_over_frozen_scifact": ("scifact.hybrid", "scifact.frozen"),
        "ndcg_over_linear_adapter_conala": ("conala.trained", "conala.adapter"),
        "ndcg_over_fine_tuned_conala": ("conala.trained", "conala.tuned"),
    }
    found: dict[str, Any] = {
        name: (results.measured(over), results.measured(under))
        for name, (over, under) in sides.items()
    }
    return {name: round(over / under, 4) for name, (over, under) in found.items() if over and under}


def _names(given: str) -> tuple[str, ...]:
    names = tuple(given.split(","))
    unknown = [name for name in names if not any(section.startswith(name) for section in SECTIONS)]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)} is no set; choose of {', '.join(SETS)}"
        )
    return names


def _positive(given: str) -> float:
    if not float(given) > 0:
        raise argparse.ArgumentTypeError(f"{given} minutes are none; give a number above 0")
    return float(given)


if __name__ == "__main__":
    main()
