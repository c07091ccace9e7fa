"""ChasquiMessageTrigger: messages of a queue start DAG runs, and none is lost.

watcher = AssetWatcher("orders", trigger=ChasquiMessageTrigger(queue_name="orders"))
with DAG("on_order", schedule=[Asset("orders", watchers=[watcher])]):
    ...
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.message_filter import check_filter, matches
from airflow_provider_chasqui.hooks._stats import triggerer_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.triggers._base import DataclassTrigger
from airflow_provider_chasqui.triggers._message_windows import MessageWindow, MessageWindowReader

# Without ack mode we cannot see when Airflow has stored an event; this is long after it does.
_STORE_DELAY_S = 10.0


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiMessageTrigger(DataclassTrigger, BaseEventTrigger):
    """Fires an event for each window of messages: `max_messages` of them, or `max_wait` seconds long.

    On Airflow 3.3 and later a message leaves the queue only after its event is stored, and all
    watchers of a queue share one reader, whose window settings are those of the watcher that came
    first; each sees all messages and takes those that fit `filter`. A message that no watcher wants
    becomes a letter (`on_unmatched="drop"` drops it instead), but not in the first `unmatched_grace`
    seconds of the reader, in which other watchers may still come. Before 3.3 every watcher reads
    for itself, so give a queue one watcher; messages then leave the queue some seconds after the
    event.

    Airflow starts no run for an event that comes while another is waiting to be noticed: such
    events ride along with the next one. So after a burst, when nothing came for `flush_after`
    seconds, an event without messages is fired, whose run takes what was left.
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

    def __post_init__(self) -> None:
        BaseEventTrigger.__init__(self)
        check_filter(self.filter)
        if self.on_unmatched not in ("dead_letter", "drop"):
            raise InvalidArgument("on_unmatched= is 'dead_letter' or 'drop'")
        if self.max_messages < 1 or self.max_in_flight < self.max_messages:
            raise InvalidArgument("max_messages= is at least 1 and max_in_flight= at least as much")
        if self.unmatched_grace < 0:
            raise InvalidArgument("unmatched_grace= is seconds, 0 or more")
        if self.max_wait < 0 or self.flush_after <= 0 or self.claim_after <= 0:
            raise InvalidArgument("max_wait=, flush_after= and claim_after= are seconds, above 0")
        self._events_fired = 0

    def shared_stream_key(self) -> Hashable:
        return ("chasqui", self.chasqui_conn_id, self.queue_name)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._shared_stream import MessageWindowProducer

        return MessageWindowProducer(cls(**kwargs).create_reader())

    def create_reader(self) -> MessageWindowReader:
        """The messages of the queue, as this trigger wants them grouped."""
        return MessageWindowReader(
            self.chasqui_conn_id, self.queue_name, self.max_messages, self.max_wait,
            self.flush_after, self.max_in_flight, self.claim_after, self.on_unmatched == "dead_letter",
            self.unmatched_grace,
        )  # fmt: skip

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for window in shared_stream:
            event = self._build_event(window)
            if event is not None:
                yield event

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The same without the shared stream: for Airflow before 3.3 and for `dags test`."""
        windows = self.create_reader()
        fired: deque[tuple[float, MessageWindow]] = deque()
        clock = asyncio.get_running_loop().time
        try:
            async with contextlib.aclosing(windows.read()) as stream:
                async for window in stream:
                    event = self._build_event(window)
                    if event is not None:
                        yield event
                    fired.append((clock() + _STORE_DELAY_S, window))
                    while fired and fired[0][0] <= clock():
                        windows.on_stored(fired.popleft()[1])
        finally:
            await windows.close()

    def _build_event(self, window: MessageWindow) -> TriggerEvent | None:
        if not window.messages:
            if self._events_fired < 2:  # one event alone is never passed over
                return None
            self._events_fired = 0
            return TriggerEvent({"queue_name": self.queue_name, "messages": [], "flush": True})
        mine = [message for message in window.json_messages if matches(self.filter, message)]
        if not mine:
            return None
        window.matched_ids.update(message["entry_id"] for message in mine)
        self._events_fired += 1
        triggerer_stats.incr("watcher_events", 1, self.queue_name)
        triggerer_stats.incr("watcher_messages", len(mine), self.queue_name)
        return TriggerEvent(window.event_payload(self.queue_name, mine))
