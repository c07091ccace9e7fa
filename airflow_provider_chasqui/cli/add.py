"""add: hand off a job, or a batch of them, from the shell."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from airflow_provider_chasqui.cli import show
from airflow_provider_chasqui.cli.server import AsJson, QueueName, Server, connected
from airflow_provider_chasqui.cli.spans import moment, payload, span
from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.plan import JobOptions
from airflow_provider_chasqui.core.policy import RetryPolicy
from airflow_provider_chasqui.queue import Queue

Span = Annotated[
    timedelta | None,
    typer.Option(parser=span, metavar="SPAN", help="Run it after this long, as 30s or 1h30m."),
]
Moment = Annotated[
    datetime | None,
    typer.Option(parser=moment, metavar="TIME", help="Run it at this moment (ISO 8601)."),
]


@connected
def add(
    queue: QueueName,
    server: Server,
    data: Annotated[
        str, typer.Argument(metavar="PAYLOAD", help="The payload, in JSON; - reads it.")
    ] = "null",
    name: Annotated[str, typer.Option(help="Which handler runs it.")] = "",
    id: Annotated[str | None, typer.Option(help="An id of your own.")] = None,
    delay: Span = None,
    at: Moment = None,
    unique: Annotated[
        timedelta | None,
        typer.Option(parser=span, metavar="SPAN", help="Keep --id taken for this long."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=2**32 - 1, help="Overrides the worker's.")
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A batch: each line of FILE (- is stdin) is a payload."),
    ] = None,
    batch_id: Annotated[
        str | None,
        typer.Option(help="Id of the batch: sent again, it goes on where it stopped."),
    ] = None,
    wait: Annotated[
        timedelta | None,
        typer.Option(parser=span, metavar="SPAN", help="Wait so long for the end."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Add a job, or with --lines a batch of jobs."""
    retry = None if max_attempts is None else RetryPolicy(max_attempts)
    if lines is not None:
        if id is not None or unique is not None or data != "null":
            raise BadInput("--lines takes its payloads from the file, and no --id or --unique")
        given = {"name": name or None, "delay": delay, "at": at, "retry": retry}
        options: Any = {key: value for key, value in given.items() if value is not None}
        with server.queue(queue) as opened:
            _add_lines(opened, lines, batch_id, options, wait, json)
        return
    if batch_id is not None:
        raise BadInput("--batch-id goes with --lines")
    if unique is not None and id is None:
        raise BadInput("--unique keeps an id taken: give it with --id")
    value = payload(sys.stdin.read() if data == "-" else data)
    with server.queue(queue) as opened:
        added = opened.add(value, name=name, id=id, delay=delay, at=at, retry=retry, unique=unique)
        answer: dict[str, Any] = {"queue": queue, "id": added.id, "fresh": added.fresh}
        if wait is not None:
            answer["result"] = opened.wait(added.id, timeout=wait)
    if json:
        show.as_json(answer)
        return
    show.line_out(show.clean(added.id) + ("" if added.fresh else " (was there already)"))
    if wait is not None:
        show.say(f"done: {show.compact(answer['result'])}")


def _add_lines(
    queue: Queue, file: Path, batch_id: str | None, options: JobOptions,
    wait: timedelta | None, json: bool,
) -> None:  # fmt: skip
    if str(file) == "-":
        batch = queue.add_batch(payloads(sys.stdin), batch_id=batch_id, **options)
    else:
        try:
            with file.open(encoding="utf-8") as opened:
                # Twice, so that a bad line is found before the first job is sent.
                for _ in payloads(opened):
                    pass
                opened.seek(0)
                batch = queue.add_batch(payloads(opened), batch_id=batch_id, **options)
        except (OSError, UnicodeError, ValueError) as cause:
            if isinstance(cause, BadInput):
                raise
            raise BadInput(f"cannot read {str(file)!r}: {cause}") from cause
    progress = queue.wait_batch(batch.id, timeout=wait) if wait is not None else None
    if json:
        ended = {} if progress is None else {"done": progress.done, "dead": progress.dead}
        show.as_json({"queue": queue.name, "batch": batch.id, "total": batch.total} | ended)
        return
    show.say(f"batch {batch.id}: {batch.total} jobs handed off")
    if progress is not None:
        show.say(f"{progress.done} done, {progress.dead} dead")


def payloads(stream: TextIO | Iterable[str]) -> Iterator[Any]:
    """Each line that is not blank, as JSON."""
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            yield jsons.loads(line)
        except (ValueError, RecursionError) as cause:
            raise BadInput(f"line {number} is not JSON: {cause}") from None
