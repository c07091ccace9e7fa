"""Connections: redis-py makes them (TLS, login, failover, parsing), we lend them out.

`Link` is for threads, `AsyncConnectionManager` for one event loop; they mirror each other. Neither takes a lock:
a fork in the middle would leave it locked for ever, and what two threads build twice is harmless.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from airflow_provider_chasqui.core.resp import encode_command
from airflow_provider_chasqui.redis_client.cluster import ClusterSlots, Node
from airflow_provider_chasqui.redis_client.connection import (
    AsyncConnectionMixin,
    ConnectionMixin,
    connection_kwargs,
    make_connection_class,
    node_kwargs,
    sentinel_kwargs,
    tls_kwargs,
)
from airflow_provider_chasqui.redis_client.dialect import check_dialect
from airflow_provider_chasqui.redis_client.error_mapping import CONNECTION_ERRORS
from airflow_provider_chasqui.redis_client.target import RedisTarget

_CLUSTER_SLOTS = encode_command(["CLUSTER", "SLOTS"])


class Sentinel(redis.sentinel.Sentinel):
    """Asks by a list of its own.

    redis-py moves the sentinel that answered to the front; of two that ask at the same time, the
    second would put one in twice and lose another, with all its open connections.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    def discover_master(self, service_name: str) -> Any:
        asked: Any = copy(self)
        asked.sentinels = list(self.sentinels)
        return redis.sentinel.Sentinel.discover_master(asked, service_name)


class AsyncSentinel(redis.asyncio.sentinel.Sentinel):
    """The same, awaited."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    async def discover_master(self, service_name: str) -> Any:
        asked: Any = copy(self)
        asked.sentinels = list(self.sentinels)
        return await redis.asyncio.sentinel.Sentinel.discover_master(asked, service_name)


class ConnectionManager:
    """Connections to one target, for threads. Safe to keep across a fork."""

    @classmethod
    def from_server(
        cls, server: str | RedisTarget | ConnectionManager, dialect: str | None = None
    ) -> ConnectionManager:
        """Return a new link, or the one that is given, to be shared."""
        link = server if isinstance(server, ConnectionManager) else cls(RedisTarget.coerce(server))
        link.dialect = check_dialect(dialect) or link.dialect
        return link

    def __init__(self, target: RedisTarget):
        self.target = target
        self.dialect: str | None = None
        self._pools: dict[Node, Any] = {}
        self._slots: ClusterSlots | None = None
        self._extra_kwargs = {"retry": Retry(NoBackoff(), 0)}
        self._connection_class = make_connection_class(target, redis, ConnectionMixin)

    def pool_for_tag(self, hash_tag: str) -> Any:
        """Return the pool of the node that holds the keys with this hash tag."""
        target = self.target
        if target.cluster:
            return self.pool_for_node(self._node_for_tag(hash_tag))
        if target.sentinel_master:
            return self._sentinel_pool(target.sentinel_master)
        return self.pool_for_node(target.nodes[0] if target.nodes else ("", 0))

    def pool_for_node(self, node: Node) -> Any:
        """Return the pool of one node."""
        if node not in self._pools:
            options = (
                connection_kwargs(self.target) | node_kwargs(self.target, node) | self._extra_kwargs
            )
            pool = redis.ConnectionPool(connection_class=self._connection_class, **options)
            self._pools.setdefault(node, pool)
        return self._pools[node]

    def invalidate_topology(self) -> None:
        """Ask the cluster anew who holds what, on the next call."""
        self._slots = None

    def close(self) -> None:
        """End every connection; the next call makes new ones."""
        pools, self._pools, self._slots = self._pools, {}, None
        for pool in pools.values():
            pool.disconnect()
            for sentinel in _sentinels(pool):
                sentinel.close()

    def _sentinel_pool(self, service_name: str) -> Any:
        key = (service_name, 0)
        if key not in self._pools:
            target, own = self.target, {"retry": self._extra_kwargs["retry"]}
            sentinel = Sentinel(list(target.nodes), sentinel_kwargs=sentinel_kwargs(target) | own)
            options = connection_kwargs(target) | tls_kwargs(target) | self._extra_kwargs
            pool = redis.sentinel.SentinelConnectionPool(
                service_name, sentinel, connection_class=self._connection_class, **options
            )
            self._pools.setdefault(key, pool)
        return self._pools[key]

    def _node_for_tag(self, hash_tag: str) -> Node:
        slots = self._slots
        if slots is None:
            slots = self._slots = self._fetch_slots()
        return slots.node_for_tag(hash_tag)

    def _fetch_slots(self) -> ClusterSlots:
        known = [node for node in self._pools if node not in self.target.nodes]
        failure: Exception | None = None
        for node in (*self.target.nodes, *known):
            try:
                return ClusterSlots(self._query_slots(node), node)
            except (*CONNECTION_ERRORS, ResponseError) as error:
                failure = error
        assert failure is not None
        raise failure

    def _query_slots(self, node: Node) -> Any:
        pool = self.pool_for_node(node)
        connection = pool.get_connection()
        try:
            connection.send(_CLUSTER_SLOTS)
            (reply,) = connection.read(1, None)
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
        if isinstance(reply, ResponseError):
            raise reply
        return reply


class AsyncConnectionManager:
    """Connections to one target, for one event loop."""

    @classmethod
    def from_server(
        cls, server: str | RedisTarget | AsyncConnectionManager, dialect: str | None = None
    ) -> AsyncConnectionManager:
        """Return a new link, or the one that is given, to be shared."""
        link = (
            server
            if isinstance(server, AsyncConnectionManager)
            else cls(RedisTarget.coerce(server))
        )
        link.dialect = check_dialect(dialect) or link.dialect
        return link

    def __init__(self, target: RedisTarget):
        self.target = target
        self.dialect: str | None = None
        self._pools: dict[Node, Any] = {}
        self._slots: ClusterSlots | None = None
        self._extra_kwargs = {"retry": AsyncRetry(NoBackoff(), 0), "socket_timeout": None}
        self._connection_class = make_connection_class(target, redis.asyncio, AsyncConnectionMixin)

    async def pool_for_tag(self, hash_tag: str) -> Any:
        """Return the pool of the node that holds the keys with this hash tag."""
        target = self.target
        if target.cluster:
            return self.pool_for_node(await self._node_for_tag(hash_tag))
        if target.sentinel_master:
            return self._sentinel_pool(target.sentinel_master)
        return self.pool_for_node(target.nodes[0] if target.nodes else ("", 0))

    def pool_for_node(self, node: Node) -> Any:
        """Return the pool of one node."""
        if node not in self._pools:
            options = (
                connection_kwargs(self.target) | node_kwargs(self.target, node) | self._extra_kwargs
            )
            pool = redis.asyncio.ConnectionPool(connection_class=self._connection_class, **options)
            self._pools.setdefault(node, pool)
        return self._pools[node]

    async def invalidate_topology(self) -> None:
        """Ask the cluster anew who holds what, on the next call."""
        self._slots = None

    async def close(self) -> None:
        """End every connection; the next call makes new ones."""
        pools, self._pools, self._slots = self._pools, {}, None
        for pool in pools.values():
            await pool.disconnect()
            for sentinel in _sentinels(pool):
                await sentinel.aclose()

    def _sentinel_pool(self, service_name: str) -> Any:
        key = (service_name, 0)
        if key not in self._pools:
            target, own = self.target, {"retry": self._extra_kwargs["retry"]}
            sentinel = AsyncSentinel(
                list(target.nodes), sentinel_kwargs=sentinel_kwargs(target) | own
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
        known = [node for node in self._pools if node not in self.target.nodes]
        failure: Exception | None = None
        for node in (*self.target.nodes, *known):
            try:
                return ClusterSlots(await self._query_slots(node), node)
            except (*CONNECTION_ERRORS, ResponseError) as error:
                failure = error
        assert failure is not None
        raise failure

    async def _query_slots(self, node: Node) -> Any:
        pool = self.pool_for_node(node)
        connection = await pool.get_connection()
        try:
            await connection.send(_CLUSTER_SLOTS)
            (reply,) = await connection.read(1, None)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)
        if isinstance(reply, ResponseError):
            raise reply
        return reply


def _sentinels(pool: Any) -> list[Any]:
    manager = getattr(pool, "sentinel_manager", None)
    return list(manager.sentinels) if manager else []
