"""Consumers of a partitioned queue: they share its partitions out and hand them over orderly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument
from airflow_provider_chasqui.core.lease import Lease, resolve_handle, resolve_handle_any_queue
from airflow_provider_chasqui.core.lease_flows import LeaseOrToken
from airflow_provider_chasqui.core.partition import PartitionTracker, heartbeat, leave_group
from airflow_provider_chasqui.lease.queue import AsyncLeaseQueue, LeaseQueue

if TYPE_CHECKING:
    from airflow_provider_chasqui.lease.partitions import AsyncPartitionedQueue, PartitionedQueue

_ZERO = timedelta(0)
# No command waits for several streams on several nodes, so one of them is waited for at a time.
_POLL_INTERVAL = timedelta(milliseconds=50)


def _group_by_partition(
    queue_name: str, leases: Iterable[LeaseOrToken]
) -> dict[int, list[LeaseOrToken]]:
    """Sort leases by the partition that they are of."""
    sorted_out: dict[int, list[LeaseOrToken]] = {}
    for lease in leases:
        queue = resolve_handle_any_queue(lease, queue_name).queue_name
        base, _, number = queue.rpartition("#")
        if base != queue_name or not number.isdecimal():
            raise InvalidArgument(f"this lease is of the queue {queue!r}", queue_name=queue_name)
        sorted_out.setdefault(int(number), []).append(lease)
    return sorted_out


class PartitionConsumer:
    """One consumer of a partitioned queue: has a range of partitions, and gives them up orderly.

    A thread says that it is alive. When consumers come or go the ranges move: a partition is
    drained by its owner and then handed over; that of a dead consumer is free when its time is up,
    and its leases still stand until they run out, so nobody overtakes it.
    """

    def __init__(self, queue: PartitionedQueue, consumer: str, session_timeout: timedelta):
        self.name = consumer
        self._queue = queue
        self._assignment = PartitionTracker(to_ms(session_timeout) or 1)
        if not consumer or self._assignment.session_timeout_ms < 30:
            raise InvalidArgument("a consumer needs a name, and a life of at least 30 ms")
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._heartbeat_loop, name="chasqui-partitions", daemon=True
        )

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are its own."""
        return self._assignment.assignment.active

    @property
    def members(self) -> tuple[str, ...]:
        """All consumers that are alive, as of the last beat."""
        return self._assignment.assignment.members

    def send_heartbeat(self) -> None:
        """Say that this consumer is alive, give up what is drained, and learn what it has."""
        with self._lock:
            now_ms = self._queue.clock()
            drained = self._assignment.releasable(now_ms)
            op = heartbeat(
                self._queue.keys,
                self.name,
                self._assignment.session_timeout_ms,
                self._queue.partitions,
                drained,
            )
            self._assignment.update(self._queue.client.execute(op), now_ms)

    def lease(
        self,
        max_messages: int = 1,
        *,
        wait: timedelta = _ZERO,
        visibility_timeout: timedelta | None = None,
    ) -> list[Lease]:
        """Lease jobs of its own partitions, each of them in turn."""
        until = time.monotonic() + wait.total_seconds()
        while True:
            if self._assignment.heartbeat_due(self._queue.clock()):
                self.send_heartbeat()
            found: list[Lease] = []
            turn = self._assignment.round_robin()
            for partition in turn:
                left = max_messages - len(found)
                if left > 0 and not self._assignment.is_expired(self._queue.clock()):
                    found += self._lease_partition(partition, left, _ZERO, visibility_timeout)
            left_s = until - time.monotonic()
            if found or left_s <= 0:
                return found
            nap = min(_POLL_INTERVAL, timedelta(seconds=left_s))
            if not turn:
                time.sleep(nap.total_seconds())
                self.send_heartbeat()
            elif found := self._lease_partition(turn[0], max_messages, nap, visibility_timeout):
                return found

    def _lease_partition(
        self, partition: int, limit: int, wait: timedelta, visibility_timeout: timedelta | None
    ) -> list[Lease]:
        queue = self._queue.queue(partition)
        leases = queue.lease(self.name, limit, wait=wait, visibility_timeout=visibility_timeout)
        self._assignment.add_leases(partition, leases)
        return leases

    def ack(self, *leases: LeaseOrToken) -> None:
        """Settle leases for good."""
        self._for_each_partition(leases, lambda queue, own: queue.ack(*own))

    def nack(self, *leases: LeaseOrToken, delay: timedelta = _ZERO) -> None:
        """Hand jobs back, to be leased again after `delay`."""
        self._for_each_partition(leases, lambda queue, own: queue.nack(*own, delay=delay))

    def dead_letter(self, *leases: LeaseOrToken, error: str | None = None) -> None:
        """Give jobs up: they become letters."""
        self._for_each_partition(leases, lambda queue, own: queue.dead_letter(*own, error=error))

    def block(self, *leases: LeaseOrToken) -> None:
        """Set jobs aside."""
        self._for_each_partition(leases, lambda queue, own: queue.block(*own))

    def extend(self, *leases: LeaseOrToken, visibility_timeout: timedelta | None = None) -> None:
        """Let leases run anew from now."""
        for partition, own in _group_by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            kept = queue.extend(*own, visibility_timeout=visibility_timeout)
            self._assignment.add_leases(
                partition, [each for each in kept if isinstance(each, Lease)]
            )

    def _for_each_partition(
        self, leases: Iterable[LeaseOrToken], operation: Callable[[LeaseQueue, Any], None]
    ) -> None:
        for partition, own in _group_by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            try:
                operation(queue, own)
            finally:
                for lease in own:
                    self._assignment.remove_lease(partition, resolve_handle(lease, queue.name))

    def _heartbeat_loop(self) -> None:
        while not self._stop.wait(self._assignment.session_timeout_ms / 3000):
            with suppress(ChasquiError):  # the next beat may reach the server again
                self.send_heartbeat()

    def __enter__(self) -> Self:
        self.send_heartbeat()
        self._thread.start()
        return self

    def close(self) -> None:
        """Leave: the partitions are free at once; leases still in hand stand until they run out."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._queue.client.execute(leave_group(self._queue.keys, self.name))

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPartitionConsumer:
    """One consumer of a partitioned queue: has a range of partitions, and gives them up orderly.

    A task says that it is alive. When consumers come or go the ranges move: a partition is
    drained by its owner and then handed over; that of a dead consumer is free when its time is up,
    and its leases still stand until they run out, so nobody overtakes it.
    """

    def __init__(self, queue: AsyncPartitionedQueue, consumer: str, session_timeout: timedelta):
        self.name = consumer
        self._queue = queue
        self._assignment = PartitionTracker(to_ms(session_timeout) or 1)
        if not consumer or self._assignment.session_timeout_ms < 30:
            raise InvalidArgument("a consumer needs a name, and a life of at least 30 ms")
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are its own."""
        return self._assignment.assignment.active

    @property
    def members(self) -> tuple[str, ...]:
        """All consumers that are alive, as of the last beat."""
        return self._assignment.assignment.members

    async def send_heartbeat(self) -> None:
        """Say that this consumer is alive, give up what is drained, and learn what it has."""
        async with self._lock:
            now_ms = self._queue.clock()
            drained = self._assignment.releasable(now_ms)
            op = heartbeat(
                self._queue.keys,
                self.name,
                self._assignment.session_timeout_ms,
                self._queue.partitions,
                drained,
            )
            self._assignment.update(await self._queue.client.execute(op), now_ms)

    async def lease(
        self,
        max_messages: int = 1,
        *,
        wait: timedelta = _ZERO,
        visibility_timeout: timedelta | None = None,
    ) -> list[Lease]:
        """Lease jobs of its own partitions, each of them in turn."""
        until = time.monotonic() + wait.total_seconds()
        while True:
            if self._assignment.heartbeat_due(self._queue.clock()):
                await self.send_heartbeat()
            found: list[Lease] = []
            turn = self._assignment.round_robin()
            for partition in turn:
                left = max_messages - len(found)
                if left > 0 and not self._assignment.is_expired(self._queue.clock()):
                    found += await self._lease_partition(partition, left, _ZERO, visibility_timeout)
            left_s = until - time.monotonic()
            if found or left_s <= 0:
                return found
            nap = min(_POLL_INTERVAL, timedelta(seconds=left_s))
            if not turn:
                await asyncio.sleep(nap.total_seconds())
                await self.send_heartbeat()
            elif found := await self._lease_partition(
                turn[0], max_messages, nap, visibility_timeout
            ):
                return found

    async def _lease_partition(
        self, partition: int, limit: int, wait: timedelta, visibility_timeout: timedelta | None
    ) -> list[Lease]:
        queue = self._queue.queue(partition)
        leases = await queue.lease(
            self.name, limit, wait=wait, visibility_timeout=visibility_timeout
        )
        self._assignment.add_leases(partition, leases)
        return leases

    async def ack(self, *leases: LeaseOrToken) -> None:
        """Settle leases for good."""
        await self._for_each_partition(leases, lambda queue, own: queue.ack(*own))

    async def nack(self, *leases: LeaseOrToken, delay: timedelta = _ZERO) -> None:
        """Hand jobs back, to be leased again after `delay`."""
        await self._for_each_partition(leases, lambda queue, own: queue.nack(*own, delay=delay))

    async def dead_letter(self, *leases: LeaseOrToken, error: str | None = None) -> None:
        """Give jobs up: they become letters."""
        await self._for_each_partition(
            leases, lambda queue, own: queue.dead_letter(*own, error=error)
        )

    async def block(self, *leases: LeaseOrToken) -> None:
        """Set jobs aside."""
        await self._for_each_partition(leases, lambda queue, own: queue.block(*own))

    async def extend(
        self, *leases: LeaseOrToken, visibility_timeout: timedelta | None = None
    ) -> None:
        """Let leases run anew from now."""
        for partition, own in _group_by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            kept = await queue.extend(*own, visibility_timeout=visibility_timeout)
            self._assignment.add_leases(
                partition, [each for each in kept if isinstance(each, Lease)]
            )

    async def _for_each_partition(
        self,
        leases: Iterable[LeaseOrToken],
        operation: Callable[[AsyncLeaseQueue, Any], Awaitable[None]],
    ) -> None:
        for partition, own in _group_by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            try:
                await operation(queue, own)
            finally:
                for lease in own:
                    self._assignment.remove_lease(partition, resolve_handle(lease, queue.name))

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._assignment.session_timeout_ms / 3000)
            with suppress(ChasquiError):  # the next beat may reach the server again
                await self.send_heartbeat()

    async def __aenter__(self) -> Self:
        await self.send_heartbeat()
        self._task = asyncio.create_task(self._heartbeat_loop())
        return self

    async def close(self) -> None:
        """Leave: the partitions are free at once; leases still in hand stand until they run out."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._queue.client.execute(leave_group(self._queue.keys, self.name))

    async def __aexit__(self, *_: object) -> None:
        await self.close()
