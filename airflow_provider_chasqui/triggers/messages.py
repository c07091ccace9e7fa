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

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.match import check_match, matches
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.hooks.stats import in_triggerer
from airflow_provider_chasqui.triggers.declared import DeclaredTrigger
from airflow_provider_chasqui.triggers.window import Window, Windows

# Without ack mode we cannot see when Airflow has stored an event; this is long after it does.
_STORED_AFTER_S = 10.0


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiMessageTrigger(DeclaredTrigger, BaseEventTrigger):
    """Fires an event for each window of messages: `max_batch` of them, or `max_wait` seconds long.

    On Airflow 3.3 and later a message leaves the queue only after its event is stored, and all
    watchers of a queue share one reader, whose window settings are those of the watcher that came
    first; each sees all messages and takes those that fit `match`. A message that no watcher wants
    becomes a letter (`unmatched="accept"` drops it instead), but not in the first `unmatched_after`
    seconds of the reader, in which other watchers may still come. Before 3.3 every watcher reads
    for itself, so give a queue one watcher; messages then leave the queue some seconds after the
    event.

    Airflow starts no run for an event that comes while another is waiting to be noticed: such
    events ride along with the next one. So after a burst, when nothing came for `sweep_after`
    seconds, an event without messages is fired, whose run takes what was left.
    """

    queue_name: str
    match: dict[str, Any] | None = None
    max_batch: int = 100
    max_wait: float = 1.0
    unmatched: str = "reject"
    unmatched_after: float = 30.0
    sweep_after: float = 20.0
    hold: int = 1000
    claim_idle: float = 30.0
    chasqui_conn_id: str = DEFAULT_CONN_ID

    def __post_init__(self) -> None:
        BaseEventTrigger.__init__(self)
        check_match(self.match)
        if self.unmatched not in ("reject", "accept"):
            raise BadInput("unmatched= is 'reject' or 'accept'")
        if self.max_batch < 1 or self.hold < self.max_batch:
            raise BadInput("max_batch= is at least 1 and hold= at least as much")
        if self.unmatched_after < 0:
            raise BadInput("unmatched_after= is seconds, 0 or more")
        if self.max_wait < 0 or self.sweep_after <= 0 or self.claim_idle <= 0:
            raise BadInput("max_wait=, sweep_after= and claim_idle= are seconds, above 0")
        self._fired = 0

    def shared_stream_key(self) -> Hashable:
        return ("chasqui", self.chasqui_conn_id, self.queue_name)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers.producer import MessageProducer

        return MessageProducer(cls(**kwargs).windows())

    def windows(self) -> Windows:
        """The messages of the queue, as this trigger wants them grouped."""
        return Windows(
            self.chasqui_conn_id, self.queue_name, self.max_batch, self.max_wait,
            self.sweep_after, self.hold, self.claim_idle, self.unmatched == "reject",
            self.unmatched_after,
        )  # fmt: skip

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        async for window in shared_stream:
            event = self._event(window)
            if event is not None:
                yield event

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The same without the shared stream: for Airflow before 3.3 and for `dags test`."""
        windows = self.windows()
        fired: deque[tuple[float, Window]] = deque()
        clock = asyncio.get_running_loop().time
        try:
            async with contextlib.aclosing(windows.open()) as stream:
                async for window in stream:
                    event = self._event(window)
                    if event is not None:
                        yield event
                    fired.append((clock() + _STORED_AFTER_S, window))
                    while fired and fired[0][0] <= clock():
                        windows.stored(fired.popleft()[1])
        finally:
            await windows.close()

    def _event(self, window: Window) -> TriggerEvent | None:
        if not window.messages:
            if self._fired < 2:  # one event alone is never passed over
                return None
            self._fired = 0
            return TriggerEvent({"queue_name": self.queue_name, "messages": [], "sweep": True})
        mine = [message for message in window.as_json if matches(self.match, message)]
        if not mine:
            return None
        window.wanted.update(message["entry_id"] for message in mine)
        self._fired += 1
        in_triggerer.count("watcher_events", 1, self.queue_name)
        in_triggerer.count("watcher_messages", len(mine), self.queue_name)
        return TriggerEvent(window.manifest(self.queue_name, mine))
