"""DAGs of test_dead_letter_operators.py. The tests pass parameters in the conf of the run."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_chasqui.core.config import ConsumerConfig, PromoterConfig
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.notifications.chasqui import ChasquiNotifier
from airflow_provider_chasqui.operators.consume import ChasquiConsumeOperator
from airflow_provider_chasqui.operators.dlq import (
    ChasquiPurgeDlqOperator,
    ChasquiReplayDlqOperator,
)

START = datetime(2026, 1, 1)
QUEUE = "{{ dag_run.conf.queue }}"

with DAG("replay", schedule=None, start_date=START, render_template_as_native_obj=True):
    ChasquiReplayDlqOperator(
        task_id="replay",
        queue_name=QUEUE,
        reason="{{ dag_run.conf.get('reason') }}",
        job_name="{{ dag_run.conf.get('name') }}",
        text="{{ dag_run.conf.get('text') }}",
        limit="{{ dag_run.conf.get('limit') }}",
        max_replays="{{ dag_run.conf.get('max_replays') }}",
        rate_limit="{{ dag_run.conf.get('rate') }}",
        dry_run="{{ dag_run.conf.get('dry_run', False) }}",
    )

with DAG("purge", schedule=None, start_date=START):
    ChasquiPurgeDlqOperator(task_id="purge", queue_name=QUEUE, job_name="bad")


async def square(job: Any) -> Any:
    if job.payload == 13:
        raise ValueError("unlucky")
    return job.payload**2


def require_payload(job: Any) -> None:
    assert job.payload is not None


CONFIG = ConsumerConfig(
    store_results=True,
    block_timeout=timedelta(milliseconds=100),
    promoter=PromoterConfig(poll_interval=timedelta(milliseconds=20)),
)

with DAG("consume", schedule=None, start_date=START):
    ChasquiConsumeOperator(
        task_id="drain", queue_name=QUEUE, handler=square, config=CONFIG, max_duration=60
    )

with DAG("consume_some", schedule=None, start_date=START):
    ChasquiConsumeOperator(
        task_id="some", queue_name=QUEUE, handler=square, max_jobs=7, config=CONFIG
    )
    ChasquiConsumeOperator(
        task_id="plain", queue_name=QUEUE, handler=require_payload, max_jobs=5, config=CONFIG
    )

with DAG("consume_for_a_time", schedule=None, start_date=START):
    ChasquiConsumeOperator(
        task_id="work",
        queue_name=QUEUE,
        handler=f"{__name__}:square",
        stop_when_empty=False,
        max_duration="1s",
        config=CONFIG,
    )

with DAG("lease", schedule=None, start_date=START):

    @task
    def ack(leases: list[dict[str, Any]], queue: str) -> list[Any]:
        with ChasquiHook() as hook, hook.lease_queue(queue) as leased:
            leased.ack(*[lease["token"] for lease in leases])
        return [lease["payload"] for lease in leases]

    leases = ChasquiConsumeOperator(task_id="lease", queue_name=QUEUE, max_leases=3)
    ack(leases.output, QUEUE)


with DAG("telling", schedule=None, start_date=START):

    @task(
        on_failure_callback=ChasquiNotifier(
            queue_name=QUEUE, job_name="task-failed", payload={"day": "{{ ds }}", "to": "ops"}
        )
    )
    def fail() -> None:
        raise RuntimeError("no luck today")

    fail()
