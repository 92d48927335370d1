"""Draw a comparison: the reliability of both versions, and the gains of the queries.

Matplotlib is imported with the first picture: that takes longer than a search. The colours
are those of Okabe and Ito (2008), which colour-blind people tell apart; shapes repeat them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attend.api.learning import ComparedVersion, ComparisonAnswer, Reliability
from attend.core.errors import InvalidRequest

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


PANELS = {
    "weight": ("Weight of the best document", "Share of best documents that are relevant"),
    "confidence": ("Confidence", "Share of queries with a relevant document ranked"),
}
"""The kinds of reliability, each with the labels of what is predicted and what is observed."""


def check_installed() -> None:
    """Raise InvalidRequest if matplotlib is absent: it is an extra."""
    try:
        import matplotlib as matplotlib
    except ImportError:
        raise InvalidRequest(
            "Plots need matplotlib, the extra 'plots'. Install it with: pip install "
            "'attend-retrieval[plots]'.",
            field="plots",
        ) from None


def draw(comparison: ComparisonAnswer, folder: Path) -> list[Path]:
    """Write `reliability.png` and `gains.png` into a folder, which is created if absent.

    Raises:
        InvalidRequest: matplotlib is not installed.
    """
    check_installed()
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        "reliability.png": reliability_diagram(comparison),
        "gains.png": gain_histogram(comparison),
    }
    for name, figure in pictures.items():
        figure.savefig(folder / name, dpi=DOTS_PER_INCH)
    return [folder / name for name in pictures]


def reliability_diagram(comparison: ComparisonAnswer) -> Figure:
    """Draw predicted against observed shares, and the number of queries in each bin below."""
    from matplotlib.figure import Figure

    versions = comparison.before, comparison.after
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    figure.suptitle("Reliability: on the diagonal, a prediction of 0.8 is right 8 times of 10")
    axes = figure.subplots(2, 2, sharex=True, height_ratios=(3, 1))
    for column, (name, (predicted, observed)) in enumerate(PANELS.items()):
        is_fitted = name == "weight" or any(version.calibrated for version in versions)
        note = "" if is_fitted else " (1 for all: neither version is calibrated)"
        upper, lower = axes[:, column]
        _draw_shares(upper, name, versions)
        upper.set_title(f"{predicted}{note}")
        upper.set(ylabel=observed)
        _draw_counts(lower, [version.reliability[name] for version in versions])
        lower.set(xlabel=f"{predicted} (predicted)", ylabel="Queries")
    return figure


def gain_histogram(comparison: ComparisonAnswer) -> Figure:
    """Draw the number of queries by their gain; the title counts those without a change."""
    from matplotlib.figure import Figure

    edges, counts = comparison.histogram["edges"], comparison.histogram["counts"]
    before, after = comparison.before.projection, comparison.after.projection
    difference = comparison.differences[comparison.measure]
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    middle = len(counts) // 2  # below it are the losses
    for label, color, hatch, part in (
        (f"{comparison.lost} lost", ORANGE, "//", slice(middle)),
        (f"{comparison.gained} gained", BLUE, "", slice(middle, None)),
    ):
        style: dict[str, Any] = {
            "color": color,
            "hatch": hatch,
            "edgecolor": "white",
            "label": label,
        }
        width = edges[1] - edges[0]
        axes.bar(edges[:-1][part], counts[part], width=width, align="edge", **style)
    axes.axvline(0, color="black", linewidth=1)
    label = f"mean of all queries: {difference.mean:+.3f} (p = {difference.p:.2g})"
    axes.axvline(difference.mean, color="black", linestyle="--", label=label)
    axes.set(
        title=f"Gain in {comparison.measure} by query, version {before} to version {after}\n"
        f"({comparison.unchanged} queries did not change and are not drawn)",
        xlabel=f"{comparison.measure} after less before",
        ylabel="Queries",
        xlim=(-1, 1),
        ylim=(0, max(1, 1.05 * max(counts))),
        xticks=edges[::2],
    )
    _count_by_whole_numbers(axes)
    axes.legend(loc="best", fontsize=9)
    return figure


def _draw_shares(axes: Axes, name: str, versions: Sequence[ComparedVersion]) -> None:
    axes.plot((0, 1), (0, 1), color=GREY, linewidth=1, linestyle=":", label="as predicted")
    for title, version, style in zip(("before", "after"), versions, STYLES, strict=True):
        kind = version.reliability[name]
        filled = [(bin.predicted, bin.observed) for bin in kind.bins if bin.size]
        label = f"{title} (version {version.projection}), error {kind.ece:.3f}"
        axes.plot(*zip(*filled, strict=True), label=label, **style)
    # A little beyond 0 and 1, where marks would be cut in half.
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)


def _draw_counts(axes: Axes, kinds: Sequence[Reliability]) -> None:
    """Draw two bars in each bin, side by side."""
    for place, (kind, style) in enumerate(zip(kinds, STYLES, strict=True)):
        widths = [(bin.high - bin.low) * 0.4 for bin in kind.bins]
        starts = [bin.low + (0.1 + 0.4 * place) * (bin.high - bin.low) for bin in kind.bins]
        sizes = [bin.size for bin in kind.bins]
        axes.bar(starts, sizes, width=widths, align="edge", color=style["color"])
    _count_by_whole_numbers(axes)


def _count_by_whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
