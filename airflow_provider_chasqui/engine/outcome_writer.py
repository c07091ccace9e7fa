"""Every outcome leaves through one pipeline: settle, park, bury, hand back, then tell.

One part instead of an acker and a relocator: a flush takes all that has gathered while the last
one was under way, so batches grow with load and there is no timer; and since events follow the
acks on the same connection, whoever reads `completed` finds the result and the batch bit.

Outcomes of one kind on their way to the server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.chunking import MAX_CHUNK_BYTES, MAX_CHUNK_JOBS, chunked
from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_job
from airflow_provider_chasqui.core.command import AnyCommand
from airflow_provider_chasqui.core.commands import consumer_group, inspect
from airflow_provider_chasqui.core.commands.consumer_group import Completion, NewDeadLetter
from airflow_provider_chasqui.core.commands.events import emit_encoded
from airflow_provider_chasqui.core.errors import ChasquiError, EncodeError
from airflow_provider_chasqui.core.event import EncodedEvent, encode_event, event_fields
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.engine.backoff import ErrorBackoff
from airflow_provider_chasqui.engine.consumer_state import ConsumerState

_MAX_BUFFERED_EVENTS = 50_000
_SECOND = timedelta(seconds=1)
# Redis takes 512 MB, and a reply of that size helps nobody.
_MAX_RESULT_BYTES = 64 * 1024 * 1024

T = TypeVar("T")


@dataclass(slots=True)
class RescheduledEntry:
    """An entry that goes back to the delayed set; after a failure, or because it wished so."""

    row: tuple[str, int, bytes]
    job_name: str
    failed: bool
    event: Sequence[str | int] | None = None


class WriteBuffer(Generic[T]):
    """Outcomes that become operations chunk by chunk.

    One that is refused (out of memory, say) rests for a while, so that the others go on at full
    speed.
    """

    def __init__(
        self,
        label: str,
        build_command: Callable[[list[T]], AnyCommand[Any]],
        on_success: Callable[[list[T], Any], None] | None = None,
        item_size: Callable[[T], int] | None = None,
    ):
        self.items: list[T] = []
        self.build_command = build_command
        self.in_progress = 0
        self.retry_at = 0.0
        self._on_success = on_success
        self._item_size = item_size
        self._backoff = ErrorBackoff(f"settling {label}")

    def take_chunks(self) -> list[list[T]]:
        items, self.items = self.items, []
        self.in_progress += len(items)
        if self._item_size is not None:
            return list(chunked(items, self._item_size, MAX_CHUNK_JOBS, MAX_CHUNK_BYTES))
        return [items[i : i + MAX_CHUNK_JOBS] for i in range(0, len(items), MAX_CHUNK_JOBS)]

    def handle_success(self, chunk: list[T], reply: Any) -> None:
        self.in_progress -= len(chunk)
        self._backoff.reset()
        if self._on_success is not None:
            self._on_success(chunk, reply)

    def handle_error(self, chunk: list[T], error: ChasquiError) -> None:
        self.restore(chunk)
        self.retry_at = time.monotonic() + self._backoff.record(error)

    def restore(self, chunk: list[T]) -> None:
        self.in_progress -= len(chunk)
        self.items[:0] = chunk


PendingWrites = list[tuple[AnyCommand[Any], WriteBuffer[Any], list[Any]]]


class OutcomeWriter:
    """Takes outcomes from the workers and carries them to the server until it has them."""

    def __init__(self, state: ConsumerState):
        self._state = state
        self._client = state.queue.client
        keys, group, config = state.keys, state.group, state.config
        self.events_enabled = config.events
        self._result_ttl_s = -(-config.result_ttl // _SECOND)
        self._acks = WriteBuffer[str](
            "acks", lambda ids: consumer_group.ack(keys, group, ids), self._on_acked
        )
        self._completions = WriteBuffer[Completion](
            "results", lambda each: consumer_group.ack_with_results(keys, group, each), self._on_completed,
            lambda settled: len(settled.result or b""),
        )  # fmt: skip
        self._rescheduled = WriteBuffer[RescheduledEntry](
            "retries",
            lambda each: consumer_group.schedule_retries(keys, group, state.consumer_id, [p.row for p in each]),
            self._on_rescheduled, lambda parked: len(parked.row[2]),
        )  # fmt: skip
        kept = config.max_dead_letters or 0
        self._dead_letters = WriteBuffer[tuple[NewDeadLetter, int]](
            "letters",
            lambda each: consumer_group.move_to_dlq(keys, group, [burial for burial, _ in each], kept),
            self._on_dead_lettered, lambda burial: len(burial[0].envelope),
        )  # fmt: skip
        self._requeues = WriteBuffer[tuple[str, bytes, bytes]](
            "entries handed back", lambda each: consumer_group.requeue(keys, group, state.consumer_id, each),
            self._on_requeued, lambda entry: len(entry[1]),
        )  # fmt: skip
        self._cleared_cancels = WriteBuffer[str](
            "cancellations", lambda ids: consumer_group.clear_cancel_requests(keys, ids)
        )
        self._progress = WriteBuffer[tuple[str, bytes]](
            "progress", lambda each: inspect.save_progress(keys, dict(each)),
            item_size=lambda said: len(said[1]),
        )  # fmt: skip
        self._events = WriteBuffer[EncodedEvent](
            "events", lambda events: emit_encoded(keys, events, config.max_events),
        )  # fmt: skip
        self._entry_buffers: tuple[WriteBuffer[Any], ...] = (
            self._acks, self._completions, self._rescheduled, self._dead_letters, self._requeues,
        )  # fmt: skip
        # Events last: they tell of what the others did.
        self._buffers: tuple[WriteBuffer[Any], ...] = (
            *self._entry_buffers, self._cleared_cancels, self._progress, self._events,
        )  # fmt: skip
        self._wake = asyncio.Event()
        self._closing = False
        self._backoff = ErrorBackoff("settling")

    @property
    def unwritten(self) -> int:
        """How many entries the server does not know the outcome of yet."""
        return sum(len(box.items) + box.in_progress for box in self._entry_buffers)

    def complete(self, entry: StreamEntry, value: Any) -> None:
        """The job ended well."""
        job_id = entry.job.id
        result = None
        if value is not None and self._state.config.store_results:
            result = _encode_result(value)
        place = parse_batch_job_id(job_id)
        if place is not None:
            self._state.metrics.counts["batch_bits"] += 1
        elif result is None:
            self._acks.items.append(entry.id)
            self._wake.set()
            return
        settled = Completion(entry.id, job_id, result, self._result_ttl_s, position=place)
        self._completions.items.append(settled)
        self._wake.set()

    def complete_many(self, entries: Iterable[tuple[StreamEntry, Any]]) -> None:
        """The same for many. Most are of no batch and have no result: those take the short way."""
        plain = self._acks.items
        for entry, value in entries:
            if value is None and not entry.job.id.startswith(BATCH_PREFIX):
                plain.append(entry.id)
            else:
                self.complete(entry, value)
        self._wake.set()

    def ack_cancelled(self, entry: StreamEntry) -> None:
        """The job was cancelled: it leaves no letter, but its batch counts it as dead."""
        self._completions.items.append(Completion(entry.id, entry.job.id, dead=True))
        self._wake.set()

    def reschedule(self, entry: StreamEntry, attempt: int, delay_ms: int, failed: bool) -> None:
        """The job runs again later, with the given attempt number."""
        job, now_ms = entry.job, self._state.clock()
        member = encode_delayed_member(job.name.encode(), encode_job(job, attempt=attempt))
        parked = RescheduledEntry((entry.id, now_ms + delay_ms, member), job.name, failed)
        if failed and self.events_enabled:
            parked.event = event_fields(
                "retry-scheduled",
                job.id,
                now_ms,
                job.name,
                attempt=attempt + 1,
                backoff_ms=delay_ms,
            )
        self._rescheduled.items.append(parked)
        self._wake.set()

    def dead_letter(self, dead_letter: NewDeadLetter, attempt: int) -> None:
        """The job is dead; `attempt` is what its event says."""
        self._dead_letters.items.append((dead_letter, attempt))
        self._wake.set()

    def requeue(self, entry: StreamEntry, attempt: int) -> None:
        """Hand the entry back, for another consumer to run at once."""
        job = entry.job
        self._requeues.items.append((entry.id, encode_job(job, attempt=attempt), job.name.encode()))
        self._wake.set()

    def emit(self, fields: Sequence[str | int]) -> None:
        """Write an event with the next flush."""
        if self.events_enabled:
            self.emit_encoded(encode_event(fields))

    def emit_encoded(self, *events: EncodedEvent) -> None:
        if len(self._events.items) >= _MAX_BUFFERED_EVENTS:
            self._state.metrics.counts["events_dropped"] += len(events)
            return
        self._events.items += events
        self._wake.set()

    def report_progress(self, job_id: str, value: bytes) -> None:
        self._progress.items.append((job_id, value))
        self._wake.set()

    def close(self) -> None:
        """Let `run` end once everything is on the server."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Flush whenever there is something, until closed and empty."""
        while not self._closing or any(box.items for box in self._buffers):
            await self._wait_for_work()
            self._wake.clear()
            await asyncio.sleep(0)  # what is about to finish in this turn of the loop comes along
            await self.flush()

    async def _wait_for_work(self) -> None:
        """Return when there is something new, or when a box has rested enough."""
        rests = [box.retry_at for box in self._buffers if box.items]
        left = max(0.0, min(rests) - time.monotonic()) if rests else None
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._wake.wait()

    async def flush(self) -> None:
        """Bring everything to the server that it does not refuse at the moment."""
        while work := self._take_pending():
            answers: Sequence[Any] | None = None
            try:
                answers = await self._client.pipeline_with_errors([op for op, _, _ in work])
            except ChasquiError as error:
                failure = error
            finally:
                self._apply_replies(work, answers)
            if answers is None:
                await self._backoff.record_and_sleep(failure)
            else:
                self._backoff.reset()

    def _take_pending(self) -> PendingWrites:
        now = time.monotonic()
        return [
            (box.build_command(chunk), box, chunk)
            for box in self._buffers
            if box.items and box.retry_at <= now
            for chunk in box.take_chunks()
        ]

    def _apply_replies(self, writes: PendingWrites, replies: Sequence[Any] | None) -> None:
        # What goes back keeps its order, so the last chunk goes first.
        for i, (_, box, chunk) in reversed(list(enumerate(writes))):
            if replies is None:
                box.restore(chunk)
            elif isinstance(replies[i], ChasquiError):
                box.handle_error(chunk, replies[i])
        for (_, box, chunk), answer in zip(writes, replies or [], strict=False):
            if not isinstance(answer, ChasquiError):
                box.handle_success(chunk, answer)

    def _on_acked(self, entry_ids: Sequence[str], flags: Sequence[bool]) -> None:
        counts = self._state.metrics.counts
        won = sum(flags)
        counts["settled"] += won
        counts["already_acked"] += len(flags) - won
        self._state.mark_acked(entry_ids)

    def _on_completed(self, completions: list[Completion], flags: list[bool]) -> None:
        self._on_acked([each.entry_id for each in completions], flags)
        # Forgotten only now: the mark must outlive a crash before the settlement.
        self._cleared_cancels.items += [each.job_id for each in completions if each.dead]

    def _on_rescheduled(self, rescheduled: list[RescheduledEntry], flags: list[bool]) -> None:
        self._on_acked([each.row[0] for each in rescheduled], flags)
        again = [each for each, won in zip(rescheduled, flags, strict=True) if won and each.failed]
        for name, count in Counter(each.job_name for each in again).items():
            self._state.metrics.retried[name] += count
        if self.events_enabled:
            self.emit_encoded(*[encode_event(each.event) for each in again if each.event])

    def _on_dead_lettered(
        self, dead_letters: list[tuple[NewDeadLetter, int]], flags: list[bool]
    ) -> None:
        self._on_acked([each.entry_id for each, _ in dead_letters], flags)
        for (each, attempt), won in zip(dead_letters, flags, strict=True):
            if won:
                self._state.metrics.dead_lettered[each.reason, each.job_name] += 1
                now_ms = self._state.clock()
                extras = {"attempt": attempt, "reason": each.reason}
                self.emit(event_fields("dlq", each.job_id, now_ms, each.job_name, **extras))

    def _on_requeued(self, requeued: list[tuple[str, bytes, bytes]], flags: list[bool]) -> None:
        self._on_acked([each[0] for each in requeued], flags)
        self._state.metrics.counts["released"] += sum(flags)


def _encode_result(value: Any) -> bytes:
    """The job is done whatever it returned: what cannot be kept is replaced by the reason."""
    try:
        result = encode_payload(value)
    except EncodeError as error:
        return encode_payload({"chasqui_error": str(error)})
    if len(result) > _MAX_RESULT_BYTES:
        return encode_payload({"chasqui_error": f"the result has {len(result)} bytes, too many"})
    return result
