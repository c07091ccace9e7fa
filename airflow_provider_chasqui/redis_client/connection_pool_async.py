"""Connection pools of one target. redis-py opens the connections: TLS, login, Sentinel, parsing.

There are no locks. A fork while a lock is held would leave it locked in the child forever, and a
pool that two threads create at the same time is harmless.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import redis.asyncio
import redis.asyncio.sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from airflow_provider_chasqui.redis_client.cluster import CLUSTER_SLOTS, ClusterSlots, Node
from airflow_provider_chasqui.redis_client.connection import (
    AsyncConnectionMixin,
    make_connection_class,
    sentinel_clients,
)
from airflow_provider_chasqui.redis_client.connection_options import (
    connection_kwargs,
    node_kwargs,
    sentinel_kwargs,
    tls_kwargs,
)
from airflow_provider_chasqui.redis_client.dialect import check_dialect
from airflow_provider_chasqui.redis_client.error_mapping import CONNECTION_ERRORS
from airflow_provider_chasqui.redis_client.target import RedisTarget


class AsyncSentinel(redis.asyncio.sentinel.Sentinel):
    """Sentinel client that is safe for concurrent discovery.

    redis-py moves the sentinel that replied to the front of a shared list. With two discoveries at
    the same time, one sentinel could be inserted twice and another one lost with its connections.
    Here each discovery uses a copy of the list.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    async def discover_master(self, service_name: str) -> Any:
        """Return the address of the current master.

        :param service_name: the name of the master in the configuration of the sentinels.
        """
        discovery: Any = copy(self)
        discovery.sentinels = list(self.sentinels)
        return await redis.asyncio.sentinel.Sentinel.discover_master(discovery, service_name)


class AsyncConnectionManager:
    """Connections to one target, shared by any number of clients.

    An asyncio manager belongs to one event loop. A blocking manager may be used by several threads,
    and after a fork.

    :param target: the server.
    """

    @classmethod
    def from_server(
        cls, server: str | RedisTarget | AsyncConnectionManager, dialect: str | None = None
    ) -> AsyncConnectionManager:
        """Return a new connection manager, or the given one.

        :param server: a URL, a RedisTarget, or a connection manager to share.
        :param dialect: "native" or "portable". None detects it at the first command.
        :raises InvalidArgument: if the URL or the dialect is not valid.
        """
        manager = (
            server
            if isinstance(server, AsyncConnectionManager)
            else cls(RedisTarget.coerce(server))
        )
        manager.dialect = check_dialect(dialect) or manager.dialect
        return manager

    def __init__(self, target: RedisTarget):
        self.target = target
        self.dialect: str | None = None
        self._pools: dict[Node, Any] = {}
        self._slots: ClusterSlots | None = None
        self._connection_class = make_connection_class(target, redis.asyncio, AsyncConnectionMixin)
        self._retry = Retry(NoBackoff(), 0)
        self._extra_kwargs = {"retry": self._retry, **AsyncConnectionMixin.extra_kwargs}

    async def pool_for_tag(self, hash_tag: str) -> Any:
        """Return the pool of the node that holds the keys with a hash tag.

        :param hash_tag: the hash tag, with its braces.
        """
        target = self.target
        if target.cluster:
            return self.pool_for_node(await self._node_for_tag(hash_tag))
        if target.sentinel_master:
            return self._sentinel_pool(target.sentinel_master)
        return self.pool_for_node(target.nodes[0] if target.nodes else ("", 0))

    def pool_for_node(self, node: Node) -> Any:
        """Return the pool of one node.

        :param node: host and port.
        """
        if node not in self._pools:
            options = (
                connection_kwargs(self.target) | node_kwargs(self.target, node) | self._extra_kwargs
            )
            pool = redis.asyncio.ConnectionPool(connection_class=self._connection_class, **options)
            self._pools.setdefault(node, pool)
        return self._pools[node]

    async def invalidate_topology(self) -> None:
        """Forget which node holds which slot. The next call asks the cluster again."""
        self._slots = None

    async def close(self) -> None:
        """Close every connection. The next call opens new ones."""
        pools, self._pools, self._slots = self._pools, {}, None
        for pool in pools.values():
            await pool.disconnect()
            for client in sentinel_clients(pool):
                await client.aclose()

    def _sentinel_pool(self, service_name: str) -> Any:
        key = (service_name, 0)
        if key not in self._pools:
            target = self.target
            sentinel = AsyncSentinel(
                list(target.nodes), sentinel_kwargs=sentinel_kwargs(target) | {"retry": self._retry}
            )
            options = connection_kwargs(target) | tls_kwargs(target) | self._extra_kwargs
            pool = redis.asyncio.sentinel.SentinelConnectionPool(
                service_name, sentinel, connection_class=self._connection_class, **options
            )
            self._pools.setdefault(key, pool)
        return self._pools[key]

    async def _node_for_tag(self, hash_tag: str) -> Node:
        slots = self._slots
        if slots is None:
            slots = self._slots = await self._fetch_slots()
        return slots.node_for_tag(hash_tag)

    async def _fetch_slots(self) -> ClusterSlots:
        discovered = [node for node in self._pools if node not in self.target.nodes]
        last_error: Exception | None = None
        for node in (*self.target.nodes, *discovered):
            try:
                return ClusterSlots(await self._query_slots(node), node)
            except (*CONNECTION_ERRORS, ResponseError) as error:
                last_error = error
        assert last_error is not None
        raise last_error

    async def _query_slots(self, node: Node) -> Any:
        pool = self.pool_for_node(node)
        connection = await pool.get_connection()
        try:
            await connection.send(CLUSTER_SLOTS)
            (reply,) = await connection.read(1, None)
        except BaseException:
            await connection.abort()
            raise
        finally:
            await pool.release(connection)
        if isinstance(reply, ResponseError):
            raise reply
        return reply
