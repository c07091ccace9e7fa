"""The transition function of all waits, and the outcomes that are known only from events."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_chasqui.core.batch import BatchPosition, BatchProgress
from airflow_provider_chasqui.core.event_outcomes import EventOutcomes
from airflow_provider_chasqui.core.job import DeadLetter
from airflow_provider_chasqui.core.waiting import (
    BatchEnd,
    BatchObservation,
    JobEnd,
    JobObservation,
    Pending,
    TimedOut,
    Wait,
    WaitIntervals,
    next_state,
)

pytestmark = pytest.mark.unit

NOW = 1000.0
INTERVALS = WaitIntervals()
DEAD_LETTER = DeadLetter("1-1", "1-0", "retries_exhausted", None, "", b"", None, "boom", 3)
# A job that was missed by one search; the next miss decides.
MISSED = Wait(misses=1)


def job(**fields: Any) -> JobObservation:
    return JobObservation("j", **fields)


@pytest.mark.parametrize(
    ("wait", "observation", "expected"),
    [
        # A bit, a result or a dead letter decides.
        (Wait(), job(outcome="done"), JobEnd("j", "done")),
        (Wait(), job(outcome="done", event="dlq"), JobEnd("j", "done")),
        (Wait(), job(outcome="dead"), JobEnd("j", "dead")),
        (
            Wait(),
            job(outcome="dead", dead_letter=DEAD_LETTER),
            JobEnd("j", "dead", "retries_exhausted", "boom", 3),
        ),
        (
            Wait(),
            job(outcome="dead", reason="cancelled", in_batch=True),
            JobEnd("j", "dead", "cancelled"),
        ),
        (Wait(deadline=NOW - 1), job(outcome="done"), JobEnd("j", "done")),
        # Nothing is known yet.
        (Wait(), job(), "pending"),
        (Wait(), job(place="queue", event="dlq", event_reason="cancelled"), "pending"),
        (Wait(deadline=NOW), job(place="queue"), TimedOut()),
        # A completed event ends the wait for a job without a batch, and without a bit.
        (Wait(), job(event="completed"), JobEnd("j", "done")),
        (Wait(), job(event="completed", in_batch=True, recorded=True), "pending"),
        (
            Wait(unconfirmed_since=NOW - 1),
            job(event="completed", in_batch=True, recorded=True),
            JobEnd("j", "done"),
        ),
        (
            Wait(),
            job(event="completed", in_batch=True, recorded=True, place="absent"),
            JobEnd("j", "done"),
        ),
        (Wait(), job(event="dlq", event_reason="cancelled"), JobEnd("j", "dead", "cancelled")),
        # A job that left the queue without a trace other than that.
        (Wait(found=True), job(place="absent"), "pending"),
        (replace(MISSED, found=True), job(place="absent"), JobEnd("j", "done")),
        (MISSED, job(place="absent", recorded=True), JobEnd("j", "done")),
        (
            replace(MISSED, found=True),
            job(place="absent", cancelled=True),
            JobEnd("j", "dead", "cancelled"),
        ),
        (
            replace(MISSED, found=True, due_at=NOW + 60),
            job(place="absent"),
            JobEnd("j", "dead", "cancelled"),
        ),
        (replace(MISSED, found=True, due_at=NOW - 1), job(place="absent"), JobEnd("j", "done")),
        (
            MISSED,
            job(place="absent", event="dlq", event_reason="unrecoverable"),
            JobEnd("j", "dead", "unrecoverable"),
        ),
        (MISSED, job(place="absent"), JobEnd("j", "unknown")),
        (
            replace(MISSED, found=True),
            job(place="absent", in_batch=True, recorded=True),
            JobEnd("j", "unknown"),
        ),
        # A job of a batch that does not exist.
        (Wait(), job(in_batch=True), JobEnd("j", "unknown")),
        (Wait(must_exist=False), job(in_batch=True), "pending"),
        # A job that does not exist yet.
        (replace(MISSED, must_exist=False), job(place="absent"), "pending"),
    ],
)
def test_jobs(wait: Wait, observation: JobObservation, expected: object) -> None:
    state = next_state(wait, observation, NOW)
    assert ("pending" if isinstance(state, Pending) else state) == expected


def progress(done: int = 0, dead: int = 0, total: int | None = 10, **fields: Any) -> BatchProgress:
    values: dict[str, Any] = {"parts": 1, "enqueued": 10, "created_at_ms": 1, "source": ""}
    return BatchProgress(batch_id="b", total=total, done=done, dead=dead, **(values | fields))


@pytest.mark.parametrize(
    ("wait", "observation", "status", "counts"),
    [
        (Wait(), BatchObservation(None), "unknown", None),
        (Wait(must_exist=False), BatchObservation(None), "pending", None),
        (Wait(must_exist=False, found=True), BatchObservation(None), "unknown", None),
        (Wait(), BatchObservation(progress(3, 1)), "pending", (3, 1, 0)),
        (Wait(deadline=NOW), BatchObservation(progress(3, 1)), "timeout", (3, 1, 0)),
        (Wait(deadline=NOW), BatchObservation(progress(9, 1)), "finished", (9, 1, 0)),
        (Wait(), BatchObservation(progress(total=None)), "pending", (0, 0, 0)),
        (Wait(), BatchObservation(progress(3, cancelled_at_ms=5)), "cancelled", (3, 0, 0)),
        (Wait(), BatchObservation(progress(10, cancelled_at_ms=5)), "cancelled", (10, 0, 0)),
        # Unfinished jobs of which none is on the queue.
        (Wait(), BatchObservation(progress(3), place="absent"), "pending", (3, 0, 0)),
        (MISSED, BatchObservation(progress(3), place="absent"), "finished", (3, 0, 7)),
        (MISSED, BatchObservation(progress(3), place="queue"), "pending", (3, 0, 0)),
        (MISSED, BatchObservation(progress(3)), "pending", (3, 0, 0)),
        (
            MISSED,
            BatchObservation(progress(total=None), place="absent"),
            "pending",
            (0, 0, 0),
        ),
        # Workers that set no bits.
        (Wait(), BatchObservation(progress(3), 7), "pending", (3, 0, 0)),
        (Wait(unconfirmed_since=NOW - 1), BatchObservation(progress(3), 6), "pending", (9, 0, 0)),
        (
            Wait(unconfirmed_since=NOW - 1),
            BatchObservation(progress(3), 6, 1),
            "finished",
            (9, 1, 0),
        ),
        (
            replace(MISSED, unconfirmed_since=NOW - 1),
            BatchObservation(progress(3), 2, 0, "absent", 4),
            "finished",
            (6, 4, 0),
        ),
    ],
)
def test_batches(
    wait: Wait, observation: BatchObservation, status: str, counts: tuple[int, int, int] | None
) -> None:
    state = next_state(wait, observation, NOW)
    names = {Pending: "pending", TimedOut: "timeout"}
    assert names.get(type(state)) == status or (
        isinstance(state, BatchEnd) and state.status == status
    )
    snapshot = None if isinstance(state, JobEnd) else state.snapshot
    assert (snapshot and (snapshot.done, snapshot.dead, snapshot.lost)) == counts


def test_misses_before_the_jobs_exist_do_not_count() -> None:
    """A sensor starts before the batch is sent, and the first search after it misses one job."""
    wait = Wait(must_exist=False)
    for _ in range(5):
        state = next_state(wait, BatchObservation(progress(total=None), place="absent"), NOW)
        assert isinstance(state, Pending)
        wait = state.wait
    assert isinstance(next_state(wait, BatchObservation(progress(), place="absent"), NOW), Pending)
    wait = Wait(must_exist=False)
    for _ in range(5):
        state = next_state(wait, job(place="absent"), NOW)
        assert isinstance(state, Pending)
        wait = state.wait
    assert isinstance(next_state(wait, job(place="absent", recorded=True), NOW), Pending)


@pytest.mark.parametrize(
    ("parts", "pause"), [(1, 0.1), (50, 0.1), (200, 0.4), (1000, 2.0), (100_000, 15.0)]
)
def test_the_pause_between_two_looks_grows_with_the_number_of_parts(
    parts: int, pause: float
) -> None:
    state = next_state(Wait(next_scan_at=NOW + 60), BatchObservation(progress(parts=parts)), NOW)
    assert isinstance(state, Pending)
    assert state.earliest_check_at == pytest.approx(NOW + pause)
    assert state.check_at >= state.earliest_check_at


def test_a_search_is_repeated_soon_after_a_miss_and_late_after_a_hit() -> None:
    delays = {}
    for place in ("queue", "absent", None):
        state = next_state(Wait(next_scan_at=NOW), job(place=place), NOW)
        assert isinstance(state, Pending)
        delays[place] = state.wait.next_scan_at - NOW
    assert delays == {
        "queue": INTERVALS.scan_interval,
        "absent": INTERVALS.first_scan_delay,
        None: INTERVALS.scan_interval,
    }


def test_outcomes_of_events_are_compared_with_the_bits() -> None:
    outcomes = EventOutcomes()
    for index in (0, 3, 9, 2**32 - 1):
        outcomes.add(BatchPosition("b", 0, index), done=True)
    outcomes.add(BatchPosition("b", 0, 4), done=False)
    outcomes.add(BatchPosition("b", 0, 9), done=False)  # a late event of an earlier attempt
    outcomes.add(BatchPosition("b", 7, 1), done=False)
    outcomes.add(BatchPosition("b", 7, 1), done=True)  # replayed
    assert (outcomes.done, outcomes.dead) == (5, 1)
    missing = {
        (part, first): outcomes.count_missing(part, first, b"\x10" if part == 0 else b"", b"")
        for part, first, _ in outcomes.chunks()
    }
    assert missing[0, 0] == (2, 1)  # the bit of job 3 is set
    assert sum(done for done, _ in missing.values()) == 4


def test_a_million_outcomes_are_compared_in_milliseconds() -> None:
    outcomes = EventOutcomes()
    for index in range(0, 1_000_000, 3):
        outcomes.add(BatchPosition("b", 0, index), done=True)
    started = time.thread_time()
    missing = sum(
        outcomes.count_missing(part, first, bytes(last - first + 1), b"")[0]
        for part, first, last in outcomes.chunks()
    )
    assert missing == 333_334
    assert time.thread_time() - started < 0.01
