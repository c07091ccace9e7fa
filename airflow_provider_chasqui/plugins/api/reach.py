"""Reaching the servers without ever waiting long for one: the API server has other things to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    NotConnected,
    SlowServer,
    UnknownConnection,
)
from airflow_provider_chasqui.core.op import Flow
from airflow_provider_chasqui.core.ops.browsing import together
from airflow_provider_chasqui.hooks.connection import ChasquiConnection
from airflow_provider_chasqui.plugins.api import connections
from airflow_provider_chasqui.plugins.api.settings import Settings, read_settings
from airflow_provider_chasqui.queue import AsyncQueue
from airflow_provider_chasqui.store.connect import AsyncLink

R = TypeVar("R")

PATIENCE = 2.0
_CONNECT = 1.0
# How long a connection is taken for what it was, and how long a server that failed is left alone.
_KEPT = 15.0
_PAUSE = 3.0
_AT_ONCE = 8
_THREADS = 4


@dataclass
class Line:
    """The way to one server. `failed` is its last failure, which is repeated for a moment."""

    connection_id: str
    settings: ChasquiConnection
    link: AsyncLink
    read_at: float
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    failed: ChasquiError | None = None
    failed_at: float = 0.0

    @property
    def group(self) -> str:
        return self.settings.config.group

    @asynccontextmanager
    async def queue(self, name: str) -> AsyncIterator[AsyncQueue]:
        """Lend a queue for a moment; its connections go back to the line."""
        config, dialect = self.settings.config, self.settings.dialect
        queue = AsyncQueue(name, self.link, config=config, dialect=dialect)
        try:
            yield queue
        finally:
            await queue.close()

    async def flow(self, queue_name: str, flow: Flow[R]) -> R:
        """Run a flow on one queue, within the time that the page gives it."""

        async def run(queue: AsyncQueue) -> R:
            return await queue.drive.flow(flow)

        return await self.ask(queue_name, run)

    async def ask(self, queue_name: str, run: Callable[[AsyncQueue], Awaitable[R]]) -> R:
        """Do something with a queue, within the time that the page gives it."""
        if self.failed is not None and time.monotonic() - self.failed_at < _PAUSE:
            raise self.failed
        try:
            async with asyncio.timeout(PATIENCE), self.places, self.queue(queue_name) as queue:
                answer = await run(queue)
        except TimeoutError:
            where = self.settings.target.where
            slow = SlowServer(
                f"{where} did not answer within {PATIENCE:g} s; the page goes on without it and "
                "tries again"
            )
            raise self._note(slow) from None
        except NotConnected as error:
            raise self._note(error) from error
        self.failed = None
        return answer

    async def all(self, flows: Iterable[tuple[str, Flow[R]]]) -> list[R]:
        """Run flows of several queues in as few round trips as can be."""
        work = list(flows)
        if not work:
            return []
        if self.settings.target.cluster:
            return list(await asyncio.gather(*(self.flow(name, flow) for name, flow in work)))
        return await self.flow(work[0][0], together(flow for _, flow in work))

    def _note(self, error: ChasquiError) -> ChasquiError:
        self.failed, self.failed_at = error, time.monotonic()
        return error


class Reach:
    """All servers that the page may use, for one event loop."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._known: tuple[float, tuple[str, ...]] = (-_KEPT, ())
        self._threads = CapacityLimiter(_THREADS)

    @property
    def settings(self) -> Settings:
        return read_settings()

    async def connection_ids(self) -> tuple[str, ...]:
        """Return the connections that the page may use."""
        read_at, ids = self._known
        if time.monotonic() - read_at >= _KEPT:
            ids = await self._in_thread(lambda: connections.known(read_settings()))
            self._known = (time.monotonic(), ids)
        return ids

    async def line(self, connection_id: str) -> Line:
        """Return the way to the server behind a connection; refuses one that is not the page's."""
        if connection_id not in await self.connection_ids():
            raise UnknownConnection(
                f"the page does not know the connection {connection_id!r}; name it in the option "
                "connections of the section [chasqui]"
            )
        line = self._lines.get(connection_id)
        if line is not None and time.monotonic() - line.read_at < _KEPT:
            return line
        found = await self._in_thread(lambda: connections.read(connection_id))
        if line is not None and line.settings == _hasty(found):
            line.read_at = time.monotonic()
            return line
        if line is not None:
            await line.link.close()
        hasty = _hasty(found)
        line = Line(connection_id, hasty, AsyncLink(hasty.target), time.monotonic())
        self._lines[connection_id] = line
        return line

    async def close(self) -> None:
        """Give all connections back."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.link.close()

    async def _in_thread(self, work: Callable[[], R]) -> R:
        try:
            async with asyncio.timeout(PATIENCE):
                return await to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)
        except TimeoutError:
            raise SlowServer(
                f"Airflow did not look up its connections within {PATIENCE:g} s; check the "
                "secrets backend"
            ) from None


def _hasty(settings: ChasquiConnection) -> ChasquiConnection:
    """The same connection without patience: nobody may hold up the API server."""
    target = replace(
        settings.target,
        timeout=min(settings.target.timeout, PATIENCE),
        connect_timeout=min(settings.target.connect_timeout, _CONNECT),
        retries=0,
        client_name="chasqui-page",
    )
    return replace(settings, target=target)
