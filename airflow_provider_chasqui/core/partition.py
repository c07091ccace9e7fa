"""Partitions: which queue a key goes to, and what a consumer has of them; without a colour."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_chasqui.core.errors import BadInput, BadLeaseConfig
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import Held, Lease
from airflow_provider_chasqui.core.op import Arg, Op, as_int, script

MAX_PARTITIONS = 4096


def partition_of(key: str | bytes, partitions: int) -> int:
    """Return the partition of a key: CRC-32 of its UTF-8, so any language can tell."""
    raw = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    if not isinstance(raw, bytes):
        raise BadInput(f"a partition key is text or bytes, not {type(key).__name__}")
    return zlib.crc32(raw) % partitions


def queue_name(name: str, partition: int) -> str:
    """Return the queue of a partition; its keys have a hash slot of their own."""
    return f"{name}#{partition}"


def check_partitions(partitions: Any) -> int:
    if type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS:
        raise BadLeaseConfig(
            f"partitions is a whole number from 1 to {MAX_PARTITIONS}, not {partitions!r}"
        )
    return partitions


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a beat answered."""

    work: tuple[int, ...]
    drain: tuple[int, ...]
    members: tuple[str, ...]


def _assigned(reply: Any) -> Assigned:
    work, drain, members = reply
    return Assigned(tuple(work), tuple(drain), tuple(each.decode() for each in members))


def _names(keys: Keys) -> tuple[str, str, str]:
    return tuple(f"{keys.tag}:partitions:{part}" for part in ("members", "owners", "count"))  # type: ignore[return-value]


def beat(
    keys: Keys, consumer: str, life_ms: int, partitions: int, given_up: Iterable[int]
) -> Op[Assigned]:
    """Say that a consumer is alive and has given partitions up; answers what it has."""
    args: list[Arg] = [consumer, life_ms, partitions, *given_up]
    return script("partition_beat", _assigned, _names(keys), args)


def leave(keys: Keys, consumer: str) -> Op[int]:
    """Take a consumer out; its partitions are free at once."""
    return script("partition_leave", as_int, _names(keys)[:2], [consumer])


@dataclass(slots=True)
class Share:
    """A consumer's partitions, and the leases it has in hand.

    A partition that is to go to somebody else is drained first: nothing more is leased from it, and
    it is given up when its last lease is settled or has run out.
    """

    life_ms: int
    assigned: Assigned = field(default_factory=lambda: Assigned((), (), ()))
    beaten_at_ms: int = 0
    _in_hand: dict[int, dict[str, int]] = field(default_factory=dict)
    _turn: int = 0

    def take(self, assigned: Assigned, now_ms: int) -> None:
        self.assigned = assigned
        self.beaten_at_ms = now_ms

    def stale(self, now_ms: int) -> bool:
        """Whether others may have taken over: then ask before anything is leased."""
        return now_ms - self.beaten_at_ms >= self.life_ms

    def due(self, now_ms: int) -> bool:
        return now_ms - self.beaten_at_ms >= self.life_ms // 3

    def turn(self) -> list[int]:
        """The partitions to ask, each time beginning with the next one."""
        work = self.assigned.work
        if not work:
            return []
        self._turn += 1
        first = self._turn % len(work)
        return [*work[first:], *work[:first]]

    def leased(self, partition: int, leases: Sequence[Lease]) -> None:
        hand = self._in_hand.setdefault(partition, {})
        hand.update((lease.id, lease.deadline_ms) for lease in leases)

    def settled(self, partition: int, one: Held) -> None:
        self._in_hand.get(partition, {}).pop(one.id, None)

    def drained(self, now_ms: int) -> list[int]:
        """Partitions that are to be given up and of which nothing is in hand any more."""
        return [
            partition
            for partition in self.assigned.drain
            if all(end <= now_ms for end in list(self._in_hand.get(partition, {}).values()))
        ]
