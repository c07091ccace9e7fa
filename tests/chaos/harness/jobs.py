"""Handlers of the fault tests: they follow the payload and record their runs in a file.

Each start and each end is one write to an append-only file of the process, so `kill -9` loses none.
A thread records when the process did not run, for example because the machine was busy. The
worker's clock is the system clock plus the offset in a shared file, which the tests change.

With the environment variable CHAOS_MUTATIONS the engine has deliberate errors (mutations.py), with
which the tests prove that the harness detects them.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import struct
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_provider_chasqui.core.outcome import Snooze, Unrecoverable
from airflow_provider_chasqui.engine.handlers import Handlers
from tests.chaos.harness.plan import SNOOZE_S, payload_digest

FOLDER = Path(os.environ["CHAOS_FOLDER"])
# A thread that wakes later than this records that the process did not run.
STALL_S = 1.0

handlers = Handlers()
_real_time_ns = time.time_ns
_runs_file = os.open(FOLDER / f"{os.getpid()}.runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

with (FOLDER / "skew").open("r+b") as _file:
    _skew_ms = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)


def _skewed_time_ns() -> int:
    return _real_time_ns() + int(struct.unpack("q", _skew_ms[:8])[0]) * 1_000_000


time.time_ns = _skewed_time_ns
time.time = lambda: time.time_ns() / 1e9


def _write(*values: Any) -> None:
    os.write(_runs_file, json.dumps(values).encode() + b"\n")


def record(action: str, job: Any, extra: Any = None) -> None:
    """Append one line to the file of this process."""
    _write(action, job.id, job.attempt, time.monotonic(), job.name, extra)


def _record_stalls() -> None:
    last = time.monotonic()
    while True:
        time.sleep(0.05)
        now = time.monotonic()
        if now - last > STALL_S:
            _write("stall", last, now)
        last = now


threading.Thread(target=_record_stalls, name="stall-recorder", daemon=True).start()


def _snoozes(job: Any) -> int:
    """Count one more snooze of a job; return how many there were before."""
    file = os.open(FOLDER / f"{job.id}.snoozes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        before = os.fstat(file).st_size
        os.write(file, b".")
    finally:
        os.close(file)
    return before


def _finish(job: Any) -> tuple[str, Any]:
    """Return the outcome of a job and the value that the handler returns or raises."""
    payload = job.payload
    if payload.get("snooze") and _snoozes(job) < payload["snooze"]:
        return "snoozed", Snooze(timedelta(seconds=SNOOZE_S))
    if payload.get("die"):
        return "dead", Unrecoverable("planned unrecoverable error")
    if job.attempt < payload.get("fail", 0):
        return "failed", ValueError("planned failure")
    return "ok", [job.id, job.attempt, os.getpid()]


def _end(job: Any) -> Any:
    outcome, value = _finish(job)
    record(outcome, job, value if outcome == "ok" else None)
    if isinstance(value, Exception):
        raise value
    return value


@handlers.on()
async def run(job: Any) -> Any:
    """Run a job of the harness in the event loop."""
    record("start", job, payload_digest(job.payload))
    try:
        await asyncio.sleep(job.payload.get("work_ms", 0) / 1000)
    except BaseException:
        record("cut", job)
        raise
    return _end(job)


@handlers.on("thread")
def run_in_thread(job: Any) -> Any:
    """Run a job of the harness in a thread."""
    record("start", job, payload_digest(job.payload))
    until = time.monotonic() + job.payload.get("work_ms", 0) / 1000
    try:
        # Short sleeps, because an interrupt is raised between two instructions.
        while (remaining := until - time.monotonic()) > 0:
            time.sleep(min(0.05, remaining))
    except BaseException:
        record("cut", job)
        raise
    return _end(job)


if os.environ.get("CHAOS_MUTATIONS"):
    from tests.chaos.harness.mutations import apply_all

    apply_all()
