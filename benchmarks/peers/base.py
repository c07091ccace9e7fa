"""What all contenders share: the jobs, the clock, and when a run counts as over.

Runs in every contender's own Python, so it needs nothing but the standard library. A contender is
a Peer with a few short methods; `main` reads one order (JSON on the command line), does it, and
prints what it measured as the last line.
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
# A repeat fires for the first time so long after its start. Long enough to fire all of them once.
FIRST_FIRE_MS = 8_000
GIVE_UP_S = 600.0


def payloads(count: int, size: int = 0) -> list[Any]:
    """Jobs of everyday size, about 150 bytes of MessagePack; or a string of `size` bytes."""
    if size:
        return [{"n": n, "blob": "x" * size} for n in range(count)]
    return [
        {"n": n, "customer": n, "email": f"customer{n}@example.org", "locale": "de-DE",
         "template": "newsletter-2026-11", "tags": ["weekly", "paying"], "score": n / 7}
        for n in range(count)
    ]  # fmt: skip


class Redis:
    """The few questions that tell whether a queue is drained."""

    def __init__(self, url: str):
        place = urlsplit(url)
        self._socket = socket.create_connection((place.hostname, place.port))
        self._lines = self._socket.makefile("rb")

    def ask(self, *words: str | int | bytes) -> Any:
        parts = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        head = b"*%d\r\n" % len(parts)
        self._socket.sendall(head + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts))
        return self._answer()

    def _answer(self) -> Any:
        line = self._lines.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return None if rest == b"-1" else self._lines.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._answer() for _ in range(max(0, int(rest)))]
        return int(rest) if kind == b":" else None if kind == b"-" else rest

    def total(self, *questions: tuple[str, str]) -> int:
        """The sum of several counts (XLEN, LLEN, ZCARD, HLEN, SCARD ...)."""
        return sum(self.ask(*question) or 0 for question in questions)

    def events(self, key: str) -> int:
        """How many entries were ever written to a stream."""
        info = self.ask("XINFO", "STREAM", key) or []
        return next((info[i + 1] for i in range(0, len(info), 2) if info[i] == b"entries-added"), 0)


class Handled:
    """Counts the calls of the handler; with `fail_first` the first call for each job fails."""

    def __init__(self, calls: int, fail_first: bool = False, stamps: bool = False):
        self.calls = calls
        self.count = 0
        self.first = 0.0
        self.waits: list[float] = []
        self._failed: set[int] | None = set() if fail_first else None
        self._stamps = stamps
        self._lock = threading.Lock()

    def plain(self, payload: Any) -> None:
        with self._lock:
            self._note(payload)

    async def awaited(self, payload: Any) -> None:
        self._note(payload)

    def _note(self, payload: Any) -> None:
        self.count += 1
        if self.count == 1:
            self.first = time.perf_counter()
        if self._stamps:
            self.waits.append(time.time() - payload["at"])
        if self._failed is not None and payload["n"] not in self._failed:
            self._failed.add(payload["n"])
            raise RuntimeError("the first time it fails")

    async def all(self) -> None:
        give_up_at = time.monotonic() + GIVE_UP_S
        while self.count < self.calls:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{self.count} of {self.calls} calls")
            await asyncio.sleep(POLL_S)


class Peer:
    """One contender. What it cannot do raises NotImplementedError."""

    plain_only = False

    def __init__(self, order: dict[str, Any]):
        self.order = order
        self.url: str = order["url"]
        self.events: bool = order.get("events", True)
        self.kind: str = order.get("kind", "async")
        self.concurrency: int = order.get("concurrency", 100)
        self.retries: bool = order["do"] == "retry"
        self.redis = Redis(self.url)

    async def open(self) -> None:
        """Connect, before the clock starts."""

    async def add(self, payload: Any) -> None:
        raise NotImplementedError

    async def add_bulk(self, payloads: list[Any]) -> None:
        raise NotImplementedError

    async def add_delayed(self, payloads: list[Any], due_ms: int) -> None:
        raise NotImplementedError

    async def start(self, handler: Callable[[Any], Any]) -> None:
        """Start a worker in this process; it may run on after the measurement."""
        raise NotImplementedError

    def left(self, jobs: int) -> int:
        """How much of the run is not settled on the server."""
        raise NotImplementedError

    extras: ClassVar[dict[str, Callable[[Any], Awaitable[dict[str, Any]]]]] = {}


async def add(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    jobs = payloads(order["n"])
    for job in jobs[:20]:
        await peer.add(job)
    return await _timed(_one_by_one(peer, jobs))


async def _one_by_one(peer: Peer, jobs: list[Any]) -> None:
    for job in jobs:
        await peer.add(job)


async def bulk(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    jobs = payloads(order["n"], order.get("size", 0))
    await peer.add(jobs[0])
    found = await _timed(peer.add_bulk(jobs))
    return found | {"jobs": order["n"]}


async def fill(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    """Prepare a run in another process, so that the worker's memory is the worker's alone."""
    jobs = payloads(order["n"], order.get("size", 0))
    if due_ms := order.get("due_ms"):
        await peer.add_delayed(jobs, due_ms)
        if time.time() * 1000 > due_ms:
            raise RuntimeError("filling took too long: jobs were due before all were added")
    else:
        await peer.add_bulk(jobs)
    return {}


async def consume(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    """From the first call of a handler (or the due time) until the server has every outcome."""
    jobs, retry = order["n"], order["do"] == "retry"
    handled = Handled(jobs * 2 if retry else jobs, fail_first=retry)
    began_cpu = time.process_time()
    if time.time() * 1000 > order.get("due_ms", float("inf")):
        raise RuntimeError("starting took too long: jobs were due before the worker was there")
    await peer.start(handled.plain if peer.kind == "plain" else handled.awaited)
    await handled.all()
    while peer.left(jobs) > 0:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    ended = time.perf_counter()
    began = handled.first
    if due_ms := order.get("due_ms"):
        began = ended - (time.time() - due_ms / 1000)
    cpu = time.process_time() - began_cpu
    return {"seconds": ended - began, "cpu": cpu, "rss_kb": _rss_kb()}


async def latency(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    """The worker's half of F; the producer's half is `pace`, in another process."""
    handled = Handled(order["n"], stamps=True)
    await peer.start(handled.plain if peer.kind == "plain" else handled.awaited)
    await asyncio.sleep(0.5)
    _say({"ready": True})
    cpu = time.process_time()
    await handled.all()
    cpu = time.process_time() - cpu
    waits = sorted(handled.waits)

    def at(part: float) -> float:
        return waits[min(len(waits) - 1, int(part * len(waits)))] * 1000

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "worst_ms": waits[-1] * 1000,
            "cpu_us": cpu / order["n"] * 1e6}  # fmt: skip


async def pace(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    """Add jobs at a steady rate, each with the time it was handed over."""
    jobs = payloads(order["n"])
    began = time.perf_counter()
    for number, job in enumerate(jobs):
        wait = began + number / order["rate"] - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        await peer.add(job | {"at": time.time()})
    return {"rate": len(jobs) / (time.perf_counter() - began)}


async def crew(peer: Peer, order: dict[str, Any]) -> dict[str, Any]:
    """One of several workers: starts when told, works until killed."""
    handled = Handled(1 << 60)
    _say({"ready": True})
    await asyncio.to_thread(sys.stdin.readline)
    await peer.start(handled.plain if peer.kind == "plain" else handled.awaited)
    await asyncio.Event().wait()
    return {}


async def fires(peer: Peer, count: int, due_ms: int) -> dict[str, Any]:
    """Seconds from the due time until every repeat has run once."""
    seen = 0

    async def note(_: Any) -> None:
        nonlocal seen
        seen += 1

    await peer.start(note)
    while seen < count:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return {"seconds": time.time() - due_ms / 1000}


ORDERS = {
    "add": add, "bulk": bulk, "fill": fill, "consume": consume, "retry": consume,
    "latency": latency, "pace": pace, "crew": crew,
}  # fmt: skip


async def _timed(work: Awaitable[Any]) -> dict[str, Any]:
    cpu, began = time.process_time(), time.perf_counter()
    await work
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def _rss_kb() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def _obey(kind: type[Peer], order: dict[str, Any]) -> None:
    peer = kind(order)
    await peer.open()
    if order["do"] in kind.extras:
        found = await kind.extras[order["do"]](peer)
    else:
        found = await ORDERS[order["do"]](peer, order)
    _say(found)


def main(kind: type[Peer]) -> None:
    """Do what the command line asks for, and leave without tidying up."""
    order = json.loads(sys.argv[1])
    try:
        patience_s = order.get("patience_s", GIVE_UP_S)
        asyncio.run(asyncio.wait_for(_obey(kind, order), patience_s))
        code = 0
    except NotImplementedError:
        _say({"cannot": True})
        code = 0
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Workers of every kind are still running here, some in threads that never end.
    os._exit(code)
