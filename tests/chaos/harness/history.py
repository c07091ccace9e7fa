"""The history of a scenario: what the producers, the handlers, the server and the faults did.

A history is data. It has independent sources: the files in which producers record their calls, the
files in which handlers record their runs, the keys on the server, read with plain commands, and the
faults. All times are seconds of the monotonic clock, which the processes of a machine share.
`recorder.py` reads a history, `checker.py` judges it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.chaos.harness.plan import Scenario


@dataclass(frozen=True)
class Add:
    """One call that adds a job.

    :param outcome: `acked`, `refused` (permanently) or `unknown`.
    :param created: whether the call returned that it created the job.
    :param skewed: whether the clock of the producer was wrong during the call.
    """

    job_id: str
    began: float
    ended: float
    outcome: str
    created: bool = True
    skewed: bool = False


@dataclass(frozen=True)
class Cancel:
    """One call that cancels a job.

    :param outcome: `cancelled` (removed before it was due), `requested` (workers are asked to drop
        it) or `unknown`.
    """

    job_id: str
    began: float
    ended: float
    outcome: str


@dataclass(frozen=True)
class Run:
    """One run of a handler.

    :param attempt: the number of earlier attempts, as the handler received it.
    :param end: None if the process died during the run.
    :param outcome: `ok`, `failed`, `dead` (unrecoverable), `snoozed`, `cut` (interrupted) or "".
    :param digest: the digest of the payload that the handler received.
    :param result: the value that the handler returned.
    """

    job_id: str
    attempt: int
    pid: int
    start: float
    end: float | None = None
    outcome: str = ""
    name: str = ""
    digest: int | None = None
    result: Any = None


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter on the server.

    :param attempts: the number of attempts that it states.
    :param at: when the server wrote it.
    """

    job_id: str
    reason: str
    attempts: int
    at: float


@dataclass(frozen=True)
class FaultEvent:
    """A fault that happened.

    :param pids: the processes that it hit; empty if it hit all of them.
    :param fatal: whether it ended the processes.
    :param pending: the jobs that were delivered and not acked when the fault began; None if that
        is not known.
    """

    kind: str
    began: float
    ended: float
    pids: tuple[int, ...] = ()
    fatal: bool = False
    pending: frozenset[str] | None = None

    @property
    def loses_writes(self) -> bool:
        """Whether the server may lack its last writes after the fault.

        Jobs are then delivered again with the attempt numbers of earlier runs, and a repeat fires
        again. Writes that a replica confirmed are not lost.
        """
        return self.kind in ("failover", "power_cut")


@dataclass(frozen=True)
class BatchState:
    """A batch on the server: the indexes with a done bit and those with a dead bit."""

    total: int | None
    done: frozenset[int]
    dead: frozenset[int]


@dataclass
class History:
    """Everything that was recorded during a scenario.

    :param batches_sent: the ids of the batches whose send was acknowledged.
    :param acked_at: when the server had the completion of an attempt, by job id and attempt.
    :param results: the results on the server by job id.
    :param repeat_added: when the call that added the repeatable job began.
    :param repeat_skewed: whether the clock of the producer was wrong during that call.
    """

    scenario: Scenario
    adds: list[Add] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    batches_sent: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    faults: list[FaultEvent] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)
    batches: dict[str, BatchState] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    acked_at: dict[tuple[str, int], float] = field(default_factory=dict)
    repeat_added: float | None = None
    repeat_skewed: bool = False
    repeat_remains: bool = False


def explain(history: History, job_id: str) -> str:
    """Return everything that is known about a job, and all faults, in chronological order."""
    calls = [
        (add.began, f"add {add.outcome} created={add.created}")
        for add in history.adds
        if add.job_id == job_id
    ]
    calls += [
        (call.ended, f"cancel {call.outcome}") for call in history.cancels if call.job_id == job_id
    ]
    runs = [line for run in history.runs if run.job_id == job_id for line in _run_lines(run)]
    acks = [
        (at, f"completion of attempt {attempt} on the server")
        for (acked_id, attempt), at in history.acked_at.items()
        if acked_id == job_id
    ]
    dead = [
        (dead_letter.at, f"dead letter: {dead_letter.reason} after {dead_letter.attempts} attempts")
        for dead_letter in history.dead_letters
        if dead_letter.job_id == job_id
    ]
    events = calls + runs + acks + dead
    first, last = (limit((at for at, _ in events), default=0.0) for limit in (min, max))
    faults = [
        (fault.began, f"{fault.kind} for {fault.ended - fault.began:.2f} s {fault.pids or ''}")
        for fault in history.faults
        if fault.ended >= first - 10 and fault.began <= last + 10
    ]
    specs = [spec for spec in history.scenario.specs if spec.id == job_id]
    lines = [f"{at - first:8.3f}  {event}" for at, event in sorted(events + faults)]
    return "\n".join([*map(str, specs), *lines])


def _run_lines(run: Run) -> list[tuple[float, str]]:
    label = f"attempt {run.attempt} in {run.pid}"
    end = [] if run.end is None else [(run.end, f"{run.outcome}: {label}")]
    return [(run.start, f"start {label}"), *end]
