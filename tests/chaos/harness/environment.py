"""The environment of a scenario: a server, a proxy, workers and a producer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis

from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import ChasquiError, QueueFull
from airflow_provider_chasqui.core.repeat import SKIP
from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy
from airflow_provider_chasqui.queue import Queue
from tests.chaos.harness.faults import Faults
from tests.chaos.harness.history import (
    Add,
    CheckResult,
    FaultEvent,
    History,
    check_history,
    read_runs,
    read_server,
)
from tests.chaos.harness.plan import CLAIM_S, TICK_MS, JobSpec, Scenario
from tests.support.proxy import TcpProxy
from tests.support.servers import RedisServer, die_with_parent
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
SUPERVISORS = 3
TIMEOUT_S = 150.0
# If no process ran for this long, other workers may have claimed the entries of a worker.
STALL_S = 1.0
HOUR = timedelta(hours=1)
SHORT_BACKOFF = Backoff.fixed(timedelta(milliseconds=50))


class ClockSkew:
    """The offset of the clocks of the producer and the workers, in a file that jobs.py maps."""

    def __init__(self, folder: Path):
        self._file = (folder / "skew").open("w+b", buffering=0)
        self.set(0)

    def set(self, ms: int) -> None:
        self.ms = ms
        os.pwrite(self._file.fileno(), ms.to_bytes(8, sys.byteorder, signed=True), 0)

    def close(self) -> None:
        self._file.close()


class Environment:
    """A server with real worker processes. `close` ends all of them.

    :param server: the server that holds the queue.
    :param dialect: the dialect of the producer and the workers.
    :param folder: an empty folder for logs and the files of the handlers.
    :param url: the URL for producer and workers. Default: through a proxy to `server`.
    """

    def __init__(self, server: RedisServer, dialect: str, folder: Path, url: str = ""):
        self.server = server
        self.dialect = dialect
        self.folder = folder
        self.queue_name = "chaos"
        self.proxy = TcpProxy(server.url)
        self.url = url or f"{self.proxy.url}?timeout=3&connect_timeout=3&retries=60"
        self.skew = ClockSkew(folder)
        self.client: Any = None
        self.use_server(server)
        # Additional kinds of faults, which a test defines.
        self.hooks: dict[str, Callable[[], None]] = {}
        self._log = (folder / "workers.log").open("ab")
        self._supervisors: list[subprocess.Popen[bytes]] = []

    def use_server(self, server: RedisServer, **options: Any) -> None:
        """Set the server that holds the queue now, for example after a failover."""
        if self.client is not None:
            self.client.close()
        self.server = server
        retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.2), 20)
        self.client = redis.Redis.from_url(
            server.url, protocol=2, socket_timeout=20, retry=retry, **options
        )

    def start_workers(self, count: int = SUPERVISORS) -> None:
        """Start supervisors with one worker process each; return when all are ready."""
        for _ in range(count):
            self._supervisors.append(self._start())
        message = f"{count} workers are ready according to {self.folder / 'workers.log'}"
        wait_until(lambda: self._ready_count() == count, TIMEOUT_S, message)

    def _ready_count(self) -> int:
        return (self.folder / "workers.log").read_bytes().count(b" is ready (pid ")

    def children(self) -> list[int]:
        """Return the worker processes of the supervisors, including those that are starting."""
        pids: list[int] = []
        for supervisor in self._supervisors:
            with suppress(OSError):
                text = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text()
                pids += map(int, text.split())
        return sorted(pids)

    def worker_pids(self) -> list[int]:
        """Return the worker processes that have loaded the handlers."""
        return [pid for pid in self.children() if (self.folder / f"{pid}.runs").exists()]

    def replace_supervisor(self, choice: int) -> None:
        """Kill a supervisor and start another one. The worker process of the first one exits."""
        index = choice % len(self._supervisors)
        victim = self._supervisors[index]
        victim.kill()
        victim.wait(20)
        self._supervisors[index] = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("CHASQUI_")}
        env |= {"CHASQUI_URL": self.url, "CHAOS_FOLDER": str(self.folder), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "airflow_provider_chasqui.cli", "worker"]
        command += ["tests.chaos.harness.jobs:handlers", "-q", self.queue_name, "-c", "20"]
        command += ["--claim-after", f"{int(CLAIM_S)}s", "--shutdown-timeout", "10s"]
        command += ["--dialect", self.dialect]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )

    def is_drained(self) -> bool:
        """Return whether no job is waiting, running or delayed and no repeat remains."""
        tag = f"{{chasqui:{self.queue_name}}}"
        try:
            jobs = self.client.xlen(f"{tag}:stream") + self.client.zcard(f"{tag}:delayed")
            return not jobs and not self.client.zcard(f"{tag}:repeat")
        except redis.RedisError:
            return False

    def stop_workers(self) -> None:
        """Stop all supervisors with SIGTERM; every one must exit with 0."""
        for supervisor in self._supervisors:
            supervisor.send_signal(signal.SIGTERM)
        for supervisor in self._supervisors:
            assert supervisor.wait(60) == 0, self.log()

    def log(self) -> str:
        """Return the end of the log of all workers."""
        return (self.folder / "workers.log").read_text()[-4000:]

    def close(self) -> None:
        for pid in self.children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for supervisor in self._supervisors:
            if supervisor.poll() is None:
                supervisor.kill()
            supervisor.wait(20)
        self.client.close()
        self.proxy.__exit__(None, None, None)
        self.skew.close()
        self._log.close()

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Producer(threading.Thread):
    """Thread that adds the jobs of a scenario and records the outcome of each call."""

    def __init__(self, environment: Environment, scenario: Scenario, **options: Any):
        super().__init__(name="producer", daemon=True)
        self._environment = environment
        self._scenario = scenario
        self._options = options
        self.adds: list[Add] = []
        self.batch_sent = False
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Queue(
                self._environment.queue_name,
                self._environment.url,
                dialect=self._environment.dialect,
                clock=self._clock,
                **self._options,
            ) as queue:
                self._send(queue)
        except BaseException as error:
            self.failure = error

    def _clock(self) -> int:
        return time.time_ns() // 1_000_000 + self._environment.skew.ms

    def _send(self, queue: Queue) -> None:
        _retry_until_accepted(
            lambda: queue.repeat(
                {"work_ms": 0},
                Every(TICK_MS),
                job_name="tick",
                key="t",
                limit=self._scenario.ticks,
                misfire=SKIP,
            )
        )
        began = time.monotonic()
        half = len(self._scenario.jobs) // 2
        for number, spec in enumerate(self._scenario.jobs):
            time.sleep(max(0.0, began + spec.at_s - time.monotonic()))
            if number == half:
                self._send_batch(queue)
            for _ in range(2 if spec.unique else 1):
                self.adds.append(self._add(queue, spec))

    def _send_batch(self, queue: Queue) -> None:
        payloads = [spec.payload for spec in self._scenario.batch]
        batch_id = f"b{self._scenario.seed}"
        retry = RetryPolicy(25, SHORT_BACKOFF)
        _retry_until_accepted(lambda: queue.add_batch(payloads, batch_id=batch_id, retry=retry))
        self.batch_sent = True

    def _add(self, queue: Queue, spec: JobSpec) -> Add:
        skewed, began = self._environment.skew.ms != 0, time.monotonic()
        outcome, created = "acked", False
        try:
            created = queue.add(
                spec.payload,
                job_id=spec.id,
                job_name="job",
                dedup_ttl=HOUR if spec.unique else None,
                delay=timedelta(milliseconds=spec.delay_ms) if spec.delay_ms else None,
                retry=RetryPolicy(spec.max_attempts, SHORT_BACKOFF),
            ).created
        except QueueFull:
            outcome = "refused"
        except ChasquiError:
            outcome = "unknown"
        skewed = skewed or self._environment.skew.ms != 0
        return Add(spec.id, began, time.monotonic(), outcome, created, skewed)


def _retry_until_accepted(call: Callable[[], Any]) -> None:
    """Repeat an idempotent call until it succeeds."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            call()
            return
        except ChasquiError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class StallDetector(threading.Thread):
    """Thread that records when the machine scheduled no process. That counts as a fault."""

    def __init__(self) -> None:
        super().__init__(name="stall-detector", daemon=True)
        self.done = threading.Event()
        self.events: list[FaultEvent] = []

    def run(self) -> None:
        last = time.monotonic()
        while not self.done.wait(0.05):
            now = time.monotonic()
            if now - last > STALL_S:
                self.events.append(FaultEvent("stall", last - CLAIM_S, now))
            last = now


def run_scenario(
    environment: Environment, scenario: Scenario, **options: Any
) -> tuple[History, CheckResult]:
    """Run a scenario, wait until the queue is empty, and check the history.

    :param options: additional options of the producer's queue.
    """
    environment.start_workers()
    producer = Producer(environment, scenario, **options)
    stalls, faults = StallDetector(), Faults(environment)
    stalls.start()
    producer.start()
    try:
        for fault in scenario.faults:
            time.sleep(fault.after_s)
            faults.inject(fault)
        faults.wait()
        producer.join(TIMEOUT_S)
        assert not producer.is_alive(), f"the producer did not finish within {TIMEOUT_S:g} s"
        if producer.failure:
            raise producer.failure
        try:
            wait_until(environment.is_drained, TIMEOUT_S, "the queue is empty")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{environment.log()}") from None
        environment.stop_workers()
    finally:
        faults.wait()
        stalls.done.set()
        stalls.join()
    history = History(
        scenario,
        producer.adds,
        read_runs(environment.folder),
        faults.events + stalls.events,
        batch_sent=producer.batch_sent,
    )
    read_server(environment.client, environment.queue_name, history, f"b{scenario.seed}")
    return history, check_history(history)
