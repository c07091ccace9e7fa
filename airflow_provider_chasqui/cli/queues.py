"""inspect, watch, consumers: how a queue is.

watcher: how the reader that starts DAG runs from messages is doing.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Group as Stack
from rich.live import Live
from rich.text import Text

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.output import Column
from airflow_provider_chasqui.cli.parsing import format_duration, format_timestamp
from airflow_provider_chasqui.cli.server import (
    GroupOption,
    JsonOption,
    QueueNameArgument,
    Server,
    with_connection_options,
)
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group, inspect
from airflow_provider_chasqui.queue import Queue


@dataclass(frozen=True)
class QueueSnapshot:
    """The state of a queue; the first six as ChasquiMQ's CLI has them."""

    queue: str
    group: str
    stream_depth: int
    pending: int
    dlq_depth: int
    delayed_depth: int
    oldest_delayed_lag_ms: int | None
    repeatable_count: int
    group_created: bool
    waiting: int
    lag: int | None
    oldest_entry_age_ms: int | None
    next_due_ms: int | None
    consumers: int
    server: str
    dialect: str


def read_snapshot(queue: Queue, group: str) -> QueueSnapshot:
    depth = queue.depth()
    created = any(
        each.name == group for each in queue.client.execute(inspect.consumer_groups(queue.keys))
    )
    now_ms = current_time_ms()
    due_ms, oldest_ms = depth.next_due_ms, depth.oldest_entry_ms
    return QueueSnapshot(
        queue=queue.name,
        group=group,
        stream_depth=depth.waiting + depth.running,
        pending=depth.running,
        dlq_depth=depth.dead,
        delayed_depth=depth.delayed,
        oldest_delayed_lag_ms=None if due_ms is None else max(0, now_ms - due_ms),
        repeatable_count=depth.repeats,
        group_created=created,
        waiting=depth.waiting,
        lag=depth.lag,
        oldest_entry_age_ms=None if oldest_ms is None else max(0, now_ms - oldest_ms),
        next_due_ms=due_ms,
        consumers=depth.consumers,
        server=queue.target.display_name,
        dialect=queue.dialect(),
    )


def display_fields(snapshot: QueueSnapshot) -> list[tuple[str, object]]:
    lag_ms, due_ms = snapshot.oldest_delayed_lag_ms, snapshot.next_due_ms
    until = None if due_ms is None else due_ms - current_time_ms()
    return [
        ("stream depth", snapshot.stream_depth),
        ("  waiting", snapshot.waiting),
        ("pending", snapshot.pending if snapshot.group_created else "0 (group not created)"),
        ("DLQ depth", snapshot.dlq_depth),
        ("delayed depth", snapshot.delayed_depth),
        ("oldest delayed lag (ms)", "-" if lag_ms is None else lag_ms),
        ("repeatable count", snapshot.repeatable_count),
        ("lag", "-" if snapshot.lag is None else snapshot.lag),
        ("oldest entry", format_duration(snapshot.oldest_entry_age_ms)),
        ("next due in", "-" if until is None else "now" if until <= 0 else format_duration(until)),
        ("consumers", snapshot.consumers),
        ("server", f"{snapshot.server} ({snapshot.dialect})"),
    ]


@with_connection_options
def inspect_queue(
    queue_name: QueueNameArgument,
    server: Server,
    group: GroupOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Show how full a queue is."""
    with server.open_queue(queue_name, group) as opened:
        now = read_snapshot(opened, group)
    if as_json:
        output.print_json(asdict(now))
    else:
        title = f"queue: {queue_name}  group: {group}"
        output.console().print(output.key_value_table(display_fields(now), title))


_COMPARED_FIELDS = {"stream depth": "stream_depth", "DLQ depth": "dlq_depth", "pending": "pending",
            "delayed depth": "delayed_depth", "  waiting": "waiting"}  # fmt: skip


def render(snapshot: QueueSnapshot, previous: QueueSnapshot | None, interval_ms: int) -> Stack:
    """One picture of `watch`: the facts, with what changed since the last one."""
    pairs: list[tuple[str, object]] = []
    for name, value in display_fields(snapshot):
        cell = Text(output.escape_control(value))
        field = _COMPARED_FIELDS.get(name)
        if previous is not None and field is not None:
            change = getattr(snapshot, field) - getattr(previous, field)
            style = "green" if change < 0 else "yellow" if change else "dim"
            cell.append(f"  {change:+d}" if change else "  =", style)
        pairs.append((name, cell))
    head = Text(
        f"{format_timestamp(current_time_ms())}  every {interval_ms} ms, Ctrl-C ends", style="dim"
    )
    return Stack(
        output.key_value_table(pairs, f"queue: {snapshot.queue}  group: {snapshot.group}"), head
    )


@with_connection_options
def watch_queue(
    queue_name: QueueNameArgument,
    server: Server,
    group: GroupOption = "default",
    interval_ms: Annotated[
        int, typer.Option(metavar="MS", min=1, max=86_400_000, help="How often to look.")
    ] = 1000,
    count: Annotated[
        int, typer.Option(metavar="N", min=0, help="End after so many looks; 0: never.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Watch a queue live, until Ctrl-C. With --json, one line for each look."""
    with server.open_queue(queue_name, group) as opened:
        if as_json:
            for now, _ in _poll_snapshots(opened, group, interval_ms, count):
                output.print_json({"at_ms": current_time_ms(), **asdict(now)}, single_line=True)
            return
        out = output.console()
        with Live(console=out, auto_refresh=False) as live:
            for now, before in _poll_snapshots(opened, group, interval_ms, count):
                live.update(render(now, before, interval_ms), refresh=True)


def _poll_snapshots(queue: Queue, group: str, interval_ms: int, count: int) -> Any:
    before, left = None, count
    while True:
        now = read_snapshot(queue, group)
        yield now, before
        before, left = now, left - 1
        if left == 0:
            return
        time.sleep(interval_ms / 1000)


@with_connection_options
def list_consumers(
    queue_name: QueueNameArgument,
    server: Server,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Only this consumer group.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List who takes jobs from a queue, and who leads: promotes due jobs, fires repeats."""
    with server.open_queue(queue_name) as opened:
        keys, drive = opened.keys, opened.client
        found = [
            each
            for each in drive.execute(inspect.consumer_groups(keys))
            if group in (None, each.name)
        ]
        members = drive.pipeline([consumer_group.consumers(keys, each.name) for each in found])
        locks = [keys.promoter_lock, keys.scheduler_lock]
        leaders = drive.pipeline([redis_command("GET", lock, parse=as_raw) for lock in locks])
    promoter, scheduler = (raw.decode("utf-8", "replace") if raw else None for raw in leaders)
    listed = [
        {"group": where.name, **asdict(each), "promoter": each.name == promoter}
        for where, group_members in zip(found, members, strict=True)
        for each in group_members
    ]
    if as_json:
        leading = {"promoter": promoter, "scheduler": scheduler}
        output.print_json({"queue": queue_name, "leaders": leading, "consumers": listed})
        return
    if not listed:
        output.print_line(f"nobody takes jobs from {queue_name!r}")
    else:
        columns = [
            Column("consumer"), Column("group"), Column("holds", align_right=True),
            Column("silent for", align_right=True), Column("leads"),
        ]  # fmt: skip
        output.print_table(
            columns,
            [
                (each["name"], each["group"], each["pending"], format_duration(each["idle_ms"]),
                 "promoter" if each["promoter"] else "")
                for each in listed
            ],
        )  # fmt: skip
    output.print_line("")
    output.print_line(f"promoter:  {promoter or '-'}", style="dim")
    output.print_line(f"scheduler: {scheduler or '-'}", style="dim")


@with_connection_options
def show_watcher(
    queue_name: QueueNameArgument,
    server: Server,
    group: GroupOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Show the watcher that starts DAG runs from a queue: its lag, and what it saw last."""
    with server.open_queue(queue_name, group) as opened:
        status = opened.watcher_status()
    if as_json:
        output.print_json(asdict(status))
        return
    seen = status.watcher
    if seen is None:
        output.print_line(f"no watcher was seen at {queue_name!r} within a day")
        return
    pairs: list[tuple[str, object]] = [
        ("lag", "-" if status.lag is None else status.lag),
        ("pending", status.pending),
        ("delivered", seen.delivered),
        ("last delivered", seen.last_delivered or "-"),
        ("last error", seen.last_error or "-"),
        ("seen", f"{format_duration((status.seconds_since_seen or 0) * 1000)} ago, on {seen.host}"),
    ]
    output.console().print(output.key_value_table(pairs, f"queue: {queue_name}  group: {group}"))
