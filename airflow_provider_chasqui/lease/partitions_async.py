"""Partitioned queue: N queues under one name. A key always selects the same partition.

Each partition is a queue in its own hash slot, so a Redis Cluster distributes the partitions over
its nodes. By default the partitions are exclusive and ordered: the jobs of one key are processed in
order. Example::

    orders = AsyncPartitionedQueue("orders", "redis+cluster://host:7000", partitions=16)
    await orders.produce("customer-7", [{"amount": 3}])
    async with orders.join("worker-1") as consumer:
        for lease in await consumer.lease(10, wait=timedelta(seconds=20)):
            handle(lease.payload)
            await consumer.ack(lease)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Self

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import LeaseConfig, LeaseStats
from airflow_provider_chasqui.core.partition import (
    check_partition_count,
    partition_of,
    partition_queue_name,
)
from airflow_provider_chasqui.lease._common import PARTITION_LEASE_CONFIG
from airflow_provider_chasqui.lease.consumers_async import AsyncPartitionConsumer
from airflow_provider_chasqui.lease.queue_async import AsyncLeaseQueue
from airflow_provider_chasqui.redis_client.client_async import AsyncRedisClient
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.target import DEFAULT_URL, RedisTarget


class AsyncPartitionedQueue:
    """N queues under one name.

    :param queue_name: the name of the queue.
    :param server: a URL, a RedisTarget, or a connection manager that several queues share.
    :param partitions: the number of partitions. All users of the queue must use the same number.
    :param config: the lease configuration of each partition. The default is exclusive and ordered,
        and blocks a job that reached its maximum of deliveries.
    :param dialect: "native" or "portable". None detects it at the first command.
    :param clock: a function that returns the time in milliseconds since the epoch.
    :raises InvalidArgument: if an argument is not valid.
    """

    def __init__(
        self,
        queue_name: str,
        server: str | RedisTarget | AsyncConnectionManager = DEFAULT_URL,
        *,
        partitions: int,
        config: LeaseConfig = PARTITION_LEASE_CONFIG,
        dialect: str | None = None,
        clock: Callable[[], int] = current_time_ms,
    ):
        self._owns_connection_manager = not isinstance(server, AsyncConnectionManager)
        self._connection_manager = AsyncConnectionManager.from_server(server, dialect)
        self.keys = Keys(queue_name)
        self.partitions = check_partition_count(partitions)
        self.config = config
        self.clock = clock
        self.client = AsyncRedisClient(self._connection_manager, self.keys)
        self._queues: dict[int, AsyncLeaseQueue] = {}

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.keys.queue_name

    def partition_of(self, key: str | bytes) -> int:
        """Return the partition of a key.

        :param key: the key.
        """
        return partition_of(key, self.partitions)

    def queue(self, partition: int) -> AsyncLeaseQueue:
        """Return the queue of one partition.

        :param partition: the number of the partition, from 0.
        :raises InvalidArgument: if there is no such partition.
        """
        if not 0 <= partition < self.partitions:
            raise InvalidArgument(
                f"the partition must be from 0 to {self.partitions - 1}, not {partition}"
            )
        if partition not in self._queues:
            name = partition_queue_name(self.name, partition)
            self._queues[partition] = AsyncLeaseQueue(
                name, self._connection_manager, config=self.config, clock=self.clock
            )
        return self._queues[partition]

    async def produce(
        self, key: str | bytes, messages: Iterable[Any], **options: Any
    ) -> list[str | None]:
        """Append messages to the partition of a key.

        :param key: the key.
        :param messages: payloads or NewJobs.
        :param options: the options of `AsyncLeaseQueue.produce`.
        :return: the entry ids. A duplicate has None.
        """
        return await self.queue(self.partition_of(key)).produce(messages, **options)

    async def stats(self) -> list[LeaseStats]:
        """Return the counts of each partition. Partitions that do not exist yet are created."""
        stats = []
        for partition in range(self.partitions):
            await self.queue(partition).create()
            stats.append(await self.queue(partition).stats())
        return stats

    def join(
        self, consumer: str, *, session_timeout: timedelta = timedelta(seconds=15)
    ) -> AsyncPartitionConsumer:
        """Return a new consumer, to be used as a context manager.

        :param consumer: the name of the consumer.
        :param session_timeout: the time without a heartbeat after which the consumer counts as
            dead. The default is 15 seconds.
        :raises InvalidArgument: if the name is empty or the session timeout is below 30 ms.
        """
        return AsyncPartitionConsumer(self, consumer, session_timeout)

    async def close(self) -> None:
        """Release the connections. Those of a shared connection manager stay open."""
        for queue in self._queues.values():
            await queue.close()
        self._queues.clear()
        await self.client.close()
        if self._owns_connection_manager:
            await self._connection_manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
