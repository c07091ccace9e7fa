"""The status of a watcher, and the trigger as a provider of `common.messaging`."""

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
async def test_the_hook_and_the_cli_report_the_status_of_a_watcher(
    connected: Server, queue: Queue
) -> None:
    def run_cli() -> dict:
        process = subprocess.run(
            [sys.executable, "-m", "airflow_provider_chasqui.cli", "watcher", queue.name, "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=80,
            env=os.environ | {"CHASQUI_URL": connected.url},
        )
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout)

    assert (await asyncio.to_thread(run_cli))["watcher"] is None
    queue.add_many([{"payload": n} for n in range(3)])
    async with Reader(trigger(queue, max_messages=2, max_in_flight=2)) as reader:
        window, event = await reader.next_event()
        output = await asyncio.to_thread(run_cli)
        assert output["watcher"]["last_delivered"] == event["messages"][-1]["entry_id"]
        assert (output["watcher"]["delivered"], output["watcher"]["last_error"]) == (2, None)
        assert (output["pending"], output["lag"]) == (2, 1)
        with ChasquiHook() as hook:
            status = await asyncio.to_thread(hook.queue(queue.name).watcher_status)
        assert (status.group, status.pending, status.lag) == ("default", 2, 1)
        await reader.advance(window, STORED)


def test_common_messaging_creates_a_chasqui_trigger() -> None:
    generic = MessageQueueTrigger(scheme="chasqui", queue_name="orders", filter={"name": "order"})
    specific = ChasquiMessageTrigger(queue_name="orders", filter={"name": "order"})
    assert type(generic.trigger) is ChasquiMessageTrigger
    # Airflow stores and rebuilds the trigger, and finds its shared reader, by this form.
    assert generic.serialize() == specific.serialize()
    with pytest.raises(InvalidArgument):
        MessageQueueTrigger(scheme="chasqui", queue_name="orders", filter={"nope": 1}).serialize()
