"""Leases alongside a real ChasquiMQ 1.3.0 worker in the same group."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import InvalidLeaseConfig, LeaseLost
from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue
from airflow_provider_chasqui.queue import Queue
from tests.lease.conftest import LONG, MS
from tests.rsmq.conftest import chasquimq_python, stock_worker
from tests.support.waiting import wait_until

__all__ = ["chasquimq_python", "stock_worker"]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]
IDLE = 1500


@pytest.fixture
def stream(native_server: Any, queue_name: str) -> Iterator[Queue]:
    """ChasquiMQ needs Redis 8.6."""
    with Queue(queue_name, native_server.url) as queue:
        yield queue


@pytest.fixture
def leases(native_server: Any, queue_name: str) -> Iterator[LeaseQueue]:
    config = LeaseConfig(visibility_timeout=IDLE * MS, claim_after=IDLE * MS)
    with LeaseQueue(queue_name, native_server.url, config=config) as leases:
        yield leases


def test_a_chasquimq_worker_claims_only_expired_leases(
    stream: Queue, leases: LeaseQueue, stock_worker: Any, native_server: Any
) -> None:
    stream.add_many([{"payload": "kept"}, {"payload": "released"}, {"payload": "silent"}])
    kept, back, silent = leases.lease("me", 3)
    with leases.heartbeat(kept) as beat:
        worker = stock_worker(native_server.url, stream.name, IDLE)
        leases.nack(back)
        assert worker.receive()["ran"] == "released"
        # This lease gets no heartbeat: the worker claims the job, and the ack is too late.
        assert worker.receive()["ran"] == "silent"
        with pytest.raises(LeaseLost):
            leases.ack(silent)
        stream.add("new")
        assert worker.receive()["ran"] == "new"
        # Now the renewed lease is older than the idle time after which the worker claims.
        assert leases.lease("me", wait=timedelta(milliseconds=2 * IDLE)) == []
        beat.check()
    leases.ack(kept)
    wait_until(lambda: leases.stats().length == 0)
    worker.process.stdin.write("stop\n")
    worker.process.stdin.flush()
    assert worker.receive() == "down", "the worker ran something twice"


def test_a_worker_and_lease_holders_process_every_job_once(
    stream: Queue, leases: LeaseQueue, stock_worker: Any, native_server: Any
) -> None:
    worker = stock_worker(native_server.url, stream.name, 30_000)
    stream.add_many([{"payload": i} for i in range(500)])
    ours = []
    while got := leases.lease("me", 7):
        ours += [lease.payload for lease in got]
        leases.ack(*got)
    wait_until(lambda: leases.stats().length == 0)
    worker.process.stdin.write("stop\n")
    worker.process.stdin.flush()
    worker_ran = []
    while (line := worker.receive()) != "down":
        worker_ran.append(line["ran"])
    assert sorted(ours + worker_ran) == list(range(500))
    assert ours, "the worker did it all: nothing was shared"


_REPLAY = """
import asyncio, json, os, sys
from chasquimq import Queue

async def main(url, name):
    queue = Queue(name, redis_url=url)
    dead_letters = await queue.peek_dlq()
    fields = ("reason", "name", "source_id")
    print(json.dumps([[dead_letter[field] for field in fields] for dead_letter in dead_letters]))
    print(await queue.replay_dlq())

asyncio.run(main(*sys.argv[1:]))
sys.stdout.flush()
os._exit(0)  # the wheel's threads may touch an interpreter that is being taken down
"""


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_chasquimq_reads_and_replays_the_dead_letters(
    stream: Queue, stock_worker: Any, chasquimq_python: Path, native_server: Any, mode: str
) -> None:
    stream.add("try again", job_name="n")
    url, action = native_server.url, "dead_letter" if mode == "shared" else "block_and_dead_letter"
    config = LeaseConfig(mode=mode, on_max_deliveries=action, max_deliveries=1)
    with LeaseQueue(stream.name, url, config=config) as leases:
        (lease,) = leases.lease("me")
        leases.nack(lease)
        assert leases.lease("me") == []
        arguments = [str(chasquimq_python), "-c", _REPLAY, url, stream.name]
        process = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        assert process.returncode == 0, process.stderr
        seen, replayed = process.stdout.splitlines()
        assert json.loads(seen) == [["retries_exhausted", "n", lease.entry_id]]
        assert replayed == "1"
    if mode == "shared":
        assert stock_worker(url, stream.name).receive()["ran"] == "try again"


def test_exclusive_mode_refuses_a_stream_with_a_worker(
    stream: Queue, stock_worker: Any, native_server: Any
) -> None:
    stock_worker(native_server.url, stream.name)
    config = LeaseConfig(mode="exclusive")
    with LeaseQueue(stream.name, native_server.url, config=config) as exclusive:

        def refused() -> bool:
            try:
                exclusive.lease("me", wait=1 * MS)
            except InvalidLeaseConfig:
                return True
            return False

        wait_until(refused)
        with pytest.raises(InvalidLeaseConfig, match="'default'"):
            exclusive.lease("me", wait=LONG)
