"""inspect, watch, consumers: how a queue is."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Group as Stack
from rich.live import Live
from rich.text import Text

from airflow_provider_chasqui.cli import show
from airflow_provider_chasqui.cli.server import AsJson, Group, QueueName, Server, connected
from airflow_provider_chasqui.cli.show import Column
from airflow_provider_chasqui.cli.spans import iso, short
from airflow_provider_chasqui.core.op import as_is, command
from airflow_provider_chasqui.core.ops import browsing, delivery
from airflow_provider_chasqui.queue import Queue, wall_clock


@dataclass(frozen=True)
class Snapshot:
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


def take(queue: Queue, group: str) -> Snapshot:
    depth = queue.depth()
    created = any(each.name == group for each in queue.drive.run(browsing.groups(queue.keys)))
    now_ms = wall_clock()
    due_ms, oldest_ms = depth.next_due_ms, depth.oldest_entry_ms
    return Snapshot(
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
        server=queue.target.where,
        dialect=queue.dialect(),
    )


def rows(now: Snapshot) -> list[tuple[str, object]]:
    lag_ms, due_ms = now.oldest_delayed_lag_ms, now.next_due_ms
    until = None if due_ms is None else due_ms - wall_clock()
    return [
        ("stream depth", now.stream_depth),
        ("  waiting", now.waiting),
        ("pending", now.pending if now.group_created else "0 (group not created)"),
        ("DLQ depth", now.dlq_depth),
        ("delayed depth", now.delayed_depth),
        ("oldest delayed lag (ms)", "-" if lag_ms is None else lag_ms),
        ("repeatable count", now.repeatable_count),
        ("lag", "-" if now.lag is None else now.lag),
        ("oldest entry", short(now.oldest_entry_age_ms)),
        ("next due in", "-" if until is None else "now" if until <= 0 else short(until)),
        ("consumers", now.consumers),
        ("server", f"{now.server} ({now.dialect})"),
    ]


@connected
def inspect(
    queue: QueueName, server: Server, group: Group = "default", json: AsJson = False
) -> None:
    """Show how full a queue is."""
    with server.queue(queue, group) as opened:
        now = take(opened, group)
    if json:
        show.as_json(asdict(now))
    else:
        title = f"queue: {queue}  group: {group}"
        show.console().print(show.facts(rows(now), title))


_CHANGES = {"stream depth": "stream_depth", "DLQ depth": "dlq_depth", "pending": "pending",
            "delayed depth": "delayed_depth", "  waiting": "waiting"}  # fmt: skip


def frame(now: Snapshot, before: Snapshot | None, every_ms: int) -> Stack:
    """One picture of `watch`: the facts, with what changed since the last one."""
    pairs: list[tuple[str, object]] = []
    for name, value in rows(now):
        cell = Text(show.clean(value))
        field = _CHANGES.get(name)
        if before is not None and field is not None:
            change = getattr(now, field) - getattr(before, field)
            style = "green" if change < 0 else "yellow" if change else "dim"
            cell.append(f"  {change:+d}" if change else "  =", style)
        pairs.append((name, cell))
    head = Text(f"{iso(wall_clock())}  every {every_ms} ms, Ctrl-C ends", style="dim")
    return Stack(show.facts(pairs, f"queue: {now.queue}  group: {now.group}"), head)


@connected
def watch(
    queue: QueueName,
    server: Server,
    group: Group = "default",
    interval_ms: Annotated[
        int, typer.Option(metavar="MS", min=1, max=86_400_000, help="How often to look.")
    ] = 1000,
    count: Annotated[
        int, typer.Option(metavar="N", min=0, help="End after so many looks; 0: never.")
    ] = 0,
    json: AsJson = False,
) -> None:
    """Watch a queue live, until Ctrl-C. With --json, one line for each look."""
    with server.queue(queue, group) as opened:
        if json:
            for now, _ in _looks(opened, group, interval_ms, count):
                show.as_json({"at_ms": wall_clock(), **asdict(now)}, line=True)
            return
        out = show.console()
        with Live(console=out, auto_refresh=False) as live:
            for now, before in _looks(opened, group, interval_ms, count):
                live.update(frame(now, before, interval_ms), refresh=True)


def _looks(queue: Queue, group: str, interval_ms: int, count: int) -> Any:
    before, left = None, count
    while True:
        now = take(queue, group)
        yield now, before
        before, left = now, left - 1
        if left == 0:
            return
        time.sleep(interval_ms / 1000)


@connected
def consumers(
    queue: QueueName,
    server: Server,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Only this consumer group.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List who takes jobs from a queue, and who leads: promotes due jobs, fires repeats."""
    with server.queue(queue) as opened:
        keys, drive = opened.keys, opened.drive
        found = [each for each in drive.run(browsing.groups(keys)) if group in (None, each.name)]
        members = drive.many([delivery.consumers(keys, each.name) for each in found])
        locks = [keys.promoter_lock, keys.scheduler_lock]
        leaders = drive.many([command("GET", lock, parse=as_is) for lock in locks])
    promoter, scheduler = (raw.decode("utf-8", "replace") if raw else None for raw in leaders)
    listed = [
        {"group": where.name, **asdict(each), "promoter": each.name == promoter}
        for where, group_members in zip(found, members, strict=True)
        for each in group_members
    ]
    if json:
        leading = {"promoter": promoter, "scheduler": scheduler}
        show.as_json({"queue": queue, "leaders": leading, "consumers": listed})
        return
    if not listed:
        show.say(f"nobody takes jobs from {queue!r}")
    else:
        columns = [
            Column("consumer"), Column("group"), Column("holds", right=True),
            Column("silent for", right=True), Column("leads"),
        ]  # fmt: skip
        show.table(
            columns,
            [
                (each["name"], each["group"], each["pending"], short(each["idle_ms"]),
                 "promoter" if each["promoter"] else "")
                for each in listed
            ],
        )  # fmt: skip
    show.say("")
    show.say(f"promoter:  {promoter or '-'}", style="dim")
    show.say(f"scheduler: {scheduler or '-'}", style="dim")
