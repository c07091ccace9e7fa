"""`chasqui add`: enqueue a job or a batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.batch import batch_failed
from airflow_provider_chasqui.cli.parsing import parse_datetime, parse_duration, parse_payload
from airflow_provider_chasqui.cli.server import (
    JsonOption,
    QueueNameArgument,
    Server,
    with_connection_options,
)
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.queue_flows import BatchOptions
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.queue import Queue

DelayOption = Annotated[
    timedelta | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="Delay before the job runs, such as 30s or 1h30m.",
    ),
]
RunAtOption = Annotated[
    datetime | None,
    typer.Option(
        parser=parse_datetime,
        metavar="TIME",
        help="Time at which the job runs (ISO 8601; UTC without an offset).",
    ),
]


@with_connection_options
def add(
    queue_name: QueueNameArgument,
    server: Server,
    payload: Annotated[
        str, typer.Argument(metavar="PAYLOAD", help="Payload in JSON; - reads it from stdin.")
    ] = "null",
    job_name: Annotated[str, typer.Option(help="Job name, which selects the handler.")] = "",
    job_id: Annotated[str | None, typer.Option(help="Job id. Default: a new ULID.")] = None,
    delay: DelayOption = None,
    run_at: RunAtOption = None,
    dedup_ttl: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration, metavar="DURATION", help="Deduplicate by --job-id for this long."
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=2**32 - 1, help="Maximum attempts. Default: the worker's."
        ),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Enqueue a batch: one JSON payload per line of FILE (- for stdin)."
        ),
    ] = None,
    batch_id: Annotated[
        str | None,
        typer.Option(help="Batch id. A second run with the same id resumes the batch."),
    ] = None,
    wait: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Wait up to this long for completion and print the result, which needs a worker "
            "with --store-results. The exit code is 1 if a job died.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add a job, or with --lines a batch of jobs."""
    retry = None if max_attempts is None else RetryPolicy(max_attempts)
    if lines is not None:
        if job_id is not None or dedup_ttl is not None or payload != "null":
            raise InvalidArgument(
                "--lines reads the payloads from the file; PAYLOAD, --job-id and --dedup-ttl "
                "cannot be combined with it"
            )
        arguments = {"job_name": job_name or None, "delay": delay, "run_at": run_at, "retry": retry}
        options: Any = {key: value for key, value in arguments.items() if value is not None}
        with server.open_queue(queue_name) as opened:
            _add_lines(opened, lines, batch_id, options, wait, as_json)
        return
    if batch_id is not None:
        raise InvalidArgument("--batch-id requires --lines")
    if dedup_ttl is not None and job_id is None:
        raise InvalidArgument("--dedup-ttl requires --job-id")
    value = parse_payload(sys.stdin.read() if payload == "-" else payload)
    with server.open_queue(queue_name) as opened:
        added = opened.add(
            value,
            job_name=job_name,
            job_id=job_id,
            delay=delay,
            run_at=run_at,
            retry=retry,
            dedup_ttl=dedup_ttl,
        )
        summary: dict[str, Any] = {
            "queue_name": queue_name,
            "job_id": added.job_id,
            "created": added.created,
        }
        if wait is not None:
            summary["result"] = opened.wait(added.job_id, timeout=wait)
    if as_json:
        output.print_json(summary)
        return
    output.write_line(
        output.escape_control(added.job_id) + ("" if added.created else " (already existed)")
    )
    if wait is not None:
        output.print_line(f"done: {output.compact_json(summary['result'])}")


def _add_lines(
    queue: Queue,
    file: Path,
    batch_id: str | None,
    options: BatchOptions,
    timeout: timedelta | None,
    as_json: bool,
) -> None:
    if str(file) == "-":
        batch = queue.add_batch(parse_json_lines(sys.stdin), batch_id=batch_id, **options)
    else:
        try:
            with file.open(encoding="utf-8") as opened:
                # Validate all lines before the first job is sent.
                for _ in parse_json_lines(opened):
                    pass
                opened.seek(0)
                batch = queue.add_batch(parse_json_lines(opened), batch_id=batch_id, **options)
        except (OSError, UnicodeError, ValueError) as cause:
            if isinstance(cause, InvalidArgument):
                raise
            raise InvalidArgument(f"cannot read {str(file)!r}: {cause}") from cause
    progress = queue.wait_batch(batch.batch_id, timeout=timeout) if timeout is not None else None
    if as_json:
        counts = {} if progress is None else {"done": progress.done, "dead": progress.dead}
        output.print_json(
            {"queue_name": queue.name, "batch_id": batch.batch_id, "total": batch.total} | counts
        )
    else:
        output.print_line(f"batch {batch.batch_id}: {batch.total} jobs enqueued")
        if progress is not None:
            output.print_line(f"{progress.done} done, {progress.dead} dead")
    if progress is not None and progress.dead:
        raise batch_failed(progress, queue.name)


def parse_json_lines(lines: TextIO | Iterable[str]) -> Iterator[Any]:
    """Yield the JSON value of each line that is not blank."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as cause:
            raise InvalidArgument(f"line {number} is not JSON: {cause}") from None
