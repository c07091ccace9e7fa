"""The limit: the same commands, packed before the clock starts, over a bare socket.

Two requests are always under way, so the server never waits for us. Nothing that puts these
commands on one connection can be faster; what a program adds on top is its own cost.
"""

from __future__ import annotations

import socket
import time
from typing import Any
from urllib.parse import urlsplit

import hiredis
import msgpack
from base import QUEUE, Peer, main, payloads

STREAM, EVENTS = f"{{chasqui:{QUEUE}}}:stream", f"{{chasqui:{QUEUE}}}:events"
COUNT = 256


def pack(*words: str | int | bytes) -> bytes:
    parts = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


class Limit(Peer):
    async def open(self) -> None:
        place = urlsplit(self.url)
        self.socket = socket.create_connection((place.hostname, place.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()

    def _adds(self, jobs: list[Any]) -> list[bytes]:
        now_ms = int(time.time() * 1000)
        return [
            pack("XADD", STREAM, "IDMP", "limit", f"{time.time_ns()}:{n}", "*", "d",
                 msgpack.packb([f"01J{n:023d}", msgpack.packb(job), now_ms, 0]))
            for n, job in enumerate(jobs)
        ]  # fmt: skip

    def _read(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            reply = self.reader.gets()
            if reply is False:
                if not (data := self.socket.recv(1 << 18)):
                    raise ConnectionError("the server has gone")
                self.reader.feed(data)
                continue
            assert not isinstance(reply, Exception), reply
            found.append(reply)
        return found

    async def one_by_one(self) -> dict[str, Any]:
        adds = self._adds(payloads(self.order["n"]))
        began = time.perf_counter()
        for one in adds:
            self.socket.sendall(one)
            self._read(1)
        return {"seconds": time.perf_counter() - began}

    async def bulk(self) -> dict[str, Any]:
        count = self.order["n"]
        windows = self._windows(payloads(count, self.order.get("size", 0)))
        began = time.perf_counter()
        self._send(windows)
        return {"seconds": time.perf_counter() - began, "jobs": count}

    async def fill(self) -> dict[str, Any]:
        jobs = payloads(self.order["n"], self.order.get("size", 0))
        self._send(self._windows(jobs))
        return {}

    def _windows(self, jobs: list[Any]) -> list[tuple[bytes, int]]:
        adds = self._adds(jobs)
        runs = [adds[i : i + COUNT] for i in range(0, len(adds), COUNT)]
        return [(b"".join(run), len(run)) for run in runs]

    def _send(self, windows: list[tuple[bytes, int]]) -> None:
        for number, (data, _) in enumerate(windows):
            self.socket.sendall(data)
            if number:
                self._read(windows[number - 1][1])
        self._read(windows[-1][1])

    async def consume(self) -> dict[str, Any]:
        """Read, acknowledge and delete, and with events write two for each job."""
        self.redis.ask("XGROUP", "CREATE", STREAM, "default", "0")
        read = pack("XREADGROUP", "GROUP", "default", "limit", "COUNT", COUNT,
                    "CLAIM", 30_000, "STREAMS", STREAM, ">")  # fmt: skip
        event = {
            name: pack("XADD", EVENTS, "*", "e", name, "id", "0" * 26, "ts", 10**12, "attempt", 1)
            for name in ("active", "completed")
        }
        told = b"".join(event.values()) if self.events else b""
        trim = pack("XTRIM", EVENTS, "MAXLEN", "~", 100_000) if self.events else b""
        cpu, began = time.process_time(), time.perf_counter()
        self.socket.sendall(read + read)
        done, awaited = 0, [0, 0]
        while done < self.order["n"]:
            batch = self._read(awaited.pop(0) + 1)[-1]
            entries = batch[0][1] if batch else []
            ids = [entry[0] for entry in entries]
            request, replies = b"", 0
            if ids:
                request = pack("XACKDEL", STREAM, "default", "IDS", len(ids), *ids)
                request += told * len(ids) + trim
                replies = 1 + (2 * len(ids) + 1 if told else 0)
            self.socket.sendall(request + read)
            awaited.append(replies)
            done += len(ids)
        self._read(sum(awaited) + len(awaited))
        took = time.perf_counter() - began
        assert self.redis.total(("XLEN", STREAM)) == 0
        return {"seconds": took, "cpu": time.process_time() - cpu}


Limit.extras = {
    "add": Limit.one_by_one, "bulk": Limit.bulk, "fill": Limit.fill, "consume": Limit.consume,
}  # fmt: skip

if __name__ == "__main__":
    main(Limit)
