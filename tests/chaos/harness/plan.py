"""Scenarios of the fault tests. A seed always gives the same jobs and the same faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

# The kinds of faults; faults.py has a method for each.
WORKERS = ("kill_worker", "kill_leader", "stop_worker", "kill_supervisor")
NETWORK = ("cut", "slow", "kill_clients")
SERVER = ("kill_server", "stop_server", "pause", "no_memory", "no_replicas", "read_only")
QUIET = ("flush_scripts", "clock_back", "clock_ahead")
KINDS = (*WORKERS, *NETWORK, *SERVER, *QUIET)

# The claim_after of the workers. An outage that is much shorter does not explain a second run.
CLAIM_S = 4.0
TICKS, TICK_MS = 20, 250
BATCH = 60
_MAX_CHOICE = 4000


@dataclass(frozen=True)
class JobSpec:
    """A job that the producer will add."""

    id: str
    at_s: float
    work_ms: int = 0
    fail: int = 0
    die: bool = False
    delay_ms: int = 0
    max_attempts: int = 25
    unique: bool = False

    @property
    def payload(self) -> dict[str, int | bool]:
        return {"work_ms": self.work_ms, "fail": self.fail, "die": self.die}


@dataclass(frozen=True)
class Fault:
    """A fault that begins `after_s` after the end of the previous one and lasts `hold_s`."""

    kind: str
    after_s: float
    hold_s: float
    choice: int


@dataclass(frozen=True)
class Scenario:
    """The jobs and the faults of one run of the harness."""

    seed: int
    jobs: tuple[JobSpec, ...]
    faults: tuple[Fault, ...]
    ticks: int = TICKS
    batch: tuple[JobSpec, ...] = field(default=())


def generate_scenario(
    seed: int, seconds: float = 14, rate: float = 25, kinds: tuple[str, ...] = KINDS
) -> Scenario:
    """Return the scenario of a seed. Every kind of fault occurs once before any occurs twice.

    :param seconds: the duration of the faults.
    :param rate: the number of jobs per second.
    """
    rng = random.Random(seed)
    jobs = tuple(
        _job_spec(rng, f"job-{seed}-{number}", number / rate)
        for number in range(int(seconds * rate))
    )
    # The jobs of the batch have enough attempts, so only those with `die` become dead letters.
    batch = tuple(
        JobSpec(f"batch:b{seed}:0:{number}", seconds / 3, work_ms=rng.choice((0, 20)), die=dies)
        for number, dies in enumerate(rng.random() < 0.1 for _ in range(BATCH))
    )
    return Scenario(seed, jobs, tuple(_faults(rng, seconds, kinds)), batch=batch)


def _job_spec(rng: random.Random, job_id: str, at_s: float) -> JobSpec:
    fail = rng.choice((0, 0, 0, 0, 1, 2))
    return JobSpec(
        id=job_id,
        at_s=at_s,
        work_ms=rng.choice((0, 0, 5, 50, 400, 1500)),
        fail=fail,
        die=rng.random() < 0.05,
        delay_ms=rng.choice((0, 0, 0, 100, 1000)),
        # Few attempts, so that a limit that is not exact becomes visible.
        max_attempts=rng.choice((1, 2, 3, 25)) if fail == 0 else 25,
        unique=rng.random() < 0.3,
    )


def _faults(rng: random.Random, seconds: float, kinds: tuple[str, ...]) -> list[Fault]:
    faults: list[Fault] = []
    elapsed, remaining_kinds = 0.0, list[str]()
    while elapsed < seconds:
        if not remaining_kinds:
            remaining_kinds = list(kinds)
            rng.shuffle(remaining_kinds)
        kind = remaining_kinds.pop()
        after = rng.uniform(0.1, 0.6)
        hold = rng.uniform(0.1, 0.8)
        if kind == "stop_worker":  # the other workers continue
            hold = rng.choice((1.0, CLAIM_S + 2))
        faults.append(Fault(kind, after, hold, rng.randrange(_MAX_CHOICE)))
        elapsed += after + (0.1 if kind in QUIET or kind in WORKERS else hold)
    return faults
