"""Consumers of a partitioned queue: they share its partitions out and hand them over orderly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_chasqui.core.errors import BadInput, ChasquiError
from airflow_provider_chasqui.core.lease import Lease, held, held_anywhere
from airflow_provider_chasqui.core.lease_plan import AnyLease
from airflow_provider_chasqui.core.partition import Share, beat, leave
from airflow_provider_chasqui.core.policy import to_ms
from airflow_provider_chasqui.lease.queue import AsyncLeaseQueue, LeaseQueue

if TYPE_CHECKING:
    from airflow_provider_chasqui.lease.partitions import AsyncPartitionedQueue, PartitionedQueue

_NOW = timedelta(0)
# No command waits for several streams on several nodes, so one of them is waited for at a time.
_NAP = timedelta(milliseconds=50)


def _by_partition(name: str, leases: Iterable[AnyLease]) -> dict[int, list[AnyLease]]:
    """Sort leases by the partition that they are of."""
    sorted_out: dict[int, list[AnyLease]] = {}
    for lease in leases:
        queue = held_anywhere(lease, name).queue
        base, _, number = queue.rpartition("#")
        if base != name or not number.isdecimal():
            raise BadInput(f"this lease is of the queue {queue!r}", queue=name)
        sorted_out.setdefault(int(number), []).append(lease)
    return sorted_out


class PartitionConsumer:
    """One consumer of a partitioned queue: has a range of partitions, and gives them up orderly.

    A thread says that it is alive. When consumers come or go the ranges move: a partition is
    drained by its owner and then handed over; that of a dead consumer is free when its time is up,
    and its leases still stand until they run out, so nobody overtakes it.
    """

    def __init__(self, queue: PartitionedQueue, consumer: str, life: timedelta):
        self.name = consumer
        self._queue = queue
        self._share = Share(to_ms(life) or 1)
        if not consumer or self._share.life_ms < 30:
            raise BadInput("a consumer needs a name, and a life of at least 30 ms")
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="chasqui-partitions", daemon=True)

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are its own."""
        return self._share.assigned.work

    @property
    def members(self) -> tuple[str, ...]:
        """All consumers that are alive, as of the last beat."""
        return self._share.assigned.members

    def beat(self) -> None:
        """Say that this consumer is alive, give up what is drained, and learn what it has."""
        with self._lock:
            now_ms = self._queue.clock()
            drained = self._share.drained(now_ms)
            op = beat(
                self._queue.keys, self.name, self._share.life_ms, self._queue.partitions, drained
            )
            self._share.take(self._queue.drive.run(op), now_ms)

    def lease(
        self,
        max_messages: int = 1,
        *,
        wait: timedelta = _NOW,
        visibility_timeout: timedelta | None = None,
    ) -> list[Lease]:
        """Lease jobs of its own partitions, each of them in turn."""
        until = time.monotonic() + wait.total_seconds()
        while True:
            if self._share.due(self._queue.clock()):
                self.beat()
            found: list[Lease] = []
            turn = self._share.turn()
            for partition in turn:
                left = max_messages - len(found)
                if left > 0 and not self._share.stale(self._queue.clock()):
                    found += self._lease_one(partition, left, _NOW, visibility_timeout)
            left_s = until - time.monotonic()
            if found or left_s <= 0:
                return found
            nap = min(_NAP, timedelta(seconds=left_s))
            if not turn:
                time.sleep(nap.total_seconds())
                self.beat()
            elif found := self._lease_one(turn[0], max_messages, nap, visibility_timeout):
                return found

    def _lease_one(
        self, partition: int, count: int, wait: timedelta, time: timedelta | None
    ) -> list[Lease]:
        queue = self._queue.queue(partition)
        leases = queue.lease(self.name, count, wait=wait, visibility_timeout=time)
        self._share.leased(partition, leases)
        return leases

    def ack(self, *leases: AnyLease) -> None:
        """Settle leases for good."""
        self._each(leases, lambda queue, own: queue.ack(*own))

    def nack(self, *leases: AnyLease, delay: timedelta = _NOW) -> None:
        """Hand jobs back, to be leased again after `delay`."""
        self._each(leases, lambda queue, own: queue.nack(*own, delay=delay))

    def bury(self, *leases: AnyLease, error: str | None = None) -> None:
        """Give jobs up: they become letters."""
        self._each(leases, lambda queue, own: queue.bury(*own, error=error))

    def block(self, *leases: AnyLease) -> None:
        """Set jobs aside."""
        self._each(leases, lambda queue, own: queue.block(*own))

    def extend(self, *leases: AnyLease, visibility_timeout: timedelta | None = None) -> None:
        """Let leases run anew from now."""
        for partition, own in _by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            kept = queue.extend(*own, visibility_timeout=visibility_timeout)
            self._share.leased(partition, [each for each in kept if isinstance(each, Lease)])

    def _each(self, leases: Iterable[AnyLease], act: Callable[[LeaseQueue, Any], None]) -> None:
        for partition, own in _by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            try:
                act(queue, own)
            finally:
                for lease in own:
                    self._share.settled(partition, held(lease, queue.name))

    def _keep(self) -> None:
        while not self._stop.wait(self._share.life_ms / 3000):
            with suppress(ChasquiError):  # the next beat may reach the server again
                self.beat()

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def close(self) -> None:
        """Leave: the partitions are free at once; leases still in hand stand until they run out."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._queue.drive.run(leave(self._queue.keys, self.name))

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPartitionConsumer:
    """One consumer of a partitioned queue: has a range of partitions, and gives them up orderly.

    A task says that it is alive. When consumers come or go the ranges move: a partition is
    drained by its owner and then handed over; that of a dead consumer is free when its time is up,
    and its leases still stand until they run out, so nobody overtakes it.
    """

    def __init__(self, queue: AsyncPartitionedQueue, consumer: str, life: timedelta):
        self.name = consumer
        self._queue = queue
        self._share = Share(to_ms(life) or 1)
        if not consumer or self._share.life_ms < 30:
            raise BadInput("a consumer needs a name, and a life of at least 30 ms")
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are its own."""
        return self._share.assigned.work

    @property
    def members(self) -> tuple[str, ...]:
        """All consumers that are alive, as of the last beat."""
        return self._share.assigned.members

    async def beat(self) -> None:
        """Say that this consumer is alive, give up what is drained, and learn what it has."""
        async with self._lock:
            now_ms = self._queue.clock()
            drained = self._share.drained(now_ms)
            op = beat(
                self._queue.keys, self.name, self._share.life_ms, self._queue.partitions, drained
            )
            self._share.take(await self._queue.drive.run(op), now_ms)

    async def lease(
        self,
        max_messages: int = 1,
        *,
        wait: timedelta = _NOW,
        visibility_timeout: timedelta | None = None,
    ) -> list[Lease]:
        """Lease jobs of its own partitions, each of them in turn."""
        until = time.monotonic() + wait.total_seconds()
        while True:
            if self._share.due(self._queue.clock()):
                await self.beat()
            found: list[Lease] = []
            turn = self._share.turn()
            for partition in turn:
                left = max_messages - len(found)
                if left > 0 and not self._share.stale(self._queue.clock()):
                    found += await self._lease_one(partition, left, _NOW, visibility_timeout)
            left_s = until - time.monotonic()
            if found or left_s <= 0:
                return found
            nap = min(_NAP, timedelta(seconds=left_s))
            if not turn:
                await asyncio.sleep(nap.total_seconds())
                await self.beat()
            elif found := await self._lease_one(turn[0], max_messages, nap, visibility_timeout):
                return found

    async def _lease_one(
        self, partition: int, count: int, wait: timedelta, time: timedelta | None
    ) -> list[Lease]:
        queue = self._queue.queue(partition)
        leases = await queue.lease(self.name, count, wait=wait, visibility_timeout=time)
        self._share.leased(partition, leases)
        return leases

    async def ack(self, *leases: AnyLease) -> None:
        """Settle leases for good."""
        await self._each(leases, lambda queue, own: queue.ack(*own))

    async def nack(self, *leases: AnyLease, delay: timedelta = _NOW) -> None:
        """Hand jobs back, to be leased again after `delay`."""
        await self._each(leases, lambda queue, own: queue.nack(*own, delay=delay))

    async def bury(self, *leases: AnyLease, error: str | None = None) -> None:
        """Give jobs up: they become letters."""
        await self._each(leases, lambda queue, own: queue.bury(*own, error=error))

    async def block(self, *leases: AnyLease) -> None:
        """Set jobs aside."""
        await self._each(leases, lambda queue, own: queue.block(*own))

    async def extend(self, *leases: AnyLease, visibility_timeout: timedelta | None = None) -> None:
        """Let leases run anew from now."""
        for partition, own in _by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            kept = await queue.extend(*own, visibility_timeout=visibility_timeout)
            self._share.leased(partition, [each for each in kept if isinstance(each, Lease)])

    async def _each(
        self, leases: Iterable[AnyLease], act: Callable[[AsyncLeaseQueue, Any], Awaitable[None]]
    ) -> None:
        for partition, own in _by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            try:
                await act(queue, own)
            finally:
                for lease in own:
                    self._share.settled(partition, held(lease, queue.name))

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._share.life_ms / 3000)
            with suppress(ChasquiError):  # the next beat may reach the server again
                await self.beat()

    async def __aenter__(self) -> Self:
        await self.beat()
        self._task = asyncio.create_task(self._keep())
        return self

    async def close(self) -> None:
        """Leave: the partitions are free at once; leases still in hand stand until they run out."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._queue.drive.run(leave(self._queue.keys, self.name))

    async def __aexit__(self, *_: object) -> None:
        await self.close()
