"""Connections: none is leaked, shared by mistake, or reused with an outstanding reply."""

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
from airflow_provider_chasqui.core.commands import consumer_group, events, inspect
from airflow_provider_chasqui.core.errors import ConnectionFailed, KeyTypeMismatch, WaitTimeout
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.redis_client.connection_pool import ConnectionManager
from airflow_provider_chasqui.redis_client.connection_pool_async import AsyncConnectionManager
from airflow_provider_chasqui.redis_client.target import RedisTarget, from_url
from tests.conftest import Server
from tests.redis_client.conftest import Open, SyncAdapter, admin, stream_length
from tests.support.proxy import TcpProxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


def connections(server: RedisServer, name: str) -> int:
    """Return the number of connections with a client name."""
    with admin(server) as client:
        return sum(row["name"] == name for row in client.client_list())


def named(server: RedisServer, name: str, **options: Any) -> RedisTarget:
    return RedisTarget((("127.0.0.1", server.port),), client_name=name, **options)


def test_one_caller_uses_one_connection(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, named(valkey_server, queue_name))
    for number in range(50):
        queue.add(number)
        with pytest.raises(WaitTimeout):
            queue.wait("unknown", timeout=timedelta(milliseconds=1))
    assert connections(valkey_server, queue_name) == 1
    queue.close()
    wait_until(
        lambda: connections(valkey_server, queue_name) == 0, message="closing the connection"
    )


def test_error_replies_leak_no_connection(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, named(valkey_server, queue_name))
    with admin(valkey_server) as client:
        client.set(f"{{chasqui:{queue_name}}}:stream", "x", px=60_000)
    for _ in range(30):
        with pytest.raises(KeyTypeMismatch):
            queue.add(1)
    assert connections(valkey_server, queue_name) == 1


def test_timeouts_leak_no_connection(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    options: dict[str, Any] = {"timeout": 0.02, "retries": 0}
    queue = open_queue(queue_name, named(valkey_server, queue_name, **options))
    queue.dialect()
    slow = redis_command("XREAD", "BLOCK", 100, "STREAMS", queue.keys.stream, "$", parse=as_raw)
    for _ in range(10):
        with pytest.raises(ConnectionFailed, match="did not reply in time"):
            queue.run(slow)
    # The server notices a closed socket only when the blocked command has ended.
    wait_until(
        lambda: connections(valkey_server, queue_name) <= 1, message="at most one connection"
    )


def test_closed_queues_of_one_connection_manager_share_its_connection(
    valkey_server: RedisServer, queue_name: str
) -> None:
    manager = ConnectionManager(named(valkey_server, queue_name))
    for number in range(150):
        with Queue(f"{queue_name}-{number % 3}", manager) as queue:
            queue.add(number)
    assert connections(valkey_server, queue_name) == 1
    manager.close()


async def test_closed_async_queues_of_one_connection_manager_share_its_connection(
    valkey_server: RedisServer, queue_name: str
) -> None:
    manager = AsyncConnectionManager(named(valkey_server, queue_name))
    for number in range(150):
        async with AsyncQueue(f"{queue_name}-{number % 3}", manager) as queue:
            await queue.add(number)
    assert connections(valkey_server, queue_name) == 1
    await manager.close()


def test_more_callers_than_the_default_pool_of_redis_py_allows(
    valkey_server: RedisServer, queue_name: str
) -> None:
    with Queue(queue_name, named(valkey_server, queue_name)) as queue:
        queue.dialect()
        blocked = events.wait_for_events(queue.keys, "0-0", 1, 300)
        with ThreadPoolExecutor(130) as pool:
            assert list(pool.map(lambda _: queue.client.execute(blocked), range(130))) == [[]] * 130


def test_eight_threads_on_one_queue(server: Server, queue_name: str) -> None:
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        start = threading.Barrier(8)

        def work(number: int) -> list[str]:
            start.wait()
            ids = [queue.add({"thread": number, "turn": turn}).job_id for turn in range(100)]
            ids += queue.add_many({"payload": n} for n in range(300)).job_ids
            assert queue.job_status(ids[-1]).state == "waiting"
            return ids

        with ThreadPoolExecutor(8) as pool:
            ids = [job_id for job_ids in pool.map(work, range(8)) for job_id in job_ids]
        assert len(set(ids)) == 8 * 400
        assert queue.depth().waiting == 8 * 400
        rows = queue.client.execute(inspect.read_entries(queue.keys, "-", 10_000))
        assert sorted(consumer_group.parse_entry(row, 10**6).job.id for row in rows) == sorted(ids)


async def test_many_tasks_on_one_queue(server: Server, queue_name: str) -> None:
    async with AsyncQueue(queue_name, server.url, dialect=server.dialect) as queue:
        results = await asyncio.gather(*(queue.add(number) for number in range(300)))
        assert len({result.job_id for result in results}) == 300
        assert (await queue.depth()).waiting == 300


def _run_child(queue: Queue, pipe: Any) -> None:
    ids = [queue.add({"child": True}).job_id for _ in range(50)]
    ids += queue.add_many([{"payload": n} for n in range(50)]).job_ids
    with admin(queue.target.nodes[0][1]) as client:
        names = [row["name"] for row in client.client_list()]
    pipe.send((ids, names.count(queue.target.client_name)))
    queue.close()


def test_a_forked_child_has_its_own_sockets_and_job_ids(
    valkey_server: RedisServer, queue_name: str
) -> None:
    with Queue(queue_name, named(valkey_server, queue_name)) as queue:
        queue.add_many([{"payload": n} for n in range(50)])
        context = get_context("fork")
        parent_end, child_end = context.Pipe()
        children = [context.Process(target=_run_child, args=(queue, child_end)) for _ in range(3)]
        for child in children:
            child.start()
        # The parent continues at the same time, on the socket that the children inherited.
        parent_ids = [queue.add({"child": False}).job_id for _ in range(50)]
        parent_ids += queue.add_many([{"payload": n} for n in range(50)]).job_ids
        reports = [parent_end.recv() for _ in children]
        for child in children:
            child.join(20)
            assert child.exitcode == 0
        ids = parent_ids + [job_id for child_ids, _ in reports for job_id in child_ids]
        assert len(set(ids)) == 400
        assert queue.depth().waiting == 450
        assert all(count >= 2 for _, count in reports)
        assert queue.job_status(parent_ids[0]).state == "waiting"


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_blocking_read_may_outlast_the_timeout(
    native_server: Server, queue_name: str, kind: str
) -> None:
    target = from_url(native_server.url, timeout=0.1, retries=0)
    queue = _open(kind, queue_name, target)
    started_at = time.monotonic()
    assert queue.run(events.wait_for_events(queue.keys, "0-0", 1, 400)) == []
    assert 0.35 < time.monotonic() - started_at < 3
    # Afterwards the usual timeout applies again.
    slow = redis_command("XREAD", "BLOCK", 5000, "STREAMS", queue.keys.events, "$", parse=as_raw)
    started_at = time.monotonic()
    with pytest.raises(ConnectionFailed):
        queue.run(slow)
    assert time.monotonic() - started_at < 3
    queue.close()
    if queue.loop:
        queue.loop.close()


def _open(kind: str, name: str, target: RedisTarget) -> Any:
    if kind == "blocking":
        return SyncAdapter(Queue(name, target), None)
    return SyncAdapter(AsyncQueue(name, target), asyncio.new_event_loop())


def test_a_command_whose_reply_was_lost_is_sent_again_and_adds_the_job_once(
    open_queue: Open, own_binary: Any, queue_name: str
) -> None:
    with RedisServer.start(own_binary) as own, TcpProxy(own.url) as proxy:

        def lose_reply_of(call: Any) -> None:
            proxy.hold_replies()
            cutter = threading.Thread(
                target=lambda: (proxy.wait_for_reply(), proxy.disconnect_all())
            )
            cutter.start()
            call()
            cutter.join()

        queue = open_queue(queue_name, proxy.url)
        queue.add(0)
        for call in (
            lambda: queue.add(1),
            lambda: queue.add(1, job_id="named"),
            lambda: queue.add(1, job_id="marked", dedup_ttl=timedelta(minutes=1)),
            lambda: queue.add_many([{"payload": n} for n in range(700)]),
            lambda: queue.add_batch(range(700), batch_id="b"),
        ):
            lose_reply_of(call)
        assert stream_length(own, queue_name) == 1 + 3 + 700 + 700
        hour = timedelta(hours=1)
        lose_reply_of(lambda: queue.add(1, delay=hour))
        lose_reply_of(lambda: queue.add(1, delay=hour, job_id="later"))
        assert queue.depth().delayed == 2


async def test_a_cancelled_call_leaves_no_stray_reply(
    valkey_server: RedisServer, queue_name: str
) -> None:
    with TcpProxy(valkey_server.url) as proxy:
        async with AsyncQueue(queue_name, f"{proxy.url}?client_name={queue_name}") as queue:
            await queue.add(0)
            for _ in range(20):
                proxy.hold_replies()
                call = asyncio.create_task(queue.result("unknown", default="nothing"))
                await asyncio.to_thread(proxy.wait_for_reply)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                proxy.release_replies()
                # The reply to the cancelled GET is None, the replies to `depth` are not.
                assert (await queue.depth()).waiting == 1
            count = await asyncio.to_thread(connections, valkey_server, queue_name)
            assert count <= 2


async def test_a_blocking_read_that_timed_out_leaves_no_stray_reply(
    valkey_server: RedisServer, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_chasqui.redis_client.client_async.BLOCKING_GRACE", 0.05)
    with TcpProxy(valkey_server.url) as proxy:
        async with AsyncQueue(queue_name, f"{proxy.url}?retries=0") as queue:
            await queue.add(0)
            proxy.hold_replies()
            with pytest.raises(ConnectionFailed, match="did not reply in time"):
                await queue.client.execute(events.wait_for_events(queue.keys, "0-0", 1, 20))
            proxy.release_replies()
            assert (await queue.depth()).waiting == 1


async def test_each_read_has_its_own_timeout_although_they_share_a_timer(
    valkey_server: RedisServer, queue_name: str
) -> None:
    """A long read leaves a late timer, a short one an early timer; the next read ignores both."""

    def block(ms: int) -> Command[Any]:
        args = ("XREAD", "BLOCK", ms, "STREAMS", "nowhere", "$")
        return redis_command(*args, parse=as_raw, block_ms=ms)

    with TcpProxy(valkey_server.url) as proxy:
        async with AsyncQueue(queue_name, f"{proxy.url}?retries=0&timeout=0.3") as queue:
            await queue.add(0)
            await queue.client.execute(block(1))
            await queue.add(0)
            await asyncio.sleep(0.4)  # the timer of the last add fires while no read is waiting
            assert await queue.client.execute(block(700)) is None
            assert (await queue.depth()).waiting == 2
            proxy.hold_replies()
            started_at = time.monotonic()
            with pytest.raises(ConnectionFailed, match="did not reply in time"):
                await queue.add(0)
            assert 0.25 < time.monotonic() - started_at < 3.0
            proxy.release_replies()


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_an_interrupted_login_leaves_no_unauthenticated_connection(
    valkey_server: RedisServer, queue_name: str, kind: str
) -> None:
    binary = valkey_server.binary
    with RedisServer.start(binary, "--requirepass", "pw") as own, TcpProxy(own.url) as proxy:
        target = from_url(proxy.url, password="pw", timeout=5, client_name=queue_name)
        if kind == "asyncio":
            asyncio.run(_interrupt_async(proxy, queue_name, target))
        else:
            _interrupt_blocking(proxy, queue_name, target)


async def _interrupt_async(proxy: TcpProxy, name: str, target: RedisTarget) -> None:
    async with AsyncQueue(name, target) as queue:
        for turn in range(5):
            await queue.client._disconnect()
            proxy.hold_replies()
            call = asyncio.create_task(queue.add(1))
            await asyncio.to_thread(proxy.wait_for_reply)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            # The reply to the login has not arrived when the next call is made.
            next_call = asyncio.create_task(queue.add(1))
            await asyncio.to_thread(proxy.wait_for_connections, 2 * turn + 2)
            proxy.release_replies()
            assert (await next_call).created
            assert (await queue.depth()).waiting == turn + 1


class Interrupt(BaseException):
    """An exception like the one that Airflow raises in the main thread when a task times out."""


def _interrupt_blocking(proxy: TcpProxy, name: str, target: RedisTarget) -> None:
    def handle_signal(*_: object) -> None:
        raise Interrupt

    def send_signal() -> None:
        proxy.wait_for_reply()
        os.kill(os.getpid(), signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, handle_signal)
    try:
        with Queue(name, target) as queue:
            for turn in range(5):
                queue.client._disconnect()
                proxy.hold_replies()
                sender = threading.Thread(target=send_signal)
                sender.start()
                with pytest.raises(Interrupt):
                    queue.add(1)
                sender.join()
                # The reply to the login has not arrived when the next call is made.
                with ThreadPoolExecutor(1) as pool:
                    next_call = pool.submit(queue.add, 1)
                    proxy.wait_for_connections(2 * turn + 2)
                    proxy.release_replies()
                    assert next_call.result().created
                assert queue.depth().waiting == turn + 1
    finally:
        signal.signal(signal.SIGUSR1, previous)
