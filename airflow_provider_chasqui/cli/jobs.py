"""jobs, job, cancel: jobs one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
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
from airflow_provider_chasqui.core.commands import inspect
from airflow_provider_chasqui.core.commands.inspect import DelayedRow, JobRow
from airflow_provider_chasqui.core.durations import format_duration, format_timestamp
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument, JobNotFound
from airflow_provider_chasqui.core.event import Event
from airflow_provider_chasqui.core.ids import ulid_timestamp_ms
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.queue import Queue

_EVENTS_PAGE_SIZE = 10_000
_CLOCK_SKEW_MS = 3_600_000

JobIdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]


class JobState(StrEnum):
    """Where jobs are that have not ended."""

    all = "all"
    waiting = "waiting"
    running = "running"
    delayed = "delayed"


def read_payload(job: Job | None) -> tuple[Any, str | None]:
    """Return the payload, or None and why it cannot be read."""
    if job is None:
        return None, "the entry cannot be read"
    try:
        return job.payload, None
    except DecodeError as error:
        return None, error.message


def job_to_dict(job: Job) -> dict[str, Any]:
    payload, problem = read_payload(job)
    facts = {
        "id": job.id,
        "name": job.name,
        "attempt": job.attempt,
        "created_at_ms": job.created_at_ms,
        "payload": payload,
    }
    return facts if problem is None else facts | {"payload_error": problem}


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in the list; `place` is what the next page goes on behind."""

    cursor: str
    row: JobRow | DelayedRow

    @property
    def state(self) -> str:
        return self.row.state if isinstance(self.row, JobRow) else "delayed"


def _list_page(
    queue: Queue, group: str, state: JobState, after: str | None, limit: int
) -> list[ListedJob]:
    keys, drive = queue.keys, queue.client
    if state is JobState.running:
        page = drive.run_flow(inspect.running_jobs_page(keys, group, after, limit))
        return [ListedJob(row.entry_id, row) for row in page.rows]
    if state is JobState.waiting:
        page = drive.run_flow(inspect.jobs_page(keys, group, after, limit, waiting=True))
        return [ListedJob(row.entry_id, row) for row in page.rows]
    if state is JobState.delayed:
        if after is not None and not (after.isascii() and after.isdecimal()):
            raise InvalidArgument("--after of delayed jobs is a number, as the page before said it")
        first = 0 if after is None else int(after) + 1
        rows = drive.run_flow(inspect.delayed_jobs_page(keys, first, limit))
        return [ListedJob(str(rank), row) for rank, row in enumerate(rows, first)]
    found: list[ListedJob] = []
    for each in (JobState.running, JobState.waiting, JobState.delayed):
        found += (
            _list_page(queue, group, each, None, limit - len(found)) if len(found) < limit else []
        )
    return found


@with_connection_options
def list_jobs(
    queue_name: QueueNameArgument,
    server: Server,
    state: Annotated[JobState, typer.Option(help="Which jobs.")] = JobState.all,
    limit: LimitOption = 20,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on behind this place (with --state).")
    ] = None,
    group: GroupOption = "default",
    as_json: JsonOption = False,
) -> None:
    """List jobs that have not ended: running, waiting, delayed; a page at a time."""
    if after is not None and state is JobState.all:
        raise InvalidArgument("--after needs --state: each state has pages of its own")
    with server.open_queue(queue_name, group) as opened:
        found = _list_page(opened, group, state, after, limit)
    more = found[-1].cursor if len(found) == limit and state is not JobState.all else None
    if as_json:
        output.print_json(
            {
                "queue": queue_name,
                "jobs": [_listed_job_to_dict(each) for each in found],
                "next": more,
            }
        )
        return
    if not found:
        output.print_line("no jobs" if state is JobState.all else f"no {state} jobs")
        return
    columns = [
        Column("state"), Column("id"), Column("name"),
        Column("attempt", align_right=True, optional=True), Column("age", align_right=True),
        Column("where", optional=True), Column("payload", flexible=True),
    ]  # fmt: skip
    output.print_table(columns, [_row(each) for each in found])
    if more is not None:
        output.print_line(f"more: --state {state} --after {more}", style="dim")


def _listed_job_to_dict(listed: ListedJob) -> dict[str, Any]:
    facts: dict[str, Any] = {"state": listed.state, "cursor": listed.cursor}
    if listed.row.job is None:
        facts["payload_error"] = read_payload(None)[1]
    else:
        facts |= job_to_dict(listed.row.job)
    for name in ("due_ms", "consumer", "idle_ms", "deliveries"):
        value = getattr(listed.row, name, None)
        if value is not None:
            facts[name] = value
    return facts


def _row(listed: ListedJob) -> tuple[object, ...]:
    job = listed.row.job
    payload, problem = read_payload(job)
    if isinstance(listed.row, DelayedRow):
        due = listed.row.due_ms - current_time_ms()
        where = "due now" if due <= 0 else f"due in {format_duration(due)}"
    else:
        where = truncate(listed.row.consumer or "", 14)
    return (
        listed.state,
        job.id if job else listed.cursor,
        job.name or "-" if job else "-",
        job.attempt if job else "-",
        format_duration(max(0, current_time_ms() - job.created_at_ms)) if job else "-",
        where,
        f"({problem})" if problem else truncate(compact_json(payload), 200),
    )


@with_connection_options
def show_job(
    queue_name: QueueNameArgument,
    job_id: JobIdArgument,
    server: Server,
    group: GroupOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Show one job: where it is, its result and progress, and what happened to it."""
    with server.open_queue(queue_name, group) as opened:
        found = opened.job_status(job_id)
        kept, result = opened.client.execute(inspect.get_result(opened.keys, job_id))
        progress = opened.progress(job_id)
        letters = opened.dead_letters(job_ids=[job_id], limit=1, newest_first=True)
        events = list(_job_events(opened, job_id))
    if found.state == "unknown" and not events and not letters:
        raise JobNotFound("no trace of the job is left", queue_name=queue_name, job_id=job_id)
    facts: dict[str, Any] = {"id": job_id, "queue": queue_name, "state": found.state}
    source = found.job or (letters[0].job if letters else None)
    if source is not None:
        facts |= job_to_dict(source)
    if found.due_ms is not None:
        facts["due_ms"] = found.due_ms
    if found.reason:
        facts["reason"] = found.reason
    if letters:
        facts |= {"error": letters[0].error or letters[0].detail, "dlq_id": letters[0].id}
    if progress is not None:
        facts["progress"] = progress
    if kept:
        facts["result"] = result
    facts["events"] = [event_to_dict(each) for each in events]
    if as_json:
        output.print_json(facts)
    else:
        _print_job(facts, events)


def _print_job(fields: dict[str, Any], events: list[Event]) -> None:
    pairs: list[tuple[str, object]] = []
    for name, value in fields.items():
        if name == "events" or (name == "name" and not value):
            continue
        if name in ("payload", "result", "progress"):
            value = truncate(compact_json(value), 2000)
        elif name.endswith("_ms"):
            name, value = name.removesuffix("_ms").replace("_", " "), format_timestamp(value)
        pairs.append((name.replace("_", " "), value))
    output.console().print(output.key_value_table(pairs))
    if not events:
        output.print_line("no events are kept of it", style="dim")
        return
    output.print_line("")
    start = events[0].ts_ms
    columns = [
        Column("at", optional=True), Column("after", align_right=True), Column("event"),
        Column("detail", flexible=True),
    ]  # fmt: skip
    table = [
        (
            format_timestamp(each.ts_ms),
            f"+{format_duration(each.ts_ms - start)}",
            each.name,
            format_event_fields(each),
        )
        for each in events
    ]
    output.print_table(columns, table)


def _job_events(queue: Queue, job_id: str) -> Iterator[Event]:
    minted_ms = ulid_timestamp_ms(job_id)
    place = "0-0" if minted_ms is None else f"{max(0, minted_ms - _CLOCK_SKEW_MS)}-0"
    while events := queue.events(after=place, limit=_EVENTS_PAGE_SIZE):
        yield from (each for each in events if each.job_id == job_id)
        place = events[-1].entry_id


_EVENT_FIELDS = ("attempt", "backoff_ms", "delay_ms", "duration_us", "reason")


def event_to_dict(event: Event) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "event": event.name, "id": event.job_id, "ts": event.ts_ms, "entry_id": event.entry_id,
    }  # fmt: skip
    if event.job_name:
        facts["name"] = event.job_name
    extras = ((name, getattr(event, name)) for name in _EVENT_FIELDS)
    return facts | {name: value for name, value in extras if value is not None}


def format_event_fields(event: Event, *, include_name: bool = False) -> str:
    """The event's extras as sorted k=v pairs, long values cut."""
    extras = ((key, getattr(event, key)) for key in _EVENT_FIELDS)
    own = [("name", event.job_name)] if include_name and event.job_name else []
    pairs = sorted(chain(own, ((key, value) for key, value in extras if value is not None)))
    return " ".join(f"{key}={truncate(str(value), 80)}" for key, value in pairs)


@with_connection_options
def cancel(
    queue_name: QueueNameArgument,
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of jobs.")],
    server: Server,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs: delayed ones at once; of others, ask the workers to drop or stop them."""
    with server.open_queue(queue_name) as opened:
        answers = {job_id: opened.cancel(job_id) for job_id in job_ids}
    if as_json:
        output.print_json({"queue": queue_name, "cancelled": answers})
        return
    for job_id, answer in answers.items():
        said = "cancelled" if answer == "cancelled" else "workers are asked to drop or stop it"
        output.print_line(f"{job_id}: {said}")
