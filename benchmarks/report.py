"""From the runs to tables, plots and docs/performance.md.

    python -m benchmarks.report .cache/bench/results.json [--docs]

With --docs the part of docs/performance.md between the two marks is written anew, and the plots.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import contenders, plots
from benchmarks.scenarios import SCENARIOS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

WHEELS = ("chasquimq", "chasquimq, one core")
TITLES = {each.key: each.title for each in SCENARIOS}
UNITS = {
    "rate": "jobs/s",
    "p50_ms": "ms",
    "p99_ms": "ms",
    "bytes": "B/job",
    "stream_bytes": "B/job",
    "rss_mb": "MB",
}
# Scenario, measure, what is asked of ours against the better wheel, and against the limit.
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

Found = dict[str, Any]


def _which(measure: str) -> str:
    return {"p50_ms": " (p50)", "p99_ms": " (p99)", "rss_mb": " (worker)"}.get(measure, "")


class Results:
    """All runs, by scenario and contender."""

    def __init__(self, found: Found):
        self.found = found
        self.runs = [run for run in found["runs"] if "failed" not in run]

    def values(self, scenario: str, contender: str, measure: str) -> list[float]:
        return [
            run[measure] for run in self.runs
            if run["scenario"] == scenario and run["contender"] == contender and measure in run
        ]  # fmt: skip

    def median(self, scenario: str, contender: str, measure: str = "rate") -> float | None:
        values = self.values(scenario, contender, measure)
        return statistics.median(values) if values else None

    def contenders(self, scenario: str, measure: str = "rate") -> list[str]:
        """Those who have a figure, best first."""
        names = {run["contender"] for run in self.runs if run["scenario"] == scenario}
        seen = {name: self.median(scenario, name, measure) for name in names}
        known = {name: value for name, value in seen.items() if value is not None}
        return sorted(known, key=lambda name: known[name], reverse=measure == "rate")

    def foreign(self) -> tuple[float, float]:
        """How many cores others used: median and worst."""
        seen = [run["foreign"] for run in self.runs] or [0.0]
        return statistics.median(seen), max(seen)

    def failures(self) -> list[str]:
        seen = {
            (run["scenario"], run["contender"], run["failed"].splitlines()[-1][:120])
            for run in self.found["runs"] if "failed" in run
        }  # fmt: skip
        return [f"{what}, {who}: {why}" for what, who, why in sorted(seen)]


def target_rows(results: Results) -> list[list[str]]:
    rows = []
    for scenario, label, measure, wanted, sign, of_limit in TARGETS:
        ours = results.median(scenario, "ours", measure)
        wheels = [
            value for name in WHEELS
            if (value := results.median(scenario, name, measure)) is not None
        ]  # fmt: skip
        if ours is None or not wheels:
            continue
        better = max(wheels) if measure == "rate" else min(wheels)
        ratio = ours / better
        held = ratio >= wanted if sign == ">=" else ratio <= wanted
        limit = results.median(scenario, "limit", measure) if of_limit else None
        share = ours / limit if limit else None
        rows.append([
            label, _number(ours, measure), _number(better, measure), f"{ratio:.2f}",
            f"{sign} {wanted:g}", "yes" if held else "**no**",
            "" if share is None else f"{share:.2f}",
            "" if share is None else f">= {of_limit:g}",
            "" if share is None or of_limit is None else ("yes" if share >= of_limit else "**no**"),
        ])  # fmt: skip
    for letter in "BCDE":
        small = results.median(f"H {letter} 10k", "ours")
        large = results.median(f"H {letter} 1M", "ours")
        if small and large:
            held = "yes" if large / small >= GROWTH else "**no**"
            rows.append([
                f"H {letter}: 1M against 10k", _number(large, "rate"), _number(small, "rate"),
                f"{large / small:.2f}", f">= {GROWTH}", held, "", "", "",
            ])  # fmt: skip
    return rows


TARGET_HEAD = [
    "", "ours", "chasquimq, its better", "ratio", "wanted", "held",
    "of the limit", "wanted", "held",
]  # fmt: skip


# What every contender can do somehow, or many can.
COMPARED = (
    ("A", "rate"), ("A plain", "rate"), ("B", "rate"), ("C on", "rate"), ("C plain on", "rate"),
    ("D on", "rate"), ("E on", "rate"), ("F", "p50_ms"), ("F", "p99_ms"),
)  # fmt: skip
COMPARED_HEAD = ["how many times better ours is", *(key + _which(m) for key, m in COMPARED)]


def compared_rows(results: Results) -> list[list[str]]:
    """Each contender beside ours: times the rate, or times the latency."""
    rows: list[tuple[float, list[str]]] = []
    least: dict[tuple[str, str], float] = {}
    for who in contenders.ALL:
        cells = []
        for key, measure in COMPARED:
            ours, theirs = (
                results.median(key, "ours", measure),
                results.median(key, who.name, measure),
            )
            if not ours or not theirs or who.name == "ours":
                cells.append("")
                continue
            ratio = ours / theirs if measure == "rate" else theirs / ours
            cells.append(_times(ratio))
            if who in contenders.PEERS:
                least[key, measure] = min(ratio, least.get((key, measure), ratio))
        if any(cells):
            rows.append((results.median("C on", who.name) or 0.0, [who.name, *cells]))
    rows.sort(key=lambda row: row[0], reverse=True)
    found = [row for _, row in rows]
    if least:
        best = [_times(least[each]) if each in least else "" for each in COMPARED]
        found.append(
            ["**the best of the peers**", *(f"**{cell}**" if cell else "" for cell in best)]
        )
    return found


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
            for name in results.contenders(scenario, measure):
                value = results.median(scenario, name, measure)
                values = results.values(scenario, name, measure)
                assert value is not None
                times = "" if ours is None or not value else f"{ours / value:.2f}"
                rows.append([
                    scenario, TITLES[scenario], UNITS[measure] + _which(measure), name,
                    _number(value, measure),
                    f"{_number(min(values), measure)} to {_number(max(values), measure)}", times,
                ])  # fmt: skip
    return rows


PEER_HEAD = ["", "scenario", "unit", "who", "median", "range", "ours is times that"]


def other_rows(results: Results) -> list[list[str]]:
    """What has no rival."""
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
    found = results.found
    middle, worst = results.foreign()
    kind = "Short run" if found["quick"] else "Full run"
    return (
        f"{kind}: {found['repeats']} repeats, {found['machine']}, Python {found['python']}, Redis "
        f"{found['redis']}. Others kept {middle:.2f} cores busy in the median run, {worst:.2f} in "
        f"the worst{'.' if middle < 0.2 else ': **a busy machine**, so take the ratios as rough.'}"
    )


def text(found: Found, images: str = "") -> str:
    """The whole report as Markdown."""
    results = Results(found)
    parts = [conditions(results), _table(TARGET_HEAD, target_rows(results))]
    parts.append(_table(COMPARED_HEAD, compared_rows(results)))
    if others := other_rows(results):
        parts.append(_table(["", "scenario", "measure", "ours"], others))
    parts += [images] if images else []
    parts += ["### Every median and range", _table(PEER_HEAD, peer_rows(results))]
    if failures := results.failures():
        parts.append("Not measured:\n\n" + "\n".join(f"- {each}" for each in failures))
    return "\n\n".join(parts)


def write_docs(found: Found) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    drawn = plots.draw(Results(found), TITLES, IMAGES)
    images = "\n".join(f"![{title}](images/{name}.png)" for name, title in drawn.items())
    PAGE.write_text(f"{before}{BEGIN}\n\n{text(found, images)}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path, nargs="?", default=Path(".cache/bench/results.json"))
    parser.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    found = json.loads(options.json.read_text())
    print(text(found))
    if options.docs:
        write_docs(found)


if __name__ == "__main__":
    main()
