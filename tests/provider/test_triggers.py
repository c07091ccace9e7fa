"""Triggers: rebuilt anywhere they are the same, and they never hold up the triggerer's loop."""

from __future__ import annotations

import asyncio
import json
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
from tests.provider.test_event_follower import _clients, bury, finish, take

TRIGGERS = [
    ChasquiJobTrigger(
        queue_name="q", job_id="batch:b:0:0", events_after="5-1", cancel_on_kill=True
    ),
    ChasquiBatchTrigger(queue_name="q", batch_id="b", max_failed=None, max_failed_ratio=0.1),
    ChasquiQueueDepthTrigger(queue_name="q", max_lag=5, max_dead=0, poll_interval=0.5),
]


@pytest.mark.parametrize("seed", ["0", "1"])
def test_triggers_rebuilt_in_another_process_are_the_same(seed: str) -> None:
    """Airflow stores them, another process rebuilds them; and may do so again."""
    from airflow.serialization.encoders import encode_trigger

    code = """
import json, sys
from importlib import import_module
for path, kwargs in json.loads(sys.argv[1]):
    module, _, name = path.rpartition(".")
    print("SAME " + json.dumps(getattr(import_module(module), name)(**kwargs).serialize()))
"""
    stored = [trigger.serialize() for trigger in TRIGGERS]
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(stored)],
        capture_output=True, text=True, check=True, timeout=60,
        env={"PYTHONHASHSEED": seed, "PATH": ""},
    )  # fmt: skip
    rebuilt = [line for line in done.stdout.splitlines() if line.startswith("SAME ")]
    assert rebuilt == [f"SAME {json.dumps(each)}" for each in stored]
    for trigger, (path, kwargs) in zip(TRIGGERS, stored, strict=True):
        again = encode_trigger({"classpath": path, "kwargs": kwargs})
        assert json.dumps(again) == json.dumps(encode_trigger(trigger))


@contextmanager
def loop_watched(most: float = 0.1) -> Iterator[None]:
    """Fail if the running event loop is held up for longer than `most` seconds.

    A thread asks the loop for a sign again and again; where none comes, it notes what runs. The
    time in which the loop wanted to run and the machine was busy otherwise does not count.
    """
    loop, owner, task = asyncio.get_running_loop(), threading.get_ident(), threading.get_native_id()
    ended, held_up = threading.Event(), []

    def starved() -> float:
        told = Path(f"/proc/self/task/{task}/schedstat").read_text().split()
        return int(told[1]) / 1e9

    def watch() -> None:
        while not ended.is_set():
            sign, asked, before, stack = threading.Event(), time.monotonic(), starved(), ""
            loop.call_soon_threadsafe(sign.set)
            if not sign.wait(most):
                stack = "".join(traceback.format_stack(sys._current_frames()[owner])[-8:])
                sign.wait(5)
            held = time.monotonic() - asked - (starved() - before)
            if held > most:
                held_up.append((held, stack))
            ended.wait(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
    assert not held_up, f"the loop was held up for {held_up[0][0]:.3f} s:\n{held_up[0][1]}"


async def test_the_detector_detects() -> None:
    async def hold_up() -> None:
        with loop_watched():
            await asyncio.sleep(0.05)
            time.sleep(0.3)  # noqa: ASYNC251
            await asyncio.sleep(0.05)

    with pytest.raises(AssertionError, match="held up"):
        await hold_up()


async def fired(trigger: Any) -> Any:
    async for event in trigger.run():
        return event.payload


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Lazy imports happen here: the detector is about waiting, not about them."""
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    import airflow_provider_chasqui.queue  # noqa: F401
    from airflow_provider_chasqui.triggers._waiting import load_poll_intervals

    ensure_secrets_backend_loaded()
    load_poll_intervals()


@pytest.mark.timeout(120)
async def test_a_thousand_triggers_in_one_loop(queue: Queue, connected: Server) -> None:
    """Two connections for all of them, every one answered, and no blocking call."""
    since = queue.last_event_id()
    ids = [next(queue.add_batch([n]).job_ids()) for n in range(1000)]
    before = _clients(queue)
    triggers = [
        ChasquiJobTrigger(queue_name=queue.name, job_id=each, events_after=since) for each in ids
    ]
    async with asyncio.TaskGroup() as group:
        with loop_watched(1.0):  # a thousand begin at the same moment
            tasks = [group.create_task(fired(trigger)) for trigger in triggers]
            most = 0
            entries = await asyncio.to_thread(take, queue, 2000)
            for entry in entries:
                await asyncio.to_thread(finish, queue, entry)
                most = max(most, _clients(queue)) if entry is entries[500] else most
            events = await asyncio.gather(*tasks)
    assert {event["status"] for event in events} == {"done"}
    assert [event["job_id"] for event in events] == ids
    assert most - before <= 2


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
    with working(connected, queue.name, handle, concurrency=20), loop_watched(0.25):
        events = await asyncio.wait_for(asyncio.gather(*map(fired, triggers)), 30)
    assert [event["status"] for event in events] == ["done", "finished", "below_limits"]


async def test_the_event_is_the_same_wherever_it_is_found(queue: Queue, connected: Server) -> None:
    """A triggerer that saw the event and one that only saw its traces tell the same."""
    since = queue.last_event_id()
    (good, bad) = queue.add_batch([1, 2]).job_ids()
    waits = [
        asyncio.create_task(
            fired(ChasquiJobTrigger(queue_name=queue.name, job_id=each, events_after=since))
        )
        for each in (good, bad)
    ]
    await asyncio.sleep(0.3)
    entries = take(queue)
    finish(queue, entries[0])
    bury(queue, entries[1])
    first = await asyncio.wait_for(asyncio.gather(*waits), 10)
    later = [
        await fired(ChasquiJobTrigger(queue_name=queue.name, job_id=each, events_after=since))
        for each in (good, bad)
    ]
    assert first == later


async def test_an_unknown_batch_is_told_as_an_error(queue: Queue, connected: Server) -> None:
    event = await fired(ChasquiBatchTrigger(queue_name=queue.name, batch_id="nothing"))
    assert (event["status"], event["kind"]) == ("error", "BatchNotFound")


async def test_a_kill_by_hand_cancels(queue: Queue, connected: Server) -> None:
    batch = queue.add_batch(range(3), delay=timedelta(hours=1))
    trigger = ChasquiBatchTrigger(
        queue_name=queue.name, batch_id=batch.batch_id, cancel_on_kill=True
    )
    await trigger.cleanup()
    assert queue.depth().delayed == 3
    await trigger.on_kill()
    assert queue.depth().delayed == 0
    assert queue.batch_progress(batch.batch_id).dead == 3


async def test_a_kill_by_hand_asks_workers_to_drop_what_waits(
    queue: Queue, connected: Server
) -> None:
    batch = queue.add_batch(range(100))
    trigger = ChasquiBatchTrigger(
        queue_name=queue.name, batch_id=batch.batch_id, cancel_on_kill=True
    )
    await trigger.on_kill()
    ran = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)

    with working(connected, queue.name, handle):
        event = await asyncio.wait_for(fired(trigger), 20)
    assert event["dead"] + len(ran) == 100
    assert event["dead"] > 0
