"""`chasqui events`: print the events of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.jobs import event_to_dict, format_event_fields
from airflow_provider_chasqui.cli.server import (
    JsonOption,
    QueueNameArgument,
    Server,
    with_connection_options,
)
from airflow_provider_chasqui.core.commands import events as event_commands
from airflow_provider_chasqui.core.durations import format_timestamp
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.event import EVENT_NAMES, Event
from airflow_provider_chasqui.core.stream_id import StreamId
from airflow_provider_chasqui.queue import Queue

_BLOCK_MS = 1000
_PAGE_SIZE = 1000


@with_connection_options
def follow_events(
    queue_name: QueueNameArgument,
    server: Server,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ID",
            help="First event: $ for new ones only, 0 for all stored ones, or an event id.",
        ),
    ] = "$",
    job_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Only events of this job.")
    ] = None,
    event_names: Annotated[
        list[str] | None,
        typer.Option(
            "--event", metavar="NAME", help="Only these events, such as completed. Can be repeated."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="Exit after N events; 0 for no limit.")
    ] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for new events.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Print the events of a queue, one per line, until Ctrl-C."""
    unknown = sorted(set(event_names or ()) - EVENT_NAMES)
    if unknown:
        raise InvalidArgument(
            f"unknown event {unknown[0]!r}; the events are {', '.join(sorted(EVENT_NAMES))}"
        )
    remaining = limit
    with server.open_queue(queue_name) as opened:
        for event in _read_events(opened, _resolve_start(opened, start), follow):
            if job_id is not None and event.job_id != job_id:
                continue
            if event_names and event.name not in event_names:
                continue
            if as_json:
                output.print_json(event_to_dict(event), single_line=True)
            else:
                output.write_line(format_event(event))
            remaining -= 1
            if remaining == 0:
                return


def _resolve_start(queue: Queue, start: str) -> str:
    # Resolved once: "$" in every blocking read would miss events between two reads.
    if start == "$":
        return queue.last_event_id()
    try:
        return str(StreamId.parse(start))
    except InvalidArgument:
        raise InvalidArgument(
            f"--from must be $, 0 or the id of an event such as 1777900899221-0, not {start!r}"
        ) from None


def _read_events(queue: Queue, cursor: str, follow: bool) -> Iterator[Event]:
    while True:
        if follow:
            events = queue.client.execute(
                event_commands.wait_for_events(queue.keys, cursor, _PAGE_SIZE, _BLOCK_MS)
            )
        elif not (events := queue.events(after=cursor, limit=_PAGE_SIZE)):
            return
        yield from events
        cursor = events[-1].entry_id if events else cursor


def format_event(event: Event) -> str:
    """Return an event in the format of ChasquiMQ's CLI: time, entry id, name, job id, fields."""
    head = f"{format_timestamp(event.ts_ms)} {event.entry_id} {event.name} id={event.job_id or '-'}"
    return output.escape_control(f"{head} {format_event_fields(event, include_name=True)}".rstrip())
