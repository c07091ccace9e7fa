"""The real ChasquiMQ 1.3.0 runs what our Queue added, whatever its shape."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.commands import enqueue
from airflow_provider_chasqui.core.cron import Cron, Every
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.repeat import FIRE_ONCE, fire_all
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.interop.fleet import Peer, wait_for_runs

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120), pytest.mark.xdist_group("interop")]

# Not a map with a number as key: their worker refuses to read that, whoever wrote it.
PAYLOADS: list[Any] = [
    None, True, 0, -1, 2**63, -(2**63), 1.5, "", "Grüße, 世界 🏃", b"", b"\x00\xff",
    [], {}, [1, [2, [3, {"x": None}]]], {"to": "ada", "n": {"deep": [1, 2.5, "é"]}, "b": b"\x01"},
    "x" * 300, "y" * 70_000, list(range(2000)), {str(n): n for n in range(70)},
]  # fmt: skip


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


def test_every_payload_arrives_as_it_was(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    wanted = {queue.add(payload, job_name="n").job_id: payload for payload in PAYLOADS}
    found = wait_for_runs(native_server.url, record, len(wanted))
    assert {run.id: run.data for run in found} == wanted
    assert {run.name for run in found} == {"n"}
    assert {run.attempt for run in found} == {0}


@pytest.mark.parametrize("name", ["", "mail", "Grüße 世界", "n" * 256, "a:b/c d"])
def test_every_name(
    queue: Queue, worker: int, native_server: Server, record: str, name: str
) -> None:
    job = queue.add({"a": 1}, job_name=name)
    later = queue.add({"a": 2}, job_name=name, delay=timedelta(milliseconds=50))
    found = wait_for_runs(native_server.url, record, 2)
    assert {run.id: run.name for run in found} == {job.job_id: name, later.job_id: name}


def test_every_way_to_add(queue: Queue, worker: int, native_server: Server, record: str) -> None:
    soon = timedelta(milliseconds=100)
    wanted: dict[str, Any] = {
        queue.add("plain").job_id: "plain",
        queue.add("named", job_id="job with spaces: ünï").job_id: "named",
        queue.add("unique", job_id="u", dedup_ttl=timedelta(minutes=1)).job_id: "unique",
        queue.add("delayed", delay=soon).job_id: "delayed",
        queue.add("delayed id", job_id="d", delay=soon).job_id: "delayed id",
        queue.add("unique later", job_id="ud", delay=soon, dedup_ttl=timedelta(minutes=1)).job_id:
            "unique later",
        queue.add("at", run_at=datetime.now(UTC) + soon).job_id: "at",
    }  # fmt: skip
    assert not queue.add("not this one", job_id="u", dedup_ttl=timedelta(minutes=1)).created
    assert not queue.add(
        "nor this", job_id="ud", delay=soon, dedup_ttl=timedelta(minutes=1)
    ).created
    mixed = [NewJob({"many": n}, delay=soon if n % 3 == 0 else None) for n in range(600)]
    for n, added in enumerate(queue.add_many(mixed)):
        wanted[added.job_id] = {"many": n}
    batch = queue.add_batch([{"batch": n} for n in range(600)], batch_id="b", job_name="part")
    for n, job_id in enumerate(batch.job_ids()):
        wanted[job_id] = {"batch": n}
    late = queue.add_batch(range(5), batch_id="late", delay=soon)
    wanted |= dict(zip(late.job_ids(), range(5), strict=True))
    found = wait_for_runs(native_server.url, record, len(wanted))
    assert len(found) == len(wanted)
    assert {run.id: run.data for run in found} == wanted


def test_a_retry_policy_is_theirs_to_follow(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    fail = {"plan": {"fail": 2, "returns": "at last"}}
    policy = RetryPolicy(3, Backoff("fixed", 50, jitter_ms=0))
    job = queue.add(fail, retry=policy)
    assert queue.wait(job.job_id, timeout=timedelta(seconds=20)) == "at last"
    found = wait_for_runs(native_server.url, record, 3)
    assert [run.attempt for run in found] == [0, 1, 2]
    growing = RetryPolicy(2, Backoff("exponential", 10, max_delay_ms=20, multiplier=2, jitter_ms=0))
    doomed = queue.add({"plan": {"fail": 9}}, retry=growing, job_name="doomed")
    found = wait_for_runs(native_server.url, record, 5)
    assert [run.attempt for run in found if run.id == doomed.job_id] == [0, 1]
    letter = _letter(queue)
    assert (letter.job_id, letter.reason, letter.job_name) == (
        doomed.job_id, "retries_exhausted", "doomed",
    )  # fmt: skip
    assert queue.job_status(doomed.job_id).state == "dead"


def test_a_job_with_a_trace_is_a_job_like_any_other(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    queue.client.execute(enqueue.save_traceparent(enqueue.trace_key(queue.keys, "traced"), parent))
    queue.client.execute(enqueue.save_traceparent(queue.keys.batch_trace("b"), parent))
    queue.add({"plan": {"fail": 1}}, job_id="traced", retry=RetryPolicy(2, Backoff("fixed", 10)))
    batch = queue.add_batch([1, 2], batch_id="b")
    found = wait_for_runs(native_server.url, record, 4)
    assert sorted(run.id for run in found) == sorted(["traced", "traced", *batch.job_ids()])
    assert (
        queue.client.execute(enqueue.load_traceparent(enqueue.trace_key(queue.keys, "traced")))
        == parent
    )


def test_a_letter_that_we_replay_runs_again(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    job = queue.add({"plan": {"die": True}}, job_name="grave")
    letter = _letter(queue)
    assert (letter.job_id, letter.reason) == (job.job_id, "unrecoverable")
    assert queue.replay_dead_letters().affected == 1
    found = wait_for_runs(native_server.url, record, 2)
    assert [(run.id, run.name, run.attempt) for run in found] == [(job.job_id, "grave", 0)] * 2


def test_our_repeats_fire_in_their_scheduler(
    peer: Peer, queue: Queue, native_server: Server, record: str
) -> None:
    every = queue.repeat({"tick": 1}, Every(250), job_name="tick", limit=2, misfire=FIRE_ONCE)
    cron = queue.repeat(
        "c", Cron("* * * * * *", "Europe/Berlin"), job_name="cron", misfire=fire_all(5)
    )
    listed = peer.call(native_server.url, queue.name, "get_repeatable_jobs")
    assert {each["key"] for each in listed} == {every, cron}
    number = peer.work(
        native_server.url, queue.name, record=record, scheduler_tick_ms=50, plan={"echo": True}
    )
    deadline = time.monotonic() + 30
    while True:
        found = wait_for_runs(native_server.url, record, 1)
        names = [run.name for run in found]
        if names.count("tick") >= 2 and names.count("cron") >= 2:
            break
        assert time.monotonic() < deadline, names
        time.sleep(0.05)
    assert queue.delete_repeat(cron)
    peer.stop(number)
    assert names.count("tick") == 2
    assert {run.name: run.data for run in found} == {"tick": {"tick": 1}, "cron": "c"}
    assert queue.repeats() == []


def test_what_we_take_back_they_never_run(
    queue: Queue, worker: int, native_server: Server, record: str
) -> None:
    soon = timedelta(milliseconds=400)
    for options in ({"job_id": "mine"}, {}):
        job = queue.add("never", delay=soon, **options)
        assert queue.cancel(job.job_id) == "cancelled"
    moved = queue.add("moved", delay=timedelta(hours=1))
    assert queue.reschedule(moved.job_id, delay=timedelta(milliseconds=600))
    found = wait_for_runs(native_server.url, record, 1)
    assert [run.data for run in found] == ["moved"]


def _letter(queue: Queue) -> Any:
    deadline = time.monotonic() + 20
    while not (letters := queue.dead_letters()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (only,) = letters
    return only
