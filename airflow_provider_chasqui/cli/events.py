"""events: what happens on a queue, as it happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from airflow_provider_chasqui.cli import show
from airflow_provider_chasqui.cli.jobs import details, event_facts
from airflow_provider_chasqui.cli.server import AsJson, QueueName, Server, connected
from airflow_provider_chasqui.cli.spans import iso
from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.event import NAMES, Event
from airflow_provider_chasqui.core.ops import looking
from airflow_provider_chasqui.queue import Queue

_BLOCK_MS = 1000
_PAGE = 1000


@connected
def events(
    queue: QueueName,
    server: Server,
    start: Annotated[
        str, typer.Option("--from", metavar="ID", help="$: new ones only; 0: all that are kept.")
    ] = "$",
    job: Annotated[str | None, typer.Option(metavar="ID", help="Only of this job.")] = None,
    event: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only these, as completed or dlq.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="End after so many; 0: never.")
    ] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for more.")] = True,
    json: AsJson = False,
) -> None:
    """Follow the events of a queue, one line each, until Ctrl-C."""
    unknown = sorted(set(event or ()) - NAMES)
    if unknown:
        raise BadInput(f"there is no event {unknown[0]!r}; there are {', '.join(sorted(NAMES))}")
    left = limit
    with server.queue(queue) as opened:
        for each in _events(opened, _place(opened, start), follow):
            if (job is not None and each.job_id != job) or (event and each.name not in event):
                continue
            if json:
                show.as_json(event_facts(each), line=True)
            else:
                show.line_out(line(each))
            left -= 1
            if left == 0:
                return


def _place(queue: Queue, start: str) -> str:
    # Asked for once: a "$" in every blocking read would miss what is written between two of them.
    if start == "$":
        return queue.events_tail()
    first, dash, second = start.partition("-")
    numbers = [first, second] if dash else [first]
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in numbers):
        raise BadInput("--from is $, 0 or the id of an event, as 1777900899221-0")
    return f"{first}-{second or 0}"


def _events(queue: Queue, place: str, follow: bool) -> Iterator[Event]:
    while True:
        if follow:
            found = queue.drive.run(looking.events_wait(queue.keys, place, _PAGE, _BLOCK_MS))
        elif not (found := queue.events(after=place, limit=_PAGE)):
            return
        yield from found
        place = found[-1].entry_id if found else place


def line(event: Event) -> str:
    """An event as ChasquiMQ's CLI prints it: time, entry, event, id, then sorted k=v."""
    head = f"{iso(event.ts_ms)} {event.entry_id} {event.name} id={event.job_id or '-'}"
    return show.clean(f"{head} {details(event, name=True)}".rstrip())
