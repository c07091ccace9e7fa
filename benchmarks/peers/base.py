"""The benchmark process of one system: jobs, timing and the end of a run.

It runs in the Python environment of the system, so it imports the standard library only. A system
is a subclass of `Peer`. `main` reads a request (JSON on the command line), performs it, and prints
the measurement as the last line.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar
from urllib.parse import urlsplit

QUEUE = "bench"
POLL_S = 0.002
# Time from the start of a repeat to its first run. Long enough for all of them to run once.
FIRST_FIRE_MS = 8_000
TIMEOUT_S = 600.0


def payloads(count: int, size: int = 0) -> list[Any]:
    """Return payloads of about 150 bytes of MessagePack, or with a text of `size` bytes."""
    if size:
        return [{"n": n, "blob": "x" * size} for n in range(count)]
    return [
        {
            "n": n,
            "customer": n,
            "email": f"customer{n}@example.org",
            "locale": "de-DE",
            "template": "newsletter-2026-11",
            "tags": ["weekly", "paying"],
            "score": n / 7,
        }
        for n in range(count)
    ]


class Redis:
    """A minimal Redis client, to find out whether a queue is empty."""

    def __init__(self, url: str):
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._lines = self._socket.makefile("rb")

    def call(self, *arguments: str | int | bytes) -> Any:
        parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
        head = b"*%d\r\n" % len(parts)
        self._socket.sendall(head + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts))
        return self._read_reply()

    def _read_reply(self) -> Any:
        line = self._lines.readline()[:-2]
        kind, text = line[:1], line[1:]
        if kind == b"$":
            return None if text == b"-1" else self._lines.read(int(text) + 2)[:-2]
        if kind == b"*":
            return [self._read_reply() for _ in range(max(0, int(text)))]
        return int(text) if kind == b":" else None if kind == b"-" else text

    def total(self, *commands: tuple[str, str]) -> int:
        """Return the sum of several counts (XLEN, LLEN, ZCARD, HLEN, SCARD)."""
        return sum(self.call(*command) or 0 for command in commands)

    def entries_added(self, key: str) -> int:
        """Return the number of entries that were ever added to a stream."""
        info = self.call("XINFO", "STREAM", key) or []
        return next((info[i + 1] for i in range(0, len(info), 2) if info[i] == b"entries-added"), 0)


class CallCounter:
    """The handler, which counts its calls.

    :param calls: the expected number of calls.
    :param fail_first: whether the first call for each job fails.
    :param timestamps: whether to record the latency of each job.
    """

    def __init__(self, calls: int, fail_first: bool = False, timestamps: bool = False):
        self.calls = calls
        self.count = 0
        self.first_call = 0.0
        self.latencies: list[float] = []
        self._failed: set[int] | None = set() if fail_first else None
        self._timestamps = timestamps
        self._lock = threading.Lock()

    def handle_sync(self, payload: Any) -> None:
        with self._lock:
            self._record(payload)

    async def handle_async(self, payload: Any) -> None:
        self._record(payload)

    def _record(self, payload: Any) -> None:
        self.count += 1
        if self.count == 1:
            self.first_call = time.perf_counter()
        if self._timestamps:
            self.latencies.append(time.time() - payload["at"])
        if self._failed is not None and payload["n"] not in self._failed:
            self._failed.add(payload["n"])
            raise RuntimeError("injected failure of the first attempt")

    async def wait(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.count < self.calls:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.count} of {self.calls} calls")
            await asyncio.sleep(POLL_S)


class Peer:
    """One system. An unsupported operation raises NotImplementedError."""

    def __init__(self, request: dict[str, Any]):
        self.request = request
        self.url: str = request["url"]
        self.events: bool = request.get("events", True)
        self.kind: str = request.get("kind", "async")
        self.concurrency: int = request.get("concurrency", 100)
        self.retries: bool = request["action"] == "retry"
        self.redis = Redis(self.url)

    async def open(self) -> None:
        """Connect. This time is not measured."""

    async def add(self, payload: Any) -> None:
        raise NotImplementedError

    async def add_bulk(self, payloads: list[Any]) -> None:
        raise NotImplementedError

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        raise NotImplementedError

    async def start(self, handler: Callable[[Any], Any]) -> None:
        """Start a worker in this process, which may run until the process ends."""
        raise NotImplementedError

    def remaining(self, jobs: int) -> int:
        """Return the number of jobs whose outcome the server does not have yet."""
        raise NotImplementedError

    extras: ClassVar[dict[str, Callable[[Any], Awaitable[dict[str, Any]]]]] = {}


async def add(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    jobs = payloads(request["n"])
    for job in jobs[:20]:
        await peer.add(job)
    return await _timed(_one_by_one(peer, jobs))


async def _one_by_one(peer: Peer, jobs: list[Any]) -> None:
    for job in jobs:
        await peer.add(job)


async def bulk(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    jobs = payloads(request["n"], request.get("size", 0))
    await peer.add(jobs[0])
    measurement = await _timed(peer.add_bulk(jobs))
    return measurement | {"jobs": request["n"]}


async def fill(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """Add the jobs of a run, in another process than the worker, whose memory is measured."""
    jobs = payloads(request["n"], request.get("size", 0))
    if due_ms := request.get("due_ms"):
        await peer.add_delayed(jobs, due_ms)
        if time.time() * 1000 > due_ms:
            raise RuntimeError("adding took too long: jobs were due before all were added")
    else:
        await peer.add_bulk(jobs)
    return {}


async def consume(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """Measure from the first call (or the due time) until the server has every outcome."""
    jobs, retry = request["n"], request["action"] == "retry"
    counter = CallCounter(jobs * 2 if retry else jobs, fail_first=retry)
    cpu_before = time.process_time()
    if time.time() * 1000 > request.get("due_ms", float("inf")):
        raise RuntimeError("starting took too long: jobs were due before the worker had started")
    await peer.start(counter.handle_sync if peer.kind == "plain" else counter.handle_async)
    await counter.wait()
    while peer.remaining(jobs) > 0:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    ended = time.perf_counter()
    started = counter.first_call
    if due_ms := request.get("due_ms"):
        started = ended - (time.time() - due_ms / 1000)
    cpu = time.process_time() - cpu_before
    return {"seconds": ended - started, "cpu": cpu, "rss_kb": _rss_kb()}


async def latency(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """Measure latencies in the worker. The producer is `pace`, in another process."""
    counter = CallCounter(request["n"], timestamps=True)
    await peer.start(counter.handle_sync if peer.kind == "plain" else counter.handle_async)
    await asyncio.sleep(0.5)
    _print_json({"ready": True})
    cpu = time.process_time()
    await counter.wait()
    cpu = time.process_time() - cpu
    latencies = sorted(counter.latencies)

    def percentile_ms(fraction: float) -> float:
        return latencies[min(len(latencies) - 1, int(fraction * len(latencies)))] * 1000

    return {
        "p50_ms": percentile_ms(0.5),
        "p99_ms": percentile_ms(0.99),
        "worst_ms": latencies[-1] * 1000,
        "cpu_us": cpu / request["n"] * 1e6,
    }


async def pace(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """Add jobs at a constant rate, each with the time of its add."""
    jobs = payloads(request["n"])
    started = time.perf_counter()
    for number, job in enumerate(jobs):
        wait = started + number / request["rate"] - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        await peer.add(job | {"at": time.time()})
    return {"rate": len(jobs) / (time.perf_counter() - started)}


async def worker(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """Run one of several workers, from a line on stdin until the process is killed."""
    counter = CallCounter(1 << 60)
    _print_json({"ready": True})
    await asyncio.to_thread(sys.stdin.readline)
    await peer.start(counter.handle_sync if peer.kind == "plain" else counter.handle_async)
    await asyncio.Event().wait()
    return {}


async def measure_repeats(peer: Peer, count: int, due_ms: int) -> dict[str, Any]:
    """Measure from the due time until every repeat has run once."""
    calls = 0

    async def handle(_: Any) -> None:
        nonlocal calls
        calls += 1

    await peer.start(handle)
    while calls < count:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return {"seconds": time.time() - due_ms / 1000}


ACTIONS = {
    "add": add,
    "bulk": bulk,
    "fill": fill,
    "consume": consume,
    "retry": consume,
    "latency": latency,
    "pace": pace,
    "worker": worker,
}


async def _timed(work: Awaitable[Any]) -> dict[str, Any]:
    cpu, started = time.process_time(), time.perf_counter()
    await work
    return {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}


def _rss_kb() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def _perform(peer_class: type[Peer], request: dict[str, Any]) -> None:
    peer = peer_class(request)
    await peer.open()
    action = request["action"]
    if action in peer_class.extras:
        measurement = await peer_class.extras[action](peer)
    else:
        measurement = await ACTIONS[action](peer, request)
    _print_json(measurement)


def main(peer_class: type[Peer]) -> None:
    """Perform the request on the command line and exit without clean-up."""
    request = json.loads(sys.argv[1])
    try:
        timeout_s = request.get("timeout_s", TIMEOUT_S)
        asyncio.run(asyncio.wait_for(_perform(peer_class, request), timeout_s))
        code = 0
    except NotImplementedError:
        _print_json({"unsupported": True})
        code = 0
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Workers are still running, some in threads that never end.
    os._exit(code)
