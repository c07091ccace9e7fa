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
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger
from airflow_provider_chasqui.triggers.depth import ChasquiQueueDepthTrigger
from airflow_provider_chasqui.triggers.job import ChasquiJobTrigger
from tests.conftest import Server
from tests.provider.conftest import working
from tests.provider.test_event_follower import (
    connected_clients,
    finish,
    move_to_dlq,
    take,
)

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
    from airflow_provider_chasqui.triggers._waiting import load_poll_intervals

    ensure_secrets_backend_loaded()
    load_poll_intervals()


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


async def test_on_kill_cancels_delayed_jobs_of_the_batch(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch(range(3), delay=timedelta(hours=1))
    trigger = ChasquiBatchTrigger(
        queue_name=queue.name, batch_id=batch.batch_id, cancel_on_kill=True
    )
    await trigger.cleanup()
    assert queue.depth().delayed == 3
    await trigger.on_kill()
    assert queue.depth().delayed == 0
    assert queue.batch_progress(batch.batch_id).dead == 3


async def test_on_kill_cancels_waiting_jobs_of_the_batch(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch(range(100))
    trigger = ChasquiBatchTrigger(
        queue_name=queue.name, batch_id=batch.batch_id, cancel_on_kill=True
    )
    await trigger.on_kill()
    ran = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)

    with working(connected, queue.name, handle):
        event = await asyncio.wait_for(run_trigger(trigger), 20)
    assert event["dead"] + len(ran) == 100
    assert event["dead"] > 0
