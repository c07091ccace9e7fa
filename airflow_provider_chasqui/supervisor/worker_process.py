"""A place for one process of a worker: starts it, hears its reports, knows how it is."""

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

from airflow_provider_chasqui.cli.worker import WorkerConfig
from airflow_provider_chasqui.engine.metrics import Metrics

log = logging.getLogger("chasqui")

_MAX_REPORT_BYTES = 64 * 1024 * 1024
# A loop that says nothing for this long is stuck, be it new or old.
STUCK_AFTER_S = 30.0
# Longer than a blocked read lasts.
_MAX_READ_AGE_S = 15.0


class WorkerProcess:
    """One process after the other; what the dead ones counted is kept."""

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
        return self._process.pid if self._process else None

    async def run(self) -> int:
        """Run one process from its start to its end; returns its exit code (-9: by SIGKILL)."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                # -P: a file in this folder must not hide a module of Python's own.
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "airflow_provider_chasqui.supervisor.child_main",
                    str(theirs.fileno()), pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL, process_group=0,
                )  # fmt: skip
            self.start_count += 1
            self.started_at = self._last_report_at = time.monotonic()
            self.restarting = False
            try:
                await self._communicate(ours)
                return await self._process.wait()
            finally:
                self._record_exit()

    async def _communicate(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=_MAX_REPORT_BYTES)
        told = pickle.dumps((self.number, os.getpid(), self._config))
        writer.write(struct.pack(">I", len(told)) + told)
        # One that was killed leaves half a line, or closes before it has read its plan.
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
            log.info("process %d takes jobs (pid %s)", self.number, self.pid)

    @property
    def ever_ready(self) -> bool:
        return self._ready_generation > 0

    @property
    def was_ready(self) -> bool:
        """Whether the last process took jobs; one that was still starting holds none."""
        return self._ready_generation == self.start_count

    def _record_exit(self) -> None:
        for snapshot in self._last_report.get("metrics", ()):
            queue = snapshot["queue"]
            if queue not in self._exited_metrics:
                self._exited_metrics[queue] = Metrics(queue)
            self._exited_metrics[queue].merge(snapshot, gauges=False)
        self._last_report = {}
        self._process = None

    def send_signal(self, signal_number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal_number)

    def metric_snapshots(self) -> Iterator[tuple[Mapping[str, Any], bool]]:
        """What the process that lives counts now, and what those before it had counted."""
        for retired in self._exited_metrics.values():
            yield retired.snapshot(), False
        for snapshot in self._last_report.get("metrics", ()):
            yield snapshot, True

    @property
    def stuck(self) -> bool:
        return self._process is not None and time.monotonic() - self._last_report_at > STUCK_AFTER_S

    @property
    def ready(self) -> bool:
        """Whether it reads every queue, or would if it were not full."""
        queues = self._last_report.get("queues", {})
        return bool(queues) and not self.stuck and all(map(_is_reading, queues.values()))

    def status(self) -> dict[str, Any]:
        now = time.monotonic()
        queues = {
            name: {
                "last_read_age_s": None
                if each["read_at"] is None
                else _round_seconds(now - each["read_at"]),
                "running": each["running"],
                "at_capacity": each["at_capacity"],
            }
            for name, each in self._last_report.get("queues", {}).items()
        }
        return {
            "number": self.number,
            "pid": self.pid,
            "ready": self.ready,
            "last_report_age_s": _round_seconds(now - self._last_report_at) if self.pid else None,
            "restarts": max(0, self.start_count - 1),
            "queues": queues,
        }


def _is_reading(queue: Mapping[str, Any]) -> bool:
    if queue["read_at"] is None:
        return False
    return bool(queue["at_capacity"]) or time.monotonic() - queue["read_at"] < _MAX_READ_AGE_S


def _round_seconds(seconds: float) -> float:
    return round(max(0.0, seconds), 3)
