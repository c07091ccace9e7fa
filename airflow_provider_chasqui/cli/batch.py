"""batch, batches: how far jobs are that were handed off together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from airflow_provider_chasqui.cli import show
from airflow_provider_chasqui.cli.server import AsJson, Limit, QueueName, Server, connected
from airflow_provider_chasqui.cli.show import Column
from airflow_provider_chasqui.cli.spans import iso, short, span
from airflow_provider_chasqui.core.batch import BatchProgress, check_batch_id
from airflow_provider_chasqui.core.errors import BatchFailed, UnknownBatch, WaitTimeout
from airflow_provider_chasqui.core.ops import batches as ops
from airflow_provider_chasqui.core.ops import browsing
from airflow_provider_chasqui.queue import Queue, wall_clock

_LOOK_S = 0.25


@connected
def batch(
    queue: QueueName,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the batch.")],
    server: Server,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every job has ended.")] = False,
    timeout: Annotated[
        timedelta,
        typer.Option(parser=span, metavar="SPAN", show_default="1h", help="How long to wait."),
    ] = timedelta(hours=1),
    dead: Annotated[
        int, typer.Option(metavar="N", min=0, max=1_000_000, help="Name up to N dead jobs.")
    ] = 0,
    json: AsJson = False,
) -> None:
    """Show how far a batch is. With --wait, exit code 1 says that jobs of it died."""
    check_batch_id(id)
    with server.queue(queue) as opened:
        progress = _follow(opened, id, timeout, quiet=json) if wait else opened.batch(id)
        ids = opened.dead_in_batch(id, limit=dead) if dead else []
    if json:
        show.as_json(facts(progress) | ({"dead_jobs": ids} if dead else {}))
    else:
        _print(progress, bar=not wait)
        for each in ids:
            show.say(f"dead: {each}", style="red")
    if wait and progress.dead:
        raise BatchFailed(
            f"{progress.dead} of {progress.total} jobs of batch {id!r} died; "
            f"see them with: chasqui dlq peek {queue} --batch {id}",
        )


def facts(progress: BatchProgress) -> dict[str, Any]:
    return asdict(progress) | {"finished": progress.finished, "left": progress.left}


def _follow(queue: Queue, batch_id: str, timeout: timedelta, *, quiet: bool) -> BatchProgress:
    """Look until it is finished, with a bar on a terminal."""
    out = show.console(err=True)
    if quiet or not out.is_terminal:
        return list(_looks(queue, batch_id, timeout))[-1]
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
    more = [TimeRemainingColumn()] if out.width >= 80 else []
    with Progress(*columns, *more, console=out, transient=True) as shown:
        task = shown.add_task(show.clean(f"batch {show.cut(batch_id, 26)}"), total=None)
        for now in _looks(queue, batch_id, timeout):
            shown.update(task, total=now.total, completed=now.settled)
        return now


def _looks(queue: Queue, batch_id: str, timeout: timedelta) -> Iterator[BatchProgress]:
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        now = queue.batch(batch_id)
        yield now
        if now.finished:
            return
        if time.monotonic() >= deadline:
            raise WaitTimeout(
                f"the batch {batch_id!r} did not end within {timeout.total_seconds():g} s: "
                f"{now.done} done and {now.dead} dead of {now.total or 'an unknown number'}",
                queue=queue.name,
            )
        time.sleep(_LOOK_S)


def _print(now: BatchProgress, *, bar: bool) -> None:
    out = show.console()
    total = now.total
    if bar and total:
        width = max(10, min(50, out.width - 30))
        full = width * now.settled // total
        line = Text("━" * full, style="red" if now.dead else "green")
        line.append("─" * (width - full), style="dim")
        out.print(line.append(f" {now.settled / total:.0%} {now.settled}/{total}", style=""))
    age_ms = None if now.created_at_ms is None else wall_clock() - now.created_at_ms
    out.print(
        show.facts(
            [
                ("batch", now.id),
                ("state", _state(now)),
                ("total", "not yet known" if total is None else total),
                ("done", now.done),
                ("dead", Text(str(now.dead), style="red" if now.dead else "")),
                ("left", "-" if now.left is None else now.left),
                ("parts", now.parts),
                ("created", f"{iso(now.created_at_ms)} ({short(age_ms)} ago)"),
                *([("source", now.source)] if now.source else []),
            ]
        )
    )


def _state(now: BatchProgress) -> str:
    if now.total is None:
        return f"being sent: {now.sent} so far"
    return "finished" if now.finished else "under way"


@connected
def batches(queue: QueueName, server: Server, limit: Limit = 100, json: AsJson = False) -> None:
    """List the batches of a queue, newest first. Looks through all keys of the server."""
    with server.queue(queue) as opened:
        ids = opened.drive.flow(browsing.batch_ids(opened.keys, limit))
        found = [each for batch_id in ids if (each := _progress(opened, batch_id)) is not None]
    found.sort(key=lambda each: each.created_at_ms or 0, reverse=True)
    if json:
        show.as_json({"queue": queue, "batches": [facts(each) for each in found]})
        return
    if not found:
        show.say("no batches")
        return
    columns = [
        Column("batch"), Column("state"), Column("done", right=True),
        Column("dead", right=True), Column("total", right=True),
        Column("created", extra=True), Column("source", extra=True),
    ]  # fmt: skip
    show.table(
        columns,
        [
            (each.id, "finished" if each.finished else "being sent" if each.total is None
             else "under way", each.done, each.dead, "-" if each.total is None else each.total,
             iso(each.created_at_ms), each.source)
            for each in found
        ],
    )  # fmt: skip


def _progress(queue: Queue, batch_id: str) -> BatchProgress | None:
    try:
        return queue.drive.flow(ops.progress(queue.keys, batch_id))
    except UnknownBatch:
        return None
