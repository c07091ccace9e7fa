"""`chasqui batch` and `chasqui batches`: the progress of batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.output import Column
from airflow_provider_chasqui.cli.parsing import parse_duration
from airflow_provider_chasqui.cli.server import (
    JsonOption,
    LimitOption,
    QueueNameArgument,
    Server,
    with_connection_options,
)
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.batch import BatchProgress, check_batch_id
from airflow_provider_chasqui.core.commands import batches, inspect
from airflow_provider_chasqui.core.durations import format_duration, format_timestamp
from airflow_provider_chasqui.core.errors import BatchFailed, BatchNotFound, WaitTimeout
from airflow_provider_chasqui.queue import Queue

_POLL_INTERVAL_S = 0.25


@with_connection_options
def show_batch(
    queue_name: QueueNameArgument,
    batch_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the batch.")],
    server: Server,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until all jobs are done or dead.")
    ] = False,
    timeout: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            show_default=False,
            help="Maximum wait. Default: 1h.",
        ),
    ] = timedelta(hours=1),
    show_dead: Annotated[
        int, typer.Option(metavar="N", min=0, max=1_000_000, help="List up to N dead jobs.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show the progress of a batch. With --wait, the exit code is 1 if a job died."""
    check_batch_id(batch_id)
    with server.open_queue(queue_name) as opened:
        progress = (
            _wait_with_progress_bar(opened, batch_id, timeout, quiet=as_json)
            if wait
            else opened.batch_progress(batch_id)
        )
        dead_job_ids = opened.dead_job_ids(batch_id, limit=show_dead) if show_dead else []
    if as_json:
        output.print_json(to_dict(progress) | ({"dead_job_ids": dead_job_ids} if show_dead else {}))
    else:
        _print_progress(progress, show_bar=not wait)
        for job_id in dead_job_ids:
            output.print_line(f"dead: {job_id}", style="red")
    if wait and progress.dead:
        raise batch_failed(progress, queue_name)


def batch_failed(progress: BatchProgress, queue_name: str) -> BatchFailed:
    """Return the error for a finished batch with dead jobs.

    :param progress: the progress of the batch.
    :param queue_name: the name of the queue.
    """
    return BatchFailed(
        f"{progress.dead} of {progress.total} jobs of batch {progress.batch_id!r} died; "
        f"list them with: chasqui dlq peek {queue_name} --batch-id {progress.batch_id}",
    )


def to_dict(progress: BatchProgress) -> dict[str, Any]:
    """Return the progress as JSON values."""
    return asdict(progress) | {"finished": progress.finished, "remaining": progress.remaining}


def _wait_with_progress_bar(
    queue: Queue, batch_id: str, timeout: timedelta, *, quiet: bool
) -> BatchProgress:
    """Poll until the batch is finished; on a terminal, show a progress bar."""
    out = output.console(err=True)
    if quiet or not out.is_terminal:
        return list(_poll_progress(queue, batch_id, timeout))[-1]
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
    optional = [TimeRemainingColumn()] if out.width >= 80 else []
    with Progress(*columns, *optional, console=out, transient=True) as bar:
        task = bar.add_task(
            output.escape_control(f"batch {output.truncate(batch_id, 26)}"), total=None
        )
        for progress in _poll_progress(queue, batch_id, timeout):
            bar.update(task, total=progress.total, completed=progress.processed)
        return progress


def _poll_progress(queue: Queue, batch_id: str, timeout: timedelta) -> Iterator[BatchProgress]:
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        progress = queue.batch_progress(batch_id)
        yield progress
        if progress.finished:
            return
        if time.monotonic() >= deadline:
            raise WaitTimeout(
                f"batch {batch_id!r} did not finish within {timeout.total_seconds():g} s: "
                f"{progress.done} done and {progress.dead} dead of "
                f"{progress.total or 'an unknown number'}",
                queue_name=queue.name,
            )
        time.sleep(_POLL_INTERVAL_S)


def _print_progress(progress: BatchProgress, *, show_bar: bool) -> None:
    out = output.console()
    total = progress.total
    if show_bar and total:
        width = max(10, min(50, out.width - 30))
        filled = width * progress.processed // total
        line = Text("━" * filled, style="red" if progress.dead else "green")
        line.append("─" * (width - filled), style="dim")
        out.print(
            line.append(f" {progress.processed / total:.0%} {progress.processed}/{total}", style="")
        )
    age_ms = None if progress.created_at_ms is None else current_time_ms() - progress.created_at_ms
    out.print(
        output.key_value_table(
            [
                ("batch", progress.batch_id),
                ("state", _describe_state(progress)),
                ("total", "not yet known" if total is None else total),
                ("done", progress.done),
                ("dead", Text(str(progress.dead), style="red" if progress.dead else "")),
                ("remaining", "-" if progress.remaining is None else progress.remaining),
                ("parts", progress.parts),
                (
                    "created",
                    f"{format_timestamp(progress.created_at_ms)} ({format_duration(age_ms)} ago)",
                ),
                *([("source", progress.source)] if progress.source else []),
            ]
        )
    )


def _describe_state(progress: BatchProgress) -> str:
    if progress.total is None:
        return f"enqueueing: {progress.enqueued} so far"
    return "finished" if progress.finished else "running"


@with_connection_options
def list_batches(
    queue_name: QueueNameArgument,
    server: Server,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the batches of a queue, newest first. Scans all keys of the server."""
    with server.open_queue(queue_name) as opened:
        ids = opened.client.run_flow(inspect.list_batch_ids(opened.keys, limit))
        progresses = [
            progress
            for batch_id in ids
            if (progress := _progress_or_none(opened, batch_id)) is not None
        ]
    progresses.sort(key=lambda progress: progress.created_at_ms or 0, reverse=True)
    if as_json:
        output.print_json(
            {"queue_name": queue_name, "batches": [to_dict(progress) for progress in progresses]}
        )
        return
    if not progresses:
        output.print_line("no batches")
        return
    columns = [
        Column("batch"),
        Column("state"),
        Column("done", align_right=True),
        Column("dead", align_right=True),
        Column("total", align_right=True),
        Column("created", optional=True),
        Column("source", optional=True),
    ]
    output.print_table(columns, [_list_row(progress) for progress in progresses])


def _list_row(progress: BatchProgress) -> tuple[object, ...]:
    return (
        progress.batch_id,
        "enqueueing" if progress.total is None else _describe_state(progress),
        progress.done,
        progress.dead,
        "-" if progress.total is None else progress.total,
        format_timestamp(progress.created_at_ms),
        progress.source,
    )


def _progress_or_none(queue: Queue, batch_id: str) -> BatchProgress | None:
    try:
        return queue.client.run_flow(batches.progress(queue.keys, batch_id))
    except BatchNotFound:
        return None
