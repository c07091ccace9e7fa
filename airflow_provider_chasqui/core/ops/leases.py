"""take, ack, nack, extend, bury, block: leases between the stream and whoever holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_LIFE_MS, place_of
from airflow_provider_chasqui.core.codec import encode_job, encode_member
from airflow_provider_chasqui.core.job import Entry, Job, Rejected
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import Held, LeaseConfig
from airflow_provider_chasqui.core.op import Arg, Op, as_flags, as_is, command, script
from airflow_provider_chasqui.core.ops.delivery import Burial, Delivery, delivery

OK, IN_FLIGHT, PINNED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Taken:
    """What a take answered. `due_in_ms` is when something may be free next; -1 if unknown."""

    status: int
    now_ms: int
    due_in_ms: int
    delayed_due_ms: int
    tail: str
    fence: int
    deliveries: list[Delivery]


def take(
    keys: Keys, config: LeaseConfig, consumer: str, count: int, life_ms: int, max_bytes: int
) -> Op[Taken]:
    """Lease up to `count` entries for `life_ms`."""

    def read(reply: Any) -> Taken:
        status, now_ms, due_in_ms, delayed_due_ms, tail, fence, raw = reply
        entries = [delivery(each, max_bytes) for each in raw]
        return Taken(
            status, now_ms, int(due_in_ms), delayed_due_ms, tail.decode(), int(fence), entries
        )

    limits = (config.max_in_flight or 0, config.max_pinned or 0)
    if not config.exclusive:
        args: list[Arg] = [config.group, consumer, count, config.reclaim_ms, life_ms, *limits]
        return script("lease_take", read, [keys.stream, keys.delayed], args)
    parts = ("held", "later", "owners", "blocked", "grants", "fence", "config")
    names = [keys.stream, keys.delayed, keys.dlq, *(keys.lease(part) for part in parts)]
    args = [config.group, consumer, count, life_ms, config.max_deliveries, config.poison]
    args += [int(config.ordered), *limits, config.agreed()]
    return script("lease_take_exclusive", read, names, args)


def held_of(
    keys: Keys, config: LeaseConfig, consumer: str, fence: int, one: Entry | Rejected
) -> Held:
    """Return the hold on an entry that was just taken."""
    count = one.deliveries + 1
    if isinstance(one, Rejected):
        return Held(keys.queue, one.id, consumer, count, fence, "", one.name, count)
    # An exclusive entry is never published anew, so its own count is all there is.
    ran = 0 if config.exclusive else one.job.attempt
    return Held(keys.queue, one.id, consumer, count, fence, one.job.id, one.job.name, count + ran)


def wait_for_entry(keys: Keys, tail: str, block_ms: int) -> Op[Any]:
    """Wait until something is appended behind the tail, and leave it there."""
    head = ("XREAD", "COUNT", 1, "BLOCK", block_ms)
    return command(*head, "STREAMS", keys.stream, tail, parse=as_is, block_ms=block_ms)


def _lost(op: Op[list[bool]], count: int) -> Op[list[bool]]:
    return replace(op, absent=lambda: [False] * count)


def _numbered(names: list[str]) -> Callable[[str], int]:
    """Return a function that puts a key behind those given, once, and says its number."""
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        if name not in numbers:
            names.append(name)
            numbers[name] = len(names)
        return numbers[name]

    return number


def ack(keys: Keys, config: LeaseConfig, leases: Sequence[Held]) -> Op[list[bool]]:
    """Settle leases for good; a job of a batch is done with it."""
    names = [keys.stream, *(keys.lease(part) for part in ("held", "owners", "grants"))]
    number = _numbered(names)
    args: list[Arg] = [config.group, BATCH_LIFE_MS]
    for one in leases:
        place = place_of(one.job_id)
        bits = number(keys.batch_done(place.batch, place.part)) if place else 0
        args += (*_grip(one), bits, place.index if place else 0)
    return _lost(script("lease_ack", as_flags, names, args), len(leases))


def _grip(one: Held) -> tuple[Arg, ...]:
    return one.id, one.consumer, one.nth, one.fence


def bury(keys: Keys, config: LeaseConfig, burials: Iterable[tuple[Held, Burial]]) -> Op[list[bool]]:
    """Settle leases and write their letters."""
    names = [keys.stream, keys.dlq, *(keys.lease(part) for part in ("held", "owners", "grants"))]
    number = _numbered(names)
    args: list[Arg] = [config.group, BATCH_LIFE_MS]
    count = 0
    for one, burial in burials:
        place = place_of(one.job_id)
        dead = number(keys.batch_dead(place.batch, place.part)) if place else 0
        fields = burial.fields()
        args += (*_grip(one), dead, place.index if place else 0, len(fields), *fields)
        count += 1
    return _lost(script("lease_bury", as_flags, names, args), count)


def extend(
    keys: Keys, config: LeaseConfig, leases: Sequence[Held], life_ms: int
) -> Op[tuple[int, list[bool]]]:
    """Let leases run anew from now; answers the new deadline, and which still stood."""
    names = [keys.stream, keys.lease("held"), keys.lease("owners")]
    args: list[Arg] = [config.group, config.reclaim_ms, life_ms]
    for one in leases:
        args += _grip(one)
    op = script("lease_extend", lambda reply: (int(reply[0]), as_flags(reply[1:])), names, args)
    return replace(op, absent=lambda: (0, [False] * len(leases)))


def nack(keys: Keys, config: LeaseConfig, leases: Sequence[Held], delay_ms: int) -> Op[list[bool]]:
    """Hand entries back, to be leased again after a delay."""
    names = [keys.stream, *(keys.lease(part) for part in ("held", "later", "owners"))]
    args: list[Arg] = [config.group, config.reclaim_ms, delay_ms, int(config.ordered)]
    for one in leases:
        args += _grip(one)
    return _lost(script("lease_nack", as_flags, names, args), len(leases))


def retry(
    keys: Keys, config: LeaseConfig, parked: Sequence[tuple[Held, Job]], run_at_ms: int
) -> Op[list[bool]]:
    """Settle entries and park their jobs as a worker's retry would: one attempt more, a new entry.

    The deliveries of the entry are in that attempt, because the new entry begins to count anew.
    """
    args: list[Arg] = [config.group]
    for one, job in parked:
        name = job.name.encode("utf-8", "surrogatepass")
        member = encode_member(name, encode_job(job, attempt=one.deliveries))
        args += (one.id, one.consumer, one.nth, run_at_ms, member)
    names = [keys.stream, keys.delayed, keys.lease("owners")]
    return _lost(script("lease_retry", as_flags, names, args), len(parked))


def block(keys: Keys, config: LeaseConfig, leases: Sequence[Held]) -> Op[list[bool]]:
    """Set entries aside where they are (exclusive mode)."""
    names = [keys.stream, *(keys.lease(part) for part in ("held", "later", "owners", "blocked"))]
    args: list[Arg] = [config.group, int(config.ordered)]
    for one in leases:
        args += _grip(one)
    return _lost(script("lease_block", as_flags, names, args), len(leases))


def park(keys: Keys, config: LeaseConfig, burials: Sequence[tuple[Held, Burial]]) -> Op[list[bool]]:
    """Move entries out of the stream (shared mode)."""
    args: list[Arg] = [config.group]
    for one, burial in burials:
        fields = burial.fields()
        args += (one.id, one.consumer, one.nth, len(fields), *fields)
    names = [keys.stream, keys.lease("aside"), keys.lease("owners")]
    return _lost(script("lease_park", as_flags, names, args), len(burials))


def fields_of(keys: Keys, entry_id: str) -> Op[list[Any]]:
    """The raw entry, or an empty list."""
    return command("XRANGE", keys.stream, entry_id, entry_id, parse=as_is)
