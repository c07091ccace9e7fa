"""Partitions of a queue: the partition of a key, and the partitions of a consumer."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_chasqui.core.command import Command, as_int, script_command
from airflow_provider_chasqui.core.commands.idempotency import (
    IDEMPOTENCY_TTL_MS,
    marker_of_new_call,
)
from airflow_provider_chasqui.core.errors import InvalidArgument, InvalidLeaseConfig
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import Lease, LeaseHandle
from airflow_provider_chasqui.core.resp import Arg

MAX_PARTITIONS = 4096


def partition_of(key: str | bytes, partition_count: int) -> int:
    """Return the partition of a key: the CRC-32 of its bytes modulo the number of partitions.

    :param key: the partition key.
    :param partition_count: the number of partitions.
    :raises InvalidArgument: if the key is neither text nor bytes.
    """
    raw = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    if not isinstance(raw, bytes):
        raise InvalidArgument(f"a partition key must be str or bytes, not {type(key).__name__}")
    return zlib.crc32(raw) % partition_count


def partition_queue_name(queue_name: str, partition: int) -> str:
    """Return the name of the queue of one partition. Its keys have their own hash slot."""
    return f"{queue_name}#{partition}"


def check_partition_count(partition_count: Any) -> int:
    """Return the number of partitions if it is valid.

    :param partition_count: the number.
    :raises InvalidLeaseConfig: if it is not an integer from 1 to MAX_PARTITIONS.
    """
    if type(partition_count) is not int or not 1 <= partition_count <= MAX_PARTITIONS:
        raise InvalidLeaseConfig(
            f"partitions must be an integer from 1 to {MAX_PARTITIONS}, not {partition_count!r}"
        )
    return partition_count


@dataclass(frozen=True, slots=True)
class Assignment:
    """The reply to a heartbeat: the partitions of a consumer, and all members of the group.

    The consumer leases from the `active` partitions. It finishes its leases of the `draining` ones
    and then releases them.
    """

    active: tuple[int, ...]
    draining: tuple[int, ...]
    members: tuple[str, ...]


def _parse_assignment(reply: Any) -> Assignment:
    active, draining, members = reply
    return Assignment(tuple(active), tuple(draining), tuple(member.decode() for member in members))


def _membership_keys(keys: Keys) -> tuple[str, str, str]:
    prefix = f"{keys.hash_tag}:partitions"
    return f"{prefix}:members", f"{prefix}:owners", f"{prefix}:count"


def heartbeat(
    keys: Keys,
    consumer: str,
    session_timeout_ms: int,
    partition_count: int,
    released: Iterable[int],
) -> Command[Assignment]:
    """Renew the membership of a consumer and get its partitions.

    :param keys: the keys of the partitioned queue.
    :param consumer: the name of the consumer.
    :param session_timeout_ms: the time after which the consumer is removed without a heartbeat.
    :param partition_count: the number of partitions; all clients must use the same.
    :param released: partitions that the consumer has drained and releases.
    """
    args: list[Arg] = [IDEMPOTENCY_TTL_MS, consumer, session_timeout_ms, partition_count, *released]
    names = [marker_of_new_call(keys), *_membership_keys(keys)]
    return script_command("partition_heartbeat", _parse_assignment, names, args)


def leave_group(keys: Keys, consumer: str) -> Command[int]:
    """Remove a consumer; its partitions are free at once.

    :param keys: the keys of the partitioned queue.
    :param consumer: the name of the consumer.
    """
    names = [marker_of_new_call(keys), *_membership_keys(keys)[:2]]
    return script_command("partition_leave", as_int, names, [IDEMPOTENCY_TTL_MS, consumer])


@dataclass(slots=True)
class PartitionTracker:
    """The partitions of one consumer and the leases it holds.

    A partition that moves to another consumer is drained first: the consumer leases no more entries
    from it, and releases it when its last lease has ended or expired.

    :param session_timeout_ms: the time after which other consumers may take the partitions.
    """

    session_timeout_ms: int
    assignment: Assignment = field(default_factory=lambda: Assignment((), (), ()))
    last_heartbeat_ms: float = float("-inf")
    _lease_deadlines: dict[int, dict[str, int]] = field(default_factory=dict)
    _rotation: int = 0

    def update(self, assignment: Assignment, now_ms: int) -> None:
        """Store the reply to a heartbeat that was sent at `now_ms` of a monotonic clock."""
        self.assignment = assignment
        self.last_heartbeat_ms = now_ms

    def is_expired(self, now_ms: int) -> bool:
        """Return whether other consumers may own the partitions now, by the same clock.

        The consumer must then send a heartbeat before it leases anything.
        """
        return now_ms - self.last_heartbeat_ms >= self.session_timeout_ms

    def heartbeat_due(self, now_ms: int) -> bool:
        """Return whether a third of the session timeout has passed since the last heartbeat."""
        return now_ms - self.last_heartbeat_ms >= self.session_timeout_ms // 3

    def round_robin(self) -> list[int]:
        """Return the active partitions. Each call begins with the next one."""
        active = self.assignment.active
        if not active:
            return []
        self._rotation += 1
        first = self._rotation % len(active)
        return [*active[first:], *active[:first]]

    def add_leases(self, partition: int, leases: Sequence[Lease]) -> None:
        """Record leases of a partition."""
        deadlines = self._lease_deadlines.setdefault(partition, {})
        deadlines.update((lease.entry_id, lease.deadline_ms) for lease in leases)

    def set_deadline(self, partition: int, handle: LeaseHandle, deadline_ms: int) -> None:
        """Record the new deadline of a lease."""
        self._lease_deadlines.setdefault(partition, {})[handle.entry_id] = deadline_ms

    def remove_lease(self, partition: int, handle: LeaseHandle) -> None:
        """Forget a lease that has ended."""
        self._lease_deadlines.get(partition, {}).pop(handle.entry_id, None)

    def releasable(self, now_ms: int) -> list[int]:
        """Return the draining partitions without active leases."""
        return [
            partition
            for partition in self.assignment.draining
            if all(
                deadline_ms <= now_ms
                for deadline_ms in list(self._lease_deadlines.get(partition, {}).values())
            )
        ]
