"""Looking at a queue page by page: nothing is missed, and no call reads without a bound."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_provider_chasqui.core.command import CommandFlow, as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group, dead_letters, events, inspect
from airflow_provider_chasqui.core.commands.dead_letters import (
    MAX_SCANNED,
    DeadLetterFilter,
    PageRange,
)
from airflow_provider_chasqui.core.commands.inspect import find_job, sample_throughput
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.plugins.sample_data import bury


@pytest.fixture
def queue(server: Server, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        yield queue


def test_jobs_come_in_pages_that_say_who_holds_them(queue: Queue) -> None:
    ids = [added.job_id for added in queue.add_many({"payload": n} for n in range(7))]
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    queue.client.execute(consumer_group.read(queue.keys, "default", "ada", 3, 0, 60_000))

    seen, after, sizes = [], None, []
    while True:
        page = queue.client.run_flow(inspect.jobs_page(queue.keys, "default", after, 3))
        seen += [(row.job.id, row.state, row.consumer) for row in page.rows if row.job]
        sizes.append(len(page.rows))
        after = page.next_cursor
        if after is None:
            break

    assert [job_id for job_id, _, _ in seen] == ids
    assert [state for _, state, _ in seen] == ["running"] * 3 + ["waiting"] * 4
    assert {consumer for _, _, consumer in seen} == {"ada", None}
    assert max(sizes) == 3


def test_waiting_and_running_can_be_seen_apart(queue: Queue) -> None:
    ids = [added.job_id for added in queue.add_many({"payload": n} for n in range(5))]
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    queue.client.execute(consumer_group.read(queue.keys, "default", "ada", 2, 0, 60_000))

    waiting = queue.client.run_flow(
        inspect.jobs_page(queue.keys, "default", None, 50, waiting=True)
    )
    running = queue.client.run_flow(inspect.running_jobs_page(queue.keys, "default", None, 50))

    assert [row.job.id for row in waiting.rows if row.job] == ids[2:]
    assert [row.job.id for row in running.rows if row.job] == ids[:2]


def test_what_is_held_is_shown_also_where_its_entry_was_deleted(queue: Queue) -> None:
    queue.add_many({"payload": n} for n in range(3))
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    raw = queue.client.execute(consumer_group.read(queue.keys, "default", "ada", 3, 0, 60_000))
    queue.client.execute(redis_command("XDEL", queue.keys.stream, raw[1][0], parse=as_int))

    first = queue.client.run_flow(inspect.running_jobs_page(queue.keys, "default", None, 2))
    rest = queue.client.run_flow(
        inspect.running_jobs_page(queue.keys, "default", first.next_cursor, 2)
    )

    rows = [*first.rows, *rest.rows]
    assert [row.entry_id for row in rows] == [each[0].decode() for each in raw]
    assert [row.job is None for row in rows] == [False, True, False]
    assert {row.consumer for row in rows} == {"ada"}


def test_flows_side_by_side_share_their_round_trips(queue: Queue) -> None:
    trips: list[int] = []

    def counting(number: int) -> CommandFlow[int]:
        one = yield redis_command("ECHO", str(number), parse=as_int)
        two, three = yield [
            redis_command("ECHO", "2", parse=as_int),
            redis_command("ECHO", "3", parse=as_int),
        ]
        return one + two + three if number else one

    def watched(flow: CommandFlow[list[int]]) -> CommandFlow[list[int]]:
        answer = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            trips.append(len(step))  # type: ignore[arg-type]
            answer = yield step

    found = queue.client.run_flow(watched(inspect.run_in_lockstep(counting(n) for n in range(4))))
    assert found == [0, 6, 7, 8]
    assert trips == [4, 8]


def test_queues_and_batches_are_found_by_looking(queue: Queue) -> None:
    queue.add_batch([1, 2], batch_id="b-1")
    queue.add_batch([1, 2], batch_id="b-2")
    other = Queue(f"{queue.name}-[x]*", queue.target)
    other.add_batch([1], batch_id="b-3")

    def everything(scan) -> set[str]:
        names, cursor = set(), "0"
        while True:
            found = queue.client.execute(scan(cursor))
            names.update(found.names)
            cursor = found.cursor
            if cursor == "0":
                return names

    queues = everything(lambda cursor: inspect.scan_queues(cursor, "stream", 10))
    assert {queue.name, other.name} <= queues
    mine = everything(lambda cursor: inspect.scan_batches(queue.keys, cursor, 10))
    theirs = everything(lambda cursor: inspect.scan_batches(other.keys, cursor, 10))
    assert (mine, theirs) == ({"b-1", "b-2"}, {"b-3"})
    other.close()


def test_letters_that_fit_are_found_page_by_page_newest_first(queue: Queue) -> None:
    bury(queue, 30, name="welcome")
    bury(queue, 5, name="digest", reason="timeout")
    bury(queue, 30, name="welcome")
    choose = DeadLetterFilter(job_name="digest")

    first = queue.client.run_flow(dead_letters.search(queue.keys, choose, 3, None))
    second = queue.client.run_flow(dead_letters.search(queue.keys, choose, 3, first.cursor))

    found = first.dead_letters + second.dead_letters
    assert [letter.reason for letter in found] == ["timeout"] * 5
    assert [letter.id for letter in found] == sorted(
        (letter.id for letter in found),
        key=lambda each: tuple(map(int, each.split("-"))),
        reverse=True,
    )
    assert second.cursor is None


def test_a_filter_that_fits_nothing_does_not_read_everything(queue: Queue) -> None:
    bury(queue, MAX_SCANNED + 800)
    page = queue.client.run_flow(
        dead_letters.search(queue.keys, DeadLetterFilter(job_name="nobody"), 50, None)
    )
    assert (page.dead_letters, page.scanned) == ([], MAX_SCANNED)
    rest = queue.client.run_flow(
        dead_letters.search(queue.keys, DeadLetterFilter(job_name="nobody"), 50, page.cursor)
    )
    assert (rest.scanned, rest.cursor) == (800, None)


def test_a_replay_of_many_goes_in_steps_and_not_over_those_that_died_again(queue: Queue) -> None:
    bury(queue, 2_300)
    span, moved, steps = PageRange(), 0, 0
    while True:
        step = queue.client.run_flow(
            dead_letters.replay_page(queue.keys, DeadLetterFilter(), span, None, False)
        )
        moved, steps = moved + step.report.affected, steps + 1
        bury(queue, 10)  # ten of those that were put back die again meanwhile
        if step.cursor is None:
            break
        span = PageRange(step.cursor, step.last_id)

    assert moved == 2_300
    assert steps == 3
    assert queue.depth().dead == 10 * steps


def test_a_dry_run_moves_nothing_and_counts_all(queue: Queue) -> None:
    bury(queue, 20)
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


def test_only_chosen_letters_are_purged(queue: Queue) -> None:
    bury(queue, 6)
    ids = [letter.id for letter in queue.dead_letters()]
    choose = DeadLetterFilter(ids=frozenset({ids[0], ids[3], "1-1"}))
    step = queue.client.run_flow(dead_letters.purge_page(queue.keys, choose, PageRange(), False))
    assert step.report.affected == 2
    assert [letter.id for letter in queue.dead_letters()] == [ids[1], ids[2], ids[4], ids[5]]


def test_the_pulse_counts_what_ended_and_scales_what_it_sampled(queue: Queue) -> None:
    keys, now_ms = queue.keys, 1_700_000_070_000  # half a minute into its slice
    for index in range(90):
        at = now_ms - 90_000 + index * 1000
        queue.client.execute(_event(keys, f"{at}-0", "completed", at))
    queue.client.execute(_event(keys, f"{now_ms - 5}-0", "dlq", now_ms - 5))

    exact = queue.client.run_flow(sample_throughput(keys, now_ms, 5 * 60_000, 5, 1000))
    sampled = queue.client.run_flow(sample_throughput(keys, now_ms, 5 * 60_000, 5, 20))

    assert [beat.completed for beat in exact] == [0, 0, 0, 60, 30]
    assert exact[-1].dead == 1
    assert not any(beat.sampled for beat in exact)
    assert [beat.sampled for beat in sampled] == [False, False, False, True, True]
    assert 55 <= sampled[3].completed <= 65
    assert 27 <= sampled[4].completed <= 33


def test_the_pulse_of_a_short_burst_is_not_taken_for_a_steady_one(queue: Queue) -> None:
    keys, now_ms = queue.keys, 1_700_000_070_000
    for index in range(400):  # four hundred ends within four seconds, then nothing
        at = now_ms - 100_000 + index * 10
        queue.client.execute(_event(keys, f"{at}-0", "completed", at))
    beats = queue.client.run_flow(sample_throughput(keys, now_ms, 5 * 60_000, 5, 20))
    assert [beat.completed for beat in beats] == [0, 0, 400, 0, 0]


def _event(keys: Keys, entry_id: str, name: str, at: int):
    return redis_command(
        "XADD", keys.events, entry_id, "e", name, "id", "x", "ts", at, parse=as_raw
    )


def test_the_timeline_of_one_job_among_many(queue: Queue) -> None:
    now = time.time_ns() // 1_000_000
    for index in range(300):
        queue.client.execute(_event(queue.keys, "*", "active", now))
        if index % 100 == 0:
            fields = ("e", "completed", "id", "me", "ts", now)
            queue.client.execute(
                redis_command("XADD", queue.keys.events, "*", *fields, parse=as_raw)
            )
    found, after = [], "0-0"
    while after is not None:
        page = queue.client.execute(events.job_events(queue.keys, "me", after, 50))
        found += page.events
        after = page.next_cursor
    assert [event.name for event in found] == ["completed"] * 3


def test_a_job_is_found_wherever_it_is(queue: Queue) -> None:
    def state(job_id: str) -> tuple[str, bool]:
        status = queue.client.run_flow(find_job(queue.keys, job_id, "default", max_scanned=30_000))
        return status.state, status.exhaustive

    waiting = queue.add(1).job_id
    named = queue.add(2, job_id="mine", delay=timedelta(hours=1)).job_id
    nameless = queue.add(3, delay=timedelta(hours=1)).job_id
    queue.add_batch([1, 2], batch_id="b")
    assert state(waiting) == state("batch:b:0:1") == ("waiting", True)
    assert state(named) == state(nameless) == ("delayed", True)
    assert state("nobody") == ("unknown", True)

    bury(queue, 3, name="x")
    dead = [letter.job_id for letter in queue.dead_letters()]
    assert {state(job_id or "") for job_id in dead} == {("dead", True)}
    queue.add_batch([1], batch_id="held")
    queue.client.execute(consumer_group.read(queue.keys, "default", "ada", 10, 0, 60_000))
    assert state("batch:held:0:0") == ("running", True)


def test_seeking_ends_before_the_patience_of_who_asked(queue: Queue) -> None:
    queue.add_batch(range(40_000), batch_id="deep")
    first, last = "batch:deep:0:0", "batch:deep:0:39999"
    status = queue.client.run_flow(find_job(queue.keys, first, "default", max_scanned=30_000))
    assert status.state == "waiting"
    status = queue.client.run_flow(find_job(queue.keys, last, "default", max_scanned=30_000))
    assert (status.state, status.exhaustive) == ("unknown", False)
