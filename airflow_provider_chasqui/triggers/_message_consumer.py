"""A consumer whose messages stay pending until the caller decides their outcome.

The consumer is a worker whose handler waits for the decision. Claim renewal, recovery, attempt
limits, promotion of delayed messages and the shutdown are therefore those of the engine.

This module imports the engine. `_message_windows` does not, because DAG files import it.
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

# Watchers are idle most of the time, so they poll the delayed set less often than workers do. A
# delayed message may therefore arrive one second late.
_SLOW_PROMOTER = PromoterConfig(poll_interval=timedelta(seconds=1))


class Message:
    """A pending message. The first call of `ack`, `dead_letter`, `retry` or `release` counts."""

    __slots__ = ("_outcome", "entry_id", "job")

    def __init__(self, job: Job, entry_id: str, outcome: asyncio.Future[Any]):
        self.job = job
        self.entry_id = entry_id
        self._outcome = outcome

    def as_json(self) -> dict[str, Any]:
        """Return the message as it appears in events and in `get_messages`.

        The attempt counts from 1.
        """
        return {
            "id": self.job.id,
            "name": self.job.name,
            "payload": job_payload(self.job),
            "entry_id": self.entry_id,
            "created_at_ms": self.job.created_at_ms,
            "attempt": self.job.attempt + 1,
        }

    def ack(self) -> None:
        """Remove the message from the queue."""
        self._resolve(None)

    def dead_letter(self, reason: str) -> None:
        """Move the message to the DLQ.

        :param reason: the error in the dead letter.
        """
        if not self._outcome.done():
            self._outcome.set_exception(Unrecoverable(reason))

    def retry(self, reason: str) -> None:
        """Deliver the message again later. This counts as an attempt.

        :param reason: the error of this attempt.
        """
        if not self._outcome.done():
            self._outcome.set_exception(RuntimeError(reason))

    def release(self, delay: timedelta = timedelta(0)) -> None:
        """Deliver the message again without counting an attempt.

        :param delay: the time until then; none by default.
        """
        self._resolve(Snooze(delay))

    def _resolve(self, outcome: Any) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)


class MessageConsumer:
    """Reads the messages of a queue in windows.

    :param queue: the queue; the caller closes it.
    :param config: the configuration of the consumer; its concurrency is ignored.
    :param max_in_flight: the maximum number of messages without an outcome.
    """

    def __init__(self, queue: AsyncQueue, config: ConsumerConfig, max_in_flight: int):
        consumer_config = replace(
            config, concurrency=max_in_flight, store_results=False, promoter=_SLOW_PROMOTER
        )
        handlers = Handlers(self._handle)
        handlers.tracing_enabled = False  # the message is not processed here
        self._consumer = Consumer(queue, handlers, consumer_config)
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._in_flight: set[Message] = set()
        self._consumer_task: asyncio.Task[None] | None = None
        self._closed = False

    async def read_window(self, limit: int, max_wait: float, idle_timeout: float) -> list[Message]:
        """Return the next messages.

        :param limit: the maximum number of messages.
        :param max_wait: the maximum time after the first message, in seconds.
        :param idle_timeout: the maximum time to wait for the first message, in seconds.
        :return: the messages; none if no message arrived within `idle_timeout`.
        :raises ChasquiError: if the consumer stopped.
        """
        if self._consumer_task is None:
            self._consumer_task = asyncio.create_task(
                self._consumer.run(), name="chasqui-message-consumer"
            )
        first_message = await self._next_message(idle_timeout)
        if first_message is None:
            return []
        messages = [first_message]
        clock = asyncio.get_running_loop().time
        deadline = clock() + max_wait
        while len(messages) < limit:
            message = await self._next_message(max(0.0, deadline - clock()))
            if message is None:
                break
            messages.append(message)
        return messages

    async def close(self) -> None:
        """Release all messages without an outcome and stop the consumer."""
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
        next_message = asyncio.ensure_future(self._incoming.get())
        try:
            await asyncio.wait(
                {next_message, self._consumer_task},
                timeout=timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if next_message.done():
                return next_message.result()
            if self._consumer_task.done():
                self._consumer_task.result()
                raise ConsumerStopped("the message consumer was closed")
            return None
        finally:
            # This loses no message: a future that has received one is done and was returned above.
            next_message.cancel()

    async def _handle(self, job: Job, context: Context) -> Any:
        if self._closed:  # the job was started while the consumer stopped reading
            return Snooze(timedelta(0))
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        message = Message(job, context.entry_id, outcome)
        self._in_flight.add(message)
        self._incoming.put_nowait(message)
        try:
            return await outcome
        finally:
            self._in_flight.discard(message)
