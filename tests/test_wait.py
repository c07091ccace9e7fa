"""Blocking waits: the state decides, a lost event only delays, and no wait polls without pause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands.wait import MAX_SCANNED_BYTES, scan_queue
from airflow_provider_chasqui.core.errors import BatchCancelled, JobFailed, WaitTimeout
from airflow_provider_chasqui.queue import Queue
from tests.support.manual_worker import ack, emit_event, finish, take, trim_events

TIMEOUT = timedelta(seconds=20)


@contextmanager
def background(action: Callable[[], None], delay: float = 0.3) -> Iterator[None]:
    timer = threading.Timer(delay, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def command_counts(queue: Queue) -> dict[str, int]:
    """Return how often each command was called on the server."""
    reply: bytes = queue.client.execute(redis_command("INFO", "commandstats", parse=as_raw))
    lines = [line.decode() for line in reply.splitlines() if line.startswith(b"cmdstat_")]
    return {
        line.partition(":")[0].removeprefix("cmdstat_"): int(
            line.partition("calls=")[2].partition(",")[0]
        )
        for line in lines
    }


def test_a_wait_for_a_missing_result_does_not_poll_without_pause(queue: Queue) -> None:
    """The events of other jobs do not cause reads of the result."""
    queue.add(1, job_id="j")
    (entry,) = take(queue)

    def finish_and_emit_events_of_other_jobs() -> None:
        ack(queue, entry)
        emit_event(queue, "completed", "j")
        for _ in range(100):
            emit_event(queue, "completed", "other")
            time.sleep(0.01)

    before = command_counts(queue)
    with background(finish_and_emit_events_of_other_jobs):
        assert queue.wait("j", timeout=TIMEOUT) is None
    calls = command_counts(queue)
    assert calls.get("get", 0) - before.get("get", 0) < 60
    assert calls.get("xread", 0) - before.get("xread", 0) < 100


def test_a_wait_for_a_batch_of_many_parts_reads_its_bits_rarely(queue: Queue) -> None:
    for part in range(100):
        queue.add_batch_part("b", part, range(10))
    queue.finalize_batch("b", total=1000, parts=100)
    entries = take(queue, 2000)

    def finish_all() -> None:
        for entry in entries:
            finish(queue, entry)

    before = command_counts(queue).get("bitcount", 0)
    started = time.monotonic()
    with background(finish_all, 0):
        assert queue.wait_batch("b", timeout=TIMEOUT).done == 1000
    elapsed = time.monotonic() - started
    looks = (command_counts(queue)["bitcount"] - before) / 200
    assert looks <= elapsed / 0.2 + 2


@pytest.mark.parametrize("known", ["found", "dedup_ttl"])
def test_a_job_without_a_result_and_without_events_has_ended_when_it_is_gone(
    queue: Queue, known: str
) -> None:
    """The worker stores no result and its events are lost."""
    queue.add(1, job_id="j", dedup_ttl=timedelta(days=1) if known == "dedup_ttl" else None)
    (entry,) = take(queue)
    if known == "dedup_ttl":
        ack(queue, entry)
        assert queue.wait("j", timeout=TIMEOUT) is None
        return
    with background(lambda: ack(queue, entry)):
        assert queue.wait("j", timeout=TIMEOUT) is None


def test_a_delayed_job_that_is_gone_before_it_is_due_was_cancelled(queue: Queue) -> None:
    queue.add(1, job_id="j", delay=timedelta(hours=1))

    def cancel() -> None:
        assert queue.cancel("j") == "cancelled"
        trim_events(queue)

    with background(cancel), pytest.raises(JobFailed, match="cancelled"):
        queue.wait("j", timeout=TIMEOUT)


def test_a_job_that_never_existed_is_awaited_until_the_timeout(queue: Queue) -> None:
    with pytest.raises(WaitTimeout, match="its state is unknown"):
        queue.wait("never", timeout=timedelta(seconds=3))


def test_a_cancelled_batch_ends_the_wait(queue: Queue) -> None:
    batch = queue.add_batch(range(10))
    finish(queue, take(queue, 1)[0])
    field = redis_command("HSET", queue.keys.batch(batch.batch_id), "cancelled", 1, parse=as_int)
    with (
        background(lambda: queue.client.execute(field)),
        pytest.raises(BatchCancelled, match="1 done and 0 dead of 10"),
    ):
        queue.wait_batch(batch.batch_id, timeout=TIMEOUT)


def test_the_progress_of_a_batch_is_reported_while_waiting(queue: Queue) -> None:
    batch = queue.add_batch(range(2))
    entries = take(queue)
    finish(queue, entries[0])
    observed: list[int] = []
    with background(lambda: finish(queue, entries[1])):
        queue.wait_batch(
            batch.batch_id, timeout=TIMEOUT, on_progress=lambda now: observed.append(now.done)
        )
    assert (observed[0], observed[-1]) == (1, 2)


def test_timeouts_ignore_the_wall_clock(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock jumps by an hour at every call."""
    now = time.time_ns()

    def jump() -> int:
        nonlocal now
        now += 3600 * 10**9
        return now

    queue.add_batch([1], batch_id="b")
    monkeypatch.setattr(time, "time_ns", jump)
    started = time.monotonic()
    for wait in (lambda: queue.wait_batch("b", timeout=timedelta(seconds=1)),):
        with pytest.raises(WaitTimeout):
            wait()
    with pytest.raises(WaitTimeout):
        queue.wait("batch:b:0:0", timeout=timedelta(seconds=1))
    assert time.monotonic() - started >= 2


def test_a_search_reads_a_limited_number_of_bytes(queue: Queue) -> None:
    """Entries of up to a megabyte are read in small pages, and the search gives up at the limit."""
    for _ in range(90):
        queue.add_many([{"payload": "x" * 1_000_000}])
    queue.add(1, job_id="last")

    def run(flow: Any) -> tuple[Any, list[int]]:
        """Run a flow and return its result and the bytes of each page."""
        pages, reply = [], None
        try:
            while True:
                step = flow.send(reply)
                reply = (
                    queue.client.pipeline(step)
                    if isinstance(step, list)
                    else queue.client.execute(step)
                )
                if isinstance(reply, list) and reply and isinstance(reply[0], list | tuple):
                    pages.append(sum(len(value) for entry in reply for value in entry[1]))
        except StopIteration as stop:
            return stop.value, pages

    scan, pages = run(scan_queue(queue.keys, {"last"}, ()))
    assert (scan.jobs, scan.complete) == ({}, False)
    assert sum(pages) <= MAX_SCANNED_BYTES + max(pages)
    assert max(pages) <= 17_000_000
