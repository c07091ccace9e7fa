"""What a lease queue's methods mean, as flows: checks, defaults and the clock, without a colour."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_chasqui.core.codec import encode_job, encode_job_name
from airflow_provider_chasqui.core.command import Command, CommandFlow
from airflow_provider_chasqui.core.commands import delayed, enqueue, leases
from airflow_provider_chasqui.core.commands import leases as leases_commands
from airflow_provider_chasqui.core.commands.consumer_group import NewDeadLetter, parse_entry
from airflow_provider_chasqui.core.commands.leases import LeaseReply
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import (
    ChasquiError,
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
    Lease,
    LeaseConfig,
    LeaseHandle,
    encode_token,
    resolve_handle,
)

LeaseOrToken = Lease | str

# Nothing wakes a poller when another process hands an entry back, so it looks this often.
_POLL_INTERVAL_MS = 500
_PROMOTE_LIMIT = 1000


class LeaseFlows:
    """The verbs of one queue, each a flow."""

    def __init__(
        self, keys: Keys, config: LeaseConfig, queue_config: QueueConfig, clock: Callable[[], int]
    ):
        self.keys = keys
        self.config = config
        self.queue_config = queue_config
        self.clock = clock
        self._ulid_generator = UlidGenerator()

    def produce(
        self,
        messages: Iterable[Any],
        client_id: str | None,
        client_seq: int | None,
        expected_last: str | None,
        strict_seq: bool,
    ) -> CommandFlow[list[str | None]]:
        if (client_seq is None) != (client_id is None):
            raise InvalidArgument("give client_id and client_seq together, or neither")
        if client_seq is not None and not 0 <= client_seq < 2**64:
            raise InvalidArgument(
                f"client_seq is a whole number from 0 to 2^64 - 1, not {client_seq}"
            )
        now_ms = self.clock()
        ready = []
        for index, message in enumerate(messages):
            job = message if isinstance(message, NewJob) else NewJob(message)
            if job.delay is not None or job.run_at is not None or job.dedup_ttl is not None:
                raise InvalidArgument("produce appends now: add() takes delay, at and unique")
            job_id = self._ulid_generator.next(now_ms) if job.job_id is None else job.job_id
            check_job_id(job_id)
            raw = build_envelope(job_id, job.payload, self.queue_config, now_ms, job.retry)
            seq = "" if client_seq is None else str(client_seq + index)
            ready.append((seq, raw, encode_job_name(job.job_name)))
        if not ready:
            return []
        ids: list[str | None] = yield leases_commands.produce(
            self.keys,
            ready,
            token=uuid.uuid4().hex,
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
    ) -> CommandFlow[list[Lease]]:
        if not consumer or not isinstance(consumer, str) or consumer == "-nacked":
            raise InvalidArgument("a consumer needs a name")
        if type(max_messages) is not int or not 1 <= max_messages <= 10_000:
            raise InvalidArgument(f"max_messages is from 1 to 10000, not {max_messages!r}")
        life_ms = self.config.check_visibility_timeout(
            visibility_timeout or self.config.visibility_timeout
        )
        until_ms = self.clock() + (to_ms(wait) or 0)
        while True:
            taken = yield self._lease_command(consumer, max_messages, life_ms)
            if taken.delayed_due_ms and taken.delayed_due_ms <= taken.now_ms:
                promoted = yield delayed.promote(self.keys, _PROMOTE_LIMIT)
                if not taken.entries and promoted.moved:
                    continue
            found = yield from self._build_leases(taken, consumer, life_ms)
            if found:
                return found
            if taken.entries:
                continue  # all of them were poison
            left_ms = until_ms - self.clock()
            if left_ms <= 0:
                self._raise_if_limited(taken)
                return []
            yield leases.wait_for_entry(
                self.keys, taken.last_entry_id, self._wait_ms(taken, left_ms)
            )

    def _lease_command(self, consumer: str, limit: int, ttl_ms: int) -> Any:
        max_bytes = self.queue_config.max_payload_bytes
        return leases.acquire(self.keys, self.config, consumer, limit, ttl_ms, max_bytes)

    def _wait_ms(self, reply: LeaseReply, remaining_ms: int) -> int:
        naps = [remaining_ms, _POLL_INTERVAL_MS]
        if reply.due_in_ms >= 0:
            naps.append(reply.due_in_ms)
        if reply.delayed_due_ms:
            naps.append(reply.delayed_due_ms - reply.now_ms)
        return max(1, min(naps))

    def _raise_if_limited(self, reply: LeaseReply) -> None:
        if reply.status == leases.TOO_MANY_IN_FLIGHT:
            raise TooManyInFlight(
                f"{self.config.max_in_flight} leases stand, which is the limit; settle some first"
            )
        if reply.status == leases.TOO_MANY_UNACKNOWLEDGED:
            raise TooManyUnacknowledged(
                f"{self.config.max_unacknowledged} delivered entries are not settled, which is the limit; "
                "settle, skip or bury some first"
            )

    def _build_leases(
        self, reply: LeaseReply, consumer: str, ttl_ms: int
    ) -> CommandFlow[list[Lease]]:
        """Return what can be worked on; the rest becomes letters."""
        found: list[Lease] = []
        hopeless: list[tuple[LeaseHandle, NewDeadLetter]] = []
        for one in reply.entries:
            grip = leases.make_handle(self.keys, self.config, consumer, reply.fencing_token, one)
            if isinstance(one, InvalidEntry):
                burial = NewDeadLetter(
                    one.id, one.raw, one.job_name, one.reason, one.detail, failed_at_ms=reply.now_ms
                )
                hopeless.append((grip, burial))
            elif self._exceeds_max_deliveries(one, grip):
                hopeless.append(
                    (grip, self._new_dead_letter(one.job, one.id, grip.deliveries - 1, None))
                )
            else:
                deadline_ms = reply.now_ms + ttl_ms
                found.append(
                    Lease(one.id, one.job, grip.deliveries, deadline_ms, reply.fencing_token, grip)
                )
        if hopeless:
            flags = yield leases.move_to_dlq(self.keys, self.config, hopeless)
            for (grip, burial), did in zip(hopeless, flags, strict=True):
                if did:
                    yield from self._emit("dlq", [grip], burial.reason)
        return found

    def _exceeds_max_deliveries(self, entry: StreamEntry, handle: LeaseHandle) -> bool:
        if self.config.on_max_deliveries != "dead_letter":
            return False  # the script has set it aside already
        policy = entry.job.retry
        own = None if self.config.exclusive or policy is None else policy.max_attempts
        return handle.deliveries > (self.config.max_deliveries if own is None else own)

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
        )

    def ack(self, leases_or_tokens: Sequence[LeaseOrToken]) -> CommandFlow[None]:
        grips = self._handles(leases_or_tokens)
        if not grips:
            return
        flags = yield leases.ack(self.keys, self.config, grips)
        settled = [one for one, did in zip(grips, flags, strict=True) if did]
        yield from self._emit("completed", settled)
        self._raise_if_lost(grips, flags, "acked")

    def nack(
        self, leases_or_tokens: Sequence[LeaseOrToken], delay: timedelta, as_retry: bool
    ) -> CommandFlow[None]:
        grips = self._handles(leases_or_tokens)
        delay_ms = to_ms(delay) or 0
        if delay_ms < 0:
            raise InvalidArgument(f"delay must not be negative: {delay}")
        if not grips:
            return
        far = delay_ms > self.config.claim_after_ms and not self.config.exclusive
        if as_retry and self.config.exclusive:
            raise InvalidArgument(
                "as_retry= is for shared mode: an exclusive entry keeps its place"
            )
        if as_retry or far:
            run_at_ms = self.clock() + delay_ms
            flags = yield from self._apply_with_jobs(
                leases_or_tokens,
                grips,
                lambda pairs: leases.schedule_retries(self.keys, self.config, pairs, run_at_ms),
            )
        else:
            flags = yield leases.nack(self.keys, self.config, grips, delay_ms)
        self._raise_if_lost(grips, flags, "handed back")

    def _apply_with_jobs(
        self,
        leases_or_tokens: Sequence[LeaseOrToken],
        handles: list[LeaseHandle],
        build_command: Callable[[list[tuple[LeaseHandle, Job]]], Command[list[bool]]],
    ) -> CommandFlow[list[bool]]:
        """Act on the leases whose jobs are there; says for each lease whether that was done."""
        jobs: list[Job | None] = []
        for lease, grip in zip(leases_or_tokens, handles, strict=True):
            job = (
                lease.job
                if isinstance(lease, Lease)
                else (yield from self._load_job(grip.entry_id))
            )
            jobs.append(job)
        pairs = [(grip, job) for grip, job in zip(handles, jobs, strict=True) if job is not None]
        flags = iter((yield build_command(pairs)) if pairs else ())
        return [job is not None and next(flags) for job in jobs]

    def _load_job(self, entry_id: str) -> CommandFlow[Job | None]:
        """The job of an entry; a token does not carry its own."""
        raw = yield leases.get_entry(self.keys, entry_id)
        one = parse_entry(raw[0], 2**62) if raw else None
        return one.job if isinstance(one, StreamEntry) else None

    def extend(
        self, leases_or_tokens: Sequence[LeaseOrToken], visibility_timeout: timedelta | None
    ) -> CommandFlow[list[LeaseOrToken]]:
        grips = self._handles(leases_or_tokens)
        life_ms = self.config.check_visibility_timeout(
            visibility_timeout or self.config.visibility_timeout
        )
        if not grips:
            return []
        deadline_ms, flags = yield leases.extend(self.keys, self.config, grips, life_ms)
        self._raise_if_lost(grips, flags, "extended")
        return [
            replace(each, deadline_ms=deadline_ms) if isinstance(each, Lease) else each
            for each in leases_or_tokens
        ]

    def dead_letter(
        self, leases_or_tokens: Sequence[LeaseOrToken], error: str | None
    ) -> CommandFlow[None]:
        grips, reason = self._handles(leases_or_tokens), "unrecoverable"
        flags = yield from self._apply_dead_letters(
            leases.move_to_dlq, leases_or_tokens, grips, reason, error
        )
        buried = [one for one, did in zip(grips, flags, strict=True) if did]
        yield from self._emit("dlq", buried, reason)
        self._raise_if_lost(grips, flags, "buried")

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
        def act(pairs: list[tuple[LeaseHandle, Job]]) -> Command[list[bool]]:
            letters = [
                (one, self._new_dead_letter(job, one.entry_id, one.deliveries, error, reason))
                for one, job in pairs
            ]
            return build_command(self.keys, self.config, letters)

        return self._apply_with_jobs(leases_or_tokens, handles, act)

    def block(self, leases_or_tokens: Sequence[LeaseOrToken]) -> CommandFlow[None]:
        grips = self._handles(leases_or_tokens)
        if not grips:
            return
        if self.config.exclusive:
            flags = yield leases.block(self.keys, self.config, grips)
        else:
            flags = yield from self._apply_dead_letters(
                leases.set_aside, leases_or_tokens, grips, "blocked"
            )
        self._raise_if_lost(grips, flags, "blocked")

    def unblock(self, entry_id: str, extra_deliveries: int) -> CommandFlow[bool]:
        if type(extra_deliveries) is not int or extra_deliveries < 1:
            raise InvalidArgument(
                f"grant_attempts is a whole number from 1 on, not {extra_deliveries!r}"
            )
        if self.config.exclusive:
            return bool((yield leases_commands.unblock(self.keys, entry_id, extra_deliveries)))
        one = yield leases_commands.get_set_aside(self.keys, entry_id)
        return bool(one and (yield leases_commands.restore_set_aside(self.keys, one, None)))

    def dead_letter_blocked(self, entry_id: str) -> CommandFlow[bool]:
        if self.config.exclusive:
            job = yield from self._load_job(entry_id)
            if job is None:
                return False
            burial = self._new_dead_letter(job, entry_id, 0, None)
            return bool(
                (
                    yield leases_commands.move_blocked_to_dlq(
                        self.keys, self.config, entry_id, burial
                    )
                )
            )
        found = yield leases_commands.get_set_aside(self.keys, entry_id)
        if not found or found.job is None:
            return False
        burial = self._new_dead_letter(found.job, found.source_id, found.attempts or 0, None)
        return bool((yield leases_commands.restore_set_aside(self.keys, found, burial)))

    def trim(self, keep_from: str | datetime) -> CommandFlow[int]:
        if isinstance(keep_from, datetime):
            keep_from = f"{max(0, to_epoch_ms(keep_from))}-0"
        ms, _, seq = keep_from.partition("-")
        if not ms.isdecimal() or not (seq or "0").isdecimal():
            raise InvalidArgument(f"keep_from is an entry id or a datetime, not {keep_from!r}")
        return leases_commands.trim(self.keys, self.config, keep_from)

    def _handles(self, leases_or_tokens: Sequence[LeaseOrToken]) -> list[LeaseHandle]:
        return [resolve_handle(one, self.keys.queue_name) for one in leases_or_tokens]

    def _raise_if_lost(
        self, handles: Sequence[LeaseHandle], succeeded: Sequence[bool], action: str
    ) -> None:
        lost = [one for one, did in zip(handles, succeeded, strict=True) if not did]
        if lost:
            raise LeaseLost(
                f"{len(lost)} of {len(handles)} leases were not {action}: they ran out and were taken "
                "over, or were settled before; the others were",
                queue_name=self.keys.queue_name,
                job_id=lost[0].job_id if len(lost) == 1 else None,
                tokens=tuple(encode_token(one) for one in lost),
            )

    def _emit(
        self, event: str, handles: Sequence[LeaseHandle], reason: str = ""
    ) -> CommandFlow[None]:
        if not handles or not self.config.events:
            return
        extra = {"reason": reason} if reason else {}
        told = [
            event_fields(
                event, one.job_id, self.clock(), one.job_name, attempt=one.deliveries, **extra
            )
            for one in handles
        ]
        # It is done: an event that cannot be written must not look like a failure.
        with suppress(ChasquiError):
            yield enqueue.emit(self.keys, told)
