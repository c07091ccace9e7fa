"""The two drivers: they run operations and flows, one blocking, one awaiting.

They are the same text but for await; tests/store/test_mirror.py compares them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.keys import Placed
from airflow_provider_chasqui.core.op import AnyOp, Choice, Flow, Op
from airflow_provider_chasqui.store import dialect as dialects
from airflow_provider_chasqui.store.connect import AsyncLink, Link
from airflow_provider_chasqui.store.exchange import Exchange
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
        return self.many([op])[0]  # type: ignore[no-any-return]

    def many(self, ops: Sequence[Op[Any] | Choice[Any]]) -> list[Any]:
        """Send operations in one pipeline and return their answers, or raise the first error."""
        answers = self.attempt(ops)
        for answer in answers:
            if isinstance(answer, ChasquiError):
                raise answer
        return answers

    def attempt(self, ops: Sequence[Op[Any] | Choice[Any]]) -> list[Any]:
        """Like `many`, but an operation that the server refused has its error as answer."""
        exchange = Exchange(ops, self.dialect(), self._where, self._retries)
        return self._carry(exchange)

    def flow(self, flow: Flow[R]) -> R:
        """Run a flow to its end."""
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, Op | Choice):
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
            try:
                wait = self._round(exchange)
            finally:
                # Also when we give up: the next call must not meet the same node again.
                if exchange.moved:
                    self._link.forget_topology()
                    self._drop()
                    exchange.moved = False
            if wait:
                time.sleep(wait)
        return exchange.results(self._queue)

    def _round(self, exchange: Exchange) -> float:
        data, owners = exchange.request()
        try:
            replies = self._talk(exchange.ask_node, data, len(owners), exchange.timeout)
        except (*BROKEN, ResponseError) as error:
            return exchange.broken(error)
        return exchange.take(replies, owners)

    def _talk(self, node: Node | None, data: bytes, count: int, silence: float) -> list[Any]:
        pool, connection = self._borrow(node)
        read = connection.read
        if silence:
            read = partial(connection.read_within, silence + _SLACK)
        try:
            connection.send(data)
            replies: list[Any] = []
            while len(replies) < count:
                try:
                    replies.append(read())
                except ResponseError as refusal:
                    replies.append(refusal)
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
            with suppress(IndexError):
                return self._idle.pop()
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
        return (await self.many([op]))[0]  # type: ignore[no-any-return]

    async def many(self, ops: Sequence[Op[Any] | Choice[Any]]) -> list[Any]:
        """Send operations in one pipeline and return their answers, or raise the first error."""
        answers = await self.attempt(ops)
        for answer in answers:
            if isinstance(answer, ChasquiError):
                raise answer
        return answers

    async def attempt(self, ops: Sequence[Op[Any] | Choice[Any]]) -> list[Any]:
        """Like `many`, but an operation that the server refused has its error as answer."""
        exchange = Exchange(ops, await self.dialect(), self._where, self._retries)
        return await self._carry(exchange)

    async def flow(self, flow: Flow[R]) -> R:
        """Run a flow to its end."""
        try:
            step = next(flow)
            while True:
                try:
                    if isinstance(step, Op | Choice):
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
            try:
                wait = await self._round(exchange)
            finally:
                # Also when we give up: the next call must not meet the same node again.
                if exchange.moved:
                    await self._link.forget_topology()
                    await self._drop()
                    exchange.moved = False
            if wait:
                await asyncio.sleep(wait)
        return exchange.results(self._queue)

    async def _round(self, exchange: Exchange) -> float:
        data, owners = exchange.request()
        try:
            replies = await self._talk(exchange.ask_node, data, len(owners), exchange.timeout)
        except (*BROKEN, ResponseError) as error:
            return exchange.broken(error)
        return exchange.take(replies, owners)

    async def _talk(self, node: Node | None, data: bytes, count: int, silence: float) -> list[Any]:
        pool, connection = await self._borrow(node)
        read = connection.read
        if silence:
            read = partial(connection.read_within, silence + _SLACK)
        try:
            await connection.send(data)
            replies: list[Any] = []
            while len(replies) < count:
                try:
                    replies.append(await read())
                except ResponseError as refusal:
                    replies.append(refusal)
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
            with suppress(IndexError):
                return self._idle.pop()
            pool = await self._link.pool(self._tag)
        return pool, await pool.get_connection()

    async def _drop(self) -> None:
        idle, self._idle = self._idle, []
        for pool, connection in idle:
            await connection.disconnect(nowait=True)
            await pool.release(connection)
