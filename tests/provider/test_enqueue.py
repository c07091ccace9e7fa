"""DAG runs that hand off jobs and wait for them, with Airflow's own machinery and real workers."""

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

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(180)]
DAY = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(params=["native", "portable"])
def connected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    connect(monkeypatch, server)
    return server


@pytest.fixture
def house(dags: Callable[[Path], Dags], connected: Server) -> Dags:
    return dags(HERE / "dags")


def waiting(queue: Queue) -> list[Any]:
    """The jobs on the stream, without taking them."""
    from airflow_provider_chasqui.core.commands import inspect
    from airflow_provider_chasqui.core.commands.consumer_group import parse_entry
    from airflow_provider_chasqui.core.job import StreamEntry

    raw = queue.client.execute(inspect.read_entries(queue.keys, "-"))
    found = [parse_entry(each, 2**30) for each in raw]
    return [each.job for each in found if isinstance(each, StreamEntry)]


def test_a_payload_is_rendered_and_sent_once(house: Dags, queue: Queue) -> None:
    run = house.run("one", DAY, queue=queue.name, to="ada")
    (job,) = waiting(queue)
    assert job.payload == {"to": "ada", "day": "2026-03-01", "deep": [{"n": 1}]}
    assert job.name == "welcome"
    assert run.xcom("send") == job.id
    assert job.id.startswith("batch:one~send~manual__2026-03-01")


def test_a_clear_finds_what_was_sent(house: Dags, queue: Queue) -> None:
    first = house.run("one", DAY + timedelta(days=1), queue=queue.name, to="ada")
    again = house.run("one", DAY + timedelta(days=1), queue=queue.name, to="ada")
    assert len(waiting(queue)) == 1
    assert first.xcom("send") == again.xcom("send")
    house.run("one", DAY + timedelta(days=2), queue=queue.name, to="ada")
    assert len(waiting(queue)) == 2


@pytest.mark.parametrize("how", ["deferred", "here"])
def test_waiting_gives_the_result_to_the_next_task(
    house: Dags, queue: Queue, connected: Server, how: str
) -> None:
    async def handle(job: Any) -> Any:
        return {"doubled": int(job.payload["n"]) * 2}

    with working(connected, queue.name, handle, store_results=True):
        run = house.run(f"wait_{how}", queue=queue.name, n=21)
    assert run.states() == {"send": "success", "use": "success"}
    assert run.xcom("use") == {"used": {"doubled": 42}}


@pytest.mark.parametrize("how", ["deferred", "here"])
def test_a_dead_job_fails_the_task_with_its_own_error(
    house: Dags, queue: Queue, connected: Server, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def handle(job: Any) -> None:
        raise ValueError("the mailbox is full")

    with working(connected, queue.name, handle):
        run = house.run(f"wait_{how}", queue=queue.name, n=1)
    assert run.states()["send"] == "failed"
    said = capfd.readouterr()
    assert "the mailbox is full" in said.out + said.err
    assert "CMQ-305" in said.out + said.err
    assert queue.dead_letters()[0].attempts == 2


@pytest.mark.parametrize("how", ["deferred", "here"])
def test_many_payloads_give_ids_counts_and_results(
    house: Dags, queue: Queue, connected: Server, how: str
) -> None:
    async def handle(job: Any) -> Any:
        if job.payload == 2:
            raise Unrecoverable("two is bad")
        return job.payload * 10

    with working(connected, queue.name, handle, store_results=True):
        run = house.run(f"many_{how}", queue=queue.name)
    ids = run.xcom("send")
    assert run.state == "success"
    assert [each.rpartition(":")[2] for each in ids] == ["0", "1", "2"]
    assert run.xcom("send", "results") == [10, None, 30]
    counts = run.xcom("send", "counts")
    assert (counts["done"], counts["dead"], counts["dead_ids"]) == (2, 1, [ids[1]])


@pytest.mark.parametrize("how", ["deferred", "here"])
@pytest.mark.parametrize(("bad", "state"), [(5, "success"), (6, "failed")])
def test_a_batch_sensor_allows_a_share_of_failures(
    house: Dags, queue: Queue, connected: Server, how: str, bad: int, state: str
) -> None:
    async def handle(job: Any) -> None:
        if job.payload < bad:
            raise ValueError("bad row")

    with working(connected, queue.name, handle):
        run = house.run(f"batch_{how}", queue=queue.name)
    assert run.states() == {"send": "success", "wait": state}
    assert queue.batch_progress(run.xcom("send")["batch_id"]).dead == bad
    if state == "success":
        counts = run.xcom("wait")
        assert (counts["total"], counts["done"], counts["dead"]) == (500, 495, 5)
        assert len(counts["dead_ids"]) == 5


@pytest.mark.parametrize("how", ["deferred", "here"])
def test_sensors_of_a_job_and_of_the_depth(
    house: Dags, queue: Queue, connected: Server, how: str
) -> None:
    job_id = queue.add({"n": 1}).job_id
    queue.add_many([{"payload": n} for n in range(50)])

    async def handle(job: Any) -> str:
        return "seen"

    with working(connected, queue.name, handle, store_results=True):
        run = house.run(f"sensors_{how}", queue=queue.name, job=job_id)
    assert run.states() == {"job": "success", "depth": "success"}
    assert run.xcom("job") == "seen"
    assert run.xcom("depth")["waiting"] == 0


def test_what_has_ended_already_is_not_deferred(
    house: Dags, queue: Queue, connected: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """A task that is resumed at once may be taken for killed by a busy scheduler."""
    job_id = queue.add({"n": 1}).job_id

    async def handle(job: Any) -> str:
        return "seen"

    with working(connected, queue.name, handle, store_results=True):
        queue.wait(job_id)
    run = house.run("sensors_deferred", queue=queue.name, job=job_id)
    assert run.states() == {"job": "success", "depth": "success"}
    assert (run.xcom("job"), run.xcom("depth")["waiting"]) == ("seen", 0)
    said = capfd.readouterr()
    assert "DEFERRED" not in said.out + said.err


def test_an_id_of_ones_own_is_sent_once_by_whoever(
    house: Dags, queue: Queue, connected: Server
) -> None:
    ran = []

    async def handle(job: Any) -> None:
        ran.append(job.id)

    with working(connected, queue.name, handle):
        assert house.run("own_id", DAY, queue=queue.name, n=7).state == "success"
        again = house.run("own_id", DAY + timedelta(days=1), queue=queue.name, n=7)
    assert again.state == "success"
    assert ran == [again.xcom("send")] == ["invoice-7"]


def test_a_json_file_is_rendered_and_read(house: Dags, queue: Queue) -> None:
    house.run("from_file", DAY, queue=queue.name)
    assert waiting(queue)[0].payload == {"day": "2026-03-01", "list": [1, 2]}


def test_mapped_tasks_send_a_job_each(house: Dags, queue: Queue, connected: Server) -> None:
    seen = []

    async def handle(job: Any) -> None:
        seen.append(job.payload["row"])

    with working(connected, queue.name, handle):
        run = house.run("mapped", queue=queue.name)
    assert run.state == "success"
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert len({run.xcom("send", map_index=n) for n in range(5)}) == 5


def test_a_delayed_job_waits_for_its_time(house: Dags, queue: Queue) -> None:
    run = house.run("delayed", queue=queue.name)
    found = queue.job_status(run.xcom("send"))
    assert found.state == "delayed"
    assert found.job is not None
    assert found.job.name == "later"


def test_bad_input_is_not_retried(
    house: Dags, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    run = house.run("bad_input", queue=queue.name)
    said = capfd.readouterr()
    assert run.states() == {"send": "failed"}
    assert "must not be negative" in said.out + said.err
    assert "AirflowFailException" in said.out + said.err


def test_the_decorator_sends_what_the_function_returns(
    house: Dags, queue: Queue, connected: Server
) -> None:
    seen = []

    async def handle(job: Any) -> None:
        seen.append((job.name, job.payload))

    with working(connected, queue.name, handle):
        run = house.run("decorated", queue=queue.name)
    assert run.state == "success"
    assert ("", {"of": 7}) in seen
    assert run.xcom("produce")["total"] == 7


@pytest.mark.parametrize("on_retry", ["reattach", "replay"])
def test_another_try_follows_what_was_sent(
    house: Dags, queue: Queue, connected: Server, on_retry: str
) -> None:
    """One of three jobs dies; the same task instance runs once more."""
    ran = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)
        if job.payload == 2 and ran.count(2) == 1:
            raise Unrecoverable("bad the first time")

    conf = {"queue": queue.name, "payloads": [1, 2, 3]}
    with working(connected, queue.name, handle):
        first = house.run(f"retried_{on_retry}", DAY, **conf)
        second = house.run(f"retried_{on_retry}", DAY, **conf)
    assert first.state == "failed"
    assert second.state == ("failed" if on_retry == "reattach" else "success")
    assert sorted(ran) == ([1, 2, 3] if on_retry == "reattach" else [1, 2, 2, 3])


def test_other_payloads_in_another_try_are_refused(
    house: Dags, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    for payloads in ([1, 2], [1, 2, 3]):
        house.run("retried_other", DAY, queue=queue.name, payloads=payloads)
    said = capfd.readouterr()
    assert "an earlier try sent 2 jobs, this one has 3" in said.out + said.err
    assert len(waiting(queue)) == 2


@pytest.mark.parametrize("how", ["deferred", "here", "rescheduled"])
def test_a_sensor_of_a_dead_job_fails_or_skips(
    house: Dags, queue: Queue, connected: Server, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def handle(job: Any) -> None:
        raise Unrecoverable("no way")

    (job_id,) = queue.add_batch([1]).job_ids()
    with working(connected, queue.name, handle):
        while not queue.depth().dead:
            pass
    run = house.run(f"sensing_{how}", queue=queue.name, job=job_id)
    assert run.states() == {"hard": "failed", "soft": "skipped"}
    said = capfd.readouterr()
    assert "no way" in said.out + said.err


def test_a_sensor_that_is_rescheduled_gives_the_result(
    house: Dags, queue: Queue, connected: Server
) -> None:
    async def handle(job: Any) -> str:
        return "seen"

    (job_id,) = queue.add_batch([1]).job_ids()
    with working(connected, queue.name, handle, store_results=True):
        while queue.depth().waiting or queue.depth().running:
            pass
    run = house.run("rescheduled", queue=queue.name, job=job_id)
    assert run.xcom("job") == "seen"


def test_a_wait_has_its_limit(house: Dags, queue: Queue, capfd: pytest.CaptureFixture[str]) -> None:
    run = house.run("impatient", queue=queue.name)
    assert run.states() == {"send": "failed", "sense": "skipped"}
    said = capfd.readouterr()
    assert "did not end within 0.5 s" in said.out + said.err


def test_an_asset_event_says_what_was_sent(house: Dags, queue: Queue) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    run = house.run("with_outlet", queue=queue.name)
    with create_session() as session:
        query = select(AssetEvent).where(AssetEvent.source_run_id == run.dag_run.run_id)
        (event,) = session.scalars(query)
    assert event.extra["count"] == 3
    assert event.extra["batch"] == run.xcom("send")["batch_id"]
