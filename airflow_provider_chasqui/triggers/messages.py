"""Trigger that starts DAG runs with the messages of a queue, without losing any.

watcher = AssetWatcher("orders", trigger=ChasquiMessageTrigger(queue_name="orders"))
with DAG("on_order", schedule=[Asset("orders", watchers=[watcher])]):
    ...
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_chasqui.core.message_filter import check_filter, matches
from airflow_provider_chasqui.core.validation import require_choice, require_int
from airflow_provider_chasqui.hooks._stats import triggerer_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.triggers._base import DataclassTrigger, require_seconds
from airflow_provider_chasqui.triggers._message_windows import MessageWindow, MessageWindowReader

# Without a shared reader Airflow does not report that it has stored an event. It needs much less.
_STORE_DELAY_S = 10.0


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiMessageTrigger(DataclassTrigger, BaseEventTrigger):
    """Trigger that fires an event for each window of messages.

    A message leaves the queue only after its event is stored. All watchers of a queue share one
    reader, which uses the window settings of the watcher that started first. Each watcher receives
    all messages and fires events for those that match its `filter`.

    Airflow starts no run for an event that arrives while an earlier one is not yet processed. Such
    events are part of the next run. Therefore, if no message arrives for `flush_after` seconds
    after several events, the trigger fires an event without messages, whose run receives the
    remaining messages.

    :param queue_name: the name of the queue.
    :param filter: paths and the values that a message must have there, e.g. `{"name": "order"}`;
        None, the default, matches all messages.
    :param max_messages: the maximum number of messages per event, 100 by default.
    :param max_wait: seconds from the first message of a window to its event, 1 by default.
    :param on_unmatched: what happens to a message that matches no watcher: `dead_letter`, the
        default, moves it to the DLQ and `drop` deletes it.
    :param unmatched_grace: seconds after the start of the reader in which unmatched messages are
        delivered again instead, because other watchers may still start; 30 by default.
    :param flush_after: seconds without a message until the event without messages, 20 by default.
    :param max_in_flight: the maximum number of messages whose event is not stored, 1000 by default.
    :param claim_after: seconds after which the messages of a dead reader are delivered again, 30 by
        default.
    :param chasqui_conn_id: the id of the Airflow connection.
    :param trigger_queue: the queue of the triggerer that runs this trigger. Airflow 3.3 ignores the
        queue of event triggers. Default: None.
    :raises InvalidArgument: if a value is out of range.
    """

    queue_name: str
    filter: dict[str, Any] | None = None
    max_messages: int = 100
    max_wait: float = 1.0
    on_unmatched: str = "dead_letter"
    unmatched_grace: float = 30.0
    flush_after: float = 20.0
    max_in_flight: int = 1000
    claim_after: float = 30.0
    chasqui_conn_id: str = DEFAULT_CONN_ID
    trigger_queue: InitVar[str | None] = None

    def __post_init__(self, trigger_queue: str | None) -> None:
        BaseEventTrigger.__init__(self)
        self.queue = trigger_queue
        check_filter(self.filter)
        require_choice("on_unmatched", self.on_unmatched, ("dead_letter", "drop"))
        require_int("max_messages", self.max_messages, 1)
        require_int("max_in_flight", self.max_in_flight, self.max_messages)
        require_seconds("max_wait", self.max_wait, allow_zero=True)
        require_seconds("unmatched_grace", self.unmatched_grace, allow_zero=True)
        require_seconds("flush_after", self.flush_after)
        require_seconds("claim_after", self.claim_after)
        self._events_fired = 0

    def shared_stream_key(self) -> Hashable:
        """Return the key of the reader that watchers of the same queue share."""
        return ("chasqui", self.chasqui_conn_id, self.queue_name)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
        """Return the shared reader.

        :param kwargs: the constructor arguments of the watcher that started first.
        """
        return MessageWindowProducer(cls(**kwargs).create_reader())

    def create_reader(self) -> MessageWindowReader:
        """Return a reader of the queue with the window settings of this trigger."""
        return MessageWindowReader(
            self.chasqui_conn_id,
            self.queue_name,
            max_messages=self.max_messages,
            max_wait=self.max_wait,
            idle_timeout=self.flush_after,
            max_in_flight=self.max_in_flight,
            claim_after=self.claim_after,
            reject_unmatched=self.on_unmatched == "dead_letter",
            unmatched_grace=self.unmatched_grace,
        )

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each window of the shared reader that has matching messages.

        :param shared_stream: the windows.
        """
        async for window in shared_stream:
            event = self._build_event(window)
            if event is not None:
                yield event

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield events without a shared reader. Messages leave the queue ten seconds after them.

        Airflow calls this only if it cannot use a shared reader.
        """
        reader = self.create_reader()
        unacked: deque[tuple[float, MessageWindow]] = deque()
        clock = asyncio.get_running_loop().time
        try:
            async with contextlib.aclosing(reader.read()) as windows:
                async for window in windows:
                    event = self._build_event(window)
                    if event is not None:
                        yield event
                    unacked.append((clock() + _STORE_DELAY_S, window))
                    while unacked and unacked[0][0] <= clock():
                        _, stored_window = unacked.popleft()
                        reader.on_stored(stored_window)
        finally:
            await reader.close()

    def _build_event(self, window: MessageWindow) -> TriggerEvent | None:
        if not window.messages:
            if self._events_fired < 2:  # Airflow always starts a run for a single event
                return None
            self._events_fired = 0
            return TriggerEvent({"queue_name": self.queue_name, "messages": [], "flush": True})
        matching = [message for message in window.json_messages if matches(self.filter, message)]
        if not matching:
            return None
        window.matched_ids.update(message["entry_id"] for message in matching)
        self._events_fired += 1
        triggerer_stats.incr("watcher_events", 1, self.queue_name)
        triggerer_stats.incr("watcher_messages", len(matching), self.queue_name)
        return TriggerEvent(window.event_payload(self.queue_name, matching))


class MessageWindowProducer(SharedStreamProducer):
    """Shared stream whose messages leave the queue after Airflow has stored their event.

    The number of pending messages is bounded, so a slow database slows the reader down.

    :param reader: the reader of the queue.
    """

    def __init__(self, reader: MessageWindowReader):
        self._reader = reader

    async def open_stream(self) -> AsyncIterator[tuple[MessageWindow, MessageWindow]]:
        """Yield each window as the item for the watchers and as the payload for `advance`."""
        async with contextlib.aclosing(self._reader.read()) as windows:
            async for window in windows:
                yield window, window

    def get_advance_lane(self, broker_payload: MessageWindow) -> Hashable:
        """Return a lane per window, because windows are completed in any order."""
        return id(broker_payload)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Complete the windows whose events Airflow has stored, and retry the other ones."""
        for window, outcome in batch:
            if outcome.acked and not outcome.failed:
                self._reader.on_stored(window)
            else:
                self._reader.on_failed(window)

    async def aclose(self) -> None:
        await self._reader.close()
