"""Draw a comparison: the reliability of both versions, and the gains of the queries.

Matplotlib is imported with the first picture: that takes longer than a search. The colours
are those of Okabe and Ito (2008), which colour-blind people tell apart; shapes repeat them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attend.measure.compare import ComparedVersion, Comparison
from attend.measure.statistics import Gains, Reliability

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
    """A diagram: the kind of reliability that it shows, and the labels of its axes."""

    kind: Literal["weight", "confidence"]
    predicted: str
    observed: str


PANELS = (
    Panel("weight", "Weight of the best document", "Share of best documents that are relevant"),
    Panel("confidence", "Confidence", "Share of queries with a relevant document ranked"),
)


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `reliability.png` and `gains.png` into a folder, which is created if absent."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        "reliability.png": reliability_diagram(comparison),
        "gains.png": gain_histogram(comparison),
    }
    for name, figure in pictures.items():
        figure.savefig(folder / name, dpi=DOTS_PER_INCH)
    return [folder / name for name in pictures]


def reliability_diagram(comparison: Comparison) -> Figure:
    """Draw predicted against observed shares, and the number of queries in each bin below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    figure.suptitle("Reliability: on the diagonal, a prediction of 0.8 is right 8 times of 10")
    axes = figure.subplots(2, 2, sharex=True, height_ratios=(3, 1))
    for column, panel in enumerate(PANELS):
        _draw_panel(axes[0, column], panel, (comparison.before, comparison.after))
        versions = (comparison.before, comparison.after)
        kinds = [getattr(version, panel.kind) for version in versions]
        _draw_counts(axes[1, column], kinds)
        axes[1, column].set(xlabel=f"{panel.predicted} (predicted)", ylabel="Queries")
    return figure


def gain_histogram(comparison: Comparison) -> Figure:
    """Draw the number of queries by their gain; the title counts those without a change."""
    from matplotlib.figure import Figure

    gains = comparison.gains
    before, after = comparison.before.ranked.projection, comparison.after.ranked.projection
    difference = comparison.differences[comparison.measure]
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
        title=f"Gain in {comparison.measure} by query, version {before} to version {after}\n"
        f"({gains.unchanged} queries did not change and are not drawn)",
        xlabel=f"{comparison.measure} after less before",
        ylabel="Queries",
        xlim=(-1, 1),
        ylim=(0, max(1, 1.05 * max(gains.counts))),
        xticks=gains.edges[::2],
    )
    _whole_numbers(axes)
    axes.legend(loc="best", fontsize=9)
    return figure


def _draw_panel(
    axes: Axes, panel: Panel, versions: tuple[ComparedVersion, ComparedVersion]
) -> None:
    axes.plot((0, 1), (0, 1), color=GREY, linewidth=1, linestyle=":", label="as predicted")
    for title, version, style in zip(("before", "after"), versions, STYLES, strict=True):
        kind: Reliability = getattr(version, panel.kind)
        label = f"{title} (version {version.ranked.projection}), error {kind.ece:.3f}"
        filled = [
            (bin.predicted, bin.observed)
            for bin in kind.bins
            if bin.predicted is not None and bin.observed is not None
        ]
        axes.plot(*zip(*filled, strict=True), label=label, **style)
    uncalibrated = panel.kind == "confidence" and not any(
        version.ranked.calibrated for version in versions
    )
    note = " (1 for all: neither version is calibrated)" if uncalibrated else ""
    # A little beyond 0 and 1, where marks would be cut in half.
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel=panel.observed)
    axes.set_title(f"{panel.predicted}{note}")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)


def _draw_counts(axes: Axes, kinds: list[Reliability]) -> None:
    """Draw two bars in each bin, side by side."""
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
