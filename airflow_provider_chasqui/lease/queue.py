"""A queue as a lessee sees it: `LeaseQueue` blocks, `AsyncLeaseQueue` awaits; else they are equal.

    queue = LeaseQueue("emails", "redis://localhost")
    for lease in queue.lease("worker-1", 10, wait=timedelta(seconds=20)):
        send(lease.payload)
        queue.ack(lease)

The verbs are Celeriant Queue's, on the streams that workers use too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import Blocked, Lease, LeaseConfig, LeaseStats
from airflow_provider_chasqui.core.lease_plan import AnyLease, LeasePlan
from airflow_provider_chasqui.core.ops import lease_admin, lease_images
from airflow_provider_chasqui.lease.heartbeat import AsyncHeartbeat, Heartbeat
from airflow_provider_chasqui.queue import LOCAL, wall_clock
from airflow_provider_chasqui.store.connect import AsyncLink, Link
from airflow_provider_chasqui.store.drive import AsyncDriver, Driver
from airflow_provider_chasqui.store.target import Target

_NOW = timedelta(0)
_SNAPSHOT_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class _Registry:
    """Where the lists of organisations live: in a slot of their own."""

    tag: str = "{chasqui:_registry}"
    queue: str = "_registry"


def _every(config: LeaseConfig, time: timedelta | None) -> float:
    life_ms = config.check_time(time or config.visibility_timeout)
    return life_ms / 3000


class LeaseQueue:
    """A queue to lease from, blocking. `server` is a URL, a Target, or a link that is shared."""

    def __init__(
        self,
        name: str,
        server: str | Target | Link = LOCAL,
        *,
        config: LeaseConfig | None = None,
        limits: QueueConfig | None = None,
        dialect: str | None = None,
        clock: Callable[[], int] = wall_clock,
    ):
        self._owns_link = not isinstance(server, Link)
        self._link = Link.of(server, dialect)
        self._plan = LeasePlan(Keys(name), config or LeaseConfig(), limits or QueueConfig(), clock)
        self._drive = Driver(self._link, self._plan.keys)
        self._registry = Driver(self._link, _Registry())

    @property
    def name(self) -> str:
        return self.keys.queue

    @property
    def keys(self) -> Keys:
        return self._plan.keys

    @property
    def config(self) -> LeaseConfig:
        return self._plan.config

    @property
    def target(self) -> Target:
        return self._link.target

    @property
    def drive(self) -> Driver:
        """The driver, for those who run operations of their own (the bridge, partitions)."""
        return self._drive

    def __repr__(self) -> str:
        return f"LeaseQueue({self.name!r}, {self._link.target.where!r})"

    def create(self, *, org: str | None = None, max_queues: int | None = None) -> None:
        """Make the queue, or agree with the one that is there; with `org`, within its quota.

        Leasing makes it as well. An exclusive queue that is leased with another configuration
        raises QueueExists.
        """
        fresh = False
        if org is not None:
            entering = lease_admin.enter(
                org, self.name, 2**31 if max_queues is None else max_queues
            )
            fresh = self._registry.run(entering)
        try:
            self._drive.run(lease_admin.create(self.keys, self.config))
        except ChasquiError:
            if fresh and org is not None:
                self._registry.run(lease_admin.leave(org, self.name))
            raise

    def delete(self, *, org: str | None = None, letters: bool = False) -> bool:
        """Delete the queue and what leases know of it, its letters only if asked for."""
        gone = self._drive.run(lease_admin.delete(self.keys, letters))
        if org is not None:
            self._registry.run(lease_admin.leave(org, self.name))
        return gone > 0

    def produce(
        self,
        messages: Iterable[Any],
        *,
        client_id: str | None = None,
        client_seq: int | None = None,
        expected_last: str | None = None,
        strict_seq: bool = False,
    ) -> list[str | None]:
        """Append payloads, or NewJobs, all or none, and return their entry ids.

        With `client_id`, the messages have the numbers from `client_seq` on, and one whose number
        was used before is passed over (None); `strict_seq` refuses instead. `expected_last` is the
        tail that the caller saw: if it has moved, nothing is written and TailMoved says where to.
        """
        flow = self._plan.produce(messages, client_id, client_seq, expected_last, strict_seq)
        return self._drive.flow(flow)

    def lease(
        self,
        consumer: str,
        max_messages: int = 1,
        *,
        wait: timedelta | None = None,
        visibility_timeout: timedelta | None = None,
    ) -> list[Lease]:
        """Lease up to `max_messages` jobs; with `wait`, stay until there is one.

        New jobs, leases that ran out, jobs handed back and delayed jobs that came due all count.
        """
        flow = self._plan.lease(consumer, max_messages, wait, visibility_timeout)
        return self._drive.flow(flow)

    def ack(self, *leases: AnyLease) -> None:
        """Settle leases for good. LeaseLost names those that were not ours any more."""
        self._drive.flow(self._plan.ack(leases))

    def nack(self, *leases: AnyLease, delay: timedelta = _NOW, as_retry: bool = False) -> None:
        """Hand jobs back, to be leased again after `delay`.

        Entry and order are kept. In shared mode a delay beyond `reclaim_after`, or `as_retry`,
        parks the job among the delayed ones instead, as a worker's retry does.
        """
        self._drive.flow(self._plan.nack(leases, delay, as_retry))

    def extend(
        self, *leases: AnyLease, visibility_timeout: timedelta | None = None
    ) -> list[AnyLease]:
        """Let leases run anew from now, at the same delivery count; returns them as they are."""
        return self._drive.flow(self._plan.extend(leases, visibility_timeout))

    def heartbeat(
        self, *leases: AnyLease, visibility_timeout: timedelta | None = None
    ) -> Heartbeat:
        """Keep leases while the block runs: `with queue.heartbeat(lease) as beat: ...`."""

        def extend(*kept: AnyLease) -> list[AnyLease]:
            return self.extend(*kept, visibility_timeout=visibility_timeout)

        return Heartbeat(extend, leases, _every(self.config, visibility_timeout))

    def bury(self, *leases: AnyLease, error: str | None = None) -> None:
        """Give jobs up: they become letters."""
        self._drive.flow(self._plan.bury(leases, error))

    def block(self, *leases: AnyLease) -> None:
        """Set jobs aside until somebody unblocks or skips them; an ordered line ends there."""
        self._drive.flow(self._plan.block(leases))

    def blocked(self, *, limit: int = 100) -> list[Blocked]:
        """Return what is set aside, oldest first."""
        return self._drive.flow(lease_admin.blocked(self.keys, self.config, limit))

    def unblock(self, entry_id: str, *, grant_attempts: int = 1) -> bool:
        """Let a job that is set aside be leased again; False if it is not set aside."""
        return self._drive.flow(self._plan.unblock(entry_id, grant_attempts))

    def skip(self, entry_id: str) -> bool:
        """Make a letter of a job that is set aside; False if it is not set aside."""
        return self._drive.flow(self._plan.skip(entry_id))

    def stats(self) -> LeaseStats:
        """Return what the queue holds, at one moment."""
        return self._drive.run(lease_admin.stats(self.keys, self.config))

    def trim(self, keep_from: str | datetime) -> int:
        """Delete waiting jobs before an entry id or a time, never past one that is leased, handed
        back or blocked; returns how many.
        """
        return self._drive.flow(self._plan.trim(keep_from))

    def snapshot(self, *, limit: int = _SNAPSHOT_LIMIT) -> str:
        """Return the whole state of the queue at one moment, as text; letters are not in it."""
        return self._drive.run(lease_images.snapshot(self.keys, self.config, limit))

    def restore(self, image: str) -> int:
        """Make the queue of a snapshot, on any server; refuses where the queue is there."""
        return self._drive.flow(lease_images.restore(self.keys, self.config, image))

    def dialect(self) -> str:
        """Reach the server and return the dialect it speaks: native or portable."""
        return self._drive.dialect()

    def close(self) -> None:
        """Give the connections back."""
        self._drive.close()
        self._registry.close()
        if self._owns_link:
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLeaseQueue:
    """A queue to lease from, awaited. `server` is a URL, a Target, or a link that is shared."""

    def __init__(
        self,
        name: str,
        server: str | Target | AsyncLink = LOCAL,
        *,
        config: LeaseConfig | None = None,
        limits: QueueConfig | None = None,
        dialect: str | None = None,
        clock: Callable[[], int] = wall_clock,
    ):
        self._owns_link = not isinstance(server, AsyncLink)
        self._link = AsyncLink.of(server, dialect)
        self._plan = LeasePlan(Keys(name), config or LeaseConfig(), limits or QueueConfig(), clock)
        self._drive = AsyncDriver(self._link, self._plan.keys)
        self._registry = AsyncDriver(self._link, _Registry())

    @property
    def name(self) -> str:
        return self.keys.queue

    @property
    def keys(self) -> Keys:
        return self._plan.keys

    @property
    def config(self) -> LeaseConfig:
        return self._plan.config

    @property
    def target(self) -> Target:
        return self._link.target

    @property
    def drive(self) -> AsyncDriver:
        """The driver, for those who run operations of their own (the bridge, partitions)."""
        return self._drive

    def __repr__(self) -> str:
        return f"AsyncLeaseQueue({self.name!r}, {self._link.target.where!r})"

    async def create(self, *, org: str | None = None, max_queues: int | None = None) -> None:
        """Make the queue, or agree with the one that is there; with `org`, within its quota.

        Leasing makes it as well. An exclusive queue that is leased with another configuration
        raises QueueExists.
        """
        fresh = False
        if org is not None:
            entering = lease_admin.enter(
                org, self.name, 2**31 if max_queues is None else max_queues
            )
            fresh = await self._registry.run(entering)
        try:
            await self._drive.run(lease_admin.create(self.keys, self.config))
        except ChasquiError:
            if fresh and org is not None:
                await self._registry.run(lease_admin.leave(org, self.name))
            raise

    async def delete(self, *, org: str | None = None, letters: bool = False) -> bool:
        """Delete the queue and what leases know of it, its letters only if asked for."""
        gone = await self._drive.run(lease_admin.delete(self.keys, letters))
        if org is not None:
            await self._registry.run(lease_admin.leave(org, self.name))
        return gone > 0

    async def produce(
        self,
        messages: Iterable[Any],
        *,
        client_id: str | None = None,
        client_seq: int | None = None,
        expected_last: str | None = None,
        strict_seq: bool = False,
    ) -> list[str | None]:
        """Append payloads, or NewJobs, all or none, and return their entry ids.

        With `client_id`, the messages have the numbers from `client_seq` on, and one whose number
        was used before is passed over (None); `strict_seq` refuses instead. `expected_last` is the
        tail that the caller saw: if it has moved, nothing is written and TailMoved says where to.
        """
        flow = self._plan.produce(messages, client_id, client_seq, expected_last, strict_seq)
        return await self._drive.flow(flow)

    async def lease(
        self,
        consumer: str,
        max_messages: int = 1,
        *,
        wait: timedelta | None = None,
        visibility_timeout: timedelta | None = None,
    ) -> list[Lease]:
        """Lease up to `max_messages` jobs; with `wait`, stay until there is one.

        New jobs, leases that ran out, jobs handed back and delayed jobs that came due all count.
        """
        flow = self._plan.lease(consumer, max_messages, wait, visibility_timeout)
        return await self._drive.flow(flow)

    async def ack(self, *leases: AnyLease) -> None:
        """Settle leases for good. LeaseLost names those that were not ours any more."""
        await self._drive.flow(self._plan.ack(leases))

    async def nack(
        self, *leases: AnyLease, delay: timedelta = _NOW, as_retry: bool = False
    ) -> None:
        """Hand jobs back, to be leased again after `delay`.

        Entry and order are kept. In shared mode a delay beyond `reclaim_after`, or `as_retry`,
        parks the job among the delayed ones instead, as a worker's retry does.
        """
        await self._drive.flow(self._plan.nack(leases, delay, as_retry))

    async def extend(
        self, *leases: AnyLease, visibility_timeout: timedelta | None = None
    ) -> list[AnyLease]:
        """Let leases run anew from now, at the same delivery count; returns them as they are."""
        return await self._drive.flow(self._plan.extend(leases, visibility_timeout))

    def heartbeat(
        self, *leases: AnyLease, visibility_timeout: timedelta | None = None
    ) -> AsyncHeartbeat:
        """Keep leases while the block runs: `async with queue.heartbeat(lease) as beat: ...`."""

        async def extend(*kept: AnyLease) -> list[AnyLease]:
            return await self.extend(*kept, visibility_timeout=visibility_timeout)

        return AsyncHeartbeat(extend, leases, _every(self.config, visibility_timeout))

    async def bury(self, *leases: AnyLease, error: str | None = None) -> None:
        """Give jobs up: they become letters."""
        await self._drive.flow(self._plan.bury(leases, error))

    async def block(self, *leases: AnyLease) -> None:
        """Set jobs aside until somebody unblocks or skips them; an ordered line ends there."""
        await self._drive.flow(self._plan.block(leases))

    async def blocked(self, *, limit: int = 100) -> list[Blocked]:
        """Return what is set aside, oldest first."""
        return await self._drive.flow(lease_admin.blocked(self.keys, self.config, limit))

    async def unblock(self, entry_id: str, *, grant_attempts: int = 1) -> bool:
        """Let a job that is set aside be leased again; False if it is not set aside."""
        return await self._drive.flow(self._plan.unblock(entry_id, grant_attempts))

    async def skip(self, entry_id: str) -> bool:
        """Make a letter of a job that is set aside; False if it is not set aside."""
        return await self._drive.flow(self._plan.skip(entry_id))

    async def stats(self) -> LeaseStats:
        """Return what the queue holds, at one moment."""
        return await self._drive.run(lease_admin.stats(self.keys, self.config))

    async def trim(self, keep_from: str | datetime) -> int:
        """Delete waiting jobs before an entry id or a time, never past one that is leased, handed
        back or blocked; returns how many.
        """
        return await self._drive.flow(self._plan.trim(keep_from))

    async def snapshot(self, *, limit: int = _SNAPSHOT_LIMIT) -> str:
        """Return the whole state of the queue at one moment, as text; letters are not in it."""
        return await self._drive.run(lease_images.snapshot(self.keys, self.config, limit))

    async def restore(self, image: str) -> int:
        """Make the queue of a snapshot, on any server; refuses where the queue is there."""
        return await self._drive.flow(lease_images.restore(self.keys, self.config, image))

    async def dialect(self) -> str:
        """Reach the server and return the dialect it speaks: native or portable."""
        return await self._drive.dialect()

    async def close(self) -> None:
        """Give the connections back."""
        await self._drive.close()
        await self._registry.close()
        if self._owns_link:
            await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
