"""Connections to a server: redis-py's classes with bulk reads, read timeouts and safe handshakes.

This is the only module that uses private names of redis-py. `check_redis_py` verifies at start-up
that they exist. The supported releases are `SUPPORTED_REDIS_PY`; pyproject.toml has the same range,
and tests/redis_client/test_redis_py_versions.py runs against the oldest and the newest of them.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from functools import cache
from typing import Any, ClassVar, cast

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from airflow_provider_chasqui.core.errors import MissingDependency
from airflow_provider_chasqui.redis_client.deadline import seconds_left
from airflow_provider_chasqui.redis_client.target import RedisTarget

SUPPORTED_REDIS_PY = ">=6.4,<9"

try:
    from redis._parsers import _AsyncHiredisParser
    from redis._parsers.hiredis import NOT_ENOUGH_DATA
except ImportError:
    # check_redis_py raises the error that names the installed version.
    _AsyncHiredisParser = NOT_ENOUGH_DATA = None  # type: ignore[assignment,misc]

_READ_SIZE = 256 * 1024


@cache
def check_redis_py() -> None:
    """Verify that the installed redis-py has the private names that this module uses.

    :raises MissingDependency: if one of them is missing. The error names the installed version and
        the supported range.
    """
    missing = []
    if _AsyncHiredisParser is None:
        missing.append("redis._parsers._AsyncHiredisParser or NOT_ENOUGH_DATA")
    else:
        parser = _AsyncHiredisParser(socket_read_size=1)
        missing += [
            f"parser.{name}" for name in ("_reader", "_stream") if not hasattr(parser, name)
        ]
    for connection, names in (
        (redis.Connection(), ("_sock", "socket_timeout")),
        (redis.asyncio.Connection(), ("_writer", "_parser", "socket_connect_timeout")),
    ):
        module = type(connection).__module__
        missing += [
            f"{module}.Connection.{name}" for name in names if not hasattr(connection, name)
        ]
    if missing:
        raise MissingDependency(
            f"redis-py {redis.__version__} is not supported, it has no {', '.join(missing)}; "
            f"install a supported release: pip install 'redis[hiredis]{SUPPORTED_REDIS_PY}'"
        )


def make_connection_class(target: RedisTarget, redis_module: Any, mixin: type[Any]) -> type[Any]:
    """Return the connection class for a target.

    :param target: the server.
    :param redis_module: `redis` or `redis.asyncio`.
    :param mixin: `ConnectionMixin` or `AsyncConnectionMixin`.
    :raises MissingDependency: if the installed redis-py is not supported.
    """
    check_redis_py()
    if target.sentinel_master:
        plain = redis_module.sentinel.SentinelManagedConnection
        secure = redis_module.sentinel.SentinelManagedSSLConnection
        base = secure if target.tls else plain
    elif target.unix_path:
        base = redis_module.UnixDomainSocketConnection
    else:
        base = redis_module.SSLConnection if target.tls else redis_module.Connection
    return cast("type[Any]", type(base.__name__, (mixin, base), {"reply_timeout": target.timeout}))


def sentinel_clients(pool: Any) -> list[Any]:
    """Return the clients of the sentinels that a pool uses.

    :param pool: a connection pool of redis-py.
    :return: an empty list for a pool without Sentinel.
    """
    manager = getattr(pool, "sentinel_manager", None)
    return list(manager.sentinels) if manager else []


class ConnectionMixin:
    """Blocking connection that is closed if its handshake fails or is interrupted.

    Otherwise an interrupt during the handshake would leave a connection in the pool whose next
    reply belongs to an earlier command.
    """

    extra_kwargs: ClassVar[dict[str, Any]] = {}
    reply_timeout: float

    def connect(self) -> None:
        """Connect and log in, or close the connection."""
        connection: Any = self
        timeouts = connection.socket_connect_timeout, connection.socket_timeout
        if (limit := seconds_left()) is not None:
            connection.socket_connect_timeout = min(timeouts[0], limit)
            connection.socket_timeout = min(timeouts[1], limit)
        try:
            super().connect()  # type: ignore[misc]
            if limit is not None:
                connection._sock.settimeout(timeouts[1])
        except BaseException:
            self.abort()
            raise
        finally:
            connection.socket_connect_timeout, connection.socket_timeout = timeouts

    def abort(self) -> None:
        """Close the connection at once."""
        self.disconnect()  # type: ignore[attr-defined]

    def send(self, data: bytes) -> None:
        """Send encoded commands.

        :param data: RESP bytes.
        """
        self.send_packed_command([data])  # type: ignore[attr-defined]

    def read(self, count: int, timeout: float | None) -> list[Any]:
        """Read replies.

        :param count: the number of replies.
        :param timeout: the longest wait for one reply, in seconds. Default: the target's timeout.
        :return: the replies. An error reply is returned as a ResponseError.
        """
        connection: Any = self
        if (limit := seconds_left()) is not None:
            timeout = min(timeout or self.reply_timeout, limit)
        # redis-py before 8 has no timeout argument of read_response.
        if timeout is not None and connection._sock is not None:
            connection._sock.settimeout(timeout)
        replies: list[Any] = []
        try:
            while len(replies) < count:
                try:
                    replies.append(connection.read_response())
                except ResponseError as error:
                    replies.append(error)
        finally:
            if timeout is not None and connection._sock is not None:
                connection._sock.settimeout(connection.socket_timeout)
        return replies


class AsyncConnectionMixin:
    """Asyncio connection that is closed if its handshake fails, with its own timeouts.

    redis-py's timeouts are not used for two reasons. A blocking read that times out returns None,
    and the late reply goes to the next caller. And they use asyncio.wait_for, which can lose a
    cancellation before Python 3.12.
    """

    extra_kwargs: ClassVar[dict[str, Any]] = {"socket_timeout": None}
    reply_timeout: float
    # Whether the connection is closed as soon as no call shares it any more.
    retired = False
    _read_timeout: _ReadTimeout | None = None
    _shared_calls: deque[_SharedCall] | None = None
    _write_buffer: list[bytes] | None = None

    async def connect(self) -> None:
        """Connect and log in, or close the connection."""
        connection: Any = self
        if connection.is_connected:
            return
        task = asyncio.current_task()
        cancellations = task.cancelling() if task else 0
        try:
            async with asyncio.timeout(self.reply_timeout + connection.socket_connect_timeout):
                await super().connect()  # type: ignore[misc]
            if task and task.cancelling() > cancellations:
                raise asyncio.CancelledError
        except BaseException:
            await self.abort()
            raise

    async def abort(self) -> None:
        """Close the connection at once, without waiting for the transport."""
        connection: Any = self
        await connection.disconnect(nowait=True)

    async def send(self, data: bytes) -> None:
        """Send encoded commands.

        :param data: RESP bytes.
        """
        connection: Any = self
        if not connection.is_connected:
            await self.connect()
        connection._writer.write(data)
        # `write` sends a small command at once. Then there is nothing to drain and no timer is
        # needed. The read detects a lost connection.
        if connection._writer.transport.get_write_buffer_size():
            async with asyncio.timeout(self.reply_timeout):
                await connection._writer.drain()

    async def read(self, count: int, timeout: float | None) -> list[Any]:
        """Read replies.

        :param count: the number of replies.
        :param timeout: the longest wait for one reply, in seconds. Default: the target's timeout.
        :return: the replies. An error reply is returned as a ResponseError.
        """
        connection: Any = self
        parser = connection._parser
        read_timeout = self._start_read_timeout(timeout)
        replies: list[Any] = []
        try:
            if isinstance(parser, _AsyncHiredisParser):
                await _read_hiredis_replies(parser, replies, count, read_timeout)
            while len(replies) < count:
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(error)
        except RedisConnectionError as error:
            if read_timeout.expired:
                raise TimeoutError from error
            raise
        finally:
            read_timeout.stop()
        return replies

    def _start_read_timeout(self, timeout: float | None) -> _ReadTimeout:
        connection: Any = self
        read_timeout = self._read_timeout = self._read_timeout or _ReadTimeout()
        read_timeout.start(connection._writer, timeout or self.reply_timeout)
        return read_timeout

    @property
    def is_shared(self) -> bool:
        """Whether a call of `exchange` is under way."""
        return bool(self._shared_calls)

    @property
    def server_address(self) -> Any:
        """The address of the server: host and port, or the path of a Unix socket."""
        connection: Any = self
        return connection._writer.get_extra_info("peername")

    async def exchange(self, data: bytes, count: int) -> list[Any]:
        """Send commands and read their replies. Several calls may be under way at the same time.

        The commands are sent in the order of the calls, and the server replies in that order. The
        first call reads. It passes replies on to the calls that they belong to, and when its own
        replies are complete, the next call reads. A single caller therefore needs no other task.

        :param data: RESP bytes of commands that do not block.
        :param count: the number of replies.
        :return: the replies. An error reply is returned as a ResponseError.
        """
        connection: Any = self
        if self._shared_calls is None:
            self._shared_calls, self._write_buffer = deque(), []
        calls = self._shared_calls
        call = _SharedCall(count)
        if not calls:
            connection._writer.write(data)
            calls.append(call)
        else:
            calls.append(call)
            self._write_later(data)
            call.turn = asyncio.get_running_loop().create_future()
        try:
            if call.turn is not None:
                await call.turn
            if len(call.replies) < count:
                await self._read_shared(call)
        except asyncio.CancelledError:
            call.abandoned = True
            is_reader = call.turn is None or not call.turn.cancelled()
            if is_reader and len(call.replies) < count:
                await self._pass_on_reading()
            raise
        if self.retired and not calls:
            await self.abort()
        return call.replies

    def _write_later(self, data: bytes) -> None:
        """Send the commands of all calls that are made in the same step of the event loop."""
        assert self._write_buffer is not None
        if not self._write_buffer:
            asyncio.get_running_loop().call_soon(self._flush)
        self._write_buffer.append(data)

    def _flush(self) -> None:
        connection: Any = self
        data = b"".join(self._write_buffer or ())
        if data and connection._writer is not None:
            self._write_buffer = []
            connection._writer.write(data)

    async def _read_shared(self, call: _SharedCall) -> None:
        """Read until the replies of a call are complete, then let the next call read."""
        connection: Any = self
        read_timeout = self._start_read_timeout(None)
        parser = connection._parser
        try:
            if isinstance(parser, _AsyncHiredisParser):
                await self._read_shared_hiredis(parser, call, read_timeout)
            while len(call.replies) < call.count:
                try:
                    self._add_shared_reply(await connection.read_response())
                except ResponseError as error:
                    self._add_shared_reply(error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if read_timeout.expired and isinstance(error, RedisConnectionError):
                error = TimeoutError()
            await self._fail_shared_calls(error)
            raise error from None
        finally:
            read_timeout.stop()
        if self._shared_calls:
            await self._pass_on_reading()

    async def _read_shared_hiredis(
        self, parser: Any, call: _SharedCall, read_timeout: _ReadTimeout
    ) -> None:
        stream, reader, calls = parser._stream, parser._reader, self._shared_calls
        # Replies that have arrived already complete other calls without another read.
        while calls:
            reply = reader.gets()
            if reply is not NOT_ENOUGH_DATA:
                if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
                    raise reply
                self._add_shared_reply(reply)
                continue
            if len(call.replies) == call.count:
                return
            data = await stream.read(_READ_SIZE)
            if not data:
                raise RedisConnectionError("the server has closed the connection")
            reader.feed(data)
            read_timeout.touch()

    def _add_shared_reply(self, reply: Any) -> None:
        assert self._shared_calls is not None
        call = self._shared_calls[0]
        call.replies.append(reply)
        if len(call.replies) == call.count:
            self._shared_calls.popleft()
            if call.turn is not None and not call.turn.done():
                call.turn.set_result(None)

    async def _pass_on_reading(self) -> None:
        """Wake the first call that still waits for replies; it reads from now on."""
        calls = self._shared_calls or ()
        for call in calls:
            if not call.abandoned and call.turn is not None and not call.turn.done():
                call.turn.set_result(None)
                return
        if calls:
            # Only cancelled calls are left, and none of them would read its replies.
            await self._fail_shared_calls(RedisConnectionError("the call was cancelled"))

    async def _fail_shared_calls(self, error: BaseException) -> None:
        calls, self._shared_calls, self._write_buffer = self._shared_calls or (), None, None
        if not isinstance(error, Exception):
            error = RedisConnectionError("the call that read the replies was interrupted")
        for call in calls:
            if call.turn is not None and not call.turn.done():
                # Each call has its own exception, because raising one adds to its traceback.
                call.turn.set_exception(type(error)(*error.args))
        await self.abort()


class _SharedCall:
    """A call of `exchange`: its replies, and the future that wakes it."""

    __slots__ = ("abandoned", "count", "replies", "turn")

    def __init__(self, count: int):
        self.count = count
        self.replies: list[Any] = []
        # Set when the replies are complete, or when it is the turn of this call to read.
        self.turn: asyncio.Future[None] | None = None
        self.abandoned = False


async def _read_hiredis_replies(
    parser: Any, replies: list[Any], count: int, read_timeout: _ReadTimeout
) -> None:
    """Read replies without the coroutines of redis-py between the socket and the parser."""
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
    """Timeout that aborts the transport if the server sends nothing while a read is waiting.

    The timer stays scheduled from one read to the next, because a new timer per read is too slow.
    The object refers to the transport and not to the connection, so the connection can be
    garbage-collected.
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
        """Begin a read that may wait `timeout` seconds for data."""
        self._writer = writer
        self._timeout = timeout
        self._deadline = deadline = self._loop.time() + timeout
        self.expired = False
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._schedule(deadline)

    def touch(self) -> None:
        """Restart the timeout, because data has arrived."""
        self._deadline = self._loop.time() + self._timeout

    def stop(self) -> None:
        """End the read."""
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
