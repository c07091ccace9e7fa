"""Reads of large jobs are bounded in bytes: the test counts what the server sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.commands import dead_letters, inspect, pages
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter
from airflow_provider_chasqui.core.errors import WaitTimeout
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server

MIB = 1024 * 1024
JOBS = 40
SIZE = MIB - 100


class Counted:
    """A queue with a count of the bytes that the server sends."""

    def __init__(self, queue: Queue, client: Any):
        self.queue = queue
        self._client = client

    def bytes_of(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """Return the result of a call and the number of bytes that the server sent for it."""
        before = self._client.info("stats")["total_net_output_bytes"]
        result = call()
        return result, self._client.info("stats")["total_net_output_bytes"] - before


@pytest.fixture
def counted(queue: Queue, client: Any) -> Iterator[Counted]:
    yield Counted(queue, client)
    client.delete(queue.keys.dlq, queue.keys.stream, queue.keys.delayed)


def add_large_jobs(queue: Queue, **options: Any) -> list[str]:
    jobs = [{"payload": b"x" * SIZE, "job_name": f"n{n % 2}", **options} for n in range(JOBS)]
    return queue.add_many(jobs).job_ids


def move_to_dlq(queue: Queue, client: Any) -> None:
    """Copy every job to the DLQ and delete it from the stream."""
    for entry_id, fields in client.xrange(queue.keys.stream):
        more_fields = ("reason", "unrecoverable", "error", "bad")
        client.execute_command("XADD", queue.keys.dlq, "*", *fields, *more_fields)
        client.xdel(queue.keys.stream, entry_id)


def test_a_limit_bounds_the_bytes_of_dead_letters(counted: Counted, client: Any) -> None:
    queue = counted.queue
    job_ids = add_large_jobs(queue)
    move_to_dlq(queue, client)
    (newest,), sent = counted.bytes_of(lambda: queue.dead_letters(limit=1, newest_first=True))
    assert newest.job_id == job_ids[-1]
    assert newest.job is not None
    assert len(newest.job.payload) == SIZE
    assert sent < 1.2 * MIB
    (found,), sent = counted.bytes_of(lambda: queue.dead_letters(limit=1, job_ids=[job_ids[3]]))
    assert found.job_id == job_ids[3]
    assert sent < 2 * MIB
    none, sent = counted.bytes_of(lambda: queue.dead_letters(limit=10, text="another error"))
    assert none == []
    assert sent < MIB
    report, sent = counted.bytes_of(lambda: queue.replay_dead_letters(dry_run=True))
    assert report.affected == JOBS
    assert sent < MIB
    # The page of the Airflow UI ends at the limit in bytes, and has a cursor.
    flow = dead_letters.search(queue.keys, DeadLetterFilter(), 100, None)
    page, sent = counted.bytes_of(lambda: queue.client.run_flow(flow))
    assert 7 <= len(page.dead_letters) <= 9
    assert page.cursor == page.dead_letters[-1].id
    assert sent < 10 * MIB
    page, sent = counted.bytes_of(
        lambda: queue.client.execute(dead_letters.page_newest_first(queue.keys, "+"))
    )
    assert len(page) == 8
    assert sent < 9 * MIB


def test_a_replay_and_a_purge_of_large_dead_letters(counted: Counted, client: Any) -> None:
    queue = counted.queue
    job_ids = add_large_jobs(queue)
    move_to_dlq(queue, client)
    report, sent = counted.bytes_of(lambda: queue.purge_dead_letters(job_name="n1"))
    assert (report.affected, report.missing) == (JOBS // 2, 0)
    assert sent < MIB
    report, sent = counted.bytes_of(queue.replay_dead_letters)
    assert (report.affected, report.missing) == (JOBS // 2, 0)
    assert sent < (JOBS // 2 + 1) * MIB
    rows = queue.client.run_flow(inspect.jobs_page(queue.keys, "default", None, 3)).rows
    assert [row.job.id for row in rows if row.job] == job_ids[:6:2]


def test_a_search_for_a_job_transfers_only_that_job(counted: Counted) -> None:
    queue = counted.queue
    job_ids = add_large_jobs(queue)
    status, sent = counted.bytes_of(lambda: queue.job_status(job_ids[-1]))
    assert status.state == "waiting"
    assert status.job is not None
    assert len(status.job.payload) == SIZE
    assert sent < 1.2 * MIB
    status, sent = counted.bytes_of(lambda: queue.job_status("unknown"))
    assert status.state == "unknown"
    assert sent < 0.2 * MIB

    def wait() -> None:
        with pytest.raises(WaitTimeout):
            queue.wait("unknown", timeout=timedelta(milliseconds=10))

    _, sent = counted.bytes_of(wait)
    assert sent < 0.5 * MIB


def test_a_cancel_transfers_no_delayed_job(counted: Counted) -> None:
    """A job that is not found by its index may be delayed by a retry, so that set is searched."""
    queue = counted.queue
    add_large_jobs(queue, delay=timedelta(hours=1))
    waiting = queue.add(1)
    result, sent = counted.bytes_of(lambda: queue.cancel(waiting.job_id))
    assert result == "requested"
    assert sent < 0.1 * MIB


def test_pages_of_large_jobs_end_at_the_limit_in_bytes(counted: Counted, client: Any) -> None:
    queue = counted.queue
    add_large_jobs(queue)
    client.xgroup_create(queue.keys.stream, "default", id="0")
    client.xreadgroup("default", "worker", {queue.keys.stream: ">"}, count=20)
    for start_page in (inspect.jobs_page, inspect.running_jobs_page):
        rows: list[Any] = []
        cursor = None
        while True:
            flow = start_page(queue.keys, "default", cursor, 100)
            page, sent = counted.bytes_of(lambda flow=flow: queue.client.run_flow(flow))
            assert sent < 10 * MIB
            rows += page.rows
            cursor = page.next_cursor
            if cursor is None:
                break
        total = 40 if start_page is inspect.jobs_page else 20
        assert len({row.entry_id for row in rows}) == total
        assert sum(row.state == "running" for row in rows) == 20


def test_pages_of_large_delayed_jobs_end_at_the_limit_in_bytes(counted: Counted) -> None:
    queue = counted.queue
    add_large_jobs(queue, delay=timedelta(hours=1))
    start: int | None = 0
    count = 0
    while start is not None:
        flow = inspect.delayed_jobs_page(queue.keys, start, 100)
        page, sent = counted.bytes_of(lambda flow=flow: queue.client.run_flow(flow))
        assert sent < 9 * MIB
        count += len(page.rows)
        start = page.next_start
    assert count == JOBS


def test_an_entry_that_is_larger_than_a_page_has_a_page_to_itself(
    counted: Counted, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1000)
    keys = counted.queue.keys
    for size in (10, 5000, 10, 10, 900, 10, 10):
        client.xadd(keys.stream, {"d": "x" * size})
    sizes, start = [], "-"
    while page := counted.queue.client.execute(inspect.read_entries(keys, start)):
        sizes.append([len(entry[1][1]) for entry in page])
        start = f"({page[-1][0].decode()}"
    assert sizes == [[10], [5000], [10, 10, 900, 10, 10]]


def test_a_running_job_is_running_after_a_thousand_pending_entries(
    queue: Queue, server: Server, client: Any
) -> None:
    queue.add_many([{"payload": n} for n in range(1500)])
    client.xgroup_create(queue.keys.stream, "default", id="0")
    client.xreadgroup("default", "worker", {queue.keys.stream: ">"}, count=1200)
    page = queue.client.run_flow(inspect.jobs_page(queue.keys, "default", None, 2000))
    assert [row.state for row in page.rows] == ["running"] * 1200 + ["waiting"] * 300
