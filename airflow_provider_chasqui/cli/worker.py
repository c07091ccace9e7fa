"""`chasqui worker`: run handlers in one or more processes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from airflow_provider_chasqui.cli.parsing import parse_duration
from airflow_provider_chasqui.cli.server import Server, with_connection_options
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.retry import U32_MAX, RetryDefaults
from airflow_provider_chasqui.redis_client.target import RedisTarget
from airflow_provider_chasqui.supervisor.config import WorkerConfig


class LogLevel(StrEnum):
    """Log levels of the worker."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


@with_connection_options
def run_worker(
    handlers_path: Annotated[
        str,
        typer.Argument(
            metavar="MODULE[:HANDLERS]",
            help="A module with jobs (@job), or MODULE:NAME of a job, Handlers, a function, or a "
            "factory of these.",
        ),
    ],
    server: Server,
    queue_names: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="QUEUE",
            show_default=False,
            help="Queue to consume. Can be repeated. Default: the queues of the declared jobs.",
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            "-c",
            metavar="N",
            min=1,
            max=100_000,
            help="Maximum number of running jobs per queue and process.",
        ),
    ] = 100,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            "-p",
            metavar="N",
            min=1,
            max=1024,
            help="Number of processes; start with one per core.",
        ),
    ] = 1,
    max_attempts: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=U32_MAX,
            help="Maximum attempts of jobs without their own policy. 0 dead-letters them unrun.",
        ),
    ] = 25,
    store_results: Annotated[
        bool, typer.Option("--store-results", help="Store the return values of handlers.")
    ] = False,
    result_ttl: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            show_default=False,
            help="TTL of stored results. Default: 1h.",
        ),
    ] = timedelta(hours=1),
    group: Annotated[str, typer.Option(metavar="NAME", help="Consumer group.")] = "default",
    claim_after: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            show_default=False,
            help="Idle time after which jobs of a dead worker are claimed. Default: 30s.",
        ),
    ] = timedelta(seconds=30),
    shutdown_timeout: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            show_default=False,
            help="Time that running jobs get to finish at shutdown. Default: 30s.",
        ),
    ] = timedelta(seconds=30),
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Port of /metrics, /healthz and /readyz. Default: no port. "
            "Needs the extra `metrics`.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address of the metrics server.")
    ] = "0.0.0.0",
    log_level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="Log level.")
    ] = LogLevel.info,
    log_json: Annotated[bool, typer.Option("--log-json", help="Write log lines as JSON.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a .py file changes (for development).")
    ] = False,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C.

    Then running jobs may finish, and jobs that were read and not started are requeued.

    Exit codes: 0 stopped on request, 1 error, 2 usage error, 128+n killed by a second signal n.
    """
    from airflow_provider_chasqui.supervisor.supervisor import Supervisor

    queue_names = queue_names or []
    for name in queue_names:
        Keys(name)
    if len(set(queue_names)) != len(queue_names):
        raise InvalidArgument("a queue was passed twice; raise --concurrency instead")
    config = ConsumerConfig(
        group=group,
        concurrency=concurrency,
        retry=RetryDefaults(max_attempts=max_attempts),
        store_results=store_results,
        result_ttl=result_ttl,
        claim_after=claim_after,
        shutdown_timeout=shutdown_timeout,
    )
    # A worker waits for a failover of any length, unlike an interactive command.
    target = replace(server.target, retries=RedisTarget().retries)
    worker_config = WorkerConfig(
        handlers_path,
        os.getcwd(),
        tuple(queue_names),
        target,
        server.dialect,
        config,
        log_level,
        log_json,
    )
    address = None if metrics_port is None else (metrics_host, metrics_port)
    supervisor = Supervisor(worker_config, processes, address, Path.cwd() if reload else None)
    raise typer.Exit(asyncio.run(supervisor.run()))
