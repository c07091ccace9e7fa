"""The steps of a worker, one at a time, for tests that decide when each happens."""

from __future__ import annotations

from typing import Any

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.codec import encode_job
from airflow_provider_chasqui.core.command import as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group, events
from airflow_provider_chasqui.core.event import event_fields
from airflow_provider_chasqui.core.job import StreamEntry
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.queue import Queue


def take(queue: Queue, count: int = 1000) -> list[StreamEntry]:
    """Read jobs as a worker does."""
    if not _group_exists(queue):
        queue.client.execute(consumer_group.create(queue.keys, "default"))
    command = consumer_group.read(queue.keys, "default", "w", count, 0)
    entries = [
        consumer_group.parse_entry(raw_entry, 2**30) for raw_entry in queue.client.execute(command)
    ]
    return [entry for entry in entries if isinstance(entry, StreamEntry)]


def _group_exists(queue: Queue) -> bool:
    groups = queue.client.execute(
        redis_command("XINFO", "GROUPS", queue.keys.stream, parse=as_raw, default_if_missing=list)
    )
    return bool(groups)


def finish(queue: Queue, entry: StreamEntry, result: Any = None, emit: bool = True) -> None:
    """Complete a job as this project's worker does: ack with bits and result, then the event."""
    payload = None if result is None else encode_payload(result)
    completion = consumer_group.Completion(
        entry.id, entry.job.id, payload, created_at_ms=entry.job.created_at_ms
    )
    command = consumer_group.ack_with_results(queue.keys, "default", [completion])
    assert queue.client.execute(command) == [True]
    if emit:
        emit_event(queue, "completed", entry.job.id)


def enlarge_batch(queue: Queue, batch_id: str, total: int) -> None:
    """Let a batch of one part claim to have more jobs, none of which is on the queue."""
    key = queue.keys.batch(batch_id)
    queue.client.execute(redis_command("HSET", key, "sent:0", total, "total", total, parse=as_int))


def finish_without_bits(queue: Queue, entry: StreamEntry) -> None:
    """Complete a job as a ChasquiMQ 1.3.0 worker does: the ack and the event, nothing else."""
    ack(queue, entry)
    emit_event(queue, "completed", entry.job.id)


def ack(queue: Queue, entry: StreamEntry) -> None:
    """Acknowledge a job and write nothing else."""
    command = consumer_group.ack(queue.keys, "default", [entry.id])
    assert queue.client.execute(command) == [True]


def move_to_dlq(queue: Queue, entry: StreamEntry, error: str = "boom", emit: bool = True) -> None:
    """Move a job to the dead-letter queue as this project's worker does."""
    dead_letter = consumer_group.NewDeadLetter(
        entry.id,
        encode_job(entry.job),
        entry.job.name,
        "unrecoverable",
        error=error,
        attempts=1,
        failed_at_ms=5,
        job_id=entry.job.id,
        created_at_ms=entry.job.created_at_ms,
    )
    command = consumer_group.move_to_dlq(queue.keys, "default", "w", [dead_letter])
    assert queue.client.execute(command) == [True]
    if emit:
        emit_event(queue, "dlq", entry.job.id, reason="unrecoverable")


def emit_event(queue: Queue, name: str, job_id: str, **extras: Any) -> None:
    fields = event_fields(name, job_id, current_time_ms(), **extras)
    queue.client.execute(events.emit(queue.keys, [fields]))


def trim_events(queue: Queue) -> None:
    queue.client.execute(redis_command("XTRIM", queue.keys.events, "MAXLEN", 0, parse=as_int))
