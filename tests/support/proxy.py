"""A TCP proxy that cuts connections on purpose: mid-request, mid-reply, or before either."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

Direction = Literal["up", "down"]


@dataclass(frozen=True)
class Cut:
    """End the connection once so many bytes went up (to the server) or down (to the client)."""

    direction: Direction
    after: int


# Asked for each connection, the first is number 0; None leaves it alone.
Policy = Callable[[int], Cut | None]


class Proxy:
    """Forwards to a server and cuts what the policy says. The bytes before the cut do arrive."""

    def __init__(self, url: str, policy: Policy = lambda _: None):
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.policy = policy
        self.delay = 0.0  # seconds that every piece of data waits, in both directions
        self.connections = 0
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut_all(self) -> None:
        """End every connection that is open now."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _close(end)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone would leave `accept` waiting.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

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
                _close(client)
                continue
            with self._lock:
                self._open |= {client, server}
            for direction, source, sink in (("up", client, server), ("down", server, client)):
                limit = cut.after if cut and cut.direction == direction else None
                threading.Thread(target=self._pump, args=(source, sink, limit), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        left = limit
        with suppress(OSError):
            while left is None or left > 0:
                data = source.recv(65536 if left is None else min(65536, left))
                if not data:
                    break
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
                left = None if left is None else left - len(data)
        if left == 0:
            with self._lock:
                self.cuts += 1
        with self._lock:
            self._open -= {source, sink}
        _close(source)
        _close(sink)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
