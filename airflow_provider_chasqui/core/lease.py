"""Values of leases: configuration, leases, tokens, statistics and errors."""

from __future__ import annotations

import json
import uuid
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
from airflow_provider_chasqui.core.fork import fork_state
from airflow_provider_chasqui.core.job import Job

LeaseMode = Literal["shared", "exclusive"]
MaxDeliveriesAction = Literal["dead_letter", "block", "block_and_dead_letter"]

SHARED_GROUP, EXCLUSIVE_GROUP = "default", "lease"
_SEQUENCE_BITS = 20


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """Configuration of a leased queue.

    In `shared` mode the queue can have ordinary workers in the same consumer group. In `exclusive`
    mode no other consumer group may read the stream; deadlines are stored separately.

    :param mode: "shared" or "exclusive".
    :param group: the consumer group. Default: "default" in shared mode, "lease" in exclusive mode.
    :param visibility_timeout: the duration of a lease.
    :param claim_after: shared mode only: the idle time after which workers claim an entry
        (ChasquiMQ's `claim_min_idle_ms`). A lease cannot be longer than this without a heartbeat.
    :param max_deliveries: how often an entry is delivered before `on_max_deliveries` applies.
    :param on_max_deliveries: "dead_letter" moves the entry to the DLQ, "block" blocks it until it
        is unblocked, "block_and_dead_letter" blocks it and writes a copy to the DLQ. Shared mode
        allows only "dead_letter", an ordered queue only the other two.
    :param ordered: exclusive mode only: lease entries strictly in order, to one consumer at a time.
    :param max_in_flight: the maximum number of active leases. Default: no limit.
    :param max_unacknowledged: the maximum number of entries that were delivered and not
        acknowledged, which occupy memory of the stream. Default: no limit.
    :param events: whether to emit events.
    :raises InvalidLeaseConfig: if a value is not allowed, or the values contradict each other.
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
            raise InvalidLeaseConfig(f"mode must be 'shared' or 'exclusive', not {self.mode!r}")
        if self.on_max_deliveries not in ("dead_letter", "block", "block_and_dead_letter"):
            raise InvalidLeaseConfig(
                "on_max_deliveries must be 'dead_letter', 'block' or 'block_and_dead_letter', "
                f"not {self.on_max_deliveries!r}"
            )
        if not self.group:
            group = SHARED_GROUP if self.mode == "shared" else EXCLUSIVE_GROUP
            object.__setattr__(self, "group", group)
        if self.exclusive and self.group == SHARED_GROUP:
            raise InvalidLeaseConfig(
                f"group must not be {SHARED_GROUP!r} in exclusive mode, because workers read with "
                "that group; choose another group"
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
                raise InvalidLeaseConfig(f"{name} must be an integer of at least 1, not {value!r}")

    def _check_mode(self) -> None:
        if self.ordered and not self.exclusive:
            raise InvalidLeaseConfig(
                "ordered=True needs mode='exclusive', because workers do not preserve the order"
            )
        if self.ordered and self.on_max_deliveries == "dead_letter":
            raise InvalidLeaseConfig(
                "an ordered queue must not skip an entry: set on_max_deliveries to 'block' or "
                "'block_and_dead_letter'"
            )
        if not self.exclusive and self.on_max_deliveries != "dead_letter":
            raise InvalidLeaseConfig(
                f"on_max_deliveries={self.on_max_deliveries!r} needs mode='exclusive', because a "
                "worker would claim a blocked entry"
            )
        if not self.exclusive:
            self.check_visibility_timeout(self.visibility_timeout)

    def check_visibility_timeout(self, timeout: timedelta) -> int:
        """Check the duration of a lease and return it in milliseconds.

        :param timeout: the duration.
        :return: the duration in ms.
        :raises InvalidLeaseConfig: if it is shorter than 1 ms, or in shared mode longer than
            `claim_after`.
        """
        timeout_ms = to_ms(timeout) or 0
        if timeout_ms < 1:
            raise InvalidLeaseConfig("visibility_timeout must be at least one millisecond")
        if not self.exclusive and timeout > self.claim_after:
            raise InvalidLeaseConfig(
                f"visibility_timeout must be at most claim_after ({self.claim_after}) in shared "
                f"mode, not {timeout}, because workers claim idle entries after that time; use a "
                "shorter timeout and renew the lease with heartbeat()"
            )
        return timeout_ms

    @property
    def exclusive(self) -> bool:
        """Whether the mode is "exclusive"."""
        return self.mode == "exclusive"

    @property
    def claim_after_ms(self) -> int:
        """`claim_after` in milliseconds."""
        return to_ms(self.claim_after) or 1

    def stored_config_json(self) -> str:
        """Return the settings that all clients of an exclusive queue must share, as JSON."""
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


class ConsumerSession:
    """Identity of one consumer instance: a process that restarts under the same name is another.

    An ordered queue is leased to one session at a time. A forked child has its own session.
    """

    __slots__ = ("_generation", "_id")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Continue as another session, which does not hold the leases of this one."""
        self._generation = fork_state.generation
        self._id = uuid.uuid4().hex[:16]

    @property
    def id(self) -> str:
        """The id of the session."""
        if self._generation != fork_state.generation:
            self.renew()
        return self._id


class LeaseHandle(NamedTuple):
    """The content of a lease token: all that is needed to end a lease from any process.

    `entry_deliveries` counts the deliveries of this stream entry, `deliveries` those of the job
    including earlier attempts. `fencing_token` is 0 in shared mode. `created_at_ms` is 0 if it is
    not known.
    """

    queue_name: str
    entry_id: str
    consumer: str
    entry_deliveries: int
    fencing_token: int
    job_id: str
    job_name: str
    deliveries: int
    created_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """A job that is reserved for one consumer until `deadline_ms`, unless the lease is extended.

    `deliveries` counts how often the job was delivered, including this delivery. `fencing_token`
    increases with every lease of an exclusive queue, so that a protected resource can refuse a
    holder with a smaller token; it is 0 in shared mode.
    """

    entry_id: str
    job: Job
    deliveries: int
    deadline_ms: int
    fencing_token: int
    handle: LeaseHandle = field(repr=False)

    @property
    def payload(self) -> Any:
        """The payload of the job."""
        return self.job.payload

    @property
    def consumer(self) -> str:
        """The consumer that holds the lease."""
        return self.handle.consumer

    @property
    def token(self) -> str:
        """The token that represents this lease in any process."""
        return encode_token(self.handle)

    @property
    def version(self) -> int:
        """The entry id as one integer, comparable with log versions."""
        return entry_id_to_version(self.entry_id)


def resolve_handle(lease_or_token: Lease | str, queue_name: str) -> LeaseHandle:
    """Return the handle of a lease or a token of one queue.

    :param lease_or_token: a lease, or the token of one.
    :param queue_name: the name of the queue.
    :raises InvalidArgument: if the token is invalid or the lease belongs to another queue.
    """
    handle = resolve_handle_any_queue(lease_or_token, queue_name)
    if handle.queue_name != queue_name:
        raise InvalidArgument(
            f"the lease belongs to the queue {handle.queue_name!r}, not to {queue_name!r}",
            queue_name=queue_name,
        )
    return handle


def resolve_handle_any_queue(lease_or_token: Lease | str, queue_name: str) -> LeaseHandle:
    """Return the handle of a lease or a token of any queue.

    :param lease_or_token: a lease, or the token of one.
    :param queue_name: the queue to name in an error.
    :raises InvalidArgument: if the token is invalid.
    """
    if isinstance(lease_or_token, Lease):
        return lease_or_token.handle
    try:
        return LeaseHandle(*json.loads(lease_or_token))
    except (TypeError, ValueError):
        raise InvalidArgument(
            "this is not a lease token; pass a Lease or its token", queue_name=queue_name
        ) from None


def encode_token(handle: LeaseHandle) -> str:
    """Return the token of a lease."""
    return json.dumps(handle, separators=(",", ":"), ensure_ascii=False)


def entry_id_to_version(entry_id: str) -> int:
    """Return an entry id as one integer below 2^64, in the same order.

    :param entry_id: the id, `<ms>-<seq>`.
    :raises InvalidArgument: if the sequence number is 2^20 or larger.
    """
    ms, _, seq = entry_id.partition("-")
    if int(seq or 0) >= 1 << _SEQUENCE_BITS:
        raise InvalidArgument(
            f"the entry id {entry_id} does not fit in a version: its sequence number must be below "
            f"{1 << _SEQUENCE_BITS}"
        )
    return int(ms) << _SEQUENCE_BITS | int(seq or 0)


def version_to_entry_id(version: int) -> str:
    """Return the entry id of a version."""
    return f"{version >> _SEQUENCE_BITS}-{version & (1 << _SEQUENCE_BITS) - 1}"


@dataclass(frozen=True, slots=True)
class BlockedEntry:
    """A blocked entry. `id` is the argument for `unblock` and `dead_letter_blocked`.

    `source_id` is the id that the entry has or had on the stream.
    """

    id: str
    job: Job | None
    deliveries: int
    source_id: str


@dataclass(frozen=True, slots=True)
class LeaseStats:
    """Counts of a leased queue.

    `waiting` entries were never delivered. `available` entries were delivered and can be leased
    again. `delivered` counts all entries that were ever delivered; it is None if the server does
    not know the number.
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
    """Return the exception for a CHASQUILEASE refusal of a script.

    :param error_text: the text after CHASQUILEASE.
    """
    word, _, detail = error_text.partition(" ")
    match word:
        case "config_mismatch":
            return QueueExists(
                f"the queue is leased with another configuration: {detail}; use that one, or "
                "delete the queue"
            )
        case "partition_count_mismatch":
            return QueueExists(
                f"the queue has {detail} partitions; all clients must use the same number"
            )
        case "foreign_group":
            return InvalidLeaseConfig(
                f"exclusive mode cannot start because the consumer group {detail!r} also reads "
                "this stream; stop its workers and destroy the group, or use mode='shared'"
            )
        case "tail_moved":
            return TailMoved(
                f"the last entry id is {detail} and not the expected one; read the queue and try "
                "again"
            )
        case "sequence_conflict":
            return SequenceConflict(
                f"the last sequence number of the client is {detail}; continue with a larger one"
            )
        case "quota_exceeded":
            return QuotaExceeded(
                f"the organisation already has {detail} queues, which is its limit; delete one or "
                "raise the limit"
            )
        case "unknown_queue":
            return QueueNotFound("the queue does not exist")
        case "already_exists":
            return QueueExists(
                "the queue already exists; delete it first, or restore under another name"
            )
        case "too_large":
            return InvalidArgument(
                f"the queue has {detail}, more than the limit of a snapshot; raise limit= or "
                "max_bytes=, or use a dump of the Redis server"
            )
    return LeaseError(f"the queue changed during the restore ({error_text}); restore it again")


_CELERIANT_CODES: tuple[tuple[type[ChasquiError], int], ...] = (
    (PayloadTooLarge, 11),
    (QueueFull, 12),
    (ConnectionFailed, 9),
    (InvalidArgument, 3),
)


def celeriant_code(error: ChasquiError) -> int:
    """Return the closest error code of Celeriant Queue.

    :param error: an error of this package.
    :return: the code; 99 if no code fits.
    """
    if error.code.startswith("CMQ-4"):
        return int(error.code[4:]) - 400
    for kind, code in _CELERIANT_CODES:
        if isinstance(error, kind):
            return code
    return 99
