"""`chasqui exporter`: metrics of queues without a worker."""

from __future__ import annotations

import logging
import signal
import threading
from datetime import timedelta
from typing import Annotated

import typer

from airflow_provider_chasqui.cli.parsing import parse_duration
from airflow_provider_chasqui.cli.server import GroupOption, Server, with_connection_options
from airflow_provider_chasqui.cli.worker import LogLevel
from airflow_provider_chasqui.engine.exporter import MAX_QUEUES, QueueExporter
from airflow_provider_chasqui.engine.http_server import MetricsServer
from airflow_provider_chasqui.supervisor import logging_setup

log = logging.getLogger("chasqui")


@with_connection_options
def run_exporter(
    server: Server,
    queue_names: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="QUEUE",
            help="Queue to export. Can be repeated. Default: all queues on the server; on a "
            "cluster, name them.",
        ),
    ] = None,
    group: GroupOption = "default",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port to listen on.")
    ] = 9101,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "0.0.0.0",
    interval: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Time between two reads of the server. Default: 5s.",
        ),
    ] = timedelta(seconds=5),
    ahead: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="/work/QUEUE also counts jobs that become due within this time, so that a worker "
            "has started by then. Default: 0s.",
        ),
    ] = timedelta(0),
    worker_timeout: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="A worker that has not called the server for this time counts as gone. "
            "Default: 1m.",
        ),
    ] = timedelta(minutes=1),
    max_queues: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=10_000, help="Maximum number of discovered queues."),
    ] = MAX_QUEUES,
    batches: Annotated[
        bool,
        typer.Option(
            "--batches",
            help="Export the number of unfinished batches, and for how long one has made no "
            "progress. Scans the keys of the server.",
        ),
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="Log level.")] = LogLevel.info,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON lines.")] = False,
) -> None:
    """Export metrics of queues: /metrics for Prometheus, /work/QUEUE for KEDA, /healthz, /readyz.

    It needs no worker, so it also reports queues without a consumer. Needs the extra `metrics`.
    """
    logging_setup.configure(log_level.value, log_json, 0)
    exporter = QueueExporter(
        server.target,
        queue_names or (),
        group=group,
        dialect=server.dialect,
        interval=interval.total_seconds(),
        ahead=ahead.total_seconds(),
        worker_timeout=worker_timeout.total_seconds(),
        max_queues=max_queues,
        batches=batches,
    )
    http_server = MetricsServer(
        exporter, exporter.health, host=host, port=port, respond=exporter.respond
    )
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    exporter.start()
    http_server.start()
    log.info(
        "exporter: listening on %s:%d, reading %s",
        host,
        http_server.port,
        server.target.display_name,
    )
    stopped.wait()
    http_server.close()
    exporter.close()
