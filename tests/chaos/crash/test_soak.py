"""Memory, consumers, keys and connections do not grow while workers run for a long time.

The default is a minute; `make soak HOURS=8` runs for eight hours.
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
from tests.chaos.crash.conftest import is_drained
from tests.conftest import Server
from tests.support.redis_state import names
from tests.support.servers import RedisServer, valkey_binary
from tests.support.waiting import wait_until

SECONDS = int(os.environ.get("CHASQUI_SOAK_SECONDS", "60"))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS + 180)]

RETRY = RetryPolicy(5, Backoff.fixed(timedelta(milliseconds=20)))
PAYLOADS = ["quick", 0.01, "fail", "die", "quick", "quick", 0.05, "quick"]
# Keys with a TTL of more than a minute.
KEYS_WITH_TTL = ("batch:", "replays:", "idempotency:", "dlid:", "outcomes:")
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(params=["redis8-native"] if SECONDS <= 60 else ["redis8-native", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    native = request.param == "redis8-native"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with RedisServer.start(binary) as private:
        yield Server(private.url, "native" if native else "portable")


def memory(pid: int | None) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def feed(queue: Queue, turn: int) -> None:
    """Add the jobs of one second: batches, delays, unique ids, cancellations, dead letters."""
    queue.add_batch(PAYLOADS * 25, batch_id=f"b{turn}", retry=RETRY, ttl=timedelta(seconds=20))
    delay = timedelta(milliseconds=300)
    queue.add_many([{"payload": p, "delay": delay, "retry": RETRY} for p in PAYLOADS * 5])
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
        "keys": sum(not name.startswith(KEYS_WITH_TTL) for name in names(client, queue.keys)),
        "pending": len(pending),
        "idle_ms": max((entry["time_since_delivered"] for entry in pending), default=0),
        "server": client.info("memory")["used_memory"],
    }


def test_no_resource_grows_over_time(server: Server, queue: Queue, client, worker) -> None:
    queue.repeat("quick", Every(100), job_name="repeat")
    steady = worker(concurrency=20, max_events=2000)
    replaced = worker(concurrency=20, max_events=2000)
    wait_until(lambda: len(queue.consumers()) == 2)
    samples: list[dict[str, int]] = []
    begun, turn = time.monotonic(), 0
    while time.monotonic() - begun < SECONDS:
        started = time.monotonic()
        feed(queue, turn)
        if turn % 5 == 4:  # replace a worker, alternately with SIGKILL and SIGTERM
            if turn % 2:
                replaced.kill()
            else:
                assert replaced.terminate()[0] == 0
            replaced = worker(concurrency=20, max_events=2000)
        samples.append(sample(queue, client, steady.process.pid))
        turn += 1
        time.sleep(max(0.0, 1 - (time.monotonic() - started)))
    queue.delete_repeat("repeat::every:100")
    wait_until(lambda: is_drained(queue), 60)
    assert steady.process.is_alive()
    check_growth(samples)
    for process in (steady, replaced):
        assert process.terminate()[0] == 0
    check_idle_consumers_can_be_removed(queue)
    for name in names(client, queue.keys):
        if name.startswith(KEYS_WITH_TTL):
            assert client.pttl(f"{queue.keys.hash_tag}:{name}") > 0, f"{name} has no TTL"


def check_growth(samples: list[dict[str, int]]) -> None:
    """Compare the last third with the second. The first third is the warm-up."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]

    def typical(samples: list[dict[str, int]], name: str) -> float:
        return median(sample[name] for sample in samples)

    assert typical(last, "memory") < typical(middle, "memory") * 1.05 + 2 * 2**20
    assert typical(last, "server") < typical(middle, "server") * 1.3 + 2 * 2**20
    # The maximum, because a worker that is starting has few connections.
    maximums = [max(sample["connections"] for sample in part) for part in (middle, last)]
    assert maximums[1] <= maximums[0] + 10
    assert typical(last, "keys") < typical(middle, "keys") * 1.3 + 50
    # Only a killed consumer stays in the group, until it was idle for ten minutes.
    kills = min(len(samples), 900) // 10 + 1
    assert max(sample["consumers"] for sample in last) <= 2 + kills
    # The entries of a killed worker are claimed after 0.4 s; none is pending for much longer.
    assert sorted(sample["idle_ms"] for sample in samples)[-len(samples) // 5] < 5000


def check_idle_consumers_can_be_removed(queue: Queue) -> None:
    """Dead consumers have no pending entries, so all of them can be removed."""
    queue.client.execute(consumer_group.remove_idle_consumers(queue.keys, "default", 0))
    assert queue.consumers() == []
