"""The supervisor: starts, restarts and stops the processes of a worker."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_chasqui.core.errors import MissingDependency
from airflow_provider_chasqui.engine.http_server import HealthStatus, MetricsServer
from airflow_provider_chasqui.engine.metrics import Metrics, merge_by_queue
from airflow_provider_chasqui.engine.prometheus import PrometheusCollector
from airflow_provider_chasqui.supervisor import logging_setup
from airflow_provider_chasqui.supervisor.child_main import SHUTDOWN_GRACE_S
from airflow_provider_chasqui.supervisor.config import WorkerConfig
from airflow_provider_chasqui.supervisor.worker_process import STUCK_AFTER_S, WorkerProcess

log = logging.getLogger("chasqui")

_INITIAL_BACKOFF_S, _MAX_BACKOFF_S = 0.5, 30.0
# After this time the failure count of a process starts again at zero.
_STABLE_AFTER_S = 60.0
_EXIT_USAGE, _EXIT_REJECTED = 2, 3


class Supervisor:
    """The parent process of a worker. It runs no jobs and imports no handlers.

    The first SIGTERM or SIGINT lets running jobs finish, a second one kills the processes. SIGHUP
    restarts each process after its running jobs have finished; if the supervisor has a terminal,
    SIGHUP means that the terminal was closed and shuts down.

    :param config: the configuration of the processes.
    :param process_count: the number of processes.
    :param http_address: the address of the metrics server, or None for none.
    :param reload_dir: restart when a Python file below this directory changes, or None.
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
            collector = PrometheusCollector(self._collect_metrics)
            host, port = http_address
            self._metrics_server = MetricsServer(
                collector,
                self._health_status,
                host=host,
                port=port,
                extra_collectors=(_ProcessCollector(self._processes),),
            )

    async def run(self) -> int:
        """Supervise the processes until a stop is requested, and return the exit code."""
        config = self._config
        logging_setup.configure(config.log_level, config.log_json, 0)
        file_changes = self._file_watcher()
        loop = asyncio.get_running_loop()
        for handled in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(handled, self._on_signal, handled)
        if self._metrics_server is not None:
            self._metrics_server.start()
            log.info(
                "supervisor: serving /metrics, /healthz and /readyz on port %d",
                self._metrics_server.port,
            )
        log.info(
            "supervisor: consuming %s at %s with %d processes of concurrency %d, handlers %s",
            ", ".join(config.queue_names) or "the queues of the declared jobs",
            config.target.display_name,
            len(self._processes),
            config.consumer_config.concurrency,
            config.handlers_path,
        )
        tasks = [asyncio.create_task(self._supervise(process)) for process in self._processes]
        reload_task = (
            asyncio.create_task(self._restart_on_change(file_changes))
            if file_changes is not None
            else None
        )
        try:
            await self._stopping.wait()
            await self._shut_down(tasks)
        finally:
            for task in (*tasks, *([reload_task] if reload_task else [])):
                task.cancel()
            if self._metrics_server is not None:
                self._metrics_server.close()
        if self._kill_signal is not None:
            return 128 + self._kill_signal
        if self._exit_code == 0:
            log.info("supervisor: all processes have stopped")
        else:
            log.error("supervisor: stopped with errors (exit code %d)", self._exit_code)
        return self._exit_code

    async def _supervise(self, process: WorkerProcess) -> None:
        """Run one process, and start it again when it exits."""
        failures = 0
        while not self._stopping.is_set():
            exit_code = await asyncio.create_task(process.run())
            if self._stopping.is_set():
                # A process that was killed before its signal handler was set had no jobs.
                clean = exit_code == 0 or (exit_code == -signal.SIGTERM and not process.was_ready)
                if not clean and not self._exit_code:
                    self._exit_code = 1
                return
            if process.restarting:
                continue
            if exit_code == _EXIT_USAGE and self._reload_dir is not None:
                log.error("supervisor: process %d waits for a file to change", process.number)
                await self._wait_any(self._restart_requested.wait(), self._stopping.wait())
                continue
            if exit_code in (_EXIT_USAGE, _EXIT_REJECTED) and not process.ever_ready:
                self._exit_code = _EXIT_USAGE if exit_code == _EXIT_USAGE else 1
                self._stopping.set()
                return
            ran_s = time.monotonic() - process.started_at
            failures = 0 if ran_s > _STABLE_AFTER_S else failures + 1
            backoff_s = min(_MAX_BACKOFF_S, _INITIAL_BACKOFF_S * 2 ** max(0, failures - 1))
            log.error(
                "supervisor: process %d %s; restarting in %g s",
                process.number,
                _describe_exit(exit_code),
                backoff_s,
            )
            await self._wait_any(
                asyncio.sleep(backoff_s), self._restart_requested.wait(), self._stopping.wait()
            )

    async def _wait_any(self, *coroutines: Any) -> None:
        tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _shut_down(self, tasks: list[asyncio.Task[None]]) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        timeout_s = self._shutdown_timeout_s + SHUTDOWN_GRACE_S
        _, running = await asyncio.wait(tasks, timeout=timeout_s)
        if running:
            self._exit_code = 1
            log.error(
                "supervisor: killing %d processes that did not exit within %g s",
                len(running),
                timeout_s,
            )
            self._kill_all()
            await asyncio.wait(tasks, timeout=5)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                self._exit_code = 1
                log.error("supervisor: supervising a process failed: %s", error)

    def _kill_all(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)

    def _on_signal(self, signal_number: signal.Signals) -> None:
        if signal_number == signal.SIGHUP and not _has_terminal():
            self._restart_all("SIGHUP")
        elif self._stopping.is_set():
            log.warning("supervisor: second %s, killing all processes", signal_number.name)
            self._kill_signal = signal_number
            self._kill_all()
        else:
            log.info(
                "supervisor: %s, waiting up to %g s for running jobs",
                signal_number.name,
                self._shutdown_timeout_s,
            )
            self._stopping.set()

    @property
    def _shutdown_timeout_s(self) -> float:
        return self._config.consumer_config.shutdown_timeout.total_seconds()

    def _restart_all(self, reason: str) -> None:
        """Restart every process after its running jobs have finished."""
        log.info("supervisor: %s, restarting the processes", reason)
        for process in self._processes:
            process.restarting = True
            process.send_signal(signal.SIGTERM)
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
                self._restart_all(f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} changed")

    def _collect_metrics(self) -> list[Metrics]:
        return merge_by_queue(
            snapshot for process in self._processes for snapshot in process.metric_snapshots()
        )

    def _health_status(self) -> HealthStatus:
        statuses = [process.status() for process in self._processes]
        ages = [
            queue["last_read_age_s"] for status in statuses for queue in status["queues"].values()
        ]
        known_ages = [age for age in ages if age is not None]
        shutting_down = self._stopping.is_set()
        starting = time.monotonic() - self._started_at < STUCK_AFTER_S
        any_running = any(process.pid is not None for process in self._processes)
        alive = not any(process.stuck for process in self._processes) and (any_running or starting)
        ready = not shutting_down and all(process.ready for process in self._processes)
        detail = {
            "shutting_down": shutting_down,
            "last_read_age_s": max(known_ages)
            if known_ages and len(known_ages) == len(ages)
            else None,
            "processes": statuses,
        }
        return HealthStatus(alive, ready, detail)


class _ProcessCollector:
    """Prometheus metrics of the worker processes."""

    def __init__(self, processes: list[WorkerProcess]):
        self._processes = processes

    def collect(self) -> Any:
        """Yield the metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        running = sum(process.pid is not None for process in self._processes)
        yield GaugeMetricFamily("chasqui_worker_processes", "Running processes", running)
        ready = sum(process.ready for process in self._processes)
        yield GaugeMetricFamily(
            "chasqui_worker_processes_ready", "Processes that read all queues", ready
        )
        restarts = sum(max(0, process.start_count - 1) for process in self._processes)
        yield CounterMetricFamily("chasqui_worker_restarts", "Restarts of processes", restarts)


def _describe_exit(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def _has_terminal() -> bool:
    try:
        with open("/dev/tty"):
            return True
    except OSError:
        return False
