"""Constructor arguments of redis-py's connections for a target."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError

from airflow_provider_chasqui.redis_client.cluster import Node
from airflow_provider_chasqui.redis_client.target import RedisTarget


class _SafeCredentialProvider(CredentialProvider):
    """Wrapper of the user's credential provider whose errors contain no secret.

    A provider that has only a blocking method is called in a thread by asyncio connections.
    """

    def __init__(self, provider: CredentialProvider):
        self._provider = provider

    def get_credentials(self) -> Any:
        try:
            return self._provider.get_credentials()
        except Exception as cause:
            raise _provider_error(cause) from cause

    async def get_credentials_async(self) -> Any:
        method = type(self._provider).get_credentials_async
        try:
            if method is CredentialProvider.get_credentials_async:
                return await asyncio.to_thread(self._provider.get_credentials)
            return await self._provider.get_credentials_async()
        except Exception as cause:
            raise _provider_error(cause) from cause


def _provider_error(cause: Exception) -> RedisConnectionError:
    return RedisConnectionError(f"the credential provider failed ({type(cause).__name__})")


def connection_kwargs(target: RedisTarget) -> dict[str, Any]:
    """Return the arguments that every connection to a target has.

    :param target: the server.
    """
    # RESP2 without decoding: the replies are the same nested lists on every server.
    options: dict[str, Any] = {
        "db": target.db,
        "username": target.username,
        "password": target.password,
        "credential_provider": None,
        "socket_timeout": target.timeout,
        "socket_connect_timeout": target.connect_timeout,
        "client_name": target.client_name,
        "protocol": 2,
        "socket_keepalive": True,
    }
    if target.unix_path:
        del options["socket_keepalive"]
    if target.credential_provider:
        options["username"] = options["password"] = None
        options["credential_provider"] = _SafeCredentialProvider(target.credential_provider)
    return options


def tls_kwargs(target: RedisTarget) -> dict[str, Any]:
    """Return the TLS arguments of a connection to a target.

    :param target: the server.
    :return: an empty dict if the target does not use TLS.
    """
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


def sentinel_kwargs(target: RedisTarget) -> dict[str, Any]:
    """Return the arguments of a connection to the sentinels of a target.

    :param target: the server.
    """
    return {
        "username": target.sentinel_username,
        "password": target.sentinel_password,
        "socket_timeout": target.connect_timeout,
        "socket_connect_timeout": target.connect_timeout,
        "protocol": 2,
    } | ({"ssl": True} | tls_kwargs(target) if target.tls else {})


def node_kwargs(target: RedisTarget, node: Node) -> dict[str, Any]:
    """Return the address and the TLS arguments of a connection to one node.

    :param target: the server.
    :param node: host and port. They are ignored if the target is a Unix socket.
    """
    if target.unix_path:
        return {"path": target.unix_path}
    return {"host": node[0], "port": node[1]} | tls_kwargs(target)
