"""Consumer of a partitioned queue. The consumers share the partitions among themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument, LeaseLost
from airflow_provider_chasqui.core.lease import (
    ConsumerSession,
    Lease,
    LeaseHandle,
    encode_token,
    resolve_handle,
)
from airflow_provider_chasqui.core.lease_flows import LeaseOrToken
from airflow_provider_chasqui.core.partition import PartitionTracker, heartbeat, leave_group
from airflow_provider_chasqui.lease._common import (
    MIN_SESSION_TIMEOUT_MS,
    PARTITION_POLL_INTERVAL,
    ZERO,
    group_by_partition,
    monotonic_ms,
)
from airflow_provider_chasqui.lease.periodic_async import AsyncPeriodicTask
from airflow_provider_chasqui.lease.queue_async import AsyncLeaseQueue
from airflow_provider_chasqui.redis_client.deadline import limit_duration

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
        self._session = ConsumerSession()
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
            sent_at_ms = monotonic_ms()
            command = heartbeat(
                self._queue.keys,
                self.name,
                self._tracker.session_timeout_ms,
                self._queue.partitions,
                self._tracker.releasable(self._queue.clock()),
            )
            self._tracker.update(await self._queue.client.execute(command), sent_at_ms)

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
        :raises ConnectionFailed: if the server stays unreachable, with `wait` at most until then.
        """
        with limit_duration(wait.total_seconds()):
            return await self._lease(max_messages, wait, visibility_timeout)

    async def _lease(
        self, max_messages: int, wait: timedelta, visibility_timeout: timedelta | None
    ) -> list[Lease]:
        deadline = time.monotonic() + wait.total_seconds()
        while True:
            # A heartbeat of the background task may wait for a server that does not reply.
            if self._tracker.heartbeat_due(monotonic_ms()) and not self._lock.locked():
                await self.send_heartbeat()
            leases: list[Lease] = []
            partitions = self._tracker.round_robin()
            try:
                for partition in partitions:
                    missing = max_messages - len(leases)
                    if missing > 0 and not self._tracker.is_expired(monotonic_ms()):
                        leases += await self._lease_partition(
                            partition, missing, ZERO, visibility_timeout
                        )
            except BaseException:
                self._return_undelivered(leases)
                raise
            remaining = deadline - time.monotonic()
            if leases or remaining <= 0:
                return leases
            pause = min(PARTITION_POLL_INTERVAL, timedelta(seconds=remaining))
            if not partitions:
                await asyncio.sleep(pause.total_seconds())
                if not self._lock.locked():
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
            self.name,
            limit,
            wait=wait,
            visibility_timeout=visibility_timeout,
            session=self._session,
        )
        self._tracker.add_leases(partition, leases)
        return leases

    def _return_undelivered(self, leases: list[Lease]) -> None:
        """Let the next call return leases that this call does not return because it fails."""
        for partition, group in group_by_partition(self._queue.name, leases).items():
            self._queue.queue(partition).keep_undelivered(self.name, group, self._session)

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
        config = self._queue.config
        ttl_ms = config.check_visibility_timeout(visibility_timeout or config.visibility_timeout)

        def extended(partition: int, handle: LeaseHandle) -> None:
            self._tracker.set_deadline(partition, handle, self._queue.clock() + ttl_ms)

        await self._for_each_partition(
            leases,
            lambda queue, group: queue.extend(*group, visibility_timeout=visibility_timeout),
            extended,
        )

    async def _for_each_partition(
        self,
        leases: Iterable[LeaseOrToken],
        operation: Callable[[AsyncLeaseQueue, Any], Awaitable[object]],
        succeeded: Callable[[int, LeaseHandle], None] | None = None,
    ) -> None:
        """Apply an operation to all leases, also after leases of one partition were lost.

        :param leases: leases or their tokens.
        :param operation: the operation on the leases of one partition.
        :param succeeded: called for each lease that was not lost. Default: the lease has ended.
        """
        lost: list[str] = []
        for partition, group in group_by_partition(self._queue.name, leases).items():
            queue = self._queue.queue(partition)
            lost_here: tuple[str, ...] = ()
            try:
                await operation(queue, group)
            except LeaseLost as error:
                lost_here = error.tokens
                lost += lost_here
            for lease in group:
                handle = resolve_handle(lease, queue.name)
                if succeeded is None or encode_token(handle) in lost_here:
                    self._tracker.remove_lease(partition, handle)
                else:
                    succeeded(partition, handle)
        if lost:
            raise LeaseLost(
                f"{len(lost)} leases had expired and another consumer leased the jobs, or had "
                "ended before; the operation was applied to the other leases",
                queue_name=self._queue.name,
                tokens=tuple(lost),
            )

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
