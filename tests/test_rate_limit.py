"""Rate limits that any program can use: exact over processes, in order, by the server's clock."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui import AsyncQueue, Queue, RateLimit
from airflow_provider_chasqui.core.errors import InvalidArgument, RateLimitTimeout
from airflow_provider_chasqui.core.rate_limit import parse_rate_limits
from tests.conftest import ONE_OF_EACH, Server


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "limit", "period_s"),
    [
        ("600/minute", 600, 60),
        (" 10 / second ", 10, 1),
        ("5/hour", 5, 3600),
        ("1/Day", 1, 86_400),
        ("10/500ms", 10, 0.5),
        ("10/1h30m", 10, 5400),
    ],
)
def test_text_of_a_rate_limit(text: str, limit: int, period_s: float) -> None:
    rate = RateLimit.parse(text)
    assert rate == RateLimit(limit, timedelta(seconds=period_s))
    assert RateLimit.parse(str(rate)) == rate


@pytest.mark.unit
@pytest.mark.parametrize(
    "rates", ["", "600", "600/", "/minute", "0/minute", "-1/minute", "600/fortnight", [], 7, [7]]
)
def test_invalid_rate_limits_are_refused(rates: Any) -> None:
    with pytest.raises(InvalidArgument):
        parse_rate_limits(rates)


@pytest.mark.unit
@pytest.mark.parametrize(
    "arguments", [{"burst": 0}, {"burst": 11}, {"period": timedelta(0)}, {"limit": 0}]
)
def test_invalid_values_of_a_rate_limit_are_refused(arguments: Any) -> None:
    with pytest.raises(InvalidArgument):
        RateLimit(**{"limit": 10, "period": timedelta(seconds=1)} | arguments)


def test_a_blocking_caller_waits_for_its_turn(queue: Queue) -> None:
    started = time.monotonic()
    for number in range(4):
        with queue.rate_limit("api", "20/second") as grant:
            assert grant.name == "api"
            assert (grant.waited > timedelta(0)) == (number > 0)
    assert 0.145 <= time.monotonic() - started < 5
    assert queue.rate_limit("another api", "20/second").waited == timedelta(0)


def test_a_timeout_reserves_nothing(queue: Queue) -> None:
    queue.rate_limit("api", "1/minute")
    for _ in range(3):
        with pytest.raises(RateLimitTimeout, match=r"60\.0s|59\.\ds") as caught:
            queue.rate_limit("api", "1/minute", timeout=timedelta(seconds=1))
    assert caught.value.queue_name == queue.name
    with pytest.raises(InvalidArgument, match="weight"):
        queue.rate_limit("api", "1/minute", weight=2)
    with pytest.raises(InvalidArgument, match="one per rate"):
        queue.rate_limit("api", "1/minute", weight=[1, 1])
    with pytest.raises(InvalidArgument, match="blank"):
        queue.rate_limit(" ", "1/minute")


def test_a_pause_holds_for_all_callers(queue: Queue) -> None:
    queue.pause_rate_limit("api", timedelta(milliseconds=300))
    queue.pause_rate_limit("api", timedelta(milliseconds=10))
    assert queue.rate_limit("api", "1000/second").waited > timedelta(milliseconds=150)


async def test_waiting_callers_keep_their_order(server: Server, queue_name: str) -> None:
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        order: list[int] = []

        async def call(number: int) -> None:
            await queue.rate_limit("api", "100/second")
            order.append(number)

        tasks = []
        for number in range(10):
            tasks.append(asyncio.create_task(call(number)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order == list(range(10))


CALLER = """
import sys, time
from airflow_provider_chasqui import Queue
url, queue_name, dialect, seconds = sys.argv[1:]
with Queue(queue_name, url, dialect=dialect) as queue:
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        queue.rate_limit("api", ["50/second", "2000/second"], weight=[1, 40])
        print(time.time(), flush=True)
"""


@ONE_OF_EACH
def test_processes_share_the_limit_although_one_is_killed(server: Server, queue_name: str) -> None:
    """Never more than the limit in any second; the killed process keeps no share."""
    arguments = [sys.executable, "-c", CALLER, server.url, queue_name, server.dialect, "3"]
    processes = [
        subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        time.sleep(1)
        processes[0].kill()
        outputs = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    times = sorted(float(line) for output in outputs for line in output.split())
    assert len(times) > 100, "the other processes must use the share of the killed one"
    # A process that wakes late moves its call into the next window, by the load of the machine.
    slack_s = 0.15
    for first, after_limit in zip(times, times[50:], strict=False):
        assert after_limit - first >= 1.0 - slack_s
