"""The hook, the operators and the sensor in DAG runs, with Airflow's own machinery."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import RsmqQueueNotFound
from airflow_provider_chasqui.hooks.rsmq import RsmqHook
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.rsmq.client import RsmqClient
from airflow_provider_chasqui.triggers.rsmq import RsmqMessageTrigger
from tests.conftest import ONE_OF_EACH, Server
from tests.provider.conftest import Dags, airflow_db, connect, dags

__all__ = ["airflow_db", "dags"]

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(180)]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    connect(monkeypatch, server)
    return server


@pytest.fixture
def rsmq(connected: Server, namespace: str) -> Iterator[RsmqClient]:
    with RsmqClient(connected.url, namespace=namespace, realtime=True) as client:
        client.create_queue("q")
        yield client


@pytest.fixture
def queue(connected: Server, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, connected.url, dialect=connected.dialect) as queue:
        yield queue


@pytest.fixture
def house(dags: Callable[[Path], Dags], connected: Server) -> Dags:
    return dags(Path(__file__).parent / "dags")


def test_the_hook_supports_every_operation(connected: Server, namespace: str) -> None:
    with RsmqHook(namespace=namespace) as hook:
        client = hook.get_conn()
        assert client.create_queue("q", vt=10) == 1
        assert client.list_queues() == ["q"]
        first = client.send_message("q", "a")
        assert [message.id for message in client.peek_messages("q")] == [first]
        assert client.receive_message("q").id == first
        assert client.change_message_visibility("q", first, vt=0) == 1
        assert client.pop_message("q").rc == 2
        assert client.delete_message("q", first) == 0
        assert client.set_queue_attributes("q", delay=3).delay == 3
        assert client.get_queue_attributes("q").vt == 10
        assert client.delete_queue("q") == 1
        with pytest.raises(RsmqQueueNotFound):
            client.pop_message("q")
        assert hook.test_connection()[0] is True


@ONE_OF_EACH
def test_messages_move_to_chasqui_and_back(
    house: Dags, rsmq: RsmqClient, queue: Queue, namespace: str
) -> None:
    for n in range(7):
        rsmq.send_message("q", f'{{"n": {n}}}')
    run = house.run("rsmq_to_chasqui", queue=queue.name, namespace=namespace)
    expected = {"moved": 5, "dropped": 0, "duplicates": 0, "dead_lettered": 0, "unconverted": 0}
    assert run.xcom("move") == expected
    assert queue.depth().waiting == 5
    run = house.run("chasqui_to_rsmq", queue=queue.name, namespace=namespace)
    assert run.xcom("move")["moved"] == 5
    texts = [message.message for message in rsmq.peek_messages("q")]
    assert sorted(texts) == [f'{{"n": {n}}}' for n in range(7)]
    assert queue.depth().waiting == queue.depth().running == 0


@ONE_OF_EACH
@pytest.mark.parametrize("how", ["deferred", "here"])
def test_the_sensor_passes_messages_to_the_next_task(
    house: Dags, rsmq: RsmqClient, namespace: str, how: str
) -> None:
    def send() -> None:
        deadline = time.monotonic() + 60
        # The deferred task has subscribed to the channel; it would find an earlier message at once.
        while how == "deferred" and not listeners(rsmq, namespace):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        rsmq.send_message("q", "hello")

    sender = threading.Thread(target=send)
    sender.start()
    run = house.run(f"rsmq_wait_{how}", namespace=namespace)
    sender.join()
    assert run.state == "success"
    (message,) = run.xcom("wait")
    assert (message["message"], message["rc"]) == ("hello", 1)
    assert run.xcom("handle") == ["hello"]
    assert rsmq.get_queue_attributes("q").visiblemsgs == 0


def listeners(rsmq: RsmqClient, namespace: str) -> int:
    from airflow_provider_chasqui.core.command import as_raw, redis_command

    reply = rsmq.client.execute(
        redis_command("PUBSUB", "NUMSUB", f"{namespace}:rt:q", parse=as_raw)
    )
    return int(reply[1])


@ONE_OF_EACH
def test_a_sensor_of_a_missing_queue_fails(house: Dags, connected: Server, namespace: str) -> None:
    assert house.run("rsmq_wait_deferred", namespace=namespace).state == "failed"


async def fired(trigger: RsmqMessageTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("it did not fire")


async def test_the_trigger_wakes_for_realtime_and_for_delays(
    rsmq: RsmqClient, namespace: str
) -> None:
    """The poll interval is a minute, so only the channel or the due time can wake the trigger."""
    trigger = RsmqMessageTrigger(rsmq_queue_name="q", namespace=namespace, poll_interval=60)
    waiting = asyncio.create_task(fired(trigger))
    while not await asyncio.to_thread(listeners, rsmq, namespace):
        await asyncio.sleep(0.01)
    await asyncio.to_thread(rsmq.send_message, "q", "now")
    assert (await asyncio.wait_for(waiting, 10))["visible"] == 1
    await asyncio.to_thread(rsmq.pop_message, "q")
    await asyncio.to_thread(lambda: rsmq.send_message("q", "later", delay=1))
    assert (await asyncio.wait_for(fired(trigger), 10))["visible"] == 1


async def test_the_trigger_polls_without_realtime_messages(
    rsmq: RsmqClient, namespace: str, connected: Server
) -> None:
    trigger = RsmqMessageTrigger(rsmq_queue_name="q", namespace=namespace, poll_interval=0.2)
    waiting = asyncio.create_task(fired(trigger))
    while not await asyncio.to_thread(listeners, rsmq, namespace):
        await asyncio.sleep(0.01)
    with RsmqClient(connected.url, namespace=namespace) as quiet:
        await asyncio.to_thread(quiet.send_message, "q", "psst")
    assert (await asyncio.wait_for(waiting, 10))["visible"] == 1


async def test_the_trigger_reports_a_missing_queue(connected: Server, namespace: str) -> None:
    trigger = RsmqMessageTrigger(rsmq_queue_name="nope", namespace=namespace)
    assert (await asyncio.wait_for(fired(trigger), 10))["reason"] == "queueNotFound"
    kind, values = trigger.serialize()
    assert kind.endswith("RsmqMessageTrigger")
    assert RsmqMessageTrigger(**values).serialize() == (kind, values)
