"""Pages of jobs, dead letters, events and throughput: complete, and bounded per call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_int,
    as_raw,
    redis_command,
)
from airflow_provider_chasqui.core.commands import consumer_group, dead_letters, inspect
from airflow_provider_chasqui.core.commands import events as event_commands
from airflow_provider_chasqui.core.commands.dead_letters import (
    MAX_SCANNED,
    DeadLetterFilter,
    PageRange,
)
from airflow_provider_chasqui.core.commands.inspect import (
    JobStatus,
    ScanPage,
    find_job,
)
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.plugins.sample_data import add_dead_letters


@pytest.fixture
def queue(server: Server, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        yield queue


def read_jobs(queue: Queue, count: int) -> Any:
    """Read entries as the consumer `ada` of the group `default`."""
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    return queue.client.execute(consumer_group.read(queue.keys, "default", "ada", count, 0))


def test_pages_of_jobs_name_the_consumer_of_running_jobs(queue: Queue) -> None:
    ids = [job.job_id for job in queue.add_many({"payload": n} for n in range(7))]
    read_jobs(queue, 3)

    rows, sizes, cursor = [], [], None
    while True:
        page = queue.client.run_flow(inspect.jobs_page(queue.keys, "default", cursor, 3))
        rows += [(row.job.id, row.state, row.consumer) for row in page.rows if row.job]
        sizes.append(len(page.rows))
        cursor = page.next_cursor
        if cursor is None:
            break

    assert [job_id for job_id, _, _ in rows] == ids
    assert [state for _, state, _ in rows] == ["running"] * 3 + ["waiting"] * 4
    assert {consumer for _, _, consumer in rows} == {"ada", None}
    assert max(sizes) == 3


def test_waiting_and_running_jobs_are_listed_separately(queue: Queue) -> None:
    ids = [job.job_id for job in queue.add_many({"payload": n} for n in range(5))]
    read_jobs(queue, 2)

    waiting = queue.client.run_flow(
        inspect.jobs_page(queue.keys, "default", None, 50, waiting=True)
    )
    running = queue.client.run_flow(inspect.running_jobs_page(queue.keys, "default", None, 50))

    assert [row.job.id for row in waiting.rows if row.job] == ids[2:]
    assert [row.job.id for row in running.rows if row.job] == ids[:2]


def test_a_pending_entry_that_was_deleted_is_listed_as_running(queue: Queue) -> None:
    queue.add_many({"payload": n} for n in range(3))
    entries = read_jobs(queue, 3)
    queue.client.execute(redis_command("XDEL", queue.keys.stream, entries[1][0], parse=as_int))

    first = queue.client.run_flow(inspect.running_jobs_page(queue.keys, "default", None, 2))
    second = queue.client.run_flow(
        inspect.running_jobs_page(queue.keys, "default", first.next_cursor, 2)
    )

    rows = [*first.rows, *second.rows]
    assert [row.entry_id for row in rows] == [entry[0].decode() for entry in entries]
    assert [row.job is None for row in rows] == [False, True, False]
    assert {row.consumer for row in rows} == {"ada"}


def test_flows_in_lockstep_share_their_round_trips(queue: Queue) -> None:
    round_trips: list[int] = []

    def echo_flow(number: int) -> CommandFlow[int]:
        first = yield redis_command("ECHO", str(number), parse=as_int)
        second, third = yield [
            redis_command("ECHO", "2", parse=as_int),
            redis_command("ECHO", "3", parse=as_int),
        ]
        return first + second + third if number else first

    def count_round_trips(flow: CommandFlow[list[int]]) -> CommandFlow[list[int]]:
        reply = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            round_trips.append(len(step))  # type: ignore[arg-type]
            reply = yield step

    flow = inspect.run_in_lockstep(echo_flow(number) for number in range(4))
    results = queue.client.run_flow(count_round_trips(flow))
    assert results == [0, 6, 7, 8]
    assert round_trips == [4, 8]


def test_queues_and_batches_are_discovered_by_scan(queue: Queue) -> None:
    queue.add_batch([1, 2], batch_id="b-1")
    queue.add_batch([1, 2], batch_id="b-2")
    other = Queue(f"{queue.name}-[x]*", queue.target)
    other.add_batch([1], batch_id="b-3")

    def scan_all(scan: Callable[[str], Command[ScanPage]]) -> set[str]:
        names: set[str] = set()
        cursor = "0"
        while True:
            page = queue.client.execute(scan(cursor))
            names.update(page.names)
            cursor = page.cursor
            if cursor == "0":
                return names

    queues = scan_all(lambda cursor: inspect.scan_queues(cursor, "stream", 10))
    assert {queue.name, other.name} <= queues
    batches = scan_all(lambda cursor: inspect.scan_batches(queue.keys, cursor, 10))
    other_batches = scan_all(lambda cursor: inspect.scan_batches(other.keys, cursor, 10))
    assert (batches, other_batches) == ({"b-1", "b-2"}, {"b-3"})
    other.close()


def test_matching_dead_letters_are_returned_newest_first_page_by_page(queue: Queue) -> None:
    add_dead_letters(queue, 30, job_name="welcome")
    add_dead_letters(queue, 5, job_name="digest", reason="timeout")
    add_dead_letters(queue, 30, job_name="welcome")
    digest = DeadLetterFilter(job_name="digest")

    first = queue.client.run_flow(dead_letters.search(queue.keys, digest, 3, None))
    second = queue.client.run_flow(dead_letters.search(queue.keys, digest, 3, first.cursor))

    matches = first.dead_letters + second.dead_letters
    assert [dead_letter.reason for dead_letter in matches] == ["timeout"] * 5
    ids = [dead_letter.id for dead_letter in matches]
    assert ids == sorted(ids, key=StreamId.parse, reverse=True)
    assert second.cursor is None


def test_a_filter_without_matches_scans_a_limited_number_of_dead_letters(queue: Queue) -> None:
    add_dead_letters(queue, MAX_SCANNED + 800)
    no_match = DeadLetterFilter(job_name="no-such-name")
    first = queue.client.run_flow(dead_letters.search(queue.keys, no_match, 50, None))
    assert (first.dead_letters, first.scanned) == ([], MAX_SCANNED)
    second = queue.client.run_flow(dead_letters.search(queue.keys, no_match, 50, first.cursor))
    assert (second.scanned, second.cursor) == (800, None)


def test_a_paged_replay_does_not_replay_jobs_that_died_again(queue: Queue) -> None:
    add_dead_letters(queue, 2_300)
    page_range, replayed, pages = PageRange(), 0, 0
    while True:
        result = queue.client.run_flow(
            dead_letters.replay_page(queue.keys, DeadLetterFilter(), page_range, None, False)
        )
        replayed, pages = replayed + result.report.affected, pages + 1
        add_dead_letters(queue, 10)  # ten of the replayed jobs die again
        if result.cursor is None:
            break
        page_range = PageRange(result.cursor, result.last_id)

    assert replayed == 2_300
    assert pages == 3
    assert queue.depth().dead == 10 * pages


def test_a_dry_run_counts_all_dead_letters_and_changes_nothing(queue: Queue) -> None:
    add_dead_letters(queue, 20)
    queue.client.execute(
        redis_command("XADD", queue.keys.dlq, "*", "d", b"\xc1", "reason", "decode", parse=as_raw)
    )
    replay = queue.client.run_flow(
        dead_letters.replay_page(queue.keys, DeadLetterFilter(), PageRange(), None, True)
    )
    purge = queue.client.run_flow(
        dead_letters.purge_page(queue.keys, DeadLetterFilter(), PageRange(), True)
    )
    assert (replay.report.matched, replay.report.affected, replay.report.unreadable) == (21, 20, 1)
    assert purge.report.affected == 21
    assert queue.depth().dead == 21


def test_only_the_selected_dead_letters_are_purged(queue: Queue) -> None:
    add_dead_letters(queue, 6)
    ids = [dead_letter.id for dead_letter in queue.dead_letters()]
    selected = DeadLetterFilter(ids=frozenset({ids[0], ids[3], "1-1"}))
    result = queue.client.run_flow(
        dead_letters.purge_page(queue.keys, selected, PageRange(), False)
    )
    assert result.report.affected == 2
    remaining = [dead_letter.id for dead_letter in queue.dead_letters()]
    assert remaining == [ids[1], ids[2], ids[4], ids[5]]


def add_event(keys: Keys, entry_id: str, name: str, at_ms: int, job_id: str = "x") -> Command[Any]:
    return redis_command(
        "XADD", keys.events, entry_id, "e", name, "id", job_id, "ts", at_ms, parse=as_raw
    )


def test_the_events_of_one_job_are_found_among_many(queue: Queue) -> None:
    now_ms = time.time_ns() // 1_000_000
    for index in range(300):
        queue.client.execute(add_event(queue.keys, "*", "active", now_ms))
        if index % 100 == 0:
            queue.client.execute(add_event(queue.keys, "*", "completed", now_ms, "this-job"))
    events, cursor = [], "0-0"
    while cursor is not None:
        page = queue.client.execute(event_commands.job_events(queue.keys, "this-job", cursor, 50))
        events += page.events
        cursor = page.next_cursor
    assert [event.name for event in events] == ["completed"] * 3


def test_a_job_is_found_in_every_state(queue: Queue) -> None:
    def find(job_id: str) -> tuple[str, bool]:
        status = queue.client.run_flow(find_job(queue.keys, job_id, "default", max_scanned=30_000))
        return status.state, status.exhaustive

    waiting = queue.add(1).job_id
    delayed_with_id = queue.add(2, job_id="explicit-id", delay=timedelta(hours=1)).job_id
    delayed = queue.add(3, delay=timedelta(hours=1)).job_id
    queue.add_batch([1, 2], batch_id="b")
    assert find(waiting) == find("batch:b:0:1") == ("waiting", True)
    assert find(delayed_with_id) == find(delayed) == ("delayed", True)
    assert find("no-such-job") == ("unknown", True)

    add_dead_letters(queue, 3, job_name="x")
    dead = [dead_letter.job_id for dead_letter in queue.dead_letters()]
    assert {find(job_id or "") for job_id in dead} == {("dead", True)}
    queue.add_batch([1], batch_id="running")
    queue.client.execute(consumer_group.read(queue.keys, "default", "ada", 10, 0))
    assert find("batch:running:0:0") == ("running", True)


def test_the_search_for_a_job_reads_a_limited_number_of_entries(queue: Queue) -> None:
    queue.add_batch(range(40_000), batch_id="deep")

    def find(job_id: str) -> JobStatus:
        return queue.client.run_flow(find_job(queue.keys, job_id, "default", max_scanned=30_000))

    assert find("batch:deep:0:0").state == "waiting"
    last = find("batch:deep:0:39999")
    assert (last.state, last.exhaustive) == ("unknown", False)
