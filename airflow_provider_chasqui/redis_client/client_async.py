"""Redis client of one queue: runs commands and flows, and resends them after a lost connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from airflow_provider_chasqui.core.command import COMMAND_TYPES, AnyCommand, CommandFlow
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.fork import fork_state
from airflow_provider_chasqui.core.keys import HasHashTag
from airflow_provider_chasqui.redis_client import dialect as dialects
from airflow_provider_chasqui.redis_client.cluster import Node
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.deadline import seconds_left
from airflow_provider_chasqui.redis_client.error_mapping import CONNECTION_ERRORS
from airflow_provider_chasqui.redis_client.retry import (
    BLOCKING_GRACE,
    FIRST_CONTACT_RETRIES,
    PipelineRequest,
    command_bytes,
    resolve_command,
)

R = TypeVar("R")

# The maximum size of a request that shares a connection with other calls.
_MAX_SHARED_BYTES = 64 * 1024


class AsyncRedisClient:
    """Client that runs the commands of one queue on the node that holds the queue.

    An asyncio client belongs to one event loop. A blocking client may be used by several threads,
    and after a fork.

    :param connection_manager: the connections, which may be shared with other clients.
    :param keys: the keys of the queue. Their hash tag selects the node.
    :param retries: the number of resends after a failure. Default: the value of the target.
    """

    def __init__(
        self,
        connection_manager: AsyncConnectionManager,
        keys: HasHashTag,
        retries: int | None = None,
    ):
        self._connection_manager = connection_manager
        self._retries = connection_manager.target.retries if retries is None else retries
        self._hash_tag = keys.hash_tag
        self._queue_name = keys.queue_name
        self._server_name = connection_manager.target.display_name
        # The client's own connection with its pool. A client that makes one call at a time always
        # uses the same connection, so that CLIENT ID identifies it.
        self._own_connections: list[tuple[Any, Any]] = []
        self._generation = fork_state.generation
        if True:  # ASYNC
            self._connect_lock = asyncio.Lock()
            self._calls_connecting = 0

    async def execute(self, command: AnyCommand[R]) -> R:
        """Send one command and return its parsed reply.

        :param command: the command.
        :raises ChasquiError: if the server refuses the command or stays unreachable.
        """
        dialect = self._connection_manager.dialect or await self.dialect()
        resolved, started_at = resolve_command(command, dialect), time.monotonic()
        # Fast path: a command that succeeds at once needs no PipelineRequest.
        replies = await self._try_send_and_receive(
            None, resolved.block_ms / 1000, (command_bytes(resolved, dialect),), 1
        )
        if isinstance(replies, list) and not isinstance(replies[0], Exception):
            return resolved.parse(replies[0])
        request = PipelineRequest(
            (resolved,),
            dialect,
            self._server_name,
            self._retries,
            started_at=started_at,
            originals=(command,),
        )
        await self._process_replies(request, replies, [0])
        (result,) = await self._run_request(request)
        if isinstance(result, ChasquiError):
            raise result
        return result  # type: ignore[no-any-return]

    async def pipeline(self, commands: Sequence[AnyCommand[Any]]) -> list[Any]:
        """Send commands in one pipeline and return their parsed replies.

        :param commands: the commands.
        :raises ChasquiError: the first error, if the server refuses a command or stays unreachable.
        """
        results = await self.pipeline_with_errors(commands)
        for result in results:
            if isinstance(result, ChasquiError):
                raise result
        return results

    async def pipeline_with_errors(self, commands: Sequence[AnyCommand[Any]]) -> list[Any]:
        """Send commands in one pipeline and return their parsed replies and errors.

        :param commands: the commands.
        :return: one item per command. A command that the server refused has its ChasquiError.
        :raises ChasquiError: if the server stays unreachable.
        """
        dialect = self._connection_manager.dialect or await self.dialect()
        return await self._run_request(
            PipelineRequest(commands, dialect, self._server_name, self._retries)
        )

    async def run_flow(self, flow: CommandFlow[R]) -> R:
        """Run a flow to its end and return its value.

        :param flow: a generator that yields a command or a list of commands, and receives the
            replies.
        :raises ChasquiError: an error that the flow raises or does not handle.
        """
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, COMMAND_TYPES):
                        result: Any = await self.execute(step)
                    else:
                        result = await self.pipeline(step)
                except ChasquiError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except ChasquiError as error:
            error.queue_name = error.queue_name or self._queue_name
            raise

    async def dialect(self) -> str:
        """Return the dialect of the server, "native" or "portable".

        It is detected at the first command, and again if the server refuses native commands.

        :raises ChasquiError: if the server is unreachable, or older than Redis 7.
        """
        if self._connection_manager.dialect is None:
            retries = min(self._retries, FIRST_CONTACT_RETRIES)
            probes = dialects.probe_commands(self._hash_tag)
            request = PipelineRequest(probes, dialects.PORTABLE, self._server_name, retries)
            results = await self._run_request(request)
            self._connection_manager.dialect = dialects.detect(results, self._server_name)
        return self._connection_manager.dialect

    async def close(self) -> None:
        """Return the connection to its pool, which keeps it open for other clients."""
        own, self._own_connections = self._own_connections, []
        for pool, connection in own:
            if True:  # ASYNC
                if connection.is_shared:
                    connection.retired = True
                    continue
            await pool.release(connection, limited=False)

    async def _run_request(self, request: PipelineRequest) -> list[Any]:
        while not request.finished:
            data, command_indexes = request.encode_pending()
            replies = await self._try_send_and_receive(
                request.ask_node, request.block_timeout, data, len(command_indexes)
            )
            await self._process_replies(request, replies, command_indexes)
        if request.misunderstood and await self._is_portable_now():
            # Another server has taken over this address. It has executed none of these commands.
            request.replace_misunderstood(await self.pipeline_with_errors(request.misunderstood))
        return request.results(self._queue_name)

    async def _is_portable_now(self) -> bool:
        """Detect the dialect again, after the server refused native commands."""
        if self._connection_manager.dialect == dialects.NATIVE:
            self._connection_manager.dialect = None
        return await self.dialect() == dialects.PORTABLE

    async def _process_replies(
        self,
        request: PipelineRequest,
        replies: list[Any] | Exception,
        command_indexes: list[int | None],
    ) -> None:
        """Pass the replies to the request, then sleep for the delay that it requests."""
        try:
            if isinstance(replies, list):
                delay = request.handle_replies(replies, command_indexes)
            else:
                delay = request.handle_disconnect(replies)
        finally:
            # Also if the request gives up, because the next call must not use the same node.
            if request.topology_changed:
                await self._connection_manager.invalidate_topology()
                await self._disconnect()
                request.topology_changed = False
        if delay:
            await asyncio.sleep(delay)

    async def _try_send_and_receive(
        self, node: Node | None, block_timeout: float, chunks: Iterable[bytes], reply_count: int
    ) -> list[Any] | Exception:
        """Return the replies, or the error that broke the connection."""
        try:
            if True:  # ASYNC
                if (timeout := seconds_left()) is not None:
                    async with asyncio.timeout(timeout):
                        return await self._send_and_receive(
                            node, block_timeout, chunks, reply_count
                        )
            return await self._send_and_receive(node, block_timeout, chunks, reply_count)
        except (*CONNECTION_ERRORS, ResponseError) as error:
            return error

    async def _send_and_receive(
        self, node: Node | None, block_timeout: float, chunks: Iterable[bytes], reply_count: int
    ) -> list[Any]:
        if self._generation != fork_state.generation:  # the parent process owns those sockets
            self._own_connections.clear()
            self._generation = fork_state.generation
        if True:  # ASYNC
            if node is None and not block_timeout:
                # Requests that fit in one chunk share a connection. Longer ones are sent while they
                # are encoded, and blocking commands would delay the calls after them.
                if type(chunks) is tuple:
                    chunk, next_chunk = chunks[0], None
                else:
                    remaining = iter(chunks)
                    chunk, next_chunk = next(remaining), next(remaining, None)
                    chunks = chain((chunk, next_chunk or b""), remaining)
                if next_chunk is None and len(chunk) <= _MAX_SHARED_BYTES:
                    return await self._share_connection(chunk, reply_count)
        limited = not block_timeout
        pool, connection = await self._acquire_connection(node, limited)
        try:
            for chunk in chunks:
                await connection.send(chunk)
            replies: list[Any] = await connection.read(
                reply_count, block_timeout + BLOCKING_GRACE if block_timeout else None
            )
        except BaseException:
            await pool.release(connection, limited=limited, reusable=False)
            raise
        if node is None and not self._own_connections and not pool.closed:
            pool.end_use(limited)
            self._own_connections.append((pool, connection))
        else:
            await pool.release(connection, limited=limited)
        return replies

    async def _acquire_connection(self, node: Node | None, limited: bool) -> tuple[Any, Any]:
        """Return a pool, and one of its connections that no other call uses."""
        if node is not None:
            pool = self._connection_manager.pool_for_node(node)
            return pool, await pool.acquire(limited=limited)
        pool = await self._connection_manager.pool_for_tag(self._hash_tag)
        await pool.begin_use(limited)
        try:
            while True:
                try:
                    if True:  # ASYNC
                        if self._own_connections[-1][1].is_shared:
                            raise IndexError
                    own_pool, connection = self._own_connections.pop()
                except IndexError:
                    return pool, await pool.take()
                if own_pool is pool and not pool.closed:
                    return pool, connection
                await own_pool.release(connection, limited=False)
        except BaseException:
            pool.end_use(limited)
            raise

    if True:  # ASYNC

        async def _share_connection(self, data: bytes, reply_count: int) -> list[Any]:
            """Send on the client's own connection, while other calls wait for their replies."""
            connection = None if self._calls_connecting else self._own_connection()
            if connection is None:
                # The lock keeps the order of the calls that wait for the connection.
                self._calls_connecting += 1
                try:
                    async with self._connect_lock:
                        connection = self._own_connection()
                        if connection is None:
                            pool = await self._connection_manager.pool_for_tag(self._hash_tag)
                            connection = await pool.acquire(limited=False)
                            self._own_connections.append((pool, connection))
                finally:
                    self._calls_connecting -= 1
            replies: list[Any] = await connection.exchange(data, reply_count)
            return replies

        def _own_connection(self) -> Any:
            """Return the client's own connection, or None if it must be opened first."""
            while self._own_connections:
                pool, connection = self._own_connections[-1]
                if connection.is_connected and not pool.closed:
                    return connection
                self._own_connections.pop()
            return None

        @property
        def server_address(self) -> Any:
            """The address that the client's own connection leads to; None without a connection."""
            connection = self._own_connection()
            return None if connection is None else connection.server_address

    async def _disconnect(self) -> None:
        """Close the client's own connection, after the calls that share it."""
        own, self._own_connections = self._own_connections, []
        for pool, connection in own:
            if True:  # ASYNC
                if connection.is_shared:
                    connection.retired = True
                    continue
            await pool.release(connection, limited=False, reusable=False)
