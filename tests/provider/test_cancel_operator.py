"""ChasquiCancelOperator in a DAG run, with a real Airflow and a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.command import as_int, as_raw, redis_command
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.operators.cancel import ChasquiCancelOperator
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import HERE, Dags, connect
from tests.support.manual_worker import enlarge_batch

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(180)]


@pytest.fixture
def connected(native_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    connect(monkeypatch, native_server)
    return native_server


def test_batches_and_jobs_are_cancelled(
    dags: Callable[[Path], Dags], connected: Server, queue: Queue
) -> None:
    job_id = queue.add(1, delay=timedelta(hours=1)).job_id
    queue.add_batch([1, 2], batch_id="by-id")
    run = dags(HERE / "dags").run("cancelled", queue=queue.name, job=job_id)
    assert run.state == "success"
    handle = run.xcom("send")
    assert run.xcom("handle") == {
        "queue_name": queue.name,
        "batch_id": handle["batch_id"],
        "result": "cancelled",
    }
    assert run.xcom("batch_id")["result"] == "cancelled"
    assert run.xcom("job") == {"queue_name": queue.name, "job_id": job_id, "result": "cancelled"}
    assert run.xcom("missing")["result"] == "not_found"
    assert queue.batch_progress(handle["batch_id"]).cancelled
    assert queue.batch_progress("by-id").cancelled
    assert queue.job_status(job_id).state == "unknown"


def test_a_batch_of_a_million_jobs_is_cancelled_in_milliseconds(
    connected: Server, queue: Queue
) -> None:
    def server_time_us() -> int:
        reply = queue.client.execute(redis_command("INFO", "commandstats", parse=as_raw))
        return sum(map(int, re.findall(r"usec=(\d+)", reply.decode())))

    batch = queue.add_batch([0])
    enlarge_batch(queue, batch.batch_id, 1_000_000)
    memory = redis_command("MEMORY", "USAGE", queue.keys.batch(batch.batch_id), parse=as_int)
    memory_before, time_before = queue.client.execute(memory), server_time_us()
    assert queue.cancel_batch(batch.batch_id) == "cancelled"
    assert server_time_us() - time_before < 10_000
    assert queue.client.execute(memory) - memory_before < 200
    progress = queue.batch_progress(batch.batch_id)
    assert (progress.cancelled, progress.dead) == (True, 0)


def test_either_a_batch_or_a_job_is_cancelled() -> None:
    for arguments in ({}, {"batch": "b", "job_id": "j"}):
        with pytest.raises(InvalidArgument, match="either batch or job_id"):
            ChasquiCancelOperator(task_id="cancel", queue_name="q", **arguments)
