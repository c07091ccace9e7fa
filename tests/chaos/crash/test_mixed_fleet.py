"""Our workers and those of the real ChasquiMQ 1.3.0 on one queue, and members killed at random."""

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
from tests.chaos.crash.conftest import runs, settled
from tests.conftest import Server
from tests.interop.fleet import Peer
from tests.interop.fleet import runs as peer_runs
from tests.support.redis_state import entries, plain_client
from tests.support.servers import RedisServer
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.interop, pytest.mark.timeout(180)]

RECORD = "peer-runs"
CLAIM_MS = 2500
SECONDS = 10
# How ChasquiMQ's own promote script is addressed; ours has another text.
THEIR_PROMOTE = "f33a92e1"
PLANS: list[dict[str, Any]] = [
    {}, {}, {}, {"sleep_ms": 60}, {"fail": 1}, {"fail": 2}, {"die": True}, {"delay_ms": 300},
]  # fmt: skip


@pytest.fixture
def server(redis86_binary) -> Iterator[Server]:
    with RedisServer.start(redis86_binary) as private:
        yield Server(private.url, "native")


class Fleet:
    """Two of ours and two of theirs; one that is killed is replaced."""

    def __init__(self, server: Server, queue: str, worker: Any):
        self._server, self._queue, self._worker = server, queue, worker
        self.killed: Counter[str] = Counter()
        self.peers = [self._their_one(), self._their_one()]
        self.ours = [self._our_one(), self._our_one()]

    def _our_one(self) -> Any:
        return self._worker(claim_after=timedelta(milliseconds=CLAIM_MS), concurrency=20)

    def _their_one(self) -> Peer:
        peer = Peer.start()
        options = {"claim_min_idle_ms": CLAIM_MS, "concurrency": 20, "scheduler_tick_ms": 100}
        peer.work(self._server.url, self._queue, record=RECORD, **options)
        return peer

    def kill_one(self) -> None:
        place = random.randrange(2)
        if random.random() < 0.5:
            self.peers[place].close()
            self.peers[place] = self._their_one()
            self.killed["theirs"] += 1
        else:
            self.ours[place].kill()
            self.ours[place] = self._our_one()
            self.killed["ours"] += 1

    def close(self) -> None:
        for peer in self.peers:
            peer.close()


def produce(queue: Queue, producer: Peer, url: str, count: int) -> dict[str, dict[str, Any]]:
    """Hand off jobs from both sides, of every plan; returns the plan of each."""
    plans = {}
    for number in range(count):
        plan = PLANS[number % len(PLANS)]
        delay_ms = plan.get("delay_ms", 0)
        ours, theirs = f"ours-{number}", f"theirs-{number}"
        queue.add(
            {"plan": plan}, job_id=ours, job_name="mail", delay=timedelta(milliseconds=delay_ms),
            retry=RetryPolicy(20, Backoff.fixed(timedelta(milliseconds=50))),
        )  # fmt: skip
        producer.call(
            url, queue.name, "add", "mail", {"plan": plan}, job_id=theirs, delay_ms=delay_ms,
            attempts=20, backoff=50,
        )  # fmt: skip
        plans[ours] = plans[theirs] = plan
    return plans


def test_a_mixed_fleet_settles_every_job(server, queue, client, worker) -> None:
    fleet = Fleet(server, queue.name, worker)
    plans: dict[str, dict[str, Any]] = {}
    try:
        with Peer.start() as producer:
            queue.repeat({"plan": {}}, Every(700), job_name="our-repeat", limit=4)
            producer.call(
                server.url, queue.name, "upsert_repeatable_job", "their-repeat", {"plan": {}},
                repeat=["every", 700], limit=4,
            )  # fmt: skip
            feeding = threading.Thread(
                target=lambda: plans.update(produce(queue, producer, server.url, 160))
            )
            feeding.start()
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(0.5 + random.random())
                fleet.kill_one()
            feeding.join(60)
            assert len(plans) == 320
            until(lambda: not queue.repeats() and settled(queue), 90)
            leaders = watch_leaders(client, server, 2.5)
    finally:
        fleet.close()
    assert fleet.killed["ours"] + fleet.killed["theirs"] >= 4
    ended_well(queue, client, server, plans)
    assert len(leaders) == 1
    look_alike(client, queue)


def ended_well(queue: Queue, client: Any, server: Server, plans: dict[str, Any]) -> None:
    mine = Counter(job_id for job_id, _ in runs(client, queue.name))
    theirs = Counter(run.id for run in peer_runs(server.url, RECORD))
    names = Counter(run.name for run in peer_runs(server.url, RECORD))
    letters = Counter(letter.job_id for letter in queue.dead_letters(limit=10_000))
    completed = Counter(e.job_id for e in queue.events(limit=100_000) if e.name == "completed")
    assert sum(mine.values()) > 50
    assert sum(theirs.values()) > 50
    for job_id, plan in plans.items():
        assert mine[job_id] + theirs[job_id] > plan.get("fail", 0), job_id
        assert letters[job_id] == (1 if plan.get("die") else 0), job_id
        assert bool(completed[job_id]) != bool(plan.get("die")), job_id
    # Each repeat fired as often as it may, whoever led.
    fired = [job_id for job_id in mine | theirs if job_id not in plans]
    assert len(fired) == 8
    assert names.keys() <= {"mail", "our-repeat", "their-repeat"}


def watch_leaders(client: Any, server: Server, seconds: float) -> set[str]:
    """Who promotes while nobody is killed: ours by their names, theirs by their addresses."""
    ours = load_script("promote", "native").sha.decode()
    seen: set[str] = set()
    with redis.Redis.from_url(server.url, socket_timeout=10) as watcher, watcher.monitor() as feed:
        # The lock of one that was killed holds for up to five seconds more.
        end = time.monotonic() + 20
        while time.monotonic() < end:
            command = feed.next_command()
            text = command["command"]
            if text.startswith("EVALSHA") and (ours in text or THEIR_PROMOTE in text):
                end = end if seen else time.monotonic() + seconds
                seen.add(f"{command['client_address']}:{command['client_port']}")
    # One of ours may use several connections.
    names = {each["addr"]: each["name"] or each["addr"] for each in client.client_list()}
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


def look_alike(client: Any, queue: Queue) -> None:
    """Whoever wrote an event, it has the same fields in the same order, and our reader knows it."""
    for _, event in entries(client, queue.keys.events):
        names = [name.decode() for name, _ in event]
        kind = dict(event)[b"e"].decode()
        assert [name for name in names if name != "n"] == ["e", "id", "ts", *FIELDS[kind]]
        assert "n" not in names or names.index("n") == 3
    parsed = queue.events(limit=100_000)
    assert {event.name for event in parsed} <= EVENT_NAMES
    assert all(event.attempt for event in parsed if FIELDS[event.name])


def test_one_leader_of_each_kind_and_the_next_when_it_dies(server, queue, worker) -> None:
    """The lock is the wire's own: whoever holds it, the others wait, of whatever kind they are."""
    with Peer.start() as peer, plain_client(server.url) as client:
        peer.work(server.url, queue.name, record=RECORD)
        lock, other = queue.keys.promoter_lock, queue.keys.scheduler_lock
        first = until(lambda: client.get(lock) and client.get(other) and client.get(lock))
        mine = worker()
        until(lambda: len(queue.consumers()) == 2)
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            assert client.get(lock) == first
            time.sleep(0.02)
        peer.kill()
        second = until(lambda: (now := client.get(lock)) != first and now)
        until(lambda: client.get(other))
        with Peer.start() as again:
            again.work(server.url, queue.name, record=RECORD)
            until(lambda: len(queue.consumers()) >= 2)
            deadline = time.monotonic() + 1.5
            while time.monotonic() < deadline:
                assert client.get(lock) == second
                time.sleep(0.02)
            mine.terminate()
            until(lambda: client.get(lock) not in (None, first, second))
