"""RSMQ's client: `RsmqClient` blocks, `AsyncRsmqClient` awaits; otherwise they are equal.

    rsmq = RsmqClient("redis://localhost")
    rsmq.create_queue("emails", vt=60)
    rsmq.send_message("emails", "hello")
    message = rsmq.receive_message("emails")

Keys, limits, error names and answers are those of npm rsmq 0.12.4, so its programs and ours share
queues. Each verb is one atomic script.
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
from airflow_provider_chasqui.redis_client.client import AsyncRedisClient, RedisClient
from airflow_provider_chasqui.redis_client.connection_pool import (
    AsyncConnectionManager,
    ConnectionManager,
)
from airflow_provider_chasqui.redis_client.target import RedisTarget

DEFAULT_URL = "redis://127.0.0.1:6379"
# RSMQ's scripts are the same in both dialects, so a link of ours need not ask the server.
_DIALECT = "portable"


class RsmqClient:
    """RSMQ queues of one namespace, blocking. `server` is a URL, a Target or a shared link.

    `realtime` publishes every send on the queue's channel. Queues that the Rust client rsmq_async
    made hold milliseconds: give `units="ms"` for those.
    """

    def __init__(
        self,
        server: str | RedisTarget | ConnectionManager = DEFAULT_URL,
        *,
        namespace: str = "rsmq",
        realtime: bool = False,
        units: TimeUnit = "s",
    ):
        self._owns_connection_manager = not isinstance(server, ConnectionManager)
        self._connection_manager = ConnectionManager.from_server(
            server, _DIALECT if self._owns_connection_manager else None
        )
        check_namespace(namespace, self._connection_manager.target.cluster)
        self._flows = RsmqFlows(namespace, realtime, units)
        self._client = RedisClient(self._connection_manager, RsmqKeys(namespace, ""))

    @property
    def namespace(self) -> str:
        return self._flows.namespace

    @property
    def target(self) -> RedisTarget:
        return self._connection_manager.target

    @property
    def flows(self) -> RsmqFlows:
        """The verbs as flows, for those who combine them (the bridge)."""
        return self._flows

    @property
    def client(self) -> RedisClient:
        return self._client

    def create_queue(
        self,
        qname: str | None = None,
        *,
        vt: SecondsInput | None = None,
        delay: SecondsInput | None = None,
        maxsize: int | str | None = None,
    ) -> int:
        """Create a queue; without a word it has vt 30, delay 0 and maxsize 65536."""
        return self._client.run_flow(self._flows.create_queue(qname, vt, delay, maxsize))

    def list_queues(self) -> list[str]:
        """Return the names of all queues, in no order."""
        return self._client.execute(self._flows.list_queues())

    def delete_queue(self, qname: str | None = None) -> int:
        """Delete a queue and all its messages."""
        return self._client.run_flow(self._flows.delete_queue(qname))

    def get_queue_attributes(self, qname: str | None = None) -> RsmqQueueAttributes:
        """Return a queue's settings and counts."""
        return self._client.run_flow(self._flows.get_queue_attributes(qname))

    def set_queue_attributes(
        self,
        qname: str | None = None,
        *,
        vt: SecondsInput | None = None,
        delay: SecondsInput | None = None,
        maxsize: int | str | None = None,
    ) -> RsmqQueueAttributes:
        """Change what is given and return the new attributes."""
        flow = self._flows.set_queue_attributes(qname, vt, delay, maxsize)
        return self._client.run_flow(flow)

    def send_message(
        self, qname: str | None = None, message: Any = None, *, delay: SecondsInput | None = None
    ) -> str:
        """Send a string and return its id; visible after `delay` seconds."""
        return self._client.run_flow(self._flows.send_message(qname, message, delay))

    def receive_message(
        self, qname: str | None = None, *, vt: SecondsInput | None = None
    ) -> RsmqMessage | None:
        """Return the first visible message and hide it for `vt` seconds; None if there is none."""
        return self._client.run_flow(self._flows.receive_message(qname, vt))

    def pop_message(self, qname: str | None = None) -> RsmqMessage | None:
        """Return the first visible message and delete it: a crash after this loses it."""
        return self._client.run_flow(self._flows.pop_message(qname))

    def delete_message(self, qname: str | None = None, id: str | None = None) -> int:
        """Delete a message, whoever holds it; 1, or 0 if there is none."""
        return self._client.run_flow(self._flows.delete_message(qname, id))

    def change_message_visibility(
        self, qname: str | None = None, id: str | None = None, *, vt: SecondsInput | None = None
    ) -> int:
        """Let a message become visible `vt` seconds from now; 1, or 0 if there is none."""
        return self._client.run_flow(self._flows.change_message_visibility(qname, id, vt))

    def peek_messages(
        self, qname: str | None = None, *, limit: int = 10, include_hidden: bool = False
    ) -> list[RsmqMessage]:
        """Return messages in their order without receiving them; with `hidden`, those too."""
        return self._client.run_flow(self._flows.peek_messages(qname, limit, include_hidden))

    def quit(self) -> None:
        """Give the connections back."""
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()
        if self._owns_connection_manager:
            self._connection_manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncRsmqClient:
    """RSMQ queues of one namespace, awaited. `server` is a URL, a Target or a shared link.

    `realtime` publishes every send on the queue's channel. Queues that the Rust client rsmq_async
    made hold milliseconds: give `units="ms"` for those.
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
        self._connection_manager = AsyncConnectionManager.from_server(
            server, _DIALECT if self._owns_connection_manager else None
        )
        check_namespace(namespace, self._connection_manager.target.cluster)
        self._flows = RsmqFlows(namespace, realtime, units)
        self._client = AsyncRedisClient(self._connection_manager, RsmqKeys(namespace, ""))

    @property
    def namespace(self) -> str:
        return self._flows.namespace

    @property
    def target(self) -> RedisTarget:
        return self._connection_manager.target

    @property
    def connection_manager(self) -> AsyncConnectionManager:
        """The connections, for those who listen to a channel."""
        return self._connection_manager

    @property
    def flows(self) -> RsmqFlows:
        """The verbs as flows, for those who combine them (the bridge)."""
        return self._flows

    @property
    def client(self) -> AsyncRedisClient:
        return self._client

    async def create_queue(
        self,
        qname: str | None = None,
        *,
        vt: SecondsInput | None = None,
        delay: SecondsInput | None = None,
        maxsize: int | str | None = None,
    ) -> int:
        """Create a queue; without a word it has vt 30, delay 0 and maxsize 65536."""
        return await self._client.run_flow(self._flows.create_queue(qname, vt, delay, maxsize))

    async def list_queues(self) -> list[str]:
        """Return the names of all queues, in no order."""
        return await self._client.execute(self._flows.list_queues())

    async def delete_queue(self, qname: str | None = None) -> int:
        """Delete a queue and all its messages."""
        return await self._client.run_flow(self._flows.delete_queue(qname))

    async def get_queue_attributes(self, qname: str | None = None) -> RsmqQueueAttributes:
        """Return a queue's settings and counts."""
        return await self._client.run_flow(self._flows.get_queue_attributes(qname))

    async def set_queue_attributes(
        self,
        qname: str | None = None,
        *,
        vt: SecondsInput | None = None,
        delay: SecondsInput | None = None,
        maxsize: int | str | None = None,
    ) -> RsmqQueueAttributes:
        """Change what is given and return the new attributes."""
        flow = self._flows.set_queue_attributes(qname, vt, delay, maxsize)
        return await self._client.run_flow(flow)

    async def send_message(
        self, qname: str | None = None, message: Any = None, *, delay: SecondsInput | None = None
    ) -> str:
        """Send a string and return its id; visible after `delay` seconds."""
        return await self._client.run_flow(self._flows.send_message(qname, message, delay))

    async def receive_message(
        self, qname: str | None = None, *, vt: SecondsInput | None = None
    ) -> RsmqMessage | None:
        """Return the first visible message and hide it for `vt` seconds; None if there is none."""
        return await self._client.run_flow(self._flows.receive_message(qname, vt))

    async def pop_message(self, qname: str | None = None) -> RsmqMessage | None:
        """Return the first visible message and delete it: a crash after this loses it."""
        return await self._client.run_flow(self._flows.pop_message(qname))

    async def delete_message(self, qname: str | None = None, id: str | None = None) -> int:
        """Delete a message, whoever holds it; 1, or 0 if there is none."""
        return await self._client.run_flow(self._flows.delete_message(qname, id))

    async def change_message_visibility(
        self, qname: str | None = None, id: str | None = None, *, vt: SecondsInput | None = None
    ) -> int:
        """Let a message become visible `vt` seconds from now; 1, or 0 if there is none."""
        return await self._client.run_flow(self._flows.change_message_visibility(qname, id, vt))

    async def peek_messages(
        self, qname: str | None = None, *, limit: int = 10, include_hidden: bool = False
    ) -> list[RsmqMessage]:
        """Return messages in their order without receiving them; with `hidden`, those too."""
        return await self._client.run_flow(self._flows.peek_messages(qname, limit, include_hidden))

    async def quit(self) -> None:
        """Give the connections back."""
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.close()
        if self._owns_connection_manager:
            await self._connection_manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
