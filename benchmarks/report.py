"""Tables, plots and docs/performance.md from the results of the runs.

    python -m benchmarks.report .cache/bench/results.json [--docs]

With --docs, it replaces the plots and the section of docs/performance.md between the markers.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import plots, systems
from benchmarks.scenarios import SCENARIOS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

WHEELS = ("chasquimq", "chasquimq, one core")
TITLES = {scenario.key: scenario.title for scenario in SCENARIOS}
UNITS = {
    "rate": "jobs/s",
    "p50_ms": "ms",
    "p99_ms": "ms",
    "bytes": "B/job",
    "stream_bytes": "B/job",
    "rss_mb": "MB",
}
# Scenario, label, measure, required ratio to the better ChasquiMQ result, and to the limit.
TARGETS: tuple[tuple[str, str, str, float, str, float | None], ...] = (
    ("A", "A", "rate", 1.5, ">=", None),
    ("B", "B", "rate", 2.5, ">=", 0.5),
    ("C on", "C events on", "rate", 5.0, ">=", 0.6),
    ("C off", "C events off", "rate", 4.0, ">=", 0.3),
    ("D on", "D events on", "rate", 5.0, ">=", None),
    ("E off", "E", "rate", 8.0, ">=", None),
    ("F", "F p50", "p50_ms", 0.7, "<=", None),
    ("F", "F p99", "p99_ms", 1.0, "<=", None),
    ("G", "G stream bytes per job", "stream_bytes", 1.02, "<=", None),
    ("C on", "G worker RSS", "rss_mb", 0.7, "<=", None),
)
GROWTH = 0.85

Report = dict[str, Any]


def _suffix(measure: str) -> str:
    return {"p50_ms": " (p50)", "p99_ms": " (p99)", "rss_mb": " (worker)"}.get(measure, "")


class Results:
    """All successful runs, by scenario and system."""

    def __init__(self, report: Report):
        self.report = report
        self.runs = [run for run in report["runs"] if "failed" not in run]

    def values(self, scenario: str, system: str, measure: str) -> list[float]:
        return [
            run[measure]
            for run in self.runs
            if run["scenario"] == scenario and run["system"] == system and measure in run
        ]

    def median(self, scenario: str, system: str, measure: str = "rate") -> float | None:
        values = self.values(scenario, system, measure)
        return statistics.median(values) if values else None

    def systems(self, scenario: str, measure: str = "rate") -> list[str]:
        """Return the systems that have a value, best first."""
        names = {run["system"] for run in self.runs if run["scenario"] == scenario}
        medians = {name: self.median(scenario, name, measure) for name in names}
        known = {name: value for name, value in medians.items() if value is not None}
        return sorted(known, key=lambda name: known[name], reverse=measure == "rate")

    def background_load(self) -> tuple[float, float]:
        """Return the median and the maximum of the cores that other processes used."""
        loads = [run["background_load"] for run in self.runs] or [0.0]
        return statistics.median(loads), max(loads)

    def failures(self) -> list[str]:
        failures = {
            (run["scenario"], run["system"], run["failed"].splitlines()[-1][:120])
            for run in self.report["runs"]
            if "failed" in run
        }
        return [f"{scenario}, {system}: {error}" for scenario, system, error in sorted(failures)]


def target_rows(results: Results) -> list[list[str]]:
    rows = []
    for scenario, label, measure, target, sign, limit_target in TARGETS:
        ours = results.median(scenario, "ours", measure)
        wheels = [
            value
            for name in WHEELS
            if (value := results.median(scenario, name, measure)) is not None
        ]
        if ours is None or not wheels:
            continue
        better = max(wheels) if measure == "rate" else min(wheels)
        ratio = ours / better
        reached = ratio >= target if sign == ">=" else ratio <= target
        limit = results.median(scenario, "limit", measure) if limit_target else None
        share = ours / limit if limit else None
        rows.append(
            [
                label,
                _number(ours, measure),
                _number(better, measure),
                f"{ratio:.2f}",
                f"{sign} {target:g}",
                "yes" if reached else "**no**",
                "" if share is None else f"{share:.2f}",
                "" if share is None else f">= {limit_target:g}",
                ""
                if share is None or limit_target is None
                else ("yes" if share >= limit_target else "**no**"),
            ]
        )
    for group in "BCDE":
        small = results.median(f"H {group} 10k", "ours")
        large = results.median(f"H {group} 1M", "ours")
        if small and large:
            reached = "yes" if large / small >= GROWTH else "**no**"
            rows.append(
                [
                    f"H {group}: 1M against 10k",
                    _number(large, "rate"),
                    _number(small, "rate"),
                    f"{large / small:.2f}",
                    f">= {GROWTH}",
                    reached,
                    "",
                    "",
                    "",
                ]
            )
    return rows


TARGET_HEAD = [
    "",
    "ours",
    "chasquimq (better of two)",
    "ratio",
    "target",
    "reached",
    "share of the limit",
    "target",
    "reached",
]


# The scenarios that all or most systems support.
COMPARED = (
    ("A", "rate"),
    ("A plain", "rate"),
    ("B", "rate"),
    ("C on", "rate"),
    ("C plain on", "rate"),
    ("D on", "rate"),
    ("E on", "rate"),
    ("F", "p50_ms"),
    ("F", "p99_ms"),
)
COMPARED_HEAD = ["times better than the system", *(key + _suffix(m) for key, m in COMPARED)]


def compared_rows(results: Results) -> list[list[str]]:
    """Return the ratio of each system to this package, by rate or latency."""
    rows: list[tuple[float, list[str]]] = []
    least: dict[tuple[str, str], float] = {}
    for system in systems.ALL:
        cells = []
        for key, measure in COMPARED:
            ours, theirs = (
                results.median(key, "ours", measure),
                results.median(key, system.name, measure),
            )
            if not ours or not theirs or system.name == "ours":
                cells.append("")
                continue
            ratio = ours / theirs if measure == "rate" else theirs / ours
            cells.append(_times(ratio))
            if system in systems.PEERS:
                least[key, measure] = min(ratio, least.get((key, measure), ratio))
        if any(cells):
            rows.append((results.median("C on", system.name) or 0.0, [system.name, *cells]))
    rows.sort(key=lambda row: row[0], reverse=True)
    table = [row for _, row in rows]
    if least:
        best = [_times(least[column]) if column in least else "" for column in COMPARED]
        table.append(["**best peer**", *(f"**{cell}**" if cell else "" for cell in best)])
    return table


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def peer_rows(results: Results) -> list[list[str]]:
    rows = []
    for scenario in TITLES:
        for measure in ("rate", "p50_ms", "p99_ms", "bytes", "rss_mb"):
            if measure == "bytes" and scenario != "G":
                continue
            if measure == "rss_mb" and scenario != "C on":
                continue
            ours = results.median(scenario, "ours", measure)
            for name in results.systems(scenario, measure):
                value = results.median(scenario, name, measure)
                values = results.values(scenario, name, measure)
                assert value is not None
                times = "" if ours is None or not value else f"{ours / value:.2f}"
                rows.append(
                    [
                        scenario,
                        TITLES[scenario],
                        UNITS[measure] + _suffix(measure),
                        name,
                        _number(value, measure),
                        f"{_number(min(values), measure)} to {_number(max(values), measure)}",
                        times,
                    ]
                )
    return rows


PEER_HEAD = ["", "scenario", "unit", "system", "median", "range", "ratio"]


def other_rows(results: Results) -> list[list[str]]:
    """Return the measures that only this package has."""
    rows = []
    for scenario, keys in (
        ("I progress", ("put_seconds", "p50_ms", "p99_ms")),
        ("I cron", ("puts", "seconds")),
        ("M", ("seconds", "idle_commands_s", "idle_cpu", "connections")),
    ):
        for key in keys:
            value = results.median(scenario, "ours", key)
            if value is not None:
                rows.append([scenario, TITLES[scenario], key, f"{value:,.4g}"])
    return rows


def _number(value: float, measure: str) -> str:
    if measure in ("rate", "bytes", "stream_bytes"):
        return f"{value:,.0f}"
    return f"{value:.2f}" if measure.endswith("_ms") else f"{value:.0f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    line = "|".join("---" if i < 1 else "---:" for i in range(len(head)))
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"| {' | '.join(head)} |\n|{line}|\n{body}"


def conditions(results: Results) -> str:
    report = results.report
    median, maximum = results.background_load()
    kind = "Short run" if report["quick"] else "Full run"
    note = "" if median < 0.2 else " **The machine was busy**, so the ratios are rough."
    return (
        f"{kind}: {report['repeats']} repeats, {report['machine']}, Python {report['python']}, "
        f"Redis {report['redis']}. Other processes used {median:.2f} cores in the median run, "
        f"{maximum:.2f} at most.{note}"
    )


def text(report: Report, images: str = "") -> str:
    """Return the whole report as Markdown."""
    results = Results(report)
    parts = [conditions(results), _table(TARGET_HEAD, target_rows(results))]
    parts.append(_table(COMPARED_HEAD, compared_rows(results)))
    if others := other_rows(results):
        parts.append(_table(["", "scenario", "measure", "ours"], others))
    parts += [images] if images else []
    parts += ["### Every median and range", _table(PEER_HEAD, peer_rows(results))]
    if failures := results.failures():
        parts.append("Not measured:\n\n" + "\n".join(f"- {failure}" for failure in failures))
    return "\n\n".join(parts)


def write_docs(report: Report) -> None:
    page = PAGE.read_text()
    before, _, remaining = page.partition(BEGIN)
    _, _, after = remaining.partition(END)
    drawn = plots.draw(Results(report), TITLES, IMAGES)
    images = "\n".join(f"![{title}](images/{name}.png)" for name, title in drawn.items())
    PAGE.write_text(f"{before}{BEGIN}\n\n{text(report, images)}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path, nargs="?", default=Path(".cache/bench/results.json"))
    parser.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    report = json.loads(options.json.read_text())
    print(text(report))
    if options.docs:
        write_docs(report)


if __name__ == "__main__":
    main()
