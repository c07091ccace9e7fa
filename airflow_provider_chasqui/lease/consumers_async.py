"""Consumer of a partitioned queue. The consumers share the partitions among themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument
from airflow_provider_chasqui.core.lease import Lease, resolve_handle
from airflow_provider_chasqui.core.lease_flows import LeaseOrToken
from airflow_provider_chasqui.core.partition import PartitionTracker, heartbeat, leave_group
from airflow_provider_chasqui.lease._common import (
    MIN_SESSION_TIMEOUT_MS,
    PARTITION_POLL_INTERVAL,
    ZERO,
    group_by_partition,
)
from airflow_provider_chasqui.lease.periodic_async import AsyncPeriodicTask
from airflow_provider_chasqui.lease.queue_async import AsyncLeaseQueue

if TYPE_CHECKING:
    from airflow_provider_chasqui.lease.partitions_async import AsyncPartitionedQueue


class AsyncPartitionConsumer:
    """Consumer that owns a range of the partitions, used as a context manager.

    A background task sends heartbeats. When consumers join or leave, the ranges move: the owner of
    a partition stops leasing from it, finishes its leases, and then releases it. The partitions of
    a dead consumer become free when its session times out. Its leases stay valid until they expire,
    so no other consumer processes a later job of the partition first.

    :param queue: the partitioned queue.
    :param consumer: the name of the consumer.
    :param session_timeout: the time without a heartbeat after which the consumer counts as dead.
    :raises InvalidArgument: if the name is empty or the session timeout is below 30 ms.
    """

    def __init__(self, queue: AsyncPartitionedQueue, consumer: str, session_timeout: timedelta):
        session_timeout_ms = to_ms(session_timeout)
        if not consumer or session_timeout_ms < MIN_SESSION_TIMEOUT_MS:
            raise InvalidArgument(
                "a consumer needs a name and a session_timeout of at least "
                f"{MIN_SESSION_TIMEOUT_MS} ms, not {consumer!r} and {session_timeout}"
            )
        self.name = consumer
        self._queue = queue
        self._tracker = PartitionTracker(session_timeout_ms)
        self._lock = asyncio.Lock()
        self._task = AsyncPeriodicTask(
            self._try_heartbeat, session_timeout_ms / 3000, "chasqui-partitions"
        )

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that this consumer owns."""
        return self._tracker.assignment.active

    @property
    def members(self) -> tuple[str, ...]:
        """The names of all live consumers, as of the last heartbeat."""
        return self._tracker.assignment.members

    async def send_heartbeat(self) -> None:
        """Extend the session, release finished partitions and update this consumer's range."""
        async with self._lock:
            now_ms = self._queue.clock()
            command = heartbeat(
                self._queue.keys,
                self.name,
                self._tracker.session_timeout_ms,
                self._queue.partitions,
                self._tracker.releasable(now_ms),
            )
            self._tracker.update(await self._queue.client.execute(command), now_ms)

    async def lease(
        self,
        max_messages: int = 1,
        *,
        wait: timedelta = ZERO,
        visibility_timeout: timedelta | None = None,
    ) -> list[Lease]:
        """Lease jobs from this consumer's partitions, round-robin.

        :param max_messages: the maximum number of jobs.
        :param wait: the longest wait for a job. The default does not wait.
        :param visibility_timeout: the duration of the leases. Default: the configured one.
        """
        deadline = time.monotonic() + wait.total_seconds()
        while True:
            if self._tracker.heartbeat_due(self._queue.clock()):
                await self.send_heartbeat()
            leases: list[Lease] = []
            partitions = self._tracker.round_robin()
            for partition in partitions:
                missing = max_messages - len(leases)
                if missing > 0 and not self._tracker.is_expired(self._queue.clock()):
                    leases += await self._lease_partition(
                        partition, missing, ZERO, visibility_timeout
                    )
            remaining = deadline - time.monotonic()
            if leases or remaining <= 0:
                return leases
            pause = min(PARTITION_POLL_INTERVAL, timedelta(seconds=remaining))
            if not partitions:
                await asyncio.sleep(pause.total_seconds())
                await self.send_heartbeat()
                continue
            leases = await self._lease_partition(
                partitions[0], max_messages, pause, visibility_timeout
            )
            if leases:
                return leases

    async def _lease_partition(
        self, partition: int, limit: int, wait: timedelta, visibility_timeout: timedelta | None
    ) -> list[Lease]:
        queue = self._queue.queue(partition)
        leases = await queue.lease(
            self.name, limit, wait=wait, visibility_timeout=visibility_timeout
        )
        self._tracker.add_leases(partition, leases)
        return leases

    async def ack(self, *leases: LeaseOrToken) -> None:
        """Acknowledge leases: the jobs are completed.

        :param leases: leases or their tokens.
        :raises LeaseLost: if leases were lost. It lists their tokens.
        """
        await self._for_each_partition(leases, lambda queue, group: queue.ack(*group))

    async def nack(self, *leases: LeaseOrToken, delay: timedelta = ZERO) -> None:
        """Release leases: the jobs can be leased again.

        :param leases: leases or their tokens.
        :param delay: the time until the jobs can be leased again.
        :raises LeaseLost: if leases were lost. It lists their tokens.
        """
        await self._for_each_partition(leases, lambda queue, group: queue.nack(*group, delay=delay))

    async def dead_letter(self, *leases: LeaseOrToken, error: str | None = None) -> None:
        """Move leased jobs to the DLQ.

        :param leases: leases or their tokens.
        :param error: the error that the dead letters show.
        :raises LeaseLost: if leases were lost. It lists their tokens.
        """
        await self._for_each_partition(
            leases, lambda queue, group: queue.dead_letter(*group, error=error)
        )

    async def block(self, *leases: LeaseOrToken) -> None:
        """Block leased jobs until `unblock` or `dead_letter_blocked` of their queue is called.

        :param leases: leases or their tokens.
        :raises LeaseLost: if leases were lost. It lists their tokens.
        """
        await self._for_each_partition(leases, lambda queue, group: queue.block(*group))

    async def extend(
        self, *leases: LeaseOrToken, visibility_timeout: timedelta | None = None
    ) -> None:
        """Restart the visibility timeout of leases.

        :param leases: leases or their tokens.
        :param visibility_timeout: the duration from now. Default: the configured one.
        :raises LeaseLost: if leases were lost. It lists their tokens.
        """
        for partition, group in group_by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            extended = await queue.extend(*group, visibility_timeout=visibility_timeout)
            self._tracker.add_leases(
                partition, [lease for lease in extended if isinstance(lease, Lease)]
            )

    async def _for_each_partition(
        self,
        leases: Iterable[LeaseOrToken],
        operation: Callable[[AsyncLeaseQueue, Any], Awaitable[None]],
    ) -> None:
        for partition, group in group_by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            try:
                await operation(queue, group)
            finally:
                for lease in group:
                    self._tracker.remove_lease(partition, resolve_handle(lease, queue.name))

    async def _try_heartbeat(self) -> None:
        with suppress(ChasquiError):  # the next heartbeat may reach the server again
            await self.send_heartbeat()

    async def close(self) -> None:
        """Leave the group.

        The consumer's partitions become free at once; its leases stay valid until they expire.
        """
        await self._task.stop()
        await self._queue.client.execute(leave_group(self._queue.keys, self.name))

    async def __aenter__(self) -> Self:
        await self.send_heartbeat()
        await self._task.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
