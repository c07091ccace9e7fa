"""Start and control real ChasquiMQ processes (peer.py).

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
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis

from airflow_provider_chasqui.core.payload import decode_payload
from tests.support.waiting import wait_until

REQUIREMENTS = ("chasquimq==1.3.0", "redis<7", "msgpack")
ROOT = Path(__file__).parents[2]
HOME = ROOT / ".cache" / "peers" / "chasquimq-1.3.0"


class PeerError(Exception):
    """An error that the peer raised, with its class name and text."""


@dataclass(frozen=True)
class Run:
    """One run of a handler that the peer recorded."""

    id: str
    name: str
    data: Any
    attempt: int
    worker: str
    at_ms: int


@cache
def peer_python() -> Path:
    """Return a Python with ChasquiMQ 1.3.0, installed once in .cache. Skip the test without it."""
    python = HOME / "bin" / "python"
    HOME.parent.mkdir(parents=True, exist_ok=True)
    with (HOME.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (HOME / "ready").exists():
            shutil.rmtree(HOME, ignore_errors=True)
            try:
                _install(python)
            except subprocess.CalledProcessError as error:
                reason = f"cannot install {REQUIREMENTS[0]}: {error.stderr[-500:]}"
                if os.environ.get("CHASQUI_REQUIRE_SERVERS") == "1":
                    pytest.fail(reason)
                pytest.skip(reason)
            (HOME / "ready").touch()
    return python


def _install(python: Path) -> None:
    uv = Path(sys.prefix) / "bin" / "uv"
    _run([str(uv), "venv", "-q", "--python", sys.executable, str(HOME)])
    _run([str(uv), "pip", "install", "-q", "--python", str(python), *REQUIREMENTS])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)


class Peer:
    """A process of the real ChasquiMQ. `call` uses its Queue, `work` starts its Worker."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [peer_python(), str(Path(__file__).with_name("peer.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._numbers = itertools.count()
        self._replies: dict[int, Future[Any]] = {}
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
        """Call a method of the peer's Queue and return the result."""
        target = {"url": url, "queue": queue, "method": method}
        return self._request("call", target | {"args": _packed(args), "options": _packed(options)})

    def work(
        self,
        url: str,
        queue: str,
        *,
        record: str,
        plan: dict[str, Any] | None = None,
        **options: Any,
    ) -> int:
        """Start a Worker of the peer and return its number.

        :param record: the Redis list to which the worker pushes every run.
        :param plan: what the handler does, see peer.py.
        """
        target = {"url": url, "queue": queue, "record": record}
        options = {"read_block_ms": 200} | options
        request = target | {"plan": _packed(plan or {}), "options": options}
        number: int = self._request("work", request)
        return number

    def stop(self, worker: int) -> None:
        """Close a Worker and wait until its running jobs have ended."""
        self._request("stop", {"worker": worker})

    def kill(self) -> None:
        """End the process with SIGKILL."""
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

    def _request(self, do: str, request: dict[str, Any]) -> Any:
        number = next(self._numbers)
        future = self._replies[number] = Future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": do} | request) + "\n")
        self._process.stdin.flush()
        reply = future.result(timeout=60)
        if "error" in reply:
            raise PeerError(f"{reply['kind']}: {reply['error']}")
        return decode_payload(base64.b64decode(reply["packed"]))

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                reply = json.loads(line)
                self._replies.pop(reply["id"]).set_result(reply)
        except ValueError:  # the pipe was closed
            return


def _packed(value: Any) -> dict[str, str]:
    return {"packed": base64.b64encode(msgpack.packb(value)).decode()}


def runs(url: str, record: str) -> list[Run]:
    """Return the runs that the workers of the peers have recorded."""
    with redis.Redis.from_url(url, protocol=2) as client:
        raw = client.lrange(record, 0, -1)
    return [Run(*decode_payload(record)) for record in raw]


def wait_for_runs(url: str, record: str, count: int, seconds: float = 30) -> list[Run]:
    """Wait until at least `count` runs are recorded, and return them."""
    recorded: list[Run] = []

    def enough() -> bool:
        recorded[:] = runs(url, record)
        return len(recorded) >= count

    try:
        wait_until(enough, seconds, f"{count} runs", interval=0.02)
    except AssertionError as error:
        raise AssertionError(f"{error}; {len(recorded)} runs: {recorded}") from None
    return recorded
