"""A seed is a scenario: which jobs are sent when, and what goes wrong when. The same every time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

# What can go wrong; faults.py has a method for each.
WORKERS = ("kill_worker", "kill_leader", "stop_worker", "kill_supervisor")
NETWORK = ("cut", "slow", "kill_clients")
SERVER = ("kill_server", "stop_server", "pause", "no_memory", "no_replicas", "read_only")
QUIET = ("flush_scripts", "clock_back", "clock_ahead")
KINDS = (*WORKERS, *NETWORK, *SERVER, *QUIET)

# A dead worker's entries are taken over after this long; an outage much shorter is no excuse.
CLAIM_S = 4.0
TICKS, TICK_MS = 20, 250
BATCH = 60
_LONGEST_BYTE = 4000


@dataclass(frozen=True)
class Wish:
    """One job as the producer means it."""

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
    """Something that goes wrong `after_s` after the last one was over, for `hold_s`."""

    kind: str
    after_s: float
    hold_s: float
    choice: int


@dataclass(frozen=True)
class Scenario:
    seed: int
    jobs: tuple[Wish, ...]
    faults: tuple[Fault, ...]
    ticks: int = TICKS
    batch: tuple[Wish, ...] = field(default=())


def draw(
    seed: int, seconds: float = 14, rate: float = 25, kinds: tuple[str, ...] = KINDS
) -> Scenario:
    """Draw jobs and faults for so many seconds; each kind comes once before any comes twice."""
    dice = random.Random(seed)
    jobs = tuple(
        _wish(dice, f"job-{seed}-{number}", number / rate) for number in range(int(seconds * rate))
    )
    # In a batch that nobody loses, who is dead was told to die.
    batch = tuple(
        Wish(f"batch:b{seed}:0:{number}", seconds / 3, work_ms=dice.choice((0, 20)), die=dead)
        for number, dead in enumerate(dice.random() < 0.1 for _ in range(BATCH))
    )
    return Scenario(seed, jobs, tuple(_faults(dice, seconds, kinds)), batch=batch)


def _wish(dice: random.Random, name: str, at_s: float) -> Wish:
    fail = dice.choice((0, 0, 0, 0, 1, 2))
    return Wish(
        id=name,
        at_s=at_s,
        work_ms=dice.choice((0, 0, 5, 50, 400, 1500)),
        fail=fail,
        die=dice.random() < 0.05,
        delay_ms=dice.choice((0, 0, 0, 100, 1000)),
        # Few runs, so that a budget that is not exact shows.
        max_attempts=dice.choice((1, 2, 3, 25)) if fail == 0 else 25,
        unique=dice.random() < 0.3,
    )


def _faults(dice: random.Random, seconds: float, kinds: tuple[str, ...]) -> list[Fault]:
    faults: list[Fault] = []
    spent, deck = 0.0, list[str]()
    while spent < seconds:
        if not deck:
            deck = list(kinds)
            dice.shuffle(deck)
        kind = deck.pop()
        after = dice.uniform(0.1, 0.6)
        hold = dice.uniform(0.1, 0.8)
        if kind == "stop_worker":  # others go on meanwhile
            hold = dice.choice((1.0, CLAIM_S + 2))
        faults.append(Fault(kind, after, hold, dice.randrange(_LONGEST_BYTE)))
        spent += after + (0.1 if kind in QUIET or kind in WORKERS else hold)
    return faults
