"""The two drivers: they run operations and flows, one blocking, one awaiting.

They are the same text but for await; tests/store/test_mirror.py compares them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.keys import Placed
from airflow_provider_chasqui.core.op import ONE, AnyOp, Flow
from airflow_provider_chasqui.store import dialect as dialects
from airflow_provider_chasqui.store.connect import AsyncLink, Link
from airflow_provider_chasqui.store.exchange import Exchange, choose, packed
from airflow_provider_chasqui.store.slots import Node
from airflow_provider_chasqui.store.translate import BROKEN

R = TypeVar("R")

# A blocking command may be answered this much later than agreed before we call it lost.
_SLACK = 5.0
# A server that was never reached is more likely misnamed than failing over.
_FIRST_RETRIES = 5


class Driver:
    """Runs operations on the node that holds one queue; blocking, for threads."""

    def __init__(self, link: Link, keys: Placed, retries: int | None = None):
        self._link = link
        self._retries = link.target.retries if retries is None else retries
        self._tag = keys.tag
        self._queue = keys.queue
        self._where = link.target.where
        self._idle: list[tuple[Any, Any]] = []
        self._pid = os.getpid()

    def run(self, op: AnyOp[R]) -> R:
        """Send one operation and return its answer."""
        dialect = self._link.dialect or self.dialect()
        chosen, began = choose(op, dialect), time.monotonic()
        # What is simply answered needs no exchange: a tenth of the calls of a single add.
        heard = self._hear(None, chosen.block_ms / 1000, (packed(chosen, dialect),), 1)
        if isinstance(heard, list) and not isinstance(heard[0], Exception):
            return chosen.parse(heard[0])
        exchange = Exchange((chosen,), dialect, self._where, self._retries, began=began)
        self._note(exchange, heard, [0])
        (answer,) = self._carry(exchange)
        if isinstance(answer, ChasquiError):
            raise answer
        return answer  # type: ignore[no-any-return]

    def many(self, ops: Sequence[AnyOp[Any]]) -> list[Any]:
        """Send operations in one pipeline and return their answers, or raise the first error."""
        answers = self.attempt(ops)
        for answer in answers:
            if isinstance(answer, ChasquiError):
                raise answer
        return answers

    def attempt(self, ops: Sequence[AnyOp[Any]]) -> list[Any]:
        """Like `many`, but an operation that the server refused has its error as answer."""
        dialect = self._link.dialect or self.dialect()
        return self._carry(Exchange(ops, dialect, self._where, self._retries))

    def flow(self, flow: Flow[R]) -> R:
        """Run a flow to its end."""
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, ONE):
                        answer: Any = self.run(step)
                    else:
                        answer = self.many(step)
                except ChasquiError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except ChasquiError as error:
            error.queue = error.queue or self._queue
            raise

    def dialect(self) -> str:
        """Return the dialect of the server, asking it once."""
        if self._link.dialect is None:
            retries = min(self._retries, _FIRST_RETRIES)
            questions = dialects.questions(self._tag)
            exchange = Exchange(questions, dialects.PORTABLE, self._where, retries)
            answers = self._carry(exchange)
            self._link.dialect = dialects.judge(answers, self._where)
        return self._link.dialect

    def close(self) -> None:
        """Give every connection back to the link, which keeps it open for others."""
        idle, self._idle = self._idle, []
        for pool, connection in idle:
            pool.release(connection)

    def _carry(self, exchange: Exchange) -> list[Any]:
        while not exchange.finished:
            data, owners = exchange.request()
            heard = self._hear(exchange.ask_node, exchange.timeout, data, len(owners))
            self._note(exchange, heard, owners)
        return exchange.results(self._queue)

    def _note(
        self, exchange: Exchange, heard: list[Any] | Exception, owners: list[int | None]
    ) -> None:
        """Let the exchange know what was heard, and wait as long as it wants to."""
        try:
            if isinstance(heard, list):
                wait = exchange.take(heard, owners)
            else:
                wait = exchange.broken(heard)
        finally:
            # Also when we give up: the next call must not meet the same node again.
            if exchange.moved:
                self._link.forget_topology()
                self._drop()
                exchange.moved = False
        if wait:
            time.sleep(wait)

    def _hear(
        self, node: Node | None, silence: float, data: Iterable[bytes], count: int
    ) -> list[Any] | Exception:
        """Send, and return the replies, or what broke the connection."""
        try:
            return self._talk(node, silence, data, count)
        except (*BROKEN, ResponseError) as error:
            return error

    def _talk(
        self, node: Node | None, silence: float, data: Iterable[bytes], count: int
    ) -> list[Any]:
        pool, connection = self._borrow(node)
        try:
            for piece in data:
                connection.send(piece)
            replies: list[Any] = connection.read(count, silence + _SLACK if silence else None)
        except BaseException:
            connection.disconnect()
            pool.release(connection)
            raise
        if node is None:
            self._idle.append((pool, connection))
        else:
            pool.release(connection)
        return replies

    def _borrow(self, node: Node | None) -> tuple[Any, Any]:
        if self._pid != os.getpid():  # the parent owns those sockets
            self._idle.clear()
            self._pid = os.getpid()
        if node is not None:
            pool = self._link.node_pool(node)
        else:
            try:
                return self._idle.pop()
            except IndexError:
                pass
            pool = self._link.pool(self._tag)
        return pool, pool.get_connection()

    def _drop(self) -> None:
        idle, self._idle = self._idle, []
        for pool, connection in idle:
            connection.disconnect()
            pool.release(connection)


class AsyncDriver:
    """Runs operations on the node that holds one queue; awaiting, for one event loop."""

    def __init__(self, link: AsyncLink, keys: Placed, retries: int | None = None):
        self._link = link
        self._retries = link.target.retries if retries is None else retries
        self._tag = keys.tag
        self._queue = keys.queue
        self._where = link.target.where
        self._idle: list[tuple[Any, Any]] = []
        self._pid = os.getpid()

    async def run(self, op: AnyOp[R]) -> R:
        """Send one operation and return its answer."""
        dialect = self._link.dialect or await self.dialect()
        chosen, began = choose(op, dialect), time.monotonic()
        # What is simply answered needs no exchange: a tenth of the calls of a single add.
        heard = await self._hear(None, chosen.block_ms / 1000, (packed(chosen, dialect),), 1)
        if isinstance(heard, list) and not isinstance(heard[0], Exception):
            return chosen.parse(heard[0])
        exchange = Exchange((chosen,), dialect, self._where, self._retries, began=began)
        await self._note(exchange, heard, [0])
        (answer,) = await self._carry(exchange)
        if isinstance(answer, ChasquiError):
            raise answer
        return answer  # type: ignore[no-any-return]

    async def many(self, ops: Sequence[AnyOp[Any]]) -> list[Any]:
        """Send operations in one pipeline and return their answers, or raise the first error."""
        answers = await self.attempt(ops)
        for answer in answers:
            if isinstance(answer, ChasquiError):
                raise answer
        return answers

    async def attempt(self, ops: Sequence[AnyOp[Any]]) -> list[Any]:
        """Like `many`, but an operation that the server refused has its error as answer."""
        dialect = self._link.dialect or await self.dialect()
        return await self._carry(Exchange(ops, dialect, self._where, self._retries))

    async def flow(self, flow: Flow[R]) -> R:
        """Run a flow to its end."""
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, ONE):
                        answer: Any = await self.run(step)
                    else:
                        answer = await self.many(step)
                except ChasquiError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        except ChasquiError as error:
            error.queue = error.queue or self._queue
            raise

    async def dialect(self) -> str:
        """Return the dialect of the server, asking it once."""
        if self._link.dialect is None:
            retries = min(self._retries, _FIRST_RETRIES)
            questions = dialects.questions(self._tag)
            exchange = Exchange(questions, dialects.PORTABLE, self._where, retries)
            answers = await self._carry(exchange)
            self._link.dialect = dialects.judge(answers, self._where)
        return self._link.dialect

    async def close(self) -> None:
        """Give every connection back to the link, which keeps it open for others."""
        idle, self._idle = self._idle, []
        for pool, connection in idle:
            await pool.release(connection)

    async def _carry(self, exchange: Exchange) -> list[Any]:
        while not exchange.finished:
            data, owners = exchange.request()
            heard = await self._hear(exchange.ask_node, exchange.timeout, data, len(owners))
            await self._note(exchange, heard, owners)
        return exchange.results(self._queue)

    async def _note(
        self, exchange: Exchange, heard: list[Any] | Exception, owners: list[int | None]
    ) -> None:
        """Let the exchange know what was heard, and wait as long as it wants to."""
        try:
            if isinstance(heard, list):
                wait = exchange.take(heard, owners)
            else:
                wait = exchange.broken(heard)
        finally:
            # Also when we give up: the next call must not meet the same node again.
            if exchange.moved:
                await self._link.forget_topology()
                await self._drop()
                exchange.moved = False
        if wait:
            await asyncio.sleep(wait)

    async def _hear(
        self, node: Node | None, silence: float, data: Iterable[bytes], count: int
    ) -> list[Any] | Exception:
        """Send, and return the replies, or what broke the connection."""
        try:
            return await self._talk(node, silence, data, count)
        except (*BROKEN, ResponseError) as error:
            return error

    async def _talk(
        self, node: Node | None, silence: float, data: Iterable[bytes], count: int
    ) -> list[Any]:
        pool, connection = await self._borrow(node)
        try:
            for piece in data:
                await connection.send(piece)
            replies: list[Any] = await connection.read(count, silence + _SLACK if silence else None)
        except BaseException:
            await connection.disconnect(nowait=True)
            await pool.release(connection)
            raise
        if node is None:
            self._idle.append((pool, connection))
        else:
            await pool.release(connection)
        return replies

    async def _borrow(self, node: Node | None) -> tuple[Any, Any]:
        if self._pid != os.getpid():  # the parent owns those sockets
            self._idle.clear()
            self._pid = os.getpid()
        if node is not None:
            pool = self._link.node_pool(node)
        else:
            try:
                return self._idle.pop()
            except IndexError:
                pass
            pool = await self._link.pool(self._tag)
        return pool, await pool.get_connection()

    async def _drop(self) -> None:
        idle, self._idle = self._idle, []
        for pool, connection in idle:
            await connection.disconnect(nowait=True)
            await pool.release(connection)
