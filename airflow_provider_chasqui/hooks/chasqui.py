"""ChasquiHook: queues, leases and workers of an Airflow connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseHook

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument
from airflow_provider_chasqui.hooks._connection import (
    ChasquiConnection,
    parse_connection,
    parse_connection_async,
)

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.lease import LeaseConfig
    from airflow_provider_chasqui.core.rate_limit import RateLimitGrant, RateLimits
    from airflow_provider_chasqui.engine.consumer import Consumer
    from airflow_provider_chasqui.engine.handlers import Handlers
    from airflow_provider_chasqui.engine.standalone import StandaloneService
    from airflow_provider_chasqui.lease import AsyncLeaseQueue, LeaseQueue
    from airflow_provider_chasqui.queue import Queue
    from airflow_provider_chasqui.queue_async import AsyncQueue
    from airflow_provider_chasqui.redis_client.connection_pool import ConnectionManager

DEFAULT_CONN_ID = "chasqui_default"


class ChasquiHook(BaseHook):
    """Access to the queues of an Airflow connection.

    The queues of a hook share its Redis connections. Use the hook in a `with` statement, or call
    `close`, to close them.

        with ChasquiHook() as hook:
            hook.queue("emails").add({"to": "ada@example.org"})

    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
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
        """The parsed connection. It is loaded once."""
        return parse_connection(self.get_connection(self.chasqui_conn_id))

    async def async_settings(self) -> ChasquiConnection:
        """Return the parsed connection, loaded without blocking the event loop."""
        if "settings" not in self.__dict__:
            connection = await self.aget_connection(self.chasqui_conn_id)
            self.__dict__["settings"] = await parse_connection_async(connection)
        return self.settings

    @cached_property
    def _connection_manager(self) -> ConnectionManager:
        from airflow_provider_chasqui.redis_client.connection_pool import ConnectionManager

        return ConnectionManager(self.settings.target)

    def get_conn(self) -> Queue:
        """Return the default queue of the connection.

        :raises InvalidArgument: if the connection has no `queue_name`.
        """
        return self.queue()

    def queue(self, queue_name: str | None = None) -> Queue:
        """Return a queue. The hook closes it.

        :param queue_name: the queue. Default: the `queue_name` of the connection.
        :raises InvalidArgument: if neither is given.
        """
        name = self._resolve_queue_name(queue_name, self.settings)
        if name not in self._queues:
            from airflow_provider_chasqui.queue import Queue

            self._queues[name] = Queue(
                name,
                self._connection_manager,
                config=self.settings.config,
                dialect=self.settings.dialect,
            )
        return self._queues[name]

    async def async_queue(self, queue_name: str | None = None) -> AsyncQueue:
        """Return a new queue for the running event loop. The caller closes it.

        :param queue_name: the queue. Default: the `queue_name` of the connection.
        :raises InvalidArgument: if neither is given.
        """
        # The first import is slow. A thread keeps the triggerer's event loop responsive.
        await asyncio.to_thread(import_module, "airflow_provider_chasqui.queue_async")
        from airflow_provider_chasqui.queue_async import AsyncQueue

        settings = await self.async_settings()
        name = self._resolve_queue_name(queue_name, settings)
        return AsyncQueue(name, settings.target, config=settings.config, dialect=settings.dialect)

    async def aget_conn(self) -> AsyncQueue:
        """Return the default queue of the connection for the running event loop.

        The caller closes it.

        :raises InvalidArgument: if the connection has no `queue_name`.
        """
        return await self.async_queue()

    def lease_queue(
        self, queue_name: str | None = None, config: LeaseConfig | None = None
    ) -> LeaseQueue:
        """Return a queue to lease jobs from. The hook closes its connections.

        :param queue_name: the queue. Default: the `queue_name` of the connection.
        :param config: the lease settings. Default: those of `LeaseConfig`, with the consumer group
            of the connection.
        :raises InvalidArgument: if there is no queue name.
        """
        from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue

        settings = self.settings
        name = self._resolve_queue_name(queue_name, settings)
        return LeaseQueue(
            name,
            self._connection_manager,
            config=config or LeaseConfig(group=settings.config.group),
            queue_config=settings.config,
            dialect=settings.dialect,
        )

    async def async_lease_queue(
        self, queue_name: str | None = None, config: LeaseConfig | None = None
    ) -> AsyncLeaseQueue:
        """Return a queue to lease jobs from, for the running event loop. The caller closes it.

        :param queue_name: the queue. Default: the `queue_name` of the connection.
        :param config: the lease settings. Default: those of `LeaseConfig`, with the consumer group
            of the connection.
        :raises InvalidArgument: if there is no queue name.
        """
        from airflow_provider_chasqui.lease import AsyncLeaseQueue, LeaseConfig

        settings = await self.async_settings()
        name = self._resolve_queue_name(queue_name, settings)
        return AsyncLeaseQueue(
            name,
            settings.target,
            config=config or LeaseConfig(group=settings.config.group),
            queue_config=settings.config,
            dialect=settings.dialect,
        )

    def rate_limit(
        self,
        name: str,
        rates: RateLimits,
        *,
        queue_name: str | None = None,
        weight: int | Sequence[int] = 1,
        timeout: timedelta | None = None,
    ) -> RateLimitGrant:
        """Wait until a rate limit allows the next call.

            with hook.rate_limit("api", "600/minute"):
                call_the_api()

        All tasks and programs that use the same queue and name share the limit.

        :param name: the name of the limit, for example that of the API that is called.
        :param rates: text such as "600/minute", a `RateLimit`, or a list; then all must allow it.
        :param queue_name: the queue whose keys have the limit. Default: that of the connection.
        :param weight: what the call costs; an integer, or a list with one per rate.
        :param timeout: the longest wait. Default: no limit.
        :return: the permission, a context manager.
        :raises RateLimitTimeout: if the wait would be longer than `timeout`.
        """
        return self.queue(queue_name).rate_limit(name, rates, weight=weight, timeout=timeout)

    def consumer(
        self,
        handler: Handlers | Callable[..., Any],
        queue_name: str | None = None,
        config: ConsumerConfig | None = None,
    ) -> Consumer:
        """Return a worker of a queue: `await consumer.run()` runs until `consumer.stop()`.

        :param handler: the function that runs the jobs, or `Handlers` by job name.
        :param queue_name: the queue. Default: the `queue_name` of the connection.
        :param config: the worker's settings. Default: the consumer group and the largest payload
            of the connection, and defaults for all others.
        :raises InvalidArgument: if there is no queue name.
        """
        from airflow_provider_chasqui.engine.consumer import Consumer

        name = self._resolve_queue_name(queue_name, self.settings)
        return Consumer(name, handler, self._consumer_config(config), server=self.settings.target)

    def promoter(
        self, queue_name: str | None = None, config: ConsumerConfig | None = None
    ) -> StandaloneService:
        """Return a promoter, which moves delayed jobs to the queue when they are due.

        Chasqui workers contain a promoter. A queue that only other programs consume needs this one.

        :param queue_name: the queue. Default: the `queue_name` of the connection.
        :param config: the settings; only those of the promoter are used.
        :return: a service with `run` and `stop`.
        :raises InvalidArgument: if there is no queue name.
        """
        from airflow_provider_chasqui.engine.standalone import StandaloneService, make_promoter

        name = self._resolve_queue_name(queue_name, self.settings)
        return StandaloneService(
            name, self.settings.target, self._consumer_config(config), make_promoter
        )

    def scheduler(
        self, queue_name: str | None = None, config: ConsumerConfig | None = None
    ) -> StandaloneService:
        """Return a scheduler, which enqueues repeatable jobs when they are due.

        Chasqui workers contain a scheduler. A queue that only other programs consume needs this
        one.

        :param queue_name: the queue. Default: the `queue_name` of the connection.
        :param config: the settings; only those of the scheduler are used.
        :return: a service with `run` and `stop`.
        :raises InvalidArgument: if there is no queue name.
        """
        from airflow_provider_chasqui.engine.standalone import StandaloneService, make_scheduler

        name = self._resolve_queue_name(queue_name, self.settings)
        return StandaloneService(
            name, self.settings.target, self._consumer_config(config), make_scheduler
        )

    def _consumer_config(self, config: ConsumerConfig | None) -> ConsumerConfig:
        limits = self.settings.config
        return config or ConsumerConfig(
            group=limits.group, max_payload_bytes=limits.max_payload_bytes
        )

    def test_connection(self) -> tuple[bool, str]:
        """Connect to the server, log in and check the permissions.

        :return: whether the server can be used, and a message for the connection form.
        """
        from airflow_provider_chasqui.hooks._connection_check import check_connection

        try:
            queue = self.queue(self.settings.queue_name or "connection-test")
            return True, check_connection(queue, self.settings.target.display_name)
        except ChasquiError as error:
            return False, str(error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections. The hook can be used again."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.close()
        connection_manager = self.__dict__.pop("_connection_manager", None)
        if connection_manager is not None:
            connection_manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resolve_queue_name(self, queue_name: str | None, settings: ChasquiConnection) -> str:
        name = queue_name or settings.queue_name
        if not name:
            raise InvalidArgument(
                "queue_name is required: pass it, or set it in the connection "
                f"{self.chasqui_conn_id!r}"
            )
        return name
