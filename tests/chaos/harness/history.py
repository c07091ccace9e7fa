"""The record of a scenario and the checker that compares it with the guarantees.

The record has three independent sources: the producer's calls, the files that the handlers write,
and the keys on the server, read with plain commands. The checker does not use the code under test.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack

from tests.chaos.harness.plan import CLAIM_S, JobSpec, Scenario

# Without a fault, the outcome of a run reaches the server within this time after its end.
GRACE_S = 5.0
# The time that clients need to reconnect after an outage.
RECONNECT_S = 1.5
EARLY_S = 0.05


@dataclass(frozen=True)
class Add:
    """One call of the producer. `outcome` is `acked`, `refused` (permanently) or `unknown`."""

    job_id: str
    began: float
    ended: float
    outcome: str
    created: bool = True
    skewed: bool = False


@dataclass(frozen=True)
class Run:
    """One run of a handler. `end` is None if the process died during the run."""

    job_id: str
    attempt: int
    pid: int
    start: float
    end: float | None = None
    outcome: str = ""
    name: str = ""


@dataclass(frozen=True)
class FaultEvent:
    """A fault that happened. It affected the processes `pids`, or all if that is empty."""

    kind: str
    began: float
    ended: float
    pids: tuple[int, ...] = ()
    fatal: bool = False

    @property
    def outage(self) -> bool:
        """Whether the server was unavailable long enough for entries to be claimed."""
        long = self.ended - self.began + RECONNECT_S > CLAIM_S - 1
        return not self.pids and (long or self.loses_writes)

    @property
    def loses_writes(self) -> bool:
        """Whether the new master may lack the last writes of the old one.

        Jobs are then delivered again with the attempt numbers of earlier runs, and a repeat fires
        again. Writes that a replica confirmed are not lost.
        """
        return self.kind == "failover"


@dataclass
class History:
    """Everything that was recorded during a scenario."""

    scenario: Scenario
    adds: list[Add] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    faults: list[FaultEvent] = field(default_factory=list)
    dead_letters: list[str] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)
    batch_bits: tuple[int, int] = (0, 0)
    batch_sent: bool = False
    repeat_remains: bool = False


@dataclass
class CheckResult:
    """The violations by category, each with its job ids. Empty if every guarantee holds."""

    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    reruns: int = 0

    def add(self, category: str, job_id: str) -> None:
        self.violations[category].append(job_id)

    def count(self, category: str) -> int:
        return len(self.violations.get(category, ()))

    def __str__(self) -> str:
        return "; ".join(
            f"{len(ids)} {category}: {ids[:5]}" for category, ids in self.violations.items()
        )


def read_runs(folder: Path) -> list[Run]:
    """Return the runs of all worker processes, ordered by start."""
    runs: list[Run] = []
    for file in folder.glob("*.runs"):
        runs += _pair(int(file.stem), _lines(file))
    return sorted(runs, key=lambda run: run.start)


def _lines(file: Path) -> Iterator[list[Any]]:
    for line in file.read_bytes().splitlines():
        yield json.loads(line)


def _pair(pid: int, lines: Iterable[list[Any]]) -> list[Run]:
    """Combine the start and end lines of a process into runs."""
    active: dict[tuple[str, int], Run] = {}
    complete: list[Run] = []
    for action, job_id, attempt, at, name in lines:
        if action == "start":
            if (job_id, attempt) in active:  # a second run started before the first one ended
                complete.append(active.pop((job_id, attempt)))
            active[job_id, attempt] = Run(job_id, attempt, pid, at, name=name)
        else:
            run = active.pop((job_id, attempt))
            complete.append(Run(job_id, attempt, pid, run.start, at, action, name))
    return [*complete, *active.values()]


def read_server(client: Any, queue: str, history: History, batch: str) -> None:
    """Add the dead letters, the remaining jobs and the bits of the batch to the history."""
    tag = f"{{chasqui:{queue}}}"
    for _, fields in client.xrange(f"{tag}:dlq"):
        history.dead_letters.append(job_id_of(fields[b"d"]))
    for _, fields in client.xrange(f"{tag}:stream"):
        history.remaining.append(job_id_of(fields[b"d"]))
    for member in client.zrange(f"{tag}:delayed", 0, -1):
        history.remaining.append(repr(member[-80:]))
    history.repeat_remains = bool(client.zcard(f"{tag}:repeat"))
    done, dead = (client.bitcount(f"{tag}:batch:{batch}:0:{end}") for end in ("done", "dead"))
    history.batch_bits = (done, dead)


def job_id_of(envelope: bytes) -> str:
    """Return the job id in an envelope."""
    return str(msgpack.unpackb(envelope, raw=False, strict_map_key=False)[0])


def check_history(history: History) -> CheckResult:
    """Return every violation of a guarantee in a history."""
    result = CheckResult()
    specs = {spec.id: spec for spec in (*history.scenario.jobs, *history.scenario.batch)}
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in history.runs:
        runs[run.job_id].append(run)
    dead_letters = Counter(history.dead_letters)
    for job_id in _acknowledged(history):
        finished = any(run.outcome == "ok" for run in runs[job_id]) or dead_letters[job_id]
        if not finished:
            result.add("unfinished" if job_id in history.remaining else "lost", job_id)
    for job_id in history.remaining:
        result.add("left in the queue", job_id)
    for job_id, count in dead_letters.items():
        if count > 1:
            result.add("two dead letters", job_id)
    for job_id, runs_of_job in runs.items():
        if runs_of_job:
            _check_runs(result, history, runs_of_job, specs.get(job_id))
    _check_adds(result, history, runs)
    _check_batch(result, history, dead_letters)
    _check_ticks(result, history)
    return result


def _acknowledged(history: History) -> list[str]:
    ids = {add.job_id for add in history.adds if add.outcome == "acked"}
    if history.batch_sent:
        ids |= {spec.id for spec in history.scenario.batch}
    return sorted(ids)


def _check_runs(
    result: CheckResult, history: History, runs: list[Run], spec: JobSpec | None
) -> None:
    job_id = runs[0].job_id
    if spec is None and runs[0].name != "tick":
        result.add("never added", job_id)
    if not _delivery_may_be_lost(history, runs):
        if len(runs) > (spec.max_attempts if spec else 25):
            result.add("over the attempt limit", job_id)
        if len({run.attempt for run in runs}) < len(runs):
            result.add("same attempt twice", job_id)
    result.reruns += len(runs) - 1
    for run, following in pairwise(runs):
        if run.outcome in ("failed", "cut") and (run.end or 0) <= following.start:
            continue
        if not _is_explained(history, run, following):
            finished = run.outcome == "ok" and (run.end or 0) <= following.start
            result.add("duplicated" if finished else "overlapping", job_id)


def _delivery_may_be_lost(history: History, runs: list[Run]) -> bool:
    """Return whether a failover may have lost the record of a delivery of the job."""
    return any(
        fault.loses_writes
        and fault.began <= runs[-1].start
        and (runs[0].end or runs[0].start) >= fault.began - GRACE_S
        for fault in history.faults
    )


def _is_explained(history: History, run: Run, following: Run) -> bool:
    """Return whether a fault explains that a job ran again before its first run was acked."""
    end = run.end if run.end is not None else following.start
    latest_ack = min(end + GRACE_S, following.start)
    for fault in history.faults:
        fault_end = following.start if fault.fatal else fault.ended
        affected = fault.outage or run.pid in fault.pids
        if affected and fault.began <= latest_ack and fault_end >= run.start:
            return True
        # The second process was stopped after it read the entry, and the first one claimed it.
        stopped = following.pid in fault.pids and not fault.fatal and run.pid != following.pid
        if stopped and fault.began <= following.start <= fault.ended + GRACE_S:
            return True
    return False


def _check_adds(result: CheckResult, history: History, runs: dict[str, list[Run]]) -> None:
    created: Counter[str] = Counter()
    specs = {spec.id: spec for spec in history.scenario.jobs}
    outcomes: dict[str, set[str]] = defaultdict(set)
    for add in history.adds:
        outcomes[add.job_id].add(add.outcome)
    for add in history.adds:
        spec = specs[add.job_id]
        if add.outcome == "acked" and spec.unique:
            created[add.job_id] += add.created
        first_start = runs[add.job_id][0].start if runs[add.job_id] else None
        refused = outcomes[add.job_id] == {"refused"} and _was_undisturbed(history, add)
        if refused and first_start is not None:
            result.add("refused but run", add.job_id)
        due = add.began + spec.delay_ms / 1000
        early = first_start is not None and first_start < due - EARLY_S
        if early and not add.skewed and not spec.unique:
            result.add("early", add.job_id)
    for job_id, count in created.items():
        if count > 1:
            result.add("unique id added twice", job_id)


def _was_undisturbed(history: History, add: Add) -> bool:
    """Return whether no fault interrupted the connection during a call.

    Only then does a refusal prove that no earlier attempt of the same call added the job.
    """
    return not any(
        fault.kind in ("cut", "slow", "kill_clients", "kill_server", "stop_server", "read_only")
        and fault.began <= add.ended
        and fault.ended + RECONNECT_S >= add.began
        for fault in history.faults
    )


def _check_batch(result: CheckResult, history: History, dead_letters: Counter[str]) -> None:
    if not history.batch_sent:
        return
    batch = history.scenario.batch
    dead = sum(dead_letters[spec.id] for spec in batch)
    if history.batch_bits != (len(batch) - dead, dead):
        result.add(f"batch bits {history.batch_bits}, {dead} dead letters", batch[0].id)


def _check_ticks(result: CheckResult, history: History) -> None:
    fired = {run.job_id for run in history.runs if run.name == "tick"}
    allowed = {history.scenario.ticks}
    if any(fault.loses_writes for fault in history.faults):
        allowed |= {history.scenario.ticks + n for n in range(1, 4)}
    if history.repeat_remains or len(fired) not in allowed:
        result.add(f"repeat fired {len(fired)} of {history.scenario.ticks}", "tick")


def explain(history: History, job_id: str) -> str:
    """Return everything that is known about a job, and all faults, in chronological order."""
    adds = [
        (add.began, f"add {add.outcome} created={add.created}")
        for add in history.adds
        if add.job_id == job_id
    ]
    runs = [line for run in history.runs if run.job_id == job_id for line in _run_lines(run)]
    first = min((at for at, _ in adds + runs), default=0.0)
    faults = [
        (fault.began, f"{fault.kind} for {fault.ended - fault.began:.2f} {fault.pids or ''}")
        for fault in history.faults
    ]
    lines = sorted(adds + runs + faults)
    return "\n".join(f"{at - first:8.3f}  {event}" for at, event in lines)


def _run_lines(run: Run) -> list[tuple[float, str]]:
    label = f"attempt {run.attempt} in {run.pid}"
    end = [] if run.end is None else [(run.end, f"{run.outcome}: {label}")]
    return [(run.start, f"start {label}"), *end]
