"""How a watcher is doing, and the same trigger by the name that common messaging gives it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger
from tests.conftest import Server
from tests.messages.test_watchers import STORED, Reader, trigger


@pytest.mark.timeout(180)
async def test_the_hook_and_the_command_tell_of_a_watcher(connected: Server, queue: Queue) -> None:
    def asked() -> dict:
        done = subprocess.run(
            [sys.executable, "-m", "airflow_provider_chasqui.cli", "watcher", queue.name, "--json"],
            capture_output=True, text=True, check=False, timeout=80,
            env=os.environ | {"CHASQUI_URL": connected.url},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert (await asyncio.to_thread(asked))["watcher"] is None
    queue.add_many([{"payload": n} for n in range(3)])
    async with Reader(trigger(queue, max_messages=2, max_in_flight=2)) as reader:
        window, event = await reader.next_event()
        found = await asyncio.to_thread(asked)
        assert found["watcher"]["last_delivered"] == event["messages"][-1]["entry_id"]
        assert (found["watcher"]["delivered"], found["watcher"]["last_error"]) == (2, None)
        assert (found["pending"], found["lag"]) == (2, 1)
        with ChasquiHook() as hook:
            status = await asyncio.to_thread(hook.queue(queue.name).watcher_status)
        assert (status.group, status.pending, status.lag) == ("default", 2, 1)
        await reader.advance(window, STORED)


def test_common_messaging_gives_our_trigger() -> None:
    theirs = MessageQueueTrigger(scheme="chasqui", queue_name="orders", filter={"name": "order"})
    ours = ChasquiMessageTrigger(queue_name="orders", filter={"name": "order"})
    assert type(theirs.trigger) is ChasquiMessageTrigger
    # What Airflow stores, rebuilds and shares by is ours.
    assert theirs.serialize() == ours.serialize()
    with pytest.raises(InvalidArgument):
        MessageQueueTrigger(scheme="chasqui", queue_name="orders", filter={"nope": 1}).serialize()
