"""Reaching the servers without ever waiting long for one: the API server has other things to do.

Airflow connections of type chasqui: which there are, and what they say. Blocking.

How a server is: its version, dialect, memory and how long it takes to answer.
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
# How long a connection is taken for what it was, and how long a server that failed is left alone.
_CACHE_S = 15.0
_FAILURE_COOLDOWN_S = 3.0
_MAX_CONCURRENT_REQUESTS = 8
_MAX_THREADS = 4


@dataclass
class ServerConnection:
    """The way to one server. `failed` is its last failure, which is repeated for a moment."""

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
        return self.connection.config.group

    @asynccontextmanager
    async def open_queue(self, queue_name: str) -> AsyncIterator[AsyncQueue]:
        """Lend a queue for a moment; its connections go back to the line."""
        config, dialect = self.connection.config, self.connection.dialect
        queue = AsyncQueue(queue_name, self.connection_manager, config=config, dialect=dialect)
        try:
            yield queue
        finally:
            await queue.close()

    async def run_flow(self, queue_name: str, flow: CommandFlow[R]) -> R:
        """Run a flow on one queue, within the time that the page gives it."""

        async def run(queue: AsyncQueue) -> R:
            return await queue.client.run_flow(flow)

        return await self.run(queue_name, run)

    async def run(self, queue_name: str, operation: Callable[[AsyncQueue], Awaitable[R]]) -> R:
        """Do something with a queue, within the time that the page gives it."""
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
                answer = await operation(queue)
        except TimeoutError:
            where = self.connection.target.display_name
            slow = ServerTimeout(
                f"{where} did not answer within {REQUEST_TIMEOUT_S:g} s; the page goes on without it and "
                "tries again"
            )
            raise self._record_failure(slow) from None
        except ConnectionFailed as error:
            raise self._record_failure(error) from error
        self.last_error = None
        return answer

    async def run_all(self, flows: Iterable[tuple[str, CommandFlow[R]]]) -> list[R]:
        """Run flows of several queues in as few round trips as can be."""
        work = list(flows)
        if not work:
            return []
        if self.connection.target.cluster:
            return list(await asyncio.gather(*(self.run_flow(name, flow) for name, flow in work)))
        return await self.run_flow(work[0][0], run_in_lockstep(flow for _, flow in work))

    def _record_failure(self, error: ChasquiError) -> ChasquiError:
        self.last_error, self.last_error_at = error, time.monotonic()
        return error


class ServerPool:
    """All servers that the page may use, for one event loop."""

    def __init__(self) -> None:
        self._servers: dict[str, ServerConnection] = {}
        self._cached_connection_ids: tuple[float, tuple[str, ...]] = (-_CACHE_S, ())
        self._thread_limiter = CapacityLimiter(_MAX_THREADS)

    @property
    def settings(self) -> Settings:
        return read_settings()

    async def connection_ids(self) -> tuple[str, ...]:
        """Return the connections that the page may use."""
        read_at, ids = self._cached_connection_ids
        if time.monotonic() - read_at >= _CACHE_S:
            ids = await self._run_in_thread(lambda: list_connection_ids(read_settings()))
            self._cached_connection_ids = (time.monotonic(), ids)
        return ids

    async def get(self, connection_id: str) -> ServerConnection:
        """Return the way to the server behind a connection; refuses one that is not the page's."""
        if connection_id not in await self.connection_ids():
            raise ConnectionNotFound(
                f"the page does not know the connection {connection_id!r}; name it in the option "
                "connections of the section [chasqui]"
            )
        line = self._servers.get(connection_id)
        if line is not None and time.monotonic() - line.loaded_at < _CACHE_S:
            return line
        found = await self._run_in_thread(lambda: load_connection(connection_id))
        if line is not None and line.connection == _with_short_timeouts(found):
            line.loaded_at = time.monotonic()
            return line
        if line is not None:
            await line.connection_manager.close()
        hasty = _with_short_timeouts(found)
        line = ServerConnection(
            connection_id, hasty, AsyncConnectionManager(hasty.target), time.monotonic()
        )
        self._servers[connection_id] = line
        return line

    async def close(self) -> None:
        """Give all connections back."""
        lines, self._servers = self._servers, {}
        for line in lines.values():
            await line.connection_manager.close()

    async def _run_in_thread(self, function: Callable[[], R]) -> R:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await to_thread.run_sync(
                    function, limiter=self._thread_limiter, abandon_on_cancel=True
                )
        except TimeoutError:
            raise ServerTimeout(
                f"Airflow did not look up its connections within {REQUEST_TIMEOUT_S:g} s; check the "
                "secrets backend"
            ) from None


def _with_short_timeouts(connection: ChasquiConnection) -> ChasquiConnection:
    """The same connection without patience: nobody may hold up the API server."""
    target = replace(
        connection.target,
        timeout=min(connection.target.timeout, REQUEST_TIMEOUT_S),
        connect_timeout=min(connection.target.connect_timeout, _CONNECT_TIMEOUT_S),
        retries=0,
        client_name="chasqui-page",
    )
    return replace(connection, target=target)


_CONNECTION_TYPE = "chasqui"
_ENV_PREFIX = "AIRFLOW_CONN_"
_MAX_CONNECTIONS = 50


def list_connection_ids(settings: Settings) -> tuple[str, ...]:
    """Return the ids of the connections that the page may use.

    Without a list in the settings these are the ones that Airflow can list: those in its database
    and in the environment. A secrets backend cannot be listed.
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
    """Return what a connection says."""
    try:
        return parse_connection(Connection.get_connection_from_secrets(connection_id))
    except AirflowNotFoundException:
        raise ConnectionNotFound(
            f"Airflow has no connection {connection_id!r}; make one of type chasqui, or take it "
            "out of the option connections of the section [chasqui]"
        ) from None


_EVICTION_POLICIES = ("allkeys", "volatile")


async def server_health(server: ServerConnection) -> dict[str, Any]:
    """Return how the server behind a line is; never raises for a server that fails."""
    shown: dict[str, Any] = {
        "address": server.connection.target.display_name,
        "ok": True,
        "error": None,
    }
    try:
        return {**shown, **await server.run("page", _probe)}
    except ChasquiError as error:
        return {**shown, "ok": False, "error": error_json(error)}


async def _probe(queue: AsyncQueue) -> dict[str, Any]:
    dialect = await queue.dialect()
    began = time.perf_counter()
    await queue.client.execute(redis_command("PING", parse=as_raw))
    took_ms = (time.perf_counter() - began) * 1000
    try:
        raw = await queue.client.execute(redis_command("INFO", parse=as_raw))
    except ChasquiError:  # a managed server may hide it
        raw = b""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    policy = _info_field(text, "maxmemory_policy")
    warning = None
    if policy and policy.startswith(_EVICTION_POLICIES):
        warning = (
            f"maxmemory-policy is {policy}: jobs may be thrown away when memory is short; set it "
            "to noeviction"
        )
    return {
        "dialect": dialect,
        "version": _server_version(text),
        "latency_ms": round(took_ms, 2),
        "memory": int(_info_field(text, "used_memory") or 0) or None,
        "memory_max": int(_info_field(text, "maxmemory") or 0) or None,
        "clients": int(_info_field(text, "connected_clients") or 0) or None,
        "warning": warning,
    }


def _server_version(info: str) -> str | None:
    if valkey := _info_field(info, "valkey_version"):
        return f"Valkey {valkey}"
    redis = _info_field(info, "redis_version")
    return f"Redis {redis}" if redis else None


def _info_field(info: str, name: str) -> str | None:
    found = re.search(rf"^{name}:(\S+)", info, re.M)
    return found[1] if found else None
