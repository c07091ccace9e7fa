"""Start and drive real ChasquiMQ processes (peer.py) from a test.

with Peer.start() as peer:
    peer.call(url, "emails", "add", "welcome", {"to": "ada"}, job_id="j1")
    peer.work(url, "emails", record="runs", plan={"fail": 2}, concurrency=4)
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis

from airflow_provider_chasqui.core.payload import decode_payload

WANTED = ("chasquimq==1.3.0", "redis<7", "msgpack")
ROOT = Path(__file__).parents[2]
HOME = ROOT / ".cache" / "peers" / "chasquimq-1.3.0"


class PeerError(Exception):
    """What the peer raised: its own class name and text."""


@dataclass(frozen=True)
class Run:
    """One run of a handler, as the peer recorded it."""

    id: str
    name: str
    data: Any
    attempt: int
    worker: str
    at_ms: int


@cache
def peer_python() -> Path:
    """The Python that has ChasquiMQ 1.3.0, made once in .cache; skips where it cannot be got."""
    python = HOME / "bin" / "python"
    HOME.parent.mkdir(parents=True, exist_ok=True)
    with (HOME.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (HOME / "ready").exists():
            shutil.rmtree(HOME, ignore_errors=True)
            try:
                _install(python)
            except subprocess.CalledProcessError as failed:
                why = f"cannot install {WANTED[0]}: {failed.stderr[-500:]}"
                if os.environ.get("CHASQUI_REQUIRE_SERVERS") == "1":
                    pytest.fail(why)
                pytest.skip(why)
            (HOME / "ready").touch()
    return python


def _install(python: Path) -> None:
    uv = Path(sys.prefix) / "bin" / "uv"
    _run([str(uv), "venv", "-q", "--python", sys.executable, str(HOME)])
    _run([str(uv), "pip", "install", "-q", "--python", str(python), *WANTED])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)


class Peer:
    """One process of the real ChasquiMQ: its Queue by `call`, its Worker by `work`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [peer_python(), str(Path(__file__).with_name("peer.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._numbers = itertools.count()
        self._answers: dict[int, Future[Any]] = {}
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert json.loads(ready) == {"ready": "1.3.0"}, ready
        threading.Thread(target=self._listen, daemon=True).start()

    @classmethod
    def start(cls) -> Peer:
        return cls()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, url: str, queue: str, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of its Queue."""
        place = {"url": url, "queue": queue, "method": method}
        return self._ask("call", place | {"args": _packed(args), "options": _packed(options)})

    def work(
        self, url: str, queue: str, *, record: str, plan: dict[str, Any] | None = None,
        **options: Any,
    ) -> int:  # fmt: skip
        """Start one of its Workers; every run is pushed to the Redis list `record`."""
        place = {"url": url, "queue": queue, "record": record}
        options = {"read_block_ms": 200} | options
        number: int = self._ask("work", place | {"plan": _packed(plan or {}), "options": options})
        return number

    def stop(self, worker: int) -> None:
        """Close one of its Workers and wait until it has drained."""
        self._ask("stop", {"worker": worker})

    def kill(self) -> None:
        """End the process like a power cut."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, do: str, request: dict[str, Any]) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = Future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": do} | request) + "\n")
        self._process.stdin.flush()
        reply = answer.result(timeout=60)
        if "error" in reply:
            raise PeerError(f"{reply['kind']}: {reply['error']}")
        return decode_payload(base64.b64decode(reply["packed"]))

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                reply = json.loads(line)
                self._answers.pop(reply["id"]).set_result(reply)
        except ValueError:  # the pipe was closed
            return


def _packed(value: Any) -> dict[str, str]:
    return {"packed": base64.b64encode(msgpack.packb(value)).decode()}


def runs(url: str, record: str) -> list[Run]:
    """What the peers' workers have run so far."""
    with redis.Redis.from_url(url, protocol=2) as client:
        raw = client.lrange(record, 0, -1)
    return [Run(*decode_payload(each)) for each in raw]


def wait_for_runs(url: str, record: str, count: int, seconds: float = 30) -> list[Run]:
    """Wait until so many runs are recorded, and return them."""
    deadline = time.monotonic() + seconds
    while len(found := runs(url, record)) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} runs: {found}"
        time.sleep(0.02)
    return found
