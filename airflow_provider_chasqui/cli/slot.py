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

from airflow_provider_chasqui.cli.worker import WorkPlan
from airflow_provider_chasqui.engine.metrics import Metrics

log = logging.getLogger("chasqui")

_LINE_MOST = 64 * 1024 * 1024
# A loop that says nothing for this long is stuck, be it new or old.
STUCK_S = 30.0
# Longer than a blocked read lasts.
_READ_LATELY_S = 15.0


class Slot:
    """One process after the other; what the dead ones counted is kept."""

    def __init__(self, number: int, plan: WorkPlan):
        self.number = number
        self._plan = plan
        self._process: asyncio.subprocess.Process | None = None
        self._report: Mapping[str, Any] = {}
        self._heard_at = 0.0
        self._retired: dict[str, Metrics] = {}
        self.started_at = 0.0
        self.starts = 0
        self.rolling = False
        self._told_ready = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def live(self) -> int:
        """Run one process from its start to its end; returns its exit code (-9: by SIGKILL)."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                # -P: a file in this folder must not hide a module of Python's own.
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "airflow_provider_chasqui.cli.child",
                    str(theirs.fileno()), pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL, process_group=0,
                )  # fmt: skip
            self.starts += 1
            self.started_at = self._heard_at = time.monotonic()
            self.rolling = False
            try:
                await self._talk(ours)
                return await self._process.wait()
            finally:
                self._retire()

    async def _talk(self, ours: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_MOST)
        told = pickle.dumps((self.number, os.getpid(), self._plan))
        writer.write(struct.pack(">I", len(told)) + told)
        # One that was killed leaves half a line, or closes before it has read its plan.
        with suppress(ConnectionError, ValueError):
            while line := await reader.readline():
                self._report = json.loads(line)
                self._heard_at = time.monotonic()
                self._note_ready()
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    def _note_ready(self) -> None:
        if self._told_ready < self.starts and self.ready:
            self._told_ready = self.starts
            log.info("process %d takes jobs (pid %s)", self.number, self.pid)

    @property
    def ever_ready(self) -> bool:
        return self._told_ready > 0

    @property
    def was_ready(self) -> bool:
        """Whether the last process took jobs; one that was still starting holds none."""
        return self._told_ready == self.starts

    def _retire(self) -> None:
        for snapshot in self._report.get("metrics", ()):
            queue = snapshot["queue"]
            if queue not in self._retired:
                self._retired[queue] = Metrics(queue)
            self._retired[queue].absorb(snapshot, gauges=False)
        self._report = {}
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def snapshots(self) -> Iterator[tuple[Mapping[str, Any], bool]]:
        """What the process that lives counts now, and what those before it had counted."""
        for retired in self._retired.values():
            yield retired.snapshot(), False
        for snapshot in self._report.get("metrics", ()):
            yield snapshot, True

    @property
    def stuck(self) -> bool:
        return self._process is not None and time.monotonic() - self._heard_at > STUCK_S

    @property
    def ready(self) -> bool:
        """Whether it reads every queue, or would if it were not full."""
        queues = self._report.get("queues", {})
        return bool(queues) and not self.stuck and all(map(_reads, queues.values()))

    def facts(self) -> dict[str, Any]:
        now = time.monotonic()
        queues = {
            name: {
                "last_read_age_s": None
                if each["read_at"] is None
                else _round(now - each["read_at"]),
                "running": each["running"],
                "full": each["full"],
            }
            for name, each in self._report.get("queues", {}).items()
        }
        return {
            "number": self.number,
            "pid": self.pid,
            "ready": self.ready,
            "heard_age_s": _round(now - self._heard_at) if self.pid else None,
            "restarts": max(0, self.starts - 1),
            "queues": queues,
        }


def _reads(queue: Mapping[str, Any]) -> bool:
    if queue["read_at"] is None:
        return False
    return bool(queue["full"]) or time.monotonic() - queue["read_at"] < _READ_LATELY_S


def _round(seconds: float) -> float:
    return round(max(0.0, seconds), 3)
