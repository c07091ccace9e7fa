"""The real ChasquiMQ 1.3.0 runs every kind of job that the Queue of this package adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.commands import enqueue
from airflow_provider_chasqui.core.cron import Cron, Every
from airflow_provider_chasqui.core.job import DeadLetter, NewJob
from airflow_provider_chasqui.core.repeat import FIRE_ONCE, fire_all
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.interop.fleet import Peer, Run, runs, wait_for_runs
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120), pytest.mark.xdist_group("interop")]

# No map with an integer key: the worker of ChasquiMQ cannot read one, whichever producer added it.
PAYLOADS: list[Any] = [
    *(None, True, 0, -1, 2**63, -(2**63), 1.5, "", "Grüße, 世界 🏃", b"", b"\x00\xff"),
    *([], {}, [1, [2, [3, {"x": None}]]]),
    {"to": "ada", "n": {"deep": [1, 2.5, "é"]}, "b": b"\x01"},
    *("x" * 300, "y" * 70_000, list(range(2000)), {str(n): n for n in range(70)}),
]


@pytest.fixture
def record(queue_name: str) -> str:
    return f"runs:{queue_name}"


@pytest.fixture
def worker(peer: Peer, native_server: Server, queue_name: str, record: str) -> Iterator[int]:
    number = peer.work(
        native_server.url, queue_name, record=record, plan={"echo": True}, store_results=True
    )
    yield number
    peer.stop(number)


def test_every_payload_arrives_unchanged(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    expected = {queue.add(payload, job_name="n").job_id: payload for payload in PAYLOADS}
    finished = wait_for_runs(native_server.url, record, len(expected))
    assert {run.id: run.data for run in finished} == expected
    assert {run.name for run in finished} == {"n"}
    assert {run.attempt for run in finished} == {0}


@pytest.mark.parametrize("name", ["", "mail", "Grüße 世界", "n" * 256, "a:b/c d"])
def test_every_job_name_arrives_unchanged(
    queue: Queue, worker: int, native_server: Server, record: str, name: str
) -> None:
    job = queue.add({"a": 1}, job_name=name)
    delayed_job = queue.add({"a": 2}, job_name=name, delay=timedelta(milliseconds=50))
    finished = wait_for_runs(native_server.url, record, 2)
    assert {run.id: run.name for run in finished} == {job.job_id: name, delayed_job.job_id: name}


def test_jobs_of_every_add_method_run(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    soon = timedelta(milliseconds=100)
    expected: dict[str, Any] = {
        queue.add("plain").job_id: "plain",
        queue.add("named", job_id="job with spaces: ünï").job_id: "named",
        queue.add("unique", job_id="u", dedup_ttl=timedelta(minutes=1)).job_id: "unique",
        queue.add("delayed", delay=soon).job_id: "delayed",
        queue.add("delayed id", job_id="d", delay=soon).job_id: "delayed id",
        queue.add("at", run_at=datetime.now(UTC) + soon).job_id: "at",
    }
    delayed = queue.add("unique later", job_id="ud", delay=soon, dedup_ttl=timedelta(minutes=1))
    expected[delayed.job_id] = "unique later"
    assert not queue.add("not this one", job_id="u", dedup_ttl=timedelta(minutes=1)).created
    assert not queue.add(
        "nor this", job_id="ud", delay=soon, dedup_ttl=timedelta(minutes=1)
    ).created
    mixed = [NewJob({"many": n}, delay=soon if n % 3 == 0 else None) for n in range(600)]
    for n, added in enumerate(queue.add_many(mixed)):
        expected[added.job_id] = {"many": n}
    batch = queue.add_batch([{"batch": n} for n in range(600)], batch_id="b", job_name="part")
    for n, job_id in enumerate(batch.job_ids()):
        expected[job_id] = {"batch": n}
    late = queue.add_batch(range(5), batch_id="late", delay=soon)
    expected |= dict(zip(late.job_ids(), range(5), strict=True))
    finished = wait_for_runs(native_server.url, record, len(expected))
    assert len(finished) == len(expected)
    assert {run.id: run.data for run in finished} == expected


def test_the_worker_follows_the_retry_policy_of_a_job(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    fail = {"plan": {"fail": 2, "returns": "succeeded"}}
    policy = RetryPolicy(3, Backoff("fixed", 50, jitter_ms=0))
    job = queue.add(fail, retry=policy)
    assert queue.wait(job.job_id, timeout=timedelta(seconds=20)) == "succeeded"
    finished = wait_for_runs(native_server.url, record, 3)
    assert [run.attempt for run in finished] == [0, 1, 2]
    growing = RetryPolicy(2, Backoff("exponential", 10, max_delay_ms=20, multiplier=2, jitter_ms=0))
    failing = queue.add({"plan": {"fail": 9}}, retry=growing, job_name="failing")
    finished = wait_for_runs(native_server.url, record, 5)
    assert [run.attempt for run in finished if run.id == failing.job_id] == [0, 1]
    dead_letter = _wait_for_dead_letter(queue)
    assert (dead_letter.job_id, dead_letter.reason) == (failing.job_id, "retries_exhausted")
    assert dead_letter.job_name == "failing"
    assert queue.job_status(failing.job_id).state == "dead"


def test_jobs_with_a_trace_context_run_like_other_jobs(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    queue.client.execute(enqueue.save_traceparent(enqueue.trace_key(queue.keys, "traced"), parent))
    queue.client.execute(enqueue.save_traceparent(queue.keys.batch_trace("b"), parent))
    queue.add({"plan": {"fail": 1}}, job_id="traced", retry=RetryPolicy(2, Backoff("fixed", 10)))
    batch = queue.add_batch([1, 2], batch_id="b")
    finished = wait_for_runs(native_server.url, record, 4)
    assert sorted(run.id for run in finished) == sorted(["traced", "traced", *batch.job_ids()])
    assert (
        queue.client.execute(enqueue.load_traceparent(enqueue.trace_key(queue.keys, "traced")))
        == parent
    )


def test_a_replayed_dead_letter_runs_again(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    job = queue.add({"plan": {"die": True}}, job_name="dying")
    dead_letter = _wait_for_dead_letter(queue)
    assert (dead_letter.job_id, dead_letter.reason) == (job.job_id, "unrecoverable")
    assert queue.replay_dead_letters().affected == 1
    finished = wait_for_runs(native_server.url, record, 2)
    assert [(run.id, run.name, run.attempt) for run in finished] == [(job.job_id, "dying", 0)] * 2


def test_the_scheduler_of_chasquimq_fires_our_repeats(
    peer: Peer, queue: Queue, native_server: Server, record: str
) -> None:
    every = queue.repeat({"tick": 1}, Every(250), job_name="tick", limit=2, misfire=FIRE_ONCE)
    cron = queue.repeat(
        "c", Cron("* * * * * *", "Europe/Berlin"), job_name="cron", misfire=fire_all(5)
    )
    listed = peer.call(native_server.url, queue.name, "get_repeatable_jobs")
    assert {repeat["key"] for repeat in listed} == {every, cron}
    number = peer.work(
        native_server.url, queue.name, record=record, scheduler_tick_ms=50, plan={"echo": True}
    )
    recorded: list[Run] = []

    def fired_twice() -> bool:
        recorded[:] = runs(native_server.url, record)
        counts = Counter(run.name for run in recorded)
        return counts["tick"] >= 2 and counts["cron"] >= 2

    wait_until(fired_twice, 30, "both repeats fired twice", interval=0.05)
    names = [run.name for run in recorded]
    assert queue.delete_repeat(cron)
    peer.stop(number)
    assert names.count("tick") == 2
    assert {run.name: run.data for run in recorded} == {"tick": {"tick": 1}, "cron": "c"}
    assert queue.repeats() == []


def test_cancelled_jobs_never_run(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    soon = timedelta(milliseconds=400)
    for options in ({"job_id": "named"}, {}):
        job = queue.add("never", delay=soon, **options)
        assert queue.cancel(job.job_id) == "cancelled"
    moved = queue.add("moved", delay=timedelta(hours=1))
    assert queue.reschedule(moved.job_id, delay=timedelta(milliseconds=600))
    finished = wait_for_runs(native_server.url, record, 1)
    assert [run.data for run in finished] == ["moved"]


def _wait_for_dead_letter(queue: Queue) -> DeadLetter:
    [dead_letter] = wait_until(queue.dead_letters, 20, "a dead letter")
    return dead_letter
