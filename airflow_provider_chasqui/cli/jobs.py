"""The commands `jobs`, `job` and `cancel`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.output import Column, compact_json, truncate
from airflow_provider_chasqui.cli.server import (
    GroupOption,
    JsonOption,
    LimitOption,
    QueueNameArgument,
    Server,
    with_connection_options,
)
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands import events as event_commands
from airflow_provider_chasqui.core.commands import inspect, results
from airflow_provider_chasqui.core.commands.inspect import DelayedRow, JobRow
from airflow_provider_chasqui.core.durations import format_duration, format_timestamp
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument, JobNotFound
from airflow_provider_chasqui.core.event import Event
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.queue import Queue

JobIdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]
_EVENT_FIELDS = ("attempt", "backoff_ms", "delay_ms", "duration_us", "reason")


class JobState(StrEnum):
    """States of jobs that have not finished."""

    all = "all"
    waiting = "waiting"
    running = "running"
    delayed = "delayed"


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in a list. The next page continues after `cursor`."""

    cursor: str
    row: JobRow | DelayedRow

    @property
    def state(self) -> str:
        """`waiting`, `running` or `delayed`."""
        return self.row.state if isinstance(self.row, JobRow) else "delayed"


@with_connection_options
def list_jobs(
    queue_name: QueueNameArgument,
    server: Server,
    state: Annotated[JobState, typer.Option(help="Filter by state.")] = JobState.all,
    limit: LimitOption = 20,
    after: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Continue after this cursor (needs --state)."),
    ] = None,
    group: GroupOption = "default",
    as_json: JsonOption = False,
) -> None:
    """List a page of jobs that have not finished: running, waiting and delayed ones."""
    if after is not None and state is JobState.all:
        raise InvalidArgument(
            "--after needs --state, because each state has its own pages; add --state running, "
            "waiting or delayed"
        )
    if state is JobState.delayed and after and not (after.isascii() and after.isdecimal()):
        raise InvalidArgument(
            f"--after must be an integer for delayed jobs, not {after!r}; use the cursor "
            "printed with the previous page"
        )
    with server.open_existing_queue(queue_name, group) as queue:
        jobs = _list_page(queue, group, state, after, limit)
    next_cursor = jobs[-1].cursor if len(jobs) == limit and state is not JobState.all else None
    if as_json:
        output.print_json(
            {
                "queue_name": queue_name,
                "jobs": [_listed_job_to_dict(job) for job in jobs],
                "next": next_cursor,
            }
        )
        return
    if not jobs:
        output.print_line("no jobs" if state is JobState.all else f"no {state} jobs")
        return
    columns = [
        Column("state"),
        Column("id"),
        Column("name"),
        Column("attempt", align_right=True, optional=True),
        Column("age", align_right=True),
        Column("where", optional=True),
        Column("payload", flexible=True),
    ]
    output.print_table(columns, [_row(job) for job in jobs])
    if next_cursor is not None:
        output.print_line(f"more: --state {state} --after {next_cursor}", style="dim")


def _list_page(
    queue: Queue, group: str, state: JobState, after: str | None, limit: int
) -> list[ListedJob]:
    keys, client = queue.keys, queue.client
    listed: list[ListedJob] = []
    if state in (JobState.running, JobState.waiting):
        # A page may have fewer rows than requested, because its size is limited as well.
        while (count := limit - len(listed)) > 0:
            if state is JobState.running:
                flow = inspect.running_jobs_page(keys, group, after, count)
            else:
                flow = inspect.jobs_page(keys, group, after, count, waiting=True)
            page = client.run_flow(flow)
            listed += [ListedJob(row.entry_id, row) for row in page.rows]
            after = page.next_cursor
            if after is None:
                break
        return listed
    if state is JobState.delayed:
        rank: int | None = 0 if after is None else int(after) + 1
        while rank is not None and len(listed) < limit:
            delayed_page = client.run_flow(
                inspect.delayed_jobs_page(keys, rank, limit - len(listed))
            )
            listed += [ListedJob(str(n), row) for n, row in enumerate(delayed_page.rows, rank)]
            rank = delayed_page.next_start
        return listed
    jobs: list[ListedJob] = []
    for job_state in (JobState.running, JobState.waiting, JobState.delayed):
        if len(jobs) < limit:
            jobs += _list_page(queue, group, job_state, None, limit - len(jobs))
    return jobs


def _listed_job_to_dict(listed: ListedJob) -> dict[str, Any]:
    fields: dict[str, Any] = {"state": listed.state, "cursor": listed.cursor}
    if listed.row.job is None:
        fields["payload_error"] = read_payload(None)[1]
    else:
        fields |= job_to_dict(listed.row.job)
    for name in ("due_ms", "consumer", "idle_ms", "deliveries"):
        value = getattr(listed.row, name, None)
        if value is not None:
            fields[name] = value
    return fields


def _row(listed: ListedJob) -> tuple[object, ...]:
    job = listed.row.job
    payload, payload_error = read_payload(job)
    if isinstance(listed.row, DelayedRow):
        remaining_ms = listed.row.due_ms - current_time_ms()
        where = "due now" if remaining_ms <= 0 else f"due in {format_duration(remaining_ms)}"
    else:
        where = truncate(listed.row.consumer or "", 14)
    return (
        listed.state,
        job.id if job else listed.cursor,
        job.name or "-" if job else "-",
        job.attempt + 1 if job else "-",
        format_duration(max(0, current_time_ms() - job.created_at_ms)) if job else "-",
        where,
        f"({payload_error})" if payload_error else truncate(compact_json(payload), 200),
    )


def read_payload(job: Job | None) -> tuple[Any, str | None]:
    """Return the payload of a job and None, or None and the reason why it is not readable.

    :param job: the job, or None if its entry is not readable.
    """
    if job is None:
        return None, "the entry is not readable"
    try:
        return job.payload, None
    except DecodeError as error:
        return None, error.message


def job_to_dict(job: Job) -> dict[str, Any]:
    """Return a job as JSON values, with its payload. The attempt counts from 1.

    :param job: the job.
    """
    payload, payload_error = read_payload(job)
    fields = {
        "id": job.id,
        "name": job.name,
        "attempt": job.attempt + 1,
        "created_at_ms": job.created_at_ms,
        "payload": payload,
    }
    return fields if payload_error is None else fields | {"payload_error": payload_error}


@with_connection_options
def show_job(
    queue_name: QueueNameArgument,
    job_id: JobIdArgument,
    server: Server,
    group: GroupOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Show one job: its state, result, progress and events."""
    with server.open_existing_queue(queue_name, group) as queue:
        status = queue.job_status(job_id)
        has_result, result = queue.client.run_flow(results.get_result(queue.keys, job_id))
        progress = queue.progress(job_id)
        dead_letters = queue.dead_letters(job_ids=[job_id], limit=1, newest_first=True)
        timeline = queue.client.run_flow(event_commands.job_timeline(queue.keys, job_id))
    if status.state == "unknown" and not timeline.events and not dead_letters:
        raise JobNotFound(
            "the job does not exist, or has finished and its result and events have expired",
            queue_name=queue_name,
            job_id=job_id,
        )
    fields: dict[str, Any] = {"id": job_id, "queue_name": queue_name, "state": status.state}
    job = status.job or (dead_letters[0].job if dead_letters else None)
    if job is not None:
        fields |= job_to_dict(job)
    if status.due_ms is not None:
        fields["due_ms"] = status.due_ms
    if status.reason:
        fields["reason"] = status.reason
    if dead_letters:
        dead_letter = dead_letters[0]
        fields |= {"error": dead_letter.error or dead_letter.detail, "dlq_id": dead_letter.id}
    if progress is not None:
        fields["progress"] = progress
    if has_result:
        fields["result"] = result
    fields["events"] = [event_to_dict(event) for event in timeline.events]
    if as_json:
        output.print_json(fields)
    else:
        _print_job(fields, timeline.events)


def _print_job(fields: dict[str, Any], events: list[Event]) -> None:
    pairs: list[tuple[str, object]] = []
    for name, value in fields.items():
        if name == "events" or (name == "name" and not value):
            continue
        if name in ("payload", "result", "progress"):
            value = truncate(compact_json(value), 2000)
        elif name.endswith("_ms"):
            name, value = name.removesuffix("_ms"), format_timestamp(value)
        pairs.append((name.replace("_", " "), value))
    output.console().print(output.key_value_table(pairs))
    if not events:
        output.print_line("no events are stored for this job", style="dim")
        return
    output.print_line("")
    columns = [
        Column("at", optional=True),
        Column("after", align_right=True),
        Column("event"),
        Column("detail", flexible=True),
    ]
    rows = [
        (
            format_timestamp(event.ts_ms),
            f"+{format_duration(event.ts_ms - events[0].ts_ms)}",
            event.name,
            format_event_fields(event),
        )
        for event in events
    ]
    output.print_table(columns, rows)


def event_to_dict(event: Event) -> dict[str, Any]:
    """Return an event as JSON values.

    :param event: the event.
    """
    fields: dict[str, Any] = {
        "event": event.name,
        "id": event.job_id,
        "ts": event.ts_ms,
        "entry_id": event.entry_id,
    }
    if event.job_name:
        fields["name"] = event.job_name
    return fields | dict(_optional_fields(event))


def format_event_fields(event: Event, *, include_name: bool = False) -> str:
    """Return the optional fields of an event as sorted `key=value` pairs, long values truncated.

    :param event: the event.
    :param include_name: whether to include the job name.
    """
    pairs = _optional_fields(event)
    if include_name and event.job_name:
        pairs.append(("name", event.job_name))
    return " ".join(f"{key}={truncate(str(value), 80)}" for key, value in sorted(pairs))


def _optional_fields(event: Event) -> list[tuple[str, Any]]:
    values = ((name, getattr(event, name)) for name in _EVENT_FIELDS)
    return [(name, value) for name, value in values if value is not None]


@with_connection_options
def cancel(
    queue_name: QueueNameArgument,
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of the jobs.")],
    server: Server,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs. Delayed jobs are removed; other jobs are dropped or stopped by their worker.

    The exit code is 1 if a job does not exist or has finished.
    """
    with server.open_existing_queue(queue_name) as queue:
        results = {job_id: _cancel_one(queue, job_id) for job_id in job_ids}
    if as_json:
        output.print_json({"queue_name": queue_name, "cancelled": results})
    else:
        for job_id, result in results.items():
            output.print_line(f"{job_id}: {_CANCEL_TEXTS[result]}")
    if not all(result in _CANCELLED for result in results.values()):
        raise typer.Exit(1)


_CANCELLED = ("cancelled", "requested")
_CANCEL_TEXTS = {
    "cancelled": "cancelled",
    "requested": "requested: the workers will drop or stop it",
    "done": "not cancelled, because it is done",
    "dead": "not cancelled, because it is dead",
    "not_found": "not found",
}


def _cancel_one(queue: Queue, job_id: str) -> str:
    """Cancel a job unless it has finished; return a key of `_CANCEL_TEXTS`."""
    status = queue.job_status(job_id)
    if status.final:
        return status.state
    if status.state == "unknown" and status.exhaustive:
        return "not_found"
    return queue.cancel(job_id)
