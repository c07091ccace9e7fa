"""The two drivers: they run operations and flows, one blocking, one awaiting.

They are the same text but for await; tests/redis_client/test_mirror.py compares them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from airflow_provider_chasqui.core.command import COMMAND_TYPES, AnyCommand, CommandFlow
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.keys import HasHashTag
from airflow_provider_chasqui.redis_client import dialect as dialects
from airflow_provider_chasqui.redis_client.cluster import Node
from airflow_provider_chasqui.redis_client.connection_pool import (
    AsyncConnectionManager,
    ConnectionManager,
)
from airflow_provider_chasqui.redis_client.error_mapping import CONNECTION_ERRORS
from airflow_provider_chasqui.redis_client.retry import (
    PipelineRequest,
    command_bytes,
    resolve_command,
)

R = TypeVar("R")

# A blocking command may be answered this much later than agreed before we call it lost.
_BLOCKING_GRACE = 5.0
# A server that was never reached is more likely misnamed than failing over.
_INITIAL_RETRIES = 5


class RedisClient:
    """Runs operations on the node that holds one queue; blocking, for threads."""

    def __init__(
        self, connection_manager: ConnectionManager, keys: HasHashTag, retries: int | None = None
    ):
        self._connection_manager = connection_manager
        self._retries = connection_manager.target.retries if retries is None else retries
        self._hash_tag = keys.hash_tag
        self._queue_name = keys.queue_name
        self._server_name = connection_manager.target.display_name
        self._idle_connections: list[tuple[Any, Any]] = []
        self._pid = os.getpid()

    def execute(self, command: AnyCommand[R]) -> R:
        """Send one operation and return its answer."""
        dialect = self._connection_manager.dialect or self.dialect()
        chosen, began = resolve_command(command, dialect), time.monotonic()
        # What is simply answered needs no exchange: a tenth of the calls of a single add.
        heard = self._try_send_and_receive(
            None, chosen.block_ms / 1000, (command_bytes(chosen, dialect),), 1
        )
        if isinstance(heard, list) and not isinstance(heard[0], Exception):
            return chosen.parse(heard[0])
        exchange = PipelineRequest(
            (chosen,), dialect, self._server_name, self._retries, started_at=began
        )
        self._process_replies(exchange, heard, [0])
        (answer,) = self._run_request(exchange)
        if isinstance(answer, ChasquiError):
            raise answer
        return answer  # type: ignore[no-any-return]

    def pipeline(self, commands: Sequence[AnyCommand[Any]]) -> list[Any]:
        """Send operations in one pipeline and return their answers, or raise the first error."""
        answers = self.pipeline_with_errors(commands)
        for answer in answers:
            if isinstance(answer, ChasquiError):
                raise answer
        return answers

    def pipeline_with_errors(self, commands: Sequence[AnyCommand[Any]]) -> list[Any]:
        """Like `many`, but an operation that the server refused has its error as answer."""
        dialect = self._connection_manager.dialect or self.dialect()
        return self._run_request(
            PipelineRequest(commands, dialect, self._server_name, self._retries)
        )

    def run_flow(self, flow: CommandFlow[R]) -> R:
        """Run a flow to its end."""
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, COMMAND_TYPES):
                        answer: Any = self.execute(step)
                    else:
                        answer = self.pipeline(step)
                except ChasquiError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except ChasquiError as error:
            error.queue_name = error.queue_name or self._queue_name
            raise

    def dialect(self) -> str:
        """Return the dialect of the server, asking it once."""
        if self._connection_manager.dialect is None:
            retries = min(self._retries, _INITIAL_RETRIES)
            questions = dialects.probe_commands(self._hash_tag)
            exchange = PipelineRequest(questions, dialects.PORTABLE, self._server_name, retries)
            answers = self._run_request(exchange)
            self._connection_manager.dialect = dialects.detect(answers, self._server_name)
        return self._connection_manager.dialect

    def close(self) -> None:
        """Give every connection back to the link, which keeps it open for others."""
        idle, self._idle_connections = self._idle_connections, []
        for pool, connection in idle:
            pool.release(connection)

    def _run_request(self, request: PipelineRequest) -> list[Any]:
        while not request.finished:
            data, owners = request.encode_pending()
            heard = self._try_send_and_receive(
                request.ask_node, request.block_timeout, data, len(owners)
            )
            self._process_replies(request, heard, owners)
        return request.results(self._queue_name)

    def _process_replies(
        self,
        request: PipelineRequest,
        replies: list[Any] | Exception,
        command_indexes: list[int | None],
    ) -> None:
        """Let the exchange know what was heard, and wait as long as it wants to."""
        try:
            if isinstance(replies, list):
                wait = request.handle_replies(replies, command_indexes)
            else:
                wait = request.handle_disconnect(replies)
        finally:
            # Also when we give up: the next call must not meet the same node again.
            if request.topology_changed:
                self._connection_manager.invalidate_topology()
                self._disconnect_idle()
                request.topology_changed = False
        if wait:
            time.sleep(wait)

    def _try_send_and_receive(
        self, node: Node | None, block_timeout: float, chunks: Iterable[bytes], reply_count: int
    ) -> list[Any] | Exception:
        """Send, and return the replies, or what broke the connection."""
        try:
            return self._send_and_receive(node, block_timeout, chunks, reply_count)
        except (*CONNECTION_ERRORS, ResponseError) as error:
            return error

    def _send_and_receive(
        self, node: Node | None, block_timeout: float, chunks: Iterable[bytes], reply_count: int
    ) -> list[Any]:
        pool, connection = self._acquire_connection(node)
        try:
            for piece in chunks:
                connection.send(piece)
            replies: list[Any] = connection.read(
                reply_count, block_timeout + _BLOCKING_GRACE if block_timeout else None
            )
        except BaseException:
            connection.disconnect()
            pool.release(connection)
            raise
        if node is None:
            self._idle_connections.append((pool, connection))
        else:
            pool.release(connection)
        return replies

    def _acquire_connection(self, node: Node | None) -> tuple[Any, Any]:
        if self._pid != os.getpid():  # the parent owns those sockets
            self._idle_connections.clear()
            self._pid = os.getpid()
        if node is not None:
            pool = self._connection_manager.pool_for_node(node)
        else:
            try:
                return self._idle_connections.pop()
            except IndexError:
                pass
            pool = self._connection_manager.pool_for_tag(self._hash_tag)
        return pool, pool.get_connection()

    def _disconnect_idle(self) -> None:
        idle, self._idle_connections = self._idle_connections, []
        for pool, connection in idle:
            connection.disconnect()
            pool.release(connection)


class AsyncRedisClient:
    """Runs operations on the node that holds one queue; awaiting, for one event loop."""

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
        self._idle_connections: list[tuple[Any, Any]] = []
        self._pid = os.getpid()

    async def execute(self, command: AnyCommand[R]) -> R:
        """Send one operation and return its answer."""
        dialect = self._connection_manager.dialect or await self.dialect()
        chosen, began = resolve_command(command, dialect), time.monotonic()
        # What is simply answered needs no exchange: a tenth of the calls of a single add.
        heard = await self._try_send_and_receive(
            None, chosen.block_ms / 1000, (command_bytes(chosen, dialect),), 1
        )
        if isinstance(heard, list) and not isinstance(heard[0], Exception):
            return chosen.parse(heard[0])
        exchange = PipelineRequest(
            (chosen,), dialect, self._server_name, self._retries, started_at=began
        )
        await self._process_replies(exchange, heard, [0])
        (answer,) = await self._run_request(exchange)
        if isinstance(answer, ChasquiError):
            raise answer
        return answer  # type: ignore[no-any-return]

    async def pipeline(self, commands: Sequence[AnyCommand[Any]]) -> list[Any]:
        """Send operations in one pipeline and return their answers, or raise the first error."""
        answers = await self.pipeline_with_errors(commands)
        for answer in answers:
            if isinstance(answer, ChasquiError):
                raise answer
        return answers

    async def pipeline_with_errors(self, commands: Sequence[AnyCommand[Any]]) -> list[Any]:
        """Like `many`, but an operation that the server refused has its error as answer."""
        dialect = self._connection_manager.dialect or await self.dialect()
        return await self._run_request(
            PipelineRequest(commands, dialect, self._server_name, self._retries)
        )

    async def run_flow(self, flow: CommandFlow[R]) -> R:
        """Run a flow to its end."""
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, COMMAND_TYPES):
                        answer: Any = await self.execute(step)
                    else:
                        answer = await self.pipeline(step)
                except ChasquiError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except ChasquiError as error:
            error.queue_name = error.queue_name or self._queue_name
            raise

    async def dialect(self) -> str:
        """Return the dialect of the server, asking it once."""
        if self._connection_manager.dialect is None:
            retries = min(self._retries, _INITIAL_RETRIES)
            questions = dialects.probe_commands(self._hash_tag)
            exchange = PipelineRequest(questions, dialects.PORTABLE, self._server_name, retries)
            answers = await self._run_request(exchange)
            self._connection_manager.dialect = dialects.detect(answers, self._server_name)
        return self._connection_manager.dialect

    async def close(self) -> None:
        """Give every connection back to the link, which keeps it open for others."""
        idle, self._idle_connections = self._idle_connections, []
        for pool, connection in idle:
            await pool.release(connection)

    async def _run_request(self, request: PipelineRequest) -> list[Any]:
        while not request.finished:
            data, owners = request.encode_pending()
            heard = await self._try_send_and_receive(
                request.ask_node, request.block_timeout, data, len(owners)
            )
            await self._process_replies(request, heard, owners)
        return request.results(self._queue_name)

    async def _process_replies(
        self,
        request: PipelineRequest,
        replies: list[Any] | Exception,
        command_indexes: list[int | None],
    ) -> None:
        """Let the exchange know what was heard, and wait as long as it wants to."""
        try:
            if isinstance(replies, list):
                wait = request.handle_replies(replies, command_indexes)
            else:
                wait = request.handle_disconnect(replies)
        finally:
            # Also when we give up: the next call must not meet the same node again.
            if request.topology_changed:
                await self._connection_manager.invalidate_topology()
                await self._disconnect_idle()
                request.topology_changed = False
        if wait:
            await asyncio.sleep(wait)

    async def _try_send_and_receive(
        self, node: Node | None, block_timeout: float, chunks: Iterable[bytes], reply_count: int
    ) -> list[Any] | Exception:
        """Send, and return the replies, or what broke the connection."""
        try:
            return await self._send_and_receive(node, block_timeout, chunks, reply_count)
        except (*CONNECTION_ERRORS, ResponseError) as error:
            return error

    async def _send_and_receive(
        self, node: Node | None, block_timeout: float, chunks: Iterable[bytes], reply_count: int
    ) -> list[Any]:
        pool, connection = await self._acquire_connection(node)
        try:
            for piece in chunks:
                await connection.send(piece)
            replies: list[Any] = await connection.read(
                reply_count, block_timeout + _BLOCKING_GRACE if block_timeout else None
            )
        except BaseException:
            await connection.disconnect(nowait=True)
            await pool.release(connection)
            raise
        if node is None:
            self._idle_connections.append((pool, connection))
        else:
            await pool.release(connection)
        return replies

    async def _acquire_connection(self, node: Node | None) -> tuple[Any, Any]:
        if self._pid != os.getpid():  # the parent owns those sockets
            self._idle_connections.clear()
            self._pid = os.getpid()
        if node is not None:
            pool = self._connection_manager.pool_for_node(node)
        else:
            try:
                return self._idle_connections.pop()
            except IndexError:
                pass
            pool = await self._connection_manager.pool_for_tag(self._hash_tag)
        return pool, await pool.get_connection()

    async def _disconnect_idle(self) -> None:
        idle, self._idle_connections = self._idle_connections, []
        for pool, connection in idle:
            await connection.disconnect(nowait=True)
            await pool.release(connection)
