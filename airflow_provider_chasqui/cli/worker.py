"""worker: run handlers on queues, in as many processes as you like."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
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


class LogLevel(StrEnum):
    """How much is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


@dataclass(frozen=True)
class WorkerConfig:
    """What every process of a worker is told; it holds the password, so it travels by pipe."""

    handlers_path: str
    cwd: str
    queue_names: tuple[str, ...]
    target: RedisTarget
    dialect: str | None
    consumer_config: ConsumerConfig
    log_level: str = "info"
    log_json: bool = False


@with_connection_options
def run_worker(
    handlers_path: Annotated[
        str, typer.Argument(metavar="MODULE:HANDLERS", help="A Handlers, a function or a factory.")
    ],
    server: Server,
    queue_names: Annotated[
        list[str], typer.Option("--queue", "-q", metavar="QUEUE", help="Which; may be given again.")
    ],
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency",
            "-c",
            metavar="N",
            min=1,
            max=100_000,
            help="Jobs at once, per queue and process.",
        ),
    ] = 100,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", "-p", metavar="N", min=1, max=1024, help="One per core is a good start."
        ),
    ] = 1,
    max_attempts: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=U32_MAX, help="Runs of a job that does not say itself."
        ),
    ] = 25,
    store_results: Annotated[
        bool, typer.Option("--store-results", help="Keep what handlers return.")
    ] = False,
    result_ttl: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            show_default="1h",
            help="How long they are kept.",
        ),
    ] = timedelta(hours=1),
    group: Annotated[str, typer.Option(metavar="NAME", help="Consumer group.")] = "default",
    claim_after: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            show_default="30s",
            help="When a dead worker's jobs are taken over.",
        ),
    ] = timedelta(seconds=30),
    shutdown_timeout: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            show_default="30s",
            help="Time to finish what runs, when stopping.",
        ),
    ] = timedelta(seconds=30),
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Serve /metrics, /healthz and /readyz here."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen.")
    ] = "0.0.0.0",
    log_level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="How much to say.")
    ] = LogLevel.info,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log in JSON.")] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: restart when a .py file changes.")
    ] = False,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C; what runs may finish, the rest is handed back.

    Exit codes: 0 drained, 1 trouble, 2 bad usage, 128+n ended at once by a second signal n.
    """
    from airflow_provider_chasqui.supervisor.supervisor import Supervisor

    for name in queue_names:
        Keys(name)
    if len(set(queue_names)) != len(queue_names):
        raise InvalidArgument("a queue was given twice; raise --concurrency instead")
    if ":" not in handlers_path:
        raise InvalidArgument(
            f"handlers are named module:attribute, as my_app.jobs:handlers; not {handlers_path!r}"
        )
    config = ConsumerConfig(
        group=group,
        concurrency=concurrency,
        retry=RetryDefaults(max_attempts=max_attempts),
        store_results=store_results,
        result_ttl=result_ttl,
        claim_after=claim_after,
        shutdown_timeout=shutdown_timeout,
    )
    # A worker outlasts a failover, however long: it is no person who waits for an answer.
    target = replace(server.target, retries=RedisTarget().retries)
    plan = WorkerConfig(
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
    supervisor = Supervisor(plan, processes, address, Path.cwd() if reload else None)
    raise typer.Exit(asyncio.run(supervisor.run()))
