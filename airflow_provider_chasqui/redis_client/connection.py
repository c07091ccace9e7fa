"""What redis-py is told: options, credentials, and connections that are whole or closed."""

from __future__ import annotations

import asyncio
import math
import ssl
from typing import Any, cast

from redis._parsers import _AsyncHiredisParser
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from airflow_provider_chasqui.redis_client.cluster import Node
from airflow_provider_chasqui.redis_client.target import RedisTarget

# How many there are is decided by who calls at the same time, not by the pool.
_MAX_CONNECTIONS = 2**31
_READ_SIZE = 256 * 1024


class _SafeCredentialProvider(CredentialProvider):
    """The caller's provider; one that blocks is asked in a thread, failures tell no secret."""

    def __init__(self, provider: CredentialProvider):
        self._provider = provider

    def get_credentials(self) -> Any:
        try:
            return self._provider.get_credentials()
        except Exception as cause:
            raise _provider_error(cause) from cause

    async def get_credentials_async(self) -> Any:
        own = type(self._provider).get_credentials_async
        try:
            if own is CredentialProvider.get_credentials_async:
                return await asyncio.to_thread(self._provider.get_credentials)
            return await self._provider.get_credentials_async()
        except Exception as cause:
            raise _provider_error(cause) from cause


def _provider_error(cause: Exception) -> RedisConnectionError:
    return RedisConnectionError(f"the credential provider failed ({type(cause).__name__})")


def connection_kwargs(target: RedisTarget) -> dict[str, Any]:
    # RESP2 and no decoding: replies are the same nested lists whatever the server.
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
        "max_connections": _MAX_CONNECTIONS,
    }
    if target.unix_path:
        del options["socket_keepalive"]
    if target.credential_provider:
        options["username"] = options["password"] = None
        options["credential_provider"] = _SafeCredentialProvider(target.credential_provider)
    return options


def tls_kwargs(target: RedisTarget) -> dict[str, Any]:
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
    return {
        "username": target.sentinel_username,
        "password": target.sentinel_password,
        "socket_timeout": target.connect_timeout,
        "socket_connect_timeout": target.connect_timeout,
        "protocol": 2,
    } | ({"ssl": True} | tls_kwargs(target) if target.tls else {})


class ConnectionMixin:
    """A connection is logged in or closed, never half made.

    An interrupt in the middle of the login would leave one in the pool whose next reply is the
    answer to a question that somebody else asked.
    """

    reply_timeout: float

    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[misc]
        except BaseException:
            self.disconnect()  # type: ignore[attr-defined]
            raise

    def send(self, data: bytes) -> None:
        self.send_packed_command([data])  # type: ignore[attr-defined]

    def read(self, count: int, timeout: float | None) -> list[Any]:
        """Read replies, errors among them; each may take `seconds`, or the usual time if None."""
        mine: Any = self
        # Not by an argument of read_response: redis-py before 8 has none.
        if timeout is not None and mine._sock is not None:
            mine._sock.settimeout(timeout)
        replies: list[Any] = []
        try:
            while len(replies) < count:
                try:
                    replies.append(mine.read_response())
                except ResponseError as refusal:
                    replies.append(refusal)
        finally:
            if timeout is not None and mine._sock is not None:
                mine._sock.settimeout(mine.socket_timeout)
        return replies


class AsyncConnectionMixin:
    """The same, awaited; and with timeouts of our own.

    Those of redis-py answer None where a blocking read ran out of time, which leaves the late reply
    to the next caller; and they use asyncio.wait_for, which before Python 3.12 can lose a cancel.
    """

    reply_timeout: float
    _read_timeout: _ReadTimeout | None = None

    async def connect(self) -> None:
        mine: Any = self
        if mine.is_connected:
            return
        task = asyncio.current_task()
        cancels = task.cancelling() if task else 0
        try:
            async with asyncio.timeout(self.reply_timeout + mine.socket_connect_timeout):
                await super().connect()  # type: ignore[misc]
            if task and task.cancelling() > cancels:
                raise asyncio.CancelledError
        except BaseException:
            await mine.disconnect(nowait=True)
            raise

    async def send(self, data: bytes) -> None:
        mine: Any = self
        if not mine.is_connected:
            await self.connect()
        mine._writer.write(data)
        # A small command has left with `write` already: no timer and no drain for it, which saves
        # 11 % of the Python calls of a single add. A lost connection shows in the read.
        if mine._writer.transport.get_write_buffer_size():
            async with asyncio.timeout(self.reply_timeout):
                await mine._writer.drain()

    async def read(self, count: int, timeout: float | None) -> list[Any]:
        """Read replies, errors among them; each may take `seconds`, or the usual time if None."""
        mine: Any = self
        parser = mine._parser
        watch = self._read_timeout = self._read_timeout or _ReadTimeout()
        watch.start(mine._writer, timeout or self.reply_timeout)
        replies: list[Any] = []
        try:
            if isinstance(parser, _AsyncHiredisParser):
                await _read_hiredis_replies(parser, replies, count, watch)
            while len(replies) < count:
                try:
                    replies.append(await mine.read_response())
                except ResponseError as refusal:
                    replies.append(refusal)
        except RedisConnectionError as lost:
            if watch.expired:
                raise TimeoutError from lost
            raise
        finally:
            watch.stop()
        return replies


async def _read_hiredis_replies(
    parser: Any, replies: list[Any], count: int, read_timeout: _ReadTimeout
) -> None:
    # Without the three coroutines that redis-py puts between a reply and the socket: they are
    # a fifth of the Python calls of a single add.
    stream, reader = parser._stream, parser._reader
    while len(replies) < count:
        reply = reader.gets()
        if reply is NOT_ENOUGH_DATA:
            data = await stream.read(_READ_SIZE)
            if not data:
                raise RedisConnectionError("the server has closed the connection")
            reader.feed(data)
            read_timeout.touch()
        elif isinstance(reply, Exception) and not isinstance(reply, ResponseError):
            raise reply
        else:
            replies.append(reply)


class _ReadTimeout:
    """Cuts a connection off that says nothing for too long while somebody waits for it.

    Its timer is left where it is from read to read: one for each read is a tenth of the calls of
    a single add. It knows the socket and not the connection, which may therefore go at any time.
    """

    __slots__ = ("_deadline", "_loop", "_timeout", "_timer", "_timer_at", "_writer", "expired")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.StreamWriter | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._deadline = math.inf
        self._timeout = 0.0
        self.expired = False

    def start(self, writer: asyncio.StreamWriter, timeout: float) -> None:
        """From here on, it may be silent for so many seconds."""
        self._writer = writer
        self._timeout = timeout
        self._deadline = until = self._loop.time() + timeout
        self.expired = False
        if until < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._schedule(until)

    def touch(self) -> None:
        self._deadline = self._loop.time() + self._timeout

    def stop(self) -> None:
        """Nobody waits any more."""
        self._deadline = math.inf
        self._writer = None

    def _schedule(self, deadline: float) -> None:
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if self._loop.time() < self._deadline:
            if self._deadline < math.inf:
                self._schedule(self._deadline)
            return
        self.expired = True
        if self._writer is not None:
            self._writer.transport.abort()


def make_connection_class(target: RedisTarget, redis_module: Any, mixin: type[Any]) -> type[Any]:
    if target.sentinel_master:
        managed = redis_module.sentinel.SentinelManagedConnection
        secure = redis_module.sentinel.SentinelManagedSSLConnection
        base = secure if target.tls else managed
    elif target.unix_path:
        base = redis_module.UnixDomainSocketConnection
    else:
        base = redis_module.SSLConnection if target.tls else redis_module.Connection
    return cast("type[Any]", type(base.__name__, (mixin, base), {"reply_timeout": target.timeout}))


def node_kwargs(target: RedisTarget, node: Node) -> dict[str, Any]:
    """Return where one node is."""
    if target.unix_path:
        return {"path": target.unix_path}
    return {"host": node[0], "port": node[1]} | tls_kwargs(target)
