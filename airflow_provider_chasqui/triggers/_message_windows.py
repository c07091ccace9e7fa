"""Windows of messages: what is fired as one event, and read again by a run that is repeated."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.hooks._stats import triggerer_stats

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue
    from airflow_provider_chasqui.triggers._message_consumer import Message, MessageConsumer

# Airflow keeps events in its database for long; what is larger stays in Redis for a week.
MAX_INLINE_BYTES = 64 * 1024
_REDELIVERY_DELAY = timedelta(seconds=2)


@dataclass(slots=True)
class MessageWindow:
    """Messages that arrived together. `wanted` collects the entry ids that some watcher took."""

    messages: list[Message]
    json_messages: list[dict[str, Any]]
    storage_id: str | None = None
    matched_ids: set[str] = field(default_factory=set)

    def event_payload(self, queue_name: str, json_messages: list[dict[str, Any]]) -> dict[str, Any]:
        """What the event carries: the messages, or where they are kept and which are meant."""
        if self.storage_id is None:
            return {"queue_name": queue_name, "messages": json_messages}
        ids = [message["entry_id"] for message in json_messages]
        return {"queue_name": queue_name, "window": self.storage_id, "entry_ids": ids}


class MessageWindowReader:
    """The windows of one queue, and what becomes of their messages."""

    def __init__(
        self, conn_id: str, queue_name: str, max_messages: int, max_wait: float,
        idle_timeout: float, max_in_flight: int, claim_after: float, reject_unmatched: bool, unmatched_grace: float,
    ):  # fmt: skip
        self._conn_id = conn_id
        self._queue_name = queue_name
        self._max_messages = max_messages
        self._max_wait = max_wait
        self._idle_timeout = idle_timeout
        self._max_in_flight = max_in_flight
        self._claim_after = timedelta(seconds=claim_after)
        self._reject_unmatched = reject_unmatched
        self._unmatched_grace = unmatched_grace
        self._opened_at = time.monotonic()
        self._queue: AsyncQueue | None = None
        self._consumer: MessageConsumer | None = None

    async def read(self) -> AsyncGenerator[MessageWindow]:
        """Yield windows forever; an empty one when nothing came for a while."""
        from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
        from airflow_provider_chasqui.triggers._message_consumer import MessageConsumer

        queue = self._queue = await ChasquiHook(self._conn_id).async_queue(self._queue_name)
        config = ConsumerConfig(group=queue.config.group, claim_after=self._claim_after)
        inbox = self._consumer = MessageConsumer(queue, config, self._max_in_flight)
        note = watchers.WatcherState(socket.gethostname())
        self._opened_at = time.monotonic()
        while True:
            try:
                messages = await inbox.read_window(
                    self._max_messages, self._max_wait, self._idle_timeout
                )
            except ChasquiError as error:
                triggerer_stats.incr("trigger_errors", 1, self._queue_name)
                note = replace(note, last_error=str(error))
                with suppress(ChasquiError):
                    await queue.client.execute(
                        watchers.save_state(queue.keys, queue.config.group, note)
                    )
                raise
            window = await self._build_window(messages)
            note = note.after_delivery(messages[-1].entry_id if messages else None, len(messages))
            with suppress(ChasquiError):  # nobody is to miss messages for want of a note
                await queue.client.execute(
                    watchers.save_state(queue.keys, queue.config.group, note)
                )
            yield window

    async def _build_window(self, messages: list[Message]) -> MessageWindow:
        assert self._queue is not None
        window = MessageWindow(messages, [message.as_json() for message in messages])
        text = json.dumps(window.json_messages)
        if len(text) > MAX_INLINE_BYTES:
            window.storage_id = messages[0].entry_id
            op = watchers.save_window(self._queue.keys, window.storage_id, text)
            await self._queue.client.execute(op)
        return window

    def on_stored(self, window: MessageWindow) -> None:
        """Airflow has the events of this window."""
        early = time.monotonic() - self._opened_at < self._unmatched_grace
        for message in window.messages:
            if message.entry_id in window.matched_ids or not self._reject_unmatched:
                message.ack()
            elif early:
                # A triggerer starts its watchers one by one, and the first begins to read: the one
                # that wants this message may still be on its way.
                message.release(_REDELIVERY_DELAY)
            else:
                message.dead_letter("no watcher of the queue wants this message: see its filter=")

    def on_failed(self, window: MessageWindow) -> None:
        """Airflow did not get the events of this window: its messages come again."""
        triggerer_stats.incr("watcher_events_not_stored", 1, self._queue_name)
        for message in window.messages:
            message.retry("Airflow did not store the event in time")

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()
        if self._queue is not None:
            await self._queue.close()
