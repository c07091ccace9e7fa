"""Every invalid request is rejected with a message and a code before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_chasqui.core.chunking import chunked
from airflow_provider_chasqui.core.command import DialectCommand
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    ConnectionFailed,
    EncodeError,
    InvalidArgument,
    PayloadTooLarge,
)
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.queue_flows import QueueFlows
from airflow_provider_chasqui.core.repeat import SKIP, fire_all
from airflow_provider_chasqui.core.resp import encode_command
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy

NOW = 1_800_000_000_000
SECOND = timedelta(seconds=1)


def flows(**config: Any) -> QueueFlows:
    return QueueFlows(Keys("q"), QueueConfig(**config), lambda: NOW)


def add(**job: Any) -> Any:
    return lambda: flows().add(NewJob(**job))


def repeat(**changes: Any) -> Any:
    defaults: dict[str, Any] = {
        "payload": 1,
        "schedule": Every(1000),
        "job_name": "",
        "key": None,
        "limit": None,
        "start": None,
        "end": None,
        "misfire": SKIP,
    }
    return lambda: flows().repeat(**(defaults | changes))


INVALID: dict[str, tuple[type[ChasquiError], Any]] = {
    "payload": (EncodeError, add(payload=object())),
    "too large": (PayloadTooLarge, lambda: flows(max_payload_bytes=100).add(NewJob("x" * 100))),
    "name too long": (InvalidArgument, add(job_name="é" * 129)),
    "name of bytes": (InvalidArgument, add(job_name=b"x")),
    "unpaired surrogate in the name": (InvalidArgument, add(job_name="\ud800")),
    "blank id": (InvalidArgument, add(job_id=" ")),
    "id of bytes": (InvalidArgument, add(job_id=b"x")),
    "unpaired surrogate in the id": (InvalidArgument, add(job_id="a\udfff")),
    "id of a batch": (InvalidArgument, add(job_id="batch:b:0:1")),
    "delay and run_at": (
        InvalidArgument,
        add(delay=SECOND, run_at=datetime(2030, 1, 1, tzinfo=UTC)),
    ),
    "delay as a number": (InvalidArgument, add(delay=5)),
    "negative delay": (InvalidArgument, add(delay=-SECOND)),
    "endless delay": (InvalidArgument, add(delay=timedelta.max)),
    "delay over the maximum": (InvalidArgument, add(delay=timedelta(days=30, seconds=1))),
    "run_at over the maximum": (InvalidArgument, add(run_at=datetime.max)),
    "run_at as text": (InvalidArgument, add(run_at="tomorrow")),
    "dedup_ttl without an id": (InvalidArgument, add(dedup_ttl=SECOND)),
    "dedup_ttl of 0": (InvalidArgument, add(job_id="x", dedup_ttl=timedelta(0))),
    "dedup_ttl as a number": (InvalidArgument, add(job_id="x", dedup_ttl=5)),
    "retry as a number": (InvalidArgument, add(retry=3)),
    "unknown backoff": (InvalidArgument, add(retry=RetryPolicy(3, Backoff("linear", 1)))),
    "multiplier 0": (InvalidArgument, add(retry=RetryPolicy(3, Backoff("fixed", 1, None, 0)))),
    "endless multiplier": (
        InvalidArgument,
        add(retry=RetryPolicy(3, Backoff("fixed", 1, None, float("inf")))),
    ),
    "unknown field": (InvalidArgument, lambda: flows().add_many([{"payload": 1, "priority": 3}])),
    "not a job": (InvalidArgument, lambda: flows().add_many([5])),
    "not jobs": (InvalidArgument, lambda: flows().add_many(5)),
    "one bad job of many": (EncodeError, lambda: flows().add_many([NewJob(1), NewJob({1})])),
    "batch id": (InvalidArgument, lambda: flows().add_batch([1], None, "a:b", {})),
    "batch id of bytes": (InvalidArgument, lambda: flows().add_batch([1], None, b"x", {})),
    "batch payload": (EncodeError, lambda: flows().add_batch([1, object()], None, "b", {})),
    "batch option": (
        InvalidArgument,
        lambda: flows().add_batch([1], None, "b", {"dedup_ttl": SECOND}),
    ),
    "batch ttl": (InvalidArgument, lambda: flows().add_batch([1], None, "b", {"ttl": -SECOND})),
    "batch ttl as a number": (
        InvalidArgument,
        lambda: flows().add_batch([1], None, "b", {"ttl": 5}),
    ),
    "batch retry": (InvalidArgument, lambda: flows().add_batch([1], None, "b", {"retry": 3})),
    "batch source": (InvalidArgument, lambda: flows().add_batch([1], None, "b", {"source": None})),
    "part below 0": (InvalidArgument, lambda: flows().add_part("b", -1, [1], None, 0, {})),
    "part too high": (InvalidArgument, lambda: flows().add_part("b", 100_000, [1], None, 0, {})),
    "first below 0": (InvalidArgument, lambda: flows().add_part("b", 0, [1], None, -1, {})),
    "index too high": (
        InvalidArgument,
        lambda: flows().add_part("b", 0, [1, 2], None, 2**32 - 1, {}),
    ),
    "total below 0": (InvalidArgument, lambda: flows().finalize_batch("b", -1, 1, {})),
    "too many parts": (InvalidArgument, lambda: flows().finalize_batch("b", 1, 10**9, {})),
    "reschedule without a time": (InvalidArgument, lambda: flows().reschedule("x", None, None)),
    "reschedule over the maximum": (
        InvalidArgument,
        lambda: flows().reschedule("x", timedelta(days=31), None),
    ),
    "unknown filter": (
        InvalidArgument,
        lambda: flows().replay(None, None, False, {"unknown": "x"}),
    ),
    "one id as ids": (InvalidArgument, lambda: flows().purge(None, False, {"ids": "1-0"})),
    "age as a number": (InvalidArgument, lambda: flows().purge(None, False, {"older_than": 5})),
    "max_replays 0": (InvalidArgument, lambda: flows().replay(None, 0, False, {})),
    "limit below 0": (InvalidArgument, lambda: flows().replay(-1, None, False, {})),
    "purge limit below 0": (InvalidArgument, lambda: flows().purge(-1, False, {})),
    "dead letters below 0": (InvalidArgument, lambda: flows().dead_letters(-1, None, False, {})),
    "dead below 0": (InvalidArgument, lambda: flows().failed_jobs("b", -1)),
    "wait as a number": (InvalidArgument, lambda: flows().wait("x", 5, lambda: 0.0)),
    "repeat payload": (EncodeError, repeat(payload=object())),
    "repeat too large": (PayloadTooLarge, repeat(payload="x" * 2**20)),
    "repeat name": (InvalidArgument, repeat(job_name="x" * 257)),
    "repeat schedule": (InvalidArgument, repeat(schedule="* * * * *")),
    "repeat limit": (InvalidArgument, repeat(limit=-1)),
    "repeat limit 0": (InvalidArgument, repeat(limit=0)),
    "repeat limit as text": (InvalidArgument, repeat(limit="3")),
    "repeat start": (InvalidArgument, repeat(start=5)),
    "repeat end in the past": (InvalidArgument, repeat(end=datetime(2020, 1, 1))),
    "repeat blank key": (InvalidArgument, repeat(key=" ")),
    "repeat key of bytes": (InvalidArgument, repeat(key=b"k")),
    "repeat misfire": (InvalidArgument, repeat(misfire="skip")),
}


@pytest.mark.parametrize(("kind", "request_flow"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_request_is_rejected_before_anything_is_sent(kind, request_flow):
    codes = {InvalidArgument: "CMQ-004", EncodeError: "CMQ-002", PayloadTooLarge: "CMQ-023"}
    with pytest.raises(kind) as raised:
        next(request_flow())
    assert type(raised.value) is kind
    assert raised.value.code == codes[kind]
    assert str(raised.value).startswith(f"[{codes[kind]}] ")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Keys(""),
        lambda: Keys("  "),
        lambda: Keys("a{b"),
        lambda: Keys("a}b"),
        lambda: Keys(None),
        lambda: Keys("\ud800"),
        lambda: QueueConfig(max_len=0),
        lambda: QueueConfig(max_payload_bytes=0),
        lambda: QueueConfig(max_delay=-SECOND),
        lambda: QueueConfig(max_replays=0),
        lambda: QueueConfig(group=""),
        lambda: fire_all(0),
        lambda: fire_all(2**32),
    ],
)
def test_invalid_settings_are_rejected(make):
    with pytest.raises(InvalidArgument):
        make()


def test_the_limits_themselves_are_allowed():
    for job in (
        NewJob(job_name="é" * 128),
        NewJob(delay=timedelta(days=30, milliseconds=999)),
        NewJob(run_at=datetime(1970, 1, 1)),
        NewJob(job_id="x", dedup_ttl=timedelta(milliseconds=1)),
        NewJob(retry=RetryPolicy(0, Backoff("fixed", 0))),
    ):
        assert next(flows().add(job))


def steps(flow: Any, reply_to: Any) -> list[Any]:
    """Run a flow with prepared replies and return its steps."""
    sent = []
    try:
        step = next(flow)
        while True:
            sent.append(step)
            reply = reply_to(step)
            step = flow.throw(reply) if isinstance(reply, Exception) else flow.send(reply)
    except StopIteration:
        return sent


def test_ten_thousand_immediate_and_delayed_jobs_are_one_pipeline():
    jobs = [NewJob(i, delay=SECOND if i % 2 else None) for i in range(10_000)]
    [pipeline] = steps(
        flows().add_many(jobs), lambda step: [[True] * _jobs(command) for command in step]
    )
    assert len(pipeline) == 40


def _jobs(command: Any) -> int:
    command = command.native if isinstance(command, DialectCommand) else command
    if command.script is None:
        return 1
    return (len(command.args) - (2 if command.script == "add" else 1)) // 4


def test_large_jobs_are_sent_in_several_steps():
    jobs = [NewJob("x" * 900_000) for _ in range(40)]
    sent = steps(flows().add_many(jobs), lambda step: [[True] * _jobs(command) for command in step])
    sizes = [sum(map(_size, step)) for step in sent]
    assert len(sent) > 1
    assert sum(sizes) > 40 * 900_000
    assert max(sizes) < 17 * 1024 * 1024


def _size(command: Any) -> int:
    """Return the number of bytes of a command."""
    command = command.native if isinstance(command, DialectCommand) else command
    return len(command.args if isinstance(command.args, bytes) else encode_command(command.args))


def test_an_event_that_cannot_be_written_does_not_fail_the_add():
    flow = flows(emit_enqueue_events=True).add(NewJob(1, job_id="x"))
    next(flow)
    event_command = flow.send([[True]])
    assert event_command.script == "emit"
    with pytest.raises(StopIteration) as done:
        flow.throw(ConnectionFailed("closed"))
    assert done.value.value == ("x", True)


@given(st.lists(st.integers(0, 50)), st.integers(1, 7), st.integers(1, 100))
def test_chunks_contain_every_item_and_respect_their_limits(items, max_items, max_bytes):
    chunks = list(chunked(items, lambda item: item, max_items, max_bytes))
    assert [item for chunk in chunks for item in chunk] == items
    assert all(chunks)
    assert all(len(chunk) <= max_items for chunk in chunks)
    assert all(sum(chunk) <= max_bytes or len(chunk) == 1 for chunk in chunks)
