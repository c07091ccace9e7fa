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
from airflow_provider_chasqui.core.errors import ConsumerStopped
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.json_values import job_payload
from airflow_provider_chasqui.core.outcome import Snooze, Unrecoverable
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.engine.context import Context
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.queue_async import AsyncQueue

# Watchers mostly wait: a delayed message may be a second late, and Redis has a tenth of the work.
_SLOW_PROMOTER = PromoterConfig(poll_interval=timedelta(seconds=1))


class Message:
    """A held message: accept it, reject it to the dead letters, or hand it back."""

    __slots__ = ("_outcome", "entry_id", "job")

    def __init__(self, job: Job, entry_id: str, outcome: asyncio.Future[Any]):
        self.job = job
        self.entry_id = entry_id
        self._outcome = outcome

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.job.id,
            "name": self.job.name,
            "payload": job_payload(self.job),
            "entry_id": self.entry_id,
            "created_at_ms": self.job.created_at_ms,
            "attempt": self.job.attempt,
        }

    def ack(self) -> None:
        """It is safely taken: it leaves the queue."""
        self._resolve(None)

    def dead_letter(self, reason: str) -> None:
        """Nobody can use it: it becomes a letter with this reason."""
        if not self._outcome.done():
            self._outcome.set_exception(Unrecoverable(reason))

    def retry(self, reason: str) -> None:
        """It could not be taken this time: it comes again later, within its budget."""
        if not self._outcome.done():
            self._outcome.set_exception(RuntimeError(reason))

    def release(self, delay: timedelta = timedelta(0)) -> None:
        """It was not looked at: it comes again, at no cost."""
        self._resolve(Snooze(delay))

    def _resolve(self, outcome: Any) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)


class MessageConsumer:
    """At most `hold` messages of a queue, taken in windows."""

    def __init__(self, queue: AsyncQueue, config: ConsumerConfig, max_in_flight: int):
        chosen = replace(
            config, concurrency=max_in_flight, store_results=False, promoter=_SLOW_PROMOTER
        )
        handlers = Handlers(self._handle)
        handlers.tracing_enabled = False  # a message is held here, not processed
        self._consumer = Consumer(queue, handlers, chosen)
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._in_flight: set[Message] = set()
        self._consumer_task: asyncio.Task[None] | None = None
        self._closed = False

    async def read_window(self, limit: int, max_wait: float, idle_timeout: float) -> list[Message]:
        """Return up to `most` messages, at the latest `wait` seconds after the first.

        Without a message for `idle` seconds the window is empty. Raises what ended the consumer.
        """
        if self._consumer_task is None:
            self._consumer_task = asyncio.create_task(
                self._consumer.run(), name="chasqui-message-consumer"
            )
        first = await self._next_message(idle_timeout)
        if first is None:
            return []
        messages = [first]
        deadline = asyncio.get_running_loop().time() + max_wait
        while len(messages) < limit:
            left = deadline - asyncio.get_running_loop().time()
            message = await self._next_message(max(0.0, left))
            if message is None:
                break
            messages.append(message)
        return messages

    async def close(self) -> None:
        """Hand back everything that nobody has judged, and end."""
        self._closed = True
        for message in list(self._in_flight):
            message.release()
        self._consumer.stop()
        if self._consumer_task is not None:
            await self._consumer_task

    async def _next_message(self, timeout: float) -> Message | None:
        if not self._incoming.empty():
            return self._incoming.get_nowait()
        assert self._consumer_task is not None
        waiting = asyncio.ensure_future(self._incoming.get())
        try:
            await asyncio.wait(
                {waiting, self._consumer_task}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if waiting.done():
                return waiting.result()
            if self._consumer_task.done():
                self._consumer_task.result()
                raise ConsumerStopped("the inbox was closed")
            return None
        finally:
            # Cancelled only while it still waits: a message it has taken is returned above.
            waiting.cancel()

    async def _handle(self, job: Job, context: Context) -> Any:
        if self._closed:  # it was begun between the last window and the end of reading
            return Snooze(timedelta(0))
        verdict: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        message = Message(job, context.entry_id, verdict)
        self._in_flight.add(message)
        self._incoming.put_nowait(message)
        try:
            return await verdict
        finally:
            self._in_flight.discard(message)
