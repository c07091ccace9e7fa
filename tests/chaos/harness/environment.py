"""A server, a proxy, workers and a producer on one stage; `play` lets a scenario happen there."""

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
    History,
    Struck,
    Verdict,
    judge,
    read_notes,
    read_server,
)
from tests.chaos.harness.plan import CLAIM_S, TICK_MS, Scenario, Wish
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer, die_with_parent

ROOT = Path(__file__).parents[3]
SUPERVISORS = 3
PATIENCE_S = 150.0
# A machine that let nobody run for so long may have let a worker's entries go.
STALL_S = 1.0
HOUR = timedelta(hours=1)
SOON = Backoff.fixed(timedelta(milliseconds=50))


class Skew:
    """How far the clocks of producer and workers are off; see jobs.py."""

    def __init__(self, folder: Path):
        self._file = (folder / "skew").open("w+b", buffering=0)
        self.set(0)

    def set(self, ms: int) -> None:
        self.ms = ms
        os.pwrite(self._file.fileno(), ms.to_bytes(8, sys.byteorder, signed=True), 0)

    def close(self) -> None:
        self._file.close()


class Stage:
    """Everything that takes part, real processes all of it; `close` ends them."""

    def __init__(self, server: RedisServer, dialect: str, folder: Path, url: str = ""):
        self.server = server
        self.dialect = dialect
        self.folder = folder
        self.queue_name = "chaos"
        self.proxy = Proxy(server.url)
        self.url = url or f"{self.proxy.url}/0?timeout=3&connect_timeout=3&retries=60"
        self.skew = Skew(folder)
        self.client: Any = None
        self.look_at(server)
        # Faults that only this stage knows, by their kind.
        self.hooks: dict[str, Callable[[], None]] = {}
        self._log = (folder / "workers.log").open("ab")
        self._supervisors: list[subprocess.Popen[bytes]] = []

    def look_at(self, server: RedisServer, **options: Any) -> None:
        """From now on this is the server that holds the queue."""
        if self.client is not None:
            self.client.close()
        self.server = server
        self.client = redis.Redis.from_url(
            server.url, protocol=2, socket_timeout=20,
            retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.2), 20), **options,
        )  # fmt: skip

    def start_workers(self, count: int = SUPERVISORS) -> None:
        for _ in range(count):
            self._supervisors.append(self._start())
        said = b"takes jobs"
        wait_for(lambda: self._said(said) == count, "the workers do not start")

    def _said(self, what: bytes) -> int:
        return (self.folder / "workers.log").read_bytes().count(what)

    def children(self) -> list[int]:
        """The processes that the supervisors have now, also those that are still starting."""
        found: list[int] = []
        for each in self._supervisors:
            with suppress(OSError):
                text = Path(f"/proc/{each.pid}/task/{each.pid}/children").read_text()
                found += map(int, text.split())
        return sorted(found)

    def worker_pids(self) -> list[int]:
        """Those of them that have loaded the handlers."""
        return [pid for pid in self.children() if (self.folder / f"{pid}.notes").exists()]

    def replace_supervisor(self, choice: int) -> None:
        """Kill one and start another; its process drains and ends by itself."""
        place = choice % len(self._supervisors)
        victim = self._supervisors[place]
        victim.kill()
        victim.wait(20)
        self._supervisors[place] = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        mine = {key: value for key, value in os.environ.items() if not key.startswith("CHASQUI_")}
        mine |= {"CHASQUI_URL": self.url, "CHAOS_FOLDER": str(self.folder), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "airflow_provider_chasqui.cli", "worker"]
        command += ["tests.chaos.harness.jobs:handlers", "-q", self.queue_name, "-c", "20"]
        command += ["--claim-after", f"{int(CLAIM_S)}s", "--shutdown-timeout", "10s"]
        command += ["--dialect", self.dialect]
        return subprocess.Popen(
            command, cwd=self.folder, env=mine, stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=self._log, start_new_session=True,
            preexec_fn=die_with_parent(),
        )  # fmt: skip

    def settled(self) -> bool:
        tag = f"{{chasqui:{self.queue_name}}}"
        try:
            left = self.client.xlen(f"{tag}:stream") + self.client.zcard(f"{tag}:delayed")
            return not left and not self.client.zcard(f"{tag}:repeat")
        except redis.RedisError:
            return False

    def stop_workers(self) -> None:
        for each in self._supervisors:
            each.send_signal(signal.SIGTERM)
        for each in self._supervisors:
            assert each.wait(60) == 0, self.log()

    def log(self) -> str:
        return (self.folder / "workers.log").read_text()[-4000:]

    def close(self) -> None:
        for pid in self.children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for each in self._supervisors:
            if each.poll() is None:
                each.kill()
            each.wait(20)
        self.client.close()
        self.proxy.__exit__(None, None, None)
        self.skew.close()
        self._log.close()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_for(what: Callable[[], Any], complaint: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


class Producer(threading.Thread):
    """Sends what the scenario wishes, and notes what it was told."""

    def __init__(self, stage: Stage, scenario: Scenario, **options: Any):
        super().__init__(name="producer", daemon=True)
        self._stage = stage
        self._scenario = scenario
        self._options = options
        self.adds: list[Add] = []
        self.batch_sent = False
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Queue(
                self._stage.queue_name, self._stage.url, dialect=self._stage.dialect,
                clock=self._clock, **self._options,
            ) as queue:  # fmt: skip
                self._send(queue)
        except BaseException as error:
            self.failure = error

    def _clock(self) -> int:
        return time.time_ns() // 1_000_000 + self._stage.skew.ms

    def _send(self, queue: Queue) -> None:
        tick = {"work_ms": 0}
        _insist(lambda: queue.repeat(tick, Every(TICK_MS), job_name="tick", key="t",
                                     limit=self._scenario.ticks, misfire=SKIP))  # fmt: skip
        began = time.monotonic()
        half = len(self._scenario.jobs) // 2
        for number, wish in enumerate(self._scenario.jobs):
            time.sleep(max(0.0, began + wish.at_s - time.monotonic()))
            if number == half:
                self._send_batch(queue)
            for _ in range(2 if wish.unique else 1):
                self.adds.append(self._add(queue, wish))

    def _send_batch(self, queue: Queue) -> None:
        payloads = [wish.payload for wish in self._scenario.batch]
        name = f"b{self._scenario.seed}"
        _insist(lambda: queue.add_batch(payloads, batch_id=name, retry=RetryPolicy(25, SOON)))
        self.batch_sent = True

    def _add(self, queue: Queue, wish: Wish) -> Add:
        skewed, began, outcome, fresh = self._stage.skew.ms != 0, time.monotonic(), "acked", False
        try:
            fresh = queue.add(
                wish.payload, job_id=wish.id, job_name="job", dedup_ttl=HOUR if wish.unique else None,
                delay=timedelta(milliseconds=wish.delay_ms) if wish.delay_ms else None,
                retry=RetryPolicy(wish.max_attempts, SOON),
            ).created  # fmt: skip
        except QueueFull:
            outcome = "refused"
        except ChasquiError:
            outcome = "unknown"
        skewed = skewed or self._stage.skew.ms != 0
        return Add(wish.id, began, time.monotonic(), outcome, fresh, skewed)


def _insist(call: Callable[[], Any]) -> None:
    """Repeat a call that may be repeated until it is through, as a user would."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except ChasquiError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Pulse(threading.Thread):
    """Notes when the machine let nobody run: that is a fault that nobody ordered."""

    def __init__(self) -> None:
        super().__init__(name="pulse", daemon=True)
        self.done = threading.Event()
        self.struck: list[Struck] = []

    def run(self) -> None:
        last = time.monotonic()
        while not self.done.wait(0.05):
            now = time.monotonic()
            if now - last > STALL_S:
                self.struck.append(Struck("stall", last - CLAIM_S, now))
            last = now


def play(stage: Stage, scenario: Scenario, **options: Any) -> tuple[History, Verdict]:
    """Let it happen, wait until the queue is empty, and judge."""
    stage.start_workers()
    producer, pulse, faults = Producer(stage, scenario, **options), Pulse(), Faults(stage)
    pulse.start()
    producer.start()
    try:
        for fault in scenario.faults:
            time.sleep(fault.after_s)
            faults.strike(fault)
        faults.heal()
        producer.join(PATIENCE_S)
        assert not producer.is_alive(), "the producer hangs"
        if producer.failure:
            raise producer.failure
        wait_for(stage.settled, "the queue does not empty: " + stage.log())
        stage.stop_workers()
    finally:
        faults.heal()
        pulse.done.set()
        pulse.join()
    history = History(
        scenario, producer.adds, read_notes(stage.folder), faults.struck + pulse.struck,
        batch_sent=producer.batch_sent,
    )  # fmt: skip
    read_server(stage.client, stage.queue_name, history, f"b{scenario.seed}")
    return history, judge(history)
