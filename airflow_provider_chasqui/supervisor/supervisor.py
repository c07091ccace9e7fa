"""Keeps the processes of a worker: starts them, starts them again, ends them in good order."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_chasqui.cli import logging_setup
from airflow_provider_chasqui.cli.worker import WorkerConfig
from airflow_provider_chasqui.core.errors import MissingDependency
from airflow_provider_chasqui.engine.http_server import HealthStatus, MetricsServer
from airflow_provider_chasqui.engine.metrics import Metrics, merge_by_queue
from airflow_provider_chasqui.engine.prometheus import PrometheusCollector
from airflow_provider_chasqui.supervisor.child_main import SHUTDOWN_GRACE_S
from airflow_provider_chasqui.supervisor.worker_process import STUCK_AFTER_S, WorkerProcess

log = logging.getLogger("chasqui")

_INITIAL_BACKOFF_S, _MAX_BACKOFF_S = 0.5, 30.0
# A process that ran this long did not die of the same thing as the one before it.
_STABLE_AFTER_S = 60.0
_EXIT_USAGE, _EXIT_REFUSED = 2, 3


class Supervisor:
    """The parent: it runs no jobs and loads no handlers, so nothing of theirs can hang it.

    The first SIGTERM or SIGINT drains, a second one kills. SIGHUP starts all processes anew, each
    after it has drained; with a terminal it means that the terminal is gone, and drains.
    """

    def __init__(
        self,
        config: WorkerConfig,
        process_count: int,
        http_address: tuple[str, int] | None,
        reload_dir: Path | None,
    ):
        self._config = config
        self._processes = [WorkerProcess(number, config) for number in range(1, process_count + 1)]
        self._reload_dir = reload_dir
        self._stopping = asyncio.Event()
        self._restart_requested = asyncio.Event()
        self._exit_code = 0
        self._kill_signal: signal.Signals | None = None
        self._started_at = time.monotonic()
        self._metrics_server: MetricsServer | None = None
        if http_address is not None:
            exporter = PrometheusCollector(self._collect_metrics)
            host, port = http_address
            self._metrics_server = MetricsServer(
                exporter,
                self._health_status,
                host=host,
                port=port,
                extra_collectors=(_ProcessCollector(self._processes),),
            )

    async def run(self) -> int:
        """Keep the processes until told to stop; returns the exit code."""
        plan = self._config
        logging_setup.configure(plan.log_level, plan.log_json, 0)
        watch = self._file_watcher()
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(each, self._on_signal, each)
        if self._metrics_server is not None:
            self._metrics_server.start()
            log.info("serving /metrics, /healthz and /readyz at port %d", self._metrics_server.port)
        log.info(
            "working on %s at %s: %d x %d jobs at once, handlers %s",
            ", ".join(plan.queue_names), plan.target.display_name, len(self._processes),
            plan.consumer_config.concurrency, plan.handlers_path,
        )  # fmt: skip
        tending = [asyncio.create_task(self._supervise(slot)) for slot in self._processes]
        watching = (
            asyncio.create_task(self._restart_on_change(watch)) if watch is not None else None
        )
        try:
            await self._stopping.wait()
            await self._shut_down(tending)
        finally:
            for task in (*tending, *([watching] if watching else [])):
                task.cancel()
            if self._metrics_server is not None:
                self._metrics_server.close()
        if self._kill_signal is not None:
            return 128 + self._kill_signal
        log.info("drained" if self._exit_code == 0 else "ended with trouble")
        return self._exit_code

    async def _supervise(self, process: WorkerProcess) -> None:
        """Keep one slot filled."""
        failures = 0
        while not self._stopping.is_set():
            living = asyncio.create_task(process.run())
            code = await living
            if self._stopping.is_set():
                # Killed before it could say that it handles SIGTERM: it held nothing.
                fine = code == 0 or (code == -signal.SIGTERM and not process.was_ready)
                if not fine and not self._exit_code:
                    self._exit_code = 1
                return
            if process.restarting:
                continue
            if code == _EXIT_USAGE and self._reload_dir is not None:
                log.error("process %d: waiting for a file to change", process.number)
                await self._wait_any(self._restart_requested.wait(), self._stopping.wait())
                continue
            if code in (_EXIT_USAGE, _EXIT_REFUSED) and not process.ever_ready:
                self._exit_code = _EXIT_USAGE if code == _EXIT_USAGE else 1
                self._stopping.set()
                return
            ran_s = time.monotonic() - process.started_at
            failures = 0 if ran_s > _STABLE_AFTER_S else failures + 1
            wait = min(_MAX_BACKOFF_S, _INITIAL_BACKOFF_S * 2 ** max(0, failures - 1))
            log.error(
                "process %d %s; starting again in %g s", process.number, _describe_exit(code), wait
            )
            await self._wait_any(
                asyncio.sleep(wait), self._restart_requested.wait(), self._stopping.wait()
            )

    async def _wait_any(self, *coroutines: Any) -> None:
        tasks = [asyncio.ensure_future(each) for each in coroutines]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _shut_down(self, tasks: list[asyncio.Task[None]]) -> None:
        for slot in self._processes:
            slot.send_signal(signal.SIGTERM)
        most = self._config.consumer_config.shutdown_timeout.total_seconds() + SHUTDOWN_GRACE_S
        _, left = await asyncio.wait(tasks, timeout=most)
        if left:
            self._exit_code = 1
            log.error("%d processes did not end within %g s and are killed", len(left), most)
            self._kill_all()
            await asyncio.wait(tasks, timeout=5)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                self._exit_code = 1
                log.error("a process could not be kept: %s", error)

    def _kill_all(self) -> None:
        for slot in self._processes:
            slot.send_signal(signal.SIGKILL)

    def _on_signal(self, signal_number: signal.Signals) -> None:
        if signal_number == signal.SIGHUP and not _has_terminal():
            self._rolling_restart("SIGHUP")
        elif self._stopping.is_set():
            log.warning("%s again: ending at once", signal_number.name)
            self._kill_signal = signal_number
            self._kill_all()
        else:
            log.info("%s: draining for up to %g s", signal_number.name, self._shutdown_timeout_s)
            self._stopping.set()

    @property
    def _shutdown_timeout_s(self) -> float:
        return self._config.consumer_config.shutdown_timeout.total_seconds()

    def _rolling_restart(self, reason: str) -> None:
        """Let every process drain and a new one take its place."""
        log.info("%s: starting the processes anew, each when it has drained", reason)
        for slot in self._processes:
            slot.restarting = True
            slot.send_signal(signal.SIGTERM)
        self._restart_requested.set()
        self._restart_requested.clear()

    def _file_watcher(self) -> Any:
        if self._reload_dir is None:
            return None
        try:
            from watchfiles import PythonFilter, awatch
        except ImportError as cause:
            raise MissingDependency("--reload needs watchfiles: pip install watchfiles") from cause
        return awatch(self._reload_dir, watch_filter=PythonFilter(), stop_event=self._stopping)

    async def _restart_on_change(self, changes: Any) -> None:
        with suppress(RuntimeError):
            async for changed in changes:
                names = sorted({Path(path).name for _, path in changed})
                self._rolling_restart(
                    f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} changed"
                )

    def _collect_metrics(self) -> list[Metrics]:
        return merge_by_queue(each for slot in self._processes for each in slot.metric_snapshots())

    def _health_status(self) -> HealthStatus:
        facts = [slot.status() for slot in self._processes]
        ages = [queue["last_read_age_s"] for slot in facts for queue in slot["queues"].values()]
        known = [age for age in ages if age is not None]
        draining = self._stopping.is_set()
        young = time.monotonic() - self._started_at < STUCK_AFTER_S
        anyone = any(slot.pid is not None for slot in self._processes)
        alive = not any(slot.stuck for slot in self._processes) and (anyone or young)
        ready = not draining and all(slot.ready for slot in self._processes)
        detail = {
            "draining": draining,
            "last_read_age_s": max(known) if known and len(known) == len(ages) else None,
            "processes": facts,
        }
        return HealthStatus(alive, ready, detail)


class _ProcessCollector:
    """A collector of what the supervisor itself knows."""

    def __init__(self, processes: list[WorkerProcess]):
        self._processes = processes

    def collect(self) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        up = sum(slot.pid is not None for slot in self._processes)
        yield GaugeMetricFamily("chasqui_worker_processes", "Processes that run", up)
        ready = sum(slot.ready for slot in self._processes)
        yield GaugeMetricFamily("chasqui_worker_processes_ready", "Processes that read", ready)
        again = sum(max(0, slot.start_count - 1) for slot in self._processes)
        yield CounterMetricFamily("chasqui_worker_restarts", "Processes started again", again)


def _describe_exit(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def _has_terminal() -> bool:
    try:
        with open("/dev/tty"):
            return True
    except OSError:
        return False
