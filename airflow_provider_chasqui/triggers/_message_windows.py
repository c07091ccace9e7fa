"""Windows of messages: the messages of a queue that become one event."""

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

# Airflow stores events in its database without a time limit. A larger window is stored in Redis
# with a TTL, and its event only refers to it.
MAX_INLINE_BYTES = 64 * 1024
_REDELIVERY_DELAY = timedelta(seconds=2)


@dataclass(slots=True)
class MessageWindow:
    """Messages that arrived together.

    :param messages: the pending messages.
    :param json_messages: the same messages as JSON values.
    :param storage_id: the id of the stored window; None if the event contains the messages.
    :param matched_ids: the entry ids of the messages that match the filter of some watcher.
    """

    messages: list[Message]
    json_messages: list[dict[str, Any]]
    storage_id: str | None = None
    matched_ids: set[str] = field(default_factory=set)

    def event_payload(self, queue_name: str, json_messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the payload of an event for some messages of the window.

        :param queue_name: the name of the queue.
        :param json_messages: the messages.
        :return: the messages themselves, or the id of the stored window and their entry ids.
        """
        if self.storage_id is None:
            return {"queue_name": queue_name, "messages": json_messages}
        entry_ids = [message["entry_id"] for message in json_messages]
        return {"queue_name": queue_name, "window": self.storage_id, "entry_ids": entry_ids}


class MessageWindowReader:
    """Reads the windows of one queue and completes their messages.

    :param conn_id: the id of the Airflow connection.
    :param queue_name: the name of the queue.
    :param max_messages: the maximum number of messages per window.
    :param max_wait: seconds from the first message of a window to its end.
    :param idle_timeout: seconds without a message after which an empty window is returned.
    :param max_in_flight: the maximum number of messages that are neither stored nor failed.
    :param claim_after: seconds after which messages of a dead reader are claimed.
    :param reject_unmatched: move messages that match no watcher to the DLQ instead of acking them.
    :param unmatched_grace: seconds after the start in which no message is moved to the DLQ.
    """

    def __init__(
        self,
        conn_id: str,
        queue_name: str,
        max_messages: int,
        max_wait: float,
        idle_timeout: float,
        max_in_flight: int,
        claim_after: float,
        reject_unmatched: bool,
        unmatched_grace: float,
    ):
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
        """Yield windows forever. A window is empty if no message arrived within `idle_timeout`.

        :raises ChasquiError: if the consumer stopped.
        """
        # Imported here, because DAG files import this module and the engine is large.
        from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
        from airflow_provider_chasqui.triggers._message_consumer import MessageConsumer

        queue = self._queue = await ChasquiHook(self._conn_id).async_queue(self._queue_name)
        config = ConsumerConfig(group=queue.config.group, claim_after=self._claim_after)
        consumer = self._consumer = MessageConsumer(queue, config, self._max_in_flight)
        state = watchers.WatcherState(socket.gethostname())
        self._opened_at = time.monotonic()
        while True:
            try:
                messages = await consumer.read_window(
                    self._max_messages, self._max_wait, self._idle_timeout
                )
            except ChasquiError as error:
                triggerer_stats.incr("trigger_errors", 1, self._queue_name)
                await self._save_state(queue, replace(state, last_error=str(error)))
                raise
            window = await self._build_window(queue, messages)
            last_entry_id = messages[-1].entry_id if messages else None
            state = state.after_delivery(last_entry_id, len(messages))
            await self._save_state(queue, state)
            yield window

    def on_stored(self, window: MessageWindow) -> None:
        """Complete the messages of a window whose events Airflow has stored."""
        in_grace_period = time.monotonic() - self._opened_at < self._unmatched_grace
        for message in window.messages:
            if message.entry_id in window.matched_ids or not self._reject_unmatched:
                message.ack()
            elif in_grace_period:
                # A triggerer starts its watchers one after the other and the first one starts the
                # reader, so the watcher that matches this message may start later.
                message.release(_REDELIVERY_DELAY)
            else:
                message.dead_letter("no watcher of the queue matches this message: see its filter=")

    def on_failed(self, window: MessageWindow) -> None:
        """Retry the messages of a window whose events Airflow has not stored."""
        triggerer_stats.incr("watcher_events_not_stored", 1, self._queue_name)
        for message in window.messages:
            message.retry("Airflow did not store the event in time")

    async def close(self) -> None:
        """Release the pending messages and close the connection."""
        if self._consumer is not None:
            await self._consumer.close()
        if self._queue is not None:
            await self._queue.close()

    async def _build_window(self, queue: AsyncQueue, messages: list[Message]) -> MessageWindow:
        window = MessageWindow(messages, [message.as_json() for message in messages])
        text = json.dumps(window.json_messages)
        if len(text) > MAX_INLINE_BYTES:
            window.storage_id = messages[0].entry_id
            command = watchers.save_window(queue.keys, window.storage_id, text)
            await queue.client.execute(command)
        return window

    async def _save_state(self, queue: AsyncQueue, state: watchers.WatcherState) -> None:
        with suppress(ChasquiError):  # the state is informational; messages are delivered anyway
            await queue.client.execute(watchers.save_state(queue.keys, queue.config.group, state))
