"""`DeclaredJob.map`: a task group that sends rows, runs them, waits and collects the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup

from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.validation import parse_int
from airflow_provider_chasqui.operators._parsing import safe_task_id
from airflow_provider_chasqui.operators.collect import ChasquiCollectOperator
from airflow_provider_chasqui.operators.consume import ChasquiConsumeOperator
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.config import ConsumerConfig
    from airflow_provider_chasqui.jobs import DeclaredJob

# A worker that was killed is started again; the jobs that it ran are claimed in any case.
_WORKER_OPTIONS: Mapping[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=10)}


class JobTaskGroup(TaskGroup):
    """The task group of `DeclaredJob.map`.

    `send`, `work` (None without workers), `wait` and `collect` (None without a target) are its
    tasks.
    """

    send: ChasquiEnqueueOperator
    work: Any
    wait: ChasquiBatchSensor
    collect: ChasquiCollectOperator | None

    @property
    def output(self) -> Any:
        """The report of the collect task, or the counts of the batch if there is none."""
        return (self.collect or self.wait).output


def map_job(
    job: DeclaredJob[Any, Any],
    source: Any,
    *,
    results: Any = None,
    failures: Any = None,
    workers: int = 1,
    concurrency: int | None = None,
    key_column: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    schema: Any = None,
    batch_id: str | None = None,
    max_failed: int | None = 0,
    max_failed_ratio: float | None = None,
    wait_timeout: timedelta | float | str | None = None,
    group_id: str | None = None,
    config: ConsumerConfig | None = None,
    task_options: Mapping[str, Any] | None = None,
    worker_options: Mapping[str, Any] | None = None,
    delay: Any = None,
    run_at: Any = None,
    retry: Any = None,
) -> JobTaskGroup:
    """Add the tasks to the DAG; `DeclaredJob.map` documents the parameters."""
    parse_int("workers", workers, 0)
    if config is not None and concurrency is not None:
        raise InvalidArgument("pass concurrency or config, which has a concurrency, but not both")
    common = {"chasqui_conn_id": job.chasqui_conn_id, **(task_options or {})}
    group = JobTaskGroup(group_id or safe_task_id(job.name))
    with group:
        group.send = ChasquiEnqueueOperator(
            task_id="send",
            queue_name=job.queue_name,
            job_name=job.name,
            source=source,
            key_column=key_column,
            columns=columns,
            rename=rename,
            batch_id=batch_id,
            delay=delay,
            run_at=run_at,
            job_retry=retry,
            **common,
        )
        timeout: dict[str, Any] = {}
        if wait_timeout is not None:
            seconds = parse_duration(wait_timeout, "wait_timeout").total_seconds()
            timeout = {"timeout": seconds}
        group.wait = ChasquiBatchSensor(
            task_id="wait",
            batch=group.send.output,
            max_failed=max_failed,
            max_failed_ratio=max_failed_ratio,
            deferrable=True,
            **timeout,
            **common,
        )
        group.work = None
        if workers:
            group.work = ChasquiConsumeOperator.partial(
                task_id="work",
                queue_name=job.queue_name,
                handler=job,
                until_batch=group.send.output,
                config=config,
                concurrency=concurrency,
                store_results=True,
                **{**_WORKER_OPTIONS, **common, **(worker_options or {})},
            ).expand(worker_number=list(range(1, workers + 1)))
            group.work >> group.wait
        group.collect = None
        if results is not None or failures is not None:
            group.collect = ChasquiCollectOperator(
                task_id="collect",
                batch=group.send.output,
                results=results,
                failures=failures,
                key_column=key_column,
                schema=schema,
                **common,
            )
            group.wait >> group.collect
    return group
