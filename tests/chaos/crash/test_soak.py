"""A worker for a long time: memory, consumers, keys and connections stay what they were.

A minute by default; `make soak HOURS=8` for a night.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from tests.chaos.crash.conftest import settled
from tests.conftest import Server
from tests.support.redis_state import names
from tests.support.servers import RedisServer, valkey_binary
from tests.support.waiting import until

SECONDS = int(os.environ.get("CHASQUI_SOAK_SECONDS", "60"))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS + 180)]

SOON = RetryPolicy(5, Backoff.fixed(timedelta(milliseconds=20)))
PAYLOADS = ["quick", 0.01, "fail", "die", "quick", "quick", 0.05, "quick"]
# Kept for a while on purpose, each with an end that lies beyond a minute.
REMEMBERED = ("batch:", "replays:", "idempotency:", "dlid:")
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(params=["redis8-native"] if SECONDS <= 60 else ["redis8-native", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    native = request.param == "redis8-native"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with RedisServer.start(binary) as private:
        yield Server(private.url, "native" if native else "portable")


def memory(pid: int | None) -> int:
    """How much memory a process has, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def feed(queue: Queue, turn: int) -> None:
    """One second's worth of everything: batches, delays, unique ids, cancels, letters."""
    queue.add_batch(PAYLOADS * 25, batch_id=f"b{turn}", retry=SOON, ttl=timedelta(seconds=20))
    delay = timedelta(milliseconds=300)
    queue.add_many([{"payload": p, "delay": delay, "retry": SOON} for p in PAYLOADS * 5])
    queue.add("quick", job_id=f"u{turn}", dedup_ttl=timedelta(seconds=20))
    queue.add("quick", job_id=f"u{turn}", dedup_ttl=timedelta(seconds=20))
    later = queue.add("quick", delay=timedelta(hours=1)).job_id
    assert queue.cancel(later) == "cancelled"
    queue.add(30, job_id=f"endless{turn}")
    queue.cancel(f"endless{turn}")
    queue.replay_dead_letters(limit=5)
    queue.purge_dead_letters(older_than=timedelta(seconds=5))


def sample(queue: Queue, client: Any, pid: int | None) -> dict[str, int]:
    pending = client.xpending_range(queue.keys.stream, "default", "-", "+", 10_000)
    return {
        "memory": memory(pid),
        "consumers": len(queue.consumers()),
        "connections": len(client.client_list()),
        "keys": sum(not name.startswith(REMEMBERED) for name in names(client, queue.keys)),
        "pending": len(pending),
        "idle_ms": max((each["time_since_delivered"] for each in pending), default=0),
        "server": client.info("memory")["used_memory"],
    }


def test_nothing_grows(server: Server, queue: Queue, client, worker) -> None:
    queue.repeat("quick", Every(100), job_name="repeat")
    steady = worker(concurrency=20, max_events=2000)
    restless = worker(concurrency=20, max_events=2000)
    until(lambda: len(queue.consumers()) == 2)
    samples: list[dict[str, int]] = []
    begun, turn = time.monotonic(), 0
    while time.monotonic() - begun < SECONDS:
        started = time.monotonic()
        feed(queue, turn)
        if turn % 5 == 4:  # new members come and go, some politely
            if turn % 2:
                restless.kill()
            else:
                assert restless.terminate()[0] == 0
            restless = worker(concurrency=20, max_events=2000)
        samples.append(sample(queue, client, steady.process.pid))
        turn += 1
        time.sleep(max(0.0, 1 - (time.monotonic() - started)))
    queue.delete_repeat("repeat::every:100")
    until(lambda: settled(queue), 60)
    assert steady.process.is_alive()
    judge(samples)
    for each in (steady, restless):
        assert each.terminate()[0] == 0
    swept(queue)
    for name in names(client, queue.keys):
        if name.startswith(REMEMBERED):
            assert client.pttl(f"{queue.keys.hash_tag}:{name}") > 0, f"{name} would stay for ever"


def judge(samples: list[dict[str, int]]) -> None:
    """The last third against the second: the first is for warming up."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]

    def typical(part: list[dict[str, int]], what: str) -> float:
        return median(each[what] for each in part)

    assert typical(last, "memory") < typical(middle, "memory") * 1.05 + 2 * 2**20
    assert typical(last, "server") < typical(middle, "server") * 1.3 + 2 * 2**20
    # By the most at a time: one that just started has few, however long that takes it.
    most = [max(each["connections"] for each in part) for part in (middle, last)]
    assert most[1] <= most[0] + 10
    assert typical(last, "keys") < typical(middle, "keys") * 1.3 + 50
    # A killed member stays in the group until it was silent for ten minutes; nobody else does.
    kills = min(len(samples), 900) // 10 + 1
    assert max(each["consumers"] for each in last) <= 2 + kills
    # What a killed one held is taken over after 0.4 s; nothing lies for much longer than that.
    assert sorted(each["idle_ms"] for each in samples)[-len(samples) // 5] < 5000


def swept(queue: Queue) -> None:
    """Dead members hold nothing, so they can go."""
    queue.client.execute(consumer_group.remove_idle_consumers(queue.keys, "default", 0))
    assert queue.consumers() == []
