"""The long form: scenario after scenario for so many minutes, and a report in Markdown.

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

from tests.chaos.harness.environment import Stage, play
from tests.chaos.harness.history import History, Verdict, explain
from tests.chaos.harness.plan import draw
from tests.support.servers import RedisServer, valkey_binary
from tools.redis_server import REDIS8, find

SEED_STEP = 1000


@dataclass
class Tally:
    """The sums over all scenarios."""

    seeds: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    adds: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    runs: int = 0
    reruns: int = 0
    letters: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    seconds: float = 0

    def take(self, label: str, history: History, verdict: Verdict) -> None:
        self.seeds.append(label)
        self.faults.update(fault.kind for fault in history.struck)
        self.adds.update(add.outcome for add in history.adds)
        self.jobs += len({run.job_id for run in history.runs} | set(history.letters))
        self.runs += len(history.runs)
        self.reruns += verdict.reruns
        self.letters += len(history.letters)
        self.broken.update({what: len(ids) for what, ids in verdict.broken.items()})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=25, help="of faults in each scenario")
    parser.add_argument("--write", type=Path, default=None, help="put the report into this file")
    args = parser.parse_args()
    first = args.seed if args.seed is not None else time.time_ns() % 1_000_000
    tally = Tally()
    began = time.monotonic()
    servers = {"native": find(REDIS8), "portable": valkey_binary()}
    seed = first
    while time.monotonic() - began < args.minutes * 60:
        for dialect, binary in servers.items():
            if binary is not None:
                _one(tally, seed, args.seconds, dialect, binary)
        seed += SEED_STEP
    tally.seconds = time.monotonic() - began
    versions = [_version(binary) for binary in servers.values() if binary]
    text = render(tally, first, args.minutes, versions)
    print(text)
    if args.write:
        args.write.write_text(text)
    return 1 if tally.broken else 0


def _one(tally: Tally, seed: int, seconds: float, dialect: str, binary: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="chasqui-chaos-") as folder,
        RedisServer.start(binary, "--appendfsync", "always", aof=True) as server,
        Stage(server, dialect, Path(folder)) as stage,
    ):
        history, verdict = play(stage, draw(seed, seconds))
    tally.take(f"{seed} {dialect}", history, verdict)
    said = str(verdict) or "all promises kept"
    print(f"seed {seed}, {dialect}: {len(history.runs)} runs, {said}", file=sys.stderr, flush=True)
    for what, ids in verdict.broken.items():
        print(f"{what}, {ids[0]}:\n{explain(history, ids[0])}", file=sys.stderr, flush=True)


def _version(binary: Path) -> str:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30).stdout
    name, version = said.split()[0], said.partition("v=")[2].split()[0]
    return f"{name} {version}"


def render(tally: Tally, seed: int, minutes: float, versions: list[str]) -> str:
    """The report as it is committed."""
    servers = ", ".join(versions)
    rows = [
        ("scenarios", len(tally.seeds)),
        ("faults", sum(tally.faults.values())),
        ("adds acknowledged", tally.adds["acked"]),
        ("adds refused (queue full, out of memory)", tally.adds["refused"]),
        ("adds of unknown outcome", tally.adds["unknown"]),
        ("jobs that ran or died", tally.jobs),
        ("runs", tally.runs),
        ("runs beyond the first (told to fail, or cut short by a fault)", tally.reruns),
        ("letters", tally.letters),
        ("**lost**", tally.broken["lost"] + tally.broken["unfinished"]),
        ("**doubled without a fault that explains it**",
         tally.broken["doubled"] + tally.broken["beside itself"]),
        ("other promises broken", sum(tally.broken.values()) - sum(
            tally.broken[what] for what in ("lost", "unfinished", "doubled", "beside itself"))),
    ]  # fmt: skip
    kernel = ".".join(platform.release().split(".")[:2])
    lines = [
        "# Chaos report", "",
        f"`make chaos MINUTES={minutes:g} SEED={seed}`, {datetime.now(UTC):%Y-%m-%d}.", "",
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, Linux {kernel}, "
        f"Python {platform.python_version()}; servers: {servers}, append-only file with "
        f"`appendfsync always`. It took {tally.seconds / 60:.1f} minutes.", "",
        "| | |", "|---|---|", *(f"| {what} | {count} |" for what, count in rows), "",
        "| fault | times |", "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in sorted(tally.faults.items())), "",
        *(["`stall` is no fault of ours: the machine let nobody run for over a second.", ""]
          if "stall" in tally.faults else []),
        "What each word means, and what the checker holds against what, is in "
        "[guarantees](guarantees.md).", "",
    ]  # fmt: skip
    if tally.broken:
        lines += ["Broken:", "", *(f"- {what}: {count}" for what, count in tally.broken.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
