"""Who runs: each from its own package, in a Python environment of its own, made on demand."""

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
class Contender:
    """A program that takes part.

    `slow` divides the number of jobs, so that one run takes seconds and not minutes; rates are
    compared, never times. `kinds` says which handlers and producers it has. One process of it that
    is not done after `patience_s` counts as failed, so that one who hangs does not hold up all.
    """

    name: str
    adapter: str
    packages: tuple[str, ...] = ()
    pinned: bool = False
    kinds: tuple[str, ...] = ("async",)
    slow: int = 10
    patience_s: int = 60

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
        """To be run in the new process: one core for those that are faster so."""
        return (lambda: os.sched_setaffinity(0, {0})) if self.pinned else None

    def install(self) -> None:
        """Make its environment, once."""
        if not self.packages:
            return
        HOME.mkdir(parents=True, exist_ok=True)
        with (HOME / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            wanted = "\n".join(self.packages)
            ready = self.home / "ready"
            if ready.exists() and ready.read_text() == wanted:
                return
            print(f"installing {self.packages[0]}", file=sys.stderr)
            shutil.rmtree(self.home, ignore_errors=True)
            if self.adapter.endswith(".mjs"):
                self.home.mkdir()
                _do("npm", "install", "--silent", "--no-audit", "--no-fund",
                    "--prefix", str(self.home), *self.packages)  # fmt: skip
            else:
                uv = str(Path(sys.prefix) / "bin" / "uv")
                _do(uv, "venv", "-q", "--python", sys.executable, str(self.home))
                python = str(self.home / "bin" / "python")
                _do(uv, "pip", "install", "-q", "--python", python, *self.packages)
            ready.write_text(wanted)


def _do(*command: str) -> None:
    subprocess.run(command, check=True)


CHASQUIMQ = ("chasquimq==1.3.0", "redis[hiredis]<7", "msgpack")
OURS = Contender("ours", "ours.py", kinds=("async", "plain"), slow=1, patience_s=600)
LIMIT = Contender("limit", "limit.py", slow=1, patience_s=600)
WHEEL = Contender("chasquimq", "chasquimq_peer.py", CHASQUIMQ, slow=4, patience_s=600)
PINNED = Contender("chasquimq, one core", "chasquimq_peer.py", CHASQUIMQ, pinned=True, slow=4,
                   patience_s=600)  # fmt: skip
QUICK = (OURS, WHEEL, PINNED, LIMIT)
# The fast parser for all. From version 8 on it gives up reading after five seconds, which the
# worker of BullMQ, waiting longer for a delayed job, takes for a lost server and sleeps it off.
CLIENT = "redis[hiredis]<8"
PEERS = (
    Contender("bullmq (Node)", "bullmq_node.mjs", ("bullmq@6.7.0", "ioredis@5"), slow=10),
    Contender("bullmq (Python)", "bullmq_python.py", ("bullmq==3.4.4", CLIENT), slow=40),
    Contender("arq", "arq_peer.py", ("arq==0.28.0", CLIENT), slow=40),
    Contender("taskiq", "taskiq_peer.py", ("taskiq==0.12.6", "taskiq-redis==1.2.2", CLIENT),
              kinds=("async", "plain"), slow=30),
    Contender("dramatiq", "dramatiq_peer.py", ("dramatiq[redis]==2.2.1", CLIENT),
              kinds=("plain",), slow=30),
    Contender("celery", "celery_peer.py", ("celery[redis]==5.7.0", CLIENT),
              kinds=("plain",), slow=50),
    Contender("rq", "rq_peer.py", ("rq==2.12.0", CLIENT), kinds=("plain",), slow=200),
    Contender("saq", "saq_peer.py", ("saq[redis]==0.26.4", CLIENT, "typing_extensions"),
              kinds=("async", "plain"), slow=40),
    Contender("streaq", "streaq_peer.py", ("streaq==7.2.0",), kinds=("async", "plain"), slow=50),
    Contender("huey", "huey_peer.py", ("huey==3.5.4", CLIENT), kinds=("plain",), slow=20),
)  # fmt: skip
ALL = (*QUICK, *PEERS)
