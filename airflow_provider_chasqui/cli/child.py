"""One process of a worker: takes its plan from the supervisor, works, and reports back.

Started as `python -P -m airflow_provider_chasqui.cli.child FD`; FD is a socket to the supervisor.
The plan comes in by it, and a line of JSON goes out every half second: the metrics, and with them
the news that the loop still turns. When the socket closes, the supervisor is gone, and so are we.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time

from airflow_provider_chasqui.cli import handlers as loading
from airflow_provider_chasqui.cli import logs
from airflow_provider_chasqui.cli.worker import WorkPlan
from airflow_provider_chasqui.core.errors import ChasquiError, LoginRefused, ServerTooOld
from airflow_provider_chasqui.core.op import as_is, command
from airflow_provider_chasqui.engine.collector import calm_collector
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.queue import AsyncQueue

log = logging.getLogger("chasqui")

PULSE_S = 0.5
_SAMPLE_S = 5.0
# Beyond the drain: the last flush, and the end of the interpreter.
GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1


class Child:
    """A process of a worker while it works: one consumer for each queue, in one loop."""

    def __init__(self, number: int, plan: WorkPlan, handlers: Handlers, line: socket.socket):
        self._number = number
        self._plan = plan
        self._line = line
        # Counts as a read until the first one, which may wait for a job for seconds.
        self._reached_at: float | None = None
        self._queues = [AsyncQueue(name, plan.target, dialect=plan.dialect) for name in plan.queues]
        self._consumers = [Consumer(queue, handlers, plan.config) for queue in self._queues]

    async def run(self) -> None:
        """Work until told to stop; raises the first failure once everything has ended."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        # Ctrl-C is for the supervisor, which tells us to drain.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        watch = threading.Thread(
            target=self._watch_supervisor, args=(loop,), daemon=True, name="chasqui-watch"
        )
        watch.start()
        side = [asyncio.create_task(self._pulse())]
        try:
            await self._check_login()
            if self._number == 1:
                side.append(asyncio.create_task(self._sample()))
            ends = await asyncio.gather(
                *(self._consume(each) for each in self._consumers), return_exceptions=True
            )
        finally:
            for task in side:
                task.cancel()
            await asyncio.wait(side)
            for queue in self._queues:
                await queue.close()
        self._say_last()
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    def stop(self) -> None:
        for consumer in self._consumers:
            consumer.stop()

    async def _consume(self, consumer: Consumer) -> None:
        try:
            await consumer.run()
        finally:
            self.stop()  # one that fails takes the others with it, in good order

    async def _check_login(self) -> None:
        """A server that is away will come back; one that refuses us will not change its mind."""
        try:
            await self._queues[0].drive.run(command("PING", parse=as_is))
            self._reached_at = time.monotonic()
        except (LoginRefused, ServerTooOld):
            raise
        except ChasquiError as error:
            log.warning("%s; waiting for the server", error)

    async def _pulse(self) -> None:
        loop = asyncio.get_running_loop()
        self._line.setblocking(False)
        while True:
            with contextlib.suppress(OSError):
                await loop.sock_sendall(self._line, self._report())
            await asyncio.sleep(PULSE_S)

    def _say_last(self) -> None:
        self._line.settimeout(1.0)
        with contextlib.suppress(OSError):
            self._line.sendall(self._report())

    def _report(self) -> bytes:
        snapshots, queues = [], {}
        for queue, consumer in zip(self._queues, self._consumers, strict=True):
            metrics = consumer.metrics
            queues[queue.name] = {
                "read_at": metrics.gauges.get("read_at", self._reached_at) if metrics else None,
                "running": consumer.running,
                "full": consumer.running >= self._plan.config.concurrency,
            }
            if metrics is not None:
                metrics.gauges["running"] = consumer.running
                snapshots.append(metrics.snapshot())
        return json.dumps({"queues": queues, "metrics": snapshots}).encode() + b"\n"

    async def _sample(self) -> None:
        """Look at the whole queue now and then; one process is enough for that."""
        while True:
            for queue, consumer in zip(self._queues, self._consumers, strict=True):
                if consumer.metrics is None:
                    continue
                with contextlib.suppress(ChasquiError):
                    await _look(queue, consumer)
            await asyncio.sleep(_SAMPLE_S)

    def _watch_supervisor(self, loop: asyncio.AbstractEventLoop) -> None:
        """End with the supervisor; in a thread, because a handler may block the loop."""
        while True:
            select.select([self._line], [], [])
            with contextlib.suppress(BlockingIOError):
                if not _received(self._line):
                    break
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self.stop)
        time.sleep(self._plan.config.drain.total_seconds() + GRACE_S)
        os._exit(1)


async def _look(queue: AsyncQueue, consumer: Consumer) -> None:
    depth = await queue.depth()
    metrics = consumer.metrics
    if metrics is None:
        return
    now_ms = time.time() * 1000
    oldest_ms = depth.oldest_entry_ms
    for key, value in {
        "waiting": depth.waiting,
        "pending": depth.running,
        "later": depth.delayed,
        "dead": depth.dead,
        "lag": depth.lag,
        "oldest_s": 0.0 if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
        "consumers": depth.consumers,
    }.items():
        if value is not None:
            metrics.gauges[key] = value


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(4096)
    except ConnectionError:
        return b""


def _die_with(parent: int) -> None:
    """Ask the kernel for SIGTERM when the supervisor dies, be it by SIGKILL (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was gone before the kernel was told
        os._exit(1)


def _plan_from(line: socket.socket) -> tuple[int, int, WorkPlan]:
    with line.makefile("rb") as stream:
        (length,) = struct.unpack(">I", stream.read(4))
        number, parent, plan = pickle.loads(stream.read(length))
    return number, parent, plan


def _title(number: int, plan: WorkPlan) -> None:
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(f"chasqui worker {number}: {', '.join(plan.queues)}")


def main() -> int:
    """Run one process: 0 drained, 1 trouble, 2 the handlers cannot be loaded."""
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    number, parent, plan = _plan_from(line)
    _die_with(parent)
    _title(number, plan)
    logs.set_up(plan.log_level, plan.log_json, number)
    try:
        handlers = loading.load(plan.handlers, plan.folder)
    except ChasquiError as error:
        log.critical("%s", error)
        return 2
    calm_collector()
    try:
        asyncio.run(Child(number, plan, handlers, line).run())
    except (LoginRefused, ServerTooOld) as error:
        log.critical("%s", error)
        return 3
    except ChasquiError as error:
        log.error("%s", error)
        return 1
    except Exception:
        log.exception("the process fails")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
