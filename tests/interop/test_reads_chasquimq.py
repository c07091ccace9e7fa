"""Our code reads what the real ChasquiMQ 1.3.0 wrote: jobs, delays, letters, repeats, results."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.commands import consumer_group, inspect
from airflow_provider_chasqui.core.cron import Cron, Every
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.core.repeat import FIRE_ONCE, SKIP, fire_all
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.interop.fleet import Peer, PeerError, wait_for_runs
from tests.interop.test_chasquimq_runs_ours import PAYLOADS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120), pytest.mark.xdist_group("interop")]


class Theirs:
    """Their Queue on the queue of the test."""

    def __init__(self, peer: Peer, url: str, name: str):
        self._peer, self._url, self._name = peer, url, name

    def __getattr__(self, method: str) -> Any:
        return lambda *args, **options: self._peer.call(
            self._url, self._name, method, *args, **options
        )


@pytest.fixture
def theirs(peer: Peer, native_server: Server, queue_name: str) -> Theirs:
    return Theirs(peer, native_server.url, queue_name)


def waiting(queue: Queue) -> list[StreamEntry]:
    raw = queue.client.execute(inspect.read_entries(queue.keys, "-", 1000))
    found = [consumer_group.parse_entry(each, 10**6) for each in raw]
    assert all(isinstance(each, StreamEntry) for each in found)
    return [each for each in found if isinstance(each, StreamEntry)]


def test_every_payload_and_name(queue: Queue, theirs: Theirs) -> None:
    names = ["", "mail", "Grüße 世界", "n" * 256]
    sent = {}
    for number, payload in enumerate(PAYLOADS):
        name = names[number % len(names)]
        sent[theirs.add(name, payload)["id"]] = (name, payload)
    found = {entry.job.id: (entry.job.name, entry.job.payload) for entry in waiting(queue)}
    assert found == sent
    assert queue.depth().waiting == len(sent)
    assert all(queue.job_status(job_id).state == "waiting" for job_id in sent)


def test_bulks_ids_and_retry_policies(queue: Queue, theirs: Theirs) -> None:
    theirs.add_bulk([{"name": "b", "data": n} for n in range(300)])
    theirs.add("named", 1, job_id="ours: ünï")
    fixed = {"kind": "fixed", "delay_ms": 70}
    growing = {"kind": "exponential", "delay_ms": 5, "max_delay_ms": 9, "multiplier": 3.0,
               "jitter_ms": 1}  # fmt: skip
    theirs.add("r", 1, job_id="r1", attempts=4)
    theirs.add("r", 1, job_id="r2", attempts=2, backoff=fixed)
    theirs.add("r", 1, job_id="r3", backoff=growing)
    found = {entry.job.id: entry.job for entry in waiting(queue)}
    assert len(found) == 304
    assert found["ours: ünï"].retry is None
    assert found["r1"].retry == RetryPolicy(4)
    assert found["r2"].retry == RetryPolicy(2, Backoff("fixed", 70))
    assert found["r3"].retry == RetryPolicy(None, Backoff("exponential", 5, 9, 3.0, 1))


def test_delayed_jobs_can_be_found_moved_and_taken_back(queue: Queue, theirs: Theirs) -> None:
    plain = theirs.add("later", {"n": 1}, delay_ms=3_600_000)["id"]
    theirs.add("later", {"n": 2}, delay_ms=3_600_000, job_id="mine")
    assert queue.depth().delayed == 2
    for job_id, n in ((plain, 1), ("mine", 2)):
        found = queue.job_status(job_id)
        assert found.state == "delayed"
        assert found.job is not None
        assert (found.job.name, found.job.payload) == ("later", {"n": n})
        assert queue.reschedule(job_id, delay=timedelta(hours=2))
        moved = queue.job_status(job_id)
        assert moved.due_ms is not None
        assert found.due_ms is not None
        assert moved.due_ms - found.due_ms > 3_500_000
    assert queue.cancel(plain) == "cancelled"
    # Rescheduled by us, their own cancel still finds it.
    assert theirs.cancel_delayed("mine") is True
    assert queue.depth().delayed == 0


def test_they_cancel_what_we_scheduled(queue: Queue, theirs: Theirs) -> None:
    queue.add(1, job_id="ours", delay=timedelta(hours=1))
    theirs.add("x", 2, delay_ms=1000, job_id="ours")
    assert queue.depth().delayed == 1
    assert theirs.cancel_delayed("ours") is True
    assert queue.job_status("ours").state == "unknown"


def test_letters_and_results(
    peer: Peer, queue: Queue, theirs: Theirs, native_server: Server, queue_name: str
) -> None:
    record = f"runs:{queue_name}"
    worker = peer.work(
        native_server.url, queue_name, record=record, plan={"echo": True}, store_results=True
    )
    dead = theirs.add("grave", {"plan": {"die": True}})["id"]
    spent = theirs.add("spent", {"plan": {"fail": 9}}, attempts=1)["id"]
    good = theirs.add("good", {"answer": 42, "ü": b"\x00"})["id"]
    assert queue.wait(good, timeout=timedelta(seconds=20)) == {"answer": 42, "ü": b"\x00"}
    assert queue.job_status(good).state == "done"
    wait_for_runs(native_server.url, record, 3)
    deadline = time.monotonic() + 20
    while queue.depth().dead < 2:
        assert time.monotonic() < deadline
    letters = {letter.job_id: letter for letter in queue.dead_letters()}
    assert letters[dead].reason == "unrecoverable"
    assert letters[dead].job_name == "grave"
    assert letters[spent].reason == "retries_exhausted"
    assert [each.job_name for each in queue.dead_letters(reason="unrecoverable")] == ["grave"]
    events = [event.name for event in queue.events() if event.job_id == good]
    assert events == ["active", "completed"]
    assert queue.purge_dead_letters(job_name="spent").affected == 1
    # And the other way round: their peek and replay see the letter that is left.
    assert [each["reason"] for each in theirs.peek_dlq()] == ["unrecoverable"]
    assert theirs.replay_dlq() == 1
    assert len(wait_for_runs(native_server.url, record, 4)) == 4
    peer.stop(worker)


def test_repeats(queue: Queue, theirs: Theirs) -> None:
    theirs.upsert_repeatable_job("t", {"a": 1}, repeat=["every", 60_000], limit=3)
    theirs.upsert_repeatable_job("c", [1], repeat=["cron", "0 2 * * *", "Europe/Berlin"],
                                 missed_fires=["fire_all", 7])  # fmt: skip
    theirs.upsert_repeatable_job("o", None, repeat=["every", 5000], missed_fires=["fire_once"])
    found = {status.repeat.job_name: status.repeat for status in queue.repeats()}
    assert found["t"].schedule == Every(60_000)
    assert (found["t"].limit, found["t"].misfire) == (3, SKIP)
    assert found["c"].schedule == Cron("0 2 * * *", "Europe/Berlin")
    assert found["c"].misfire == fire_all(7)
    assert found["o"].misfire == FIRE_ONCE
    assert found["t"].key == "t::every:60000"
    # The same repeat written by us is the same bytes, so nothing changes.
    before = queue.repeats()
    assert queue.repeat({"a": 1}, Every(60_000), job_name="t", limit=3) == found["t"].key
    assert queue.repeats() == before
    assert queue.delete_repeat(found["t"].key)
    assert theirs.remove_repeatable_by_key(found["c"].key) is True
    assert [status.repeat.job_name for status in queue.repeats()] == ["o"]


def test_what_they_refuse_is_told(theirs: Theirs) -> None:
    with pytest.raises(PeerError, match="RuntimeError: config: job name exceeds 256-byte cap"):
        theirs.add("n" * 257, 1)
