"""The compared systems. Each runs in its own Python environment, which is created on demand."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".cache" / "bench"
ADAPTERS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class System:
    """A system that is measured.

    `slow` divides the number of jobs, so that a run takes seconds and not minutes; only rates are
    compared. `kinds` are the kinds of handlers and producers it has (async or plain functions). A
    process that runs longer than `timeout_s` has failed.
    """

    name: str
    adapter: str
    packages: tuple[str, ...] = ()
    pinned: bool = False
    kinds: tuple[str, ...] = ("async",)
    slow: int = 10
    timeout_s: int = 60

    @property
    def command(self) -> list[str]:
        script = str(ADAPTERS / self.adapter)
        if self.adapter.endswith(".mjs"):
            return ["node", script]
        if not self.packages:
            return [sys.executable, script]
        return [str(self.home / "bin" / "python"), script]

    @property
    def home(self) -> Path:
        return HOME / self.adapter.rpartition(".")[0]

    @property
    def environment(self) -> dict[str, str]:
        extra = {"PYTHONPATH": str(ROOT)} if not self.packages else {}
        if self.adapter.endswith(".mjs"):
            extra["BENCH_MODULES"] = str(self.home)
        return {**os.environ, "PYTHONWARNINGS": "ignore"} | extra

    def before_start(self) -> Callable[[], None] | None:
        """Return a function for the new process, which pins a `pinned` system to one core."""
        return (lambda: os.sched_setaffinity(0, {0})) if self.pinned else None

    def install(self) -> None:
        """Create the environment of the system if it does not exist."""
        if not self.packages:
            return
        HOME.mkdir(parents=True, exist_ok=True)
        with (HOME / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            packages = "\n".join(self.packages)
            ready = self.home / "ready"
            if ready.exists() and ready.read_text() == packages:
                return
            print(f"installing {self.packages[0]}", file=sys.stderr)
            shutil.rmtree(self.home, ignore_errors=True)
            if self.adapter.endswith(".mjs"):
                self.home.mkdir()
                _run(
                    "npm",
                    "install",
                    "--silent",
                    "--no-audit",
                    "--no-fund",
                    "--prefix",
                    str(self.home),
                    *self.packages,
                )
            else:
                uv = str(Path(sys.prefix) / "bin" / "uv")
                _run(uv, "venv", "-q", "--python", sys.executable, str(self.home))
                python = str(self.home / "bin" / "python")
                _run(uv, "pip", "install", "-q", "--python", python, *self.packages)
            ready.write_text(packages)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


CHASQUIMQ = ("chasquimq==1.3.0", "redis[hiredis]<7", "msgpack")
OURS = System("ours", "ours.py", kinds=("async", "plain"), slow=1, timeout_s=600)
LIMIT = System("limit", "limit.py", slow=1, timeout_s=600)
WHEEL = System("chasquimq", "chasquimq_peer.py", CHASQUIMQ, slow=4, timeout_s=600)
PINNED = System(
    "chasquimq, one core", "chasquimq_peer.py", CHASQUIMQ, pinned=True, slow=4, timeout_s=600
)
QUICK = (OURS, WHEEL, PINNED, LIMIT)
# hiredis for all systems. redis-py 8 has a read timeout of five seconds, which BullMQ's worker
# exceeds when it waits for a delayed job; it then pauses as if the server were lost.
CLIENT = "redis[hiredis]<8"
PEERS = (
    System("bullmq (Node)", "bullmq_node.mjs", ("bullmq@6.7.0", "ioredis@5"), slow=10),
    System("bullmq (Python)", "bullmq_python.py", ("bullmq==3.4.4", CLIENT), slow=40),
    System("arq", "arq_peer.py", ("arq==0.28.0", CLIENT), slow=40),
    System(
        "taskiq",
        "taskiq_peer.py",
        ("taskiq==0.12.6", "taskiq-redis==1.2.2", CLIENT),
        kinds=("async", "plain"),
        slow=30,
    ),
    System(
        "dramatiq",
        "dramatiq_peer.py",
        ("dramatiq[redis]==2.2.1", CLIENT),
        kinds=("plain",),
        slow=30,
    ),
    System("celery", "celery_peer.py", ("celery[redis]==5.7.0", CLIENT), kinds=("plain",), slow=50),
    System("rq", "rq_peer.py", ("rq==2.12.0", CLIENT), kinds=("plain",), slow=200),
    System(
        "saq",
        "saq_peer.py",
        ("saq[redis]==0.26.4", CLIENT, "typing_extensions"),
        kinds=("async", "plain"),
        slow=40,
    ),
    System("streaq", "streaq_peer.py", ("streaq==7.2.0",), kinds=("async", "plain"), slow=50),
    System("huey", "huey_peer.py", ("huey==3.5.4", CLIENT), kinds=("plain",), slow=20),
)
ALL = (*QUICK, *PEERS)
