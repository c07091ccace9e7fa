"""events: what happens on a queue, as it happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.jobs import event_to_dict, format_event_fields
from airflow_provider_chasqui.cli.parsing import format_timestamp
from airflow_provider_chasqui.cli.server import (
    JsonOption,
    QueueNameArgument,
    Server,
    with_connection_options,
)
from airflow_provider_chasqui.core.commands import events as event_commands
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.event import EVENT_NAMES, Event
from airflow_provider_chasqui.queue import Queue

_BLOCK_MS = 1000
_PAGE_SIZE = 1000


@with_connection_options
def follow_events(
    queue_name: QueueNameArgument,
    server: Server,
    start: Annotated[
        str, typer.Option("--from", metavar="ID", help="$: new ones only; 0: all that are kept.")
    ] = "$",
    job_id: Annotated[str | None, typer.Option(metavar="ID", help="Only of this job.")] = None,
    event: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only these, as completed or dlq.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="End after so many; 0: never.")
    ] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for more.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Follow the events of a queue, one line each, until Ctrl-C."""
    unknown = sorted(set(event or ()) - EVENT_NAMES)
    if unknown:
        raise InvalidArgument(
            f"there is no event {unknown[0]!r}; there are {', '.join(sorted(EVENT_NAMES))}"
        )
    left = limit
    with server.open_queue(queue_name) as opened:
        for each in _read_events(opened, _resolve_start(opened, start), follow):
            if (job_id is not None and each.job_id != job_id) or (event and each.name not in event):
                continue
            if as_json:
                output.print_json(event_to_dict(each), single_line=True)
            else:
                output.write_line(format_event(each))
            left -= 1
            if left == 0:
                return


def _resolve_start(queue: Queue, start: str) -> str:
    # Asked for once: a "$" in every blocking read would miss what is written between two of them.
    if start == "$":
        return queue.last_event_id()
    first, dash, second = start.partition("-")
    numbers = [first, second] if dash else [first]
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in numbers):
        raise InvalidArgument("--from is $, 0 or the id of an event, as 1777900899221-0")
    return f"{first}-{second or 0}"


def _read_events(queue: Queue, cursor: str, follow: bool) -> Iterator[Event]:
    while True:
        if follow:
            found = queue.client.execute(
                event_commands.wait_for_events(queue.keys, cursor, _PAGE_SIZE, _BLOCK_MS)
            )
        elif not (found := queue.events(after=cursor, limit=_PAGE_SIZE)):
            return
        yield from found
        cursor = found[-1].entry_id if found else cursor


def format_event(event: Event) -> str:
    """An event as ChasquiMQ's CLI prints it: time, entry, event, id, then sorted k=v."""
    head = f"{format_timestamp(event.ts_ms)} {event.entry_id} {event.name} id={event.job_id or '-'}"
    return output.escape_control(f"{head} {format_event_fields(event, include_name=True)}".rstrip())
