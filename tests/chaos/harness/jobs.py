"""The handler of the fault tests: it does what the payload says and notes it outside of Redis.

A note is one write to a file of this process that only grows, so `kill -9` loses none. The clock
that the worker reads is the machine's plus what a shared file says: that is how it jumps.
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
SKEW = "skew"

handlers = Handlers()
_real = time.time_ns
_notes = os.open(FOLDER / f"{os.getpid()}.notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


class Skew:
    """How far the clock is off, shared by all processes of a test, in ms."""

    def __init__(self, folder: Path):
        with (folder / SKEW).open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    def get(self) -> int:
        return int(struct.unpack("q", self._shared[:8])[0])

    def set(self, ms: int) -> None:
        self._shared[:8] = struct.pack("q", ms)

    def close(self) -> None:
        self._shared.close()


_skew = Skew(FOLDER)
time.time_ns = lambda: _real() + _skew.get() * 1_000_000
time.time = lambda: time.time_ns() / 1e9


def note(what: str, job: Any) -> None:
    line = json.dumps([what, job.id, job.attempt, time.monotonic(), job.name])
    os.write(_notes, line.encode() + b"\n")


@handlers.on()
async def run(job: Any) -> None:
    note("start", job)
    how = "cut"
    try:
        plan = job.payload
        await asyncio.sleep(plan.get("work_ms", 0) / 1000)
        if plan.get("die"):
            how = "dead"
            raise Unrecoverable("told to die")
        if job.attempt < plan.get("fail", 0):
            how = "failed"
            raise ValueError("told to fail")
        how = "ok"
    finally:
        note(how, job)
