"""Workers of this package and of ChasquiMQ 1.3.0 on one queue, killed at random."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.event import EVENT_NAMES
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.chaos.crash.conftest import is_drained, runs
from tests.conftest import Server
from tests.interop.fleet import Peer
from tests.interop.fleet import runs as peer_runs
from tests.support.redis_state import entries, plain_client
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.interop, pytest.mark.timeout(180)]

RECORD = "peer-runs"
CLAIM_MS = 2500
SECONDS = 10
# The beginning of the SHA of ChasquiMQ's promote script; that of this package differs.
PEER_PROMOTE_SHA = "f33a92e1"
PLANS: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"sleep_ms": 60},
    {"fail": 1},
    {"fail": 2},
    {"die": True},
    {"delay_ms": 300},
]


@pytest.fixture
def server(redis86_binary) -> Iterator[Server]:
    with RedisServer.start(redis86_binary) as private:
        yield Server(private.url, "native")


class WorkerFleet:
    """Two workers of this package and two peers. A killed one is replaced."""

    def __init__(self, server: Server, queue: str, worker: Any):
        self._server, self._queue, self._worker = server, queue, worker
        self.killed: Counter[str] = Counter()
        self.peers = [self._start_peer(), self._start_peer()]
        self.workers = [self._start_worker(), self._start_worker()]

    def _start_worker(self) -> Any:
        return self._worker(claim_after=timedelta(milliseconds=CLAIM_MS), concurrency=20)

    def _start_peer(self) -> Peer:
        peer = Peer.start()
        options = {"claim_min_idle_ms": CLAIM_MS, "concurrency": 20, "scheduler_tick_ms": 100}
        peer.work(self._server.url, self._queue, record=RECORD, **options)
        return peer

    def kill_one(self) -> None:
        index = random.randrange(2)
        if random.random() < 0.5:
            self.peers[index].close()
            self.peers[index] = self._start_peer()
            self.killed["peers"] += 1
        else:
            self.workers[index].kill()
            self.workers[index] = self._start_worker()
            self.killed["workers"] += 1

    def close(self) -> None:
        for peer in self.peers:
            peer.close()


def produce(queue: Queue, producer: Peer, url: str, count: int) -> dict[str, dict[str, Any]]:
    """Add jobs of every plan with both producers; return the plan of each job."""
    plans = {}
    for number in range(count):
        plan = PLANS[number % len(PLANS)]
        delay_ms = plan.get("delay_ms", 0)
        job_id, peer_job_id = f"chasqui-{number}", f"peer-{number}"
        queue.add(
            {"plan": plan},
            job_id=job_id,
            job_name="mail",
            delay=timedelta(milliseconds=delay_ms),
            retry=RetryPolicy(20, Backoff.fixed(timedelta(milliseconds=50))),
        )
        options = {"delay_ms": delay_ms, "attempts": 20, "backoff": 50}
        producer.call(url, queue.name, "add", "mail", {"plan": plan}, job_id=peer_job_id, **options)
        plans[job_id] = plans[peer_job_id] = plan
    return plans


def test_a_mixed_fleet_finishes_every_job(server, queue, client, worker) -> None:
    fleet = WorkerFleet(server, queue.name, worker)
    plans: dict[str, dict[str, Any]] = {}
    try:
        with Peer.start() as producer:
            queue.repeat({"plan": {}}, Every(700), job_name="chasqui-repeat", limit=4)
            repeat = ("upsert_repeatable_job", "peer-repeat", {"plan": {}})
            producer.call(server.url, queue.name, *repeat, repeat=["every", 700], limit=4)
            producing = threading.Thread(
                target=lambda: plans.update(produce(queue, producer, server.url, 160))
            )
            producing.start()
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(0.5 + random.random())
                fleet.kill_one()
            producing.join(60)
            assert len(plans) == 320
            wait_until(lambda: not queue.repeats() and is_drained(queue), 90)
            leaders = watch_leaders(client, server, 2.5)
    finally:
        fleet.close()
    assert fleet.killed.total() >= 4
    check_outcomes(queue, client, server, plans)
    assert len(leaders) == 1
    check_event_fields(client, queue)


def check_outcomes(queue: Queue, client: Any, server: Server, plans: dict[str, Any]) -> None:
    """Assert that every job ended as planned and every repeat fired up to its limit."""
    own_runs = Counter(job_id for job_id, _ in runs(client, queue.name))
    recorded = peer_runs(server.url, RECORD)
    runs_of_peers = Counter(run.id for run in recorded)
    names = {run.name for run in recorded}
    dead_letters = Counter(entry.job_id for entry in queue.dead_letters(limit=10_000))
    completed = Counter(e.job_id for e in queue.events(limit=100_000) if e.name == "completed")
    assert own_runs.total() > 50
    assert runs_of_peers.total() > 50
    for job_id, plan in plans.items():
        assert own_runs[job_id] + runs_of_peers[job_id] > plan.get("fail", 0), job_id
        assert dead_letters[job_id] == (1 if plan.get("die") else 0), job_id
        assert bool(completed[job_id]) != bool(plan.get("die")), job_id
    # Each repeat fired up to its limit, whichever worker was the leader.
    fired = [job_id for job_id in own_runs | runs_of_peers if job_id not in plans]
    assert len(fired) == 8
    assert names <= {"mail", "chasqui-repeat", "peer-repeat"}


def watch_leaders(client: Any, server: Server, seconds: float) -> set[str]:
    """Return the clients that promote: workers by client name, peers by address."""
    own_sha = load_script("promote", "native").sha.decode()
    seen: set[str] = set()
    with redis.Redis.from_url(server.url, socket_timeout=10) as watcher, watcher.monitor() as feed:
        # The lock of a killed leader expires after at most five seconds.
        end = time.monotonic() + 20
        while time.monotonic() < end:
            command = feed.next_command()
            text = command["command"]
            if text.startswith("EVALSHA") and (own_sha in text or PEER_PROMOTE_SHA in text):
                end = end if seen else time.monotonic() + seconds
                seen.add(f"{command['client_address']}:{command['client_port']}")
    # A worker of this package may use several connections.
    names = {info["addr"]: info["name"] or info["addr"] for info in client.client_list()}
    return {names[address] for address in seen}


FIELDS = {
    "waiting": [],
    "active": ["attempt"],
    "completed": ["attempt", "duration_us"],
    "failed": ["attempt", "reason", "duration_us"],
    "retry-scheduled": ["attempt", "backoff_ms"],
    "dlq": ["attempt", "reason"],
    "drained": [],
}


def check_event_fields(client: Any, queue: Queue) -> None:
    """Assert that events of both kinds of workers have the same fields in the same order."""
    for _, event in entries(client, queue.keys.events):
        names = [name.decode() for name, _ in event]
        kind = dict(event)[b"e"].decode()
        assert [name for name in names if name != "n"] == ["e", "id", "ts", *FIELDS[kind]]
        assert "n" not in names or names.index("n") == 3
    parsed = queue.events(limit=100_000)
    assert {event.name for event in parsed} <= EVENT_NAMES
    assert all(event.attempt for event in parsed if FIELDS[event.name])


def test_there_is_one_leader_and_a_new_one_after_its_death(server, queue, worker) -> None:
    """Workers of this package and of ChasquiMQ use the same lock, so both kinds wait for it."""
    with Peer.start() as peer, plain_client(server.url) as client:
        peer.work(server.url, queue.name, record=RECORD)
        lock, scheduler_lock = queue.keys.promoter_lock, queue.keys.scheduler_lock
        first = wait_until(
            lambda: client.get(lock) and client.get(scheduler_lock) and client.get(lock)
        )
        own_worker = worker()
        wait_until(lambda: len(queue.consumers()) == 2)
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            assert client.get(lock) == first
            time.sleep(0.02)
        peer.kill()
        second = wait_until(lambda: (holder := client.get(lock)) != first and holder)
        wait_until(lambda: client.get(scheduler_lock))
        with Peer.start() as new_peer:
            new_peer.work(server.url, queue.name, record=RECORD)
            wait_until(lambda: len(queue.consumers()) >= 2)
            deadline = time.monotonic() + 1.5
            while time.monotonic() < deadline:
                assert client.get(lock) == second
                time.sleep(0.02)
            own_worker.terminate()
            wait_until(lambda: client.get(lock) not in (None, first, second))
