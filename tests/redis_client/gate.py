"""A real TCP relay in front of a real server: it can hold replies back, or lose them."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class Gate:
    """Forwards bytes both ways. `hold` keeps replies back, `cut` ends every connection."""

    def __init__(self, port: int):
        self._target = port
        self._open = threading.Event()
        self._open.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._made = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.held = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def hold(self) -> None:
        self.held = threading.Semaphore(0)
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def wait_for_reply(self) -> None:
        """Wait until the server has answered into the closed gate."""
        assert self.held.acquire(timeout=10)

    def wait_for_connections(self, count: int) -> None:
        """Wait until so many were made, ever."""
        deadline = time.monotonic() + 10
        while self._made < count:
            assert time.monotonic() < deadline, f"{self._made} of {count} connections"
            time.sleep(0.005)

    def cut(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        for pair in pairs:
            for end in pair:
                end.close()
        self._open.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._made += 1
            self._pairs.append((client, server))
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _answer(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._open.is_set():
                    self.held.release()
                    self._open.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
