"""Connections: none is lost, shared by mistake, or given back with a stray reply."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import pytest

from airflow_provider_chasqui.core.command import Command, as_raw, redis_command
from airflow_provider_chasqui.core.commands import consumer_group, inspect
from airflow_provider_chasqui.core.errors import ConnectionFailed, KeyTypeMismatch, WaitTimeout
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.connection_pool import ConnectionManager
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.target import RedisTarget, from_url
from tests.conftest import Server
from tests.redis_client.conftest import Blocking, Open, admin, stream_length
from tests.redis_client.gate import Gate
from tests.support.servers import RedisServer
from tests.support.waiting import until


def connections(server: RedisServer, name: str) -> int:
    with admin(server) as client:
        return sum(each["name"] == name for each in client.client_list())


def named(server: RedisServer, name: str, **options: Any) -> RedisTarget:
    return RedisTarget((("127.0.0.1", server.port),), client_name=name, **options)


def test_one_caller_uses_one_connection(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, named(valkey_server, queue_name))
    for number in range(50):
        queue.add(number)
        with pytest.raises(WaitTimeout):
            queue.wait("nobody", timeout=timedelta(milliseconds=1))
    assert connections(valkey_server, queue_name) == 1
    queue.close()
    until(lambda: connections(valkey_server, queue_name) == 0)


def test_refusals_leave_no_connection_behind(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, named(valkey_server, queue_name))
    with admin(valkey_server) as client:
        client.set(f"{{chasqui:{queue_name}}}:stream", "x", px=60_000)
    for _ in range(30):
        with pytest.raises(KeyTypeMismatch):
            queue.add(1)
    assert connections(valkey_server, queue_name) == 1


def test_timeouts_leave_no_connection_behind(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    options: dict[str, Any] = {"timeout": 0.02, "retries": 0}
    queue = open_queue(queue_name, named(valkey_server, queue_name, **options))
    queue.dialect()
    slow = redis_command("XREAD", "BLOCK", 100, "STREAMS", queue.keys.stream, "$", parse=as_raw)
    for _ in range(10):
        with pytest.raises(ConnectionFailed, match="did not answer in time"):
            queue.run(slow)
    # The server notices a closed socket only once the blocked command has ended.
    until(lambda: connections(valkey_server, queue_name) <= 1)


def test_closed_queues_of_one_link_share_its_connection(
    valkey_server: RedisServer, queue_name: str
) -> None:
    link = ConnectionManager(named(valkey_server, queue_name))
    for number in range(150):
        with Queue(f"{queue_name}-{number % 3}", link) as queue:
            queue.add(number)
    assert connections(valkey_server, queue_name) == 1
    link.close()


async def test_closed_async_queues_of_one_link_share_its_connection(
    valkey_server: RedisServer, queue_name: str
) -> None:
    link = AsyncConnectionManager(named(valkey_server, queue_name))
    for number in range(150):
        async with AsyncQueue(f"{queue_name}-{number % 3}", link) as queue:
            await queue.add(number)
    assert connections(valkey_server, queue_name) == 1
    await link.close()


def test_more_callers_than_redis_py_would_allow(
    valkey_server: RedisServer, queue_name: str
) -> None:
    with Queue(queue_name, named(valkey_server, queue_name)) as queue:
        queue.dialect()
        blocked = inspect.wait_for_events(queue.keys, "0-0", 1, 300)
        with ThreadPoolExecutor(130) as pool:
            assert list(pool.map(lambda _: queue.client.execute(blocked), range(130))) == [[]] * 130


def test_eight_threads_on_one_queue(server: Server, queue_name: str) -> None:
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        start = threading.Barrier(8)

        def work(number: int) -> list[str]:
            start.wait()
            ids = [queue.add({"thread": number, "turn": turn}).job_id for turn in range(100)]
            ids += [each.job_id for each in queue.add_many({"payload": n} for n in range(300))]
            assert queue.job_status(ids[-1]).state == "waiting"
            return ids

        with ThreadPoolExecutor(8) as pool:
            ids = [each for some in pool.map(work, range(8)) for each in some]
        assert len(set(ids)) == 8 * 400
        assert queue.depth().waiting == 8 * 400
        raw = queue.client.execute(inspect.read_entries(queue.keys, "-", 10_000))
        assert sorted(consumer_group.parse_entry(each, 10**6).job.id for each in raw) == sorted(ids)


async def test_many_tasks_on_one_queue(server: Server, queue_name: str) -> None:
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        added = await asyncio.gather(*(queue.add(number) for number in range(300)))
        assert len({each.job_id for each in added}) == 300
        assert (await queue.depth()).waiting == 300


def _child(queue: Queue, pipe: Any) -> None:
    ids = [queue.add({"child": True}).job_id for _ in range(50)]
    ids += [each.job_id for each in queue.add_many([{"payload": n} for n in range(50)])]
    with admin(queue._connection_manager.target.nodes[0][1]) as client:
        mine = [each["name"] for each in client.client_list()]
    pipe.send((ids, mine.count(queue._connection_manager.target.client_name)))
    queue.close()


def test_a_fork_has_sockets_and_names_of_its_own(
    valkey_server: RedisServer, queue_name: str
) -> None:
    with Queue(queue_name, named(valkey_server, queue_name)) as queue:
        queue.add_many([{"payload": n} for n in range(50)])
        context = get_context("fork")
        ours, theirs = context.Pipe()
        children = [context.Process(target=_child, args=(queue, theirs)) for _ in range(3)]
        for child in children:
            child.start()
        # The parent goes on at the same time, on the socket that the children inherited.
        mine = [queue.add({"child": False}).job_id for _ in range(50)]
        mine += [each.job_id for each in queue.add_many([{"payload": n} for n in range(50)])]
        told = [ours.recv() for _ in children]
        for child in children:
            child.join(20)
            assert child.exitcode == 0
        ids = mine + [each for some, _ in told for each in some]
        assert len(set(ids)) == 400
        assert queue.depth().waiting == 450
        assert all(count >= 2 for _, count in told)
        assert queue.job_status(mine[0]).state == "waiting"


@pytest.mark.parametrize("colour", ["blocking", "awaiting"])
def test_a_blocking_read_may_outlast_the_timeout(
    native_server: Server, queue_name: str, colour: str
) -> None:
    target = from_url(native_server.url, timeout=0.1, retries=0)
    queue = _open(colour, queue_name, target)
    began = time.monotonic()
    assert queue.run(inspect.wait_for_events(queue.keys, "0-0", 1, 400)) == []
    assert 0.35 < time.monotonic() - began < 3
    # And the usual timeout is in force again.
    slow = redis_command("XREAD", "BLOCK", 5000, "STREAMS", queue.keys.events, "$", parse=as_raw)
    began = time.monotonic()
    with pytest.raises(ConnectionFailed):
        queue.run(slow)
    assert time.monotonic() - began < 3
    queue.close()
    if queue.loop:
        queue.loop.close()


def _open(colour: str, name: str, target: RedisTarget) -> Any:
    if colour == "blocking":
        return Blocking(Queue(name, target), None)
    return Blocking(AsyncQueue(name, target), asyncio.new_event_loop())


def test_a_lost_reply_is_asked_for_again_and_the_job_is_there_once(
    open_queue: Open, own_binary: Any, queue_name: str
) -> None:
    with RedisServer.start(own_binary) as own, Gate(own.port) as gate:
        queue = open_queue(queue_name, gate.url)
        queue.add(0)
        for job in (
            lambda: queue.add(1),
            lambda: queue.add(1, job_id="named"),
            lambda: queue.add(1, job_id="marked", dedup_ttl=timedelta(minutes=1)),
            lambda: queue.add_many([{"payload": n} for n in range(700)]),
            lambda: queue.add_batch(range(700), batch_id="b"),
        ):
            gate.hold()
            cutter = threading.Thread(target=lambda: (gate.wait_for_reply(), gate.cut()))
            cutter.start()
            job()
            cutter.join()
        assert stream_length(own, queue_name) == 1 + 3 + 700 + 700
        later = {"delay": timedelta(hours=1)}
        for number in range(2):
            gate.hold()
            cutter = threading.Thread(target=lambda: (gate.wait_for_reply(), gate.cut()))
            cutter.start()
            queue.add(1, **later, **({"id": "later"} if number else {}))
            cutter.join()
        assert queue.depth().delayed == 2


async def test_a_cancelled_call_leaves_no_stray_reply(
    valkey_server: RedisServer, queue_name: str
) -> None:
    with Gate(valkey_server.port) as gate:
        async with AsyncQueue(queue_name, f"{gate.url}?client_name={queue_name}") as queue:
            await queue.add(0)
            for _ in range(20):
                gate.hold()
                asked = asyncio.create_task(queue.result("nobody", default="nothing"))
                await asyncio.to_thread(gate.wait_for_reply)
                asked.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asked
                gate.let_go()
                # The reply to the cancelled GET would be None; an int or a list is ours.
                assert (await queue.depth()).waiting == 1
            count = await asyncio.to_thread(connections, valkey_server, queue_name)
            assert count <= 2


async def test_a_blocking_read_that_ran_out_of_time_leaves_no_stray_reply(
    valkey_server: RedisServer, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_chasqui.redis_client.client._SLACK", 0.05)
    with Gate(valkey_server.port) as gate:
        async with AsyncQueue(queue_name, f"{gate.url}?retries=0") as queue:
            await queue.add(0)
            gate.hold()
            with pytest.raises(ConnectionFailed, match="did not answer in time"):
                await queue.client.execute(inspect.wait_for_events(queue.keys, "0-0", 1, 20))
            gate.let_go()
            assert (await queue.depth()).waiting == 1


async def test_each_read_has_its_own_time_though_they_share_a_timer(
    valkey_server: RedisServer, queue_name: str
) -> None:
    """A long read leaves the timer far away, a short one near; neither is the next one's."""

    def block(ms: int) -> Command[Any]:
        args = ("XREAD", "BLOCK", ms, "STREAMS", "nowhere", "$")
        return redis_command(*args, parse=as_raw, block_ms=ms)

    with Gate(valkey_server.port) as gate:
        async with AsyncQueue(queue_name, f"{gate.url}?retries=0&timeout=0.3") as queue:
            await queue.add(0)
            await queue.client.execute(block(1))
            await queue.add(0)
            await asyncio.sleep(0.4)  # the timer of the last add has rung for nobody
            assert await queue.client.execute(block(700)) is None
            assert (await queue.depth()).waiting == 2
            gate.hold()
            began = time.monotonic()
            with pytest.raises(ConnectionFailed, match="did not answer in time"):
                await queue.add(0)
            assert 0.25 < time.monotonic() - began < 3.0
            gate.let_go()


@pytest.mark.parametrize("colour", ["blocking", "awaiting"])
def test_a_login_that_is_interrupted_leaves_no_half_made_connection(
    valkey_server: RedisServer, queue_name: str, colour: str
) -> None:
    binary = valkey_server.binary
    with RedisServer.start(binary, "--requirepass", "pw") as own, Gate(own.port) as gate:
        target = from_url(gate.url, password="pw", timeout=5, client_name=queue_name)
        if colour == "awaiting":
            asyncio.run(_interrupt_awaiting(gate, queue_name, target))
        else:
            _interrupt_blocking(gate, queue_name, target)


async def _interrupt_awaiting(gate: Gate, name: str, target: RedisTarget) -> None:
    async with AsyncQueue(name, target) as queue:
        for turn in range(5):
            await queue.client._disconnect_idle()
            gate.hold()
            asked = asyncio.create_task(queue.add(1))
            await asyncio.to_thread(gate.wait_for_reply)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            # The reply to the login is still on its way when the next call is made.
            after = asyncio.create_task(queue.add(1))
            await asyncio.to_thread(gate.wait_for_connections, 2 * turn + 2)
            gate.let_go()
            assert (await after).created
            assert (await queue.depth()).waiting == turn + 1


class Interrupt(BaseException):
    """As Airflow raises it in the main thread when a task takes too long."""


def _interrupt_blocking(gate: Gate, name: str, target: RedisTarget) -> None:
    def ring(*_: object) -> None:
        raise Interrupt

    def alarm() -> None:
        gate.wait_for_reply()
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with Queue(name, target) as queue:
            for turn in range(5):
                queue.client._disconnect_idle()
                gate.hold()
                bell = threading.Thread(target=alarm)
                bell.start()
                with pytest.raises(Interrupt):
                    queue.add(1)
                bell.join()
                # The reply to the login is still on its way when the next call is made.
                with ThreadPoolExecutor(1) as pool:
                    after = pool.submit(queue.add, 1)
                    gate.wait_for_connections(2 * turn + 2)
                    gate.let_go()
                    assert after.result().created
                assert queue.depth().waiting == turn + 1
    finally:
        signal.signal(signal.SIGUSR1, before)
