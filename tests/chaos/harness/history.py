"""What happened, told by those outside: the producer, the handlers' notes, the server's bare keys.

Nothing here asks the code under test. `judge` compares the three and says what was broken.
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

from tests.chaos.harness.plan import CLAIM_S, Scenario, Wish

# A run's outcome reaches the server this long after its end at the latest, if nothing is wrong.
GRACE_S = 5.0
# After an outage clients need a moment to come back.
RETURN_S = 1.5
EARLY_S = 0.05


@dataclass(frozen=True)
class Add:
    """One call of the producer: `acked` (with `fresh`), `refused` for good, or `unknown`."""

    job_id: str
    began: float
    ended: float
    outcome: str
    fresh: bool = True
    skewed: bool = False


@dataclass(frozen=True)
class Run:
    job_id: str
    attempt: int
    pid: int
    start: float
    end: float | None = None
    how: str = ""
    name: str = ""


@dataclass(frozen=True)
class Struck:
    """A fault as it happened; with `pids` it hit these processes, else everybody."""

    kind: str
    began: float
    ended: float
    pids: tuple[int, ...] = ()
    fatal: bool = False

    @property
    def outage(self) -> bool:
        """Whether it held the server away for so long that entries may have been taken over."""
        long = self.ended - self.began + RETURN_S > CLAIM_S - 1
        return not self.pids and (long or self.forgets)

    @property
    def forgets(self) -> bool:
        """Whether the server that took over may lack what the old one did last.

        Jobs are then delivered again as if they had never been, and a repeat fires again. What was
        confirmed is there.
        """
        return self.kind == "failover"


@dataclass
class History:
    scenario: Scenario
    adds: list[Add] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    batch_bits: tuple[int, int] = (0, 0)
    batch_sent: bool = False
    repeat_left: bool = False


@dataclass
class Verdict:
    """Broken promises, each with the jobs that tell of it; empty if all were kept."""

    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    reruns: int = 0

    def blame(self, promise: str, job_id: str) -> None:
        self.broken[promise].append(job_id)

    def count(self, promise: str) -> int:
        return len(self.broken.get(promise, ()))

    def __str__(self) -> str:
        return "; ".join(f"{len(ids)} {what}: {ids[:5]}" for what, ids in self.broken.items())


def read_notes(folder: Path) -> list[Run]:
    """The runs of all worker processes, by start."""
    runs: list[Run] = []
    for file in folder.glob("*.notes"):
        runs += _pair(int(file.stem), _lines(file))
    return sorted(runs, key=lambda run: run.start)


def _lines(file: Path) -> Iterator[list[Any]]:
    for line in file.read_bytes().splitlines():
        yield json.loads(line)


def _pair(pid: int, lines: Iterable[list[Any]]) -> list[Run]:
    begun: dict[tuple[str, int], Run] = {}
    done: list[Run] = []
    for what, job_id, attempt, at, name in lines:
        if what == "start":
            if (job_id, attempt) in begun:  # the same once more, while the first still runs
                done.append(begun.pop((job_id, attempt)))
            begun[job_id, attempt] = Run(job_id, attempt, pid, at, name=name)
        else:
            run = begun.pop((job_id, attempt))
            done.append(Run(job_id, attempt, pid, run.start, at, what, name))
    return [*done, *begun.values()]


def read_server(client: Any, queue: str, history: History, batch: str) -> None:
    """Letters, what is left, and the bits of the batch, by bare commands."""
    tag = f"{{chasqui:{queue}}}"
    for _, fields in client.xrange(f"{tag}:dlq"):
        history.letters.append(job_id_of(fields[b"d"]))
    for _, fields in client.xrange(f"{tag}:stream"):
        history.left.append(job_id_of(fields[b"d"]))
    for member in client.zrange(f"{tag}:delayed", 0, -1):
        history.left.append(repr(member[-80:]))
    history.repeat_left = bool(client.zcard(f"{tag}:repeat"))
    done, dead = (client.bitcount(f"{tag}:batch:{batch}:0:{end}") for end in ("done", "dead"))
    history.batch_bits = (done, dead)


def job_id_of(envelope: bytes) -> str:
    return str(msgpack.unpackb(envelope, raw=False, strict_map_key=False)[0])


def judge(history: History) -> Verdict:
    """Hold what happened against what was promised."""
    verdict = Verdict()
    wishes = {wish.id: wish for wish in (*history.scenario.jobs, *history.scenario.batch)}
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in history.runs:
        runs[run.job_id].append(run)
    letters = Counter(history.letters)
    for job_id in _acknowledged(history):
        ended = any(run.how == "ok" for run in runs[job_id]) or letters[job_id]
        if not ended:
            verdict.blame("unfinished" if job_id in history.left else "lost", job_id)
    for job_id in history.left:
        verdict.blame("left over", job_id)
    for job_id, count in letters.items():
        if count > 1:
            verdict.blame("two letters", job_id)
    for job_id, of_job in runs.items():
        if of_job:
            _judge_runs(verdict, history, of_job, wishes.get(job_id))
    _judge_adds(verdict, history, runs)
    _judge_batch(verdict, history, letters)
    _judge_ticks(verdict, history)
    return verdict


def _acknowledged(history: History) -> list[str]:
    ids = {add.job_id for add in history.adds if add.outcome == "acked"}
    if history.batch_sent:
        ids |= {wish.id for wish in history.scenario.batch}
    return sorted(ids)


def _judge_runs(verdict: Verdict, history: History, runs: list[Run], wish: Wish | None) -> None:
    job_id = runs[0].job_id
    if wish is None and runs[0].name != "tick":
        verdict.blame("phantom", job_id)
    if not _forgotten(history, runs):
        if len(runs) > (wish.max_attempts if wish else 25):
            verdict.blame("over budget", job_id)
        if len({run.attempt for run in runs}) < len(runs):
            verdict.blame("same attempt twice", job_id)
    verdict.reruns += len(runs) - 1
    for run, following in pairwise(runs):
        if run.how in ("failed", "cut") and (run.end or 0) <= following.start:
            continue
        if not _excused(history, run, following):
            finished = run.how == "ok" and (run.end or 0) <= following.start
            verdict.blame("doubled" if finished else "beside itself", job_id)


def _forgotten(history: History, runs: list[Run]) -> bool:
    """Whether the server may have forgotten that the job had been delivered."""
    return any(
        fault.forgets and fault.began <= runs[-1].start
        and (runs[0].end or runs[0].start) >= fault.began - GRACE_S
        for fault in history.struck
    )  # fmt: skip


def _excused(history: History, run: Run, again: Run) -> bool:
    """Whether a fault explains why a run was not settled before its job ran again."""
    over = min((run.end if run.end is not None else again.start) + GRACE_S, again.start)
    for fault in history.struck:
        until = again.start if fault.fatal else fault.ended
        hit = fault.outage or run.pid in fault.pids
        if hit and fault.began <= over and until >= run.start:
            return True
        # Or the second one slept over an entry that it had read: it does not know of the first.
        slept = again.pid in fault.pids and not fault.fatal and run.pid != again.pid
        if slept and fault.began <= again.start <= fault.ended + GRACE_S:
            return True
    return False


def _judge_adds(verdict: Verdict, history: History, runs: dict[str, list[Run]]) -> None:
    fresh: Counter[str] = Counter()
    wishes = {wish.id: wish for wish in history.scenario.jobs}
    outcomes: dict[str, set[str]] = defaultdict(set)
    for add in history.adds:
        outcomes[add.job_id].add(add.outcome)
    for add in history.adds:
        wish = wishes[add.job_id]
        if add.outcome == "acked" and wish.unique:
            fresh[add.job_id] += add.fresh
        first = runs[add.job_id][0].start if runs[add.job_id] else None
        refused = outcomes[add.job_id] == {"refused"} and _calm(history, add)
        if refused and first is not None:
            verdict.blame("refused but run", add.job_id)
        early = first is not None and first < add.began + wish.delay_ms / 1000 - EARLY_S
        if early and not add.skewed and not wish.unique:
            verdict.blame("early", add.job_id)
    for job_id, count in fresh.items():
        if count > 1:
            verdict.blame("unique id added twice", job_id)


def _calm(history: History, add: Add) -> bool:
    """Whether no connection broke during the call: then a refusal is the whole truth."""
    return not any(
        fault.kind in ("cut", "slow", "kill_clients", "kill_server", "stop_server", "read_only")
        and fault.began <= add.ended and fault.ended + RETURN_S >= add.began
        for fault in history.struck
    )  # fmt: skip


def _judge_batch(verdict: Verdict, history: History, letters: Counter[str]) -> None:
    if not history.batch_sent:
        return
    batch = history.scenario.batch
    dead = sum(letters[wish.id] for wish in batch)
    if history.batch_bits != (len(batch) - dead, dead):
        verdict.blame(f"batch bits {history.batch_bits}, {dead} letters", batch[0].id)


def _judge_ticks(verdict: Verdict, history: History) -> None:
    fired = {run.job_id for run in history.runs if run.name == "tick"}
    wanted = {history.scenario.ticks}
    if any(fault.forgets for fault in history.struck):
        wanted |= {history.scenario.ticks + n for n in range(1, 4)}
    if history.repeat_left or len(fired) not in wanted:
        verdict.blame(f"repeat fired {len(fired)} of {history.scenario.ticks}", "tick")


def explain(history: History, job_id: str) -> str:
    """Everything that is known of a job, in order, with the faults: for whoever has to find out."""
    adds = [(add.began, f"add {add.outcome} fresh={add.fresh}") for add in history.adds
            if add.job_id == job_id]  # fmt: skip
    runs = [line for run in history.runs if run.job_id == job_id for line in _told(run)]
    first = min((at for at, _ in adds + runs), default=0.0)
    faults = [
        (fault.began, f"{fault.kind} for {fault.ended - fault.began:.2f} {fault.pids or ''}")
        for fault in history.struck
    ]
    lines = sorted(adds + runs + faults)
    return "\n".join(f"{at - first:8.3f}  {what}" for at, what in lines)


def _told(run: Run) -> list[tuple[float, str]]:
    who = f"attempt {run.attempt} in {run.pid}"
    end = [] if run.end is None else [(run.end, f"{run.how}: {who}")]
    return [(run.start, f"start {who}"), *end]
