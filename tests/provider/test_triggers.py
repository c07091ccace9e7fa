"""Triggers can be rebuilt in another process and never block the event loop of the triggerer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.errors import BatchFailed, BatchNotFound, JobFailed
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.triggers import _waiting
from airflow_provider_chasqui.triggers._base import is_deferred, run_to_end
from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger
from airflow_provider_chasqui.triggers.depth import ChasquiQueueDepthTrigger
from airflow_provider_chasqui.triggers.job import ChasquiJobTrigger
from tests.conftest import Server
from tests.provider.conftest import working
from tests.provider.test_wait_registry import connected_clients
from tests.support.manual_worker import finish, move_to_dlq, take
from tests.support.waiting import wait_until_async

TRIGGERS = [
    ChasquiJobTrigger(
        queue_name="q", job_id="batch:b:0:0", events_after="5-1", cancel_on_kill=True
    ),
    ChasquiBatchTrigger(queue_name="q", batch_id="b", max_failed=None, max_failed_ratio=0.1),
    ChasquiQueueDepthTrigger(queue_name="q", max_lag=5, max_dead=0, poll_interval=0.5),
]


@pytest.mark.parametrize("seed", ["0", "1"])
def test_triggers_rebuilt_in_another_process_equal_the_originals(seed: str) -> None:
    """Airflow stores triggers, and another process rebuilds and stores them again."""
    from airflow.serialization.encoders import encode_trigger

    code = """
import json, sys
from importlib import import_module
for path, kwargs in json.loads(sys.argv[1]):
    module, _, name = path.rpartition(".")
    print("REBUILT " + json.dumps(getattr(import_module(module), name)(**kwargs).serialize()))
"""
    stored = [trigger.serialize() for trigger in TRIGGERS]
    process = subprocess.run(
        [sys.executable, "-c", code, json.dumps(stored)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    rebuilt = [line for line in process.stdout.splitlines() if line.startswith("REBUILT ")]
    assert rebuilt == [f"REBUILT {json.dumps(serialized)}" for serialized in stored]
    for trigger, (path, kwargs) in zip(TRIGGERS, stored, strict=True):
        encoded = encode_trigger({"classpath": path, "kwargs": kwargs})
        assert json.dumps(encoded) == json.dumps(encode_trigger(trigger))


@contextmanager
def detect_blocking(limit: float = 0.1) -> Iterator[None]:
    """Fail if a call blocks the running event loop for more than `limit` seconds.

    A thread repeatedly schedules a callback in the loop. If it is late, the thread records
    the stack of the loop. Time in which the loop was ready but had no CPU does not count.
    """
    loop = asyncio.get_running_loop()
    loop_thread, native_thread = threading.get_ident(), threading.get_native_id()
    stopped, blocked = threading.Event(), []

    def seconds_without_cpu() -> float:
        schedstat = Path(f"/proc/self/task/{native_thread}/schedstat").read_text().split()
        return int(schedstat[1]) / 1e9

    def watch() -> None:
        while not stopped.is_set():
            called, stack = threading.Event(), ""
            scheduled_at, without_cpu = time.monotonic(), seconds_without_cpu()
            loop.call_soon_threadsafe(called.set)
            if not called.wait(limit):
                stack = "".join(traceback.format_stack(sys._current_frames()[loop_thread])[-8:])
                called.wait(5)
            delay = time.monotonic() - scheduled_at - (seconds_without_cpu() - without_cpu)
            if delay > limit:
                blocked.append((delay, stack))
            stopped.wait(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
    assert not blocked, f"the event loop was blocked for {blocked[0][0]:.3f} s:\n{blocked[0][1]}"


async def test_the_blocking_call_detector_detects() -> None:
    async def block() -> None:
        with detect_blocking():
            await asyncio.sleep(0.05)
            time.sleep(0.3)  # noqa: ASYNC251
            await asyncio.sleep(0.05)

    with pytest.raises(AssertionError, match="blocked"):
        await block()


async def run_trigger(trigger: Any) -> Any:
    """Return the payload of the first event."""
    async for event in trigger.run():
        return event.payload


@pytest.fixture(scope="module", autouse=True)
def preload_modules() -> None:
    """Run lazy imports before the tests, so that they do not count as blocking calls."""
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    import airflow_provider_chasqui.queue  # noqa: F401
    from airflow_provider_chasqui.triggers._waiting import load_wait_intervals

    ensure_secrets_backend_loaded()
    load_wait_intervals()


@pytest.mark.timeout(120)
async def test_a_thousand_triggers_in_one_loop(queue: Queue, connected: Server) -> None:
    """They share two connections, each one fires, and no call blocks the loop."""
    events_after = queue.last_event_id()
    job_ids = [next(queue.add_batch([n]).job_ids()) for n in range(1000)]
    clients_before = connected_clients(queue)
    triggers = [
        ChasquiJobTrigger(queue_name=queue.name, job_id=job_id, events_after=events_after)
        for job_id in job_ids
    ]
    async with asyncio.TaskGroup() as group:
        with detect_blocking(1.0):  # the start of a thousand triggers takes a while
            tasks = [group.create_task(run_trigger(trigger)) for trigger in triggers]
            entries = await asyncio.to_thread(take, queue, 2000)
            for entry in entries[:500]:
                await asyncio.to_thread(finish, queue, entry)
            clients_during = connected_clients(queue)
            for entry in entries[500:]:
                await asyncio.to_thread(finish, queue, entry)
            events = await asyncio.gather(*tasks)
    assert {event["status"] for event in events} == {"done"}
    assert [event["job_id"] for event in events] == job_ids
    assert clients_during - clients_before <= 2


async def test_no_blocking_call_while_waiting(queue: Queue, connected: Server) -> None:
    queue.add_many([{"payload": n} for n in range(200)])
    batch = queue.add_batch(range(300))

    async def handle(job: Any) -> None:
        await asyncio.sleep(0.001)

    triggers = [
        ChasquiJobTrigger(queue_name=queue.name, job_id=next(batch.job_ids())),
        ChasquiBatchTrigger(queue_name=queue.name, batch_id=batch.batch_id),
        ChasquiQueueDepthTrigger(queue_name=queue.name, max_waiting=0, poll_interval=0.1),
    ]
    with working(connected, queue.name, handle, concurrency=20), detect_blocking(0.25):
        events = await asyncio.wait_for(asyncio.gather(*map(run_trigger, triggers)), 30)
    assert [event["status"] for event in events] == ["done", "finished", "below_limits"]


async def test_the_event_is_the_same_during_and_after_the_end_of_a_job(
    queue: Queue, connected: Server
) -> None:
    """A trigger that runs during the event and one that starts later return the same payload."""
    events_after = queue.last_event_id()
    triggers = [
        ChasquiJobTrigger(queue_name=queue.name, job_id=job_id, events_after=events_after)
        for job_id in queue.add_batch([1, 2]).job_ids()
    ]
    waits = [asyncio.create_task(run_trigger(trigger)) for trigger in triggers]
    await asyncio.sleep(0.3)
    entries = take(queue)
    finish(queue, entries[0])
    move_to_dlq(queue, entries[1])
    during = await asyncio.wait_for(asyncio.gather(*waits), 10)
    later = [await run_trigger(trigger) for trigger in triggers]
    assert during == later


async def test_an_unknown_batch_fires_an_error_event(queue: Queue, connected: Server) -> None:
    event = await run_trigger(ChasquiBatchTrigger(queue_name=queue.name, batch_id="nothing"))
    assert (event["status"], event["kind"]) == ("error", "BatchNotFound")
    with pytest.raises(BatchNotFound):
        ChasquiBatchTrigger.check_event(event)


async def test_the_event_of_a_trigger_is_checked_in_the_task(
    queue: Queue, connected: Server
) -> None:
    batch = queue.add_batch(range(2))
    first, second = take(queue)
    finish(queue, first)
    move_to_dlq(queue, second)
    event = await run_trigger(
        ChasquiBatchTrigger(queue_name=queue.name, batch_id=batch.batch_id, max_failed=1)
    )
    assert ChasquiBatchTrigger.check_event(event, max_failed=1)["done"] == 1
    with pytest.raises(BatchFailed):
        ChasquiBatchTrigger.check_event(event)
    events = [
        await run_trigger(ChasquiJobTrigger(queue_name=queue.name, job_id=job_id))
        for job_id in batch.job_ids()
    ]
    ChasquiJobTrigger.check_event(events[0])
    with pytest.raises(JobFailed):
        ChasquiJobTrigger.check_event(events[1])


async def test_by_default_on_kill_cancels_nothing(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch(range(3))
    await ChasquiBatchTrigger(queue_name=queue.name, batch_id=batch.batch_id).on_kill()
    (job_id, *_) = batch.job_ids()
    await ChasquiJobTrigger(queue_name=queue.name, job_id=job_id).on_kill()
    assert not queue.batch_progress(batch.batch_id).cancelled
    assert queue.job_status(job_id).state == "waiting"


async def test_on_kill_cancels_the_batch_if_that_was_requested(
    queue: Queue, connected: Server
) -> None:
    batch = queue.add_batch(range(100))
    trigger = ChasquiBatchTrigger(
        queue_name=queue.name, batch_id=batch.batch_id, cancel_on_kill=True
    )
    await trigger.cleanup()
    assert not queue.batch_progress(batch.batch_id).cancelled
    await trigger.on_kill()
    ran = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)

    with working(connected, queue.name, handle):
        event = await asyncio.wait_for(run_trigger(trigger), 20)
    assert (event["status"], event["kind"]) == ("error", "BatchCancelled")
    assert (event["total"], event["dead"]) == (100, 0)
    assert ran == []


@pytest.mark.parametrize("trigger_class", [ChasquiBatchTrigger, ChasquiJobTrigger])
async def test_on_kill_of_an_earlier_try_cancels_nothing(
    queue: Queue, connected: Server, trigger_class: Any
) -> None:
    """The next try has attached itself to the batch, so that the cancel is refused."""
    batch = queue.add_batch([1], owner="try 1")
    subject = (
        {"batch_id": batch.batch_id}
        if trigger_class is ChasquiBatchTrigger
        else {"job_id": next(batch.job_ids())}
    )
    triggers = [
        trigger_class(queue_name=queue.name, cancel_on_kill=True, owner=owner, **subject)
        for owner in ("try 1", "try 2")
    ]
    queue.attach_batch(batch.batch_id, "try 2")
    await triggers[0].on_kill()
    assert not queue.batch_progress(batch.batch_id).cancelled
    await triggers[1].on_kill()
    assert queue.batch_progress(batch.batch_id).cancelled


@pytest.mark.parametrize(
    ("states", "map_index", "deferred"),
    [
        ({"r": {"t": "deferred"}}, -1, True),
        ({"r": {"t": "deferred"}}, None, True),
        ({"r": {"t": "failed"}}, -1, False),
        ({"r": {"t": None}}, -1, False),
        ({}, -1, False),
        ({"r": {"t_3": "deferred", "t_4": "success"}}, 3, True),
        ({"r": {"t_3": "deferred", "t_4": "success"}}, 4, False),
    ],
)
def test_a_trigger_that_moved_to_another_triggerer_was_not_killed(
    states: dict[str, Any], map_index: int | None, deferred: bool
) -> None:
    """Its task instance is still deferred (apache/airflow#73454)."""
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=map_index)
    assert is_deferred(states, ti) is deferred


@pytest.mark.parametrize("cls", [ChasquiBatchTrigger, ChasquiJobTrigger, ChasquiQueueDepthTrigger])
def test_airflow_passes_the_queue_of_the_task_to_the_triggerer(cls: Any) -> None:
    """With `[triggerer] queues_enabled`, Airflow selects the triggerer by the task's queue."""
    assert getattr(cls, "supports_triggerer_queue", True)


async def test_a_wait_for_something_that_does_not_exist_yet(
    queue: Queue, connected: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CHASQUI__POLL_INTERVAL", "0.2")
    monkeypatch.setenv("AIRFLOW__CHASQUI__FIRST_SCAN_DELAY", "0.2")
    triggers = [
        ChasquiBatchTrigger(queue_name=queue.name, batch_id="later", must_exist=False),
        ChasquiJobTrigger(queue_name=queue.name, job_id="batch:later:0:0", must_exist=False),
        ChasquiJobTrigger(queue_name=queue.name, job_id="later", must_exist=False),
    ]
    waits = [asyncio.create_task(run_trigger(trigger)) for trigger in triggers]
    done, _ = await asyncio.wait(waits, timeout=2)
    assert not done
    queue.add_batch([1], batch_id="later")
    queue.add(1, job_id="later")
    for entry in take(queue):
        finish(queue, entry)
    events = await asyncio.wait_for(asyncio.gather(*waits), 20)
    assert [event["status"] for event in events] == ["finished", "done", "done"]


async def test_a_timeout_event_explains_itself(queue: Queue, connected: Server) -> None:
    """It contains the state of the job or the batch and the reason why nothing happens."""
    batch = queue.add_batch(range(3))
    queue.add(1, job_id="j")
    queue.client.execute(redis_command("SET", f"{queue.keys.hash_tag}:paused", "1", parse=as_raw))
    common: dict[str, Any] = {"queue_name": queue.name, "deadline": time.time() + 1}
    batch_event, job_event, depth_event = await asyncio.wait_for(
        asyncio.gather(
            run_trigger(ChasquiBatchTrigger(batch_id=batch.batch_id, **common)),
            run_trigger(ChasquiJobTrigger(job_id="j", **common)),
            run_trigger(ChasquiQueueDepthTrigger(max_waiting=0, poll_interval=0.2, **common)),
        ),
        20,
    )
    for event in (batch_event, job_event, depth_event):
        assert (event["status"], event["kind"]) == ("error", "WaitTimeout")
    assert "0 done and 0 dead of 3" in batch_event["message"]
    assert (batch_event["total"], batch_event["done"]) == (3, 0)
    assert "its state is waiting" in job_event["message"]
    for event in (batch_event, job_event):
        assert f"the queue {queue.name!r} is paused" in event["message"]
        assert f"no worker consumes the queue {queue.name!r}" in event["message"]
    assert "4 waiting (at most 0)" in depth_event["message"]


async def test_the_log_of_a_wait_tells_what_delays_it(
    queue: Queue, connected: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = queue.add_batch(range(2), retry=RetryPolicy(max_attempts=50))
    lines: list[str] = []

    def log(text: str, *args: object) -> None:
        lines.append(text % args)

    monkeypatch.setattr(_waiting, "_FIRST_EXPLANATION_DELAY", 0.3)
    source = _waiting.QueueSource("chasqui_default", queue.name)
    limit = _waiting.FailureLimit()
    wait = asyncio.create_task(_waiting.wait_batch(source, batch.batch_id, "0-0", limit, log, 0.3))
    text = f"no worker consumes the queue {queue.name!r}"
    await wait_until_async(lambda: any(text in line for line in lines), message=text)
    assert lines[0] == f"0 of 2 finished (0%), 0 dead: batch {batch.batch_id}"

    async def handle(job: Any) -> None:
        raise ValueError("no such address")

    def logged_failure() -> bool:
        return any("failed, the last with" in line and "no such address" in line for line in lines)

    with working(connected, queue.name, handle):
        await wait_until_async(logged_failure, message="the failed attempts are logged")
    wait.cancel()


async def test_work_of_on_kill_ends_although_airflow_cancels_the_trigger_again() -> None:
    steps = []

    async def work() -> None:
        steps.append("begin")
        await asyncio.sleep(0.2)
        steps.append("end")

    task = asyncio.create_task(run_to_end(work()))
    for _ in range(3):
        await asyncio.sleep(0.02)
        task.cancel("the trigger is cancelled again")
    await task
    assert steps == ["begin", "end"]
