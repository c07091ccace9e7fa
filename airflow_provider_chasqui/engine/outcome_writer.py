"""The outcome writer: writes acks, results, retries, dead letters, requeues and events.

All outcomes leave through one pipeline. A flush takes everything that was buffered while the last
flush was in progress, so batches grow with the load and no timer is needed. Events follow the acks
on the same connection, so a program that reads `completed` can already read the result and the
batch state.
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
from airflow_provider_chasqui.core.commands import (
    cancellation,
    consumer_group,
    flow_control,
    inspect,
)
from airflow_provider_chasqui.core.commands.consumer_group import Completion, NewDeadLetter
from airflow_provider_chasqui.core.commands.events import emit_encoded
from airflow_provider_chasqui.core.errors import ChasquiError, EncodeError
from airflow_provider_chasqui.core.event import EncodedEvent, encode_event, event_fields
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.engine.backoff import ErrorBackoff
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.handlers import Handler

_MAX_BUFFERED_EVENTS = 50_000
_SECOND = timedelta(seconds=1)
# Redis allows 512 MB, but a reply of that size would block its reader.
_MAX_RESULT_BYTES = 64 * 1024 * 1024

T = TypeVar("T")


@dataclass(slots=True)
class RescheduledEntry:
    """An entry that is moved to the delayed set, after a failure or because the handler snoozed.

    :param row: the entry id, when it is due (ms since the epoch) and the member to write.
    :param job_name: the name of the job.
    :param failed: whether the attempt failed.
    :param event: the fields of the event to emit once the entry is moved.
    """

    row: tuple[str, int, bytes]
    job_name: str
    failed: bool
    event: Sequence[str | int] | None = None


@dataclass(slots=True)
class ParkedEntry:
    """An entry whose job name is paused.

    :param row: the entry id, the job name, the score in the delayed set and the member to write.
    :param entry: the entry.
    :param handler: the handler of the job.
    """

    row: tuple[str, str, int, bytes]
    entry: StreamEntry
    handler: Handler


class WriteBuffer(Generic[T]):
    """Outcomes of one kind, written in chunks.

    After an error, for example out of memory, only this buffer waits before the next attempt.

    :param label: the kind of outcome, for log lines.
    :param build_command: returns the command for a chunk.
    :param on_success: called with a chunk and the reply to its command.
    :param item_size: returns the size of an item in bytes; None if all items are small.
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
        self._backoff = ErrorBackoff(f"outcome writer ({label})")

    def take_chunks(self) -> list[list[T]]:
        """Remove all items and return them in chunks."""
        items, self.items = self.items, []
        self.in_progress += len(items)
        if self._item_size is not None:
            return list(chunked(items, self._item_size, MAX_CHUNK_JOBS, MAX_CHUNK_BYTES))
        return [items[i : i + MAX_CHUNK_JOBS] for i in range(0, len(items), MAX_CHUNK_JOBS)]

    def handle_success(self, chunk: list[T], reply: Any) -> None:
        """Record that a chunk was written."""
        self.in_progress -= len(chunk)
        self._backoff.reset()
        if self._on_success is not None:
            self._on_success(chunk, reply)

    def handle_error(self, chunk: list[T], error: ChasquiError) -> None:
        """Put back a chunk that the server refused, and wait before the next attempt."""
        self.restore(chunk)
        self.retry_at = time.monotonic() + self._backoff.record(error)

    def restore(self, chunk: list[T]) -> None:
        """Put back a chunk that was not written."""
        self.in_progress -= len(chunk)
        self.items[:0] = chunk


class LatestValueBuffer(WriteBuffer[tuple[str, bytes]]):
    """A buffer of keys and values that keeps only the last value per key."""

    def __init__(
        self, label: str, build_command: Callable[[list[tuple[str, bytes]]], AnyCommand[Any]]
    ):
        super().__init__(label, build_command, item_size=lambda item: len(item[1]))
        self._positions: dict[str, int] = {}

    def set(self, key: str, value: bytes) -> None:
        """Append a value, or replace the one of the same key."""
        position = self._positions.setdefault(key, len(self.items))
        self.items[position : position + 1] = [(key, value)]

    def take_chunks(self) -> list[list[tuple[str, bytes]]]:
        """Remove all values and return them in chunks."""
        self._positions.clear()
        return super().take_chunks()

    def restore(self, chunk: list[tuple[str, bytes]]) -> None:
        """Put back values that were not written, unless there are newer ones."""
        self.in_progress -= len(chunk)
        for key, value in chunk:
            if key not in self._positions:
                self.set(key, value)


PendingWrites = list[tuple[AnyCommand[Any], WriteBuffer[Any], list[Any]]]


class OutcomeWriter:
    """Buffers outcomes of the executors and writes them until the server has accepted them."""

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
            "results",
            lambda completions: consumer_group.ack_with_results(keys, group, completions),
            self._on_completed,
            lambda completion: len(completion.result or b""),
        )
        self._rescheduled = WriteBuffer[RescheduledEntry](
            "retries",
            lambda entries: consumer_group.schedule_retries(
                keys, group, state.consumer_id, [entry.row for entry in entries]
            ),
            self._on_rescheduled,
            lambda entry: len(entry.row[2]),
        )
        max_dead_letters = config.max_dead_letters or 0
        self._dead_letters = WriteBuffer[tuple[NewDeadLetter, int]](
            "dead letters",
            lambda items: consumer_group.move_to_dlq(
                keys,
                group,
                state.consumer_id,
                [dead_letter for dead_letter, _ in items],
                max_dead_letters,
            ),
            self._on_dead_lettered,
            lambda item: len(item[0].envelope),
        )
        self._requeues = WriteBuffer[tuple[str, bytes, bytes]](
            "requeues",
            lambda rows: consumer_group.requeue(keys, group, state.consumer_id, rows),
            self._on_requeued,
            lambda row: len(row[1]),
        )
        self._parked = WriteBuffer[ParkedEntry](
            "parked jobs",
            lambda entries: flow_control.park_jobs(
                keys, group, state.consumer_id, [entry.row for entry in entries]
            ),
            self._on_parked,
            lambda entry: len(entry.row[3]),
        )
        self._cleared_cancels = WriteBuffer[tuple[str, int]](
            "cancellations", lambda requests: cancellation.clear_requests(keys, requests)
        )
        self._progress = LatestValueBuffer(
            "progress", lambda values: inspect.save_progress(keys, dict(values))
        )
        self._events = WriteBuffer[EncodedEvent](
            "events", lambda events: emit_encoded(keys, events, config.max_events)
        )
        self._entry_buffers: tuple[WriteBuffer[Any], ...] = (
            self._acks,
            self._completions,
            self._rescheduled,
            self._dead_letters,
            self._requeues,
            self._parked,
        )
        # Events last, because they announce what the other commands did.
        self._buffers: tuple[WriteBuffer[Any], ...] = (
            *self._entry_buffers,
            self._cleared_cancels,
            self._progress,
            self._events,
        )
        # Called with entries that were not parked because their name was resumed.
        self.on_not_parked: Callable[[list[tuple[StreamEntry, Handler]]], None] = lambda _: None
        self._wake = asyncio.Event()
        self._closing = False
        self._backoff = ErrorBackoff("outcome writer")

    @property
    def unwritten(self) -> int:
        """The number of entries whose outcome is not on the server yet."""
        return sum(len(buffer.items) + buffer.in_progress for buffer in self._entry_buffers)

    def complete(self, entry: StreamEntry, value: Any) -> None:
        """Complete a job: ack its entry, store its result and update its batch."""
        job_id = entry.job.id
        result = None
        if value is not None and self._state.config.store_results:
            result = _encode_result(value)
        position = parse_batch_job_id(job_id)
        if position is not None:
            self._state.metrics.counts["batch_jobs_completed"] += 1
        elif result is None:
            self._acks.items.append(entry.id)
            self._wake.set()
            return
        self._completions.items.append(
            Completion(
                entry.id,
                job_id,
                result,
                self._result_ttl_s,
                position=position,
                created_at_ms=entry.job.created_at_ms,
            )
        )
        self._wake.set()

    def complete_many(self, entries: Iterable[tuple[StreamEntry, Any]]) -> None:
        """Complete several jobs. A job without a batch and without a result needs only an ack."""
        acks = self._acks.items
        for entry, value in entries:
            if value is None and not entry.job.id.startswith(BATCH_PREFIX):
                acks.append(entry.id)
            else:
                self.complete(entry, value)
        self._wake.set()

    def ack_cancelled(self, entry: StreamEntry) -> None:
        """Ack a cancelled job without a dead letter.

        Its batch counts it as dead, unless the whole batch is cancelled.
        """
        if self._state.cancellations.is_batch_cancelled(entry.job.id):
            self._acks.items.append(entry.id)
            self._wake.set()
            return
        job = entry.job
        self._completions.items.append(
            Completion(entry.id, job.id, dead=True, created_at_ms=job.created_at_ms)
        )
        self._wake.set()

    def reschedule(self, entry: StreamEntry, attempt: int, delay_ms: int, failed: bool) -> None:
        """Run a job again later.

        :param entry: the entry.
        :param attempt: the new value of `job.attempt`.
        :param delay_ms: how long to wait.
        :param failed: whether this attempt failed; if so, `retry-scheduled` is emitted.
        """
        job, now_ms = entry.job, self._state.clock()
        member = encode_delayed_member(job.name.encode(), encode_job(job, attempt=attempt))
        rescheduled = RescheduledEntry((entry.id, now_ms + delay_ms, member), job.name, failed)
        if failed and self.events_enabled:
            rescheduled.event = event_fields(
                "retry-scheduled",
                job.id,
                now_ms,
                job.name,
                attempt=attempt + 1,
                backoff_ms=delay_ms,
            )
        self._rescheduled.items.append(rescheduled)
        self._wake.set()

    def dead_letter(self, dead_letter: NewDeadLetter, attempt: int) -> None:
        """Move a job to the dead-letter queue; `attempt` is the number in the `dlq` event."""
        self._dead_letters.items.append((dead_letter, attempt))
        self._wake.set()

    def requeue(self, entry: StreamEntry, attempt: int) -> None:
        """Put an entry back into the queue, with `attempt` as the new `job.attempt`."""
        job = entry.job
        self._requeues.items.append((entry.id, encode_job(job, attempt=attempt), job.name.encode()))
        self._wake.set()

    def park(self, entry: StreamEntry, handler: Handler, score: int) -> None:
        """Move a job to the delayed set until its job name is resumed.

        :param entry: the entry.
        :param handler: the handler, for `on_not_parked`.
        :param score: the score in the delayed set, from `flow_control.parked_score`.
        """
        job = entry.job
        member = encode_delayed_member(job.name.encode(), encode_job(job))
        row = (entry.id, job.name, score, member)
        self._parked.items.append(ParkedEntry(row, entry, handler))
        self._wake.set()

    def emit(self, fields: Sequence[str | int]) -> None:
        """Write an event with the next flush, unless events are disabled."""
        if self.events_enabled:
            self.emit_encoded(encode_event(fields))

    def emit_encoded(self, *events: EncodedEvent) -> None:
        """Write encoded events; drop them if too many are buffered. Ignores `events_enabled`."""
        if len(self._events.items) >= _MAX_BUFFERED_EVENTS:
            self._state.metrics.counts["events_dropped"] += len(events)
            return
        self._events.items += events
        self._wake.set()

    def report_progress(self, job_id: str, value: bytes) -> None:
        """Store the progress of a job. Only the last value of each job is kept until it is sent."""
        self._progress.set(job_id, value)
        self._wake.set()

    def close(self) -> None:
        """Let `run` return once everything is on the server."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Flush whenever something is buffered, until closed and empty."""
        while not self._closing or any(buffer.items for buffer in self._buffers):
            await self._wait_for_work()
            self._wake.clear()
            await asyncio.sleep(0)  # let handlers that are about to finish join this flush
            await self.flush()

    async def _wait_for_work(self) -> None:
        """Return when something new is buffered or when a failed buffer may be retried."""
        retry_times = [buffer.retry_at for buffer in self._buffers if buffer.items]
        timeout = max(0.0, min(retry_times) - time.monotonic()) if retry_times else None
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()

    async def flush(self) -> None:
        """Write everything except buffers that wait after an error; retry lost connections."""
        while writes := self._take_pending():
            replies: Sequence[Any] | None = None
            try:
                replies = await self._client.pipeline_with_errors(
                    [command for command, _, _ in writes]
                )
            except ChasquiError as error:
                failure = error
            finally:
                self._apply_replies(writes, replies)
            if replies is None:
                await self._backoff.record_and_sleep(failure)
            else:
                self._backoff.reset()

    def _take_pending(self) -> PendingWrites:
        now = time.monotonic()
        return [
            (buffer.build_command(chunk), buffer, chunk)
            for buffer in self._buffers
            if buffer.items and buffer.retry_at <= now
            for chunk in buffer.take_chunks()
        ]

    def _apply_replies(self, writes: PendingWrites, replies: Sequence[Any] | None) -> None:
        # Chunks are put back at the front of their buffer, so the last one goes first.
        for i, (_, buffer, chunk) in reversed(list(enumerate(writes))):
            if replies is None:
                buffer.restore(chunk)
            elif isinstance(replies[i], ChasquiError):
                buffer.handle_error(chunk, replies[i])
        for (_, buffer, chunk), reply in zip(writes, replies or [], strict=False):
            if not isinstance(reply, ChasquiError):
                buffer.handle_success(chunk, reply)

    def _on_acked(self, entry_ids: Sequence[str], flags: Sequence[bool]) -> None:
        counts = self._state.metrics.counts
        acked = sum(flags)
        counts["acked"] += acked
        counts["already_acked"] += len(flags) - acked
        self._state.forget_entries(entry_ids)

    def _on_completed(self, completions: list[Completion], flags: list[bool]) -> None:
        self._on_acked([completion.entry_id for completion in completions], flags)
        # Only after the ack: the cancel request must outlive a crash before it.
        self._cleared_cancels.items += self._state.cancellations.pop_requests(
            completion.job_id for completion in completions if completion.dead
        )

    def _on_rescheduled(self, rescheduled: list[RescheduledEntry], flags: list[bool]) -> None:
        self._on_acked([entry.row[0] for entry in rescheduled], flags)
        retries = [
            entry for entry, owned in zip(rescheduled, flags, strict=True) if owned and entry.failed
        ]
        for name, count in Counter(entry.job_name for entry in retries).items():
            self._state.metrics.retried[name] += count
        if self.events_enabled:
            self.emit_encoded(*[encode_event(entry.event) for entry in retries if entry.event])

    def _on_dead_lettered(
        self, dead_letters: list[tuple[NewDeadLetter, int]], flags: list[bool]
    ) -> None:
        self._on_acked([dead_letter.entry_id for dead_letter, _ in dead_letters], flags)
        for (dead_letter, attempt), owned in zip(dead_letters, flags, strict=True):
            if owned:
                job_name, reason = dead_letter.job_name, dead_letter.reason
                self._state.metrics.dead_lettered[reason, job_name] += 1
                self.emit(
                    event_fields(
                        "dlq",
                        dead_letter.job_id,
                        self._state.clock(),
                        job_name,
                        attempt=attempt,
                        reason=reason,
                    )
                )

    def _on_parked(self, parked: list[ParkedEntry], codes: list[int]) -> None:
        moved: dict[str, bool] = {}
        not_parked: list[tuple[StreamEntry, Handler]] = []
        for item, code in zip(parked, codes, strict=True):
            if code == flow_control.NOT_PAUSED:
                not_parked.append((item.entry, item.handler))
            else:
                moved[item.entry.id] = code == 1
        self._on_acked(list(moved), list(moved.values()))
        self._state.metrics.counts["parked"] += sum(moved.values())
        if not_parked:
            self.on_not_parked(not_parked)

    def _on_requeued(self, requeued: list[tuple[str, bytes, bytes]], flags: list[bool]) -> None:
        self._on_acked([entry_id for entry_id, _, _ in requeued], flags)
        self._state.metrics.counts["requeued"] += sum(flags)


def _encode_result(value: Any) -> bytes:
    """Return a result as MessagePack, or the reason why it cannot be stored.

    The job is completed in both cases.
    """
    try:
        result = encode_payload(value)
    except EncodeError as error:
        return encode_payload({"chasqui_error": str(error)})
    if len(result) > _MAX_RESULT_BYTES:
        return encode_payload(
            {
                "chasqui_error": f"the result has {len(result)} bytes; "
                f"at most {_MAX_RESULT_BYTES} are stored"
            }
        )
    return result
