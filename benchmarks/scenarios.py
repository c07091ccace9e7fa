"""The scenarios: their keys in the table, number of jobs, and the systems that support them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Measures of which a smaller value is better.
LESS_IS_BETTER = frozenset({"p50_ms", "p99_ms", "bytes", "rss_mb", "ms"})


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    `jobs` is the number for the fastest systems in a full run; slower systems run fewer. `method`
    is the method of `Runner` in run.py. `only` restricts the scenario to some systems.
    """

    key: str
    title: str
    method: str
    jobs: int
    request: dict[str, Any] = field(default_factory=dict)
    quick: int = 0
    only: tuple[str, ...] = ()
    scaled: bool = True


CHASQUI = ("ours", "chasquimq", "chasquimq, one core")
OFF, ON = {"events": False}, {"events": True}
PLAIN = {"kind": "plain"}

SCENARIOS = (
    Scenario("A", "one add at a time", "adds", 5_000, quick=2_000),
    Scenario("A plain", "one add at a time, blocking", "adds", 5_000, PLAIN),
    Scenario("B", "bulk add", "bulk", 100_000, quick=40_000),
    Scenario("C on", "no-op, async, events on", "drain", 100_000, ON, quick=40_000),
    Scenario("C off", "no-op, async, events off", "drain", 100_000, OFF, quick=40_000),
    Scenario("C plain on", "no-op, plain function, events on", "drain", 50_000, ON | PLAIN),
    Scenario("C plain off", "no-op, plain function, events off", "drain", 50_000, OFF | PLAIN),
    Scenario("D on", "delayed, all due at once, events on", "due", 40_000, ON, quick=20_000),
    Scenario("D off", "delayed, all due at once, events off", "due", 40_000, OFF),
    Scenario("E off", "fail once, then succeed, events off", "retry", 40_000, OFF, quick=20_000),
    Scenario("E on", "fail once, then succeed, events on", "retry", 40_000, ON),
    Scenario(
        "F",
        "latency at 500 jobs per second",
        "latency",
        1_500,
        {"rate": 500},
        quick=750,
        scaled=False,
    ),
    Scenario(
        "G",
        "memory of 10 000 waiting jobs",
        "bulk",
        10_000,
        quick=10_000,
        scaled=False,
        only=CHASQUI,
    ),
    Scenario("H B 10k", "bulk add, 10 000", "bulk", 10_000, only=("ours",), scaled=False),
    Scenario("H B 100k", "bulk add, 100 000", "bulk", 100_000, only=("ours",), scaled=False),
    Scenario("H B 1M", "bulk add, 1 000 000", "bulk", 1_000_000, only=("ours",), scaled=False),
    Scenario("H C 10k", "no-op, 10 000", "drain", 10_000, ON, only=("ours",), scaled=False),
    Scenario("H C 100k", "no-op, 100 000", "drain", 100_000, ON, only=("ours",), scaled=False),
    Scenario("H C 1M", "no-op, 1 000 000", "drain", 1_000_000, ON, only=("ours",), scaled=False),
    Scenario("H D 10k", "delayed, 10 000", "due", 10_000, ON, only=("ours",), scaled=False),
    Scenario("H D 100k", "delayed, 100 000", "due", 100_000, ON, only=("ours",), scaled=False),
    Scenario("H D 1M", "delayed, 1 000 000", "due", 1_000_000, ON, only=("ours",), scaled=False),
    Scenario("H E 10k", "fail once, 10 000", "retry", 10_000, OFF, only=("ours",), scaled=False),
    Scenario("H E 100k", "fail once, 100 000", "retry", 100_000, OFF, only=("ours",), scaled=False),
    Scenario(
        "H E 1M", "fail once, 1 000 000", "retry", 1_000_000, OFF, only=("ours",), scaled=False
    ),
    Scenario(
        "I progress",
        "progress of a batch of 1 000 000",
        "extra",
        1_000_000,
        {"action": "progress"},
        only=("ours",),
        scaled=False,
    ),
    Scenario("I replay", "replay of dead letters", "replay", 20_000, only=CHASQUI, scaled=False),
    Scenario(
        "I cron", "10 000 repeats, all due at once", "cron", 10_000, only=CHASQUI, scaled=False
    ),
    Scenario(
        "J 2",
        "two worker processes, events on",
        "processes",
        100_000,
        ON | {"processes": 2},
        only=CHASQUI,
    ),
    Scenario(
        "J 4",
        "four worker processes, events on",
        "processes",
        100_000,
        ON | {"processes": 4},
        only=CHASQUI,
    ),
    Scenario(
        "L add",
        "bulk add of 1 MiB payloads",
        "bulk",
        200,
        {"size": 1_047_000},
        only=(*CHASQUI, "limit"),
        scaled=False,
    ),
    Scenario(
        "L run",
        "no-op on 1 MiB payloads",
        "drain",
        200,
        ON | {"size": 1_047_000},
        only=CHASQUI,
        scaled=False,
    ),
    Scenario(
        "M",
        "1 000 deferred waiters in one process",
        "extra",
        1_000,
        {"action": "waiters"},
        only=("ours",),
        scaled=False,
    ),
)
