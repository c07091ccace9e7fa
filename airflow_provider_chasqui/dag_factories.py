"""Functions that return complete DAGs. Call them in a file of the DAGs folder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.operators._parsing import safe_task_id
from airflow_provider_chasqui.operators.dlq import ChasquiReplayDlqOperator

# A manual run is a dry run by default. A scheduled run replays.
_DRY_RUN_TEMPLATE = (
    "{{ params.dry_run if params.dry_run is not none else dag_run.run_type == 'manual' }}"
)


def build_dlq_replay_dag(
    dag_id: str,
    *,
    queue_name: str | Sequence[str],
    schedule: Any = "@daily",
    start_date: datetime = datetime(2026, 1, 1),
    limit: int | None = 10_000,
    rate_limit: float | None = 100,
    max_replays: int = 3,
    older_than: timedelta | float | str = 0,
    reason: str | None = None,
    chasqui_conn_id: str = DEFAULT_CONN_ID,
    **dag_options: Any,
) -> DAG:
    """Return a DAG that replays the dead letters of one or several queues on a schedule.

    No job is replayed more than `max_replays` times, so that a job that always fails stays in the
    dead-letter queue. The form of "Trigger DAG" can change every value for a single run. A manual
    run is a dry run unless `dry_run` is set to false in the form.

    :param dag_id: the id of the DAG.
    :param queue_name: the queue, or a sequence of queues. Each queue gets its own task.
    :param schedule: the schedule of the DAG. Default: `@daily`.
    :param start_date: the start date of the DAG. Default: 1 January 2026.
    :param limit: the maximum number of dead letters per queue and run, or None for no limit.
        Default: 10 000.
    :param rate_limit: the maximum number of jobs to replay per second, or None for no limit.
        Default: 100.
    :param max_replays: the maximum number of replays per job. Default: 3.
    :param older_than: the minimum age of the dead letters: a timedelta, a number of seconds, or
        text such as `1h30m`. Default: 0.
    :param reason: only replay dead letters with this reason, such as `retries_exhausted`. Default:
        all reasons.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
    :param dag_options: more arguments of the DAG. They override `max_active_runs=1`,
        `catchup=False` and `tags=["chasqui"]`.
    """
    queues = [queue_name] if isinstance(queue_name, str) else list(queue_name)
    params = {
        "limit": Param(
            limit, type=["null", "integer"], minimum=1, title="Maximum dead letters to replay"
        ),
        "rate_limit": Param(
            rate_limit,
            type=["null", "number"],
            exclusiveMinimum=0,
            title="Maximum jobs per second",
        ),
        "max_replays": Param(
            max_replays, type="integer", minimum=1, title="Maximum replays per job"
        ),
        "older_than": Param(
            _duration_text(older_than, "older_than"),
            type=["string", "number"],
            minimum=0,
            title="Minimum age of the dead letters, in seconds or as 1h30m",
        ),
        "reason": Param(
            reason, type=["null", "string"], title="Only dead letters with this reason"
        ),
        "job_name": Param(None, type=["null", "string"], title="Only jobs with this name"),
        "dry_run": Param(
            None,
            type=["null", "boolean"],
            title="Dry run: only count (default: yes in manual runs)",
        ),
    }
    options: dict[str, Any] = {
        "max_active_runs": 1,
        "catchup": False,
        "tags": ["chasqui"],
    } | dag_options
    with DAG(dag_id, schedule=schedule, start_date=start_date, params=params, **options) as dag:
        for name in queues:
            ChasquiReplayDlqOperator(
                task_id="replay" if len(queues) == 1 else f"replay_{safe_task_id(name)}",
                queue_name=name,
                limit="{{ params.limit }}",
                rate_limit="{{ params.rate_limit }}",
                max_replays="{{ params.max_replays }}",
                older_than="{{ params.older_than }}",
                reason="{{ params.reason or '' }}",
                job_name="{{ params.job_name or '' }}",
                dry_run=_DRY_RUN_TEMPLATE,
                chasqui_conn_id=chasqui_conn_id,
            )
    return dag


def _duration_text(duration: timedelta | float | str, name: str) -> str:
    """Return a duration as text for the form of "Trigger DAG"."""
    seconds = parse_duration(duration, name).total_seconds()
    if isinstance(duration, str):
        return duration
    return f"{int(seconds)}s" if seconds.is_integer() else f"{seconds:.3f}s"
