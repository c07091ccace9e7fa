"""The commands `batch show`, `batch list`, `batch results` and `batch cancel`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    suggest,
    with_connection_options,
)
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.batch import BatchProgress, check_batch_id
from airflow_provider_chasqui.core.commands import batches, inspect
from airflow_provider_chasqui.core.durations import format_duration, format_timestamp
from airflow_provider_chasqui.core.errors import BatchFailed, BatchNotFound
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.result_files import (
    ResultColumns,
    ResultTarget,
    to_json_text,
    write_results,
)

_MAX_SUGGESTED_FROM = 1000
_CANCEL_TEXTS = {
    "cancelled": "cancelled; the workers drop or stop its unfinished jobs",
    "already_cancelled": "already cancelled",
    "finished": "not cancelled, because all its jobs have finished",
    "not_owner": "not cancelled, because it has another owner",
}


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
    """Show the progress of a batch. With --wait, exit with 1 if a job died or it is cancelled."""
    check_batch_id(batch_id)
    with server.open_existing_queue(queue_name) as opened, _suggesting_batches(opened, batch_id):
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


@contextmanager
def _suggesting_batches(queue: Queue, batch_id: str) -> Iterator[None]:
    """Name the batches with similar ids if the batch does not exist."""
    try:
        yield
    except BatchNotFound as error:
        ids = queue.client.run_flow(inspect.list_batch_ids(queue.keys, _MAX_SUGGESTED_FROM))
        error.add_note(suggest(batch_id, sorted(ids), f"chasqui batch list {queue.name}"))
        raise


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
    return asdict(progress) | {
        "finished": progress.finished,
        "cancelled": progress.cancelled,
        "remaining": progress.remaining,
    }


def _wait_with_progress_bar(
    queue: Queue, batch_id: str, timeout: timedelta, *, quiet: bool
) -> BatchProgress:
    """Wait until the batch is finished; on a terminal, show a progress bar."""
    out = output.console(err=True)
    if quiet or not out.is_terminal:
        return queue.wait_batch(batch_id, timeout=timeout)
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
    optional = [TimeRemainingColumn()] if out.width >= 80 else []
    with Progress(*columns, *optional, console=out, transient=True) as bar:
        task = bar.add_task(
            output.escape_control(f"batch {output.truncate(batch_id, 26)}"), total=None
        )

        def update(progress: BatchProgress) -> None:
            bar.update(task, total=progress.total, completed=progress.processed)

        return queue.wait_batch(batch_id, timeout=timeout, on_progress=update)


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
                *([("owner", progress.owner)] if progress.owner else []),
                *(
                    [("cancelled", format_timestamp(progress.cancelled_at_ms))]
                    if progress.cancelled
                    else []
                ),
            ]
        )
    )


def _describe_state(progress: BatchProgress) -> str:
    if progress.cancelled:
        return "cancelled"
    if progress.total is None:
        return f"enqueueing: {progress.enqueued} so far"
    return "finished" if progress.finished else "running"


@with_connection_options
def cancel_batch(
    queue_name: QueueNameArgument,
    batch_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the batch.")],
    server: Server,
    owner: Annotated[
        str | None,
        typer.Option(help="Cancel only if this is the owner of the batch.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a batch. Workers drop or stop its unfinished jobs. Exit with 1 if not the owner."""
    with server.open_existing_queue(queue_name) as queue, _suggesting_batches(queue, batch_id):
        result = queue.cancel_batch(batch_id, owner=owner)
    if as_json:
        output.print_json({"queue_name": queue_name, "batch_id": batch_id, "result": result})
    else:
        output.print_line(f"{batch_id}: {_CANCEL_TEXTS[result]}")
    if result == "not_owner":
        raise typer.Exit(1)


@with_connection_options
def write_batch_results(
    queue_name: QueueNameArgument,
    batch_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the batch.")],
    server: Server,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="File that ends with .parquet or .jsonl, or a directory for Parquet files, also "
            "on a storage such as s3://. Default: print JSON lines.",
            show_default=False,
        ),
    ] = None,
    failures: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="As --to, for the jobs that are not done. Then --to gets only those that are.",
            show_default=False,
        ),
    ] = None,
    key_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name of the column of the input key. Repeat it for several. Default: key.",
            show_default=False,
        ),
    ] = None,
    result_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the column result, such as float64, list<float32> or json. "
            "Default: inferred.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the results of a batch, in the order of its jobs. Unfinished jobs are pending."""
    check_batch_id(batch_id)
    names = key_column[0] if key_column and len(key_column) == 1 else key_column or None
    columns = ResultColumns(names, result_type)
    with server.open_queue(queue_name) as queue:
        if to is None and failures is None:
            for page in queue.batch_result_pages(batch_id):
                for row in columns.rows(page):
                    output.write_line(to_json_text(row))
            return
        written = write_results(
            lambda: queue.batch_result_pages(batch_id), columns, _target(to), _target(failures)
        )
    for path, files in zip((to, failures), written, strict=True):
        if files is not None:
            output.print_line(f"{path}: {files.rows} rows in {len(files.files)} file(s)")


def _target(path: str | None) -> ResultTarget | None:
    if path is None:
        return None
    from fsspec.core import url_to_fs

    return ResultTarget(*url_to_fs(path))


@with_connection_options
def list_batches(
    queue_name: QueueNameArgument,
    server: Server,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the batches of a queue, newest first. Scans all keys of the server."""
    with server.open_existing_queue(queue_name) as opened:
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
        _describe_state(progress).partition(":")[0],
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
