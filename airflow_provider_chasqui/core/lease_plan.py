"""What a lease queue's methods mean, as flows: checks, defaults and the clock, without a colour."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_chasqui.core.codec import encode_job, encode_name
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import (
    BadInput,
    ChasquiError,
    LeaseLost,
    TooManyInFlight,
    TooManyPinned,
)
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.ids import Ulids
from airflow_provider_chasqui.core.job import Entry, Job, NewJob, Rejected
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import Held, Lease, LeaseConfig, held, token_of
from airflow_provider_chasqui.core.op import Flow, Op
from airflow_provider_chasqui.core.ops import adding, delayed, lease_admin, leases
from airflow_provider_chasqui.core.ops.delivery import Burial, delivery
from airflow_provider_chasqui.core.ops.leases import Taken
from airflow_provider_chasqui.core.policy import to_ms
from airflow_provider_chasqui.core.prepare import check_id, envelope, instant_ms

AnyLease = Lease | str

# Nothing wakes a poller when another process hands an entry back, so it looks this often.
_LOOK_AGAIN_MS = 500
_PROMOTE = 1000


class LeasePlan:
    """The verbs of one queue, each a flow."""

    def __init__(
        self, keys: Keys, config: LeaseConfig, limits: QueueConfig, clock: Callable[[], int]
    ):
        self.keys = keys
        self.config = config
        self.limits = limits
        self.clock = clock
        self._ulids = Ulids()

    def produce(
        self,
        messages: Iterable[Any],
        client_id: str | None,
        client_seq: int | None,
        expected_last: str | None,
        strict_seq: bool,
    ) -> Flow[list[str | None]]:
        if (client_seq is None) != (client_id is None):
            raise BadInput("give client_id and client_seq together, or neither")
        if client_seq is not None and not 0 <= client_seq < 2**64:
            raise BadInput(f"client_seq is a whole number from 0 to 2^64 - 1, not {client_seq}")
        now_ms = self.clock()
        ready = []
        for index, message in enumerate(messages):
            job = message if isinstance(message, NewJob) else NewJob(message)
            if job.delay is not None or job.at is not None or job.unique is not None:
                raise BadInput("produce appends now: add() takes delay, at and unique")
            job_id = self._ulids.mint(now_ms) if job.id is None else job.id
            check_id(job_id)
            raw = envelope(job_id, job.payload, self.limits, now_ms, job.retry)
            seq = "" if client_seq is None else str(client_seq + index)
            ready.append((seq, raw, encode_name(job.name)))
        if not ready:
            return []
        ids: list[str | None] = yield lease_admin.produce(
            self.keys,
            ready,
            token=uuid.uuid4().hex,
            client=client_id or "",
            expected=expected_last or "",
            strict=strict_seq,
            max_len=self.limits.max_len or 0,
        )
        return ids

    def lease(
        self, consumer: str, max_messages: int, wait: timedelta | None, time: timedelta | None
    ) -> Flow[list[Lease]]:
        if not consumer or not isinstance(consumer, str) or consumer == "-nacked":
            raise BadInput("a consumer needs a name")
        if type(max_messages) is not int or not 1 <= max_messages <= 10_000:
            raise BadInput(f"max_messages is from 1 to 10000, not {max_messages!r}")
        life_ms = self.config.check_time(time or self.config.visibility_timeout)
        until_ms = self.clock() + (to_ms(wait) or 0)
        while True:
            taken = yield self._take(consumer, max_messages, life_ms)
            if taken.delayed_due_ms and taken.delayed_due_ms <= taken.now_ms:
                promoted = yield delayed.promote(self.keys, _PROMOTE)
                if not taken.deliveries and promoted.moved:
                    continue
            found = yield from self._sort(taken, consumer, life_ms)
            if found:
                return found
            if taken.deliveries:
                continue  # all of them were poison
            left_ms = until_ms - self.clock()
            if left_ms <= 0:
                self._refuse(taken)
                return []
            yield leases.wait_for_entry(self.keys, taken.tail, self._nap_ms(taken, left_ms))

    def _take(self, consumer: str, count: int, life_ms: int) -> Any:
        max_bytes = self.limits.max_payload_bytes
        return leases.take(self.keys, self.config, consumer, count, life_ms, max_bytes)

    def _nap_ms(self, taken: Taken, left_ms: int) -> int:
        naps = [left_ms, _LOOK_AGAIN_MS]
        if taken.due_in_ms >= 0:
            naps.append(taken.due_in_ms)
        if taken.delayed_due_ms:
            naps.append(taken.delayed_due_ms - taken.now_ms)
        return max(1, min(naps))

    def _refuse(self, taken: Taken) -> None:
        if taken.status == leases.IN_FLIGHT:
            raise TooManyInFlight(
                f"{self.config.max_in_flight} leases stand, which is the limit; settle some first"
            )
        if taken.status == leases.PINNED:
            raise TooManyPinned(
                f"{self.config.max_pinned} delivered entries are not settled, which is the limit; "
                "settle, skip or bury some first"
            )

    def _sort(self, taken: Taken, consumer: str, life_ms: int) -> Flow[list[Lease]]:
        """Return what can be worked on; the rest becomes letters."""
        found: list[Lease] = []
        hopeless: list[tuple[Held, Burial]] = []
        for one in taken.deliveries:
            grip = leases.held_of(self.keys, self.config, consumer, taken.fence, one)
            if isinstance(one, Rejected):
                burial = Burial(
                    one.id, one.raw, one.name, one.reason, one.detail, failed_at_ms=taken.now_ms
                )
                hopeless.append((grip, burial))
            elif self._worn_out(one, grip):
                hopeless.append((grip, self._letter(one.job, one.id, grip.deliveries - 1, None)))
            else:
                deadline_ms = taken.now_ms + life_ms
                found.append(
                    Lease(one.id, one.job, grip.deliveries, deadline_ms, taken.fence, grip)
                )
        if hopeless:
            flags = yield leases.bury(self.keys, self.config, hopeless)
            for (grip, burial), did in zip(hopeless, flags, strict=True):
                if did:
                    yield from self._tell("dlq", [grip], burial.reason)
        return found

    def _worn_out(self, one: Entry, grip: Held) -> bool:
        if self.config.poison != "skip":
            return False  # the script has set it aside already
        policy = one.job.retry
        own = None if self.config.exclusive or policy is None else policy.max_attempts
        return grip.deliveries > (self.config.max_deliveries if own is None else own)

    def _letter(
        self, job: Job, entry_id: str, attempts: int, error: str | None, reason: str = ""
    ) -> Burial:
        return Burial(
            entry_id,
            encode_job(job),
            job.name,
            reason or "retries_exhausted",
            error=error,
            attempts=attempts,
            failed_at_ms=self.clock(),
            job_id=job.id,
        )

    def ack(self, given: Sequence[AnyLease]) -> Flow[None]:
        grips = self._grips(given)
        if not grips:
            return
        flags = yield leases.ack(self.keys, self.config, grips)
        settled = [one for one, did in zip(grips, flags, strict=True) if did]
        yield from self._tell("completed", settled)
        self._check(grips, flags, "acked")

    def nack(self, given: Sequence[AnyLease], delay: timedelta, as_retry: bool) -> Flow[None]:
        grips = self._grips(given)
        delay_ms = to_ms(delay) or 0
        if delay_ms < 0:
            raise BadInput(f"delay must not be negative: {delay}")
        if not grips:
            return
        far = delay_ms > self.config.reclaim_ms and not self.config.exclusive
        if as_retry and self.config.exclusive:
            raise BadInput("as_retry= is for shared mode: an exclusive entry keeps its place")
        if as_retry or far:
            run_at_ms = self.clock() + delay_ms
            flags = yield from self._with_jobs(
                given, grips, lambda pairs: leases.retry(self.keys, self.config, pairs, run_at_ms)
            )
        else:
            flags = yield leases.nack(self.keys, self.config, grips, delay_ms)
        self._check(grips, flags, "handed back")

    def _with_jobs(
        self,
        given: Sequence[AnyLease],
        grips: list[Held],
        act: Callable[[list[tuple[Held, Job]]], Op[list[bool]]],
    ) -> Flow[list[bool]]:
        """Act on the leases whose jobs are there; says for each lease whether that was done."""
        jobs: list[Job | None] = []
        for lease, grip in zip(given, grips, strict=True):
            job = lease.job if isinstance(lease, Lease) else (yield from self._job(grip.id))
            jobs.append(job)
        pairs = [(grip, job) for grip, job in zip(grips, jobs, strict=True) if job is not None]
        flags = iter((yield act(pairs)) if pairs else ())
        return [job is not None and next(flags) for job in jobs]

    def _job(self, entry_id: str) -> Flow[Job | None]:
        """The job of an entry; a token does not carry its own."""
        raw = yield leases.fields_of(self.keys, entry_id)
        one = delivery(raw[0], 2**62) if raw else None
        return one.job if isinstance(one, Entry) else None

    def extend(self, given: Sequence[AnyLease], time: timedelta | None) -> Flow[list[AnyLease]]:
        grips = self._grips(given)
        life_ms = self.config.check_time(time or self.config.visibility_timeout)
        if not grips:
            return []
        deadline_ms, flags = yield leases.extend(self.keys, self.config, grips, life_ms)
        self._check(grips, flags, "extended")
        return [
            replace(each, deadline_ms=deadline_ms) if isinstance(each, Lease) else each
            for each in given
        ]

    def bury(self, given: Sequence[AnyLease], error: str | None) -> Flow[None]:
        grips, reason = self._grips(given), "unrecoverable"
        flags = yield from self._as_letters(leases.bury, given, grips, reason, error)
        buried = [one for one, did in zip(grips, flags, strict=True) if did]
        yield from self._tell("dlq", buried, reason)
        self._check(grips, flags, "buried")

    def _as_letters(
        self,
        op: Callable[[Keys, LeaseConfig, list[tuple[Held, Burial]]], Op[list[bool]]],
        given: Sequence[AnyLease],
        grips: list[Held],
        reason: str,
        error: str | None = None,
    ) -> Flow[list[bool]]:
        def act(pairs: list[tuple[Held, Job]]) -> Op[list[bool]]:
            letters = [
                (one, self._letter(job, one.id, one.deliveries, error, reason))
                for one, job in pairs
            ]
            return op(self.keys, self.config, letters)

        return self._with_jobs(given, grips, act)

    def block(self, given: Sequence[AnyLease]) -> Flow[None]:
        grips = self._grips(given)
        if not grips:
            return
        if self.config.exclusive:
            flags = yield leases.block(self.keys, self.config, grips)
        else:
            flags = yield from self._as_letters(leases.park, given, grips, "blocked")
        self._check(grips, flags, "blocked")

    def unblock(self, entry_id: str, grant: int) -> Flow[bool]:
        if type(grant) is not int or grant < 1:
            raise BadInput(f"grant_attempts is a whole number from 1 on, not {grant!r}")
        if self.config.exclusive:
            return bool((yield lease_admin.unblock(self.keys, entry_id, grant)))
        one = yield lease_admin.aside(self.keys, entry_id)
        return bool(one and (yield lease_admin.unpark(self.keys, one, None)))

    def skip(self, entry_id: str) -> Flow[bool]:
        if self.config.exclusive:
            job = yield from self._job(entry_id)
            if job is None:
                return False
            burial = self._letter(job, entry_id, 0, None)
            return bool((yield lease_admin.skip(self.keys, self.config, entry_id, burial)))
        found = yield lease_admin.aside(self.keys, entry_id)
        if not found or found.job is None:
            return False
        burial = self._letter(found.job, found.source_id, found.attempts or 0, None)
        return bool((yield lease_admin.unpark(self.keys, found, burial)))

    def trim(self, keep_from: str | datetime) -> Flow[int]:
        if isinstance(keep_from, datetime):
            keep_from = f"{max(0, instant_ms(keep_from))}-0"
        ms, _, seq = keep_from.partition("-")
        if not ms.isdecimal() or not (seq or "0").isdecimal():
            raise BadInput(f"keep_from is an entry id or a datetime, not {keep_from!r}")
        return lease_admin.trim(self.keys, self.config, keep_from)

    def _grips(self, given: Sequence[AnyLease]) -> list[Held]:
        return [held(one, self.keys.queue) for one in given]

    def _check(self, grips: Sequence[Held], flags: Sequence[bool], done: str) -> None:
        lost = [one for one, did in zip(grips, flags, strict=True) if not did]
        if lost:
            raise LeaseLost(
                f"{len(lost)} of {len(grips)} leases were not {done}: they ran out and were taken "
                "over, or were settled before; the others were",
                queue=self.keys.queue,
                job_id=lost[0].job_id if len(lost) == 1 else None,
                tokens=tuple(token_of(one) for one in lost),
            )

    def _tell(self, event: str, grips: Sequence[Held], reason: str = "") -> Flow[None]:
        if not grips or not self.config.events:
            return
        extra = {"reason": reason} if reason else {}
        told = [
            event_fields(event, one.job_id, self.clock(), one.name, attempt=one.deliveries, **extra)
            for one in grips
        ]
        # It is done: an event that cannot be written must not look like a failure.
        with suppress(ChasquiError):
            yield adding.emit(self.keys, told)
