"""`chasqui migrate rsmq`: move messages from an RSMQ queue."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.server import (
    JsonOption,
    Server,
    with_connection_options,
)
from airflow_provider_chasqui.redis_client.target import RedisTarget, from_url


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@with_connection_options
def from_rsmq(
    qname: Annotated[str, typer.Argument(metavar="RSMQ_QUEUE", help="RSMQ queue to read from.")],
    queue_name: Annotated[str, typer.Argument(metavar="QUEUE", help="Chasqui queue to write to.")],
    server: Server,
    source_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Server of the RSMQ queue, if it is not --url."),
    ] = None,
    namespace: Annotated[str, typer.Option(help="RSMQ namespace.")] = "rsmq",
    job_name: Annotated[
        str | None, typer.Option(help="Job name. Default: rsmq:RSMQ_QUEUE.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum number of messages.")
    ] = None,
    parse_json: Annotated[
        bool,
        typer.Option(
            "--parse-json",
            help="Parse messages as JSON payloads. A message that is not JSON stays text.",
        ),
    ] = False,
    keep_receive_count: Annotated[
        bool, typer.Option("--keep-receive-count", help="Count earlier receives as attempts.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Move every visible message of an RSMQ queue to a Chasqui queue, oldest first."""
    from airflow_provider_chasqui.rsmq.bridge import migrate_from_rsmq
    from airflow_provider_chasqui.rsmq.client import RsmqClient

    target: RedisTarget = server.target if source_url is None else from_url(source_url)
    with server.open_queue(queue_name) as opened, RsmqClient(target, namespace=namespace) as rsmq:
        report = migrate_from_rsmq(
            qname,
            opened,
            rsmq,
            job_name=job_name,
            max_messages=limit,
            keep_receive_count=keep_receive_count,
            convert=_json_or_text if parse_json else None,
        )
    if as_json:
        output.print_json({"source": qname, "queue_name": queue_name, **asdict(report)})
        return
    output.print_line(f"moved {report.moved} messages from {qname!r} to {queue_name!r}")
    output.print_nonzero_counts(
        (report.duplicates, "were moved before"),
        (report.dropped, "had no body and were dropped"),
    )
