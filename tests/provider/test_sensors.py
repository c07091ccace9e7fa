"""Sensors wait for what does not exist yet, fail with the state, and push counts on failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.sensors.batch import ChasquiBatchSensor
from airflow_provider_chasqui.sensors.depth import ChasquiQueueDepthSensor
from airflow_provider_chasqui.sensors.job import ChasquiJobSensor
from tests.conftest import ONE_OF_EACH, Server
from tests.provider.conftest import HERE, Dags, connect, working
from tests.support.manual_worker import finish, move_to_dlq, take
from tests.support.waiting import wait_until

MODES = ["deferred", "poke", "reschedule"]
pytestmark = [ONE_OF_EACH, pytest.mark.timeout(120)]


@pytest.fixture
def sensing(
    dags: Callable[[Path], Dags], connected: Server, monkeypatch: pytest.MonkeyPatch
) -> Dags:
    monkeypatch.setenv("AIRFLOW__CHASQUI__POLL_INTERVAL", "0.2")
    monkeypatch.setenv("AIRFLOW__CHASQUI__FIRST_SCAN_DELAY", "0.2")
    return dags(HERE / "dags")


@pytest.mark.parametrize("mode", MODES)
def test_a_sensor_waits_for_an_explicit_id_that_does_not_exist_yet(
    sensing: Dags, queue: Queue, mode: str
) -> None:
    def send_and_finish() -> None:
        queue.add_batch([1, 2], batch_id="later")
        queue.add(1, job_id="later")
        for entry in take(queue):
            finish(queue, entry, result="here")

    timer = threading.Timer(4, send_and_finish)
    timer.start()
    run = sensing.run(f"later_{mode}", queue=queue.name)
    timer.join()
    assert run.states() == {"batch": "success", "job": "success"}
    assert run.xcom("batch")["done"] == 2
    assert run.xcom("job") == "here"


@pytest.mark.parametrize("mode", MODES)
def test_a_timeout_fails_or_skips_the_sensor(
    sensing: Dags, queue: Queue, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = sensing.run(f"never_{mode}", queue=queue.name)
    output = "".join(capfd.readouterr())
    assert run.states() == {
        "batch": "failed",
        "job": "failed",
        "never_fail": "failed" if mode == "reschedule" else "skipped",  # as Airflow's own sensors
        "soft_fail": "skipped",
    }
    assert "AirflowSensorTimeout" in output
    if mode != "reschedule":
        assert f"no worker consumes the queue '{queue.name}'" in output


@pytest.mark.parametrize("mode", MODES)
def test_a_handle_that_points_to_nothing_is_an_error(
    sensing: Dags, queue: Queue, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    states = sensing.run(f"broken_handles_{mode}", queue=queue.name).states()
    output = "".join(capfd.readouterr())
    assert (states["batch"], states["job"]) == ("failed", "failed")
    assert "CMQ-304" in output
    assert "CMQ-308" in output
    assert time.monotonic() - started < 40


@pytest.mark.parametrize("mode", MODES)
def test_limits_are_templated_and_counts_are_pushed_on_failure(
    sensing: Dags, queue: Queue, mode: str
) -> None:
    queue.add_batch(range(4), batch_id="dying")
    entries = take(queue)
    for entry in entries[:2]:
        move_to_dlq(queue, entry)
    for entry in entries[2:]:
        finish(queue, entry)
    run = sensing.run(f"dead_jobs_{mode}", queue=queue.name)
    assert run.states() == {"strict": "failed", "tolerant": "success", "never_fail": "skipped"}
    counts = run.xcom("strict", "counts")
    assert (counts["done"], counts["dead"], len(counts["dead_ids"])) == (2, 2, 2)
    assert counts == run.xcom("tolerant")
    assert "batch=dying" in run.xcom("strict", "chasqui_link")


@pytest.mark.parametrize("mode", MODES)
def test_the_queue_is_that_of_the_connection(
    sensing: Dags,
    queue: Queue,
    connected: Server,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    connect(monkeypatch, connected, queue_name=queue.name)
    queue.add_batch([1], batch_id="done")
    finish(queue, take(queue)[0])
    run = sensing.run(f"connection_queue_{mode}")
    assert run.states() == {"batch": "success", "job": "success", "depth": "success"}


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_result_of_a_job_is_counted(sensing: Dags, queue: Queue, mode: str) -> None:
    queue.add_batch([1, 2, 3], batch_id="jobs")
    with_result, without_result, dead = take(queue)
    finish(queue, with_result, result="here")
    finish(queue, without_result)
    move_to_dlq(queue, dead)
    run = sensing.run(f"job_counts_{mode}", queue=queue.name)
    assert run.states() == {"with": "success", "without": "success", "dead": "failed"}
    assert (run.xcom("with"), run.xcom("without")) == ("here", None)
    counts = {name: run.xcom(name, "counts") for name in run.states()}
    assert [counts[name]["missing_results"] for name in ("with", "without")] == [0, 1]
    assert (counts["dead"]["done"], counts["dead"]["dead"]) == (0, 1)
    assert counts["dead"]["dead_ids"] == ["batch:jobs:0:2"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("subject", ["job", "batch"])
def test_a_retry_replays_dead_jobs_if_that_was_requested(
    sensing: Dags, queue: Queue, connected: Server, mode: str, subject: str
) -> None:
    runs: list[int] = []

    async def handle(job: Any) -> None:
        runs.append(job.payload)
        if job.payload == 2 and runs.count(2) == 1:
            raise Unrecoverable("not yet")

    queue.add_batch([1, 2], batch_id="dying")
    with working(connected, queue.name, handle):
        wait_until(lambda: queue.batch_progress("dying").finished, message="the end of the jobs")
        run = sensing.run(f"replaying_{subject}_{mode}", queue=queue.name)
    assert run.states() == {"wait": "success"}
    assert sorted(runs) == [1, 2, 2]


@pytest.mark.parametrize("mode", MODES)
def test_dead_jobs_fail_a_sensor_without_its_retries(
    sensing: Dags, queue: Queue, mode: str, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.add_batch([1, 2], batch_id="dying")
    first, second = take(queue)
    finish(queue, first)
    move_to_dlq(queue, second)
    run = sensing.run(f"not_replaying_{mode}", queue=queue.name)
    assert run.states() == {"job": "failed", "batch": "failed"}
    assert "".join(capfd.readouterr()).count("AirflowFailException: ") >= 2


def test_a_depth_sensor_without_a_limit_is_an_error(server: Server) -> None:
    with pytest.raises(InvalidArgument, match="at least one of max_waiting, max_running"):
        ChasquiQueueDepthSensor(task_id="depth", queue_name="q")


def test_start_from_trigger_builds_the_trigger_without_the_task(server: Server) -> None:
    common: dict[str, Any] = {"deferrable": True, "start_from_trigger": True}
    sensors = [
        ChasquiJobSensor(task_id="j", queue_name="q", job_id="a-{{ ds }}", **common),
        ChasquiBatchSensor(task_id="b", queue_name="q", batch="b", **common),
        ChasquiQueueDepthSensor(task_id="d", queue_name="q", max_lag=3, **common),
    ]
    for sensor in sensors:
        args = sensor.start_trigger_args
        assert sensor.start_from_trigger
        assert args is not None
        assert args.next_method == "execute_complete"
        assert args.timeout == timedelta(seconds=sensor.timeout + 60)
        assert (args.trigger_kwargs or {})["timeout_margin"] == 60
        assert (args.trigger_kwargs or {})["queue_name"] == "q"
    for wrong in (
        lambda: ChasquiJobSensor(task_id="j", job_id="j", **common),
        lambda: ChasquiBatchSensor(task_id="b", queue_name="q", batch="{{ ds }}", **common),
    ):
        with pytest.raises(InvalidArgument, match="start_from_trigger"):
            wrong()
