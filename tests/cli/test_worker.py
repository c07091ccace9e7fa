"""`chasqui worker` as real processes that are killed, stopped, reloaded and scraped."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.cli.conftest import Worker, alive, wait_for
from tests.conftest import Server
from tests.support.servers import RedisServer, valkey_binary

pytestmark = [pytest.mark.system, pytest.mark.timeout(180), pytest.mark.xdist_group("cli-worker")]

Start = Callable[..., Worker]
MINUTE = timedelta(minutes=1)


@pytest.fixture(params=["native_server", "portable_server"])
def server(request: pytest.FixtureRequest) -> Server:
    selected: Server = request.getfixturevalue(request.param)
    return selected


def test_processes_tune_the_garbage_collector(
    native_server: Server, queue_name: str, start_worker: Start
) -> None:
    start_worker(native_server, "-q", queue_name, "--store-results").ready()
    with Queue(queue_name, native_server.url) as queue:
        every, frozen = queue.wait(queue.add(None, job_name="collector").job_id, timeout=MINUTE)
    assert every > gc.get_threshold()[0]
    assert frozen > 10_000


def test_two_processes_share_the_jobs_and_add_up_metrics(
    server: Server, queue: Queue, start_worker: Start
) -> None:
    worker = start_worker(server, "-q", queue.name, "-p", "2", "-c", "5", "--store-results").ready()
    jobs = [{"payload": 0.05, "job_name": "sleep"} for _ in range(100)]
    jobs += [{"payload": n} for n in range(100)] + [{"job_name": "die"} for _ in range(3)]
    added = queue.add_many(jobs)

    def completed() -> float:
        return worker.metric("chasquimq_jobs_completed_total", queue=queue.name)

    wait_for(lambda: completed() == 200)
    wait_for(lambda: worker.metric("chasqui_entries_acked_total", queue=queue.name) == 203)
    assert worker.metric("chasquimq_jobs_completed_total", name="sleep") == 100
    assert worker.metric("chasquimq_jobs_failed_total", name="die", kind="error") == 3
    assert worker.metric("chasquimq_dlq_routed_total", reason="unrecoverable") == 3
    assert worker.metric("chasquimq_handler_duration_seconds_count", name="sleep") == 100
    assert worker.metric("chasquimq_handler_duration_seconds_sum", name="sleep") >= 5
    assert worker.metric("chasquimq_consumer_batch_size_sum", queue=queue.name) == 203
    assert worker.metric("chasquimq_consumer_batch_size_bucket", queue=queue.name, le="+Inf") > 0
    wait_for(lambda: worker.metric("chasqui_queue_dead", queue=queue.name) == 3)
    assert worker.metric("chasqui_queue_consumers", queue=queue.name) == 2

    results = queue.results([result.job_id for result in added[:100]])
    assert set(results.values()) == set(worker.pids())  # both processes ran some

    status = worker.health()
    assert status["status"] == "ok"
    assert status["last_read_age_s"] < 15
    assert [process["ready"] for process in status["processes"]] == [True, True]

    worker.signal(signal.SIGTERM)
    assert worker.end() == 0, worker.log
    depth = queue.depth()
    assert (depth.waiting, depth.running, depth.consumers) == (0, 0, 0)


@pytest.mark.chaos
def test_a_killed_process_is_replaced_and_its_metrics_are_kept(
    server: Server, queue: Queue, start_worker: Start
) -> None:
    worker = start_worker(
        server, "-q", queue.name, "-p", "2", "-c", "5", "--claim-after", "1s", "--store-results"
    ).ready()
    queue.add_many([{"payload": n} for n in range(50)])
    name = "chasquimq_jobs_completed_total"
    wait_for(lambda: worker.metric(name, queue=queue.name) == 50)

    held = queue.add(3, job_name="sleep", job_id="held")
    wait_for(lambda: queue.progress(held.job_id))

    def busy_pids() -> list[int]:
        processes = worker.health()["processes"]
        return [process["pid"] for process in processes if process["queues"][queue.name]["running"]]

    victim = wait_for(busy_pids)[0]
    os.kill(victim, signal.SIGKILL)

    assert queue.wait(held.job_id, timeout=MINUTE) != victim  # another process ran it
    wait_for(lambda: sum(process["restarts"] for process in worker.health()["processes"]) == 1)
    wait_for(lambda: worker.get("/readyz")[0] == 200)
    assert victim not in worker.pids()
    assert worker.metric("chasqui_worker_restarts_total") == 1
    wait_for(lambda: worker.metric(name, queue=queue.name) == 51)
    assert "was killed by SIGKILL; restarting in" in worker.log

    worker.signal(signal.SIGINT)
    assert worker.end() == 0, worker.log


@pytest.mark.chaos
def test_processes_exit_after_a_killed_supervisor(
    server: Server, queue: Queue, start_worker: Start
) -> None:
    worker = start_worker(server, "-q", queue.name, "-p", "2", "--shutdown-timeout", "1s").ready()
    queue.add(60, job_name="sleep", job_id="long")
    wait_for(lambda: queue.progress("long"))
    children = worker.pids()
    worker.signal(signal.SIGKILL)
    worker.end()
    wait_for(lambda: not any(map(alive, children)), 20)
    # The running job was requeued and the consumers left the group.
    depth = queue.depth()
    assert (depth.waiting, depth.running, depth.consumers) == (1, 0, 0)


def test_sigterm_lets_running_jobs_finish(
    server: Server, queue: Queue, start_worker: Start
) -> None:
    worker = start_worker(server, "-q", queue.name, "-c", "2", "--store-results").ready()
    queue.add(5, job_name="sleep", job_id="slow")
    wait_for(lambda: queue.progress("slow"))
    worker.signal(signal.SIGTERM)
    wait_for(lambda: worker.get("/readyz")[0] == 503)
    assert worker.health()["shutting_down"] is True
    assert worker.get("/healthz")[0] == 200  # shutting down is not a reason to restart it
    # A worker that reads calls the server at least once per second.
    wait_for(lambda: all(consumer.idle_ms > 1500 for consumer in queue.consumers()))
    queue.add("too late", job_id="next")
    assert worker.end() == 0, worker.log
    assert queue.result("slow") in worker.seen_pids
    assert queue.job_status("next").state == "waiting"


def test_jobs_that_exceed_the_shutdown_timeout_are_requeued(
    native_server: Server, queue_name: str, start_worker: Start
) -> None:
    worker = start_worker(native_server, "-q", queue_name, "--shutdown-timeout", "500ms").ready()
    with Queue(queue_name, native_server.url) as queue:
        queue.add(60, job_name="sleep", job_id="long")
        wait_for(lambda: queue.progress("long"))
        worker.signal(signal.SIGTERM)
        assert worker.end(20) == 0, worker.log
        assert queue.job_status("long").state == "waiting"


def test_a_second_signal_kills_the_processes(
    native_server: Server, queue_name: str, start_worker: Start
) -> None:
    worker = start_worker(native_server, "-q", queue_name, "-p", "2").ready()
    with Queue(queue_name, native_server.url) as queue:
        queue.add(60, job_name="sleep", job_id="long")
        wait_for(lambda: queue.progress("long"))
    children = worker.pids()
    worker.signal(signal.SIGTERM)
    wait_for(lambda: "waiting up to" in worker.log)
    worker.signal(signal.SIGTERM)
    assert worker.end(10) == 128 + signal.SIGTERM
    assert not any(map(alive, children))


def test_sighup_restarts_every_process_and_loses_nothing(
    native_server: Server, queue_name: str, start_worker: Start
) -> None:
    worker = start_worker(native_server, "-q", queue_name, "-p", "2", "--store-results").ready()
    before = worker.pids()
    with Queue(queue_name, native_server.url) as queue:
        queue.add(2, job_name="sleep", job_id="slow")
        wait_for(lambda: queue.progress("slow"))
        worker.signal(signal.SIGHUP)
        assert queue.wait("slow", timeout=MINUTE) in before
        wait_for(lambda: not set(before) & set(worker.pids()) and None not in worker.pids())
        wait_for(lambda: worker.get("/readyz")[0] == 200)
        assert queue.wait(queue.add("after").job_id, timeout=MINUTE) == [1, "after"]
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0, worker.log


def test_reload_finishes_running_jobs_and_loads_the_new_code(
    native_server: Server, queue_name: str, start_worker: Start, tmp_path: Path
) -> None:
    worker = start_worker(native_server, "-q", queue_name, "--reload", "--store-results").ready()
    module = tmp_path / "my_jobs.py"
    good = module.read_text()
    with Queue(queue_name, native_server.url) as queue:
        assert queue.wait(queue.add("x").job_id, timeout=MINUTE) == [1, "x"]
        queue.add(2, job_name="sleep", job_id="slow")
        wait_for(lambda: queue.progress("slow"))
        old = worker.pids()[0]
        module.write_text(good.replace("VERSION = 1", "VERSION = 2"))
        assert queue.wait("slow", timeout=MINUTE) == old  # the old process finished it
        assert queue.wait(queue.add("y").job_id, timeout=MINUTE) == [2, "y"]

        module.write_text("def broken(:")
        wait_for(lambda: "waits for a file to change" in worker.log)
        assert worker.process.poll() is None
        module.write_text(good.replace("VERSION = 1", "VERSION = 3"))
        assert queue.wait(queue.add("z").job_id, timeout=MINUTE) == [3, "z"]
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0, worker.log


def test_a_worker_waits_for_its_server_and_is_not_ready(
    start_worker: Start, queue_name: str
) -> None:
    with RedisServer.start(valkey_binary(), aof=True) as process:
        server = Server(process.url, "portable")
        with Queue(queue_name, server.url) as queue:
            queue.add("early", job_id="early")
        process.stop()
        worker = start_worker(server, "-q", queue_name, "--store-results")
        wait_for(lambda: "waiting for the server" in worker.log)
        assert worker.get("/readyz")[0] == 503
        assert worker.get("/healthz")[0] == 200  # a restart of the worker would not help
        process.restart()
        worker.ready()
        with Queue(queue_name, server.url) as queue:
            assert queue.wait("early", timeout=MINUTE) == [1, "early"]
        process.stop()
        wait_for(lambda: worker.get("/readyz")[0] == 503)
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0, worker.log


def test_several_queues_in_one_worker(
    native_server: Server, queue_name: str, start_worker: Start
) -> None:
    names = [f"{queue_name}-a", f"{queue_name}-b"]
    worker = start_worker(native_server, "-q", names[0], "-q", names[1], "--store-results").ready()
    for name in names:
        with Queue(name, native_server.url) as queue:
            assert queue.wait(queue.add(name).job_id, timeout=MINUTE) == [1, name]
        wait_for(lambda name=name: worker.metric("chasquimq_jobs_completed_total", queue=name) == 1)
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0, worker.log


def test_logs_in_json_and_no_password_anywhere(start_worker: Start, queue_name: str) -> None:
    secret = "s3cr3t-word"
    with RedisServer.start(valkey_binary(), "--requirepass", secret) as process:
        url = process.url.replace("redis://", f"redis://:{secret}@")
        worker = start_worker(
            Server(process.url, "portable"), "-q", queue_name, "--url", url, "--log-json"
        ).ready()
        for pid in (worker.process.pid, *worker.pids()):
            assert secret not in Path(f"/proc/{pid}/cmdline").read_text()
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0, worker.log
    lines = [json.loads(line) for line in worker.log.splitlines()]
    assert {"ts", "level", "logger", "process", "pid", "message"} <= lines[0].keys()
    assert lines[-1]["message"] == "supervisor: all processes have stopped"
    assert secret not in worker.log


@pytest.mark.parametrize(
    ("handlers", "message"),
    [
        ("no_such_module:handlers", "No module named 'no_such_module'"),
        ("my_jobs:nothing", "'my_jobs' has no 'nothing'"),
        ("my_jobs:VERSION", "'my_jobs:VERSION' is int"),
    ],
)
def test_handlers_that_cannot_be_loaded_exit_with_2(
    native_server: Server, queue_name: str, start_worker: Start, handlers: str, message: str
) -> None:
    worker = start_worker(native_server, handlers, "-q", queue_name, "-p", "2")
    assert worker.end() == 2
    assert message in worker.log
    assert "Traceback" not in worker.log


def test_handlers_from_a_factory(
    native_server: Server, queue_name: str, start_worker: Start
) -> None:
    worker = start_worker(native_server, "my_jobs:factory", "-q", queue_name, "--store-results")
    with Queue(queue_name, native_server.url) as queue:
        assert queue.wait(queue.add("made").job_id, timeout=MINUTE) == [1, "made"]
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0, worker.log


def test_a_rejected_login_exits_with_1(start_worker: Start, queue_name: str) -> None:
    with RedisServer.start(valkey_binary(), "--requirepass", "right") as process:
        worker = start_worker(
            Server(process.url, "portable"), "-q", queue_name, CHASQUI_PASSWORD="wrong-word"
        )
        assert worker.end() == 1
    assert "CMQ-001" in worker.log
    assert "wrong-word" not in worker.log


def test_a_huge_error_text_neither_blocks_the_worker_nor_fills_the_log(
    native_server: Server, queue_name: str, start_worker: Start
) -> None:
    """Masking such a text with a quadratic pattern would take hours."""
    worker = start_worker(native_server, "-q", queue_name, "--store-results", "--max-attempts", "2")
    with Queue(queue_name, native_server.url) as queue:
        queue.add("a." * 250_000, job_name="raise")
        assert queue.wait(queue.add("beside").job_id, timeout=MINUTE) == [1, "beside"]
        wait_for(lambda: queue.depth().dead == 1)
        (dead_letter,) = queue.dead_letters()
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0, worker.log
    # One record with a traceback for the first failure, and one for the dead letter.
    assert "characters omitted" in worker.log
    assert len(worker.log) < 100_000
    assert len(dead_letter.error) + len(dead_letter.detail) < 20_000


def test_handlers_and_what_they_start_inherit_no_password(
    start_worker: Start, queue_name: str
) -> None:
    with RedisServer.start(valkey_binary(), "--requirepass", "S3cretPw") as process:
        url = process.url.replace("://", "://:S3cretPw@")
        server = Server(process.url, "portable")
        for number, variables in enumerate(
            (
                {"CHASQUI_PASSWORD": "S3cretPw"},
                {"CHASQUI_URL": url},
                {
                    "CHASQUI_URL": f"{process.url}?sentinel_password=S3cretPw",
                    "CHASQUI_REDIS_URL": url,
                    "CHASQUI_PASSWORD": "S3cretPw",
                },
            )
        ):
            worker = start_worker(server, "-q", queue_name, "--store-results", **variables)
            with Queue(queue_name, url) as queue:
                job = queue.add(None, job_name="environment", job_id=f"job-{number}")
                seen = queue.wait(job.job_id, timeout=MINUTE)
            worker.signal(signal.SIGTERM)
            assert worker.end() == 0, worker.log
            assert "S3cretPw" not in seen
            assert "PATH" in seen
            # A URL without a password is no secret, and handlers may use it.
            assert ("CHASQUI_URL" in seen) == (variables.keys() == {"CHASQUI_PASSWORD"})


def test_a_module_of_declared_jobs_is_served_with_its_queues(
    native_server: Server, queue_name: str, start_worker: Start, tmp_path: Path
) -> None:
    other = f"{queue_name}-other"
    (tmp_path / "declared.py").write_text(f"""
from airflow_provider_chasqui import job

@job(queue_name={queue_name!r})
async def double(n: int) -> int:
    await note.enqueue_async(text=str(n))
    return n * 2

@job(queue_name={other!r})
def note(text: str) -> str:
    return text
""")
    worker = start_worker(native_server, "declared", "--store-results").ready()
    with Queue(queue_name, native_server.url) as queue, Queue(other, native_server.url) as notes:
        added = queue.add({"n": 4}, job_name="double")
        assert queue.wait(added.job_id, timeout=MINUTE) == 8
        wait_for(lambda: worker.metric("chasquimq_jobs_completed_total", name="note") == 1)
        assert notes.depth().waiting == 0
    assert f"declared declares jobs of the queues {queue_name}, {other}" in worker.log
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0


def test_a_worker_without_queues_exits_with_a_usage_error(
    native_server: Server, start_worker: Start
) -> None:
    worker = start_worker(native_server, "my_jobs:handlers")
    assert worker.end() == 2
    assert "a queue is required (--queue, queue_name)" in worker.log
