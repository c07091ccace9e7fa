"""Moving jobs to RSMQ: exactly once on one server, deduplicated between two."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands.rsmq import JobToMessage, move_jobs
from airflow_provider_chasqui.core.errors import InvalidArgument, RsmqQueueNotFound
from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.rsmq import bridge
from airflow_provider_chasqui.rsmq.bridge import migrate_from_rsmq, migrate_to_rsmq
from airflow_provider_chasqui.rsmq.client import RsmqClient


@pytest.fixture
def leases(server: Any, queue_name: str) -> Iterator[LeaseQueue]:
    with LeaseQueue(queue_name, server.url, dialect=server.dialect) as leases:
        yield leases


def test_jobs_become_messages_in_order(rsmq: RsmqClient, queue: Queue, leases: LeaseQueue) -> None:
    queue.add_many([{"payload": f"m{i}"} for i in range(150)])
    queue.add({"a": "ü"})
    queue.add(b"bytes")
    queue.add("later", delay=timedelta(hours=1))
    assert migrate_to_rsmq(leases, "q", rsmq) == bridge.TransferReport(moved=152)
    texts = [message.message for message in rsmq.peek_messages("q", limit=500)]
    assert texts == [f"m{i}" for i in range(150)] + ['{"a": "ü"}', "bytes"]
    depth = queue.depth()
    assert (depth.waiting, depth.running, depth.delayed) == (0, 0, 1)
    assert rsmq.get_queue_attributes("q").totalsent == 152


def test_a_round_trip_preserves_id_text_and_order(
    rsmq: RsmqClient, queue: Queue, leases: LeaseQueue
) -> None:
    sent = [rsmq.send_message("q", f"m{i}") for i in range(20)]
    migrate_from_rsmq("q", queue, rsmq)
    migrate_to_rsmq(leases, "q", rsmq)
    assert [message.id for message in rsmq.peek_messages("q", limit=50)] == sent


def test_a_job_that_cannot_be_a_message_becomes_a_dead_letter(
    rsmq: RsmqClient, queue: Queue, leases: LeaseQueue
) -> None:
    rsmq.set_queue_attributes("q", maxsize=1024)
    queue.add("x" * 1025, job_id="long")
    queue.add(b"\xff", job_id="binary")
    queue.add("fine")
    assert migrate_to_rsmq(leases, "q", rsmq) == bridge.TransferReport(moved=1, dead_lettered=2)
    errors = {dead_letter.job_id: dead_letter.error for dead_letter in queue.dead_letters()}
    assert set(errors) == {"long", "binary"}
    assert "too long" in errors["long"]


def test_a_batch_is_done_after_its_jobs_were_moved(
    rsmq: RsmqClient, queue: Queue, leases: LeaseQueue
) -> None:
    queue.add_batch(range(5), batch_id="b")
    assert migrate_to_rsmq(leases, "q", rsmq, max_messages=3, convert=lambda n: f"#{n}").moved == 3
    assert queue.batch_progress("b").done == 3
    assert migrate_to_rsmq(leases, "q", rsmq, convert=lambda n: f"#{n}").moved == 2
    assert queue.batch_progress("b").finished
    assert [m.message for m in rsmq.peek_messages("q")] == [f"#{n}" for n in range(5)]


def test_nothing_is_leased_for_a_missing_queue(
    rsmq: RsmqClient, queue: Queue, leases: LeaseQueue, server: Any
) -> None:
    queue.add(1)
    with pytest.raises(RsmqQueueNotFound):
        migrate_to_rsmq(leases, "nope", rsmq)
    assert queue.depth().running == 0
    config = LeaseConfig(mode="exclusive")
    with (
        LeaseQueue("other", server.url, config=config) as exclusive,
        pytest.raises(InvalidArgument, match="shared"),
    ):
        migrate_to_rsmq(exclusive, "q", rsmq)


def test_between_two_servers_a_crash_before_the_ack_duplicates_nothing(
    rsmq: RsmqClient, queue: Queue, server: Any, monkeypatch: Any
) -> None:
    queue.add_many([{"payload": str(i)} for i in range(5)])
    elsewhere = server.url.replace("127.0.0.1", "localhost")
    short = LeaseConfig(visibility_timeout=timedelta(milliseconds=1))

    class Crash(Exception):
        pass

    def crash(*_: Any) -> None:
        raise Crash

    with LeaseQueue(queue.name, elsewhere, dialect=server.dialect, config=short) as leases:
        monkeypatch.setattr(leases, "ack", crash)
        with pytest.raises(Crash):
            migrate_to_rsmq(leases, "q", rsmq)
    assert rsmq.get_queue_attributes("q").msgs == 5
    with LeaseQueue(queue.name, elsewhere, dialect=server.dialect) as leases:
        assert migrate_to_rsmq(leases, "q", rsmq) == bridge.TransferReport(duplicates=5)
    assert [m.message for m in rsmq.peek_messages("q")] == [str(i) for i in range(5)]
    assert queue.depth().running == queue.depth().waiting == 0


@pytest.mark.interop
@pytest.mark.timeout(120)
def test_a_chasquimq_worker_two_bridges_and_node_process_every_job_once(
    native_server: Any, namespace: str, queue_name: str, npm_rsmq: Any, stock_worker: Any
) -> None:
    """The worker and the bridges race for 600 jobs; node reads the jobs that the bridges move."""
    url = native_server.url
    with RsmqClient(url, namespace=namespace) as rsmq, Queue(queue_name, url) as queue:
        rsmq.create_queue("q")
        worker = stock_worker(url, queue_name)
        queue.add_many([{"payload": i} for i in range(600)])

        def carry(number: int) -> None:
            with LeaseQueue(queue_name, url) as leases, RsmqClient(url, namespace=namespace) as to:
                migrate_to_rsmq(leases, "q", to, consumer=f"bridge-{number}")

        bridges = [threading.Thread(target=carry, args=(n,)) for n in range(2)]
        for process in bridges:
            process.start()
        for process in bridges:
            process.join(60)
        pending = redis_command("XPENDING", queue.keys.stream, "default", parse=as_raw)
        while queue.client.execute(pending)[0] or queue.depth().waiting:
            pass  # the worker finishes what it has read
        worker.process.stdin.write("stop\n")
        worker.process.stdin.flush()
        ran = []
        while (line := worker.receive()) != "down":
            ran.append(line["ran"])
        npm = npm_rsmq(url)
        moved = []
        while message := npm.ask("popMessage", qname="q"):
            moved.append(int(message["message"]))
        assert sorted(ran + moved) == list(range(600))
        assert moved, "the bridges moved nothing: nothing was raced"


def test_a_bridge_with_a_lost_lease_moves_nothing(
    rsmq: RsmqClient, queue: Queue, leases: LeaseQueue
) -> None:
    queue.add("x")
    (mine,) = leases.lease("bridge", visibility_timeout=timedelta(milliseconds=1))
    (theirs,) = leases.lease("worker", wait=timedelta(seconds=10))
    target = rsmq.flows.keys("q")
    shape = JobToMessage(queue.name)
    for lease, sign in ((mine, b"0"), (theirs, b"1"), (theirs, b"0")):
        ready = [(lease, shape.message_id(lease), shape.body(lease.job))]
        assert (
            leases.client.execute(move_jobs(leases.keys, "default", target, rsmq.flows, ready))
            == sign
        )
    assert rsmq.get_queue_attributes("q").msgs == 1


@pytest.mark.interop
@pytest.mark.timeout(120)
def test_bridges_node_and_a_chasquimq_worker_run_together(
    native_server: Any, namespace: str, queue_name: str, npm_rsmq: Any, stock_worker: Any
) -> None:
    """Node pops from RSMQ, two bridges move messages, a ChasquiMQ worker runs the moved jobs."""
    url = native_server.url
    npm, worker = npm_rsmq(url), stock_worker(url, queue_name)
    with RsmqClient(url, namespace=namespace) as rsmq, Queue(queue_name, url) as queue:
        rsmq.create_queue("q")
        sent = [rsmq.send_message("q", str(i)) for i in range(600)]
        npm.send("loop", qname="q")

        def carry() -> None:
            with Queue(queue_name, url) as to, RsmqClient(url, namespace=namespace) as source:
                migrate_from_rsmq("q", to, source)

        bridges = [threading.Thread(target=carry) for _ in range(2)]
        for process in bridges:
            process.start()
        for process in bridges:
            process.join(60)
        npm.send("stop")
        theirs = []
        while "popped" in (line := npm.receive()):
            theirs.append(line["popped"]["id"])
        while queue.depth().waiting or queue.depth().running:
            pass  # the worker finishes what it has
        worker.process.stdin.write("stop\n")
        worker.process.stdin.flush()
        ran = []
        while (line := worker.receive()) != "down":
            ran.append(line["id"])
        assert sorted(ran + theirs) == sorted(sent)
        assert ran
        assert theirs
