"""DAG runs that enqueue jobs and wait for them, with a real Airflow and real workers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import HERE, Dags, connect, working
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(180)]
DAY = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(params=["native", "portable"])
def connected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    connect(monkeypatch, server)
    return server


@pytest.fixture
def test_dags(dags: Callable[[Path], Dags], connected: Server) -> Dags:
    return dags(HERE / "dags")


def waiting(queue: Queue) -> list[Any]:
    """Return the jobs in the stream, without consuming them."""
    from airflow_provider_chasqui.core.commands import inspect
    from airflow_provider_chasqui.core.commands.consumer_group import parse_entry
    from airflow_provider_chasqui.core.job import StreamEntry

    replies = queue.client.execute(inspect.read_entries(queue.keys, "-"))
    entries = [parse_entry(reply, 2**30) for reply in replies]
    return [entry.job for entry in entries if isinstance(entry, StreamEntry)]


def test_a_payload_is_rendered_and_enqueued_once(test_dags: Dags, queue: Queue) -> None:
    run = test_dags.run("one", DAY, queue=queue.name, to="ada")
    (job,) = waiting(queue)
    assert job.payload == {"to": "ada", "day": "2026-03-01", "deep": [{"n": 1}]}
    assert job.name == "welcome"
    assert run.xcom("send") == job.id
    assert job.id.startswith("batch:one~send~manual__2026-03-01")


def test_a_cleared_task_reattaches_to_its_job(test_dags: Dags, queue: Queue) -> None:
    first = test_dags.run("one", DAY + timedelta(days=1), queue=queue.name, to="ada")
    again = test_dags.run("one", DAY + timedelta(days=1), queue=queue.name, to="ada")
    assert len(waiting(queue)) == 1
    assert first.xcom("send") == again.xcom("send")
    test_dags.run("one", DAY + timedelta(days=2), queue=queue.name, to="ada")
    assert len(waiting(queue)) == 2


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
def test_the_next_task_receives_the_result(
    test_dags: Dags, queue: Queue, connected: Server, mode: str
) -> None:
    async def handle(job: Any) -> Any:
        return {"doubled": int(job.payload["n"]) * 2}

    with working(connected, queue.name, handle, store_results=True):
        run = test_dags.run(f"wait_{mode}", queue=queue.name, n=21)
    assert run.states() == {"send": "success", "use": "success"}
    assert run.xcom("use") == {"used": {"doubled": 42}}


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
def test_a_dead_job_fails_the_task_with_its_own_error(
    test_dags: Dags, queue: Queue, connected: Server, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def handle(job: Any) -> None:
        raise ValueError("the mailbox is full")

    with working(connected, queue.name, handle):
        run = test_dags.run(f"wait_{mode}", queue=queue.name, n=1)
    assert run.states()["send"] == "failed"
    output = "".join(capfd.readouterr())
    assert "the mailbox is full" in output
    assert "CMQ-305" in output
    assert queue.dead_letters()[0].attempts == 2


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
def test_several_payloads_return_ids_counts_and_results(
    test_dags: Dags, queue: Queue, connected: Server, mode: str
) -> None:
    async def handle(job: Any) -> Any:
        if job.payload == 2:
            raise Unrecoverable("two is bad")
        return job.payload * 10

    with working(connected, queue.name, handle, store_results=True):
        run = test_dags.run(f"many_{mode}", queue=queue.name)
    ids = run.xcom("send")
    assert run.state == "success"
    assert [job_id.rpartition(":")[2] for job_id in ids] == ["0", "1", "2"]
    assert run.xcom("send", "results") == [10, None, 30]
    counts = run.xcom("send", "counts")
    assert (counts["done"], counts["dead"], counts["dead_ids"]) == (2, 1, [ids[1]])


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
@pytest.mark.parametrize(("bad", "state"), [(5, "success"), (6, "failed")])
def test_a_batch_sensor_allows_a_ratio_of_failures(
    test_dags: Dags, queue: Queue, connected: Server, mode: str, bad: int, state: str
) -> None:
    async def handle(job: Any) -> None:
        if job.payload < bad:
            raise ValueError("bad row")

    with working(connected, queue.name, handle):
        run = test_dags.run(f"batch_{mode}", queue=queue.name)
    assert run.states() == {"send": "success", "wait": state}
    assert queue.batch_progress(run.xcom("send")["batch_id"]).dead == bad
    if state == "success":
        counts = run.xcom("wait")
        assert (counts["total"], counts["done"], counts["dead"]) == (500, 495, 5)
        assert len(counts["dead_ids"]) == 5


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
def test_job_and_depth_sensors_wait_for_the_workers(
    test_dags: Dags, queue: Queue, connected: Server, mode: str
) -> None:
    job_id = queue.add({"n": 1}).job_id
    queue.add_many([{"payload": n} for n in range(50)])

    async def handle(job: Any) -> str:
        return "seen"

    with working(connected, queue.name, handle, store_results=True):
        run = test_dags.run(f"sensors_{mode}", queue=queue.name, job=job_id)
    assert run.states() == {"job": "success", "depth": "success"}
    assert run.xcom("job") == "seen"
    assert run.xcom("depth")["waiting"] == 0


def test_a_sensor_of_a_finished_job_is_not_deferred(
    test_dags: Dags, queue: Queue, connected: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """A busy scheduler may mark a task as killed if it is resumed immediately."""
    job_id = queue.add({"n": 1}).job_id

    async def handle(job: Any) -> str:
        return "seen"

    with working(connected, queue.name, handle, store_results=True):
        queue.wait(job_id)
    run = test_dags.run("sensors_deferred", queue=queue.name, job=job_id)
    assert run.states() == {"job": "success", "depth": "success"}
    assert (run.xcom("job"), run.xcom("depth")["waiting"]) == ("seen", 0)
    output = "".join(capfd.readouterr())
    assert "DEFERRED" not in output


def test_an_explicit_job_id_is_enqueued_once_by_all_runs(
    test_dags: Dags, queue: Queue, connected: Server
) -> None:
    ran = []

    async def handle(job: Any) -> None:
        ran.append(job.id)

    with working(connected, queue.name, handle):
        assert test_dags.run("explicit_job_id", DAY, queue=queue.name, n=7).state == "success"
        again = test_dags.run("explicit_job_id", DAY + timedelta(days=1), queue=queue.name, n=7)
    assert again.state == "success"
    assert ran == [again.xcom("send")] == ["invoice-7"]


def test_a_json_file_is_rendered_and_parsed(test_dags: Dags, queue: Queue) -> None:
    test_dags.run("from_file", DAY, queue=queue.name)
    assert waiting(queue)[0].payload == {"day": "2026-03-01", "list": [1, 2]}


def test_every_mapped_task_enqueues_a_job(test_dags: Dags, queue: Queue, connected: Server) -> None:
    seen = []

    async def handle(job: Any) -> None:
        seen.append(job.payload["row"])

    with working(connected, queue.name, handle):
        run = test_dags.run("mapped", queue=queue.name)
    assert run.state == "success"
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert len({run.xcom("send", map_index=n) for n in range(5)}) == 5


def test_a_delayed_job_is_not_waiting_yet(test_dags: Dags, queue: Queue) -> None:
    run = test_dags.run("delayed", queue=queue.name)
    status = queue.job_status(run.xcom("send"))
    assert status.state == "delayed"
    assert status.job is not None
    assert status.job.name == "later"


def test_an_invalid_argument_is_not_retried(
    test_dags: Dags, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    run = test_dags.run("invalid_argument", queue=queue.name)
    output = "".join(capfd.readouterr())
    assert run.states() == {"send": "failed"}
    assert "delay must be a timedelta" in output
    assert "AirflowFailException" in output


def test_the_decorator_enqueues_the_return_value(
    test_dags: Dags, queue: Queue, connected: Server
) -> None:
    seen = []

    async def handle(job: Any) -> None:
        seen.append((job.name, job.payload))

    with working(connected, queue.name, handle):
        run = test_dags.run("decorated", queue=queue.name)
    assert run.state == "success"
    assert ("", {"of": 7}) in seen
    assert run.xcom("produce")["total"] == 7


@pytest.mark.parametrize("on_retry", ["reattach", "replay"])
def test_a_later_try_reattaches_or_replays(
    test_dags: Dags, queue: Queue, connected: Server, on_retry: str
) -> None:
    """One of three jobs dies, and the same task instance runs again."""
    ran = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)
        if job.payload == 2 and ran.count(2) == 1:
            raise Unrecoverable("bad the first time")

    conf = {"queue": queue.name, "payloads": [1, 2, 3]}
    with working(connected, queue.name, handle):
        first = test_dags.run(f"retried_{on_retry}", DAY, **conf)
        second = test_dags.run(f"retried_{on_retry}", DAY, **conf)
    assert first.state == "failed"
    assert second.state == ("failed" if on_retry == "reattach" else "success")
    assert sorted(ran) == ([1, 2, 3] if on_retry == "reattach" else [1, 2, 2, 3])


def test_a_later_try_with_other_payloads_is_rejected(
    test_dags: Dags, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    for payloads in ([1, 2], [1, 2, 3]):
        test_dags.run("retried_other", DAY, queue=queue.name, payloads=payloads)
    output = "".join(capfd.readouterr())
    assert "an earlier try sent 2 jobs, this one has 3" in output
    assert len(waiting(queue)) == 2


@pytest.mark.parametrize("mode", ["deferred", "in_process", "rescheduled"])
def test_a_sensor_of_a_dead_job_fails_or_skips(
    test_dags: Dags, queue: Queue, connected: Server, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def handle(job: Any) -> None:
        raise Unrecoverable("no way")

    (job_id,) = queue.add_batch([1]).job_ids()
    with working(connected, queue.name, handle):
        wait_until(lambda: queue.depth().dead, message="a dead letter")
    run = test_dags.run(f"dead_job_sensors_{mode}", queue=queue.name, job=job_id)
    assert run.states() == {"hard": "failed", "soft": "skipped"}
    output = "".join(capfd.readouterr())
    assert "no way" in output


def test_a_rescheduled_sensor_returns_the_result(
    test_dags: Dags, queue: Queue, connected: Server
) -> None:
    async def handle(job: Any) -> str:
        return "seen"

    (job_id,) = queue.add_batch([1]).job_ids()
    with working(connected, queue.name, handle, store_results=True):
        wait_until(lambda: queue.job_status(job_id).state == "done", message="the end of the job")
    run = test_dags.run("rescheduled", queue=queue.name, job=job_id)
    assert run.xcom("job") == "seen"


def test_a_wait_ends_at_its_timeout(
    test_dags: Dags, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    run = test_dags.run("short_timeout", queue=queue.name)
    assert run.states() == {"send": "failed", "sense": "skipped"}
    output = "".join(capfd.readouterr())
    assert "CMQ-102" in output


def test_an_asset_event_contains_the_batch(test_dags: Dags, queue: Queue) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    run = test_dags.run("with_outlet", queue=queue.name)
    with create_session() as session:
        query = select(AssetEvent).where(AssetEvent.source_run_id == run.dag_run.run_id)
        (event,) = session.scalars(query)
    assert event.extra["count"] == 3
    assert event.extra["batch"] == run.xcom("send")["batch_id"]
