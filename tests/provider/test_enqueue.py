"""DAG runs that enqueue jobs and wait for them, with a real Airflow and real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

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


def test_the_same_run_again_finds_its_job(test_dags: Dags, queue: Queue) -> None:
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
    counts = run.xcom("send", "counts")
    assert (counts["done"], counts["dead"], len(counts["dead_ids"])) == (0, 1, 1)


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
def test_several_payloads_return_a_handle_counts_and_results(
    test_dags: Dags, queue: Queue, connected: Server, mode: str
) -> None:
    async def handle(job: Any) -> Any:
        if job.payload == 2:
            raise Unrecoverable("two is bad")
        return job.payload * 10

    with working(connected, queue.name, handle, store_results=True):
        run = test_dags.run(f"many_{mode}", queue=queue.name)
    handle = run.xcom("send")
    assert run.state == "success"
    assert (handle["queue_name"], handle["total"]) == (queue.name, 3)
    assert run.xcom("send", "results") == [10, None, 30]
    counts = run.xcom("send", "counts")
    dead_ids = [f"batch:{handle['batch_id']}:0:1"]
    assert (counts["done"], counts["dead"], counts["dead_ids"]) == (2, 1, dead_ids)


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
def test_limits_and_durations_of_the_operator_are_templated(
    test_dags: Dags, queue: Queue, connected: Server, mode: str
) -> None:
    async def handle(job: Any) -> None:
        raise Unrecoverable("bad row")

    parameters = {"max_failed": 2, "timeout": "30s"}
    with working(connected, queue.name, handle):
        failed = test_dags.run(f"templated_{mode}", queue=queue.name, **parameters)
        parameters |= {"max_failed": None}
        succeeded = test_dags.run(
            f"templated_{mode}", DAY + timedelta(days=1), queue=queue.name, **parameters
        )
    assert (failed.state, succeeded.state) == ("failed", "success")
    assert succeeded.xcom("send", "counts")["dead"] == 3


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


def rendered_fields(run: Any, task_id: str) -> dict[str, Any]:
    """Return the rendered fields that Airflow stored for a task."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(RenderedTaskInstanceFields).where(
            RenderedTaskInstanceFields.run_id == run.dag_run.run_id,
            RenderedTaskInstanceFields.task_id == task_id,
        )
        (row,) = session.scalars(query)
        return dict(row.rendered_fields)


def test_paths_of_json_files_are_payloads_and_lists_are_not_stored(
    test_dags: Dags, queue: Queue
) -> None:
    run = test_dags.run("text_of_json_files", DAY, queue=queue.name)
    assert run.state == "success"
    assert sorted(str(job.payload) for job in waiting(queue)) == sorted(
        str(payload)
        for payload in [
            {"path": "s3://bucket/2026-03-01/part-0.json"},
            {"path": "{{ ds }}/a.json"},
            {"card": "4111"},
            {"path": "s3://bucket/manifest.json"},
            {"path": "{{ ds }}.json"},
        ]
    )
    assert rendered_fields(run, "several")["batch"] == "<2 payloads>"
    assert "4111" not in str(rendered_fields(run, "several"))
    assert not {"payload", "payloads", "batch"} & set(rendered_fields(run, "paths"))


def test_none_is_rejected_and_an_empty_list_sends_no_jobs(
    test_dags: Dags, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    run = test_dags.run("upstream_payloads", queue=queue.name)
    states = run.states()
    assert (states["nothing"], states["empty"], states["nested"]) == (
        "failed",
        "success",
        "success",
    )
    assert "batch must be a list or another iterable of payloads, not None" in "".join(
        capfd.readouterr()
    )
    assert run.xcom("empty")["total"] == 0
    assert sorted(str(job.payload) for job in waiting(queue)) == ["a", "{'deep': ['b']}"]


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


@pytest.mark.parametrize("on_change", ["resend", "fail", "keep"])
def test_a_later_try_with_other_payloads(
    test_dags: Dags, queue: Queue, capfd: pytest.CaptureFixture[str], on_change: str
) -> None:
    runs = [
        test_dags.run(f"changed_{on_change}", DAY, queue=queue.name, payloads=payloads)
        for payloads in ([1, 2], [1, "corrected"])
    ]
    output = "".join(capfd.readouterr())
    jobs = [job.payload for job in waiting(queue)]
    batch_id = runs[0].xcom("send")["batch_id"] if on_change == "keep" else ""
    match on_change:
        case "resend":
            assert "its unfinished jobs are cancelled and the new payloads are sent" in output
            assert jobs == [1, 2, 1, "corrected"]
            resent = runs[1].xcom("send")["batch_id"]
            assert resent.endswith("~g2")
            assert queue.batch_progress(resent.removesuffix("~g2")).cancelled
        case "fail":
            assert runs[1].state == "failed"
            assert "AirflowFailException" in output
            assert jobs == [1, 2]
        case "keep":
            assert runs[1].xcom("send") == {
                "queue_name": queue.name,
                "batch_id": batch_id,
                "total": 2,
            }
            assert jobs == [1, 2]


def test_dead_jobs_fail_the_task_without_retries_if_they_are_not_replayed(
    test_dags: Dags, queue: Queue, connected: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    async def handle(job: Any) -> None:
        raise Unrecoverable("no way")

    with working(connected, queue.name, handle):
        run = test_dags.run("retried_reattach", queue=queue.name, payloads=[1])
    assert run.state == "failed"
    output = "".join(capfd.readouterr())
    assert "AirflowFailException" in output
    assert "CMQ-306" in output


def test_a_kill_during_the_send_stops_it_and_cancels_what_was_sent(
    test_dags: Dags, queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first try is killed while it sends, the second one sends again."""
    first = test_dags.run("killed_while_sending", DAY, queue=queue.name, kill=True)
    assert first.state == "failed"
    progress = queue.batch_progress(first_batch_id(queue))
    assert progress.cancelled
    assert 0 < progress.enqueued < 12_000
    second = test_dags.run("killed_while_sending", DAY, queue=queue.name, kill=False)
    handle = second.xcom("produce")
    assert handle == {
        "queue_name": queue.name,
        "batch_id": f"{progress.batch_id}~g2",
        "total": 12_000,
    }
    resent = queue.batch_progress(handle["batch_id"])
    assert (resent.cancelled, resent.enqueued) == (False, 12_000)


def first_batch_id(queue: Queue) -> str:
    return str(waiting(queue)[0].id.split(":")[1])


def test_a_kill_after_the_end_cancels_nothing(test_dags: Dags, queue: Queue) -> None:
    run = test_dags.run("killed_after_success", queue=queue.name)
    assert run.state == "success"
    assert not queue.batch_progress(run.xcom("send")["batch_id"]).cancelled


@pytest.mark.parametrize("later_try", [True, False])
@pytest.mark.parametrize("kind", ["payload", "batch"])
def test_a_killed_trigger_cancels_only_what_its_try_owns(
    test_dags: Dags, queue: Queue, kind: str, later_try: bool
) -> None:
    run = test_dags.run(f"killed_while_deferred_{kind}", queue=queue.name, later_try=later_try)
    assert run.states() == {"send": "skipped"}
    assert queue.batch_progress(first_batch_id(queue)).cancelled != later_try


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
    names = [
        f"{name}_{where}" for name in ("send", "send_batch") for where in ("in_task", "deferred")
    ]
    assert run.states() == dict.fromkeys(names, "failed") | {"sense": "skipped"}
    output = "".join(capfd.readouterr())
    assert "CMQ-102" in output
    assert "TaskDeferralTimeout" not in output
    assert "the job did not finish within" in output
    assert "its state is waiting" in output
    assert "0 done and 0 dead of 3" in output
    assert f"no worker consumes the queue {queue.name!r}" in output
    for name in ("send_batch_in_task", "send_batch_deferred"):
        counts = run.xcom(name, "counts")
        assert (counts["total"], counts["done"], counts["dead"]) == (3, 0, 0)


def asset_event_extra(run: Any) -> dict[str, Any]:
    """Return the extra of the only asset event of a run."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(AssetEvent).where(AssetEvent.source_run_id == run.dag_run.run_id)
        (event,) = session.scalars(query)
        return dict(event.extra)


def test_an_asset_event_contains_the_batch(test_dags: Dags, queue: Queue) -> None:
    run = test_dags.run("with_outlet", queue=queue.name)
    extra = asset_event_extra(run)
    handle = run.xcom("send")
    assert extra["count"] == 3
    assert extra["batch"] == handle["batch_id"]
    assert extra["handle"] == handle
    assert "done" not in extra


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
def test_an_asset_event_of_a_task_that_waited_contains_the_counts(
    test_dags: Dags, queue: Queue, connected: Server, mode: str
) -> None:
    async def handle(job: Any) -> None:
        return None

    with working(connected, queue.name, handle):
        run = test_dags.run(f"with_outlet_{mode}", queue=queue.name)
    extra = asset_event_extra(run)
    handle_xcom = run.xcom("send")
    assert (extra["queue_name"], extra["count"]) == (queue.name, 3)
    assert (extra["batch"], extra["handle"]) == (handle_xcom["batch_id"], handle_xcom)
    assert (extra["done"], extra["dead"], extra["lost"]) == (3, 0, 0)


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
def test_missing_results_are_counted(
    test_dags: Dags, queue: Queue, connected: Server, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The result of the first job disappears before the batch has finished."""

    async def handle(job: Any) -> Any:
        if job.payload == 3:
            _, batch_id, part, _ = job.id.split(":")
            key = queue.keys.batch_results(batch_id, int(part), 0)
            await asyncio.to_thread(wait_until, lambda: client.hdel(key, 0), 30, "the result")
        return job.payload * 10

    with (
        redis.Redis.from_url(connected.url) as client,
        working(connected, queue.name, handle, store_results=True),
    ):
        run = test_dags.run(f"many_{mode}", queue=queue.name)
    assert run.state == "success"
    assert run.xcom("send", "results") == [None, 20, 30]
    counts = run.xcom("send", "counts")
    assert (counts["done"], counts["missing_results"], counts["without_result"]) == (3, 1, [0])
    assert "1 of 3 results are missing" in "".join(capfd.readouterr())


def test_results_that_json_cannot_contain_are_pushed_in_their_json_form(
    test_dags: Dags, queue: Queue, connected: Server
) -> None:
    async def handle(job: Any) -> Any:
        return {1: b"\x00", 2: float("nan"), 3: 30}[job.payload]

    with working(connected, queue.name, handle, store_results=True):
        run = test_dags.run("many_in_process", queue=queue.name)
    assert run.state == "success"
    assert run.xcom("send", "results") == [{"base64": "AA=="}, "nan", 30]


@pytest.mark.parametrize("mode", ["deferred", "in_process"])
def test_workers_without_results_are_named_as_the_cause(
    test_dags: Dags, queue: Queue, connected: Server, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def handle(job: Any) -> Any:
        return job.payload * 10

    with working(connected, queue.name, handle):
        run = test_dags.run(f"many_{mode}", queue=queue.name)
    assert run.xcom("send", "results") is None
    counts = run.xcom("send", "counts")
    assert (counts["missing_results"], counts["without_result"]) == (3, [0, 1, 2])
    assert "--store-results" in "".join(capfd.readouterr())
