"""Connections: redis-py makes them (TLS, login, failover, parsing), we lend them out.

`Link` is for threads, `AsyncLink` for one event loop; they mirror each other.
"""

from __future__ import annotations

import ssl
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.retry import Retry

from airflow_provider_chasqui.store.target import Target

Node = tuple[str, int]


def _options(target: Target) -> dict[str, Any]:
    # RESP2 and no decoding: replies are the same nested lists whatever the server.
    options: dict[str, Any] = {
        "db": target.db,
        "username": target.username,
        "password": target.password,
        "credential_provider": target.credential_provider,
        "socket_timeout": target.timeout,
        "socket_connect_timeout": target.connect_timeout,
        "client_name": target.client_name,
        "protocol": 2,
        "socket_keepalive": True,
    }
    if target.credential_provider:
        options["username"] = options["password"] = None
    return options


def _tls_options(target: Target) -> dict[str, Any]:
    if target.tls is None:
        return {}
    return {
        "ssl_ca_certs": target.tls.ca_file,
        "ssl_certfile": target.tls.cert_file,
        "ssl_keyfile": target.tls.key_file,
        "ssl_cert_reqs": "required" if target.tls.verify else "none",
        "ssl_check_hostname": target.tls.verify and target.tls.check_hostname,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }


def _sentinel_options(target: Target) -> dict[str, Any]:
    return {
        "username": target.sentinel_username,
        "password": target.sentinel_password,
        "socket_timeout": target.timeout,
        "socket_connect_timeout": target.connect_timeout,
        "protocol": 2,
    } | ({"ssl": True} | _tls_options(target) if target.tls else {})


class Link:
    """Connections to one target, for threads. Safe to keep across a fork."""

    def __init__(self, target: Target):
        self.target = target
        self.dialect: str | None = None
        self._pools: dict[Node, Any] = {}
        self._cluster: RedisCluster | None = None
        self._retry = {"retry": Retry(NoBackoff(), 0)}

    def pool(self, tag: str) -> Any:
        """Return the pool of the node that holds the keys with this hash tag."""
        target = self.target
        if target.cluster:
            return self.node_pool(self._node(tag))
        if target.sentinel_master:
            return self._sentinel_pool(target.sentinel_master)
        return self.node_pool(target.nodes[0] if target.nodes else ("", 0))

    def node_pool(self, node: Node) -> Any:
        if node not in self._pools:
            target, options = self.target, _options(self.target) | self._retry
            if target.unix_path:
                options |= {"path": target.unix_path}
                options.pop("socket_keepalive")
                kind: type[Any] = redis.UnixDomainSocketConnection
            else:
                options |= {"host": node[0], "port": node[1]} | _tls_options(target)
                kind = redis.SSLConnection if target.tls else redis.Connection
            self._pools[node] = redis.ConnectionPool(connection_class=kind, **options)
        return self._pools[node]

    def forget_topology(self) -> None:
        """Ask the cluster anew who holds what, on the next call."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def close(self) -> None:
        self.forget_topology()
        for pool in self._pools.values():
            pool.disconnect()
        self._pools.clear()

    def _sentinel_pool(self, master: str) -> Any:
        key = (master, 0)
        if key not in self._pools:
            target = self.target
            sentinel = redis.sentinel.Sentinel(
                list(target.nodes), sentinel_kwargs=_sentinel_options(target)
            )
            options = _options(target) | _tls_options(target) | self._retry
            self._pools[key] = redis.sentinel.SentinelConnectionPool(
                master, sentinel, ssl=target.tls is not None, **options
            )
        return self._pools[key]

    def _node(self, tag: str) -> Node:
        if self._cluster is None:
            options = _options(self.target) | _tls_options(self.target)
            options.pop("db")
            startup = [redis.cluster.ClusterNode(*node) for node in self.target.nodes]
            self._cluster = RedisCluster(
                startup_nodes=startup,
                ssl=self.target.tls is not None,
                **options | {"retry": Retry(NoBackoff(), 3)},
            )
        node = self._cluster.nodes_manager.get_node_from_slot(key_slot(tag.encode()))
        return node.host, int(node.port)


class AsyncLink:
    """Connections to one target, for one event loop."""

    def __init__(self, target: Target):
        self.target = target
        self.dialect: str | None = None
        self._pools: dict[Node, Any] = {}
        self._cluster: redis.asyncio.RedisCluster | None = None
        self._retry = {"retry": AsyncRetry(NoBackoff(), 0)}

    async def pool(self, tag: str) -> Any:
        target = self.target
        if target.cluster:
            return self.node_pool(await self._node(tag))
        if target.sentinel_master:
            return self._sentinel_pool(target.sentinel_master)
        return self.node_pool(target.nodes[0] if target.nodes else ("", 0))

    def node_pool(self, node: Node) -> Any:
        if node not in self._pools:
            target, options = self.target, _options(self.target) | self._retry
            if target.unix_path:
                options |= {"path": target.unix_path}
                options.pop("socket_keepalive")
                kind: type[Any] = redis.asyncio.UnixDomainSocketConnection
            else:
                options |= {"host": node[0], "port": node[1]} | _tls_options(target)
                kind = redis.asyncio.SSLConnection if target.tls else redis.asyncio.Connection
            self._pools[node] = redis.asyncio.ConnectionPool(connection_class=kind, **options)
        return self._pools[node]

    async def forget_topology(self) -> None:
        if self._cluster is not None:
            await self._cluster.aclose()
            self._cluster = None

    async def close(self) -> None:
        await self.forget_topology()
        for pool in self._pools.values():
            await pool.disconnect()
        self._pools.clear()

    def _sentinel_pool(self, master: str) -> Any:
        key = (master, 0)
        if key not in self._pools:
            target = self.target
            sentinel = redis.asyncio.sentinel.Sentinel(
                list(target.nodes), sentinel_kwargs=_sentinel_options(target)
            )
            options = _options(target) | _tls_options(target) | self._retry
            self._pools[key] = redis.asyncio.sentinel.SentinelConnectionPool(
                master, sentinel, ssl=target.tls is not None, **options
            )
        return self._pools[key]

    async def _node(self, tag: str) -> Node:
        if self._cluster is None:
            options = _options(self.target) | _tls_options(self.target)
            options.pop("db")
            options.pop("socket_keepalive")
            startup = [redis.asyncio.cluster.ClusterNode(*node) for node in self.target.nodes]
            self._cluster = redis.asyncio.RedisCluster(
                startup_nodes=startup, ssl=self.target.tls is not None, **options
            )
            await self._cluster.initialize()
        node = self._cluster.nodes_manager.get_node_from_slot(key_slot(tag.encode()))
        return node.host, int(node.port)
