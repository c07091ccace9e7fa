"""RSMQ client that shares its queues with npm rsmq.

The blocking class in `client.py` is generated from the asyncio class in `client_async.py`, so both
have the same methods. Keys, limits, error names and results are those of npm rsmq 0.12.4. Each
method is one atomic script. Example::

    async with AsyncRsmqClient("redis://localhost") as rsmq:
        await rsmq.create_queue("emails", vt=60)
        await rsmq.send_message("emails", "hello")
        message = await rsmq.receive_message("emails")
"""

from __future__ import annotations

from typing import Any, Self

from airflow_provider_chasqui.core.commands.rsmq import RsmqFlows
from airflow_provider_chasqui.core.rsmq_types import (
    RsmqKeys,
    RsmqMessage,
    RsmqQueueAttributes,
    SecondsInput,
    TimeUnit,
    check_namespace,
)
from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.dialect import PORTABLE
from airflow_provider_chasqui.redis_client.target import DEFAULT_URL, RedisTarget


class AsyncRsmqClient:
    """Client of the RSMQ queues of one namespace.

    An asyncio client belongs to one event loop. A blocking client may be used by several threads,
    and after a fork. Every method raises an RsmqError if RSMQ would, and another ChasquiError if
    the server stays unreachable.

    :param server: a URL, a RedisTarget, or a connection manager that several clients share.
    :param namespace: the prefix of the keys. All clients of a queue must use the same one.
    :param realtime: publish every sent message on the channel of the queue.
    :param units: "s", or "ms" for queues that the Rust client rsmq_async created.
    :raises InvalidArgument: if the URL or the namespace is not valid.
    """

    def __init__(
        self,
        server: str | RedisTarget | AsyncConnectionManager = DEFAULT_URL,
        *,
        namespace: str = "rsmq",
        realtime: bool = False,
        units: TimeUnit = "s",
    ):
        self._owns_connection_manager = not isinstance(server, AsyncConnectionManager)
        # The scripts of RSMQ are the same in both dialects, so the dialect is not detected.
        self._connection_manager = AsyncConnectionManager.from_server(
            server, PORTABLE if self._owns_connection_manager else None
        )
        check_namespace(namespace, self._connection_manager.target.cluster)
        self._flows = RsmqFlows(namespace, realtime, units)
        self._client = AsyncRedisClient(self._connection_manager, RsmqKeys(namespace, ""))

    @property
    def namespace(self) -> str:
        """The prefix of the keys."""
        return self._flows.namespace

    @property
    def target(self) -> RedisTarget:
        """The server."""
        return self._connection_manager.target

    @property
    def connection_manager(self) -> AsyncConnectionManager:
        """The connections, for code that subscribes to a channel."""
        return self._connection_manager

    @property
    def flows(self) -> RsmqFlows:
        """The operations as flows, for code that combines them."""
        return self._flows

    @property
    def client(self) -> AsyncRedisClient:
        """The Redis client, for code that runs its own commands."""
        return self._client

    async def create_queue(
        self,
        qname: str | None = None,
        *,
        vt: SecondsInput | None = None,
        delay: SecondsInput | None = None,
        maxsize: int | str | None = None,
    ) -> int:
        """Create a queue.

        :param qname: the name of the queue.
        :param vt: the visibility timeout in seconds. The default is 30.
        :param delay: the delay of new messages in seconds. The default is 0.
        :param maxsize: the maximum size of a message in bytes, -1 for no limit. The default is
            65536.
        :return: 1.
        :raises RsmqQueueExists: if the queue exists.
        """
        return await self._client.run_flow(self._flows.create_queue(qname, vt, delay, maxsize))

    async def list_queues(self) -> list[str]:
        """Return the names of all queues, in no particular order."""
        return await self._client.execute(self._flows.list_queues())

    async def delete_queue(self, qname: str | None = None) -> int:
        """Delete a queue and all its messages.

        :param qname: the name of the queue.
        :return: 1.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        return await self._client.run_flow(self._flows.delete_queue(qname))

    async def get_queue_attributes(self, qname: str | None = None) -> RsmqQueueAttributes:
        """Return the settings and the counts of a queue.

        :param qname: the name of the queue.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        return await self._client.run_flow(self._flows.get_queue_attributes(qname))

    async def set_queue_attributes(
        self,
        qname: str | None = None,
        *,
        vt: SecondsInput | None = None,
        delay: SecondsInput | None = None,
        maxsize: int | str | None = None,
    ) -> RsmqQueueAttributes:
        """Change the given settings of a queue.

        :param qname: the name of the queue.
        :param vt: the visibility timeout in seconds.
        :param delay: the delay of new messages in seconds.
        :param maxsize: the maximum size of a message in bytes, -1 for no limit.
        :return: the new attributes.
        :raises RsmqNoAttributeSupplied: if no setting is given.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        flow = self._flows.set_queue_attributes(qname, vt, delay, maxsize)
        return await self._client.run_flow(flow)

    async def send_message(
        self, qname: str | None = None, message: Any = None, *, delay: SecondsInput | None = None
    ) -> str:
        """Send a message.

        :param qname: the name of the queue.
        :param message: a string.
        :param delay: the seconds until the message becomes visible. Default: the queue's setting.
        :return: the id of the message.
        :raises RsmqQueueNotFound: if the queue does not exist.
        :raises RsmqMessageNotString: if the message is not a string.
        :raises RsmqMessageTooLong: if the message is longer than `maxsize`.
        """
        return await self._client.run_flow(self._flows.send_message(qname, message, delay))

    async def receive_message(
        self, qname: str | None = None, *, vt: SecondsInput | None = None
    ) -> RsmqMessage | None:
        """Return the first visible message and hide it.

        :param qname: the name of the queue.
        :param vt: the seconds for which the message is hidden. Default: the queue's setting.
        :return: the message, or None if no message is visible.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        return await self._client.run_flow(self._flows.receive_message(qname, vt))

    async def pop_message(self, qname: str | None = None) -> RsmqMessage | None:
        """Return the first visible message and delete it. A crash after this call loses it.

        :param qname: the name of the queue.
        :return: the message, or None if no message is visible.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        return await self._client.run_flow(self._flows.pop_message(qname))

    async def delete_message(self, qname: str | None = None, id: str | None = None) -> int:
        """Delete a message, also if another client has received it.

        :param qname: the name of the queue.
        :param id: the id of the message.
        :return: 1, or 0 if there is no such message.
        """
        return await self._client.run_flow(self._flows.delete_message(qname, id))

    async def change_message_visibility(
        self, qname: str | None = None, id: str | None = None, *, vt: SecondsInput | None = None
    ) -> int:
        """Change the time at which a message becomes visible.

        :param qname: the name of the queue.
        :param id: the id of the message.
        :param vt: the seconds from now until the message becomes visible.
        :return: 1, or 0 if there is no such message.
        """
        return await self._client.run_flow(self._flows.change_message_visibility(qname, id, vt))

    async def peek_messages(
        self, qname: str | None = None, *, limit: int = 10, include_hidden: bool = False
    ) -> list[RsmqMessage]:
        """Return messages in their order without receiving them.

        :param qname: the name of the queue.
        :param limit: the maximum number of messages.
        :param include_hidden: return hidden messages as well.
        :raises RsmqQueueNotFound: if the queue does not exist.
        """
        return await self._client.run_flow(self._flows.peek_messages(qname, limit, include_hidden))

    async def quit(self) -> None:
        """Release the connections. This is the name that npm rsmq has for `close`."""
        await self.close()

    async def close(self) -> None:
        """Release the connections. Those of a shared connection manager stay open."""
        await self._client.close()
        if self._owns_connection_manager:
            await self._connection_manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
