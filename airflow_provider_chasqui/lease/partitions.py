"""Partitions: one name, N queues; a key always goes to the same one, consumers share them out.

    orders = PartitionedQueue("orders", "redis+cluster://host:7000", partitions=16)
    orders.produce("customer-7", [{"amount": 3}])
    with orders.join("worker-1") as consumer:
        for lease in consumer.lease(10, wait=timedelta(seconds=20)):
            handle(lease.payload)
            consumer.ack(lease)

Each partition is a queue with a hash slot of its own, so a cluster spreads them over its nodes. In
exclusive, ordered mode (the default here) the jobs of one key are handled in their order.
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
from airflow_provider_chasqui.lease.consumers import AsyncPartitionConsumer, PartitionConsumer
from airflow_provider_chasqui.lease.queue import AsyncLeaseQueue, LeaseQueue
from airflow_provider_chasqui.queue import DEFAULT_URL
from airflow_provider_chasqui.redis_client.client import AsyncRedisClient, RedisClient
from airflow_provider_chasqui.redis_client.connection_pool import (
    AsyncConnectionManager,
    ConnectionManager,
)
from airflow_provider_chasqui.redis_client.target import RedisTarget

DEFAULT_CONFIG = LeaseConfig(mode="exclusive", ordered=True, on_max_deliveries="block")
_DEFAULT_SESSION_TIMEOUT = timedelta(seconds=15)


class PartitionedQueue:
    """N queues under one name, blocking. All who use it must agree on `partitions`."""

    def __init__(
        self,
        queue_name: str,
        server: str | RedisTarget | ConnectionManager = DEFAULT_URL,
        *,
        partitions: int,
        config: LeaseConfig = DEFAULT_CONFIG,
        dialect: str | None = None,
        clock: Callable[[], int] = current_time_ms,
    ):
        self._owns_connection_manager = not isinstance(server, ConnectionManager)
        self._connection_manager = ConnectionManager.from_server(server, dialect)
        self.keys = Keys(queue_name)
        self.partitions = check_partition_count(partitions)
        self.config = config
        self.clock = clock
        self.client = RedisClient(self._connection_manager, self.keys)
        self._queues: dict[int, LeaseQueue] = {}

    @property
    def name(self) -> str:
        return self.keys.queue_name

    def partition_of(self, key: str | bytes) -> int:
        """Return the partition that a key goes to."""
        return partition_of(key, self.partitions)

    def queue(self, partition: int) -> LeaseQueue:
        """Return the queue of one partition."""
        if not 0 <= partition < self.partitions:
            raise InvalidArgument(
                f"there are {self.partitions} partitions, from 0 on; not {partition}"
            )
        if partition not in self._queues:
            name = partition_queue_name(self.name, partition)
            self._queues[partition] = LeaseQueue(
                name, self._connection_manager, config=self.config, clock=self.clock
            )
        return self._queues[partition]

    def produce(
        self, key: str | bytes, messages: Iterable[Any], **options: Any
    ) -> list[str | None]:
        """Append messages to the key's partition; options are those of LeaseQueue.produce."""
        return self.queue(self.partition_of(key)).produce(messages, **options)

    def stats(self) -> list[LeaseStats]:
        """Return what each partition holds, those that were never used made first."""
        found = []
        for partition in range(self.partitions):
            self.queue(partition).create()
            found.append(self.queue(partition).stats())
        return found

    def join(
        self, consumer: str, *, session_timeout: timedelta = _DEFAULT_SESSION_TIMEOUT
    ) -> PartitionConsumer:
        """Become one of the consumers; use it in a `with`. Silent for `life`, it counts as dead."""
        return PartitionConsumer(self, consumer, session_timeout)

    def close(self) -> None:
        """Give the connections back."""
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()
        self.client.close()
        if self._owns_connection_manager:
            self._connection_manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncPartitionedQueue:
    """N queues under one name, awaited. All who use it must agree on `partitions`."""

    def __init__(
        self,
        queue_name: str,
        server: str | RedisTarget | AsyncConnectionManager = DEFAULT_URL,
        *,
        partitions: int,
        config: LeaseConfig = DEFAULT_CONFIG,
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
        return self.keys.queue_name

    def partition_of(self, key: str | bytes) -> int:
        """Return the partition that a key goes to."""
        return partition_of(key, self.partitions)

    def queue(self, partition: int) -> AsyncLeaseQueue:
        """Return the queue of one partition."""
        if not 0 <= partition < self.partitions:
            raise InvalidArgument(
                f"there are {self.partitions} partitions, from 0 on; not {partition}"
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
        """Append messages to the key's partition; options are those of LeaseQueue.produce."""
        return await self.queue(self.partition_of(key)).produce(messages, **options)

    async def stats(self) -> list[LeaseStats]:
        """Return what each partition holds, those that were never used made first."""
        found = []
        for partition in range(self.partitions):
            await self.queue(partition).create()
            found.append(await self.queue(partition).stats())
        return found

    def join(
        self, consumer: str, *, session_timeout: timedelta = _DEFAULT_SESSION_TIMEOUT
    ) -> AsyncPartitionConsumer:
        """Become one of the consumers; use it in a `with`. Silent for `life`, it counts as dead."""
        return AsyncPartitionConsumer(self, consumer, session_timeout)

    async def close(self) -> None:
        """Give the connections back."""
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
