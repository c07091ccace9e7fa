"""A job id that is used again: the result and the progress of the earlier job are deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands import enqueue, inspect
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import WaitTimeout
from airflow_provider_chasqui.core.ids import ProducerCall
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.job_encoder import encode_new_job
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.queue import Queue
from tests.support.manual_worker import finish, take

HOUR = timedelta(hours=1)
TIMEOUT = timedelta(seconds=20)
IDS = ["report", "other"]


def run(queue: Queue, result: Any) -> None:
    """Run all waiting jobs: each reports progress and returns a result."""
    for entry in take(queue):
        for progress in (50, {"step": 2}):
            encoded = {entry.job.id: encode_payload(progress)}
            queue.client.execute(inspect.save_progress(queue.keys, encoded))
        finish(queue, entry, result)


def add_one(queue: Queue, **options: Any) -> None:
    for job_id in IDS:
        assert queue.add("tuesday", job_id=job_id, **options).created


def add_many(queue: Queue, **options: Any) -> None:
    jobs = [NewJob("tuesday", job_id=job_id, **options) for job_id in IDS]
    assert all(result.created for result in queue.add_many([NewJob("first"), *jobs]))


@pytest.mark.parametrize("config", [QueueConfig(), QueueConfig(max_len=100)], ids=["", "max_len"])
@pytest.mark.parametrize("dedup_ttl", [None, HOUR], ids=["", "dedup"])
@pytest.mark.parametrize("delay", [None, HOUR], ids=["now", "delayed"])
@pytest.mark.parametrize("add", [add_one, add_many])
def test_a_job_never_has_the_result_of_an_earlier_one(
    server, queue_name, add, delay, dedup_ttl, config
):
    with Queue(queue_name, server.url, config=config) as queue:
        add_one(queue, dedup_ttl=dedup_ttl)
        run(queue, "monday")
        assert queue.wait("report", timeout=TIMEOUT) == "monday"
        assert queue.progress("report") is not None
        if dedup_ttl:
            queue.client.execute(_delete_dedup_markers(queue))
        add(queue, delay=delay, dedup_ttl=dedup_ttl)
        assert [queue.result(job_id) for job_id in IDS] == [None, None]
        assert [queue.progress(job_id) for job_id in IDS] == [None, None]
        with pytest.raises(WaitTimeout):
            queue.wait("report", timeout=timedelta(milliseconds=50))
        if delay is None:
            run(queue, "tuesday")
            assert queue.wait("report", timeout=TIMEOUT) == "tuesday"


def _delete_dedup_markers(queue: Queue) -> Any:
    from airflow_provider_chasqui.core.command import as_int, redis_command

    return redis_command("DEL", *map(queue.keys.dedup_marker, IDS), parse=as_int)


@pytest.mark.parametrize("delay", [None, HOUR], ids=["now", "delayed"])
def test_a_duplicate_that_is_not_added_deletes_nothing(
    queue: Queue, delay: timedelta | None
) -> None:
    queue.add("monday", job_id="report", dedup_ttl=HOUR)
    run(queue, "monday")
    assert not queue.add("tuesday", job_id="report", dedup_ttl=HOUR, delay=delay).created
    assert queue.result("report") == "monday"
    assert queue.progress("report") is not None


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_call_that_is_sent_again_keeps_the_result_of_its_job(queue: Queue, jobs: int) -> None:
    """The reply is lost, and a worker finishes the job before the client sends the call again."""
    now_ms = current_time_ms()
    encoded = [
        encode_new_job(NewJob(number, job_id=f"j{number}"), queue.config, now_ms, str)
        for number in range(jobs)
    ]
    call = ProducerCall("p", 1)

    def send() -> None:
        if jobs == 1:
            queue.client.run_flow(
                enqueue.add_one(queue.keys, encoded[0], queue.config, call, now_ms)
            )
        else:
            queue.client.run_flow(enqueue.add_many(queue.keys, encoded, queue.config, call, now_ms))

    send()
    run(queue, "result")
    send()
    assert queue.depth().waiting == 0
    assert [queue.result(f"j{number}") for number in range(jobs)] == ["result"] * jobs
    assert queue.progress("j0") is not None
