"""TCP proxy between a client and a server that cuts connections or holds back data on purpose."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from tests.support.waiting import wait_until

Direction = Literal["up", "down"]

# A request with a marker must arrive in one piece, so the reads are larger than the requests.
READ_BYTES = 1 << 18


@dataclass(frozen=True)
class Cut:
    """End of a connection after `after` bytes up (to the server) or down (to the client)."""

    direction: Direction
    after: int


# Called with the number of each new connection, starting at 0. None means no cut.
CutPolicy = Callable[[int], Cut | None]


def no_cut(_: int) -> Cut | None:
    """Cut no connection."""
    return None


@dataclass(frozen=True)
class HoldAt:
    """Trigger that makes the proxy hold back all data once a request contains `marker`.

    With "before" the request does not reach the server. With "after" the server executes the
    request and the proxy holds back the reply.
    """

    marker: bytes
    when: Literal["before", "after"]


@dataclass(eq=False)
class _Connection:
    client: socket.socket
    server: socket.socket
    cut: Cut | None
    triggered: bool = False
    replied: bool = True
    silent: bool = False

    def close(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class TcpProxy:
    """Proxy that forwards bytes in both directions and interferes on request.

    :param url: the URL of the server; only host and port are used.
    :param policy: decides for each new connection after how many bytes it is cut. The bytes before
        the cut arrive.
    :param trigger: holds back all data at the first request with a marker. It fires once;
        `triggered` is set when the request (or, with "after", its reply) is held back.
    """

    def __init__(self, url: str, policy: CutPolicy = no_cut, *, trigger: HoldAt | None = None):
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[_Connection] = set()
        self._trigger = trigger
        self._forward_requests = threading.Event()
        self._forward_replies = threading.Event()
        self._held_replies = threading.Semaphore(0)
        self.policy = policy
        self.delay = 0.0  # seconds by which each piece of data is delayed, in both directions
        self.connections = 0
        self.cuts = 0
        self.round_trips = 0  # requests after a reply; a pipeline is one of them
        self.triggered = threading.Event()
        self._forward_requests.set()
        self._forward_replies.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def hold_requests(self) -> None:
        """Hold back the requests of the client from now on."""
        self._forward_requests.clear()

    def release_requests(self) -> None:
        """Forward the requests that were held back, and all later ones."""
        self._forward_requests.set()

    def hold_replies(self) -> None:
        """Hold back the replies of the server from now on."""
        self._held_replies = threading.Semaphore(0)
        self._forward_replies.clear()

    def release_replies(self) -> None:
        """Forward the replies that were held back, and all later ones."""
        self._forward_replies.set()

    def wait_for_reply(self) -> None:
        """Wait until a reply is held back."""
        assert self._held_replies.acquire(timeout=10), "the server did not reply within 10 s"

    def wait_for_connections(self, count: int) -> None:
        """Wait until the number of connections since the start is at least `count`."""
        wait_until(
            lambda: self.connections >= count and self.connections,
            10,
            f"{count} connections through the proxy",
        )

    def silence_all(self) -> None:
        """Let every open connection lose all data from now on without ending it (half-open)."""
        with self._lock:
            for connection in self._open:
                connection.silent = True

    def disconnect_all(self) -> None:
        """End every open connection. Data that is held back is lost; new connections work."""
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            connection.close()
        # Set after the sockets are closed, so that nothing that was held back is sent.
        self._forward_requests.set()
        self._forward_replies.set()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        # Closing the listener alone does not interrupt `accept`.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.disconnect_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            cut = self.policy(self.connections)
            self.connections += 1
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            connection = _Connection(client, server, cut)
            with self._lock:
                self._open.add(connection)
            for target in (self._pump_requests, self._pump_replies):
                threading.Thread(target=target, args=(connection,), daemon=True).start()

    def _pump_requests(self, connection: _Connection) -> None:
        tail = b""

        def before_send(data: bytes) -> None:
            nonlocal tail
            if connection.replied:
                connection.replied = False
                self.round_trips += 1
            trigger = self._trigger
            if trigger:
                if self._fire_trigger(connection, trigger, tail + data):
                    return
                tail = (tail + data)[1 - len(trigger.marker) :]
            self._forward_requests.wait()

        self._pump(connection, "up", before_send)

    def _fire_trigger(self, connection: _Connection, trigger: HoldAt, data: bytes) -> bool:
        """Hold back all data if a request has the marker; return whether to send that request."""
        with self._lock:
            if self._trigger is None or trigger.marker not in data:
                return False
            self._trigger = None
            connection.triggered = True
            self._forward_requests.clear()
            self._forward_replies.clear()
        if trigger.when == "after":
            return True
        self.triggered.set()
        return False

    def _pump_replies(self, connection: _Connection) -> None:
        def before_send(_: bytes) -> None:
            connection.replied = True
            if self._forward_replies.is_set():
                return
            if connection.triggered:
                self.triggered.set()
            self._held_replies.release()
            self._forward_replies.wait()

        self._pump(connection, "down", before_send)

    def _pump(
        self, connection: _Connection, direction: Direction, before_send: Callable[[bytes], None]
    ) -> None:
        """Forward the bytes of one direction until the connection ends or is cut."""
        source, sink = connection.client, connection.server
        if direction == "down":
            source, sink = sink, source
        cut = connection.cut
        remaining = cut.after if cut and cut.direction == direction else None
        with suppress(OSError):
            while remaining is None or remaining > 0:
                size = READ_BYTES if remaining is None else min(READ_BYTES, remaining)
                if not (data := source.recv(size)):
                    break
                if self.delay:
                    time.sleep(self.delay)
                before_send(data)
                if connection.silent:
                    continue
                sink.sendall(data)
                remaining = None if remaining is None else remaining - len(data)
        with self._lock:
            self.cuts += remaining == 0
            self._open.discard(connection)
        connection.close()
