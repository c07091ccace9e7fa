"""The environment of a scenario: a server, a proxy, workers and a producer."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from airflow_provider_chasqui.core.config import QueueConfig
from tests.chaos.harness.checker import CheckResult, check_history
from tests.chaos.harness.faults import Faults
from tests.chaos.harness.history import History
from tests.chaos.harness.plan import CLAIM_S, CLIENT_TIMEOUT_S, Scenario
from tests.chaos.harness.producer import ProducerPlan
from tests.chaos.harness.recorder import (
    job_id_of,
    read_batches,
    read_calls,
    read_runs,
    read_server,
    read_stalls,
)
from tests.support.proxy import TcpProxy
from tests.support.servers import RedisServer, die_with_parent
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
SUPERVISORS = 3
TIMEOUT_S = 150.0
URL_OPTIONS = f"timeout={CLIENT_TIMEOUT_S:g}&connect_timeout={CLIENT_TIMEOUT_S:g}&retries=60"


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


@dataclass
class Supervisor:
    """A `chasqui worker` with one worker process, and its own link to the server."""

    process: subprocess.Popen[bytes]
    proxy: TcpProxy
    queue_name: str
    concurrency: int

    def children(self) -> list[int]:
        """Return its worker processes, including those that are starting."""
        pid = self.process.pid
        with suppress(OSError):
            return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return []


@dataclass
class ProducerProcess:
    """A producer process, and its own link to the server."""

    plan: ProducerPlan
    proxy: TcpProxy
    process: subprocess.Popen[bytes]


class Environment:
    """A server with real worker and producer processes. `close` ends all of them.

    :param server: the server that holds the queue.
    :param dialect: the dialect of the producers and the workers.
    :param folder: an empty folder for logs and the files of the processes.
    :param url: the URL for producers and workers. Default: each through its own proxy to `server`.
    :param mutations: let the engine in the workers have deliberate errors (mutations.py).
    """

    def __init__(
        self,
        server: RedisServer,
        dialect: str,
        folder: Path,
        url: str = "",
        mutations: bool = False,
    ):
        self.server = server
        self.dialect = dialect
        self.folder = folder
        self.queue_name = "chaos"
        self.ordered_queue_name = "chaos-ordered"
        self._url = url
        self._mutations = mutations
        self.skew = ClockSkew(folder)
        self.client: Any = None
        self.use_server(server)
        # Additional kinds of faults, which a test defines.
        self.hooks: dict[str, Callable[[], None]] = {}
        self._log = (folder / "workers.log").open("ab")
        self.supervisors: list[Supervisor] = []
        self.producers: list[ProducerProcess] = []

    def use_server(self, server: RedisServer, **options: Any) -> None:
        """Set the server that holds the queue now, for example after a failover."""
        if self.client is not None:
            self.client.close()
        self.server = server
        retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.2), 20)
        self.client = redis.Redis.from_url(
            server.url, protocol=2, socket_timeout=20, retry=retry, **options
        )

    # -- workers ---------------------------------------------------------------------------------

    def start_workers(self, count: int = SUPERVISORS, ordered: bool = False) -> None:
        """Start supervisors with one worker process each; return when all are ready.

        :param count: the number of supervisors of the queue.
        :param ordered: start one supervisor for the ordered queue as well.
        """
        for _ in range(count):
            self.supervisors.append(self._start_supervisor(self.queue_name, 20))
        if ordered:
            self.supervisors.append(self._start_supervisor(self.ordered_queue_name, 1))
        expected = len(self.supervisors)
        message = f"{expected} workers are ready according to {self.folder / 'workers.log'}"
        wait_until(lambda: self._ready_count() == expected, TIMEOUT_S, message)

    def _ready_count(self) -> int:
        return (self.folder / "workers.log").read_bytes().count(b" is ready (pid ")

    @property
    def targets(self) -> list[Supervisor]:
        """The supervisors that faults of single processes hit: those of the unordered queue."""
        return [s for s in self.supervisors if s.queue_name == self.queue_name]

    def children(self) -> list[int]:
        """Return the worker processes of the supervisors, including those that are starting."""
        return sorted(pid for supervisor in self.supervisors for pid in supervisor.children())

    def worker_pids(self) -> list[int]:
        """Return the worker processes of the unordered queue that have loaded the handlers."""
        pids = sorted(pid for supervisor in self.targets for pid in supervisor.children())
        return [pid for pid in pids if (self.folder / f"{pid}.runs").exists()]

    def replace_supervisor(self, choice: int) -> tuple[int, ...]:
        """Kill a supervisor and start another one. The worker process of the first one exits.

        :return: the worker processes that exit.
        """
        victim = self.targets[choice % len(self.targets)]
        pids = tuple(victim.children())
        victim.process.kill()
        victim.process.wait(20)
        index = self.supervisors.index(victim)
        self.supervisors[index] = self._start_supervisor(
            victim.queue_name, victim.concurrency, victim.proxy
        )
        return pids

    def _start_supervisor(
        self, queue_name: str, concurrency: int, proxy: TcpProxy | None = None
    ) -> Supervisor:
        proxy = proxy or TcpProxy(self.server.url)
        env = {key: value for key, value in os.environ.items() if not key.startswith("CHASQUI_")}
        env |= {"CHASQUI_URL": self._url_through(proxy), "CHAOS_FOLDER": str(self.folder)}
        env |= {"PYTHONPATH": str(ROOT), "CHAOS_MUTATIONS": "1" if self._mutations else ""}
        command = [sys.executable, "-m", "airflow_provider_chasqui.cli", "worker"]
        command += ["tests.chaos.harness.jobs:handlers", "-q", queue_name, "-c", str(concurrency)]
        command += ["--claim-after", f"{int(CLAIM_S)}s", "--shutdown-timeout", "10s"]
        command += ["--dialect", self.dialect, "--store-results"]
        return Supervisor(self._popen(command, env), proxy, queue_name, concurrency)

    # -- producers -------------------------------------------------------------------------------

    def start_producers(self, scenario: Scenario, config: QueueConfig) -> None:
        """Start the producers of a scenario. The first one also adds the repeatable job."""
        began = time.monotonic() + 1.0  # the time that the interpreters need to start
        for number in range(scenario.producers):
            proxy = TcpProxy(self.server.url)
            plan = ProducerPlan(
                self.folder,
                self._url_through(proxy),
                self.dialect,
                self.queue_name,
                self.ordered_queue_name,
                config,
                began,
                number,
                tuple(spec for spec in scenario.jobs if spec.producer == number),
                tuple(spec for spec in scenario.batch if spec.producer == number),
                scenario.ticks if number == 0 else 0,
            )
            self.producers.append(ProducerProcess(plan, proxy, self._start_producer(plan)))

    def _start_producer(self, plan: ProducerPlan) -> subprocess.Popen[bytes]:
        file = self.folder / f"producer-{plan.number}.plan"
        file.write_bytes(pickle.dumps(plan))
        command = [sys.executable, "-m", "tests.chaos.harness.producer", str(file)]
        return self._popen(command, {**os.environ, "PYTHONPATH": str(ROOT)})

    def replace_producer(self, choice: int) -> tuple[int, ...]:
        """Kill a producer that is not finished and start it again; return its process.

        Not while it adds the repeatable job, because a second call would set the job back.
        """
        running = [
            producer
            for producer in self.producers
            if producer.process.poll() is None
            and (not producer.plan.ticks or b'"end", "repeat"' in _content(producer.plan.calls))
        ]
        if not running:
            return ()
        victim = running[choice % len(running)]
        pid = victim.process.pid
        victim.process.kill()
        victim.process.wait(20)
        victim.process = self._start_producer(victim.plan)
        return (pid,)

    def wait_for_producers(self) -> None:
        """Wait until every producer has sent its jobs."""
        for producer in self.producers:
            assert producer.process.wait(TIMEOUT_S) == 0, self.log()

    # -- the end ---------------------------------------------------------------------------------

    def _url_through(self, proxy: TcpProxy) -> str:
        return self._url or f"{proxy.url}?{URL_OPTIONS}"

    def _popen(self, command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
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

    @property
    def proxies(self) -> list[TcpProxy]:
        """The links of all processes to the server."""
        return [process.proxy for process in (*self.supervisors, *self.producers)]

    def pending_jobs(self) -> frozenset[str] | None:
        """Return the jobs that are delivered and not acked; None if the server does not reply."""
        stream = f"{{chasqui:{self.queue_name}}}:stream"
        try:
            with redis.Redis.from_url(self.server.url, protocol=2, socket_timeout=0.5) as client:
                pending = client.xpending_range(stream, "default", "-", "+", 100_000)
                if not pending:
                    return frozenset()
                ids = {entry["message_id"] for entry in pending}
                entries = client.xrange(stream, min(ids, key=_order), max(ids, key=_order))
        except redis.RedisError:
            return None
        return frozenset(job_id_of(fields[b"d"]) for entry, fields in entries if entry in ids)

    def is_drained(self) -> bool:
        """Return whether no job is waiting, running or delayed and no repeat remains."""
        return all(self._is_empty(f"{{chasqui:{name}}}") for name in self.queue_names)

    @property
    def queue_names(self) -> list[str]:
        """The queues that have workers."""
        return sorted({supervisor.queue_name for supervisor in self.supervisors})

    def _is_empty(self, tag: str) -> bool:
        try:
            jobs = self.client.xlen(f"{tag}:stream") + self.client.zcard(f"{tag}:delayed")
            return not jobs and not self.client.zcard(f"{tag}:repeat")
        except redis.RedisError:
            return False

    def stop_workers(self) -> None:
        """Stop all supervisors with SIGTERM; every one must exit with 0."""
        for supervisor in self.supervisors:
            supervisor.process.send_signal(signal.SIGTERM)
        for supervisor in self.supervisors:
            assert supervisor.process.wait(60) == 0, self.log()

    def log(self) -> str:
        """Return the end of the log of all processes."""
        return (self.folder / "workers.log").read_text()[-4000:]

    def close(self) -> None:
        for pid in self.children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (*self.supervisors, *self.producers):
            if process.process.poll() is None:
                process.process.kill()
            process.process.wait(20)
            process.proxy.__exit__(None, None, None)
        self.client.close()
        self.skew.close()
        self._log.close()

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def _order(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)


def run_scenario(
    environment: Environment,
    scenario: Scenario,
    config: QueueConfig | None = None,
    drain_s: float = TIMEOUT_S,
) -> tuple[History, CheckResult]:
    """Run a scenario, wait until the queue is empty, and check the history.

    :param config: the configuration of the producers' queues.
    :param drain_s: how long the queue may take to become empty after the last fault.
    """
    environment.start_workers(ordered=any(spec.ordered for spec in scenario.jobs))
    environment.start_producers(scenario, config or QueueConfig())
    faults = Faults(environment)
    try:
        for fault in scenario.faults:
            time.sleep(fault.after_s)
            faults.inject(fault)
        faults.wait()
        environment.wait_for_producers()
        try:
            wait_until(environment.is_drained, drain_s, "the queue is empty")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{environment.log()}") from None
        environment.stop_workers()
    finally:
        faults.wait()
    history = read_history(environment, scenario, faults)
    return history, check_history(history)


def read_history(environment: Environment, scenario: Scenario, faults: Faults) -> History:
    """Return the history of a scenario that has ended."""
    history = History(scenario, runs=read_runs(environment.folder))
    history.faults = faults.events + read_stalls(environment.folder)
    read_calls(environment.folder, history)
    for queue_name in environment.queue_names:
        read_server(environment.client, queue_name, history)
    read_batches(environment.client, environment.queue_name, history)
    return history
