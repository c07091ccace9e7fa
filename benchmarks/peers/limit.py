"""The limit of the server: the same commands, encoded in advance, over a plain socket.

Two requests are always in flight, so the server never waits. No client that sends these commands
over one connection can be faster.
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


def encode(*arguments: str | int | bytes) -> bytes:
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


class Limit(Peer):
    async def open(self) -> None:
        address = urlsplit(self.url)
        self.socket = socket.create_connection((address.hostname, address.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()

    def _adds(self, jobs: list[Any]) -> list[bytes]:
        now_ms = int(time.time() * 1000)
        return [
            encode(
                "XADD",
                STREAM,
                "IDMP",
                "limit",
                f"{time.time_ns()}:{n}",
                "*",
                "d",
                msgpack.packb([f"01J{n:023d}", msgpack.packb(job), now_ms, 0]),
            )
            for n, job in enumerate(jobs)
        ]

    def _read(self, count: int) -> list[Any]:
        replies: list[Any] = []
        while len(replies) < count:
            reply = self.reader.gets()
            if reply is False:
                if not (data := self.socket.recv(1 << 18)):
                    raise ConnectionError("the server closed the connection")
                self.reader.feed(data)
                continue
            assert not isinstance(reply, Exception), reply
            replies.append(reply)
        return replies

    async def one_by_one(self) -> dict[str, Any]:
        adds = self._adds(payloads(self.request["n"]))
        started = time.perf_counter()
        for add in adds:
            self.socket.sendall(add)
            self._read(1)
        return {"seconds": time.perf_counter() - started}

    async def bulk(self) -> dict[str, Any]:
        count = self.request["n"]
        windows = self._windows(payloads(count, self.request.get("size", 0)))
        started = time.perf_counter()
        self._send(windows)
        return {"seconds": time.perf_counter() - started, "jobs": count}

    async def fill(self) -> dict[str, Any]:
        jobs = payloads(self.request["n"], self.request.get("size", 0))
        self._send(self._windows(jobs))
        return {}

    def _windows(self, jobs: list[Any]) -> list[tuple[bytes, int]]:
        adds = self._adds(jobs)
        chunks = [adds[i : i + COUNT] for i in range(0, len(adds), COUNT)]
        return [(b"".join(chunk), len(chunk)) for chunk in chunks]

    def _send(self, windows: list[tuple[bytes, int]]) -> None:
        for number, (data, _) in enumerate(windows):
            self.socket.sendall(data)
            if number:
                self._read(windows[number - 1][1])
        self._read(windows[-1][1])

    async def consume(self) -> dict[str, Any]:
        """Read, acknowledge and delete; with events, also write two events per job."""
        self.redis.call("XGROUP", "CREATE", STREAM, "default", "0")
        read = encode(
            "XREADGROUP",
            "GROUP",
            "default",
            "limit",
            "COUNT",
            COUNT,
            "CLAIM",
            30_000,
            "STREAMS",
            STREAM,
            ">",
        )
        events = {
            name: encode("XADD", EVENTS, "*", "e", name, "id", "0" * 26, "ts", 10**12, "attempt", 1)
            for name in ("active", "completed")
        }
        job_events = b"".join(events.values()) if self.events else b""
        trim = encode("XTRIM", EVENTS, "MAXLEN", "~", 100_000) if self.events else b""
        cpu, started = time.process_time(), time.perf_counter()
        self.socket.sendall(read + read)
        done, pending_replies = 0, [0, 0]
        while done < self.request["n"]:
            batch = self._read(pending_replies.pop(0) + 1)[-1]
            entries = batch[0][1] if batch else []
            ids = [entry[0] for entry in entries]
            request, replies = b"", 0
            if ids:
                request = encode("XACKDEL", STREAM, "default", "IDS", len(ids), *ids)
                request += job_events * len(ids) + trim
                replies = 1 + (2 * len(ids) + 1 if job_events else 0)
            self.socket.sendall(request + read)
            pending_replies.append(replies)
            done += len(ids)
        self._read(sum(pending_replies) + len(pending_replies))
        seconds = time.perf_counter() - started
        assert self.redis.total(("XLEN", STREAM)) == 0
        return {"seconds": seconds, "cpu": time.process_time() - cpu}


Limit.extras = {
    "add": Limit.one_by_one,
    "bulk": Limit.bulk,
    "fill": Limit.fill,
    "consume": Limit.consume,
}

if __name__ == "__main__":
    main(Limit)
