"""repeat list, add, remove: jobs that fire by a schedule."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.output import Column
from airflow_provider_chasqui.cli.parsing import (
    format_duration,
    format_timestamp,
    parse_datetime,
    parse_duration,
    parse_payload,
)
from airflow_provider_chasqui.cli.server import (
    JsonOption,
    LimitOption,
    QueueNameArgument,
    Server,
    with_connection_options,
)
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.cron import Cron, Every, Schedule
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument
from airflow_provider_chasqui.core.payload import decode_payload
from airflow_provider_chasqui.core.repeat import (
    FIRE_ONCE,
    SKIP,
    MisfirePolicy,
    RepeatStatus,
    fire_all,
)

_MILLISECOND = timedelta(milliseconds=1)


def parse_misfire(text: str | MisfirePolicy) -> MisfirePolicy:
    """Read what to do with missed fires: skip, fire-once or fire-all:10."""
    if isinstance(text, MisfirePolicy):
        return text
    kind, _, most = text.partition(":")
    if text == "skip":
        return SKIP
    if text == "fire-once":
        return FIRE_ONCE
    if kind == "fire-all" and most.isascii() and most.isdecimal() and 0 < int(most[:11]) < 2**32:
        return fire_all(int(most))
    raise typer.BadParameter(f"{text!r}: write skip, fire-once or fire-all:10")


@with_connection_options
def list_repeats(
    queue_name: QueueNameArgument,
    server: Server,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the repeats of a queue, next fire first."""
    with server.open_queue(queue_name) as opened:
        found = opened.repeats(limit=limit)
    if as_json:
        output.print_json({"queue": queue_name, "repeats": [to_dict(each) for each in found]})
        return
    if not found:
        output.print_line("no repeats")
        return
    columns = [
        Column("key"), Column("job_name", optional=True), Column("pattern"),
        Column("tz"), Column("next fire", optional=True), Column("in", align_right=True),
        Column("fired", align_right=True, optional=True), Column("limit", align_right=True, optional=True),
    ]  # fmt: skip
    output.print_table(columns, [_row(each) for each in found])


def _format_schedule(schedule: Schedule) -> tuple[str, str]:
    if isinstance(schedule, Every):
        return f"every {schedule.interval_ms}ms", "-"
    return schedule.expression, schedule.tz or "UTC"


def _row(status: RepeatStatus) -> tuple[object, ...]:
    repeat = status.repeat
    pattern, tz = _format_schedule(repeat.schedule)
    wait = status.next_fire_ms - current_time_ms()
    return (
        repeat.key, repeat.job_name or "-", pattern, tz, format_timestamp(status.next_fire_ms),
        "now" if wait <= 0 else format_duration(wait), status.fire_count,
        "-" if repeat.limit is None else repeat.limit,
    )  # fmt: skip


def to_dict(status: RepeatStatus) -> dict[str, Any]:
    repeat = status.repeat
    pattern, tz = _format_schedule(repeat.schedule)
    try:
        value = decode_payload(repeat.body)
    except DecodeError:
        value = repeat.body
    return {
        "key": repeat.key,
        "job_name": repeat.job_name,
        "pattern": pattern,
        "tz": None if tz == "-" else tz,
        "next_fire_ms": status.next_fire_ms,
        "fired": status.fire_count,
        "limit": repeat.limit,
        "start_ms": repeat.start_ms,
        "end_ms": repeat.end_ms,
        "missed": repeat.misfire.kind,
        "payload": value,
    }


@with_connection_options
def add_repeat(
    queue_name: QueueNameArgument,
    server: Server,
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="In JSON.")] = "null",
    every: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration, metavar="DURATION", help="Fire this often, as 30s or 1h."
        ),
    ] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Fire by cron, as '0 2 * * *'.")
    ] = None,
    tz: Annotated[str | None, typer.Option(help="Of --cron, as Europe/Berlin.")] = None,
    job_name: Annotated[str, typer.Option(help="Which handler runs the jobs.")] = "",
    key: Annotated[str | None, typer.Option(help="A key of your own.")] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Fire so often at most.")
    ] = None,
    start: Annotated[
        datetime | None, typer.Option(parser=parse_datetime, metavar="TIME", help="Not before.")
    ] = None,
    end: Annotated[
        datetime | None, typer.Option(parser=parse_datetime, metavar="TIME", help="Not after.")
    ] = None,
    misfire: Annotated[
        MisfirePolicy | None,
        typer.Option(
            "--misfire",
            parser=parse_misfire,
            metavar="POLICY",
            help="skip, fire-once or fire-all:N.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fire a job again and again; the same key again changes the repeat."""
    if (every is None) == (cron is None):
        raise InvalidArgument("say when: either --every or --cron")
    if tz is not None and cron is None:
        raise InvalidArgument("--tz goes with --cron")
    schedule = (
        Cron(cron, tz) if cron is not None else Every((every or timedelta(0)) // _MILLISECOND)
    )
    with server.open_queue(queue_name) as opened:
        chosen = opened.repeat(
            parse_payload(payload), schedule, job_name=job_name, key=key, limit=limit, start=start, end=end,
            misfire=misfire or SKIP,
        )  # fmt: skip
    if as_json:
        output.print_json({"queue": queue_name, "key": chosen})
    else:
        output.write_line(output.escape_control(chosen))


@with_connection_options
def remove_repeat(
    queue_name: QueueNameArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="As `repeat list` shows it.")],
    server: Server,
    as_json: JsonOption = False,
) -> None:
    """Remove a repeat. Exit code 1 says that there was none."""
    with server.open_queue(queue_name) as opened:
        removed = opened.delete_repeat(key)
    if as_json:
        output.print_json({"queue": queue_name, "key": key, "removed": removed})
    else:
        output.print_line("removed" if removed else "not found")
    if not removed:
        raise typer.Exit(1)
