"""Leases as values: how a queue is leased, what a lease is, and what a token says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    ConnectionFailed,
    InvalidArgument,
    InvalidLeaseConfig,
    LeaseError,
    PayloadTooLarge,
    QueueExists,
    QueueFull,
    QueueNotFound,
    QuotaExceeded,
    SequenceConflict,
    TailMoved,
)
from airflow_provider_chasqui.core.job import Job

LeaseMode = Literal["shared", "exclusive"]
MaxDeliveriesAction = Literal["dead_letter", "block", "block_and_dead_letter"]

SHARED_GROUP, EXCLUSIVE_GROUP = "default", "lease"
_SEQUENCE_BITS = 20


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """How a queue is leased.

    `shared` works beside ordinary workers of the same group; `claim_after` is what they are told
    about idle entries (ChasquiMQ's claim_min_idle_ms), so no lease can stand longer than that
    without a heartbeat. `exclusive` has the stream for itself and keeps deadlines of its own; it
    can be `ordered`, and knows all three answers to poison: `dead_letter` writes a letter, `block` sets
    the entry aside, `block_and_dead_letter` does both.

    `max_in_flight` limits the leases that stand, `max_unacknowledged` all entries that were delivered and
    are not settled: those keep the stream's memory.
    """

    mode: LeaseMode = "shared"
    group: str = ""
    visibility_timeout: timedelta = timedelta(seconds=30)
    claim_after: timedelta = timedelta(seconds=30)
    max_deliveries: int = 25
    on_max_deliveries: MaxDeliveriesAction = "dead_letter"
    ordered: bool = False
    max_in_flight: int | None = None
    max_unacknowledged: int | None = None
    events: bool = True

    def __post_init__(self) -> None:
        if self.mode not in ("shared", "exclusive"):
            raise InvalidLeaseConfig(f"mode is 'shared' or 'exclusive', not {self.mode!r}")
        if self.on_max_deliveries not in ("dead_letter", "block", "block_and_dead_letter"):
            raise InvalidLeaseConfig(
                f"on_max_deliveries is 'dead_letter', 'block' or 'block_and_dead_letter', not {self.on_max_deliveries!r}"
            )
        if not self.group:
            chosen = SHARED_GROUP if self.mode == "shared" else EXCLUSIVE_GROUP
            object.__setattr__(self, "group", chosen)
        if self.exclusive and self.group == SHARED_GROUP:
            raise InvalidLeaseConfig(
                f"exclusive mode needs a group of its own; {SHARED_GROUP!r} is the workers'"
            )
        self._check_numbers()
        self._check_mode()

    def _check_numbers(self) -> None:
        for name in ("visibility_timeout", "claim_after"):
            if (to_ms(getattr(self, name)) or 0) < 1:
                raise InvalidLeaseConfig(f"{name} must be at least one millisecond")
        for name in ("max_deliveries", "max_in_flight", "max_unacknowledged"):
            value = getattr(self, name)
            optional = name != "max_deliveries"
            if not (optional and value is None) and (type(value) is not int or value < 1):
                raise InvalidLeaseConfig(f"{name} is a whole number from 1 on, not {value!r}")

    def _check_mode(self) -> None:
        if self.ordered and not self.exclusive:
            raise InvalidLeaseConfig(
                "ordered needs mode='exclusive': workers do not keep the order"
            )
        if self.ordered and self.on_max_deliveries == "dead_letter":
            raise InvalidLeaseConfig(
                "an ordered queue cannot skip poison: choose on_max_deliveries='block' or 'block_and_dead_letter'"
            )
        if not self.exclusive and self.on_max_deliveries != "dead_letter":
            raise InvalidLeaseConfig(
                "on_max_deliveries='block' needs mode='exclusive'; a worker would take it"
            )
        if not self.exclusive:
            self.check_visibility_timeout(self.visibility_timeout)

    def check_visibility_timeout(self, timeout: timedelta) -> int:
        """Return the time of a lease in ms, or raise where it cannot stand that long."""
        life_ms = to_ms(timeout) or 0
        if life_ms < 1:
            raise InvalidLeaseConfig("a lease lasts at least one millisecond")
        if not self.exclusive and timeout > self.claim_after:
            raise InvalidLeaseConfig(
                f"a shared lease cannot stand for {timeout}: workers take idle entries over after "
                f"{self.claim_after}; lease for less and keep it with heartbeat()"
            )
        return life_ms

    @property
    def exclusive(self) -> bool:
        return self.mode == "exclusive"

    @property
    def claim_after_ms(self) -> int:
        return to_ms(self.claim_after) or 1

    def stored_config_json(self) -> str:
        """What all who lease an exclusive queue must agree on, as text."""
        return json.dumps(
            {
                "group": self.group,
                "max_deliveries": self.max_deliveries,
                "ordered": self.ordered,
                "on_max_deliveries": self.on_max_deliveries,
            },
            separators=(",", ":"),
            sort_keys=True,
        )


class LeaseHandle(NamedTuple):
    """What a token says: enough to settle a lease from any process."""

    queue_name: str
    entry_id: str
    consumer: str
    entry_deliveries: int
    fencing_token: int
    job_id: str
    job_name: str
    deliveries: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A job that is ours until `deadline_ms`, if not extended.

    `deliveries` counts how often the job was handed out, this time included. `fence` grows with
    every lease of an exclusive queue, so what guards a resource can refuse the smaller one; it is 0
    in shared mode. `token` settles the lease from any process.
    """

    entry_id: str
    job: Job
    deliveries: int
    deadline_ms: int
    fencing_token: int
    handle: LeaseHandle = field(repr=False)

    @property
    def payload(self) -> Any:
        return self.job.payload

    @property
    def consumer(self) -> str:
        return self.handle.consumer

    @property
    def token(self) -> str:
        return encode_token(self.handle)

    @property
    def version(self) -> int:
        """The entry id as one number, for those who are used to log versions."""
        return entry_id_to_version(self.entry_id)


def resolve_handle(lease_or_token: Lease | str, queue_name: str) -> LeaseHandle:
    """Return what a lease or a token says, or raise InvalidArgument where it is none of this queue."""
    found = resolve_handle_any_queue(lease_or_token, queue_name)
    if found.queue_name != queue_name:
        raise InvalidArgument(
            f"this lease is of the queue {found.queue_name!r}", queue_name=queue_name
        )
    return found


def resolve_handle_any_queue(lease_or_token: Lease | str, queue_name: str) -> LeaseHandle:
    """Return what a lease or a token says, whichever queue it is of; `queue` is who asks."""
    if isinstance(lease_or_token, Lease):
        return lease_or_token.handle
    try:
        return LeaseHandle(*json.loads(lease_or_token))
    except (TypeError, ValueError):
        raise InvalidArgument("this is not the token of a lease", queue_name=queue_name) from None


def encode_token(handle: LeaseHandle) -> str:
    return json.dumps(handle, separators=(",", ":"), ensure_ascii=False)


def entry_id_to_version(entry_id: str) -> int:
    """Return an entry id as one whole number below 2^64, in the same order."""
    ms, _, seq = entry_id.partition("-")
    if int(seq or 0) >= 1 << _SEQUENCE_BITS:
        raise InvalidArgument(f"the entry id {entry_id} does not fit in a version")
    return int(ms) << _SEQUENCE_BITS | int(seq or 0)


def version_to_entry_id(version: int) -> str:
    """Return the entry id of a version."""
    return f"{version >> _SEQUENCE_BITS}-{version & (1 << _SEQUENCE_BITS) - 1}"


@dataclass(frozen=True, slots=True)
class BlockedEntry:
    """An entry that is set aside. Its id is what `unblock` and `skip` take."""

    id: str
    job: Job | None
    deliveries: int
    source_id: str


@dataclass(frozen=True, slots=True)
class LeaseStats:
    """What a queue holds. `available` were delivered and are free again, `waiting` never were.

    `delivered` counts entries that were ever handed out; None where the server has lost count.
    """

    last_entry_id: str
    first_entry_id: str | None
    length: int
    added: int
    delivered: int | None
    waiting: int
    in_flight: int
    available: int
    nacked: int
    blocked: int
    unacknowledged: int
    delayed: int
    dead: int


def lease_error(error_text: str) -> ChasquiError:
    """Return the error for a script's refusal."""
    word, _, rest = error_text.partition(" ")
    match word:
        case "config_mismatch":
            return QueueExists(
                f"the queue is leased with another configuration: {rest}; use that one, or delete "
                "the queue"
            )
        case "partition_count_mismatch":
            return QueueExists(f"the queue has {rest} partitions; all who use it must say so")
        case "foreign_group":
            return InvalidLeaseConfig(
                f"exclusive mode cannot start: the consumer group {rest!r} reads this stream too; "
                "stop its workers and destroy the group, or use mode='shared'"
            )
        case "tail_moved":
            return TailMoved(f"the tail is {rest}, not where the caller saw it; read and try again")
        case "sequence_conflict":
            return SequenceConflict(f"the client's last sequence number is {rest}; go on above it")
        case "quota_exceeded":
            return QuotaExceeded(f"the organisation may have {rest} queues, and has them")
        case "unknown_queue":
            return QueueNotFound("there is no such queue")
        case "already_exists":
            return QueueExists("the queue is there already; restore into one that is not")
        case "too_large":
            return InvalidArgument(
                f"the queue has {rest} entries; raise limit=, or use Redis' own dump"
            )
    return LeaseError(f"the queue changed while it was restored ({error_text}); restore again")


_CELERIANT_CODES: tuple[tuple[type[ChasquiError], int], ...] = (
    (PayloadTooLarge, 11),
    (QueueFull, 12),
    (ConnectionFailed, 9),
    (InvalidArgument, 3),
)


def celeriant_code(error: ChasquiError) -> int:
    """Return the Celeriant Queue error code that comes nearest to an error of ours."""
    if error.code.startswith("CMQ-4"):
        return int(error.code[4:]) - 400
    for kind, code in _CELERIANT_CODES:
        if isinstance(error, kind):
            return code
    return 99
