"""Main module of a worker process.

The supervisor starts it as `python -P -m airflow_provider_chasqui.supervisor.child_main FD`, where
FD is a socket. The process receives its configuration from the socket and sends a line of JSON with
its metrics every half second, which also shows that its event loop is not blocked. EOF on the
socket means that the supervisor has exited; the process exits too.
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
from collections.abc import Iterable, Mapping

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.errors import AuthenticationFailed, ChasquiError, ServerTooOld
from airflow_provider_chasqui.engine import handler_loader
from airflow_provider_chasqui.engine.consumer import Consumer
from airflow_provider_chasqui.engine.gc_tuning import tune_gc
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.supervisor import logging_setup
from airflow_provider_chasqui.supervisor.config import WorkerConfig

log = logging.getLogger("chasqui")

REPORT_INTERVAL_S = 0.5
_DEPTH_SAMPLE_INTERVAL_S = 5.0
# Time after the shutdown timeout for the last flush and the exit of the interpreter.
SHUTDOWN_GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1


class ChildWorker:
    """The consumers of one worker process, one per queue, in one event loop."""

    def __init__(
        self,
        number: int,
        config: WorkerConfig,
        handlers: Mapping[str, Handlers],
        sock: socket.socket,
    ):
        self._number = number
        self._config = config
        self._sock = sock
        # Counts as a read until the first read has returned.
        self._connected_at: float | None = None
        self._queues = [
            AsyncQueue(name, config.target, dialect=config.dialect) for name in handlers
        ]
        self._consumers = [
            Consumer(queue, handlers[queue.name], config.consumer_config) for queue in self._queues
        ]

    async def run(self) -> None:
        """Run the consumers until a stop is requested, then raise the first error, if any."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        # The supervisor handles Ctrl-C and sends SIGTERM.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        monitor = threading.Thread(
            target=self._monitor_supervisor,
            args=(loop,),
            daemon=True,
            name="chasqui-supervisor-monitor",
        )
        monitor.start()
        background = [asyncio.create_task(self._send_reports())]
        try:
            await self._check_server()
            if self._number == 1:
                background.append(asyncio.create_task(self._sample_depths()))
            outcomes = await asyncio.gather(
                *(self._consume(consumer) for consumer in self._consumers), return_exceptions=True
            )
        finally:
            for task in background:
                task.cancel()
            await asyncio.wait(background)
            for queue in self._queues:
                await queue.close()
        self._send_final_report()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def stop(self) -> None:
        """Request the stop of all consumers."""
        for consumer in self._consumers:
            consumer.stop()

    async def _consume(self, consumer: Consumer) -> None:
        try:
            await consumer.run()
        finally:
            self.stop()  # if one consumer fails, the others shut down

    async def _check_server(self) -> None:
        """Raise if the server rejects the login or is too old; log if it cannot be reached."""
        try:
            await self._queues[0].client.execute(redis_command("PING", parse=as_raw))
            self._connected_at = time.monotonic()
        except (AuthenticationFailed, ServerTooOld):
            raise
        except ChasquiError as error:
            log.warning("worker: waiting for the server: %s", error)

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
        """Sample the depth of the queues. Only the first process does this."""
        while True:
            for queue, consumer in zip(self._queues, self._consumers, strict=True):
                if consumer.metrics is None:
                    continue
                with contextlib.suppress(ChasquiError):
                    await _record_depth(queue, consumer)
            await asyncio.sleep(_DEPTH_SAMPLE_INTERVAL_S)

    def _monitor_supervisor(self, loop: asyncio.AbstractEventLoop) -> None:
        """Exit after the supervisor. Runs in a thread because a handler may block the loop."""
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
        "queue_running": depth.running,
        "queue_delayed": depth.delayed,
        "dead": depth.dead,
        "lag": depth.lag,
        "oldest_entry_age_s": 0.0 if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
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
    """Let the kernel send SIGTERM when the supervisor dies, even by SIGKILL (Linux only)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # the parent died before prctl was called
        os._exit(1)


def _receive_config(sock: socket.socket) -> tuple[int, int, WorkerConfig]:
    with sock.makefile("rb") as stream:
        (length,) = struct.unpack(">I", stream.read(4))
        number, parent_pid, config = pickle.loads(stream.read(length))
    return number, parent_pid, config


def _set_process_title(number: int, queue_names: Iterable[str]) -> None:
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(f"chasqui worker {number}: {', '.join(queue_names)}")


def main() -> int:
    """Run the process and return its exit code.

    0: stopped on request. 1: error. 2: the handlers cannot be loaded. 3: the server rejects the
    login or is too old.
    """
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    number, parent_pid, config = _receive_config(sock)
    _exit_with_parent(parent_pid)
    _set_process_title(number, config.queue_names)
    logging_setup.configure(config.log_level, config.log_json, number)
    try:
        loaded = handler_loader.load(config.handlers_path, config.cwd)
        handlers = loaded.for_queues(config.queue_names)
    except ChasquiError as error:
        log.critical("%s", error)
        return 2
    if not config.queue_names:
        _set_process_title(number, handlers)
        if number == 1:
            log.info(
                "worker: %s declares jobs of the queues %s",
                config.handlers_path,
                ", ".join(handlers),
            )
    tune_gc()
    try:
        asyncio.run(ChildWorker(number, config, handlers, sock).run())
    except (AuthenticationFailed, ServerTooOld) as error:
        log.critical("%s", error)
        return 3
    except ChasquiError as error:
        log.error("%s", error)
        return 1
    except Exception:
        log.exception("worker: unhandled error in worker process %d", number)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
