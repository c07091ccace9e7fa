"""Messages held until somebody says what became of them.

An inbox is a consumer whose handler waits: so renewal, healing, budgets, promotion of delayed
messages and a clean shutdown are the engine's, and only the verdict comes from outside.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.config import ConsumerConfig, PromoterConfig
from airflow_provider_chasqui.core.errors import Stopped
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.jsonable import payload_of
from airflow_provider_chasqui.core.outcome import Snooze, Unrecoverable
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.engine.context import Context
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.queue import AsyncQueue

# Watchers mostly wait: a delayed message may be a second late, and Redis has a tenth of the work.
_CALM = PromoterConfig(poll_ms=1000)


class Message:
    """A held message: accept it, reject it to the dead letters, or hand it back."""

    __slots__ = ("_verdict", "entry_id", "job")

    def __init__(self, job: Job, entry_id: str, verdict: asyncio.Future[Any]):
        self.job = job
        self.entry_id = entry_id
        self._verdict = verdict

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.job.id,
            "name": self.job.name,
            "payload": payload_of(self.job),
            "entry_id": self.entry_id,
            "created_at_ms": self.job.created_at_ms,
            "attempt": self.job.attempt,
        }

    def accept(self) -> None:
        """It is safely taken: it leaves the queue."""
        self._say(None)

    def reject(self, reason: str) -> None:
        """Nobody can use it: it becomes a letter with this reason."""
        if not self._verdict.done():
            self._verdict.set_exception(Unrecoverable(reason))

    def fail(self, reason: str) -> None:
        """It could not be taken this time: it comes again later, within its budget."""
        if not self._verdict.done():
            self._verdict.set_exception(RuntimeError(reason))

    def hand_back(self, after: timedelta = timedelta(0)) -> None:
        """It was not looked at: it comes again, at no cost."""
        self._say(Snooze(after))

    def _say(self, verdict: Any) -> None:
        if not self._verdict.done():
            self._verdict.set_result(verdict)


class Inbox:
    """At most `hold` messages of a queue, taken in windows."""

    def __init__(self, queue: AsyncQueue, config: ConsumerConfig, hold: int):
        chosen = replace(config, concurrency=hold, store_results=False, promoter=_CALM)
        handlers = Handlers(self._take_in)
        handlers.traced = False  # a message is held here, not processed
        self._consumer = Consumer(queue, handlers, chosen)
        self._arrived: asyncio.Queue[Message] = asyncio.Queue()
        self._held: set[Message] = set()
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    async def window(self, most: int, wait: float, idle: float) -> list[Message]:
        """Return up to `most` messages, at the latest `wait` seconds after the first.

        Without a message for `idle` seconds the window is empty. Raises what ended the consumer.
        """
        if self._running is None:
            self._running = asyncio.create_task(self._consumer.run(), name="chasqui-inbox")
        first = await self._next(idle)
        if first is None:
            return []
        messages = [first]
        deadline = asyncio.get_running_loop().time() + wait
        while len(messages) < most:
            left = deadline - asyncio.get_running_loop().time()
            message = await self._next(max(0.0, left))
            if message is None:
                break
            messages.append(message)
        return messages

    async def close(self) -> None:
        """Hand back everything that nobody has judged, and end."""
        self._closed = True
        for message in list(self._held):
            message.hand_back()
        self._consumer.stop()
        if self._running is not None:
            await self._running

    async def _next(self, seconds: float) -> Message | None:
        if not self._arrived.empty():
            return self._arrived.get_nowait()
        assert self._running is not None
        waiting = asyncio.ensure_future(self._arrived.get())
        try:
            await asyncio.wait(
                {waiting, self._running}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if waiting.done():
                return waiting.result()
            if self._running.done():
                self._running.result()
                raise Stopped("the inbox was closed")
            return None
        finally:
            # Cancelled only while it still waits: a message it has taken is returned above.
            waiting.cancel()

    async def _take_in(self, job: Job, context: Context) -> Any:
        if self._closed:  # it was begun between the last window and the end of reading
            return Snooze(timedelta(0))
        verdict: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        message = Message(job, context.entry_id, verdict)
        self._held.add(message)
        self._arrived.put_nowait(message)
        try:
            return await verdict
        finally:
            self._held.discard(message)
