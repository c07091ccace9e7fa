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

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.ops import watching
from airflow_provider_chasqui.hooks.stats import in_triggerer

if TYPE_CHECKING:
    from airflow_provider_chasqui.engine.inbox import Inbox, Message
    from airflow_provider_chasqui.queue import AsyncQueue

# Airflow keeps events in its database for long; what is larger stays in Redis for a week.
INLINE_BYTES = 64 * 1024
_LOOK_AGAIN = timedelta(seconds=2)


@dataclass(slots=True)
class Window:
    """Messages that arrived together. `wanted` collects the entry ids that some watcher took."""

    messages: list[Message]
    as_json: list[dict[str, Any]]
    kept_as: str | None = None
    wanted: set[str] = field(default_factory=set)

    def manifest(self, queue_name: str, mine: list[dict[str, Any]]) -> dict[str, Any]:
        """What the event carries: the messages, or where they are kept and which are meant."""
        if self.kept_as is None:
            return {"queue_name": queue_name, "messages": mine}
        ids = [message["entry_id"] for message in mine]
        return {"queue_name": queue_name, "window": self.kept_as, "entry_ids": ids}


class Windows:
    """The windows of one queue, and what becomes of their messages."""

    def __init__(
        self, conn_id: str, queue_name: str, most: int, wait: float,
        idle: float, hold: int, claim_idle: float, reject_unwanted: bool, patience: float,
    ):  # fmt: skip
        self._conn_id = conn_id
        self._queue_name = queue_name
        self._most = most
        self._wait = wait
        self._idle = idle
        self._hold = hold
        self._claim_idle_ms = int(claim_idle * 1000)
        self._reject_unwanted = reject_unwanted
        self._patience = patience
        self._opened_at = time.monotonic()
        self._queue: AsyncQueue | None = None
        self._inbox: Inbox | None = None

    async def open(self) -> AsyncGenerator[Window]:
        """Yield windows forever; an empty one when nothing came for a while."""
        from airflow_provider_chasqui.engine.inbox import Inbox
        from airflow_provider_chasqui.hooks.chasqui import ChasquiHook

        queue = self._queue = await ChasquiHook(self._conn_id).async_queue(self._queue_name)
        config = ConsumerConfig(group=queue.config.group, claim_idle_ms=self._claim_idle_ms)
        inbox = self._inbox = Inbox(queue, config, self._hold)
        note = watching.Watcher(socket.gethostname())
        self._opened_at = time.monotonic()
        while True:
            try:
                messages = await inbox.window(self._most, self._wait, self._idle)
            except ChasquiError as error:
                in_triggerer.count("trigger_errors", 1, self._queue_name)
                note = replace(note, last_error=str(error))
                with suppress(ChasquiError):
                    await queue.drive.run(watching.note(queue.keys, queue.config.group, note))
                raise
            window = await self._window(messages)
            note = note.saw(messages[-1].entry_id if messages else None, len(messages))
            with suppress(ChasquiError):  # nobody is to miss messages for want of a note
                await queue.drive.run(watching.note(queue.keys, queue.config.group, note))
            yield window

    async def _window(self, messages: list[Message]) -> Window:
        assert self._queue is not None
        window = Window(messages, [message.as_json() for message in messages])
        text = json.dumps(window.as_json)
        if len(text) > INLINE_BYTES:
            window.kept_as = messages[0].entry_id
            op = watching.keep_window(self._queue.keys, window.kept_as, text)
            await self._queue.drive.run(op)
        return window

    def stored(self, window: Window) -> None:
        """Airflow has the events of this window."""
        early = time.monotonic() - self._opened_at < self._patience
        for message in window.messages:
            if message.entry_id in window.wanted or not self._reject_unwanted:
                message.accept()
            elif early:
                # A triggerer starts its watchers one by one, and the first begins to read: the one
                # that wants this message may still be on its way.
                message.hand_back(_LOOK_AGAIN)
            else:
                message.reject("no watcher of the queue wants this message: see its match=")

    def failed(self, window: Window) -> None:
        """Airflow did not get the events of this window: its messages come again."""
        in_triggerer.count("watcher_events_unstored", 1, self._queue_name)
        for message in window.messages:
            message.fail("Airflow did not store the event in time")

    async def close(self) -> None:
        if self._inbox is not None:
            await self._inbox.close()
        if self._queue is not None:
            await self._queue.close()
