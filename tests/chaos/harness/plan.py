"""Scenarios of the fault tests. A seed always gives the same jobs and the same faults."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

# The kinds of faults; faults.py has a method for each.
PROCESSES = (
    "kill_worker",
    "kill_leader",
    "kill_supervisor",
    "kill_producer",
    "stop_worker",
    "stop_supervisor",
    "stop_producer",
)
NETWORK = ("cut", "slow", "hold", "hold_requests", "hold_replies", "half_open", "kill_clients")
SERVER = (
    "kill_server",
    "stop_server",
    "pause",
    "busy_script",
    "max_clients",
    "no_memory",
    "no_replicas",
    "read_only",
)
QUIET = ("flush_scripts", "clock_back", "clock_ahead")
KINDS = (*PROCESSES, *NETWORK, *SERVER, *QUIET)

# The claim_after of the workers.
CLAIM_S = 4.0
# The time after which a client gives up on a reply.
CLIENT_TIMEOUT_S = 3.0
RETRY_DELAY_S, SNOOZE_S = 0.2, 0.3
TICKS, TICK_MS = 20, 250
PRODUCERS = 3
BATCH = 60
ORDERED = 60
_MAX_CHOICE = 4000
# How long faults last, in seconds, with weights: shorter than a round trip, usual, longer than the
# timeout of the clients, longer than the claim, and beyond.
HOLDS = (
    (0.15, 0.0, 0.02),
    (0.55, 0.1, 0.8),
    (0.20, 0.8, 3.0),
    (0.08, CLIENT_TIMEOUT_S, CLAIM_S + 2),
    (0.02, CLAIM_S + 2, 3 * CLAIM_S),
)


@dataclass(frozen=True)
class JobSpec:
    """A job that a producer will add.

    :param fail: the number of attempts that fail.
    :param die: whether the handler raises an unrecoverable error.
    :param snooze: the number of times that the handler returns `Snooze` first.
    :param thread: whether a plain function runs the job, in a thread.
    :param cancel_after_ms: when the producer cancels the job; None for never.
    :param ordered: whether the job belongs to the queue with one worker of concurrency 1.
    :param producer: the number of the producer.
    """

    id: str
    at_s: float
    work_ms: int = 0
    fail: int = 0
    die: bool = False
    snooze: int = 0
    delay_ms: int = 0
    max_attempts: int = 25
    unique: bool = False
    thread: bool = False
    cancel_after_ms: int | None = None
    ordered: bool = False
    producer: int = 0

    @property
    def payload(self) -> dict[str, Any]:
        return {
            "work_ms": self.work_ms,
            "fail": self.fail,
            "die": self.die,
            "snooze": self.snooze,
            "text": self.id * 3,
        }

    @cached_property
    def digest(self) -> int:
        return payload_digest(self.payload)

    @property
    def batch_id(self) -> str:
        return self.id.split(":")[1]

    @property
    def index(self) -> int:
        return int(self.id.split(":")[3])

    @property
    def stores_result(self) -> bool:
        """Whether the checker compares the stored result."""
        return not self.id.startswith("batch:")


def payload_digest(payload: object) -> int:
    """Return the digest that the handler records for the payload it received."""
    return zlib.crc32(json.dumps(payload, sort_keys=True, default=repr).encode())


@dataclass(frozen=True)
class Fault:
    """A fault that begins `after_s` after the end of the previous one and lasts `hold_s`."""

    kind: str
    after_s: float
    hold_s: float
    choice: int

    @property
    def hits_one_link(self) -> bool:
        """Whether a fault of the network hits the link of one process only."""
        return self.kind in NETWORK and self.choice % 3 > 0

    @property
    def in_background(self) -> bool:
        """Whether the next fault may begin before this one ends."""
        instant = self.kind in ("kill_clients", "flush_scripts")
        return instant or self.kind in PROCESSES or self.hits_one_link


@dataclass(frozen=True)
class Scenario:
    """The jobs and the faults of one run of the harness."""

    seed: int
    jobs: tuple[JobSpec, ...]
    faults: tuple[Fault, ...]
    ticks: int = TICKS
    batch: tuple[JobSpec, ...] = field(default=())
    producers: int = 1

    @property
    def specs(self) -> tuple[JobSpec, ...]:
        """All jobs that the producers will add."""
        return (*self.jobs, *self.batch)


def generate_scenario(
    seed: int,
    seconds: float = 14,
    rate: float = 25,
    kinds: tuple[str, ...] = KINDS,
    max_hold_s: float = 3 * CLAIM_S,
) -> Scenario:
    """Return the scenario of a seed. Every kind of fault occurs once before any occurs twice.

    :param seconds: the duration of the faults.
    :param rate: the number of jobs per second.
    :param kinds: the kinds of faults.
    :param max_hold_s: the longest duration of one fault.
    """
    rng = random.Random(seed)
    return Scenario(
        seed,
        tuple(_jobs(rng, seed, seconds, rate)),
        tuple(_faults(rng, seconds, kinds, max_hold_s)),
        batch=tuple(_batches(rng, seed, seconds)),
        producers=PRODUCERS,
    )


def _jobs(rng: random.Random, seed: int, seconds: float, rate: float) -> list[JobSpec]:
    """Return jobs, some of which are added by one call, and the jobs of the ordered queue."""
    jobs: list[JobSpec] = []
    count = int(seconds * rate)
    while len(jobs) < count:
        at_s, producer = len(jobs) / rate, rng.randrange(PRODUCERS)
        for _ in range(min(rng.choice((1, 1, 1, 2, 5)), count - len(jobs))):
            jobs.append(_job_spec(rng, f"job-{seed}-{len(jobs)}", at_s, producer))
    jobs += [
        JobSpec(f"ordered-{seed}-{number}", number // 5 * 5 * seconds / ORDERED, ordered=True)
        for number in range(ORDERED)
    ]
    return sorted(jobs, key=lambda spec: (spec.at_s, spec.ordered))


def _batches(rng: random.Random, seed: int, seconds: float) -> list[JobSpec]:
    """Return one batch per producer."""
    return [
        JobSpec(
            f"batch:b{seed}-{producer}:0:{index}",
            seconds / 3,
            work_ms=rng.choice((0, 20)),
            die=rng.random() < 0.1,
            producer=producer,
        )
        for producer in range(PRODUCERS)
        for index in range(BATCH // PRODUCERS)
    ]


def _job_spec(rng: random.Random, job_id: str, at_s: float, producer: int) -> JobSpec:
    return JobSpec(
        id=job_id,
        at_s=at_s,
        work_ms=rng.choice((0, 0, 5, 50, 400, 1500)),
        fail=rng.choice((0, 0, 0, 0, 1, 2)),
        die=rng.random() < 0.05,
        snooze=rng.choice((0, 0, 0, 0, 0, 1)),
        delay_ms=rng.choice((0, 0, 0, 100, 1000)),
        # Few attempts, so that a limit that is not exact becomes visible.
        max_attempts=rng.choice((1, 2, 3, 25, 25)),
        unique=rng.random() < 0.3,
        thread=rng.random() < 0.3,
        cancel_after_ms=rng.choice((0, 50, 500)) if rng.random() < 0.08 else None,
        producer=producer,
    )


def _faults(
    rng: random.Random, seconds: float, kinds: tuple[str, ...], max_hold_s: float
) -> list[Fault]:
    faults: list[Fault] = []
    elapsed, remaining_kinds = 0.0, list[str]()
    weights = [weight for weight, _, _ in HOLDS]
    while elapsed < seconds:
        if not remaining_kinds:
            remaining_kinds = list(kinds)
            rng.shuffle(remaining_kinds)
        kind = remaining_kinds.pop()
        after = rng.uniform(0.1, 0.6)
        _, shortest, longest = rng.choices(HOLDS, weights)[0]
        hold = min(max_hold_s, rng.uniform(shortest, longest))
        if kind == "stop_worker":  # the other workers continue
            hold = rng.choice((1.0, CLAIM_S + 2))
        if kind == "busy_script":  # it uses a processor
            hold = min(hold, 2.0)
        fault = Fault(kind, after, hold, rng.randrange(_MAX_CHOICE))
        faults.append(fault)
        elapsed += after + (0.1 if fault.in_background else hold)
    return faults
