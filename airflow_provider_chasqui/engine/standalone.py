"""One leading part of the engine by itself: a promoter or a scheduler without a worker."""

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
    """Leads one queue until it is stopped; of several, one works and the others stand by."""

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
        """Work until stopped."""
        async with AsyncQueue(self._queue_name, self._target) as queue:
            desk = self._state = ConsumerState(queue, self._config)
            if self._stop_requested:
                return
            settler = OutcomeWriter(desk)
            async with asyncio.TaskGroup() as group:
                group.create_task(settler.run())
                await self._make_service(desk, settler, self._config).run()
                settler.close()

    def stop(self) -> None:
        """Ask it to end, from within its event loop."""
        self._stop_requested = True
        if self._state is not None:
            self._state.stop()


def make_promoter(state: ConsumerState, writer: OutcomeWriter, config: ConsumerConfig) -> Any:
    assert config.promoter is not None
    return Promoter(state, writer, config.promoter)


def make_scheduler(state: ConsumerState, _: OutcomeWriter, config: ConsumerConfig) -> Any:
    assert config.scheduler is not None
    return Scheduler(state, config.scheduler)
