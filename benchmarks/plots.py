"""The plots of docs/performance.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.report import Results

PLOTS = {
    "bench-adds": ("Adding: jobs a second", ("A", "B"), "rate"),
    "bench-running": ("Running: jobs a second", ("C on", "C off", "D on", "E off", "E on"), "rate"),
    "bench-latency": ("Latency at 500 jobs a second: ms", ("F",), "p50_ms"),
}


def draw(results: Results, scenarios: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Write the plots into the folder; returns their names and titles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(exist_ok=True)
    drawn = {}
    for name, (title, keys, measure) in PLOTS.items():
        keys = tuple(key for key in keys if results.contenders(key, measure))
        if not keys:
            continue
        figure, axes = pyplot.subplots(1, len(keys), figsize=(3.6 * len(keys), 3.4), squeeze=False)
        for axis, key in zip(axes[0], keys, strict=True):
            names = results.contenders(key, measure)[::-1]
            values = [results.values(key, each, measure) for each in names]
            middle = [statistics.median(each) for each in values]
            low = [m - min(v) for m, v in zip(middle, values, strict=True)]
            high = [max(v) - m for m, v in zip(middle, values, strict=True)]
            colours = ["#c0392b" if each == "ours" else "#7f8c8d" for each in names]
            axis.barh(names, middle, xerr=[low, high], color=colours, ecolor="#2c3e50")
            axis.set_title(f"{key}: {scenarios[key]}", fontsize=8)
            axis.tick_params(labelsize=7)
            if len(names) > 4:
                axis.set_xscale("log")
        figure.suptitle(title, fontsize=10)
        figure.tight_layout()
        figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
        pyplot.close(figure)
        drawn[name] = title
    return drawn
