"""The long form of the fault tests: one scenario after the other, and a report in Markdown.

python -m tests.chaos.harness.report --minutes 10 --seed 7
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.harness.environment import Environment, run_scenario
from tests.chaos.harness.history import CheckResult, History, explain
from tests.chaos.harness.plan import generate_scenario
from tests.support.servers import RedisServer, valkey_binary
from tools.redis_server import REDIS8, find

SEED_STEP = 1000
# The rows of the report and the categories of the checker that they add up.
ROWS = {
    "lost": ("lost", "unfinished"),
    "duplicated without a fault that explains it": ("duplicated",),
    "overlapping without a fault that explains it": ("overlapping",),
    "over the attempt limit": ("over the attempt limit",),
}


@dataclass
class Totals:
    """The sums over all scenarios."""

    seeds: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    adds: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    runs: int = 0
    reruns: int = 0
    dead_letters: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    seconds: float = 0

    def add(self, label: str, history: History, result: CheckResult) -> None:
        self.seeds.append(label)
        self.faults.update(fault.kind for fault in history.faults)
        self.adds.update(add.outcome for add in history.adds)
        self.jobs += len({run.job_id for run in history.runs} | set(history.dead_letters))
        self.runs += len(history.runs)
        self.reruns += result.reruns
        self.dead_letters += len(history.dead_letters)
        self.violations.update({category: len(ids) for category, ids in result.violations.items()})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10, help="minimum duration")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first scenario")
    parser.add_argument("--seconds", type=float, default=25, help="duration of the faults per seed")
    parser.add_argument("--write", type=Path, default=None, help="file for the report")
    args = parser.parse_args()
    first_seed = args.seed if args.seed is not None else time.time_ns() % 1_000_000
    totals = Totals()
    began = time.monotonic()
    servers = {"native": find(REDIS8), "portable": valkey_binary()}
    seed = first_seed
    while time.monotonic() - began < args.minutes * 60:
        for dialect, binary in servers.items():
            if binary is not None:
                _run_seed(totals, seed, args.seconds, dialect, binary)
        seed += SEED_STEP
    totals.seconds = time.monotonic() - began
    versions = [_version(binary) for binary in servers.values() if binary]
    text = render(totals, first_seed, args.minutes, versions)
    print(text)
    if args.write:
        args.write.write_text(text)
    return 1 if totals.violations else 0


def _run_seed(totals: Totals, seed: int, seconds: float, dialect: str, binary: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="chasqui-chaos-") as folder,
        RedisServer.start(binary, "--appendfsync", "always", aof=True) as server,
        Environment(server, dialect, Path(folder)) as environment,
    ):
        history, result = run_scenario(environment, generate_scenario(seed, seconds))
    totals.add(f"{seed} {dialect}", history, result)
    summary = f"seed {seed}, {dialect}: {len(history.runs)} runs, {str(result) or 'no violations'}"
    print(summary, file=sys.stderr, flush=True)
    for category, ids in result.violations.items():
        print(f"{category}, {ids[0]}:\n{explain(history, ids[0])}", file=sys.stderr, flush=True)


def _version(binary: Path) -> str:
    command = [binary, "--version"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    name, version = output.split()[0], output.partition("v=")[2].split()[0]
    return f"{name} {version}"


def render(totals: Totals, seed: int, minutes: float, versions: list[str]) -> str:
    """Return the report as Markdown."""
    violations = totals.violations
    listed = {category for categories in ROWS.values() for category in categories}
    rows = [
        ("scenarios", len(totals.seeds)),
        ("faults", sum(totals.faults.values())),
        ("adds acknowledged", totals.adds["acked"]),
        ("adds refused (queue full, out of memory)", totals.adds["refused"]),
        ("adds of unknown outcome", totals.adds["unknown"]),
        ("jobs that ran or became dead letters", totals.jobs),
        ("runs", totals.runs),
        ("runs after the first one (planned failure, or interrupted by a fault)", totals.reruns),
        ("dead letters", totals.dead_letters),
        *((f"**{row}**", sum(violations[name] for name in ROWS[row])) for row in ROWS),
        ("other violations", sum(n for name, n in violations.items() if name not in listed)),
    ]
    kernel = ".".join(platform.release().split(".")[:2])
    lines = [
        "# Chaos report",
        "",
        f"`make chaos MINUTES={minutes:g} SEED={seed}`, {datetime.now(UTC):%Y-%m-%d}.",
        "",
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, Linux {kernel}, "
        f"Python {platform.python_version()}; servers: {', '.join(versions)}, append-only file "
        f"with `appendfsync always`. Duration: {totals.seconds / 60:.1f} minutes.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in rows),
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in sorted(totals.faults.items())),
        "",
    ]
    if "stall" in totals.faults:
        lines += [
            "`stall` was not injected: the machine ran no process for more than a second.",
            "",
        ]
    lines += ["[Guarantees](guarantees.md) explains the terms and what the checker compares.", ""]
    if violations:
        lines += ["Violations:", "", *(f"- {name}: {n}" for name, n in violations.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
