"""One process of a worker: takes its plan from the supervisor, works, and reports back.

Started as `python -P -m airflow_provider_chasqui.supervisor.child_main FD`; FD is a socket to the supervisor.
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

from airflow_provider_chasqui.cli import logging_setup
from airflow_provider_chasqui.cli.worker import WorkerConfig
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.errors import AuthenticationFailed, ChasquiError, ServerTooOld
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.engine.gc_tuning import tune_gc
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.supervisor import handler_loader as loading

log = logging.getLogger("chasqui")

REPORT_INTERVAL_S = 0.5
_DEPTH_SAMPLE_INTERVAL_S = 5.0
# Beyond the drain: the last flush, and the end of the interpreter.
SHUTDOWN_GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1


class ChildWorker:
    """A process of a worker while it works: one consumer for each queue, in one loop."""

    def __init__(self, number: int, config: WorkerConfig, handlers: Handlers, sock: socket.socket):
        self._number = number
        self._config = config
        self._sock = sock
        # Counts as a read until the first one, which may wait for a job for seconds.
        self._connected_at: float | None = None
        self._queues = [
            AsyncQueue(name, config.target, dialect=config.dialect) for name in config.queue_names
        ]
        self._consumers = [
            Consumer(queue, handlers, config.consumer_config) for queue in self._queues
        ]

    async def run(self) -> None:
        """Work until told to stop; raises the first failure once everything has ended."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        # Ctrl-C is for the supervisor, which tells us to drain.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        watch = threading.Thread(
            target=self._monitor_supervisor, args=(loop,), daemon=True, name="chasqui-watch"
        )
        watch.start()
        side = [asyncio.create_task(self._send_reports())]
        try:
            await self._check_server()
            if self._number == 1:
                side.append(asyncio.create_task(self._sample_depths()))
            ends = await asyncio.gather(
                *(self._consume(each) for each in self._consumers), return_exceptions=True
            )
        finally:
            for task in side:
                task.cancel()
            await asyncio.wait(side)
            for queue in self._queues:
                await queue.close()
        self._send_final_report()
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

    async def _check_server(self) -> None:
        """A server that is away will come back; one that refuses us will not change its mind."""
        try:
            await self._queues[0].client.execute(redis_command("PING", parse=as_raw))
            self._connected_at = time.monotonic()
        except (AuthenticationFailed, ServerTooOld):
            raise
        except ChasquiError as error:
            log.warning("%s; waiting for the server", error)

    async def _send_reports(self) -> None:
        loop = asyncio.get_running_loop()
        self._sock.setblocking(False)
        while True:
            with contextlib.suppress(OSError):
                await loop.sock_sendall(self._sock, self._build_report())
            await asyncio.sleep(REPORT_INTERVAL_S)

    def _send_final_report(self) -> None:
        self._sock.settimeout(1.0)
        with contextlib.suppress(OSError):
            self._sock.sendall(self._build_report())

    def _build_report(self) -> bytes:
        snapshots, queues = [], {}
        for queue, consumer in zip(self._queues, self._consumers, strict=True):
            metrics = consumer.metrics
            queues[queue.name] = {
                "read_at": metrics.gauges.get("read_at", self._connected_at) if metrics else None,
                "running": consumer.running_jobs,
                "at_capacity": consumer.running_jobs >= self._config.consumer_config.concurrency,
            }
            if metrics is not None:
                metrics.gauges["running"] = consumer.running_jobs
                snapshots.append(metrics.snapshot())
        return json.dumps({"queues": queues, "metrics": snapshots}).encode() + b"\n"

    async def _sample_depths(self) -> None:
        """Look at the whole queue now and then; one process is enough for that."""
        while True:
            for queue, consumer in zip(self._queues, self._consumers, strict=True):
                if consumer.metrics is None:
                    continue
                with contextlib.suppress(ChasquiError):
                    await _record_depth(queue, consumer)
            await asyncio.sleep(_DEPTH_SAMPLE_INTERVAL_S)

    def _monitor_supervisor(self, loop: asyncio.AbstractEventLoop) -> None:
        """End with the supervisor; in a thread, because a handler may block the loop."""
        while True:
            select.select([self._sock], [], [])
            with contextlib.suppress(BlockingIOError):
                if not _receive(self._sock):
                    break
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self.stop)
        time.sleep(self._config.consumer_config.shutdown_timeout.total_seconds() + SHUTDOWN_GRACE_S)
        os._exit(1)


async def _record_depth(queue: AsyncQueue, consumer: Consumer) -> None:
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


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionError:
        return b""


def _exit_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGTERM when the supervisor dies, be it by SIGKILL (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # it was gone before the kernel was told
        os._exit(1)


def _receive_config(sock: socket.socket) -> tuple[int, int, WorkerConfig]:
    with sock.makefile("rb") as stream:
        (length,) = struct.unpack(">I", stream.read(4))
        number, parent, plan = pickle.loads(stream.read(length))
    return number, parent, plan


def _set_process_title(number: int, config: WorkerConfig) -> None:
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(f"chasqui worker {number}: {', '.join(config.queue_names)}")


def main() -> int:
    """Run one process: 0 drained, 1 trouble, 2 the handlers cannot be loaded."""
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    number, parent, plan = _receive_config(line)
    _exit_with_parent(parent)
    _set_process_title(number, plan)
    logging_setup.configure(plan.log_level, plan.log_json, number)
    try:
        handlers = loading.load(plan.handlers_path, plan.cwd)
    except ChasquiError as error:
        log.critical("%s", error)
        return 2
    tune_gc()
    try:
        asyncio.run(ChildWorker(number, plan, handlers, line).run())
    except (AuthenticationFailed, ServerTooOld) as error:
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
