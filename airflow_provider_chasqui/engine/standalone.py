"""A promoter or a scheduler that runs without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter
from airflow_provider_chasqui.engine.promoter import Promoter
from airflow_provider_chasqui.engine.scheduler import Scheduler
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.target import RedisTarget


class _Service(Protocol):
    async def run(self) -> None: ...


class StandaloneService:
    """One leader-elected component of a queue. Of several processes, one leads and the rest wait.

    :param queue_name: the queue.
    :param target: the server.
    :param config: the settings; those of the promoter or the scheduler must not be None.
    :param make_service: `make_promoter` or `make_scheduler`.
    """

    def __init__(
        self,
        queue_name: str,
        target: RedisTarget,
        config: ConsumerConfig,
        make_service: Callable[[ConsumerState, OutcomeWriter, ConsumerConfig], _Service],
    ):
        self._queue_name = queue_name
        self._target = target
        self._config = config
        self._make_service = make_service
        self._state: ConsumerState | None = None
        self._stop_requested = False

    async def run(self) -> None:
        """Run until stopped. Server errors are logged and retried."""
        async with AsyncQueue(self._queue_name, self._target) as queue:
            state = self._state = ConsumerState(queue, self._config)
            if self._stop_requested:
                return
            writer = OutcomeWriter(state)
            async with asyncio.TaskGroup() as group:
                group.create_task(writer.run())
                await self._make_service(state, writer, self._config).run()
                writer.close()

    def stop(self) -> None:
        """Stop the service. Call it from the event loop that runs it."""
        self._stop_requested = True
        if self._state is not None:
            self._state.stop()


def make_promoter(state: ConsumerState, writer: OutcomeWriter, config: ConsumerConfig) -> Any:
    """Return a promoter, for `StandaloneService`."""
    assert config.promoter is not None
    return Promoter(state, writer, config.promoter)


def make_scheduler(state: ConsumerState, _: OutcomeWriter, config: ConsumerConfig) -> Any:
    """Return a scheduler, for `StandaloneService`."""
    assert config.scheduler is not None
    return Scheduler(state, config.scheduler)
