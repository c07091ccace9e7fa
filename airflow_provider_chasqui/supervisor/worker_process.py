"""One worker process: its start, its reports and its health."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_chasqui.core.masking import mask_passwords
from airflow_provider_chasqui.engine.metrics import Metrics
from airflow_provider_chasqui.supervisor.config import WorkerConfig

log = logging.getLogger("chasqui")

_MAX_REPORT_BYTES = 64 * 1024 * 1024
# A process without a report for this long is considered stuck.
STUCK_AFTER_S = 30.0
# Longer than the block timeout of a read.
_MAX_READ_AGE_S = 15.0


class WorkerProcess:
    """A worker process and its successors. The metrics of exited processes are added up.

    :param number: the number of the process, from 1.
    :param config: the configuration.
    """

    def __init__(self, number: int, config: WorkerConfig):
        self.number = number
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._last_report: Mapping[str, Any] = {}
        self._last_report_at = 0.0
        self._exited_metrics: dict[str, Metrics] = {}
        self.started_at = 0.0
        self.start_count = 0
        self.restarting = False
        self._ready_generation = 0

    @property
    def pid(self) -> int | None:
        """The process id, or None if no process is running."""
        return self._process.pid if self._process else None

    async def run(self) -> int:
        """Run one process and return its exit code, which is negative after a signal."""
        parent_sock, child_sock = socket.socketpair()
        with parent_sock:
            with child_sock:
                # -P: files in the working directory must not shadow modules.
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    "airflow_provider_chasqui.supervisor.child_main",
                    str(child_sock.fileno()),
                    pass_fds=[child_sock.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    process_group=0,
                    env=without_passwords(os.environ),
                )
            self.start_count += 1
            self.started_at = self._last_report_at = time.monotonic()
            self.restarting = False
            try:
                await self._communicate(parent_sock)
                return await self._process.wait()
            finally:
                self._record_exit()

    async def _communicate(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=_MAX_REPORT_BYTES)
        # pickle, because the configuration contains objects such as credential providers.
        message = pickle.dumps((self.number, os.getpid(), self._config))
        writer.write(struct.pack(">I", len(message)) + message)
        # A killed process may leave an incomplete line, or close before it read the message.
        with suppress(ConnectionError, ValueError):
            while line := await reader.readline():
                self._last_report = json.loads(line)
                self._last_report_at = time.monotonic()
                self._record_ready()
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    def _record_ready(self) -> None:
        if self._ready_generation < self.start_count and self.ready:
            self._ready_generation = self.start_count
            log.info("supervisor: process %d is ready (pid %s)", self.number, self.pid)

    @property
    def ever_ready(self) -> bool:
        """Whether any process with this number was ready."""
        return self._ready_generation > 0

    @property
    def was_ready(self) -> bool:
        """Whether the last process was ready. A process that was still starting has no jobs."""
        return self._ready_generation == self.start_count

    def _record_exit(self) -> None:
        for snapshot in self._last_report.get("metrics", ()):
            queue_name = snapshot["queue"]
            if queue_name not in self._exited_metrics:
                self._exited_metrics[queue_name] = Metrics(queue_name)
            self._exited_metrics[queue_name].merge(snapshot, gauges=False)
        self._last_report = {}
        self._process = None

    def send_signal(self, signal_number: signal.Signals) -> None:
        """Send a signal to the process, if it is running."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal_number)

    def metric_snapshots(self) -> Iterator[tuple[Mapping[str, Any], bool]]:
        """Yield snapshots of the metrics, and whether they are of the running process."""
        for metrics in self._exited_metrics.values():
            yield metrics.snapshot(), False
        for snapshot in self._last_report.get("metrics", ()):
            yield snapshot, True

    @property
    def stuck(self) -> bool:
        """Whether the process has not reported for too long."""
        return self._process is not None and time.monotonic() - self._last_report_at > STUCK_AFTER_S

    @property
    def ready(self) -> bool:
        """Whether the process reads every queue, or runs as many jobs as it may."""
        queues = self._last_report.get("queues", {})
        return bool(queues) and not self.stuck and all(map(_is_reading, queues.values()))

    def status(self) -> dict[str, Any]:
        """Return the status for the health endpoint."""
        now = time.monotonic()
        queues = {
            name: {
                "last_read_age_s": None
                if report["read_at"] is None
                else _round_seconds(now - report["read_at"]),
                "running": report["running"],
                "at_capacity": report["at_capacity"],
            }
            for name, report in self._last_report.get("queues", {}).items()
        }
        return {
            "number": self.number,
            "pid": self.pid,
            "ready": self.ready,
            "last_report_age_s": _round_seconds(now - self._last_report_at) if self.pid else None,
            "restarts": max(0, self.start_count - 1),
            "queues": queues,
        }


def without_passwords(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the passwords of the server.

    The process receives them from the socket. Handlers, and programs that they start, must not
    inherit them.

    :param environ: the environment of the supervisor.
    """
    return {
        name: value
        for name, value in environ.items()
        if name != "CHASQUI_PASSWORD"
        and (name not in ("CHASQUI_URL", "CHASQUI_REDIS_URL") or mask_passwords(value) == value)
    }


def _is_reading(queue: Mapping[str, Any]) -> bool:
    if queue["read_at"] is None:
        return False
    return bool(queue["at_capacity"]) or time.monotonic() - queue["read_at"] < _MAX_READ_AGE_S


def _round_seconds(seconds: float) -> float:
    return round(max(0.0, seconds), 3)
