"""drain rsmq: empty a queue of RSMQ into one of ours."""

from __future__ import annotations

import json as jsons
from dataclasses import asdict
from typing import Annotated, Any

import typer

from airflow_provider_chasqui.cli import show
from airflow_provider_chasqui.cli.server import AsJson, QueueName, Server, connected
from airflow_provider_chasqui.store.target import Target, from_url


def _json_or_text(text: str) -> Any:
    try:
        return jsons.loads(text)
    except (ValueError, RecursionError):
        return text


@connected
def drain_rsmq(
    source: Annotated[str, typer.Argument(metavar="RSMQ_QUEUE", help="Queue to empty.")],
    queue: QueueName,
    server: Server,
    source_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Its server, if it is another one.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="RSMQ's namespace.")] = "rsmq",
    name: Annotated[
        str | None, typer.Option(help="Name of the jobs; else rsmq:RSMQ_QUEUE.")
    ] = None,
    max: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most so many messages.")
    ] = None,
    parse: Annotated[
        bool, typer.Option("--parse", help="Messages are JSON: make the value the payload.")
    ] = False,
    attempts: Annotated[
        bool, typer.Option("--keep-attempts", help="Receives so far count as attempts.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Move every visible message of an RSMQ queue to a queue of ours, oldest first."""
    from airflow_provider_chasqui.rsmq.bridge import drain
    from airflow_provider_chasqui.rsmq.client import RsmqClient

    target: Target = server.target if source_url is None else from_url(source_url)
    with server.queue(queue) as opened, RsmqClient(target, namespace=namespace) as rsmq:
        moved = drain(
            source, opened, rsmq, name=name, max_messages=max, carry_receive_count=attempts,
            convert=_json_or_text if parse else None,
        )  # fmt: skip
    if json:
        show.as_json({"source": source, "queue": queue, **asdict(moved)})
        return
    show.say(f"moved {moved.moved} messages from {source!r} to {queue!r}")
    show.also(
        (moved.duplicates, "had arrived before"),
        (moved.dropped, "had no body and were dropped"),
        (moved.buried, "could not become jobs and are letters now"),
    )
