"""A comparison as pictures: the reliability of both versions, and the gains of the queries.

Matplotlib is imported when a picture is asked for: it takes longer than a search. The colours
are those of Okabe and Ito (2008), which colour-blind people tell apart; shapes repeat what
they say.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attend.measure.changes import Gains
from attend.measure.compare import Comparison
from attend.measure.sides import Side
from attend.measure.statistics import Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"

STYLES: tuple[dict[str, Any], ...] = (
    {"color": ORANGE, "marker": "s", "linestyle": "--"},
    {"color": BLUE, "marker": "o", "linestyle": "-"},
)
"""Before and after."""

DOTS_PER_INCH = 150


class Panel(NamedTuple):
    """One diagram: which reliability of a side, and what its axes say."""

    kind: Literal["weight", "confidence"]
    predicted: str
    observed: str


PANELS = (
    Panel("weight", "Weight of the best document", "Share of best documents that are relevant"),
    Panel("confidence", "Confidence", "Share of queries with a relevant document ranked"),
)


def draw(found: Comparison, folder: Path) -> list[Path]:
    """Write `reliability.png` and `gains.png` into a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"reliability.png": reliability_diagram(found), "gains.png": gain_histogram(found)}
    for name, figure in pictures.items():
        figure.savefig(folder / name, dpi=DOTS_PER_INCH)
    return [folder / name for name in pictures]


def reliability_diagram(found: Comparison) -> Figure:
    """Predicted against observed, with the number of queries in each bin below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    figure.suptitle("Reliability: on the diagonal, a prediction of 0.8 is right 8 times of 10")
    axes = figure.subplots(2, 2, sharex=True, height_ratios=(3, 1))
    for column, panel in enumerate(PANELS):
        _draw_panel(axes[0, column], panel, (found.before, found.after))
        kinds = [getattr(side, panel.kind) for side in (found.before, found.after)]
        _draw_counts(axes[1, column], kinds)
        axes[1, column].set(xlabel=f"{panel.predicted} (predicted)", ylabel="Queries")
    return figure


def gain_histogram(found: Comparison) -> Figure:
    """How many queries gained how much; those that stayed are told in the title alone."""
    from matplotlib.figure import Figure

    gains = found.changes.gains
    before, after = found.before.ranked.projection, found.after.ranked.projection
    difference = found.differences[found.measure]
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    _draw_gains(axes, gains)
    axes.axvline(0, color="black", linewidth=1)
    axes.axvline(
        difference.mean,
        color="black",
        linestyle="--",
        label=f"mean of all queries: {difference.mean:+.3f} (p = {difference.p:.2g})",
    )
    axes.set(
        title=f"Gain in {found.measure} by query, version {before} to version {after}\n"
        f"({gains.unchanged} queries stayed as they were and are not drawn)",
        xlabel=f"{found.measure} after less before",
        ylabel="Queries",
        xlim=(-1, 1),
        ylim=(0, max(1, 1.05 * max(gains.counts))),
        xticks=gains.edges[::2],
    )
    _whole_numbers(axes)
    axes.legend(loc="best", fontsize=9)
    return figure


def _draw_panel(axes: Axes, panel: Panel, sides: tuple[Side, Side]) -> None:
    axes.plot((0, 1), (0, 1), color=GREY, linewidth=1, linestyle=":", label="as predicted")
    for title, side, style in zip(("before", "after"), sides, STYLES, strict=True):
        kind: Reliability = getattr(side, panel.kind)
        label = f"{title} (version {side.ranked.projection}), error {kind.ece:.3f}"
        filled = [
            (bin.predicted, bin.observed)
            for bin in kind.bins
            if bin.predicted is not None and bin.observed is not None
        ]
        axes.plot(*zip(*filled, strict=True), label=label, **style)
    untold = panel.kind == "confidence" and not any(side.ranked.calibrated for side in sides)
    note = " (1 for all: neither version is calibrated)" if untold else ""
    # A little beyond 0 and 1, where marks would be cut in half.
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel=panel.observed)
    axes.set_title(f"{panel.predicted}{note}")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)


def _draw_counts(axes: Axes, kinds: list[Reliability]) -> None:
    """Two bars in each bin, side by side."""
    for place, (kind, style) in enumerate(zip(kinds, STYLES, strict=True)):
        widths = [(bin.high - bin.low) * 0.4 for bin in kind.bins]
        starts = [bin.low + (0.1 + 0.4 * place) * (bin.high - bin.low) for bin in kind.bins]
        sizes = [bin.size for bin in kind.bins]
        axes.bar(starts, sizes, width=widths, align="edge", color=style["color"])
    _whole_numbers(axes)


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def _draw_gains(axes: Axes, gains: Gains) -> None:
    middle = len(gains.counts) // 2  # below it are the losses
    for label, color, hatch, part in (
        (f"{gains.lost} lost", ORANGE, "//", slice(middle)),
        (f"{gains.gained} gained", BLUE, "", slice(middle, None)),
    ):
        axes.bar(
            gains.edges[:-1][part],
            gains.counts[part],
            width=gains.edges[1] - gains.edges[0],
            align="edge",
            color=color,
            hatch=hatch,
            edgecolor="white",
            label=label,
        )
