"""ChasquiHook: queues, leases and the whole engine from an Airflow connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseHook

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument
from airflow_provider_chasqui.hooks._connection import ChasquiConnection, parse_connection

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.lease import LeaseConfig
    from airflow_provider_chasqui.engine.consumer import Consumer
    from airflow_provider_chasqui.engine.handlers import Handlers
    from airflow_provider_chasqui.engine.standalone import StandaloneService
    from airflow_provider_chasqui.lease import AsyncLeaseQueue, LeaseQueue
    from airflow_provider_chasqui.queue import Queue
    from airflow_provider_chasqui.queue_async import AsyncQueue
    from airflow_provider_chasqui.redis_client.connection_pool import ConnectionManager

DEFAULT_CONN_ID = "chasqui_default"


class ChasquiHook(BaseHook):
    """The doorway to the queues of one connection.

    Queues of a hook share its connections; `close`, or using the hook in a `with`, gives them back.

        with ChasquiHook() as hook:
            hook.queue("emails").add({"to": "ada@example.org"})
    """

    conn_name_attr = "chasqui_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "chasqui"
    hook_name = "Chasqui"

    def __init__(self, chasqui_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.chasqui_conn_id = chasqui_conn_id
        self._queues: dict[str, Queue] = {}

    @cached_property
    def settings(self) -> ChasquiConnection:
        """What the connection says, looked up once."""
        return parse_connection(self.get_connection(self.chasqui_conn_id))

    async def async_settings(self) -> ChasquiConnection:
        """What the connection says, looked up without blocking the event loop."""
        if "settings" not in self.__dict__:
            connection = await self.aget_connection(self.chasqui_conn_id)
            self.__dict__["settings"] = parse_connection(connection)
        return self.settings

    @cached_property
    def _connection_manager(self) -> ConnectionManager:
        from airflow_provider_chasqui.redis_client.connection_pool import ConnectionManager

        return ConnectionManager(self.settings.target)

    def get_conn(self) -> Queue:
        """Return the queue that the connection names."""
        return self.queue()

    def queue(self, queue_name: str | None = None) -> Queue:
        """Return a queue; without a name the one that the connection names."""
        name = self._resolve_queue_name(queue_name, self.settings)
        if name not in self._queues:
            from airflow_provider_chasqui.queue import Queue

            config, dialect = self.settings.config, self.settings.dialect
            self._queues[name] = Queue(
                name, self._connection_manager, config=config, dialect=dialect
            )
        return self._queues[name]

    async def async_queue(self, queue_name: str | None = None) -> AsyncQueue:
        """Return a new queue for the running event loop; the caller closes it."""
        # The first import takes a moment, and the triggerer's loop serves others meanwhile.
        await asyncio.to_thread(import_module, "airflow_provider_chasqui.queue_async")
        from airflow_provider_chasqui.queue_async import AsyncQueue

        settings = await self.async_settings()
        name = self._resolve_queue_name(queue_name, settings)
        return AsyncQueue(name, settings.target, config=settings.config, dialect=settings.dialect)

    async def aget_conn(self) -> AsyncQueue:
        """Return the queue that the connection names, for the running event loop."""
        return await self.async_queue()

    def lease_queue(
        self, queue_name: str | None = None, config: LeaseConfig | None = None
    ) -> LeaseQueue:
        """Return a queue to lease from; the hook closes it."""
        from airflow_provider_chasqui.lease import LeaseQueue

        settings = self.settings
        name = self._resolve_queue_name(queue_name, settings)
        return LeaseQueue(
            name,
            self._connection_manager,
            config=config,
            queue_config=settings.config,
            dialect=settings.dialect,
        )

    async def async_lease_queue(
        self, queue_name: str | None = None, config: LeaseConfig | None = None
    ) -> AsyncLeaseQueue:
        """Return a queue to lease from, for the running event loop; the caller closes it."""
        from airflow_provider_chasqui.lease import AsyncLeaseQueue

        settings = await self.async_settings()
        name = self._resolve_queue_name(queue_name, settings)
        return AsyncLeaseQueue(
            name,
            settings.target,
            config=config,
            queue_config=settings.config,
            dialect=settings.dialect,
        )

    def consumer(
        self,
        handler: Handlers | Callable[..., Any],
        queue_name: str | None = None,
        config: ConsumerConfig | None = None,
    ) -> Consumer:
        """Return a worker of the queue: `await consumer.run()` works until `consumer.stop()`."""
        from airflow_provider_chasqui.engine.consumer import Consumer

        name, chosen = (
            self._resolve_queue_name(queue_name, self.settings),
            self._consumer_config(config),
        )
        return Consumer(name, handler, chosen, server=self.settings.target)

    def promoter(
        self, queue_name: str | None = None, config: ConsumerConfig | None = None
    ) -> StandaloneService:
        """Return what moves delayed jobs when they are due, for a queue without our workers."""
        from airflow_provider_chasqui.engine.standalone import StandaloneService, make_promoter

        name, chosen = (
            self._resolve_queue_name(queue_name, self.settings),
            self._consumer_config(config),
        )
        return StandaloneService(name, self.settings.target, chosen, make_promoter)

    def scheduler(
        self, queue_name: str | None = None, config: ConsumerConfig | None = None
    ) -> StandaloneService:
        """Return what fires repeats, for a queue without our workers."""
        from airflow_provider_chasqui.engine.standalone import StandaloneService, make_scheduler

        name, chosen = (
            self._resolve_queue_name(queue_name, self.settings),
            self._consumer_config(config),
        )
        return StandaloneService(name, self.settings.target, chosen, make_scheduler)

    def _consumer_config(self, config: ConsumerConfig | None) -> ConsumerConfig:
        limits = self.settings.config
        return config or ConsumerConfig(
            group=limits.group, max_payload_bytes=limits.max_payload_bytes
        )

    def test_connection(self) -> tuple[bool, str]:
        """Reach the server, log in, try the rights; say what is there or what to fix."""
        from airflow_provider_chasqui.hooks._connection_check import check_connection

        try:
            queue = self.queue(self.settings.queue_name or "connection-test")
            return True, check_connection(queue, self.settings.target.display_name)
        except ChasquiError as problem:
            return False, str(problem)
        finally:
            self.close()

    def close(self) -> None:
        """Give the connections back; the hook can be used again."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.close()
        link = self.__dict__.pop("_connection_manager", None)
        if link is not None:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resolve_queue_name(self, queue_name: str | None, settings: ChasquiConnection) -> str:
        name = queue_name or settings.queue_name
        if not name:
            raise InvalidArgument(
                f"say which queue: pass queue_name, or set it in the connection "
                f"{self.chasqui_conn_id!r}"
            )
        return name
