"""`chasqui repeat list|add|remove`: repeatable jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.output import Column
from airflow_provider_chasqui.cli.parsing import parse_datetime, parse_duration, parse_payload
from airflow_provider_chasqui.cli.server import (
    JsonOption,
    LimitOption,
    QueueNameArgument,
    Server,
    suggest,
    with_connection_options,
)
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.cron import Cron, Every, Schedule
from airflow_provider_chasqui.core.durations import format_duration, format_timestamp
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument
from airflow_provider_chasqui.core.payload import decode_payload
from airflow_provider_chasqui.core.repeat import (
    FIRE_ONCE,
    SKIP,
    MisfirePolicy,
    RepeatStatus,
    fire_all,
)

_MAX_SUGGESTED_FROM = 1000


def parse_misfire(text: str | MisfirePolicy) -> MisfirePolicy:
    """Return the misfire policy of skip, fire-once or fire-all:N."""
    if isinstance(text, MisfirePolicy):
        return text
    kind, _, count = text.partition(":")
    if text == "skip":
        return SKIP
    if text == "fire-once":
        return FIRE_ONCE
    if kind == "fire-all" and count.isascii() and count.isdecimal() and 0 < int(count[:11]) < 2**32:
        return fire_all(int(count))
    raise typer.BadParameter(
        f"{text!r} is not a misfire policy; write skip, fire-once or fire-all:10"
    )


@with_connection_options
def list_repeats(
    queue_name: QueueNameArgument,
    server: Server,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the repeatable jobs of a queue, next fire first."""
    with server.open_queue(queue_name) as opened:
        statuses = opened.repeats(limit=limit)
    if as_json:
        output.print_json(
            {"queue_name": queue_name, "repeats": [to_dict(status) for status in statuses]}
        )
        return
    if not statuses:
        output.print_line("no repeatable jobs")
        return
    columns = [
        Column("key"),
        Column("job name", optional=True),
        Column("schedule"),
        Column("time zone"),
        Column("next fire", optional=True),
        Column("in", align_right=True),
        Column("fires", align_right=True, optional=True),
        Column("limit", align_right=True, optional=True),
    ]
    output.print_table(columns, [_row(status) for status in statuses])


def _format_schedule(schedule: Schedule) -> tuple[str, str]:
    if isinstance(schedule, Every):
        return f"every {schedule.interval_ms}ms", "-"
    return schedule.expression, schedule.tz or "UTC"


def _row(status: RepeatStatus) -> tuple[object, ...]:
    repeat = status.repeat
    pattern, tz = _format_schedule(repeat.schedule)
    wait_ms = status.next_fire_ms - current_time_ms()
    return (
        repeat.key,
        repeat.job_name or "-",
        pattern,
        tz,
        format_timestamp(status.next_fire_ms),
        "now" if wait_ms <= 0 else format_duration(wait_ms),
        status.fire_count,
        "-" if repeat.limit is None else repeat.limit,
    )


def to_dict(status: RepeatStatus) -> dict[str, Any]:
    """Return a repeatable job as JSON values."""
    repeat = status.repeat
    pattern, tz = _format_schedule(repeat.schedule)
    try:
        payload = decode_payload(repeat.body)
    except DecodeError:
        payload = repeat.body
    return {
        "key": repeat.key,
        "job_name": repeat.job_name,
        "pattern": pattern,
        "tz": None if tz == "-" else tz,
        "next_fire_ms": status.next_fire_ms,
        "fire_count": status.fire_count,
        "limit": repeat.limit,
        "start_ms": repeat.start_ms,
        "end_ms": repeat.end_ms,
        "misfire": repeat.misfire.kind,
        "payload": payload,
    }


@with_connection_options
def add_repeat(
    queue_name: QueueNameArgument,
    server: Server,
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="Payload in JSON.")] = "null",
    every: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Interval, such as 30s or 1h. Either this or --cron is required.",
        ),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="Cron expression, such as '0 2 * * *'. Either this or --every is required.",
        ),
    ] = None,
    tz: Annotated[
        str | None, typer.Option(help="Time zone of --cron, such as Europe/Berlin. Default: UTC.")
    ] = None,
    job_name: Annotated[str, typer.Option(help="Job name, which selects the handler.")] = "",
    key: Annotated[
        str | None, typer.Option(help="Key. Default: made of the job name and the schedule.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum number of fires.")
    ] = None,
    start: Annotated[
        datetime | None,
        typer.Option(
            parser=parse_datetime,
            metavar="TIME",
            help="No fire before this time (ISO 8601; UTC without an offset).",
        ),
    ] = None,
    end: Annotated[
        datetime | None,
        typer.Option(
            parser=parse_datetime,
            metavar="TIME",
            help="No fire after this time (ISO 8601; UTC without an offset).",
        ),
    ] = None,
    misfire: Annotated[
        MisfirePolicy | None,
        typer.Option(
            "--misfire",
            parser=parse_misfire,
            metavar="POLICY",
            help="For missed fires: skip, fire-once or fire-all:N. Default: skip.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add a repeatable job.

    A different definition with the same key replaces it and resets its count of fires; the same
    definition changes nothing.
    """
    if (every is None) == (cron is None):
        raise InvalidArgument("pass either --every or --cron")
    if tz is not None and cron is None:
        raise InvalidArgument("--tz requires --cron")
    schedule = Cron(cron, tz) if cron is not None else Every.from_timedelta(every or timedelta(0))
    with server.open_queue(queue_name) as opened:
        stored_key = opened.repeat(
            parse_payload(payload),
            schedule,
            job_name=job_name,
            key=key,
            limit=limit,
            start=start,
            end=end,
            misfire=misfire or SKIP,
        )
    if as_json:
        output.print_json({"queue_name": queue_name, "key": stored_key})
    else:
        output.write_line(output.escape_control(stored_key))


@with_connection_options
def remove_repeat(
    queue_name: QueueNameArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key, as printed by `repeat list`.")],
    server: Server,
    as_json: JsonOption = False,
) -> None:
    """Remove a repeatable job. The exit code is 1 if it does not exist."""
    with server.open_queue(queue_name) as opened:
        removed = opened.delete_repeat(key)
        hint = ""
        if not removed:
            keys = [status.repeat.key for status in opened.repeats(limit=_MAX_SUGGESTED_FROM)]
            # A key that was not chosen begins with the job name.
            nearest = [existing for existing in keys if existing.startswith(f"{key}::")]
            hint = suggest(
                nearest[0] if nearest else key, keys, f"chasqui repeat list {queue_name}"
            )
    if as_json:
        output.print_json({"queue_name": queue_name, "key": key, "removed": removed})
    else:
        output.print_line("removed" if removed else f"not found; {hint}")
    if not removed:
        raise typer.Exit(1)
