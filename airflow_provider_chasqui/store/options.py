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

from airflow_provider_chasqui.store.slots import Node
from airflow_provider_chasqui.store.target import Target

# How many there are is decided by who calls at the same time, not by the pool.
_NO_LIMIT = 2**31
_READ_BYTES = 256 * 1024


class _Credentials(CredentialProvider):
    """The caller's provider; one that blocks is asked in a thread, failures tell no secret."""

    def __init__(self, theirs: CredentialProvider):
        self._theirs = theirs

    def get_credentials(self) -> Any:
        try:
            return self._theirs.get_credentials()
        except Exception as cause:
            raise _failed(cause) from cause

    async def get_credentials_async(self) -> Any:
        own = type(self._theirs).get_credentials_async
        try:
            if own is CredentialProvider.get_credentials_async:
                return await asyncio.to_thread(self._theirs.get_credentials)
            return await self._theirs.get_credentials_async()
        except Exception as cause:
            raise _failed(cause) from cause


def _failed(cause: Exception) -> RedisConnectionError:
    return RedisConnectionError(f"the credential provider failed ({type(cause).__name__})")


def options_of(target: Target) -> dict[str, Any]:
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
        "max_connections": _NO_LIMIT,
    }
    if target.unix_path:
        del options["socket_keepalive"]
    if target.credential_provider:
        options["username"] = options["password"] = None
        options["credential_provider"] = _Credentials(target.credential_provider)
    return options


def tls_options(target: Target) -> dict[str, Any]:
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


def sentinel_options(target: Target) -> dict[str, Any]:
    return {
        "username": target.sentinel_username,
        "password": target.sentinel_password,
        "socket_timeout": target.connect_timeout,
        "socket_connect_timeout": target.connect_timeout,
        "protocol": 2,
    } | ({"ssl": True} | tls_options(target) if target.tls else {})


class Whole:
    """A connection is logged in or closed, never half made.

    An interrupt in the middle of the login would leave one in the pool whose next reply is the
    answer to a question that somebody else asked.
    """

    patience: float

    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[misc]
        except BaseException:
            self.disconnect()  # type: ignore[attr-defined]
            raise

    def send(self, data: bytes) -> None:
        self.send_packed_command([data])  # type: ignore[attr-defined]

    def read(self, count: int, seconds: float | None) -> list[Any]:
        """Read replies, errors among them; each may take `seconds`, or the usual time if None."""
        mine: Any = self
        # Not by an argument of read_response: redis-py before 8 has none.
        if seconds is not None and mine._sock is not None:
            mine._sock.settimeout(seconds)
        replies: list[Any] = []
        try:
            while len(replies) < count:
                try:
                    replies.append(mine.read_response())
                except ResponseError as refusal:
                    replies.append(refusal)
        finally:
            if seconds is not None and mine._sock is not None:
                mine._sock.settimeout(mine.socket_timeout)
        return replies


class AsyncWhole:
    """The same, awaited; and with timeouts of our own.

    Those of redis-py answer None where a blocking read ran out of time, which leaves the late reply
    to the next caller; and they use asyncio.wait_for, which before Python 3.12 can lose a cancel.
    """

    patience: float
    _watch: _Watch | None = None

    async def connect(self) -> None:
        mine: Any = self
        if mine.is_connected:
            return
        task = asyncio.current_task()
        cancels = task.cancelling() if task else 0
        try:
            async with asyncio.timeout(self.patience + mine.socket_connect_timeout):
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
            async with asyncio.timeout(self.patience):
                await mine._writer.drain()

    async def read(self, count: int, seconds: float | None) -> list[Any]:
        """Read replies, errors among them; each may take `seconds`, or the usual time if None."""
        mine: Any = self
        parser = mine._parser
        watch = self._watch = self._watch or _Watch()
        watch.begin(mine._writer, seconds or self.patience)
        replies: list[Any] = []
        try:
            if isinstance(parser, _AsyncHiredisParser):
                await _read_by_hiredis(parser, replies, count, watch)
            while len(replies) < count:
                try:
                    replies.append(await mine.read_response())
                except ResponseError as refusal:
                    replies.append(refusal)
        except RedisConnectionError as lost:
            if watch.too_long:
                raise TimeoutError from lost
            raise
        finally:
            watch.end()
        return replies


async def _read_by_hiredis(parser: Any, replies: list[Any], count: int, watch: _Watch) -> None:
    # Without the three coroutines that redis-py puts between a reply and the socket: they are
    # a fifth of the Python calls of a single add.
    stream, reader = parser._stream, parser._reader
    while len(replies) < count:
        reply = reader.gets()
        if reply is NOT_ENOUGH_DATA:
            data = await stream.read(_READ_BYTES)
            if not data:
                raise RedisConnectionError("the server has closed the connection")
            reader.feed(data)
            watch.heard()
        elif isinstance(reply, Exception) and not isinstance(reply, ResponseError):
            raise reply
        else:
            replies.append(reply)


class _Watch:
    """Cuts a connection off that says nothing for too long while somebody waits for it.

    Its timer is left where it is from read to read: one for each read is a tenth of the calls of
    a single add. It knows the socket and not the connection, which may therefore go at any time.
    """

    __slots__ = ("_loop", "_rings_at", "_seconds", "_timer", "_until", "_writer", "too_long")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.StreamWriter | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = self._until = math.inf
        self._seconds = 0.0
        self.too_long = False

    def begin(self, writer: asyncio.StreamWriter, seconds: float) -> None:
        """From here on, it may be silent for so many seconds."""
        self._writer = writer
        self._seconds = seconds
        self._until = until = self._loop.time() + seconds
        self.too_long = False
        if until < self._rings_at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm(until)

    def heard(self) -> None:
        self._until = self._loop.time() + self._seconds

    def end(self) -> None:
        """Nobody waits any more."""
        self._until = math.inf
        self._writer = None

    def _arm(self, until: float) -> None:
        self._rings_at = until
        self._timer = self._loop.call_at(until, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, math.inf
        if self._loop.time() < self._until:
            if self._until < math.inf:
                self._arm(self._until)
            return
        self.too_long = True
        if self._writer is not None:
            self._writer.transport.abort()


def kind_of(target: Target, home: Any, whole: type[Any]) -> type[Any]:
    if target.sentinel_master:
        managed = home.sentinel.SentinelManagedConnection
        secure = home.sentinel.SentinelManagedSSLConnection
        base = secure if target.tls else managed
    elif target.unix_path:
        base = home.UnixDomainSocketConnection
    else:
        base = home.SSLConnection if target.tls else home.Connection
    return cast("type[Any]", type(base.__name__, (whole, base), {"patience": target.timeout}))


def address(target: Target, node: Node) -> dict[str, Any]:
    """Return where one node is."""
    if target.unix_path:
        return {"path": target.unix_path}
    return {"host": node[0], "port": node[1]} | tls_options(target)
