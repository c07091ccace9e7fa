"""Queue for consumers that lease jobs: Celeriant Queue's operations on the workers' streams.

Celeriant Queue is a job queue whose consumers lease jobs; see docs/migration/celeriant.md.

The blocking class in `queue.py` is generated from the asyncio class in `queue_async.py`, so both
have the same methods. Example::

    async with AsyncLeaseQueue("emails", "redis://localhost") as queue:
        for lease in await queue.lease("worker-1", 10, wait=timedelta(seconds=20)):
            send(lease.payload)
            await queue.ack(lease)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Self

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands import leases as leases_commands
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import (
    BlockedEntry,
    ConsumerSession,
    Lease,
    LeaseConfig,
    LeaseStats,
)
from airflow_provider_chasqui.core.lease_flows import LeaseFlows, LeaseOrToken
from airflow_provider_chasqui.lease._common import (
    SNAPSHOT_LIMIT,
    SNAPSHOT_MAX_BYTES,
    STALLED_AFTER,
    UNLIMITED_QUEUES,
    ZERO,
    RegistryKeys,
    heartbeat_interval,
)
from airflow_provider_chasqui.lease.heartbeat_async import AsyncLeaseHeartbeat
from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.deadline import limit_duration
from airflow_provider_chasqui.redis_client.target import DEFAULT_URL, RedisTarget

_logger = logging.getLogger(__name__)


class AsyncLeaseQueue:
    """Queue whose jobs are leased and acknowledged, from any process.

    An asyncio queue belongs to one event loop. A blocking queue may be used by several threads, and
    after a fork. Every method raises a ChasquiError if the server refuses a command or stays
    unreachable.

    :param queue_name: the name of the queue.
    :param server: a URL, a RedisTarget, or a connection manager that several queues share.
    :param config: the lease configuration. Default: `LeaseConfig()`: shared mode.
    :param queue_config: limits of the producer. Default: `QueueConfig()`.
    :param dialect: "native" or "portable". None detects it at the first command.
    :param clock: a function that returns the time in milliseconds since the epoch.
    :raises InvalidArgument: if the name, the URL or the dialect is not valid.
    """

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
            Keys(queue_name),
            config or LeaseConfig(),
            queue_config or QueueConfig(),
            clock,
            time.monotonic,
        )
        self._warned = False
        self._client = AsyncRedisClient(self._connection_manager, self._flows.keys)
        self._registry_client = AsyncRedisClient(self._connection_manager, RegistryKeys())

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.keys.queue_name

    @property
    def keys(self) -> Keys:
        """The Redis keys of the queue."""
        return self._flows.keys

    @property
    def config(self) -> LeaseConfig:
        """The lease configuration."""
        return self._flows.config

    @property
    def target(self) -> RedisTarget:
        """The server."""
        return self._connection_manager.target

    @property
    def client(self) -> AsyncRedisClient:
        """The Redis client, for code that runs its own commands."""
        return self._client

    def __repr__(self) -> str:
        return f"AsyncLeaseQueue({self.name!r}, {self._connection_manager.target.display_name!r})"

    async def create(self, *, org: str | None = None, max_queues: int | None = None) -> None:
        """Create the queue, or verify that it exists with the same configuration.

        The first lease creates the queue as well.

        :param org: the organisation in whose registry the queue is listed.
        :param max_queues: the maximum number of queues of the organisation. None: no limit.
        :raises QueueExists: if an exclusive queue exists with another configuration.
        :raises QuotaExceeded: if the organisation has `max_queues` queues.
        """
        registered = False
        if org is not None:
            limit = UNLIMITED_QUEUES if max_queues is None else max_queues
            registered = await self._registry_client.execute(
                leases_commands.register_queue(org, self.name, limit)
            )
        try:
            await self._client.execute(leases_commands.create_queue(self.keys, self.config))
        except ChasquiError:
            if registered and org is not None:
                await self._registry_client.execute(
                    leases_commands.unregister_queue(org, self.name)
                )
            raise

    async def delete(self, *, org: str | None = None, include_dead_letters: bool = False) -> bool:
        """Delete the queue with its jobs and leases.

        :param org: the organisation from whose registry the queue is removed.
        :param include_dead_letters: delete the dead letters as well.
        :return: False if the queue does not exist.
        """
        deleted_keys = await self._client.execute(
            leases_commands.delete_queue(self.keys, include_dead_letters)
        )
        if org is not None:
            await self._registry_client.execute(leases_commands.unregister_queue(org, self.name))
        return deleted_keys > 0

    async def produce(
        self,
        messages: Iterable[Any],
        *,
        client_id: str | None = None,
        client_seq: int | None = None,
        expected_last_id: str | None = None,
        strict_seq: bool = False,
    ) -> list[str | None]:
        """Append messages, all or none of them.

        :param messages: payloads or NewJobs.
        :param client_id: the id of the producer, for the detection of duplicates.
        :param client_seq: the sequence number of the first message. The next messages have the
            following numbers. A message whose number was already used is skipped.
        :param expected_last_id: the entry id of the last message that the caller knows. If the
            queue has another one, nothing is written.
        :param strict_seq: raise an error for a used sequence number instead of skipping the
            message.
        :return: the entry ids. A skipped message has None.
        :raises TailMoved: if `expected_last_id` is not the last entry. It has the id of the last
            one.
        :raises SequenceConflict: if a sequence number was used and `strict_seq` is set.
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
        session: ConsumerSession | None = None,
    ) -> list[Lease]:
        """Lease jobs: new and released ones, expired leases, and delayed ones when due.

        :param consumer: the name of the consumer.
        :param max_messages: the maximum number of jobs, from 1 to 10000.
        :param wait: the longest wait for a job. None does not wait.
        :param visibility_timeout: the duration of the leases. Default: the configured one.
        :param session: the session of the consumer. An ordered queue is leased to one session at a
            time, even if another one has the same consumer name. Default: the session of this
            object, so a restarted process is a new session.
        :raises ConnectionFailed: if the server stays unreachable, with `wait` at most until then.
        :raises TooManyInFlight: if the maximum number of leases exists.
        :raises TooManyUnacknowledged: if the maximum number of unacknowledged entries exists.
        """
        self._warn_if_stalled_early()
        flow = self._flows.lease(consumer, max_messages, wait, visibility_timeout, session)
        try:
            with limit_duration((wait or ZERO).total_seconds()):
                return await self._client.run_flow(flow)
        finally:
            flow.close()  # a cancelled flow records at once that its call has no reply

    def keep_undelivered(
        self, consumer: str, leases: Sequence[Lease], session: ConsumerSession | None = None
    ) -> None:
        """Let the next calls of `lease` return leases again, because nothing processes them.

        A program needs this if it leases jobs, fails before it processes them, and continues with
        the same queue object: an ordered queue would otherwise continue with the jobs after them.

        :param consumer: the name of the consumer.
        :param leases: leases of that consumer. Those that are lost meanwhile are not returned.
        :param session: the session of the consumer, as for `lease`.
        """
        self._flows.keep_surplus(session or self._flows.session, consumer, leases)

    def _warn_if_stalled_early(self) -> None:
        if self._warned or self.config.exclusive or self.config.claim_after <= STALLED_AFTER:
            return
        self._warned = True
        _logger.warning(
            "lease: queue %r is leased with claim_after=%s in shared mode. ChasquiMQ workers newer "
            "than 1.3.0 move an entry that is idle for 30 s, even if it is leased. If such workers "
            "serve this queue, use claim_after of at most 30 s and renew leases with heartbeat(), "
            "or use mode='exclusive'",
            self.name,
            self.config.claim_after,
        )

    async def ack(self, *leases: LeaseOrToken) -> None:
        """Acknowledge leases: the jobs are completed.

        :param leases: leases or their tokens.
        :raises LeaseLost: if leases were lost. It lists their tokens; the others are acknowledged.
        """
        await self._client.run_flow(self._flows.ack(leases))

    async def nack(
        self, *leases: LeaseOrToken, delay: timedelta = ZERO, as_retry: bool = False
    ) -> None:
        """Release leases: the jobs can be leased again, as the same entries and in the same order.

        :param leases: leases or their tokens.
        :param delay: the time until the jobs can be leased again. In shared mode, a delay longer
            than `claim_after` moves the jobs to the delayed set.
        :param as_retry: move the jobs to the delayed set in any case, as the retry of a worker
            does. Only in shared mode.
        :raises LeaseLost: if leases were lost. It lists their tokens; the others are released.
        """
        await self._client.run_flow(self._flows.nack(leases, delay, as_retry))

    async def extend(
        self, *leases: LeaseOrToken, visibility_timeout: timedelta | None = None
    ) -> list[LeaseOrToken]:
        """Restart the visibility timeout of leases. Their delivery count does not change.

        :param leases: leases or their tokens.
        :param visibility_timeout: the duration from now. Default: the configured one.
        :return: the leases with their new deadline, and the tokens.
        :raises LeaseLost: if leases were lost. It lists their tokens; the others are extended.
        """
        return await self._client.run_flow(self._flows.extend(leases, visibility_timeout))

    def heartbeat(
        self, *leases: LeaseOrToken, visibility_timeout: timedelta | None = None
    ) -> AsyncLeaseHeartbeat:
        """Return a context manager that extends leases while its block runs.

        Example: `async with queue.heartbeat(lease) as heartbeat: ...`

        :param leases: leases or their tokens.
        :param visibility_timeout: the duration of each extension. Default: the configured one.
        """

        async def extend(*remaining: LeaseOrToken) -> list[LeaseOrToken]:
            return await self.extend(*remaining, visibility_timeout=visibility_timeout)

        return AsyncLeaseHeartbeat(
            extend, leases, heartbeat_interval(self.config, visibility_timeout)
        )

    async def dead_letter(
        self, *leases: LeaseOrToken, error: str | None = None, reason: str = "unrecoverable"
    ) -> None:
        """Move leased jobs to the DLQ.

        :param leases: leases or their tokens.
        :param error: the error that the dead letters show.
        :param reason: the reason that the dead letters show, for example `retries_exhausted`.
        :raises LeaseLost: if leases were lost. It lists their tokens; the others are moved.
        """
        await self._client.run_flow(self._flows.dead_letter(leases, error, reason))

    async def block(self, *leases: LeaseOrToken) -> None:
        """Block leased jobs until `unblock` or `dead_letter_blocked` is called.

        An ordered queue delivers nothing after a blocked job.

        :param leases: leases or their tokens.
        :raises LeaseLost: if leases were lost. It lists their tokens; the others are blocked.
        """
        await self._client.run_flow(self._flows.block(leases))

    async def blocked(self, *, limit: int = 100) -> list[BlockedEntry]:
        """Return the blocked jobs, oldest first.

        :param limit: the maximum number of jobs.
        """
        return await self._client.run_flow(
            leases_commands.list_blocked(self.keys, self.config, limit)
        )

    async def unblock(self, entry_id: str, *, extra_attempts: int = 1) -> bool:
        """Make a blocked job available again.

        :param entry_id: the entry id of the job.
        :param extra_attempts: the number of further deliveries that are allowed.
        :return: False if the job is not blocked.
        """
        return await self._client.run_flow(self._flows.unblock(entry_id, extra_attempts))

    async def dead_letter_blocked(self, entry_id: str) -> bool:
        """Move a blocked job to the DLQ.

        :param entry_id: the entry id of the job.
        :return: False if the job is not blocked.
        """
        return await self._client.run_flow(self._flows.dead_letter_blocked(entry_id))

    async def stats(self) -> LeaseStats:
        """Return the counts of the queue, all read at the same time.

        :raises QueueNotFound: if the queue does not exist.
        """
        return await self._client.execute(leases_commands.stats(self.keys, self.config))

    async def trim(self, keep_from: str | datetime) -> int:
        """Delete old waiting jobs. It stops before a job that is leased, released or blocked.

        :param keep_from: the entry id or the time of the first job to keep.
        :return: the number of deleted jobs.
        :raises InvalidArgument: if `keep_from` is neither an entry id nor a datetime.
        """
        return await self._client.run_flow(self._flows.trim(keep_from))

    async def snapshot(
        self, *, limit: int = SNAPSHOT_LIMIT, max_bytes: int = SNAPSHOT_MAX_BYTES
    ) -> str:
        """Return the state of the queue as text, without its dead letters.

        The server runs no other command while it reads the queue.

        :param limit: the maximum number of jobs in a snapshot, including delayed and blocked ones.
            The default is 100000.
        :param max_bytes: the maximum size of the jobs. The default is 256 MiB.
        :raises InvalidArgument: if the queue has more or larger jobs.
        :raises QueueNotFound: if the queue does not exist.
        """
        return await self._client.execute(
            leases_commands.snapshot(self.keys, self.config, limit, max_bytes)
        )

    async def restore(self, snapshot: str) -> int:
        """Create the queue from a snapshot, on any server.

        :param snapshot: the text that `snapshot` returned.
        :return: the number of jobs.
        :raises InvalidArgument: if the queue exists, or the snapshot is not valid.
        """
        return await self._client.run_flow(
            leases_commands.restore(self.keys, self.config, snapshot)
        )

    async def dialect(self) -> str:
        """Connect to the server and return its dialect, "native" or "portable"."""
        return await self._client.dialect()

    async def close(self) -> None:
        """Release the connections. Those of a shared connection manager stay open."""
        await self._client.close()
        await self._registry_client.close()
        if self._owns_connection_manager:
            await self._connection_manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
