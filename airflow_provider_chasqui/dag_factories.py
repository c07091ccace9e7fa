"""DAGs that are made by calling a function: put the call into a file of your DAGs folder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.operators.dlq import ChasquiReplayDlqOperator

# A person who presses the button sees first what would be replayed; the schedule replays.
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
    older_than: float = 0,
    reason: str | None = None,
    chasqui_conn_id: str = DEFAULT_CONN_ID,
    **dag_options: Any,
) -> DAG:
    """Return a DAG that replays the dead letters of one or several queues on a schedule.

    No job is replayed more than `max_replays` times, so that one which can never succeed comes to rest
    in the dead-letter queue. Each value can be changed for a single run in the form of "Trigger
    DAG"; a run by hand is a dry run unless `dry_run` is set to false there.
    """
    queues = [queue_name] if isinstance(queue_name, str) else list(queue_name)
    params = {
        "limit": Param(limit, type=["null", "integer"], minimum=1, title="At most so many letters"),
        "rate_limit": Param(
            rate_limit, type=["null", "number"], exclusiveMinimum=0, title="Jobs a second"
        ),
        "max_replays": Param(
            max_replays, type="integer", minimum=1, title="Replays of one job, in all"
        ),
        "older_than": Param(
            older_than, type="number", minimum=0, title="Buried at least so many seconds ago"
        ),
        "reason": Param(reason, type=["null", "string"], title="Only letters with this reason"),
        "job_name": Param(None, type=["null", "string"], title="Only jobs with this name"),
        "dry_run": Param(
            None, type=["null", "boolean"], title="Only count (empty: in runs by hand)"
        ),
    }
    options: dict[str, Any] = {
        "max_active_runs": 1,
        "catchup": False,
        "tags": ["chasqui"],
    } | dag_options
    with DAG(dag_id, schedule=schedule, start_date=start_date, params=params, **options) as dag:
        for queue in queues:
            ChasquiReplayDlqOperator(
                task_id="replay" if len(queues) == 1 else f"replay_{_safe_task_id(queue)}",
                queue_name=queue,
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


def _safe_task_id(queue_name: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "_" for c in queue_name)
