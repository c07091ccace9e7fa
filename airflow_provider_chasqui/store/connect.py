"""Connections: redis-py makes them (TLS, login, failover, parsing), we lend them out.

`Link` is for threads, `AsyncLink` for one event loop; they mirror each other. Neither takes a lock:
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

from airflow_provider_chasqui.store.dialect import check_dialect
from airflow_provider_chasqui.store.options import (
    AsyncWhole,
    Whole,
    address,
    kind_of,
    options_of,
    sentinel_options,
    tls_options,
)
from airflow_provider_chasqui.store.resp import pack
from airflow_provider_chasqui.store.slots import Node, SlotMap
from airflow_provider_chasqui.store.target import Target
from airflow_provider_chasqui.store.translate import BROKEN

_CLUSTER_SLOTS = pack(["CLUSTER", "SLOTS"])


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


class Link:
    """Connections to one target, for threads. Safe to keep across a fork."""

    @classmethod
    def of(cls, server: str | Target | Link, dialect: str | None = None) -> Link:
        """Return a new link, or the one that is given, to be shared."""
        link = server if isinstance(server, Link) else cls(Target.of(server))
        link.dialect = check_dialect(dialect) or link.dialect
        return link

    def __init__(self, target: Target):
        self.target = target
        self.dialect: str | None = None
        self._pools: dict[Node, Any] = {}
        self._slots: SlotMap | None = None
        self._options = {"retry": Retry(NoBackoff(), 0)}
        self._connection = kind_of(target, redis, Whole)

    def pool(self, tag: str) -> Any:
        """Return the pool of the node that holds the keys with this hash tag."""
        target = self.target
        if target.cluster:
            return self.node_pool(self._owner(tag))
        if target.sentinel_master:
            return self._sentinel_pool(target.sentinel_master)
        return self.node_pool(target.nodes[0] if target.nodes else ("", 0))

    def node_pool(self, node: Node) -> Any:
        """Return the pool of one node."""
        if node not in self._pools:
            options = options_of(self.target) | address(self.target, node) | self._options
            pool = redis.ConnectionPool(connection_class=self._connection, **options)
            self._pools.setdefault(node, pool)
        return self._pools[node]

    def forget_topology(self) -> None:
        """Ask the cluster anew who holds what, on the next call."""
        self._slots = None

    def close(self) -> None:
        """End every connection; the next call makes new ones."""
        pools, self._pools, self._slots = self._pools, {}, None
        for pool in pools.values():
            pool.disconnect()
            for sentinel in _sentinels(pool):
                sentinel.close()

    def _sentinel_pool(self, master: str) -> Any:
        key = (master, 0)
        if key not in self._pools:
            target, own = self.target, {"retry": self._options["retry"]}
            sentinel = Sentinel(list(target.nodes), sentinel_kwargs=sentinel_options(target) | own)
            options = options_of(target) | tls_options(target) | self._options
            pool = redis.sentinel.SentinelConnectionPool(
                master, sentinel, connection_class=self._connection, **options
            )
            self._pools.setdefault(key, pool)
        return self._pools[key]

    def _owner(self, tag: str) -> Node:
        slots = self._slots
        if slots is None:
            slots = self._slots = self._ask_cluster()
        return slots.owner(tag)

    def _ask_cluster(self) -> SlotMap:
        known = [node for node in self._pools if node not in self.target.nodes]
        failure: Exception | None = None
        for node in (*self.target.nodes, *known):
            try:
                return SlotMap(self._ask(node), node)
            except (*BROKEN, ResponseError) as error:
                failure = error
        assert failure is not None
        raise failure

    def _ask(self, node: Node) -> Any:
        pool = self.node_pool(node)
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


class AsyncLink:
    """Connections to one target, for one event loop."""

    @classmethod
    def of(cls, server: str | Target | AsyncLink, dialect: str | None = None) -> AsyncLink:
        """Return a new link, or the one that is given, to be shared."""
        link = server if isinstance(server, AsyncLink) else cls(Target.of(server))
        link.dialect = check_dialect(dialect) or link.dialect
        return link

    def __init__(self, target: Target):
        self.target = target
        self.dialect: str | None = None
        self._pools: dict[Node, Any] = {}
        self._slots: SlotMap | None = None
        self._options = {"retry": AsyncRetry(NoBackoff(), 0), "socket_timeout": None}
        self._connection = kind_of(target, redis.asyncio, AsyncWhole)

    async def pool(self, tag: str) -> Any:
        """Return the pool of the node that holds the keys with this hash tag."""
        target = self.target
        if target.cluster:
            return self.node_pool(await self._owner(tag))
        if target.sentinel_master:
            return self._sentinel_pool(target.sentinel_master)
        return self.node_pool(target.nodes[0] if target.nodes else ("", 0))

    def node_pool(self, node: Node) -> Any:
        """Return the pool of one node."""
        if node not in self._pools:
            options = options_of(self.target) | address(self.target, node) | self._options
            pool = redis.asyncio.ConnectionPool(connection_class=self._connection, **options)
            self._pools.setdefault(node, pool)
        return self._pools[node]

    async def forget_topology(self) -> None:
        """Ask the cluster anew who holds what, on the next call."""
        self._slots = None

    async def close(self) -> None:
        """End every connection; the next call makes new ones."""
        pools, self._pools, self._slots = self._pools, {}, None
        for pool in pools.values():
            await pool.disconnect()
            for sentinel in _sentinels(pool):
                await sentinel.aclose()

    def _sentinel_pool(self, master: str) -> Any:
        key = (master, 0)
        if key not in self._pools:
            target, own = self.target, {"retry": self._options["retry"]}
            sentinel = AsyncSentinel(
                list(target.nodes), sentinel_kwargs=sentinel_options(target) | own
            )
            options = options_of(target) | tls_options(target) | self._options
            pool = redis.asyncio.sentinel.SentinelConnectionPool(
                master, sentinel, connection_class=self._connection, **options
            )
            self._pools.setdefault(key, pool)
        return self._pools[key]

    async def _owner(self, tag: str) -> Node:
        slots = self._slots
        if slots is None:
            slots = self._slots = await self._ask_cluster()
        return slots.owner(tag)

    async def _ask_cluster(self) -> SlotMap:
        known = [node for node in self._pools if node not in self.target.nodes]
        failure: Exception | None = None
        for node in (*self.target.nodes, *known):
            try:
                return SlotMap(await self._ask(node), node)
            except (*BROKEN, ResponseError) as error:
                failure = error
        assert failure is not None
        raise failure

    async def _ask(self, node: Node) -> Any:
        pool = self.node_pool(node)
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
