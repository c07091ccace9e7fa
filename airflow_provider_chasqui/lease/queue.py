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

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands import leases as leases_commands
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import BlockedEntry, Lease, LeaseConfig, LeaseStats
from airflow_provider_chasqui.core.lease_flows import LeaseFlows, LeaseOrToken
from airflow_provider_chasqui.lease.heartbeat import AsyncLeaseHeartbeat, LeaseHeartbeat
from airflow_provider_chasqui.queue import DEFAULT_URL
from airflow_provider_chasqui.redis_client.client import AsyncRedisClient, RedisClient
from airflow_provider_chasqui.redis_client.connection_pool import (
    AsyncConnectionManager,
    ConnectionManager,
)
from airflow_provider_chasqui.redis_client.target import RedisTarget

_ZERO = timedelta(0)
_SNAPSHOT_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class _RegistryKeys:
    """Where the lists of organisations live: in a slot of their own."""

    hash_tag: str = "{chasqui:_registry}"
    queue_name: str = "_registry"


def _heartbeat_interval(config: LeaseConfig, visibility_timeout: timedelta | None) -> float:
    life_ms = config.check_visibility_timeout(visibility_timeout or config.visibility_timeout)
    return life_ms / 3000


class LeaseQueue:
    """A queue to lease from, blocking. `server` is a URL, a Target, or a link that is shared."""

    def __init__(
        self,
        queue_name: str,
        server: str | RedisTarget | ConnectionManager = DEFAULT_URL,
        *,
        config: LeaseConfig | None = None,
        queue_config: QueueConfig | None = None,
        dialect: str | None = None,
        clock: Callable[[], int] = current_time_ms,
    ):
        self._owns_connection_manager = not isinstance(server, ConnectionManager)
        self._connection_manager = ConnectionManager.from_server(server, dialect)
        self._flows = LeaseFlows(
            Keys(queue_name), config or LeaseConfig(), queue_config or QueueConfig(), clock
        )
        self._client = RedisClient(self._connection_manager, self._flows.keys)
        self._registry_client = RedisClient(self._connection_manager, _RegistryKeys())

    @property
    def name(self) -> str:
        return self.keys.queue_name

    @property
    def keys(self) -> Keys:
        return self._flows.keys

    @property
    def config(self) -> LeaseConfig:
        return self._flows.config

    @property
    def target(self) -> RedisTarget:
        return self._connection_manager.target

    @property
    def client(self) -> RedisClient:
        """The driver, for those who run operations of their own (the bridge, partitions)."""
        return self._client

    def __repr__(self) -> str:
        return f"LeaseQueue({self.name!r}, {self._connection_manager.target.display_name!r})"

    def create(self, *, org: str | None = None, max_queues: int | None = None) -> None:
        """Make the queue, or agree with the one that is there; with `org`, within its quota.

        Leasing makes it as well. An exclusive queue that is leased with another configuration
        raises QueueExists.
        """
        fresh = False
        if org is not None:
            entering = leases_commands.register_queue(
                org, self.name, 2**31 if max_queues is None else max_queues
            )
            fresh = self._registry_client.execute(entering)
        try:
            self._client.execute(leases_commands.create_queue(self.keys, self.config))
        except ChasquiError:
            if fresh and org is not None:
                self._registry_client.execute(leases_commands.unregister_queue(org, self.name))
            raise

    def delete(self, *, org: str | None = None, include_dead_letters: bool = False) -> bool:
        """Delete the queue and what leases know of it, its letters only if asked for."""
        gone = self._client.execute(leases_commands.delete_queue(self.keys, include_dead_letters))
        if org is not None:
            self._registry_client.execute(leases_commands.unregister_queue(org, self.name))
        return gone > 0

    def produce(
        self,
        messages: Iterable[Any],
        *,
        client_id: str | None = None,
        client_seq: int | None = None,
        expected_last_id: str | None = None,
        strict_seq: bool = False,
    ) -> list[str | None]:
        """Append payloads, or NewJobs, all or none, and return their entry ids.

        With `client_id`, the messages have the numbers from `client_seq` on, and one whose number
        was used before is passed over (None); `strict_seq` refuses instead. `expected_last` is the
        tail that the caller saw: if it has moved, nothing is written and TailMoved says where to.
        """
        flow = self._flows.produce(messages, client_id, client_seq, expected_last_id, strict_seq)
        return self._client.run_flow(flow)

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
        flow = self._flows.lease(consumer, max_messages, wait, visibility_timeout)
        return self._client.run_flow(flow)

    def ack(self, *leases: LeaseOrToken) -> None:
        """Settle leases for good. LeaseLost names those that were not ours any more."""
        self._client.run_flow(self._flows.ack(leases))

    def nack(self, *leases: LeaseOrToken, delay: timedelta = _ZERO, as_retry: bool = False) -> None:
        """Hand jobs back, to be leased again after `delay`.

        Entry and order are kept. In shared mode a delay beyond `claim_after`, or `as_retry`,
        parks the job among the delayed ones instead, as a worker's retry does.
        """
        self._client.run_flow(self._flows.nack(leases, delay, as_retry))

    def extend(
        self, *leases: LeaseOrToken, visibility_timeout: timedelta | None = None
    ) -> list[LeaseOrToken]:
        """Let leases run anew from now, at the same delivery count; returns them as they are."""
        return self._client.run_flow(self._flows.extend(leases, visibility_timeout))

    def heartbeat(
        self, *leases: LeaseOrToken, visibility_timeout: timedelta | None = None
    ) -> LeaseHeartbeat:
        """Keep leases while the block runs: `with queue.heartbeat(lease) as beat: ...`."""

        def extend(*kept: LeaseOrToken) -> list[LeaseOrToken]:
            return self.extend(*kept, visibility_timeout=visibility_timeout)

        return LeaseHeartbeat(extend, leases, _heartbeat_interval(self.config, visibility_timeout))

    def dead_letter(self, *leases: LeaseOrToken, error: str | None = None) -> None:
        """Give jobs up: they become letters."""
        self._client.run_flow(self._flows.dead_letter(leases, error))

    def block(self, *leases: LeaseOrToken) -> None:
        """Set jobs aside until somebody unblocks or skips them; an ordered line ends there."""
        self._client.run_flow(self._flows.block(leases))

    def blocked(self, *, limit: int = 100) -> list[BlockedEntry]:
        """Return what is set aside, oldest first."""
        return self._client.run_flow(leases_commands.list_blocked(self.keys, self.config, limit))

    def unblock(self, entry_id: str, *, extra_attempts: int = 1) -> bool:
        """Let a job that is set aside be leased again; False if it is not set aside."""
        return self._client.run_flow(self._flows.unblock(entry_id, extra_attempts))

    def dead_letter_blocked(self, entry_id: str) -> bool:
        """Make a letter of a job that is set aside; False if it is not set aside."""
        return self._client.run_flow(self._flows.dead_letter_blocked(entry_id))

    def stats(self) -> LeaseStats:
        """Return what the queue holds, at one moment."""
        return self._client.execute(leases_commands.stats(self.keys, self.config))

    def trim(self, keep_from: str | datetime) -> int:
        """Delete waiting jobs before an entry id or a time, never past one that is leased, handed
        back or blocked; returns how many.
        """
        return self._client.run_flow(self._flows.trim(keep_from))

    def snapshot(self, *, limit: int = _SNAPSHOT_LIMIT) -> str:
        """Return the whole state of the queue at one moment, as text; letters are not in it."""
        return self._client.execute(leases_commands.snapshot(self.keys, self.config, limit))

    def restore(self, snapshot: str) -> int:
        """Make the queue of a snapshot, on any server; refuses where the queue is there."""
        return self._client.run_flow(leases_commands.restore(self.keys, self.config, snapshot))

    def dialect(self) -> str:
        """Reach the server and return the dialect it speaks: native or portable."""
        return self._client.dialect()

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()
        self._registry_client.close()
        if self._owns_connection_manager:
            self._connection_manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLeaseQueue:
    """A queue to lease from, awaited. `server` is a URL, a Target, or a link that is shared."""

    def __init__(
        self,
        queue_name: str,
        server: str | RedisTarget | AsyncConnectionManager = DEFAULT_URL,
        *,
        config: LeaseConfig | None = None,
        queue_config: QueueConfig | None = None,
        dialect: str | None = None,
        clock: Callable[[], int] = current_time_ms,
    ):
        self._owns_connection_manager = not isinstance(server, AsyncConnectionManager)
        self._connection_manager = AsyncConnectionManager.from_server(server, dialect)
        self._flows = LeaseFlows(
            Keys(queue_name), config or LeaseConfig(), queue_config or QueueConfig(), clock
        )
        self._client = AsyncRedisClient(self._connection_manager, self._flows.keys)
        self._registry_client = AsyncRedisClient(self._connection_manager, _RegistryKeys())

    @property
    def name(self) -> str:
        return self.keys.queue_name

    @property
    def keys(self) -> Keys:
        return self._flows.keys

    @property
    def config(self) -> LeaseConfig:
        return self._flows.config

    @property
    def target(self) -> RedisTarget:
        return self._connection_manager.target

    @property
    def client(self) -> AsyncRedisClient:
        """The driver, for those who run operations of their own (the bridge, partitions)."""
        return self._client

    def __repr__(self) -> str:
        return f"AsyncLeaseQueue({self.name!r}, {self._connection_manager.target.display_name!r})"

    async def create(self, *, org: str | None = None, max_queues: int | None = None) -> None:
        """Make the queue, or agree with the one that is there; with `org`, within its quota.

        Leasing makes it as well. An exclusive queue that is leased with another configuration
        raises QueueExists.
        """
        fresh = False
        if org is not None:
            entering = leases_commands.register_queue(
                org, self.name, 2**31 if max_queues is None else max_queues
            )
            fresh = await self._registry_client.execute(entering)
        try:
            await self._client.execute(leases_commands.create_queue(self.keys, self.config))
        except ChasquiError:
            if fresh and org is not None:
                await self._registry_client.execute(
                    leases_commands.unregister_queue(org, self.name)
                )
            raise

    async def delete(self, *, org: str | None = None, include_dead_letters: bool = False) -> bool:
        """Delete the queue and what leases know of it, its letters only if asked for."""
        gone = await self._client.execute(
            leases_commands.delete_queue(self.keys, include_dead_letters)
        )
        if org is not None:
            await self._registry_client.execute(leases_commands.unregister_queue(org, self.name))
        return gone > 0

    async def produce(
        self,
        messages: Iterable[Any],
        *,
        client_id: str | None = None,
        client_seq: int | None = None,
        expected_last_id: str | None = None,
        strict_seq: bool = False,
    ) -> list[str | None]:
        """Append payloads, or NewJobs, all or none, and return their entry ids.

        With `client_id`, the messages have the numbers from `client_seq` on, and one whose number
        was used before is passed over (None); `strict_seq` refuses instead. `expected_last` is the
        tail that the caller saw: if it has moved, nothing is written and TailMoved says where to.
        """
        flow = self._flows.produce(messages, client_id, client_seq, expected_last_id, strict_seq)
        return await self._client.run_flow(flow)

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
        flow = self._flows.lease(consumer, max_messages, wait, visibility_timeout)
        return await self._client.run_flow(flow)

    async def ack(self, *leases: LeaseOrToken) -> None:
        """Settle leases for good. LeaseLost names those that were not ours any more."""
        await self._client.run_flow(self._flows.ack(leases))

    async def nack(
        self, *leases: LeaseOrToken, delay: timedelta = _ZERO, as_retry: bool = False
    ) -> None:
        """Hand jobs back, to be leased again after `delay`.

        Entry and order are kept. In shared mode a delay beyond `claim_after`, or `as_retry`,
        parks the job among the delayed ones instead, as a worker's retry does.
        """
        await self._client.run_flow(self._flows.nack(leases, delay, as_retry))

    async def extend(
        self, *leases: LeaseOrToken, visibility_timeout: timedelta | None = None
    ) -> list[LeaseOrToken]:
        """Let leases run anew from now, at the same delivery count; returns them as they are."""
        return await self._client.run_flow(self._flows.extend(leases, visibility_timeout))

    def heartbeat(
        self, *leases: LeaseOrToken, visibility_timeout: timedelta | None = None
    ) -> AsyncLeaseHeartbeat:
        """Keep leases while the block runs: `async with queue.heartbeat(lease) as beat: ...`."""

        async def extend(*kept: LeaseOrToken) -> list[LeaseOrToken]:
            return await self.extend(*kept, visibility_timeout=visibility_timeout)

        return AsyncLeaseHeartbeat(
            extend, leases, _heartbeat_interval(self.config, visibility_timeout)
        )

    async def dead_letter(self, *leases: LeaseOrToken, error: str | None = None) -> None:
        """Give jobs up: they become letters."""
        await self._client.run_flow(self._flows.dead_letter(leases, error))

    async def block(self, *leases: LeaseOrToken) -> None:
        """Set jobs aside until somebody unblocks or skips them; an ordered line ends there."""
        await self._client.run_flow(self._flows.block(leases))

    async def blocked(self, *, limit: int = 100) -> list[BlockedEntry]:
        """Return what is set aside, oldest first."""
        return await self._client.run_flow(
            leases_commands.list_blocked(self.keys, self.config, limit)
        )

    async def unblock(self, entry_id: str, *, extra_attempts: int = 1) -> bool:
        """Let a job that is set aside be leased again; False if it is not set aside."""
        return await self._client.run_flow(self._flows.unblock(entry_id, extra_attempts))

    async def dead_letter_blocked(self, entry_id: str) -> bool:
        """Make a letter of a job that is set aside; False if it is not set aside."""
        return await self._client.run_flow(self._flows.dead_letter_blocked(entry_id))

    async def stats(self) -> LeaseStats:
        """Return what the queue holds, at one moment."""
        return await self._client.execute(leases_commands.stats(self.keys, self.config))

    async def trim(self, keep_from: str | datetime) -> int:
        """Delete waiting jobs before an entry id or a time, never past one that is leased, handed
        back or blocked; returns how many.
        """
        return await self._client.run_flow(self._flows.trim(keep_from))

    async def snapshot(self, *, limit: int = _SNAPSHOT_LIMIT) -> str:
        """Return the whole state of the queue at one moment, as text; letters are not in it."""
        return await self._client.execute(leases_commands.snapshot(self.keys, self.config, limit))

    async def restore(self, snapshot: str) -> int:
        """Make the queue of a snapshot, on any server; refuses where the queue is there."""
        return await self._client.run_flow(
            leases_commands.restore(self.keys, self.config, snapshot)
        )

    async def dialect(self) -> str:
        """Reach the server and return the dialect it speaks: native or portable."""
        return await self._client.dialect()

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.close()
        await self._registry_client.close()
        if self._owns_connection_manager:
            await self._connection_manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
