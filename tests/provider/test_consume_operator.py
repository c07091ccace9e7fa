"""ChasquiConsumeOperator: the counts of its runs, and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_chasqui import Context, job
from airflow_provider_chasqui.core.errors import BatchNotFound, ConnectionFailed
from airflow_provider_chasqui.core.outcome import Retry, Snooze, Unrecoverable
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.operators import consume
from airflow_provider_chasqui.operators.consume import ChasquiConsumeOperator, RunLimiter
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import connect


def count_runs(*outcomes: Any) -> tuple[int, int, int]:
    """Return the started, done and failed runs of a handler with these outcomes."""
    limiter = RunLimiter(None)

    def handle(job: Any) -> Any:
        if isinstance(job.outcome, Exception):
            raise job.outcome
        return job.outcome

    handler: Any = SimpleNamespace(call=handle, accepts_context=False, is_async=False)
    run = limiter.wrap(handler)
    for outcome in outcomes:
        with suppress(ValueError):
            run(SimpleNamespace(id="job", outcome=outcome), None)
    return limiter.started, limiter.done, limiter.failed


def test_a_returned_retry_has_failed_and_a_snooze_counts_as_neither() -> None:
    assert count_runs("result", None) == (2, 2, 0)
    assert count_runs(ValueError("no"), Retry(timedelta(0))) == (2, 0, 2)
    assert count_runs(Snooze(timedelta(seconds=1))) == (1, 0, 0)


def test_the_task_stops_although_the_depth_could_not_be_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consume, "_POLL_INTERVAL_S", 0.001)
    replies = iter([ConnectionFailed("no connection")])

    async def depth() -> Any:
        if (error := next(replies, None)) is not None:
            raise error
        return SimpleNamespace(waiting=0, next_due_ms=None)

    async def consumers() -> list[Any]:
        return []

    stops: list[bool] = []
    queue: Any = SimpleNamespace(depth=depth, consumers=consumers)
    consumer: Any = SimpleNamespace(stop=lambda: stops.append(True))
    operator = ChasquiConsumeOperator(task_id="consume", queue_name="q", handler=print)
    is_empty = consume._EmptyQueue("me", True).is_reached
    asyncio.run(asyncio.wait_for(operator._stop_when_done(queue, consumer, is_empty, None), 5))
    assert stops == [True]


def test_leases_may_be_long_and_use_the_consumer_group_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, server: Server, queue_name: str
) -> None:
    connect(monkeypatch, server, group="readers")
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        queue.add("work", job_id="leased")
    operator = ChasquiConsumeOperator(
        task_id="consume", queue_name=queue_name, max_leases=1, lease_ttl="10m"
    )
    with ChasquiHook() as hook:
        (leased,) = operator._lease_jobs(hook, "consumer-1")
        with hook.lease_queue(queue_name) as leases:
            assert leases.config.group == "readers"
            leases.ack(leased["token"])
            assert leases.stats().unacknowledged == 0


def run_operator(**arguments: Any) -> dict[str, Any]:
    """Run the operator as its task does, and return its XCom."""
    operator = ChasquiConsumeOperator(task_id="consume", **arguments)
    result: dict[str, Any] = operator.execute({})  # type: ignore[typeddict-item]
    return result


@pytest.fixture
def queue(
    monkeypatch: pytest.MonkeyPatch, native_server: Server, queue_name: str
) -> Iterator[Queue]:
    connect(monkeypatch, native_server)
    with Queue(queue_name, native_server.url) as queue:
        yield queue


def test_a_task_runs_until_a_batch_is_done_with_its_retries(queue: Queue) -> None:
    # The retry is due after the time that a task without `until_batch` waits for.
    @job(queue_name=queue.name, retry={"max_attempts": 2, "backoff": {"kind": "fixed", "delay": 3}})
    async def double(n: int, context: Context) -> int:
        if n == 7 and context.attempt == 0:
            raise ValueError("busy")
        return n * 2

    payloads = [{"n": n} for n in range(10)]
    batch = queue.add_batch(payloads, job_name="double")
    handle = {"queue_name": queue.name, "batch_id": batch.batch_id, "total": 10}
    result = run_operator(handler=double)
    assert (result["done"], result["failed"]) == (9, 1)
    assert not queue.batch_progress(batch.batch_id).finished
    result = run_operator(handler=double, until_batch=handle, worker_number=1)
    assert (result["done"], result["failed"]) == (1, 0)
    assert queue.batch_progress(batch.batch_id).done == 10
    # It is finished: the next worker ends at once, although another job waits for later.
    queue.add({"n": 1}, job_name="double", delay=timedelta(hours=1))
    assert run_operator(handler=double, until_batch=batch.batch_id)["done"] == 0


def test_a_task_without_a_batch_fails_if_too_many_jobs_failed(queue: Queue) -> None:
    @job(
        queue_name=queue.name,
        retry={"max_attempts": 2, "backoff": {"kind": "fixed", "delay": "10ms"}},
    )
    async def check(n: int, context: Context) -> None:
        if n < 3 or context.attempt == 0:
            raise ValueError("not ready")

    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))

    def consume_all(max_failed: Any) -> dict[str, Any]:
        queue.add_many([{"payload": {"n": n}, "job_name": "check"} for n in range(5)])
        operator = ChasquiConsumeOperator(task_id="c", handler=check, max_failed=max_failed)
        result: dict[str, Any] = operator.execute({"ti": ti})  # type: ignore[typeddict-item]
        return result

    assert consume_all("None")["failed"] == 8
    assert consume_all("3")["done"] == 2
    assert pushed == {}
    with pytest.raises(AirflowFailException, match="3 jobs failed"):
        consume_all(2)
    assert (pushed["counts"]["failed_jobs"], pushed["counts"]["done"]) == (3, 2)


def test_a_task_fails_if_too_many_jobs_of_the_batch_died(queue: Queue) -> None:
    async def handle(job: Any) -> None:
        raise Unrecoverable("no")

    batch = queue.add_batch(range(20), job_name="x")
    with pytest.raises(AirflowFailException, match=r"CMQ-306.*jobs of the batch .* are dead"):
        run_operator(
            queue_name=queue.name, handler=handle, until_batch=batch.batch_id, max_failed="5"
        )
    assert queue.batch_progress(batch.batch_id).dead > 5
    result = run_operator(queue_name=queue.name, handler=handle, until_batch=batch.batch_id)
    assert result["queue_name"] == queue.name
    assert queue.batch_progress(batch.batch_id).dead == 20


def test_a_task_ends_if_its_batch_is_cancelled_or_does_not_exist(queue: Queue) -> None:
    async def handle(job: Any) -> None: ...

    batch = queue.add_batch(range(3), delay=timedelta(hours=1))
    queue.cancel_batch(batch.batch_id)
    run_operator(queue_name=queue.name, handler=handle, until_batch=batch.batch_id)
    missing = {"queue_name": queue.name, "batch_id": "missing", "total": 1}
    with pytest.raises(BatchNotFound):
        run_operator(handler=handle, until_batch=missing)
    # An id may belong to a batch that is sent later.
    run_operator(queue_name=queue.name, handler=handle, until_batch="later", max_duration=0.5)
    for arguments, problem in (
        ({"until_batch": {"id": 1}}, "until_batch must be a batch id or the handle"),
        ({"until_batch": missing | {"queue_name": "other"}}, "is on the queue 'other'"),
    ):
        with pytest.raises(AirflowFailException, match=problem):
            run_operator(queue_name=queue.name, handler=handle, **arguments)


def test_a_task_serves_the_jobs_that_a_module_declares(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "consumed_jobs.py").write_text(f"""
from airflow_provider_chasqui import job

@job(queue_name={queue.name!r})
def note(text: str) -> None: ...

@job(queue_name="other")
def other(text: str) -> None: ...
""")
    monkeypatch.syspath_prepend(tmp_path)
    queue.add({"text": "x"}, job_name="note")
    assert run_operator(handler="consumed_jobs:note")["done"] == 1
    queue.add({"text": "x"}, job_name="note")
    assert run_operator(handler="consumed_jobs", queue_name=queue.name)["done"] == 1
    with pytest.raises(AirflowFailException, match="declares jobs of several queues: other, q-"):
        run_operator(handler="consumed_jobs")
    with pytest.raises(AirflowFailException, match="No module named 'no_such_jobs'"):
        run_operator(handler="no_such_jobs")


def test_a_task_that_is_stopped_before_its_end_fails(queue: Queue) -> None:
    """SIGTERM calls on_kill. The next try continues with the remaining jobs."""
    ran: list[int] = []
    operators: list[ChasquiConsumeOperator] = []

    @job(queue_name=queue.name)
    async def stop_at_three(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(0.01)
        if n == 3 and len(operators) == 1:
            operators[0].on_kill()

    batch = queue.add_batch([{"n": n} for n in range(50)], job_name="stop_at_three")
    options: dict[str, Any] = {"handler": stop_at_three, "until_batch": batch.batch_id}
    options["concurrency"] = 1
    operators.append(ChasquiConsumeOperator(task_id="c", **options))
    with pytest.raises(AirflowException, match="was stopped after"):
        operators[0].execute({"ti": None})  # type: ignore[typeddict-item]
    assert len(ran) < 50
    operators.append(ChasquiConsumeOperator(task_id="c", **options))
    operators[1].execute({"ti": None})  # type: ignore[typeddict-item]
    assert sorted(set(ran)) == list(range(50))
