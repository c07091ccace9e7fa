"""The real npm rsmq and PyRSMQ as child processes, installed once into .cache/peers."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_chasqui.rsmq.client import RsmqClient
from tests.conftest import Server

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".cache" / "peers"
HERE = Path(__file__).parent / "peers"
NPM_RSMQ = "rsmq@0.12.4"
PYRSMQ = "PyRSMQ==0.6.1"
CHASQUIMQ = "chasquimq==1.3.0"


class Peer:
    """A child process that replies with one JSON line to each JSON line."""

    def __init__(self, *command: str, env: dict[str, str] | None = None):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def send(self, verb: str, **options: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, options]) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, verb: str, **options: Any) -> Any:
        """Return the result of an operation, or the name of the error."""
        self.send(verb, **options)
        answer = self.receive()
        return answer["error"]["name"] if "error" in answer else answer.get("result")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def _install(folder: Path, sign: str, command: list[str]) -> None:
    """Run an installer once, in the first test process."""
    PEERS.mkdir(parents=True, exist_ok=True)
    with (PEERS / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / sign).exists():
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(command, cwd=PEERS, check=True, capture_output=True, timeout=300)


def _absent(why: str) -> None:
    if os.environ.get("CHASQUI_REQUIRE_SERVERS") == "1":
        pytest.fail(f"CHASQUI_REQUIRE_SERVERS=1, but {why}")
    pytest.skip(why)


@pytest.fixture(scope="session")
def npm_rsmq_folder() -> Path:
    if not (shutil.which("node") and shutil.which("npm")):
        _absent("there is no node and npm here")
    folder = PEERS / "node"
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    _install(folder, "node_modules/rsmq/index.js", ["npm", "install", *flags, NPM_RSMQ])
    return folder


@pytest.fixture(scope="session")
def pyrsmq_python() -> Path:
    return _environment("pyrsmq", PYRSMQ)


@pytest.fixture(scope="session")
def chasquimq_python() -> Path:
    return _environment("chasquimq", CHASQUIMQ)


def _environment(name: str, package: str) -> Path:
    """Return a Python with a peer in a separate environment, because peers need other versions."""
    folder = PEERS / name
    uv, here = f"{shlex.quote(sys.executable)} -m uv", shlex.quote(str(folder))
    make = (
        f"{uv} venv -q --clear {here} && {uv} pip install -q --python {here}/bin/python {package}"
    )
    _install(folder, "ready", ["sh", "-c", f"{make} && touch {here}/ready"])
    return folder / "bin" / "python"


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"rsmq-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def npm_rsmq(npm_rsmq_folder: Path, namespace: str) -> Iterator[Callable[..., Peer]]:
    """Start the real npm rsmq on a server: `npm_rsmq(url, realtime=True)`."""
    peers: list[Peer] = []

    def start(url: str, *, realtime: bool = False, ns: str = namespace) -> Peer:
        where = urlsplit(url)
        env = os.environ | {"NODE_PATH": str(npm_rsmq_folder / "node_modules")}
        args = (str(where.hostname), str(where.port), ns, str(int(realtime)))
        peers.append(Peer("node", "--no-deprecation", str(HERE / "npm.js"), *args, env=env))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


@pytest.fixture
def rsmq(server: Server, namespace: str) -> Iterator[RsmqClient]:
    """The client under test, with the queue `q`."""
    with RsmqClient(server.url, namespace=namespace) as client:
        client.create_queue("q")
        yield client


@pytest.fixture
def pyrsmq(pyrsmq_python: Path, namespace: str) -> Iterator[Callable[[str], Peer]]:
    """Start the real PyRSMQ on a server."""
    peers: list[Peer] = []

    def start(url: str) -> Peer:
        where = urlsplit(url)
        args = (str(where.hostname), str(where.port), namespace)
        peers.append(Peer(str(pyrsmq_python), str(HERE / "pyrsmq.py"), *args))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


@pytest.fixture
def stock_worker(chasquimq_python: Path) -> Iterator[Callable[..., Peer]]:
    """Start a real ChasquiMQ worker: `stock_worker(url, queue, idle_ms)`."""
    peers: list[Peer] = []

    def start(url: str, queue: str, idle_ms: int = 30_000) -> Peer:
        args = (str(HERE / "stock_worker.py"), url, queue, str(idle_ms))
        peers.append(Peer(str(chasquimq_python), *args))
        assert peers[-1].receive() == "up"
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()
