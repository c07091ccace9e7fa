"""jobs, job, cancel: jobs one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any

import typer

from airflow_provider_chasqui.cli import show
from airflow_provider_chasqui.cli.server import (
    AsJson,
    Group,
    Limit,
    QueueName,
    Server,
    connected,
)
from airflow_provider_chasqui.cli.show import Column, compact, cut
from airflow_provider_chasqui.cli.spans import iso, short
from airflow_provider_chasqui.core.errors import BadInput, DecodeError, UnknownJob
from airflow_provider_chasqui.core.event import Event
from airflow_provider_chasqui.core.ids import time_of
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.ops import browsing, looking
from airflow_provider_chasqui.core.ops.browsing import DelayedRow, JobRow
from airflow_provider_chasqui.queue import Queue, wall_clock

_EVENTS_PAGE = 10_000
_SKEW_MS = 3_600_000

JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]


class State(StrEnum):
    """Where jobs are that have not ended."""

    every = "all"
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


def job_facts(job: Job) -> dict[str, Any]:
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
class Listed:
    """A job in the list; `place` is what the next page goes on behind."""

    place: str
    row: JobRow | DelayedRow

    @property
    def state(self) -> str:
        return self.row.state if isinstance(self.row, JobRow) else "delayed"


def _page(queue: Queue, group: str, state: State, after: str | None, limit: int) -> list[Listed]:
    keys, drive = queue.keys, queue.drive
    if state is State.running:
        page = drive.flow(browsing.running_page(keys, group, after, limit))
        return [Listed(row.entry_id, row) for row in page.rows]
    if state is State.waiting:
        page = drive.flow(browsing.jobs_page(keys, group, after, limit, waiting=True))
        return [Listed(row.entry_id, row) for row in page.rows]
    if state is State.delayed:
        if after is not None and not (after.isascii() and after.isdecimal()):
            raise BadInput("--after of delayed jobs is a number, as the page before said it")
        first = 0 if after is None else int(after) + 1
        rows = drive.flow(browsing.delayed_page(keys, first, limit))
        return [Listed(str(rank), row) for rank, row in enumerate(rows, first)]
    found: list[Listed] = []
    for each in (State.running, State.waiting, State.delayed):
        found += _page(queue, group, each, None, limit - len(found)) if len(found) < limit else []
    return found


@connected
def jobs(
    queue: QueueName,
    server: Server,
    state: Annotated[State, typer.Option(help="Which jobs.")] = State.every,
    limit: Limit = 20,
    after: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Go on behind this place (with --state).")
    ] = None,
    group: Group = "default",
    json: AsJson = False,
) -> None:
    """List jobs that have not ended: running, waiting, delayed; a page at a time."""
    if after is not None and state is State.every:
        raise BadInput("--after needs --state: each state has pages of its own")
    with server.queue(queue, group) as opened:
        found = _page(opened, group, state, after, limit)
    more = found[-1].place if len(found) == limit and state is not State.every else None
    if json:
        show.as_json({"queue": queue, "jobs": [_listed(each) for each in found], "next": more})
        return
    if not found:
        show.say("no jobs" if state is State.every else f"no {state} jobs")
        return
    columns = [
        Column("state"), Column("id"), Column("name"),
        Column("attempt", right=True, extra=True), Column("age", right=True),
        Column("where", extra=True), Column("payload", flex=True),
    ]  # fmt: skip
    show.table(columns, [_row(each) for each in found])
    if more is not None:
        show.say(f"more: --state {state} --after {more}", style="dim")


def _listed(each: Listed) -> dict[str, Any]:
    facts: dict[str, Any] = {"state": each.state, "place": each.place}
    if each.row.job is None:
        facts["payload_error"] = read_payload(None)[1]
    else:
        facts |= job_facts(each.row.job)
    for name in ("due_ms", "consumer", "idle_ms", "deliveries"):
        value = getattr(each.row, name, None)
        if value is not None:
            facts[name] = value
    return facts


def _row(each: Listed) -> tuple[object, ...]:
    job = each.row.job
    payload, problem = read_payload(job)
    if isinstance(each.row, DelayedRow):
        due = each.row.due_ms - wall_clock()
        where = "due now" if due <= 0 else f"due in {short(due)}"
    else:
        where = cut(each.row.consumer or "", 14)
    return (
        each.state,
        job.id if job else each.place,
        job.name or "-" if job else "-",
        job.attempt if job else "-",
        short(max(0, wall_clock() - job.created_at_ms)) if job else "-",
        where,
        f"({problem})" if problem else cut(compact(payload), 200),
    )


@connected
def job(
    queue: QueueName, id: JobId, server: Server, group: Group = "default", json: AsJson = False
) -> None:
    """Show one job: where it is, its result and progress, and what happened to it."""
    with server.queue(queue, group) as opened:
        found = opened.find(id)
        kept, result = opened.drive.run(looking.result(opened.keys, id))
        progress = opened.progress(id)
        letters = opened.letters(job_ids=[id], limit=1, newest_first=True)
        events = list(_timeline(opened, id))
    if found.state == "unknown" and not events and not letters:
        raise UnknownJob("no trace of the job is left", queue=queue, job_id=id)
    facts: dict[str, Any] = {"id": id, "queue": queue, "state": found.state}
    source = found.job or (letters[0].job if letters else None)
    if source is not None:
        facts |= job_facts(source)
    if found.due_ms is not None:
        facts["due_ms"] = found.due_ms
    if found.reason:
        facts["reason"] = found.reason
    if letters:
        facts |= {"error": letters[0].error or letters[0].detail, "letter": letters[0].id}
    if progress is not None:
        facts["progress"] = progress
    if kept:
        facts["result"] = result
    facts["events"] = [event_facts(each) for each in events]
    if json:
        show.as_json(facts)
    else:
        _print_job(facts, events)


def _print_job(facts: dict[str, Any], events: list[Event]) -> None:
    pairs: list[tuple[str, object]] = []
    for name, value in facts.items():
        if name == "events" or (name == "name" and not value):
            continue
        if name in ("payload", "result", "progress"):
            value = cut(compact(value), 2000)
        elif name.endswith("_ms"):
            name, value = name.removesuffix("_ms").replace("_", " "), iso(value)
        pairs.append((name.replace("_", " "), value))
    show.console().print(show.facts(pairs))
    if not events:
        show.say("no events are kept of it", style="dim")
        return
    show.say("")
    start = events[0].ts_ms
    columns = [
        Column("at", extra=True), Column("after", right=True), Column("event"),
        Column("detail", flex=True),
    ]  # fmt: skip
    table = [
        (iso(each.ts_ms), f"+{short(each.ts_ms - start)}", each.name, details(each))
        for each in events
    ]
    show.table(columns, table)


def _timeline(queue: Queue, job_id: str) -> Iterator[Event]:
    minted_ms = time_of(job_id)
    place = "0-0" if minted_ms is None else f"{max(0, minted_ms - _SKEW_MS)}-0"
    while events := queue.events(after=place, limit=_EVENTS_PAGE):
        yield from (each for each in events if each.job_id == job_id)
        place = events[-1].entry_id


_EXTRAS = ("attempt", "backoff_ms", "delay_ms", "duration_us", "reason")


def event_facts(event: Event) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "event": event.name, "id": event.job_id, "ts": event.ts_ms, "entry_id": event.entry_id,
    }  # fmt: skip
    if event.job_name:
        facts["name"] = event.job_name
    extras = ((name, getattr(event, name)) for name in _EXTRAS)
    return facts | {name: value for name, value in extras if value is not None}


def details(event: Event, *, name: bool = False) -> str:
    """The event's extras as sorted k=v pairs, long values cut."""
    extras = ((key, getattr(event, key)) for key in _EXTRAS)
    own = [("name", event.job_name)] if name and event.job_name else []
    pairs = sorted(chain(own, ((key, value) for key, value in extras if value is not None)))
    return " ".join(f"{key}={cut(str(value), 80)}" for key, value in pairs)


@connected
def cancel(
    queue: QueueName,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of jobs.")],
    server: Server,
    json: AsJson = False,
) -> None:
    """Cancel jobs: delayed ones at once; of others, ask the workers to drop or stop them."""
    with server.queue(queue) as opened:
        answers = {job_id: opened.cancel(job_id) for job_id in ids}
    if json:
        show.as_json({"queue": queue, "cancelled": answers})
        return
    for job_id, answer in answers.items():
        said = "cancelled" if answer == "cancelled" else "workers are asked to drop or stop it"
        show.say(f"{job_id}: {said}")
