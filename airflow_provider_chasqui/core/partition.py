"""Partitions: which queue a key goes to, and what a consumer has of them; without a colour."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_chasqui.core.command import Arg, Command, as_int, script_command
from airflow_provider_chasqui.core.errors import InvalidArgument, InvalidLeaseConfig
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import Lease, LeaseHandle

MAX_PARTITIONS = 4096


def partition_of(key: str | bytes, partition_count: int) -> int:
    """Return the partition of a key: CRC-32 of its UTF-8, so any language can tell."""
    raw = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    if not isinstance(raw, bytes):
        raise InvalidArgument(f"a partition key is text or bytes, not {type(key).__name__}")
    return zlib.crc32(raw) % partition_count


def partition_queue_name(queue_name: str, partition: int) -> str:
    """Return the queue of a partition; its keys have a hash slot of their own."""
    return f"{queue_name}#{partition}"


def check_partition_count(partition_count: Any) -> int:
    if type(partition_count) is not int or not 1 <= partition_count <= MAX_PARTITIONS:
        raise InvalidLeaseConfig(
            f"partitions is a whole number from 1 to {MAX_PARTITIONS}, not {partition_count!r}"
        )
    return partition_count


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a beat answered."""

    active: tuple[int, ...]
    draining: tuple[int, ...]
    members: tuple[str, ...]


def _parse_assignment(reply: Any) -> Assignment:
    work, drain, members = reply
    return Assignment(tuple(work), tuple(drain), tuple(each.decode() for each in members))


def _membership_keys(keys: Keys) -> tuple[str, str, str]:
    return tuple(f"{keys.hash_tag}:partitions:{part}" for part in ("members", "owners", "count"))  # type: ignore[return-value]


def heartbeat(
    keys: Keys,
    consumer: str,
    session_timeout_ms: int,
    partition_count: int,
    released: Iterable[int],
) -> Command[Assignment]:
    """Say that a consumer is alive and has given partitions up; answers what it has."""
    args: list[Arg] = [consumer, session_timeout_ms, partition_count, *released]
    return script_command("partition_heartbeat", _parse_assignment, _membership_keys(keys), args)


def leave_group(keys: Keys, consumer: str) -> Command[int]:
    """Take a consumer out; its partitions are free at once."""
    return script_command("partition_leave", as_int, _membership_keys(keys)[:2], [consumer])


@dataclass(slots=True)
class PartitionTracker:
    """A consumer's partitions, and the leases it has in hand.

    A partition that is to go to somebody else is drained first: nothing more is leased from it, and
    it is given up when its last lease is settled or has run out.
    """

    session_timeout_ms: int
    assignment: Assignment = field(default_factory=lambda: Assignment((), (), ()))
    last_heartbeat_ms: int = 0
    _lease_deadlines: dict[int, dict[str, int]] = field(default_factory=dict)
    _rotation: int = 0

    def update(self, assignment: Assignment, now_ms: int) -> None:
        self.assignment = assignment
        self.last_heartbeat_ms = now_ms

    def is_expired(self, now_ms: int) -> bool:
        """Whether others may have taken over: then ask before anything is leased."""
        return now_ms - self.last_heartbeat_ms >= self.session_timeout_ms

    def heartbeat_due(self, now_ms: int) -> bool:
        return now_ms - self.last_heartbeat_ms >= self.session_timeout_ms // 3

    def round_robin(self) -> list[int]:
        """The partitions to ask, each time beginning with the next one."""
        work = self.assignment.active
        if not work:
            return []
        self._rotation += 1
        first = self._rotation % len(work)
        return [*work[first:], *work[:first]]

    def add_leases(self, partition: int, leases: Sequence[Lease]) -> None:
        hand = self._lease_deadlines.setdefault(partition, {})
        hand.update((lease.entry_id, lease.deadline_ms) for lease in leases)

    def remove_lease(self, partition: int, handle: LeaseHandle) -> None:
        self._lease_deadlines.get(partition, {}).pop(handle.entry_id, None)

    def releasable(self, now_ms: int) -> list[int]:
        """Partitions that are to be given up and of which nothing is in hand any more."""
        return [
            partition
            for partition in self.assignment.draining
            if all(end <= now_ms for end in list(self._lease_deadlines.get(partition, {}).values()))
        ]
