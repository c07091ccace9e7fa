"""`make demo`: see a queue at work in a few seconds; needs nothing but Python."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.ops.looking import Depth
from airflow_provider_chasqui.core.policy import Backoff, RetryPolicy
from airflow_provider_chasqui.core.schedule import Cron, Every
from airflow_provider_chasqui.embedded import EmbeddedServer
from airflow_provider_chasqui.queue import Queue

BATCH = 50_000
_COLOURS = {"waiting": "green", "delayed": "yellow", "unknown": "dim", "dead": "red"}


def main() -> None:
    """Start a server, hand jobs off in several ways, and show where they are."""
    console = Console(highlight=False)
    console.print()
    console.print(Panel.fit("[bold]Chasqui[/] · durable jobs on Redis Streams", style="cyan"))
    began = time.monotonic()
    with EmbeddedServer() as server, Queue("emails", server.url) as queue:
        took = (time.monotonic() - began) * 1000
        _step(console, 1, "A server of its own", f"Valkey at {server.url}, up in {took:.0f} ms")
        _one_by_one(console, queue)
        _batch(console, queue)
        _repeats(console, queue)
        _step(console, 5, "How full the queue is", "one round trip")
        console.print(_indent(_depth(queue.depth())))
    console.print()
    console.print(f"[green]Done[/] in {time.monotonic() - began:.1f} s; the server is gone again.")
    console.print()


def _step(console: Console, number: int, title: str, note: str) -> None:
    console.print()
    console.print(f"[bold cyan]{number}[/]  [bold]{title}[/]  [dim]{note}[/]")


def _indent(table: Table) -> Padding:
    return Padding(table, (0, 0, 0, 3))


def _one_by_one(console: Console, queue: Queue) -> None:
    hour = timedelta(hours=1)
    patient = RetryPolicy(5, Backoff("exponential", 1000, max_delay_ms=60_000))
    digest = NewJob({"to": "edsger@example.org"}, "digest", "digest-1", unique=24 * hour)
    kinds = [
        ("now", NewJob({"to": "ada@example.org"}, "welcome")),
        ("in an hour", NewJob({"to": "alan@example.org"}, "remind", delay=hour)),
        ("with retries", NewJob({"to": "grace@example.org"}, "invoice", retry=patient)),
        ("once a day", digest),
        ("the same again", digest),
        ("taken back", NewJob({"to": "barbara@example.org"}, "oops", "oops-1", delay=hour)),
    ]
    added = queue.add_many([job for _, job in kinds])
    queue.cancel("oops-1")
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("job", "id", "added", "now it is"):
        table.add_column(column, no_wrap=True)
    for (label, _), result in zip(kinds, added, strict=True):
        state = queue.find(result.id).state
        shown = "cancelled" if state == "unknown" else state
        fresh = "[green]yes[/]" if result.fresh else "[dim]no[/]"
        table.add_row(label, result.id, fresh, Text(shown, _COLOURS[state]))
    _step(console, 2, "Jobs of every kind", "added in one call, then looked up by id")
    console.print(_indent(table))


def _batch(console: Console, queue: Queue) -> None:
    _step(console, 3, f"A batch of {BATCH:,}", "every job once, however often the call is repeated")
    columns = (
        TextColumn("  "), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=BATCH)

        def payloads() -> Iterator[dict[str, int]]:
            for number in range(BATCH):
                if number % 1000 == 0:
                    progress.update(task, completed=number)
                yield {"customer": number}
            progress.update(task, completed=BATCH)

        began = time.monotonic()
        batch = queue.add_batch(payloads(), batch_id="newsletter", name="newsletter")
        rate = BATCH / (time.monotonic() - began)
    before = queue.depth().waiting
    queue.add_batch(({"customer": n} for n in range(BATCH)), batch_id="newsletter")
    again = queue.depth().waiting - before
    state = queue.batch(batch.id)
    console.print(
        f"   [bold]{rate:,.0f}[/] jobs/s · sent [bold]{state.sent:,}[/] of {state.total:,}, "
        f"done {state.done:,} · the same call again added [bold]{again}[/]"
    )


def _repeats(console: Console, queue: Queue) -> None:
    queue.repeat({"report": "daily"}, Cron("0 7 * * 1-5", "Europe/Berlin"), name="report")
    queue.repeat({"ping": True}, Every(60_000), name="heartbeat")
    _step(console, 4, "Jobs by the clock", "cron with a time zone, or every so often")
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("repeat", "next fire (UTC)"):
        table.add_column(column, no_wrap=True)
    for status in queue.repeats():
        fire = datetime.fromtimestamp(status.next_fire_ms / 1000, UTC)
        table.add_row(status.repeat.key, f"{fire:%a %d %b %Y, %H:%M:%S}")
    console.print(_indent(table))


def _depth(depth: Depth) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 3, 0, 0))
    counts = {
        "waiting": depth.waiting,
        "running": depth.running,
        "delayed": depth.delayed,
        "dead": depth.dead,
        "repeats": depth.repeats,
    }
    for label in counts:
        table.add_column(label, justify="right", style="bold")
    table.add_row(*(f"{count:,}" for count in counts.values()))
    return table


if __name__ == "__main__":
    main()
