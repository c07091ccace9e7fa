"""Pub/Sub subscription, as an alternative to polling."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Self

from redis.exceptions import ResponseError

from airflow_provider_chasqui.core.resp import encode_command
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.error_mapping import CONNECTION_ERRORS

_RECONNECT_DELAY = 1.0


class ChannelSubscriber:
    """Subscriber of one channel, on its own connection. It ignores the content of the messages.

    Messages that are published while the subscriber is not connected are lost. Therefore every new
    subscription counts as a message, and the caller checks the state once more.

    :param connection_manager: the connections.
    :param hash_tag: the hash tag that selects the node.
    :param channel: the name of the channel.
    """

    def __init__(self, connection_manager: AsyncConnectionManager, hash_tag: str, channel: str):
        self._connection_manager = connection_manager
        self._hash_tag = hash_tag
        self._channel = channel
        self._notified = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, timeout: float) -> bool:
        """Wait until a message arrives.

        :param timeout: the longest wait, in seconds.
        :return: whether a message arrived since the previous call.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._notified.wait()
        notified = self._notified.is_set()
        self._notified.clear()
        return notified

    async def _run(self) -> None:
        while True:
            with suppress(*CONNECTION_ERRORS, ResponseError):
                await self._subscribe()
            await asyncio.sleep(_RECONNECT_DELAY)

    async def _subscribe(self) -> None:
        pool = await self._connection_manager.pool_for_tag(self._hash_tag)
        connection: Any = await pool.acquire(limited=False)
        try:
            await connection.send(encode_command(("SUBSCRIBE", self._channel)))
            while await connection.read_response():
                self._notified.set()
        finally:
            await pool.release(connection, limited=False, reusable=False)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
