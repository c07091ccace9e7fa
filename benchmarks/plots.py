"""The plots of docs/performance.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.report import Results

PLOTS = {
    "bench-adds": ("Adding: jobs per second", ("A", "B"), "rate"),
    "bench-running": ("Running: jobs per second", ("C on", "C plain on", "D on", "E on"), "rate"),
    "bench-latency": ("Latency at 500 jobs per second: ms", ("F",), "p50_ms"),
}
_COLUMNS = 2


def draw(results: Results, scenarios: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Write the plots into the folder and return their names and titles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(exist_ok=True)
    titles = {}
    for name, (title, keys, measure) in PLOTS.items():
        keys = tuple(key for key in keys if results.systems(key, measure))
        if not keys:
            continue
        columns = min(_COLUMNS, len(keys))
        rows = -(-len(keys) // columns)
        size = (4.2 * columns, 3.3 * rows)
        figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
        all_axes = list(axes.flat)
        for axis, key in zip(all_axes, keys, strict=False):
            _bars(axis, results, key, measure)
            axis.set_title(f"{key}: {scenarios[key]}", fontsize=9)
        for axis in all_axes[len(keys) :]:
            axis.set_visible(False)
        figure.tight_layout()
        figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
        pyplot.close(figure)
        titles[name] = title
    return titles


def _bars(axis: Any, results: Results, key: str, measure: str) -> None:
    """Draw medians as bars and ranges as lines, on a logarithmic scale."""
    names = results.systems(key, measure)[::-1]
    values = [results.values(key, name, measure) for name in names]
    medians = [statistics.median(runs) for runs in values]
    low = [m - min(v) for m, v in zip(medians, values, strict=True)]
    high = [max(v) - m for m, v in zip(medians, values, strict=True)]
    colors = ["#c0392b" if name == "ours" else "#95a5a6" for name in names]
    bars = axis.barh(names, medians, xerr=[low, high], color=colors, ecolor="#2c3e50")
    axis.bar_label(bars, [_short(median) for median in medians], fontsize=7, padding=4)
    axis.set_xscale("log")
    axis.set_xlim(min(map(min, values)) / 3, max(map(max, values)) * 6)
    axis.tick_params(labelsize=8)
    axis.xaxis.set_major_formatter(lambda value, _: _short(value))
    axis.spines[["top", "right"]].set_visible(False)


def _short(value: float) -> str:
    """Return a number in short form, such as 12.3k."""
    if value >= 1e6:
        return f"{value / 1e6:,.3g}M"
    return f"{value / 1000:,.3g}k" if value >= 1000 else f"{value:.3g}"
