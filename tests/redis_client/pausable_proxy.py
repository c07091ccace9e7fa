"""TCP proxy in front of a server that can hold back replies or lose them."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.support.waiting import until


class PausableProxy:
    """Proxy that forwards bytes in both directions, as long as the test does not interfere."""

    def __init__(self, port: int):
        self._server_port = port
        self._forwarding = threading.Event()
        self._forwarding.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._connection_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._held_replies = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def hold_replies(self) -> None:
        """Hold back the replies of the server from now on."""
        self._held_replies = threading.Semaphore(0)
        self._forwarding.clear()

    def release_replies(self) -> None:
        """Forward the replies that were held back, and all later ones."""
        self._forwarding.set()

    def wait_for_reply(self) -> None:
        """Wait until a reply is held back."""
        assert self._held_replies.acquire(timeout=10), "the server did not reply within 10 s"

    def wait_for_connections(self, count: int) -> None:
        """Wait until the number of connections since the start is at least `count`."""
        until(lambda: self._connection_count >= count, 10, f"{count} connections through the proxy")

    def disconnect_all(self) -> None:
        """Close every connection; replies that are held back are lost."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        for pair in pairs:
            for end in pair:
                end.close()
        self._forwarding.set()

    def __enter__(self) -> PausableProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.disconnect_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                return
            self._connection_count += 1
            self._pairs.append((client, server))
            threading.Thread(
                target=self._forward_requests, args=(client, server), daemon=True
            ).start()
            threading.Thread(
                target=self._forward_replies, args=(server, client), daemon=True
            ).start()

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _forward_replies(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if not self._forwarding.is_set():
                    self._held_replies.release()
                    self._forwarding.wait()
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
