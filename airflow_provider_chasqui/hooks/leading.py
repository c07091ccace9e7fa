"""One leading part of the engine by itself: a promoter or a scheduler without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.promoter import Promoter
from airflow_provider_chasqui.engine.scheduler import Scheduler
from airflow_provider_chasqui.engine.settler import Settler
from airflow_provider_chasqui.queue import AsyncQueue
from airflow_provider_chasqui.store.target import Target


class _Part(Protocol):
    async def run(self) -> None: ...


class Leading:
    """Leads one queue until it is stopped; of several, one works and the others stand by."""

    def __init__(
        self,
        name: str,
        target: Target,
        config: ConsumerConfig,
        make: Callable[[Desk, Settler, ConsumerConfig], _Part],
    ):
        self._name = name
        self._target = target
        self._config = config
        self._make = make
        self._desk: Desk | None = None
        self._stop_early = False

    async def run(self) -> None:
        """Work until stopped."""
        async with AsyncQueue(self._name, self._target) as queue:
            desk = self._desk = Desk(queue, self._config)
            if self._stop_early:
                return
            settler = Settler(desk)
            async with asyncio.TaskGroup() as group:
                group.create_task(settler.run())
                await self._make(desk, settler, self._config).run()
                settler.close()

    def stop(self) -> None:
        """Ask it to end, from within its event loop."""
        self._stop_early = True
        if self._desk is not None:
            self._desk.stop()


def promoting(desk: Desk, settler: Settler, config: ConsumerConfig) -> Any:
    assert config.promoter is not None
    return Promoter(desk, settler, config.promoter)


def scheduling(desk: Desk, _: Settler, config: ConsumerConfig) -> Any:
    assert config.scheduler is not None
    return Scheduler(desk, config.scheduler)
