"""Every outcome leaves through one pipeline: settle, park, bury, hand back, then tell.

One part instead of an acker and a relocator: a flush takes all that has gathered while the last
one was under way, so batches grow with load and there is no timer; and since events follow the
acks on the same connection, whoever reads `completed` finds the result and the batch bit.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.batch import place_of
from airflow_provider_chasqui.core.codec import encode_job, encode_member
from airflow_provider_chasqui.core.errors import ChasquiError, EncodeError
from airflow_provider_chasqui.core.event import PackedEvent, event_fields, pack_event
from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.op import AnyOp
from airflow_provider_chasqui.core.ops import delivery, looking
from airflow_provider_chasqui.core.ops.adding import emit_packed
from airflow_provider_chasqui.core.ops.delivery import Burial, Settled
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.health import Health
from airflow_provider_chasqui.engine.outbox import Outbox, Parked

_EVENTS_HELD = 50_000
_SECOND = timedelta(seconds=1)
# Redis takes 512 MB, and a reply of that size helps nobody.
_RESULT_BYTES = 64 * 1024 * 1024

Work = list[tuple[AnyOp[Any], Outbox[Any], list[Any]]]


class Settler:
    """Takes outcomes from the workers and carries them to the server until it has them."""

    def __init__(self, desk: Desk):
        self._desk = desk
        self._drive = desk.queue.drive
        keys, group, config = desk.keys, desk.group, desk.config
        self.events_on = config.events
        self._result_life_s = -(-config.result_life // _SECOND)
        self._plain = Outbox[str](
            "acks", lambda ids: delivery.settle(keys, group, ids), self._settled
        )
        self._rich = Outbox[Settled](
            "results", lambda each: delivery.settle_with(keys, group, each), self._were_settled,
            lambda settled: len(settled.result or b""),
        )  # fmt: skip
        self._parked = Outbox[Parked](
            "retries",
            lambda each: delivery.retry(keys, group, desk.consumer, [p.row for p in each]),
            self._were_parked, lambda parked: len(parked.row[2]),
        )  # fmt: skip
        kept = config.letters_kept or 0
        self._burials = Outbox[tuple[Burial, int]](
            "letters",
            lambda each: delivery.bury(keys, group, [burial for burial, _ in each], kept),
            self._were_buried, lambda burial: len(burial[0].d),
        )  # fmt: skip
        self._released = Outbox[tuple[str, bytes, bytes]](
            "entries handed back", lambda each: delivery.release(keys, group, desk.consumer, each),
            self._were_released, lambda entry: len(entry[1]),
        )  # fmt: skip
        self._forgotten = Outbox[str](
            "cancellations", lambda ids: delivery.forget_cancelled(keys, ids)
        )
        self._progress = Outbox[tuple[str, bytes]](
            "progress", lambda each: looking.note_progress(keys, dict(each)),
            weight=lambda said: len(said[1]),
        )  # fmt: skip
        self._events = Outbox[PackedEvent](
            "events", lambda events: emit_packed(keys, events, config.events_kept),
        )  # fmt: skip
        self._entries: tuple[Outbox[Any], ...] = (
            self._plain, self._rich, self._parked, self._burials, self._released,
        )  # fmt: skip
        # Events last: they tell of what the others did.
        self._boxes: tuple[Outbox[Any], ...] = (
            *self._entries, self._forgotten, self._progress, self._events,
        )  # fmt: skip
        self._wake = asyncio.Event()
        self._closing = False
        self._health = Health("settling")

    @property
    def waiting(self) -> int:
        """How many entries the server does not know the outcome of yet."""
        return sum(len(box.items) + box.under_way for box in self._entries)

    def done(self, entry: Entry, value: Any) -> None:
        """The job ended well."""
        job_id = entry.job.id
        result = None
        if value is not None and self._desk.config.store_results:
            result = _encode_result(value)
        place = place_of(job_id)
        if place is not None:
            self._desk.metrics.counts["batch_bits"] += 1
        elif result is None:
            self._plain.items.append(entry.id)
            self._wake.set()
            return
        settled = Settled(entry.id, job_id, result, self._result_life_s, place=place)
        self._rich.items.append(settled)
        self._wake.set()

    def done_all(self, entries: Iterable[tuple[Entry, Any]]) -> None:
        """The same for many. Most are of no batch and have no result: those take the short way."""
        plain = self._plain.items
        for entry, value in entries:
            if value is None and not entry.job.id.startswith(BATCH_PREFIX):
                plain.append(entry.id)
            else:
                self.done(entry, value)
        self._wake.set()

    def cancelled(self, entry: Entry) -> None:
        """The job was cancelled: it leaves no letter, but its batch counts it as dead."""
        self._rich.items.append(Settled(entry.id, entry.job.id, dead=True))
        self._wake.set()

    def park(self, entry: Entry, attempt: int, wait_ms: int, failed: bool) -> None:
        """The job runs again later, with the given attempt number."""
        job, now_ms = entry.job, self._desk.clock()
        member = encode_member(job.name.encode(), encode_job(job, attempt=attempt))
        parked = Parked((entry.id, now_ms + wait_ms, member), job.name, failed)
        if failed and self.events_on:
            parked.event = event_fields(
                "retry-scheduled", job.id, now_ms, job.name, attempt=attempt + 1, backoff_ms=wait_ms
            )
        self._parked.items.append(parked)
        self._wake.set()

    def bury(self, burial: Burial, attempt: int) -> None:
        """The job is dead; `attempt` is what its event says."""
        self._burials.items.append((burial, attempt))
        self._wake.set()

    def release(self, entry: Entry, attempt: int) -> None:
        """Hand the entry back, for another consumer to run at once."""
        job = entry.job
        self._released.items.append((entry.id, encode_job(job, attempt=attempt), job.name.encode()))
        self._wake.set()

    def tell(self, fields: Sequence[str | int]) -> None:
        """Write an event with the next flush."""
        if self.events_on:
            self.tell_packed(pack_event(fields))

    def tell_packed(self, *events: PackedEvent) -> None:
        if len(self._events.items) >= _EVENTS_HELD:
            self._desk.metrics.counts["events_dropped"] += len(events)
            return
        self._events.items += events
        self._wake.set()

    def progress(self, job_id: str, value: bytes) -> None:
        self._progress.items.append((job_id, value))
        self._wake.set()

    def close(self) -> None:
        """Let `run` end once everything is on the server."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Flush whenever there is something, until closed and empty."""
        while not self._closing or any(box.items for box in self._boxes):
            await self._woken()
            self._wake.clear()
            await asyncio.sleep(0)  # what is about to finish in this turn of the loop comes along
            await self.flush()

    async def _woken(self) -> None:
        """Return when there is something new, or when a box has rested enough."""
        rests = [box.rests_until for box in self._boxes if box.items]
        left = max(0.0, min(rests) - time.monotonic()) if rests else None
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._wake.wait()

    async def flush(self) -> None:
        """Bring everything to the server that it does not refuse at the moment."""
        while work := self._gather():
            answers: Sequence[Any] | None = None
            try:
                answers = await self._drive.attempt([op for op, _, _ in work])
            except ChasquiError as error:
                failure = error
            finally:
                self._account(work, answers)
            if answers is None:
                await self._health.trouble(failure)
            else:
                self._health.fine()

    def _gather(self) -> Work:
        now = time.monotonic()
        return [
            (box.make(chunk), box, chunk)
            for box in self._boxes
            if box.items and box.rests_until <= now
            for chunk in box.take()
        ]

    def _account(self, work: Work, answers: Sequence[Any] | None) -> None:
        # What goes back keeps its order, so the last chunk goes first.
        for i, (_, box, chunk) in reversed(list(enumerate(work))):
            if answers is None:
                box.put_back(chunk)
            elif isinstance(answers[i], ChasquiError):
                box.refused(chunk, answers[i])
        for (_, box, chunk), answer in zip(work, answers or [], strict=False):
            if not isinstance(answer, ChasquiError):
                box.accepted(chunk, answer)

    def _settled(self, ids: Sequence[str], flags: Sequence[bool]) -> None:
        counts = self._desk.metrics.counts
        won = sum(flags)
        counts["settled"] += won
        counts["settled_elsewhere"] += len(flags) - won
        self._desk.settled(ids)

    def _were_settled(self, settled: list[Settled], flags: list[bool]) -> None:
        self._settled([each.entry_id for each in settled], flags)
        # Forgotten only now: the mark must outlive a crash before the settlement.
        self._forgotten.items += [each.job_id for each in settled if each.dead]

    def _were_parked(self, parked: list[Parked], flags: list[bool]) -> None:
        self._settled([each.row[0] for each in parked], flags)
        again = [each for each, won in zip(parked, flags, strict=True) if won and each.failed]
        for name, count in Counter(each.name for each in again).items():
            self._desk.metrics.retried[name] += count
        if self.events_on:
            self.tell_packed(*[pack_event(each.event) for each in again if each.event])

    def _were_buried(self, burials: list[tuple[Burial, int]], flags: list[bool]) -> None:
        self._settled([each.entry_id for each, _ in burials], flags)
        for (each, attempt), won in zip(burials, flags, strict=True):
            if won:
                self._desk.metrics.buried[each.reason, each.name] += 1
                now_ms = self._desk.clock()
                extras = {"attempt": attempt, "reason": each.reason}
                self.tell(event_fields("dlq", each.job_id, now_ms, each.name, **extras))

    def _were_released(self, released: list[tuple[str, bytes, bytes]], flags: list[bool]) -> None:
        self._settled([each[0] for each in released], flags)
        self._desk.metrics.counts["released"] += sum(flags)


def _encode_result(value: Any) -> bytes:
    """The job is done whatever it returned: what cannot be kept is replaced by the reason."""
    try:
        result = encode_payload(value)
    except EncodeError as error:
        return encode_payload({"chasqui_error": str(error)})
    if len(result) > _RESULT_BYTES:
        return encode_payload({"chasqui_error": f"the result has {len(result)} bytes, too many"})
    return result
