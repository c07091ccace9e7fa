"""Fixtures that run the `chasqui` program, in this process or as a real one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.cli.main import run
from tests.conftest import Server
from tests.support.waiting import wait_until

COMMAND = [sys.executable, "-m", "airflow_provider_chasqui.cli"]
TIMEOUT_S = 60.0


def wait_for(condition: Callable[[], Any], seconds: float = TIMEOUT_S) -> Any:
    """Return the value of the condition once it is true."""
    return wait_until(condition, seconds)


def environment(server: Server, **changes: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("CHASQUI_")}
    root = str(Path(__file__).parents[2])
    return inherited | {"CHASQUI_URL": server.url, "PYTHONPATH": root} | changes


@dataclass(frozen=True)
class CliResult:
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
    """Runs `chasqui` as a subprocess."""

    server: Server
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *args: str, stdin: str = "") -> CliResult:
        completed = subprocess.run(
            [*COMMAND, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=environment(self.server, **self.env),
        )
        return CliResult(completed.returncode, completed.stdout, completed.stderr)


@pytest.fixture
def cli(
    server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CliResult]:
    """Run `chasqui` in this process, without the start-up time of an interpreter."""
    return make_cli(server, capfd, monkeypatch)


def make_cli(
    server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CliResult]:
    monkeypatch.setenv("CHASQUI_URL", server.url)
    monkeypatch.delenv("COLUMNS", raising=False)  # make and some shells export it

    def call(*args: str, dialect: bool = True) -> CliResult:
        capfd.readouterr()
        code = run([*args, *(["--dialect", server.dialect] if dialect else [])])
        return CliResult(code, *capfd.readouterr())

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

@handlers.on("raise")
def fail(job):
    raise ValueError(job.payload)

@handlers.on("environment")
def environment(job):
    return open("/proc/self/environ").read() + repr(os.environ)

@handlers.on()
def plain(job):
    return [VERSION, job.payload]

def factory():
    return handlers
"""


class Worker:
    """A `chasqui worker` process with its metrics server and its log."""

    def __init__(self, server: Server, folder: Path, *args: str, **env: str):
        self._log = folder / "worker.log"
        self._folder = folder
        self.seen_pids: list[int] = []
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
        def port_line() -> re.Match[str] | None:
            assert self.process.poll() is None, self.log
            return re.search(r"on port (\d+)", self.log)

        return int(wait_for(port_line)[1])

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def health(self, path: str = "/healthz") -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.get(path)[1])
        self.seen_pids += [process["pid"] for process in status["processes"] if process["pid"]]
        return status

    def pids(self) -> list[int]:
        return [process["pid"] for process in self.health()["processes"]]

    def ready(self) -> Worker:
        wait_for(lambda: self.get("/readyz")[0] == 200)
        self.health()
        return self

    def metric(self, name: str, /, **labels: str) -> float:
        """Return the sum of the samples of a metric that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        total = 0.0
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    total += sample.value
        return total

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = TIMEOUT_S) -> int:
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for pid in set(self.seen_pids):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Return whether a Chasqui process with this id is running and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z" and "chasqui" in command


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start workers with the handlers above, in a temporary directory."""
    (tmp_path / "my_jobs.py").write_text(HANDLERS)
    started: list[Worker] = []

    def start(server: Server, *args: str, **env: str) -> Worker:
        dialect = ["--dialect", server.dialect]
        arguments = ("my_jobs:handlers", *args) if args[0].startswith("-") else args
        worker = Worker(server, tmp_path, *arguments, *dialect, **env)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()
