"""Watchers fire events for messages. A message leaves the queue when its event is stored."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from types import SimpleNamespace

import pytest
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.messaging import get_messages, queue_not_empty_asset
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.triggers import messages as module
from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger
from airflow_provider_chasqui.triggers.queue_not_empty import ChasquiQueueNotEmptyTrigger
from tests.support.waiting import wait_until_async

STORED = AdvanceOutcome(acked=1, failed=0)
NOT_STORED = AdvanceOutcome(acked=0, failed=1)


def trigger(queue: Queue, **options) -> ChasquiMessageTrigger:
    defaults = {"max_wait": 0.1, "flush_after": 1.0, "claim_after": 2.0, "unmatched_grace": 0.0}
    return ChasquiMessageTrigger(queue_name=queue.name, **defaults | options)


class Reader:
    """Stand-in for Airflow: one shared reader, its watchers, and the outcome of each window."""

    def __init__(self, *watchers: ChasquiMessageTrigger):
        self.watchers = watchers
        _, kwargs = watchers[0].serialize()
        self.producer = type(watchers[0]).create_shared_stream_producer(kwargs)
        self.stream = self.producer.open_stream()

    async def next(self) -> tuple[object, list[dict]]:
        async with asyncio.timeout(10):
            raw, payload = await anext(self.stream)
        return payload, [
            event.payload
            for watcher in self.watchers
            async for event in watcher.filter_shared_stream(_once(raw))
        ]

    async def next_event(self) -> tuple[object, dict]:
        """Skip windows without events; return the next window and its event."""
        while True:
            window, events = await self.next()
            if events:
                (event,) = events
                return window, event

    async def advance(self, window: object, outcome: AdvanceOutcome) -> None:
        await self.producer.advance([AdvanceItem(window, outcome)])

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stream.aclose()
        await self.producer.aclose()


async def _once(raw):
    yield raw


async def _wait_until_acked(queue: Queue) -> None:
    await wait_until_async(lambda: queue.depth().running == 0, message="no message is pending")


def test_a_rebuilt_trigger_equals_the_original():
    first = ChasquiMessageTrigger(queue_name="q", filter={"name": "a"}, max_messages=5)
    path, kwargs = first.serialize()
    assert path == "airflow_provider_chasqui.triggers.messages.ChasquiMessageTrigger"
    assert ChasquiMessageTrigger(**kwargs).serialize() == (path, kwargs)
    second = ChasquiQueueNotEmptyTrigger(queue_name="q")
    assert ChasquiQueueNotEmptyTrigger(**second.serialize()[1]).serialize() == second.serialize()


def test_the_queue_of_the_triggerer_is_passed_to_airflow_and_not_serialized():
    for cls in (ChasquiMessageTrigger, ChasquiQueueNotEmptyTrigger):
        event_trigger = cls(queue_name="q", trigger_queue="messages")
        assert event_trigger.queue == "messages"
        assert "trigger_queue" not in event_trigger.serialize()[1]
        assert cls(queue_name="q").queue is None


def test_the_assets_of_different_queues_have_different_names():
    assets = [
        queue_not_empty_asset("orders"),
        queue_not_empty_asset("orders", chasqui_conn_id="warehouse"),
        queue_not_empty_asset("orders/eu"),
        queue_not_empty_asset("orders:eu"),
        queue_not_empty_asset("orders_eu"),
    ]
    assert len({asset.name for asset in assets}) == len({asset.uri for asset in assets}) == 5
    assert assets[0].name == "queue_not_empty_orders"


def test_the_durations_of_an_asset_may_be_text_or_seconds():
    (watcher,) = queue_not_empty_asset(
        "orders", lease_ttl="2h", interval=5, trigger_queue="messages"
    ).watchers
    arguments = watcher.trigger.serialize()[1]
    assert (arguments["lease_ttl"], arguments["interval"]) == (7200.0, 5.0)
    assert watcher.trigger.queue == "messages"


@pytest.mark.parametrize(
    "options",
    [
        {"filter": {"nope": 1}},
        {"on_unmatched": "?"},
        {"max_messages": 0},
        {"max_in_flight": 1},
        {"max_wait": -1},
        {"unmatched_grace": -1},
    ],
)
def test_invalid_settings_are_rejected(options):
    with pytest.raises(InvalidArgument):
        ChasquiMessageTrigger(queue_name="q", **options)


async def test_a_message_stays_until_its_event_is_stored(queue):
    queue.add({"n": 1}, job_name="order", job_id="one")
    async with Reader(trigger(queue)) as reader:
        window, event = await reader.next_event()
        (message,) = event["messages"]
        assert (message["id"], message["name"], message["payload"]) == ("one", "order", {"n": 1})
        assert queue.job_status("one").state == "running"
        await reader.advance(window, STORED)
        await _wait_until_acked(queue)
    assert queue.job_status("one").state == "done"


async def test_messages_of_an_event_that_was_not_stored_are_delivered_again(queue):
    queue.add("again", job_id="one")
    async with Reader(trigger(queue)) as reader:
        window, _ = await reader.next_event()
        await reader.advance(window, NOT_STORED)
        _, event = await reader.next_event()
        assert [message["id"] for message in event["messages"]] == ["one"]


async def test_the_next_reader_receives_the_messages_of_a_closed_one(queue):
    queue.add("precious", job_id="one")
    closed = Reader(trigger(queue))
    await closed.next_event()
    await closed.__aexit__()  # a regular close; tests/system kills a triggerer
    async with Reader(trigger(queue)) as reader:
        _, event = await reader.next_event()
        assert [message["id"] for message in event["messages"]] == ["one"]


async def test_watchers_share_a_reader_and_each_receives_matching_messages(queue):
    for name in ("order", "refund", "order", "noise"):
        queue.add({"is": name}, job_name=name)
    orders, refunds = (
        trigger(queue, filter={"name": "order"}),
        trigger(queue, filter={"name": "refund"}),
    )
    assert orders.shared_stream_key() == refunds.shared_stream_key()
    async with Reader(orders, refunds) as reader:
        events: list[dict] = []
        while not events:
            window, events = await reader.next()
        assert [len(event["messages"]) for event in events] == [2, 1]
        await reader.advance(window, AdvanceOutcome(acked=2, failed=0))
        await _wait_until_acked(queue)
    (dead_letter,) = queue.dead_letters()
    assert dead_letter.job_name == "noise"
    assert "no watcher" in dead_letter.error


async def test_a_message_waits_for_a_watcher_that_starts_a_little_later(queue):
    queue.add({"is": "refund"}, job_name="refund", job_id="one")
    first = trigger(queue, filter={"name": "order"}, unmatched_grace=60.0)
    second = trigger(queue, filter={"name": "refund"}, unmatched_grace=60.0)
    async with Reader(first) as reader:
        window, events = await reader.next()
        while not window.messages:
            window, events = await reader.next()
        assert events == []
        reader.watchers = (first, second)
        await reader.advance(window, STORED)
        window, event = await reader.next_event()
        assert [message["id"] for message in event["messages"]] == ["one"]
        assert event["messages"][0]["attempt"] == 1
        await reader.advance(window, STORED)
        await _wait_until_acked(queue)
    assert queue.depth().dead == 0


async def test_after_a_burst_an_event_without_messages_is_fired(queue):
    queue.add_many([{"payload": n} for n in range(6)])
    async with Reader(trigger(queue, max_messages=3)) as reader:
        for _ in range(2):
            window, event = await reader.next_event()
            assert len(event["messages"]) == 3
            await reader.advance(window, STORED)
        _, flush = await reader.next_event()
        assert flush["messages"] == []
        assert flush["flush"]
        _, events = await reader.next()
        assert events == []


async def test_a_window_too_large_for_an_event_is_stored_in_redis(queue):
    queue.add_many([{"payload": "x" * 5000, "job_id": f"big-{n}"} for n in range(30)])
    async with Reader(trigger(queue, max_wait=1.0)) as reader:
        window, event = await reader.next_event()
        assert len(event["entry_ids"]) == 30
        assert "messages" not in event
        await reader.advance(window, STORED)
        await _wait_until_acked(queue)
    context = {"triggering_asset_events": {"a": [SimpleNamespace(extra={"payload": event})]}}
    for _ in range(2):
        messages = await asyncio.to_thread(get_messages, context)
        assert [message["id"] for message in messages] == [f"big-{n}" for n in range(30)]


async def test_without_a_shared_reader_messages_are_acked_after_a_delay(queue, monkeypatch):
    monkeypatch.setattr(module, "_STORE_DELAY_S", 0.5)
    queue.add("one", job_id="one")
    async with aclosing(trigger(queue).run()) as events:
        event = await anext(events)
        assert [message["id"] for message in event.payload["messages"]] == ["one"]
        assert queue.job_status("one").state == "running"
        waiting = asyncio.ensure_future(anext(events))
        await wait_until_async(
            lambda: queue.job_status("one").state == "done", message="the message is acked"
        )
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_watcher_saves_its_status(queue):
    queue.add("one")
    async with Reader(trigger(queue)) as reader:
        await reader.next_event()
        status = queue.watcher_status()
        assert (status.pending, status.watcher.delivered) == (1, 1)
        assert status.watcher.last_delivered


async def test_the_queue_trigger_fires_while_messages_remain_and_reads_none(queue):
    queue_trigger = ChasquiQueueNotEmptyTrigger(queue_name=queue.name, interval=0.2)
    async with aclosing(queue_trigger.run()) as events:
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.3)
        assert not first.done()
        queue.add_many([{"payload": n} for n in range(3)])
        async with asyncio.timeout(10):
            assert (await first).payload["waiting"] == 3
            assert (await anext(events)).payload["waiting"] == 3
        queue.add("more")
        assert (await anext(events)).payload["waiting"] == 4
    assert queue.depth().waiting == 4


async def test_the_cli_shows_the_status_of_a_watcher(queue, connected):
    queue.add("one")
    async with Reader(trigger(queue)) as reader:
        await reader.next_event()
        args = ["watcher", queue.name, "--url", connected.url, "--json"]
        command = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "airflow_provider_chasqui.cli",
            *args,
            stdout=asyncio.subprocess.PIPE,
        )
        stdout, _ = await command.communicate()
    output = json.loads(stdout)
    assert (output["pending"], output["watcher"]["delivered"]) == (1, 1)
