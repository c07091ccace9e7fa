"""The command as users run it: a process of its own, or its front door within this one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.cli.main import run
from tests.conftest import Server

COMMAND = [sys.executable, "-m", "airflow_provider_chasqui.cli"]
PATIENCE = 60.0


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Ask until the answer is true."""
    deadline = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s"
        time.sleep(0.05)
    return answer


def environment(server: Server, **more: str) -> dict[str, str]:
    mine = {key: value for key, value in os.environ.items() if not key.startswith("CHASQUI_")}
    here = str(Path(__file__).parents[2])
    return mine | {"CHASQUI_URL": server.url, "PYTHONPATH": here} | more


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Shell:
    """Runs `chasqui` in a process of its own."""

    server: Server
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *args: str, stdin: str = "") -> Answer:
        done = subprocess.run(
            [*COMMAND, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=environment(self.server, **self.env),
        )
        return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def front(
    server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """Runs `chasqui` within this process: the same, without the wait for an interpreter."""
    return make_front(server, capfd, monkeypatch)


def make_front(
    server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    monkeypatch.setenv("CHASQUI_URL", server.url)
    monkeypatch.delenv("COLUMNS", raising=False)  # make and some shells hand theirs down

    def call(*args: str, dialect: bool = True) -> Answer:
        capfd.readouterr()
        code = run([*args, *(["--dialect", server.dialect] if dialect else [])])
        return Answer(code, *capfd.readouterr())

    return call


HANDLERS = """
import asyncio, gc, os, threading, time
from airflow_provider_chasqui import Unrecoverable
from airflow_provider_chasqui.engine.handlers import Handlers

handlers = Handlers()
VERSION = 1

@handlers.on("sleep")
async def sleep(job, context):
    context.progress({"slept": 0})
    await asyncio.sleep(job.payload)
    return os.getpid()

@handlers.on("die")
async def die(job):
    raise Unrecoverable("no such address")

@handlers.on("block")
async def block(job):
    time.sleep(job.payload)

@handlers.on("collector")
async def collector(job):
    return [gc.get_threshold()[0], gc.get_freeze_count()]

@handlers.on()
def plain(job):
    return [VERSION, job.payload]

def factory():
    return handlers
"""


class Worker:
    """A `chasqui worker` with its endpoint, and what it logs."""

    def __init__(self, server: Server, folder: Path, *args: str, **env: str):
        self._log = folder / "worker.log"
        self._folder = folder
        self.seen: list[int] = []
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "worker", *args, "--metrics-port", "0", "--metrics-host", "127.0.0.1"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(server, **env),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def port(self) -> int:
        def said() -> re.Match[str] | None:
            assert self.process.poll() is None, self.log
            return re.search(r"at port (\d+)", self.log)

        return int(wait_for(said)[1])

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def health(self, path: str = "/healthz") -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.ask(path)[1])
        self.seen += [each["pid"] for each in facts["processes"] if each["pid"]]
        return facts

    def pids(self) -> list[int]:
        return [each["pid"] for each in self.health()["processes"]]

    def ready(self) -> Worker:
        wait_for(lambda: self.ask("/readyz")[0] == 200)
        self.health()
        return self

    def metric(self, name: str, /, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        total = 0.0
        for family in text_string_to_metric_families(self.ask("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    total += sample.value
        return total

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for pid in set(self.seen):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether a process of ours runs under this id; one that waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z" and "chasqui" in command


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers of the handlers above, in a folder of their own."""
    (tmp_path / "my_jobs.py").write_text(HANDLERS)
    started: list[Worker] = []

    def start(server: Server, *args: str, **env: str) -> Worker:
        dialect = ["--dialect", server.dialect]
        chosen = args if ":" in args[0] else ("my_jobs:handlers", *args)
        worker = Worker(server, tmp_path, *chosen, *dialect, **env)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()
