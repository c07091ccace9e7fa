"""repeat list, add, remove: jobs that fire by a schedule."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from airflow_provider_chasqui.cli import show
from airflow_provider_chasqui.cli.server import AsJson, Limit, QueueName, Server, connected
from airflow_provider_chasqui.cli.show import Column
from airflow_provider_chasqui.cli.spans import iso, moment, payload, short, span
from airflow_provider_chasqui.core.errors import BadInput, DecodeError
from airflow_provider_chasqui.core.payload import decode_payload
from airflow_provider_chasqui.core.repeat import FIRE_ONCE, SKIP, Missed, RepeatStatus, fire_all
from airflow_provider_chasqui.core.schedule import Cron, Every, Schedule
from airflow_provider_chasqui.queue import wall_clock

_MS = timedelta(milliseconds=1)


def missed(text: str | Missed) -> Missed:
    """Read what to do with missed fires: skip, fire-once or fire-all:10."""
    if isinstance(text, Missed):
        return text
    kind, _, most = text.partition(":")
    if text == "skip":
        return SKIP
    if text == "fire-once":
        return FIRE_ONCE
    if kind == "fire-all" and most.isascii() and most.isdecimal() and 0 < int(most[:11]) < 2**32:
        return fire_all(int(most))
    raise typer.BadParameter(f"{text!r}: write skip, fire-once or fire-all:10")


@connected
def list_repeats(
    queue: QueueName, server: Server, limit: Limit = 100, json: AsJson = False
) -> None:
    """List the repeats of a queue, next fire first."""
    with server.queue(queue) as opened:
        found = opened.repeats(limit=limit)
    if json:
        show.as_json({"queue": queue, "repeats": [facts(each) for each in found]})
        return
    if not found:
        show.say("no repeats")
        return
    columns = [
        Column("key"), Column("job_name", extra=True), Column("pattern"),
        Column("tz"), Column("next fire", extra=True), Column("in", right=True),
        Column("fired", right=True, extra=True), Column("limit", right=True, extra=True),
    ]  # fmt: skip
    show.table(columns, [_row(each) for each in found])


def _pattern(schedule: Schedule) -> tuple[str, str]:
    if isinstance(schedule, Every):
        return f"every {schedule.interval_ms}ms", "-"
    return schedule.expression, schedule.tz or "UTC"


def _row(each: RepeatStatus) -> tuple[object, ...]:
    repeat = each.repeat
    pattern, tz = _pattern(repeat.schedule)
    wait = each.next_fire_ms - wall_clock()
    return (
        repeat.key, repeat.name or "-", pattern, tz, iso(each.next_fire_ms),
        "now" if wait <= 0 else short(wait), each.fired,
        "-" if repeat.limit is None else repeat.limit,
    )  # fmt: skip


def facts(each: RepeatStatus) -> dict[str, Any]:
    repeat = each.repeat
    pattern, tz = _pattern(repeat.schedule)
    try:
        value = decode_payload(repeat.body)
    except DecodeError:
        value = repeat.body
    return {
        "key": repeat.key,
        "job_name": repeat.name,
        "pattern": pattern,
        "tz": None if tz == "-" else tz,
        "next_fire_ms": each.next_fire_ms,
        "fired": each.fired,
        "limit": repeat.limit,
        "start_ms": repeat.start_ms,
        "end_ms": repeat.end_ms,
        "missed": repeat.missed.kind,
        "payload": value,
    }


@connected
def add_repeat(
    queue: QueueName,
    server: Server,
    data: Annotated[str, typer.Argument(metavar="PAYLOAD", help="In JSON.")] = "null",
    every: Annotated[
        timedelta | None,
        typer.Option(parser=span, metavar="SPAN", help="Fire this often, as 30s or 1h."),
    ] = None,
    cron: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Fire by cron, as '0 2 * * *'.")
    ] = None,
    tz: Annotated[str | None, typer.Option(help="Of --cron, as Europe/Berlin.")] = None,
    name: Annotated[str, typer.Option(help="Which handler runs the jobs.")] = "",
    key: Annotated[str | None, typer.Option(help="A key of your own.")] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Fire so often at most.")
    ] = None,
    start: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="Not before.")
    ] = None,
    end: Annotated[
        datetime | None, typer.Option(parser=moment, metavar="TIME", help="Not after.")
    ] = None,
    when_missed: Annotated[
        Missed | None,
        typer.Option(
            "--missed", parser=missed, metavar="POLICY", help="skip, fire-once or fire-all:N."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Fire a job again and again; the same key again changes the repeat."""
    if (every is None) == (cron is None):
        raise BadInput("say when: either --every or --cron")
    if tz is not None and cron is None:
        raise BadInput("--tz goes with --cron")
    schedule = Cron(cron, tz) if cron is not None else Every((every or timedelta(0)) // _MS)
    with server.queue(queue) as opened:
        chosen = opened.repeat(
            payload(data), schedule, name=name, key=key, limit=limit, start=start, end=end,
            missed=when_missed or SKIP,
        )  # fmt: skip
    if json:
        show.as_json({"queue": queue, "key": chosen})
    else:
        show.line_out(show.clean(chosen))


@connected
def remove_repeat(
    queue: QueueName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="As `repeat list` shows it.")],
    server: Server,
    json: AsJson = False,
) -> None:
    """Remove a repeat. Exit code 1 says that there was none."""
    with server.queue(queue) as opened:
        removed = opened.drop_repeat(key)
    if json:
        show.as_json({"queue": queue, "key": key, "removed": removed})
    else:
        show.say("removed" if removed else "not found")
    if not removed:
        raise typer.Exit(1)
