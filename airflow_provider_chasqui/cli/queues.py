"""`chasqui queues`, `inspect`, `watch`, `consumers`, `watcher`, `pause`, `resume`: queue states."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Group as RenderGroup
from rich.live import Live
from rich.text import Text

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.output import Column
from airflow_provider_chasqui.cli.server import (
    GroupOption,
    JsonOption,
    QueueNameArgument,
    Server,
    discover_queues,
    with_connection_options,
)
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group, counters, inspect
from airflow_provider_chasqui.core.durations import format_duration, format_timestamp
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.queue import Queue

RECENT_MINUTES = 5
_QUEUES_PER_PIPELINE = 50


@dataclass(frozen=True)
class QueueSnapshot:
    """The state of a queue. The names up to `repeatable_count` are those of ChasquiMQ's CLI.

    `recent_…` are the outcomes of the last `RECENT_MINUTES` minutes, the current one included.
    """

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
    paused: bool
    paused_job_names: tuple[str, ...]
    server: str
    dialect: str
    recent_completed: int
    recent_failed: int
    recent_retried: int
    recent_dead: int


def read_snapshot(queue: Queue, group: str) -> QueueSnapshot:
    """Read the state of a queue and a consumer group."""
    depth = queue.depth()
    created = any(
        existing.name == group
        for existing in queue.client.execute(inspect.consumer_groups(queue.keys))
    )
    now_ms = current_time_ms()
    recent = queue.client.run_flow(
        counters.read_throughput(queue.keys, now_ms, RECENT_MINUTES, RECENT_MINUTES)
    )
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
        paused=depth.paused,
        paused_job_names=depth.paused_job_names,
        server=queue.target.display_name,
        dialect=queue.dialect(),
        recent_completed=sum(bucket.completed for bucket in recent),
        recent_failed=sum(bucket.failed for bucket in recent),
        recent_retried=sum(bucket.retried for bucket in recent),
        recent_dead=sum(bucket.dead for bucket in recent),
    )


def display_fields(snapshot: QueueSnapshot) -> list[tuple[str, object]]:
    """Return the names and values that `inspect` and `watch` show."""
    due_ms = snapshot.next_due_ms
    wait_ms = None if due_ms is None else due_ms - current_time_ms()
    next_due = "-" if wait_ms is None else "now" if wait_ms <= 0 else format_duration(wait_ms)
    paused = ["the queue"] if snapshot.paused else []
    paused += [f"jobs named {name!r}" for name in snapshot.paused_job_names]
    return [
        ("paused", ", ".join(paused) or "no"),
        ("waiting", snapshot.waiting),
        ("running", snapshot.pending if snapshot.group_created else "0 (no consumer group yet)"),
        ("delayed", snapshot.delayed_depth),
        ("dead", snapshot.dlq_depth),
        (
            f"last {RECENT_MINUTES} minutes",
            f"{snapshot.recent_completed} completed, {snapshot.recent_failed} failed, "
            f"{snapshot.recent_retried} retried, {snapshot.recent_dead} dead",
        ),
        ("repeatable jobs", snapshot.repeatable_count),
        ("age of oldest job", format_duration(snapshot.oldest_entry_age_ms)),
        ("next due in", next_due),
        ("overdue by", format_duration(snapshot.oldest_delayed_lag_ms or None)),
        ("consumers", snapshot.consumers),
        ("server", f"{snapshot.server} ({snapshot.dialect} dialect)"),
    ]


@with_connection_options
def inspect_queue(
    queue_name: QueueNameArgument,
    server: Server,
    group: GroupOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Show the number of jobs in each state."""
    with server.open_existing_queue(queue_name, group) as opened:
        snapshot = read_snapshot(opened, group)
    if as_json:
        output.print_json(asdict(snapshot))
    else:
        title = f"queue: {queue_name}  group: {group}"
        output.console().print(output.key_value_table(display_fields(snapshot), title))


@with_connection_options
def list_queues(
    server: Server,
    search: Annotated[
        str, typer.Option(metavar="TEXT", help="Only queues with this text in their name.")
    ] = "",
    group: GroupOption = "default",
    as_json: JsonOption = False,
) -> None:
    """List the queues of the server. Scans all of its keys; on a cluster, those of one node."""
    # The commands below have the keys of each queue, so this one needs no keys of its own.
    with server.open_queue("queues", group) as opened:
        names = sorted(name for name in discover_queues(opened) if search in name)
        depths = []
        for start in range(0, len(names), _QUEUES_PER_PIPELINE):
            flows = [
                inspect.depth(Keys(name), group)
                for name in names[start : start + _QUEUES_PER_PIPELINE]
            ]
            depths += opened.client.run_flow(inspect.run_in_lockstep(flows))
    rows = [{"queue": name, **asdict(depth)} for name, depth in zip(names, depths, strict=True)]
    if as_json:
        output.print_json({"queues": rows})
        return
    if not rows:
        output.print_line("no queues")
        return
    columns = [
        Column("queue"),
        Column("waiting", align_right=True),
        Column("running", align_right=True),
        Column("delayed", align_right=True),
        Column("dead", align_right=True),
        Column("consumers", align_right=True),
        Column("paused", optional=True),
    ]
    output.print_table(
        columns,
        [
            (
                *(row[column.title] for column in columns[:-1]),
                "yes" if row["paused"] else ", ".join(row["paused_job_names"]) or "no",
            )
            for row in rows
        ],
    )


_COMPARED_FIELDS = {
    "waiting": "waiting",
    "running": "pending",
    "delayed": "delayed_depth",
    "dead": "dlq_depth",
}


def render(
    snapshot: QueueSnapshot, previous: QueueSnapshot | None, interval_ms: int
) -> RenderGroup:
    """Return one screen of `watch`: the state and the changes since the previous one."""
    pairs: list[tuple[str, object]] = []
    for name, value in display_fields(snapshot):
        cell = Text(output.escape_control(value))
        field = _COMPARED_FIELDS.get(name)
        if previous is not None and field is not None:
            change = getattr(snapshot, field) - getattr(previous, field)
            style = "green" if change < 0 else "yellow" if change else "dim"
            cell.append(f"  {change:+d}" if change else "  =", style)
        pairs.append((name, cell))
    footer = Text(
        f"{format_timestamp(current_time_ms())}  every {interval_ms} ms, Ctrl-C to exit",
        style="dim",
    )
    return RenderGroup(
        output.key_value_table(pairs, f"queue: {snapshot.queue}  group: {snapshot.group}"), footer
    )


@with_connection_options
def watch_queue(
    queue_name: QueueNameArgument,
    server: Server,
    group: GroupOption = "default",
    interval_ms: Annotated[
        int,
        typer.Option(metavar="MS", min=1, max=86_400_000, help="Refresh interval in milliseconds."),
    ] = 1000,
    count: Annotated[
        int, typer.Option(metavar="N", min=0, help="Exit after N refreshes; 0 for no limit.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a queue until Ctrl-C. With --json, one line per refresh."""
    with server.open_queue(queue_name, group) as opened:
        if as_json:
            for snapshot, _ in _poll_snapshots(opened, group, interval_ms, count):
                output.print_json(
                    {"at_ms": current_time_ms(), **asdict(snapshot)}, single_line=True
                )
            return
        out = output.console()
        with Live(console=out, auto_refresh=False) as live:
            for snapshot, previous in _poll_snapshots(opened, group, interval_ms, count):
                live.update(render(snapshot, previous, interval_ms), refresh=True)


def _poll_snapshots(queue: Queue, group: str, interval_ms: int, count: int) -> Any:
    previous, remaining = None, count
    while True:
        snapshot = read_snapshot(queue, group)
        yield snapshot, previous
        previous, remaining = snapshot, remaining - 1
        if remaining == 0:
            return
        time.sleep(interval_ms / 1000)


JobNameOption = Annotated[
    str | None,
    typer.Option("--job-name", metavar="NAME", help="Only jobs of this name, not the whole queue."),
]


@with_connection_options
def pause_queue(
    queue_name: QueueNameArgument, server: Server, job_name: JobNameOption = None
) -> None:
    """Pause a queue: workers start no further jobs, running ones end."""
    with server.open_queue(queue_name) as opened:
        opened.pause(job_name)
    output.print_line(f"paused {_describe(queue_name, job_name)}; chasqui resume ends the pause")


@with_connection_options
def resume_queue(
    queue_name: QueueNameArgument, server: Server, job_name: JobNameOption = None
) -> None:
    """Resume a paused queue or job name."""
    with server.open_queue(queue_name) as opened:
        opened.resume(job_name)
    output.print_line(f"resumed {_describe(queue_name, job_name)}")


def _describe(queue_name: str, job_name: str | None) -> str:
    if job_name is None:
        return f"queue {queue_name!r}"
    return f"jobs named {job_name!r} of queue {queue_name!r}"


@with_connection_options
def list_consumers(
    queue_name: QueueNameArgument,
    server: Server,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Only this consumer group.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the consumers of a queue and the leaders (promoter and scheduler)."""
    with server.open_existing_queue(queue_name) as opened:
        keys, client = opened.keys, opened.client
        groups = [
            existing
            for existing in client.execute(inspect.consumer_groups(keys))
            if group in (None, existing.name)
        ]
        members = client.pipeline(
            [consumer_group.consumers(keys, existing.name) for existing in groups]
        )
        locks = [keys.promoter_lock, keys.scheduler_lock]
        leaders = client.pipeline([redis_command("GET", lock, parse=as_raw) for lock in locks])
    promoter, scheduler = (raw.decode("utf-8", "replace") if raw else None for raw in leaders)
    consumers = [
        {"group": existing.name, **asdict(consumer), "promoter": consumer.name == promoter}
        for existing, group_members in zip(groups, members, strict=True)
        for consumer in group_members
    ]
    if as_json:
        output.print_json(
            {
                "queue_name": queue_name,
                "leaders": {"promoter": promoter, "scheduler": scheduler},
                "consumers": consumers,
            }
        )
        return
    if not consumers:
        output.print_line("no consumers; start one with: chasqui worker")
    else:
        columns = [
            Column("consumer"),
            Column("group"),
            Column("running", align_right=True),
            Column("idle for", align_right=True),
            Column("leader of"),
        ]
        output.print_table(
            columns,
            [
                (
                    consumer["name"],
                    consumer["group"],
                    consumer["pending"],
                    format_duration(consumer["idle_ms"]),
                    "promoter" if consumer["promoter"] else "",
                )
                for consumer in consumers
            ],
        )
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
    """Show the state of the watcher that starts DAG runs from the messages of a queue."""
    with server.open_queue(queue_name, group) as opened:
        status = opened.watcher_status()
    if as_json:
        output.print_json(asdict(status))
        return
    watcher = status.watcher
    if watcher is None:
        output.print_line(f"no watcher was active on {queue_name!r} within the last day")
        return
    pairs: list[tuple[str, object]] = [
        ("lag", "-" if status.lag is None else status.lag),
        ("running", status.pending),
        ("delivered", watcher.delivered),
        ("last delivered", watcher.last_delivered or "-"),
        ("last error", watcher.last_error or "-"),
        (
            "last active",
            f"{format_duration((status.seconds_since_seen or 0) * 1000)} ago on {watcher.host}",
        ),
    ]
    output.console().print(output.key_value_table(pairs, f"queue: {queue_name}  group: {group}"))
