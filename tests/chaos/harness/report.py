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

from tests.chaos.harness.checker import CheckResult
from tests.chaos.harness.environment import Environment, run_scenario
from tests.chaos.harness.history import History, explain
from tests.chaos.harness.plan import Scenario, generate_scenario
from tests.support.servers import RedisServer, valkey_binary
from tools.redis_server import REDIS8, find

SEED_STEP = 1000


@dataclass
class Totals:
    """The sums over all scenarios."""

    seeds: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    adds: Counter[str] = field(default_factory=Counter)
    cancels: int = 0
    jobs: int = 0
    runs: int = 0
    dead_letters: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    excused: Counter[tuple[str, str]] = field(default_factory=Counter)
    ack_bounds_s: list[float] = field(default_factory=list)
    seconds: float = 0

    def add(self, label: str, history: History, result: CheckResult) -> None:
        self.seeds.append(label)
        self.faults.update(fault.kind for fault in history.faults)
        self.adds.update(add.outcome for add in history.adds)
        self.cancels += len(history.cancels)
        dead = {dead_letter.job_id for dead_letter in history.dead_letters}
        self.jobs += len({run.job_id for run in history.runs} | dead)
        self.runs += len(history.runs)
        self.dead_letters += len(history.dead_letters)
        self.violations.update({rule: len(ids) for rule, ids in result.violations.items()})
        self.excused.update(result.excused)
        self.ack_bounds_s.append(result.ack_bound_s)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10, help="minimum duration")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first scenario")
    parser.add_argument("--seconds", type=float, default=25, help="duration of the faults per seed")
    parser.add_argument("--rate", type=float, default=25, help="jobs per second")
    parser.add_argument("--jobs", type=int, default=0, help="minimum number of jobs in total")
    parser.add_argument("--write", type=Path, default=None, help="file for the report")
    args = parser.parse_args()
    first_seed = args.seed if args.seed is not None else time.time_ns() % 1_000_000
    totals = Totals()
    began = time.monotonic()
    servers = {"native": find(REDIS8), "portable": valkey_binary()}
    seed = first_seed
    while time.monotonic() - began < args.minutes * 60 or totals.jobs < args.jobs:
        scenario = generate_scenario(seed, args.seconds, args.rate)
        for dialect, binary in servers.items():
            if binary is not None:
                _run_seed(totals, scenario, dialect, binary)
        seed += SEED_STEP
    totals.seconds = time.monotonic() - began
    versions = [_version(binary) for binary in servers.values() if binary]
    text = render(totals, first_seed, args.minutes, versions)
    print(text)
    if args.write:
        args.write.write_text(text)
    return 1 if totals.violations else 0


def _run_seed(totals: Totals, scenario: Scenario, dialect: str, binary: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="chasqui-chaos-") as folder,
        RedisServer.start(binary, "--appendfsync", "always", aof=True) as server,
        Environment(server, dialect, Path(folder)) as environment,
    ):
        history, result = run_scenario(environment, scenario)
    label = f"{scenario.seed} {dialect}"
    totals.add(label, history, result)
    summary = f"seed {label}: {len(history.runs)} runs, {str(result) or 'no violations'}"
    print(summary, file=sys.stderr, flush=True)
    for rule, ids in result.violations.items():
        for job_id in ids[:3]:
            print(f"{rule}, {job_id}:\n{explain(history, job_id)}", file=sys.stderr, flush=True)


def _version(binary: Path) -> str:
    command = [binary, "--version"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    name, version = output.split()[0], output.partition("v=")[2].split()[0]
    return f"{name} {version}"


def render(totals: Totals, seed: int, minutes: float, versions: list[str]) -> str:
    """Return the report as Markdown."""
    violations = totals.violations
    rows = [
        ("scenarios", len(totals.seeds)),
        ("faults", sum(totals.faults.values())),
        ("adds acknowledged", totals.adds["acked"]),
        ("adds refused (queue full, out of memory)", totals.adds["refused"]),
        ("adds of unknown outcome", totals.adds["unknown"]),
        ("jobs that ran or became dead letters", totals.jobs),
        ("runs", totals.runs),
        ("cancellations", totals.cancels),
        ("dead letters", totals.dead_letters),
        ("**jobs lost**", violations["lost"] + violations["unfinished"]),
        ("**violations of all rules**", sum(violations.values())),
        ("excused, see below", sum(totals.excused.values())),
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
            "`stall` was not injected: a worker process recorded that it did not run for more than "
            "a second, because it was stopped or because the machine was busy.",
            "",
        ]
    lines += [
        "What the checker excused, and the fault that explains it:",
        "",
        "| not as without faults | fault | times |",
        "|---|---|---|",
        *(f"| {rule} | {cause} | {n} |" for (rule, cause), n in sorted(totals.excused.items())),
        "",
        f"Bound of the time between the end of a run and its ack, as measured: "
        f"{min(totals.ack_bounds_s):.2f} to {max(totals.ack_bounds_s):.2f} s.",
        "",
        "[Guarantees](guarantees.md) explains what the checker judges and what it excuses.",
        "",
    ]
    if violations:
        lines += ["Violations:", "", *(f"- {name}: {n}" for name, n in violations.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
