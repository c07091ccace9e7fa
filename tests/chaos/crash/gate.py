"""A TCP proxy that stops at one request: before the server sees it, or before its reply is seen.

Behind a worker it is the place to kill it: no sooner and no later than in the middle of a step.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

When = Literal["before", "after"]


class Gate:
    """Forwards until `marker` goes up, then holds everything and sets `reached`.

    "before" holds the request back; "after" lets it through and holds back its reply, which has
    come when `reached` is set.
    """

    def __init__(self, url: str, marker: bytes, when: When):
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._marker = marker
        self._when = when
        self._shut = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.reached = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def open(self) -> None:
        """Drop every connection, what was held with it, and let all new ones through."""
        self._marker = b"\0never"
        held, self._sockets = self._sockets, []
        for each in held:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._shut.clear()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                struck = threading.Event()
                for pump in (self._up, self._down):
                    args = (client, server, struck)
                    threading.Thread(target=pump, args=args, daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, struck: threading.Event) -> None:
        tail = b""
        with suppress(OSError):
            while data := client.recv(1 << 20):
                # The marker may come in two pieces; requests are small beside our reads.
                if self._marker in tail + data and not self._shut.is_set():
                    self._shut.set()
                    struck.set()
                    if self._when == "after":
                        server.sendall(data)
                    else:
                        self.reached.set()
                    return
                if self._shut.is_set():
                    return
                tail = data[-len(self._marker) :]
                server.sendall(data)

    def _down(self, client: socket.socket, server: socket.socket, struck: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                if struck.is_set():
                    self.reached.set()
                if self._shut.is_set():
                    return
                client.sendall(data)
