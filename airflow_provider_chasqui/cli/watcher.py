"""watcher: how the reader that starts DAG runs from messages is doing."""

from __future__ import annotations

from dataclasses import asdict

from airflow_provider_chasqui.cli import show
from airflow_provider_chasqui.cli.server import AsJson, Group, QueueName, Server, connected
from airflow_provider_chasqui.cli.spans import short


@connected
def watcher(
    queue: QueueName, server: Server, group: Group = "default", json: AsJson = False
) -> None:
    """Show the watcher that starts DAG runs from a queue: its lag, and what it saw last."""
    with server.queue(queue, group) as opened:
        status = opened.watcher()
    if json:
        show.as_json(asdict(status))
        return
    seen = status.watcher
    if seen is None:
        show.say(f"no watcher was seen at {queue!r} within a day")
        return
    pairs: list[tuple[str, object]] = [
        ("lag", "-" if status.lag is None else status.lag),
        ("pending", status.pending),
        ("delivered", seen.delivered),
        ("last delivered", seen.last_delivered or "-"),
        ("last error", seen.last_error or "-"),
        ("seen", f"{short((status.seen_s_ago or 0) * 1000)} ago, on {seen.host}"),
    ]
    show.console().print(show.facts(pairs, f"queue: {queue}  group: {group}"))
