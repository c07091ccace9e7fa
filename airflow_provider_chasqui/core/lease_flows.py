"""Operations of a leased queue as command flows: validation, defaults and error handling.

`lease/queue.py` runs the flows with a blocking or an asyncio client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_chasqui.core.codec import encode_job, encode_job_name
from airflow_provider_chasqui.core.command import Command, CommandFlow
from airflow_provider_chasqui.core.commands import consumer_group, delayed
from airflow_provider_chasqui.core.commands import events as event_commands
from airflow_provider_chasqui.core.commands import leases as lease_commands
from airflow_provider_chasqui.core.commands.consumer_group import NewDeadLetter, parse_entry
from airflow_provider_chasqui.core.commands.idempotency import new_token
from airflow_provider_chasqui.core.commands.leases import LeaseReply
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    ConnectionFailed,
    InvalidArgument,
    LeaseLost,
    TooManyInFlight,
    TooManyUnacknowledged,
)
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.ids import UlidGenerator
from airflow_provider_chasqui.core.job import InvalidEntry, Job, NewJob, StreamEntry
from airflow_provider_chasqui.core.job_encoder import build_envelope, check_job_id, to_epoch_ms
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import (
    ConsumerSession,
    Lease,
    LeaseConfig,
    LeaseHandle,
    encode_token,
    resolve_handle,
)
from airflow_provider_chasqui.core.server_clock import ServerClock
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.core.validation import require_int

LeaseOrToken = Lease | str

MAX_MESSAGES_PER_LEASE = 10_000

# A nack by another process does not wake a waiting consumer, so it polls at this interval.
_POLL_INTERVAL_MS = 500
_PROMOTE_LIMIT = 1000
# A consumer without pending entries is removed after this idle time, as workers do. Seconds between
# two removals.
_CONSUMER_IDLE_TTL_MS = 10 * 60 * 1000
_REMOVAL_INTERVAL = 60.0
# Seconds after which an acquire call without a reply is not repeated. A repetition is retried for
# at most a minute, so it arrives before the server forgets the call (ACQUIRE_TTL_MS).
_MAX_UNANSWERED_AGE = 200.0
_NO_SIZE_LIMIT = 2**62
# The owner of nacked entries in shared mode; see lua/lease_nack.lua.
_NACKED_CONSUMER = "-nacked"


@dataclass(frozen=True, slots=True)
class _AcquireCall:
    """An acquire call: its token, the duration of its leases and its start (s)."""

    token: str
    ttl_ms: int
    started_at: float


class LeaseFlows:
    """The operations of one leased queue.

    :param keys: the keys of the queue.
    :param config: the configuration of the leases.
    :param queue_config: the configuration of the queue.
    :param clock: returns the current time in ms.
    :param timer: returns the seconds of a clock that is never adjusted, for waits.
    """

    def __init__(
        self,
        keys: Keys,
        config: LeaseConfig,
        queue_config: QueueConfig,
        clock: Callable[[], int],
        timer: Callable[[], float],
    ):
        self.keys = keys
        self.config = config
        self.queue_config = queue_config
        self.clock = clock
        self.timer = timer
        self.session = ConsumerSession()
        renewal_time = config.visibility_timeout if config.exclusive else config.claim_after
        self._server_clock = ServerClock(timer, to_ms(renewal_time))
        self._next_removal = float("-inf")
        self._ulid_generator = UlidGenerator()
        # Whether delayed jobs are due. It is unknown before the first call.
        self._delayed_due = True
        # By session and consumer. A call that failed or was cancelled may have leased entries
        # that no caller received; the next call asks for them with the same token.
        self._unanswered: dict[tuple[str, str], list[_AcquireCall]] = {}
        self._surplus: dict[tuple[str, str], list[Lease]] = {}

    def produce(
        self,
        messages: Iterable[Any],
        client_id: str | None,
        client_seq: int | None,
        expected_last: str | None,
        strict_seq: bool,
    ) -> CommandFlow[list[str | None]]:
        """Append messages.

        :param messages: payloads, or `NewJob` values without delay and deduplication.
        :param client_id: the client whose sequence numbers are checked.
        :param client_seq: the sequence number of the first message.
        :param expected_last: the expected last entry id of the stream; None for any.
        :param strict_seq: refuse the whole call if one sequence number was used before.
        :return: the entry id of each message, or None if its sequence number was used before.
        :raises InvalidArgument: if an argument is not allowed.
        """
        if (client_seq is None) != (client_id is None):
            raise InvalidArgument("client_id and client_seq must be given together")
        if client_seq is not None and not 0 <= client_seq < 2**64:
            raise InvalidArgument(
                f"client_seq must be an integer from 0 to 2^64 - 1, not {client_seq}"
            )
        now_ms = self.clock()
        encoded = []
        for index, message in enumerate(messages):
            job = message if isinstance(message, NewJob) else NewJob(message)
            if job.delay is not None or job.run_at is not None or job.dedup_ttl is not None:
                raise InvalidArgument(
                    "produce() does not accept delay, run_at or dedup_ttl; use Queue.add() for them"
                )
            job_id = self._ulid_generator.next(now_ms) if job.job_id is None else job.job_id
            check_job_id(job_id)
            envelope = build_envelope(job_id, job.payload, self.queue_config, now_ms, job.retry)
            seq = "" if client_seq is None else str(client_seq + index)
            encoded.append((seq, envelope, encode_job_name(job.job_name), job.job_id))
        if not encoded:
            return []
        ids: list[str | None] = yield lease_commands.produce(
            self.keys,
            encoded,
            client=client_id or "",
            expected_last_id=expected_last or "",
            strict=strict_seq,
            max_len=self.queue_config.max_len or 0,
        )
        return ids

    def lease(
        self,
        consumer: str,
        max_messages: int,
        wait: timedelta | None,
        visibility_timeout: timedelta | None,
        session: ConsumerSession | None = None,
    ) -> CommandFlow[list[Lease]]:
        """Lease jobs. Entries that are invalid or used up are moved to the DLQ.

        :param consumer: the name of the consumer.
        :param max_messages: the maximum number of leases, from 1 to 10000.
        :param wait: how long to wait for the first job; None to return at once.
        :param visibility_timeout: the duration of the leases. Default: that of the configuration.
        :param session: the session of the consumer. Default: that of this queue object.
        :return: the leases; empty if no job became available.
        :raises InvalidArgument: if an argument is not allowed.
        :raises TooManyInFlight: if `max_in_flight` is reached.
        :raises TooManyUnacknowledged: if `max_unacknowledged` is reached.
        """
        if not consumer or not isinstance(consumer, str) or consumer == _NACKED_CONSUMER:
            raise InvalidArgument(
                f"consumer must be a non-empty string other than {_NACKED_CONSUMER!r}"
            )
        require_int("max_messages", max_messages, 1, MAX_MESSAGES_PER_LEASE)
        ttl_ms = self._lease_ttl_ms(visibility_timeout)
        session = session or self.session
        wait_until = self.timer() + (to_ms(wait) or 0) / 1000
        yield from self._remove_idle_consumers()
        if self._delayed_due:
            yield from self._promote()
        while True:
            yield from self._repeat_unanswered(consumer, max_messages, session)
            if leases := (yield from self._take_surplus(consumer, max_messages, session, ttl_ms)):
                return leases
            call = _AcquireCall(new_token(), ttl_ms, self.timer())
            reply, leases = yield from self._acquire(consumer, max_messages, session, call)
            self._server_clock.observe(reply.now_ms, call.started_at)
            if leases:
                return leases
            if reply.entries:
                continue  # all entries were moved to the DLQ
            if self._delayed_due and (yield from self._promote()):
                continue
            remaining_ms = int((wait_until - self.timer()) * 1000)
            if remaining_ms <= 0:
                self._raise_if_limited(reply)
                return []
            yield lease_commands.wait_for_entry(
                self.keys, reply.last_entry_id, self._wait_ms(reply, remaining_ms)
            )

    def _remove_idle_consumers(self) -> CommandFlow[None]:
        """Remove consumers without pending entries, because a queue may have no workers that do.

        This happens in the first call, because many programs use a queue object only once, and
        then at intervals.
        """
        if self.timer() < self._next_removal:
            return
        self._next_removal = self.timer() + _REMOVAL_INTERVAL
        try:
            yield consumer_group.remove_idle_consumers(
                self.keys, self.config.group, _CONSUMER_IDLE_TTL_MS
            )
        except ConnectionFailed:
            raise
        except ChasquiError:
            pass  # a user without this permission can lease jobs

    def _promote(self) -> CommandFlow[bool]:
        """Move due delayed jobs to the stream; return whether there were any.

        This happens before the acquire call, so that its failure does not lose the leases.
        """
        self._delayed_due = False
        promoted = yield from delayed.promote_and_delete_index(self.keys, _PROMOTE_LIMIT)
        return bool(promoted.moved)

    def _repeat_unanswered(
        self, consumer: str, max_messages: int, session: ConsumerSession
    ) -> CommandFlow[None]:
        """Repeat the calls of the consumer that returned nothing, and keep their leases as surplus.

        A repeated call returns all entries of the first one that are still leased. If the call is
        too old for the server to remember it, the consumer continues as a new session.
        """
        while calls := self._unanswered.get((session.id, consumer)):
            if self.timer() - calls[0].started_at > _MAX_UNANSWERED_AGE:
                del self._unanswered[session.id, consumer]
                session.renew()
                return
            _, leases = yield from self._acquire(consumer, max_messages, session, calls.pop(0))
            self.keep_surplus(session, consumer, leases)

    def _acquire(
        self, consumer: str, max_messages: int, session: ConsumerSession, call: _AcquireCall
    ) -> CommandFlow[tuple[LeaseReply, list[Lease]]]:
        """Lease entries; return the reply and the leases.

        If this fails or is cancelled, the next call of the consumer repeats it.
        """
        key, returned = (session.id, consumer), False
        try:
            reply: LeaseReply = yield lease_commands.acquire(
                self.keys,
                self.config,
                consumer,
                max_messages,
                call.ttl_ms,
                self.queue_config.max_payload_bytes,
                session=session.id,
                token=call.token,
                claim_until_ms=self._server_clock.claim_until_ms(),
            )
            self._delayed_due = 0 < reply.delayed_due_ms <= reply.now_ms
            leases = yield from self._build_leases(reply, consumer, call.ttl_ms)
            returned = True
        finally:
            if not returned:
                self._unanswered.setdefault(key, []).insert(0, call)
        return reply, leases

    def _take_surplus(
        self, consumer: str, max_messages: int, session: ConsumerSession, ttl_ms: int
    ) -> CommandFlow[list[Lease]]:
        """Return leases of earlier calls that no caller has received, if they are still valid.

        They are extended, because they may have expired. The server knows which of them have ended
        meanwhile: in an ordered queue a nack of an earlier entry releases all later ones.
        """
        leases = self._surplus.pop((session.id, consumer), [])
        if not leases:
            return []
        taken: list[Lease] = []
        try:
            deadline_ms, flags = yield lease_commands.extend(
                self.keys, self.config, [lease.handle for lease in leases], ttl_ms
            )
            leases = [
                replace(lease, deadline_ms=deadline_ms)
                for lease, valid in zip(leases, flags, strict=True)
                if valid
            ]
            taken = leases[:max_messages]
        finally:
            self.keep_surplus(session, consumer, leases[len(taken) :])
        return taken

    def keep_surplus(
        self, session: ConsumerSession, consumer: str, leases: Sequence[Lease]
    ) -> None:
        """Return leases again in the next calls of `lease`, because no caller has received them.

        :param session: the session of the consumer.
        :param consumer: the name of the consumer.
        :param leases: the leases.
        """
        if leases:
            surplus = [*self._surplus.pop((session.id, consumer), []), *leases]
            surplus.sort(key=lambda lease: StreamId.parse(lease.entry_id))
            self._surplus[session.id, consumer] = surplus

    def _lease_ttl_ms(self, visibility_timeout: timedelta | None) -> int:
        return self.config.check_visibility_timeout(
            visibility_timeout or self.config.visibility_timeout
        )

    def _wait_ms(self, reply: LeaseReply, remaining_ms: int) -> int:
        candidates = [remaining_ms, _POLL_INTERVAL_MS]
        if reply.due_in_ms >= 0:
            candidates.append(reply.due_in_ms)
        if reply.delayed_due_ms:
            candidates.append(reply.delayed_due_ms - reply.now_ms)
        return max(1, min(candidates))

    def _raise_if_limited(self, reply: LeaseReply) -> None:
        if reply.status == lease_commands.TOO_MANY_IN_FLIGHT:
            raise TooManyInFlight(
                f"the queue has {self.config.max_in_flight} active leases, which is the limit "
                "(max_in_flight); acknowledge some first"
            )
        if reply.status == lease_commands.TOO_MANY_UNACKNOWLEDGED:
            raise TooManyUnacknowledged(
                f"{self.config.max_unacknowledged} delivered entries are not acknowledged, which "
                "is the limit (max_unacknowledged); acknowledge or dead-letter some first"
            )

    def _build_leases(
        self, reply: LeaseReply, consumer: str, ttl_ms: int
    ) -> CommandFlow[list[Lease]]:
        """Return the leases of usable entries; move the others to the DLQ."""
        leases: list[Lease] = []
        dead: list[tuple[LeaseHandle, NewDeadLetter]] = []
        for entry in reply.entries:
            handle = lease_commands.make_handle(
                self.keys, self.config, consumer, reply.fencing_token, entry
            )
            if isinstance(entry, InvalidEntry):
                dead_letter = NewDeadLetter(
                    entry.id,
                    entry.raw,
                    entry.job_name,
                    entry.reason,
                    entry.detail,
                    failed_at_ms=reply.now_ms,
                )
                dead.append((handle, dead_letter))
            elif self._exceeds_max_deliveries(entry, handle):
                dead_letter = self._new_dead_letter(
                    entry.job, entry.id, handle.deliveries - 1, None
                )
                dead.append((handle, dead_letter))
            else:
                leases.append(
                    Lease(
                        entry.id,
                        entry.job,
                        handle.deliveries,
                        reply.now_ms + ttl_ms,
                        reply.fencing_token,
                        handle,
                    )
                )
        if dead:
            flags = yield lease_commands.move_to_dlq(self.keys, self.config, dead)
            for (handle, dead_letter), moved in zip(dead, flags, strict=True):
                if moved:
                    yield from self._emit("dlq", [handle], dead_letter.reason)
        return leases

    def _exceeds_max_deliveries(self, entry: StreamEntry, handle: LeaseHandle) -> bool:
        if self.config.on_max_deliveries != "dead_letter":
            return False  # the script has already blocked the entry
        return handle.deliveries > self._max_deliveries(entry.job)

    def _max_deliveries(self, job: Job) -> int:
        max_attempts = None if self.config.exclusive or not job.retry else job.retry.max_attempts
        return self.config.max_deliveries if max_attempts is None else max_attempts

    def _dead_letter_reason(self, job: Job, deliveries: int) -> str:
        exhausted = deliveries >= self._max_deliveries(job)
        return "retries_exhausted" if exhausted else "unrecoverable"

    def _new_dead_letter(
        self, job: Job, entry_id: str, attempts: int, error: str | None, reason: str = ""
    ) -> NewDeadLetter:
        return NewDeadLetter(
            entry_id,
            encode_job(job),
            job.name,
            reason or "retries_exhausted",
            error=error,
            attempts=attempts,
            failed_at_ms=self.clock(),
            job_id=job.id,
            created_at_ms=job.created_at_ms,
        )

    def ack(self, leases_or_tokens: Sequence[LeaseOrToken]) -> CommandFlow[None]:
        """Acknowledge leases and emit `completed` events.

        :param leases_or_tokens: leases or their tokens.
        :raises LeaseLost: if a lease is not valid any more; the others are acknowledged.
        """
        handles = self._handles(leases_or_tokens)
        if not handles:
            return
        flags = yield lease_commands.ack(self.keys, self.config, handles)
        yield from self._emit("completed", _select(handles, flags))
        self._raise_if_lost(handles, flags, "acknowledged")

    def nack(
        self, leases_or_tokens: Sequence[LeaseOrToken], delay: timedelta, as_retry: bool
    ) -> CommandFlow[None]:
        """Return jobs to the queue.

        In shared mode, a delay longer than `claim_after` has the effect of `as_retry`, because
        workers claim an idle entry after that time.

        :param leases_or_tokens: leases or their tokens.
        :param delay: the time until the jobs are available again.
        :param as_retry: acknowledge the entry and add the job to the delayed set, with one more
            attempt (shared mode only).
        :raises InvalidArgument: if an argument is not allowed.
        :raises LeaseLost: if a lease is not valid any more; the others are returned.
        """
        handles = self._handles(leases_or_tokens)
        delay_ms = to_ms(delay) or 0
        if delay_ms < 0:
            raise InvalidArgument(f"delay must not be negative, not {delay}")
        if not handles:
            return
        exceeds_claim_after = delay_ms > self.config.claim_after_ms and not self.config.exclusive
        if as_retry and self.config.exclusive:
            raise InvalidArgument(
                "as_retry=True needs mode='shared', because an entry of an exclusive queue keeps "
                "its position"
            )
        if as_retry or exceeds_claim_after:
            run_at_ms = self.clock() + delay_ms
            flags = yield from self._apply_with_jobs(
                leases_or_tokens,
                handles,
                lambda pairs: lease_commands.schedule_retries(
                    self.keys, self.config, pairs, run_at_ms
                ),
            )
        else:
            flags = yield lease_commands.nack(self.keys, self.config, handles, delay_ms)
        self._raise_if_lost(handles, flags, "returned")

    def _apply_with_jobs(
        self,
        leases_or_tokens: Sequence[LeaseOrToken],
        handles: list[LeaseHandle],
        build_command: Callable[[list[tuple[LeaseHandle, Job]]], Command[list[bool]]],
    ) -> CommandFlow[list[bool]]:
        """Run a command that needs the jobs of the leases. Return for each lease its success."""
        jobs: list[Job | None] = []
        for lease, handle in zip(leases_or_tokens, handles, strict=True):
            job = (
                lease.job
                if isinstance(lease, Lease)
                else (yield from self._load_job(handle.entry_id))
            )
            jobs.append(job)
        pairs = [
            (handle, job) for handle, job in zip(handles, jobs, strict=True) if job is not None
        ]
        flags = iter((yield build_command(pairs)) if pairs else ())
        return [job is not None and next(flags) for job in jobs]

    def _load_job(self, entry_id: str) -> CommandFlow[Job | None]:
        """Return the job of an entry from the stream, because a token does not contain the job."""
        raw = yield lease_commands.get_entry(self.keys, entry_id)
        entry = parse_entry(raw[0], _NO_SIZE_LIMIT) if raw else None
        return entry.job if isinstance(entry, StreamEntry) else None

    def extend(
        self, leases_or_tokens: Sequence[LeaseOrToken], visibility_timeout: timedelta | None
    ) -> CommandFlow[list[LeaseOrToken]]:
        """Extend leases; the new duration starts now.

        :param leases_or_tokens: leases or their tokens.
        :param visibility_timeout: the new duration. Default: that of the configuration.
        :return: the leases with their new deadline; tokens are returned unchanged.
        :raises LeaseLost: if a lease is not valid any more; the others are extended.
        """
        handles = self._handles(leases_or_tokens)
        ttl_ms = self._lease_ttl_ms(visibility_timeout)
        if not handles:
            return []
        deadline_ms, flags = yield lease_commands.extend(self.keys, self.config, handles, ttl_ms)
        self._raise_if_lost(handles, flags, "extended")
        return [
            replace(lease, deadline_ms=deadline_ms) if isinstance(lease, Lease) else lease
            for lease in leases_or_tokens
        ]

    def dead_letter(
        self, leases_or_tokens: Sequence[LeaseOrToken], error: str | None, reason: str
    ) -> CommandFlow[None]:
        """Move leased jobs to the DLQ and emit `dlq` events.

        :param leases_or_tokens: leases or their tokens.
        :param error: the error text of the dead letters.
        :param reason: the reason of the dead letters.
        :raises LeaseLost: if a lease is not valid any more; the others are moved.
        """
        handles = self._handles(leases_or_tokens)
        flags = yield from self._apply_dead_letters(
            lease_commands.move_to_dlq, leases_or_tokens, handles, reason, error
        )
        yield from self._emit("dlq", _select(handles, flags), reason)
        self._raise_if_lost(handles, flags, "moved to the DLQ")

    def _apply_dead_letters(
        self,
        build_command: Callable[
            [Keys, LeaseConfig, list[tuple[LeaseHandle, NewDeadLetter]]], Command[list[bool]]
        ],
        leases_or_tokens: Sequence[LeaseOrToken],
        handles: list[LeaseHandle],
        reason: str,
        error: str | None = None,
    ) -> CommandFlow[list[bool]]:
        def build(pairs: list[tuple[LeaseHandle, Job]]) -> Command[list[bool]]:
            dead_letters = [
                (
                    handle,
                    self._new_dead_letter(job, handle.entry_id, handle.deliveries, error, reason),
                )
                for handle, job in pairs
            ]
            return build_command(self.keys, self.config, dead_letters)

        return self._apply_with_jobs(leases_or_tokens, handles, build)

    def block(self, leases_or_tokens: Sequence[LeaseOrToken]) -> CommandFlow[None]:
        """Block leased jobs until they are unblocked.

        :param leases_or_tokens: leases or their tokens.
        :raises LeaseLost: if a lease is not valid any more; the others are blocked.
        """
        handles = self._handles(leases_or_tokens)
        if not handles:
            return
        if self.config.exclusive:
            flags = yield lease_commands.block(self.keys, self.config, handles)
        else:
            flags = yield from self._apply_dead_letters(
                lease_commands.set_aside, leases_or_tokens, handles, "blocked"
            )
        self._raise_if_lost(handles, flags, "blocked")

    def unblock(self, entry_id: str, extra_deliveries: int) -> CommandFlow[bool]:
        """Make a blocked entry available again.

        :param entry_id: the id of the blocked entry.
        :param extra_deliveries: how often it may be delivered from now on (exclusive mode).
        :return: False if the entry was not blocked.
        :raises InvalidArgument: if `extra_deliveries` is not an integer of at least 1.
        """
        require_int("extra_deliveries", extra_deliveries, 1)
        if self.config.exclusive:
            return bool((yield lease_commands.unblock(self.keys, entry_id, extra_deliveries)))
        entry = yield lease_commands.get_set_aside(self.keys, entry_id)
        return bool(entry and (yield lease_commands.restore_set_aside(self.keys, entry, None)))

    def dead_letter_blocked(self, entry_id: str) -> CommandFlow[bool]:
        """Move a blocked entry to the DLQ.

        :param entry_id: the id of the blocked entry.
        :return: False if the entry was not blocked.
        """
        if self.config.exclusive:
            job = yield from self._load_job(entry_id)
            if job is None:
                return False
            deliveries = yield lease_commands.blocked_deliveries(self.keys, entry_id)
            dead_letter = self._new_dead_letter(
                job, entry_id, deliveries, None, self._dead_letter_reason(job, deliveries)
            )
            command = lease_commands.move_blocked_to_dlq(
                self.keys, self.config, entry_id, dead_letter
            )
            return bool((yield command))
        entry = yield lease_commands.get_set_aside(self.keys, entry_id)
        if not entry or entry.job is None:
            return False
        attempts = entry.attempts or 0
        reason = self._dead_letter_reason(entry.job, attempts)
        dead_letter = self._new_dead_letter(entry.job, entry.source_id, attempts, None, reason)
        return bool((yield lease_commands.restore_set_aside(self.keys, entry, dead_letter)))

    def trim(self, keep_from: str | datetime) -> CommandFlow[int]:
        """Delete waiting entries before an entry id or a time.

        Trimming stops at the first entry that is leased, nacked or blocked.

        :param keep_from: the first entry to keep.
        :return: the number of deleted entries.
        :raises InvalidArgument: if `keep_from` is neither an entry id nor a datetime.
        """
        if isinstance(keep_from, datetime):
            keep_from = f"{max(0, to_epoch_ms(keep_from))}-0"
        StreamId.parse(keep_from, "keep_from")
        return lease_commands.trim(self.keys, self.config, keep_from)

    def _handles(self, leases_or_tokens: Sequence[LeaseOrToken]) -> list[LeaseHandle]:
        return [resolve_handle(lease, self.keys.queue_name) for lease in leases_or_tokens]

    def _raise_if_lost(
        self, handles: Sequence[LeaseHandle], succeeded: Sequence[bool], action: str
    ) -> None:
        lost = _select(handles, [not success for success in succeeded])
        if lost:
            raise LeaseLost(
                f"{len(lost)} of {len(handles)} leases were not {action}, because they had expired "
                f"and another consumer leased the jobs, or had ended before; the other leases were "
                f"{action}",
                queue_name=self.keys.queue_name,
                job_id=lost[0].job_id if len(lost) == 1 else None,
                tokens=tuple(encode_token(handle) for handle in lost),
            )

    def _emit(
        self, event: str, handles: Sequence[LeaseHandle], reason: str = ""
    ) -> CommandFlow[None]:
        if not handles or not self.config.events:
            return
        extra = {"reason": reason} if reason else {}
        events = [
            event_fields(
                event,
                handle.job_id,
                self.clock(),
                handle.job_name,
                attempt=handle.deliveries,
                **extra,
            )
            for handle in handles
        ]
        # The operation has succeeded; a failure to write its event must not look like its failure.
        with suppress(ChasquiError):
            yield event_commands.emit(self.keys, events)


def _select(handles: Sequence[LeaseHandle], flags: Sequence[bool]) -> list[LeaseHandle]:
    return [handle for handle, flag in zip(handles, flags, strict=True) if flag]
