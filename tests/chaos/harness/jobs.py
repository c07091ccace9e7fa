"""Handler of the fault tests: it follows the payload and records its runs in a file.

Each start and each end is one write to an append-only file of the process, so `kill -9` loses none.
The worker's clock is the system clock plus the offset in a shared file, which the tests change.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any

from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.engine.handlers import Handlers

FOLDER = Path(os.environ["CHAOS_FOLDER"])

handlers = Handlers()
_real_time_ns = time.time_ns
_runs_file = os.open(FOLDER / f"{os.getpid()}.runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

with (FOLDER / "skew").open("r+b") as _file:
    _skew_ms = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)


def _skewed_time_ns() -> int:
    return _real_time_ns() + int(struct.unpack("q", _skew_ms[:8])[0]) * 1_000_000


time.time_ns = _skewed_time_ns
time.time = lambda: time.time_ns() / 1e9


def record(action: str, job: Any) -> None:
    """Append one line to the file of this process."""
    line = json.dumps([action, job.id, job.attempt, time.monotonic(), job.name])
    os.write(_runs_file, line.encode() + b"\n")


@handlers.on()
async def run(job: Any) -> None:
    """Run a job of the harness."""
    record("start", job)
    outcome = "cut"
    try:
        payload = job.payload
        await asyncio.sleep(payload.get("work_ms", 0) / 1000)
        if payload.get("die"):
            outcome = "dead"
            raise Unrecoverable("planned unrecoverable error")
        if job.attempt < payload.get("fail", 0):
            outcome = "failed"
            raise ValueError("planned failure")
        outcome = "ok"
    finally:
        record(outcome, job)
