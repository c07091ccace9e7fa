"""The Queue reads jobs, dead letters, repeats and results that ChasquiMQ 1.3.0 wrote."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.commands import consumer_group, inspect
from airflow_provider_chasqui.core.cron import Cron, Every
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.core.repeat import FIRE_ONCE, SKIP, fire_all
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.interop.fleet import Peer, PeerError, runs, wait_for_runs
from tests.interop.test_chasquimq_runs_ours import PAYLOADS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120), pytest.mark.xdist_group("interop")]


class PeerQueue:
    """The Queue of ChasquiMQ, for the queue of the test."""

    def __init__(self, peer: Peer, url: str, name: str):
        self._peer, self._url, self._name = peer, url, name

    def __getattr__(self, method: str) -> Any:
        return lambda *args, **options: self._peer.call(
            self._url, self._name, method, *args, **options
        )


@pytest.fixture
def peer_queue(peer: Peer, native_server: Server, queue_name: str) -> PeerQueue:
    return PeerQueue(peer, native_server.url, queue_name)


def waiting(queue: Queue) -> list[StreamEntry]:
    """Return the entries of the stream; all must be valid."""
    raw = queue.client.execute(inspect.read_entries(queue.keys, "-", 1000))
    entries = [consumer_group.parse_entry(entry, 10**6) for entry in raw]
    assert all(isinstance(entry, StreamEntry) for entry in entries)
    return [entry for entry in entries if isinstance(entry, StreamEntry)]


def test_every_payload_and_name_is_read(queue: Queue, peer_queue: PeerQueue) -> None:
    names = ["", "mail", "Grüße 世界", "n" * 256]
    sent = {}
    for number, payload in enumerate(PAYLOADS):
        name = names[number % len(names)]
        sent[peer_queue.add(name, payload)["id"]] = (name, payload)
    jobs = {entry.job.id: (entry.job.name, entry.job.payload) for entry in waiting(queue)}
    assert jobs == sent
    assert queue.depth().waiting == len(sent)
    assert all(queue.job_status(job_id).state == "waiting" for job_id in sent)


def test_bulk_jobs_ids_and_retry_policies_are_read(queue: Queue, peer_queue: PeerQueue) -> None:
    peer_queue.add_bulk([{"name": "b", "data": n} for n in range(300)])
    peer_queue.add("named", 1, job_id="id: ünï")
    fixed = {"kind": "fixed", "delay_ms": 70}
    exponential = {
        "kind": "exponential",
        "delay_ms": 5,
        "max_delay_ms": 9,
        "multiplier": 3.0,
        "jitter_ms": 1,
    }
    peer_queue.add("r", 1, job_id="r1", attempts=4)
    peer_queue.add("r", 1, job_id="r2", attempts=2, backoff=fixed)
    peer_queue.add("r", 1, job_id="r3", backoff=exponential)
    jobs = {entry.job.id: entry.job for entry in waiting(queue)}
    assert len(jobs) == 304
    assert jobs["id: ünï"].retry is None
    assert jobs["r1"].retry == RetryPolicy(4)
    assert jobs["r2"].retry == RetryPolicy(2, Backoff("fixed", 70))
    assert jobs["r3"].retry == RetryPolicy(None, Backoff("exponential", 5, 9, 3.0, 1))


def test_delayed_jobs_can_be_found_rescheduled_and_cancelled(
    queue: Queue, peer_queue: PeerQueue
) -> None:
    plain = peer_queue.add("later", {"n": 1}, delay_ms=3_600_000)["id"]
    peer_queue.add("later", {"n": 2}, delay_ms=3_600_000, job_id="named")
    assert queue.depth().delayed == 2
    for job_id, n in ((plain, 1), ("named", 2)):
        status = queue.job_status(job_id)
        assert status.state == "delayed"
        assert status.job is not None
        assert (status.job.name, status.job.payload) == ("later", {"n": n})
        assert queue.reschedule(job_id, delay=timedelta(hours=2))
        moved = queue.job_status(job_id)
        assert moved.due_ms is not None
        assert status.due_ms is not None
        assert moved.due_ms - status.due_ms > 3_500_000
    assert queue.cancel(plain) == "cancelled"
    # The cancel of ChasquiMQ finds a job that this package rescheduled.
    assert peer_queue.cancel_delayed("named") is True
    assert queue.depth().delayed == 0


def test_chasquimq_cancels_jobs_that_this_package_delayed(
    queue: Queue, peer_queue: PeerQueue
) -> None:
    queue.add(1, job_id="j", delay=timedelta(hours=1))
    peer_queue.add("x", 2, delay_ms=1000, job_id="j")
    assert queue.depth().delayed == 1
    assert peer_queue.cancel_delayed("j") is True
    assert queue.job_status("j").state == "unknown"


def test_dead_letters_and_results_are_read(
    peer: Peer, queue: Queue, peer_queue: PeerQueue, native_server: Server, queue_name: str
) -> None:
    record = f"runs:{queue_name}"
    worker = peer.work(
        native_server.url, queue_name, record=record, plan={"echo": True}, store_results=True
    )
    dead = peer_queue.add("dying", {"plan": {"die": True}})["id"]
    failing = peer_queue.add("failing", {"plan": {"fail": 9}}, attempts=1)["id"]
    good = peer_queue.add("good", {"value": 42, "ü": b"\x00"})["id"]
    assert queue.wait(good, timeout=timedelta(seconds=20)) == {"value": 42, "ü": b"\x00"}
    assert queue.job_status(good).state == "done"
    wait_for_runs(native_server.url, record, 3)
    wait_until(lambda: queue.depth().dead >= 2, 20, "two dead letters")
    dead_letters = {entry.job_id: entry for entry in queue.dead_letters()}
    assert dead_letters[dead].reason == "unrecoverable"
    assert dead_letters[dead].job_name == "dying"
    assert dead_letters[failing].reason == "retries_exhausted"
    assert [entry.job_name for entry in queue.dead_letters(reason="unrecoverable")] == ["dying"]
    events = [event.name for event in queue.events() if event.job_id == good]
    assert events == ["active", "completed"]
    assert queue.purge_dead_letters(job_name="failing").affected == 1
    # ChasquiMQ peeks at and replays the remaining dead letter.
    assert [entry["reason"] for entry in peer_queue.peek_dlq()] == ["unrecoverable"]
    assert peer_queue.replay_dlq() == 1
    assert len(wait_for_runs(native_server.url, record, 4)) == 4
    peer.stop(worker)


def test_repeats_are_read(queue: Queue, peer_queue: PeerQueue) -> None:
    peer_queue.upsert_repeatable_job("t", {"a": 1}, repeat=["every", 60_000], limit=3)
    cron = ["cron", "0 2 * * *", "Europe/Berlin"]
    peer_queue.upsert_repeatable_job("c", [1], repeat=cron, missed_fires=["fire_all", 7])
    peer_queue.upsert_repeatable_job("o", None, repeat=["every", 5000], missed_fires=["fire_once"])
    repeats = {status.repeat.job_name: status.repeat for status in queue.repeats()}
    assert repeats["t"].schedule == Every(60_000)
    assert (repeats["t"].limit, repeats["t"].misfire) == (3, SKIP)
    assert repeats["c"].schedule == Cron("0 2 * * *", "Europe/Berlin")
    assert repeats["c"].misfire == fire_all(7)
    assert repeats["o"].misfire == FIRE_ONCE
    assert repeats["t"].key == "t::every:60000"
    # This package writes the same repeat with the same bytes, so nothing changes.
    before = queue.repeats()
    assert queue.repeat({"a": 1}, Every(60_000), job_name="t", limit=3) == repeats["t"].key
    assert queue.repeats() == before
    assert queue.delete_repeat(repeats["t"].key)
    assert peer_queue.remove_repeatable_by_key(repeats["c"].key) is True
    assert [status.repeat.job_name for status in queue.repeats()] == ["o"]


def test_an_error_of_chasquimq_reaches_the_test(peer_queue: PeerQueue) -> None:
    with pytest.raises(PeerError, match="RuntimeError: config: job name exceeds 256-byte cap"):
        peer_queue.add("n" * 257, 1)


# The payload is the number 1, or a text of the same byte.
ENVELOPES = {
    "payload bin": "94a161c401010500",
    "payload str": "94a161a1010500",
    "payload str8": "94a161d901010500",
    "payload str, 3 elements": "93a161a10105",
    "payload str, 5 elements": "95a161a1010500c0",
    "payload str in a map": "83a26964a161a77061796c6f6164a101ad637265617465645f61745f6d7305",
    "map": "83a26964a161a77061796c6f6164c40101ad637265617465645f61745f6d7305",
    "map with bin keys": "83c4026964a161c4077061796c6f6164c40101c40d637265617465645f61745f6d7305",
    "id str, not UTF-8": "94a1ffc401010500",
    "id bin, not UTF-8": "94c401ffc401010500",
    "other field not UTF-8": (
        "84a26964a161a77061796c6f6164c40101ad637265617465645f61745f6d7305a27a7aa1ff"
    ),
    "other key not UTF-8": (
        "84a26964a161a77061796c6f6164c40101ad637265617465645f61745f6d7305a1ff01"
    ),
    "backoff kind bin": "95a161c401010500920295c405666978656464c0c0c0",
}


def test_the_same_envelopes_are_accepted_as_in_chasquimq(
    queue: Queue, peer: Peer, native_server: Server
) -> None:
    client = redis.Redis.from_url(native_server.url, protocol=2)
    record, differences = f"{queue.name}-runs", {}
    worker = peer.work(native_server.url, queue.name, record=record)
    for name, envelope in ENVELOPES.items():
        fields = {b"d": bytes.fromhex(envelope), b"n": name.encode()}
        entry_id = client.xadd(queue.keys.stream, fields)

        def ended(name: str = name, entry_id: bytes = entry_id) -> str:
            if any(run.name == name for run in runs(native_server.url, record)):
                return "runs"
            for _, dead_letter in client.xrange(queue.keys.dlq):
                if dead_letter[b"source_id"] == entry_id:
                    assert list(dead_letter) == [b"d", b"source_id", b"reason"]
                    return str(dead_letter[b"reason"].decode())
            return ""

        wait_until(ended, 20, name)
        entry = consumer_group.parse_entry([entry_id, [b"d", fields[b"d"]]], 10**6)
        ours = "runs" if isinstance(entry, StreamEntry) else entry.reason
        if ours != ended():
            differences[name] = {"ours": ours, "1.3.0": ended()}
    peer.stop(worker)
    client.close()
    assert differences == {}
