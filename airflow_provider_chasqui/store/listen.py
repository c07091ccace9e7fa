"""Listening to a channel; for those who would else have to ask again and again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Self

from redis.exceptions import ResponseError

from airflow_provider_chasqui.store.connect import AsyncLink
from airflow_provider_chasqui.store.resp import pack
from airflow_provider_chasqui.store.translate import BROKEN

_PAUSE = 1.0


class Listener:
    """Hears that something was said on a channel, on a connection of its own.

    What is said while nobody listens is lost, so beginning to listen counts as having heard: the
    caller looks once more, and sees what came before.
    """

    def __init__(self, link: AsyncLink, tag: str, channel: str):
        self._link = link
        self._tag = tag
        self._channel = channel
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def hear(self, seconds: float) -> bool:
        """Wait until something is heard, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._heard.wait()
        heard = self._heard.is_set()
        self._heard.clear()
        return heard

    async def _listen(self) -> None:
        while True:
            with suppress(*BROKEN, ResponseError):
                await self._follow()
            await asyncio.sleep(_PAUSE)

    async def _follow(self) -> None:
        pool = await self._link.pool(self._tag)
        connection: Any = await pool.get_connection()
        try:
            await connection.send(pack(("SUBSCRIBE", self._channel)))
            while await connection.read_response():
                self._heard.set()
        finally:
            await connection.disconnect(nowait=True)
            await pool.release(connection)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
