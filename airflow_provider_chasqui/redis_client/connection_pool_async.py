"""Connection pools of one target. redis-py opens the connections: TLS, login, Sentinel, parsing.

There are no locks between threads. A fork while a lock is held would leave it locked in the child
forever, and a pool that two threads create at the same time is harmless.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from copy import copy
from typing import Any

import redis.asyncio
import redis.asyncio.sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from airflow_provider_chasqui.core.fork import fork_state
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


# Seconds after which an unused connection is closed, when the pool is used again.
IDLE_TIMEOUT = 60.0


class AsyncNodePool:
    """Connections to one node that no client uses at the moment.

    A pool that is closed while a connection is in use closes that connection when it is released.

    :param factory: a pool of redis-py, which only creates the connections.
    :param max_connections: the number of connections that stay open without being used. An asyncio
        pool also hands out no more than this number at the same time, except for blocking reads.
    """

    def __init__(self, factory: Any, max_connections: int):
        self.factory = factory
        self.closed = False
        self._max_connections = max_connections
        self._reset()

    def _reset(self) -> None:
        self._generation = fork_state.generation
        # Connections with the time of their release, the longest unused one first.
        self._idle: deque[tuple[float, Any]] = deque()
        if True:  # ASYNC
            self._slots = asyncio.Semaphore(self._max_connections)

    async def acquire(self, *, limited: bool = True) -> Any:
        """Return a connection that is logged in.

        :param limited: whether the connection counts towards `max_connections` of an asyncio pool.
            The call then waits until another connection is released.
        """
        await self.begin_use(limited)
        try:
            return await self.take()
        except BaseException:
            self.end_use(limited)
            raise

    async def begin_use(self, limited: bool) -> None:
        """Wait until an asyncio pool allows one more connection to be used.

        :param limited: see `acquire`.
        """
        if True:  # ASYNC
            if limited:
                await self._slots.acquire()

    def end_use(self, limited: bool) -> None:
        """Let a waiting call of an asyncio pool use a connection.

        :param limited: see `acquire`.
        """
        if True:  # ASYNC
            if limited:
                self._slots.release()

    async def take(self) -> Any:
        """Return an unused connection or a new one. The caller has called `begin_use`."""
        if self._generation != fork_state.generation:  # the parent process owns those sockets
            self._reset()
        try:
            connection = self._idle.pop()[1]
        except IndexError:
            connection = self.factory.connection_class(**self.factory.connection_kwargs)
        # An unused connection may have been closed, for example after its server was restarted.
        await connection.connect()
        return connection

    async def release(
        self, connection: Any, *, limited: bool = True, reusable: bool = True
    ) -> None:
        """Take back a connection.

        :param connection: the connection.
        :param limited: the value that was passed to `acquire`.
        :param reusable: whether no reply is outstanding. Otherwise the connection is closed.
        """
        self.end_use(limited)
        if not reusable or self.closed or len(self._idle) >= self._max_connections:
            await connection.abort()
            return
        now = time.monotonic()
        self._idle.append((now, connection))
        try:
            while self._idle[0][0] < now - IDLE_TIMEOUT:
                await self._idle.popleft()[1].abort()
        except IndexError:  # another thread has taken it
            pass

    async def close_idle(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            try:
                connection = self._idle.pop()[1]
            except IndexError:  # another thread has taken it
                return
            await connection.abort()

    async def close(self) -> None:
        """Close the connections, and those in use when they are released."""
        self.closed = True
        await self.close_idle()
        for client in sentinel_clients(self.factory):
            await client.aclose()


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
        self._pools: dict[Node, AsyncNodePool] = {}
        self._slots: ClusterSlots | None = None
        self._connection_class = make_connection_class(target, redis.asyncio, AsyncConnectionMixin)
        self._retry = Retry(NoBackoff(), 0)
        self._extra_kwargs = {"retry": self._retry, **AsyncConnectionMixin.extra_kwargs}

    async def pool_for_tag(self, hash_tag: str) -> AsyncNodePool:
        """Return the pool of the node that holds the keys with a hash tag.

        :param hash_tag: the hash tag, with its braces.
        """
        target = self.target
        if target.cluster:
            return self.pool_for_node(await self._node_for_tag(hash_tag))
        if target.sentinel_master:
            return self._sentinel_pool(target.sentinel_master)
        return self.pool_for_node(target.nodes[0] if target.nodes else ("", 0))

    def pool_for_node(self, node: Node) -> AsyncNodePool:
        """Return the pool of one node.

        :param node: host and port.
        """
        if node not in self._pools:
            options = (
                connection_kwargs(self.target) | node_kwargs(self.target, node) | self._extra_kwargs
            )
            factory = redis.asyncio.ConnectionPool(
                connection_class=self._connection_class, **options
            )
            self._pools.setdefault(node, AsyncNodePool(factory, self.target.max_connections))
        return self._pools[node]

    async def invalidate_topology(self) -> None:
        """Forget which node holds which slot, and close the connections that are not in use.

        The next call asks the cluster again. An unused connection may lead to a former master.
        """
        self._slots = None
        for pool in list(self._pools.values()):
            await pool.close_idle()

    async def close(self) -> None:
        """Close every connection. The next call opens new ones."""
        pools, self._pools, self._slots = self._pools, {}, None
        for pool in pools.values():
            await pool.close()

    def _sentinel_pool(self, service_name: str) -> AsyncNodePool:
        key = (service_name, 0)
        if key not in self._pools:
            target = self.target
            sentinel = AsyncSentinel(
                list(target.nodes), sentinel_kwargs=sentinel_kwargs(target) | {"retry": self._retry}
            )
            options = connection_kwargs(target) | tls_kwargs(target) | self._extra_kwargs
            factory = redis.asyncio.sentinel.SentinelConnectionPool(
                service_name, sentinel, connection_class=self._connection_class, **options
            )
            self._pools.setdefault(key, AsyncNodePool(factory, target.max_connections))
        return self._pools[key]

    async def _node_for_tag(self, hash_tag: str) -> Node:
        slots = self._slots
        if slots is None:
            slots = self._slots = await self._fetch_slots()
            await self._close_unknown_nodes(slots)
        return slots.node_for_tag(hash_tag)

    async def _close_unknown_nodes(self, slots: ClusterSlots) -> None:
        """Close the pools of nodes that are not part of the cluster any more."""
        for node in self._pools.keys() - {*slots.nodes, *self.target.nodes}:
            pool = self._pools.pop(node, None)
            if pool is not None:
                await pool.close()

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
        connection = await pool.acquire(limited=False)
        reusable = False
        try:
            await connection.send(CLUSTER_SLOTS)
            (reply,) = await connection.read(1, None)
            reusable = True
        finally:
            await pool.release(connection, limited=False, reusable=reusable)
        if isinstance(reply, ResponseError):
            raise reply
        return reply
