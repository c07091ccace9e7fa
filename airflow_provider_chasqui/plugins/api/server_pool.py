"""Connections to the Redis servers that the page shows, with short timeouts.

The page runs inside the Airflow API server. A slow or dead Redis server must not slow down other
requests, so every call has a time limit and a server that failed is not called again for a few
seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from airflow.models.connection import Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.utils.session import create_session
from anyio import CapacityLimiter, to_thread
from sqlalchemy import select

from airflow_provider_chasqui.core.command import CommandFlow, as_raw, redis_command
from airflow_provider_chasqui.core.commands.inspect import run_in_lockstep
from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    ConnectionFailed,
    ConnectionNotFound,
    ServerTimeout,
)
from airflow_provider_chasqui.hooks._connection import ChasquiConnection, parse_connection
from airflow_provider_chasqui.plugins.api.serializers import error_json
from airflow_provider_chasqui.plugins.api.settings import Settings, read_settings
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager

R = TypeVar("R")

REQUEST_TIMEOUT_S = 2.0
_CONNECT_TIMEOUT_S = 1.0
# How long a connection is cached before it is read from Airflow again.
_CACHE_S = 15.0
# Time after a failure during which the server is not called.
_FAILURE_COOLDOWN_S = 3.0
_MAX_CONCURRENT_REQUESTS = 8
_MAX_THREADS = 4
_MAX_CONNECTIONS = 50
_CONNECTION_TYPE = "chasqui"
_ENV_PREFIX = "AIRFLOW_CONN_"
_EVICTION_POLICIES = ("allkeys", "volatile")
# The queue name for commands that do not belong to a queue. Only its hash slot is used.
NO_QUEUE = "page"


@dataclass
class ServerConnection:
    """The connection to one server. `last_error` is raised again during the cooldown."""

    connection_id: str
    connection: ChasquiConnection
    connection_manager: AsyncConnectionManager
    loaded_at: float
    semaphore: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)
    )
    last_error: ChasquiError | None = None
    last_error_at: float = 0.0

    @property
    def group(self) -> str:
        """The consumer group of the workers."""
        return self.connection.config.group

    @asynccontextmanager
    async def open_queue(self, queue_name: str) -> AsyncIterator[AsyncQueue]:
        """Open a queue that uses the connections of this server.

        :param queue_name: the name of the queue.
        """
        config, dialect = self.connection.config, self.connection.dialect
        queue = AsyncQueue(queue_name, self.connection_manager, config=config, dialect=dialect)
        try:
            yield queue
        finally:
            await queue.close()

    async def run_flow(self, queue_name: str, flow: CommandFlow[R]) -> R:
        """Run a command flow on one queue within the time limit.

        :param queue_name: the name of the queue.
        :param flow: the command flow.
        :return: the result of the flow.
        :raises ServerTimeout: if the time limit is exceeded.
        :raises ConnectionFailed: if the server cannot be reached.
        """

        async def run(queue: AsyncQueue) -> R:
            return await queue.client.run_flow(flow)

        return await self.run(queue_name, run)

    async def run(self, queue_name: str, operation: Callable[[AsyncQueue], Awaitable[R]]) -> R:
        """Run an operation on one queue within the time limit.

        :param queue_name: the name of the queue.
        :param operation: the operation; it gets the open queue.
        :return: the result of the operation.
        :raises ServerTimeout: if the time limit is exceeded.
        :raises ConnectionFailed: if the server cannot be reached.
        """
        if (
            self.last_error is not None
            and time.monotonic() - self.last_error_at < _FAILURE_COOLDOWN_S
        ):
            raise self.last_error
        try:
            async with (
                asyncio.timeout(REQUEST_TIMEOUT_S),
                self.semaphore,
                self.open_queue(queue_name) as queue,
            ):
                result = await operation(queue)
        except TimeoutError:
            address = self.connection.target.display_name
            timeout = ServerTimeout(
                f"{address} did not reply within {REQUEST_TIMEOUT_S:g} s; the page tries again"
            )
            raise self._record_failure(timeout) from None
        except ConnectionFailed as error:
            raise self._record_failure(error) from error
        self.last_error = None
        return result

    async def run_all(self, flows: Iterable[tuple[str, CommandFlow[R]]]) -> list[R]:
        """Run flows of several queues with as few round trips as possible.

        :param flows: pairs of queue name and command flow.
        :return: the result of each flow, in the same order.
        """
        queue_flows = list(flows)
        if not queue_flows:
            return []
        if self.connection.target.cluster:
            return list(
                await asyncio.gather(*(self.run_flow(name, flow) for name, flow in queue_flows))
            )
        first_name = queue_flows[0][0]
        return await self.run_flow(first_name, run_in_lockstep(flow for _, flow in queue_flows))

    def _record_failure(self, error: ChasquiError) -> ChasquiError:
        self.last_error, self.last_error_at = error, time.monotonic()
        return error


class ServerPool:
    """The servers that the page may use, for one event loop."""

    def __init__(self) -> None:
        self._servers: dict[str, ServerConnection] = {}
        self._cached_connection_ids: tuple[float, tuple[str, ...]] = (-_CACHE_S, ())
        self._thread_limiter = CapacityLimiter(_MAX_THREADS)

    @property
    def settings(self) -> Settings:
        """The current settings of the page."""
        return read_settings()

    async def connection_ids(self) -> tuple[str, ...]:
        """Return the ids of the connections that the page may use."""
        read_at, connection_ids = self._cached_connection_ids
        if time.monotonic() - read_at >= _CACHE_S:
            connection_ids = await self._run_in_thread(lambda: list_connection_ids(read_settings()))
            self._cached_connection_ids = (time.monotonic(), connection_ids)
        return connection_ids

    async def get(self, connection_id: str) -> ServerConnection:
        """Return the server of a connection; it is connected on first use.

        :param connection_id: the id of the Airflow connection.
        :raises ConnectionNotFound: if the page may not use this connection.
        """
        if connection_id not in await self.connection_ids():
            raise ConnectionNotFound(
                f"the page may not use the connection {connection_id!r}; create a connection of "
                "type chasqui, or add it to `connections` in the [chasqui] section of airflow.cfg"
            )
        server = self._servers.get(connection_id)
        if server is not None and time.monotonic() - server.loaded_at < _CACHE_S:
            return server
        connection = _with_short_timeouts(
            await self._run_in_thread(lambda: load_connection(connection_id))
        )
        if server is not None and server.connection == connection:
            server.loaded_at = time.monotonic()
            return server
        if server is not None:
            await server.connection_manager.close()
        server = ServerConnection(
            connection_id, connection, AsyncConnectionManager(connection.target), time.monotonic()
        )
        self._servers[connection_id] = server
        return server

    async def close(self) -> None:
        """Close all connections."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            await server.connection_manager.close()

    async def _run_in_thread(self, function: Callable[[], R]) -> R:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await to_thread.run_sync(
                    function, limiter=self._thread_limiter, abandon_on_cancel=True
                )
        except TimeoutError:
            raise ServerTimeout(
                f"Airflow did not return its connections within {REQUEST_TIMEOUT_S:g} s; check the "
                "secrets backend"
            ) from None


def _with_short_timeouts(connection: ChasquiConnection) -> ChasquiConnection:
    """Return the connection with short timeouts, so a slow Redis cannot block the API server."""
    target = replace(
        connection.target,
        timeout=min(connection.target.timeout, REQUEST_TIMEOUT_S),
        connect_timeout=min(connection.target.connect_timeout, _CONNECT_TIMEOUT_S),
        retries=0,
        client_name="chasqui-page",
    )
    return replace(connection, target=target)


def list_connection_ids(settings: Settings) -> tuple[str, ...]:
    """Return the ids of the connections that the page may use.

    If the settings name none, these are the connections of type chasqui in the metadata database
    and in the environment. Airflow cannot list the connections of a secrets backend. This function
    blocks.

    :param settings: the settings of the page.
    """
    if settings.connections:
        return settings.connections
    with create_session() as session:
        query = select(Connection.conn_id).where(Connection.conn_type == _CONNECTION_TYPE)
        rows = session.scalars(query.order_by(Connection.conn_id).limit(_MAX_CONNECTIONS)).all()
    return tuple(sorted({*filter(None, rows), *_connection_ids_from_env()}))[:_MAX_CONNECTIONS]


def _connection_ids_from_env() -> list[str]:
    return [
        name.removeprefix(_ENV_PREFIX).lower()
        for name, value in os.environ.items()
        if name.startswith(_ENV_PREFIX) and _is_chasqui_connection(value)
    ]


def _is_chasqui_connection(value: str) -> bool:
    if not value.lstrip().startswith("{"):
        return value.startswith(f"{_CONNECTION_TYPE}:")
    try:
        return bool(json.loads(value).get("conn_type") == _CONNECTION_TYPE)
    except (ValueError, AttributeError):
        return False


def load_connection(connection_id: str) -> ChasquiConnection:
    """Return the settings of a connection. This function blocks.

    :param connection_id: the id of the Airflow connection.
    :raises ConnectionNotFound: if Airflow has no such connection.
    """
    try:
        return parse_connection(Connection.get_connection_from_secrets(connection_id))
    except AirflowNotFoundException:
        raise ConnectionNotFound(
            f"Airflow has no connection {connection_id!r}; create a connection of type chasqui, or "
            "remove it from the option connections of the section [chasqui]"
        ) from None


async def server_health(server: ServerConnection) -> dict[str, Any]:
    """Return address, version, dialect, latency and memory of a server.

    A server that cannot be reached is reported with `ok` false and its error.

    :param server: the server.
    """
    health: dict[str, Any] = {
        "address": server.connection.target.display_name,
        "ok": True,
        "error": None,
    }
    try:
        return {**health, **await server.run(NO_QUEUE, _probe)}
    except ChasquiError as error:
        return {**health, "ok": False, "error": error_json(error)}


async def _probe(queue: AsyncQueue) -> dict[str, Any]:
    dialect = await queue.dialect()
    started = time.perf_counter()
    await queue.client.execute(redis_command("PING", parse=as_raw))
    latency_ms = (time.perf_counter() - started) * 1000
    try:
        raw = await queue.client.execute(redis_command("INFO", parse=as_raw))
    except ChasquiError:  # Some managed servers do not allow INFO.
        raw = b""
    info = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    policy = _info_field(info, "maxmemory_policy")
    warning = None
    if policy and policy.startswith(_EVICTION_POLICIES):
        warning = (
            f"maxmemory-policy is {policy}: the server may delete jobs when memory is low. Set it "
            "to noeviction."
        )
    return {
        "dialect": dialect,
        "version": _server_version(info),
        "latency_ms": round(latency_ms, 2),
        "memory": int(_info_field(info, "used_memory") or 0) or None,
        "memory_max": int(_info_field(info, "maxmemory") or 0) or None,
        "clients": int(_info_field(info, "connected_clients") or 0) or None,
        "warning": warning,
    }


def _server_version(info: str) -> str | None:
    if valkey := _info_field(info, "valkey_version"):
        return f"Valkey {valkey}"
    redis = _info_field(info, "redis_version")
    return f"Redis {redis}" if redis else None


def _info_field(info: str, name: str) -> str | None:
    match = re.search(rf"^{name}:(\S+)", info, re.M)
    return match[1] if match else None
