"""DAGs of test_enqueue.py. The tests pass parameters in the conf of the run."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import NoReturn

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, get_current_context, task

from airflow_provider_chasqui.assets.chasqui import create_asset
from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.operators.cancel import ChasquiCancelOperator
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor
from airflow_provider_chasqui.sensors.depth import ChasquiQueueDepthSensor
from airflow_provider_chasqui.sensors.job import ChasquiJobSensor

START = datetime(2026, 1, 1)
QUEUE = "{{ dag_run.conf.queue }}"


def dag(dag_id: str, **options: object) -> DAG:
    return DAG(dag_id, schedule=None, start_date=START, **options)


with dag("one", render_template_as_native_obj=True):
    ChasquiEnqueueOperator(
        task_id="send",
        queue_name=QUEUE,
        payload={"to": "{{ dag_run.conf.to }}", "day": "{{ ds }}", "deep": [{"n": 1}]},
        job_name="welcome",
    )

for deferrable in (True, False):
    with dag(f"wait_{'deferred' if deferrable else 'in_process'}"):
        sent = ChasquiEnqueueOperator(
            task_id="send",
            queue_name=QUEUE,
            payload={"n": "{{ dag_run.conf.n }}"},
            wait_for_completion=True,
            wait_timeout=30,
            deferrable=deferrable,
            job_retry={"max_attempts": 2, "backoff": {"kind": "fixed", "delay": "10ms"}},
        )

        @task
        def use(result: object) -> object:
            return {"used": result}

        use(sent.output["result"])

    with dag(f"many_{'deferred' if deferrable else 'in_process'}"):
        ChasquiEnqueueOperator(
            task_id="send",
            queue_name=QUEUE,
            payloads=[1, 2, 3],
            wait_for_completion=True,
            wait_timeout=30,
            deferrable=deferrable,
            max_failed=1,
        )

    with dag(f"templated_{'deferred' if deferrable else 'in_process'}"):
        ChasquiEnqueueOperator(
            task_id="send",
            queue_name=QUEUE,
            batch=[1, 2, 3],
            wait_for_completion=True,
            wait_timeout="{{ dag_run.conf.timeout }}",
            run_at="{{ none }}",
            job_retry="{{ 1 }}",
            max_failed="{{ dag_run.conf.max_failed }}",
            progress_interval="{{ 5 }}",
            deferrable=deferrable,
        )

    with dag(f"batch_{'deferred' if deferrable else 'in_process'}"):
        handle = ChasquiEnqueueOperator(
            task_id="send", queue_name=QUEUE, batch=list(range(500)), job_retry=1
        )
        ChasquiBatchSensor(
            task_id="wait",
            batch=handle.output,
            max_failed=None,
            max_failed_ratio=0.01,
            timeout=30,
            deferrable=deferrable,
        )

    with dag(f"sensors_{'deferred' if deferrable else 'in_process'}"):
        ChasquiJobSensor(
            task_id="job",
            queue_name=QUEUE,
            job_id="{{ dag_run.conf.job }}",
            timeout=30,
            deferrable=deferrable,
        ) >> ChasquiQueueDepthSensor(
            task_id="depth",
            queue_name=QUEUE,
            max_waiting=0,
            max_dead=0,
            poke_interval="100ms",
            timeout=30,
            deferrable=deferrable,
        )

with dag("rescheduled"):
    ChasquiJobSensor(
        task_id="job", queue_name=QUEUE, job_id="{{ dag_run.conf.job }}", mode="reschedule"
    )

for mode in ("deferred", "in_process", "rescheduled"):
    with dag(f"dead_job_sensors_{mode}"):
        for soft in (False, True):
            ChasquiJobSensor(
                task_id="soft" if soft else "hard",
                queue_name=QUEUE,
                job_id="{{ dag_run.conf.job }}",
                soft_fail=soft,
                deferrable=mode == "deferred",
                mode="reschedule" if mode == "rescheduled" else "poke",
                timeout=30,
            )

with dag("short_timeout"):
    for deferrable in (False, True):
        suffix = "deferred" if deferrable else "in_task"
        ChasquiEnqueueOperator(
            task_id=f"send_{suffix}",
            queue_name=QUEUE,
            payload=1,
            wait_for_completion=True,
            wait_timeout=0.5,
            deferrable=deferrable,
        )
        ChasquiEnqueueOperator(
            task_id=f"send_batch_{suffix}",
            queue_name=QUEUE,
            payloads=[1, 2, 3],
            wait_for_completion=True,
            wait_timeout=0.5,
            deferrable=deferrable,
        )
    ChasquiQueueDepthSensor(
        task_id="sense",
        queue_name=QUEUE,
        max_waiting=-1,
        timeout=0.5,
        soft_fail=True,
        deferrable=False,
    )

for deferrable in (True, False):
    with dag(f"with_outlet_{'deferred' if deferrable else 'in_process'}"):
        ChasquiEnqueueOperator(
            task_id="send",
            queue_name=QUEUE,
            batch=[1, 2, 3],
            wait_for_completion=True,
            wait_timeout=30,
            deferrable=deferrable,
            outlets=[create_asset(queue_name="emails", host="redis")],
        )

with dag("with_outlet"):
    ChasquiEnqueueOperator(
        task_id="send",
        queue_name=QUEUE,
        batch=[1, 2, 3],
        outlets=[create_asset(queue_name="emails", host="redis")],
    )

with dag("explicit_job_id"):
    ChasquiEnqueueOperator(
        task_id="send",
        queue_name=QUEUE,
        payload=1,
        job_id="invoice-{{ dag_run.conf.n }}",
        wait_for_completion=True,
        wait_timeout=30,
        deferrable=True,
    )

with dag("text_of_json_files"):

    @task.chasqui(queue_name=QUEUE, returns="batch")
    def paths(manifest: str):
        return [{"path": manifest}, {"path": "{{ ds }}.json"}]

    ChasquiEnqueueOperator(
        task_id="single", queue_name=QUEUE, payload={"path": "s3://bucket/{{ ds }}/part-0.json"}
    )
    ChasquiEnqueueOperator(
        task_id="several", queue_name=QUEUE, batch=[{"path": "{{ ds }}/a.json"}, {"card": "4111"}]
    )
    paths("s3://bucket/manifest.json")

with dag("upstream_payloads"):

    @task
    def upstream(value: object) -> object:
        return value

    @task
    def rows_of(name: str) -> object:
        return None if name == "nothing" else []

    ChasquiEnqueueOperator(task_id="nothing", queue_name=QUEUE, batch=rows_of("nothing"))
    ChasquiEnqueueOperator(
        task_id="empty",
        queue_name=QUEUE,
        batch=rows_of("empty"),
        wait_for_completion=True,
        wait_timeout=30,
        deferrable=False,
    )
    ChasquiEnqueueOperator(
        task_id="nested", queue_name=QUEUE, payloads=[upstream("a"), {"deep": [upstream("b")]}]
    )

with dag("mapped"):

    @task
    def rows() -> list[dict[str, int]]:
        return [{"row": n} for n in range(5)]

    ChasquiEnqueueOperator.partial(
        task_id="send", queue_name=QUEUE, wait_for_completion=True, wait_timeout=30, deferrable=True
    ).expand(payload=rows())

with dag("delayed"):
    ChasquiEnqueueOperator(
        task_id="send", queue_name=QUEUE, payload=1, delay="1h", job_name="later"
    )

with dag("invalid_argument"):
    ChasquiEnqueueOperator(
        task_id="send", queue_name=QUEUE, payload=1, delay=-5, retries=3, retry_delay=0.0
    )

for on_retry in ("reattach", "replay"):
    with dag(f"retried_{on_retry}", render_template_as_native_obj=True):
        ChasquiEnqueueOperator(
            task_id="send",
            queue_name=QUEUE,
            payloads="{{ dag_run.conf.payloads }}",
            on_retry=on_retry,
            wait_for_completion=True,
            wait_timeout=30,
            deferrable=True,
        )

for on_change in ("resend", "fail", "keep"):
    with dag(f"changed_{on_change}", render_template_as_native_obj=True):
        ChasquiEnqueueOperator(
            task_id="send",
            queue_name=QUEUE,
            payloads="{{ dag_run.conf.payloads }}",
            on_change=on_change,
        )

with dag("killed_while_sending"):

    @task.chasqui(queue_name=QUEUE, returns="batch", cancel_on_kill=True)
    def produce(dag_run=None, task=None):
        for n in range(12_000):
            if n == 10_000 and dag_run.conf["kill"]:
                task.on_kill()  # after the first pipeline of 16 MiB
            yield {"n": n, "text": "x" * 4_000}

    produce()


class KilledAfterSuccess(ChasquiEnqueueOperator):
    """Operator that is killed after `execute` has returned, as by `task_success_overtime`."""

    def execute(self, context: object) -> object:
        result = super().execute(context)
        self.on_kill()
        return result


with dag("killed_after_success"):
    KilledAfterSuccess(task_id="send", queue_name=QUEUE, batch=[1, 2], cancel_on_kill=True)


class KilledWhileDeferred(ChasquiEnqueueOperator):
    """Operator whose trigger is killed, possibly after a later try attached itself to the batch."""

    def defer(self, *, trigger: object, **options: object) -> NoReturn:
        fields = trigger.serialize()[1]
        if get_current_context()["dag_run"].conf["later_try"]:
            batch_id = fields.get("batch_id") or parse_batch_job_id(fields["job_id"]).batch_id
            with ChasquiHook() as hook:
                hook.queue(self.queue_name).attach_batch(batch_id, "2:later")
        asyncio.run(type(trigger)(**fields).on_kill())
        raise AirflowSkipException("the trigger was killed")


for kind, payloads in (("payload", 1), ("batch", [1, 2])):
    with dag(f"killed_while_deferred_{kind}"):
        KilledWhileDeferred(
            task_id="send",
            queue_name=QUEUE,
            wait_for_completion=True,
            deferrable=True,
            cancel_on_kill=True,
            **{kind: payloads},
        )

with dag("cancelled"):
    to_cancel = ChasquiEnqueueOperator(task_id="send", queue_name=QUEUE, batch=[1, 2, 3])
    ChasquiCancelOperator(task_id="handle", batch=to_cancel.output)
    ChasquiCancelOperator(task_id="batch_id", queue_name=QUEUE, batch="by-id")
    ChasquiCancelOperator(task_id="missing", queue_name=QUEUE, batch="never-sent")
    ChasquiCancelOperator(task_id="job", queue_name=QUEUE, job_id="{{ dag_run.conf.job }}")

with dag("decorated"):

    @task.chasqui(queue_name=QUEUE, returns="batch", job_name="row")
    def produce(count: int):
        for n in range(count):
            yield {"n": n}

    @task.chasqui(queue_name=QUEUE, wait_for_completion=True, wait_timeout=30, deferrable=True)
    def one(handle: dict[str, object]) -> object:
        return {"of": handle["total"]}

    one(produce(7))
