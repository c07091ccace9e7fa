"""Keeps the processes of a worker: starts them, starts them again, ends them in good order."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_chasqui.cli import logs
from airflow_provider_chasqui.cli.child import GRACE_S
from airflow_provider_chasqui.cli.slot import STUCK_S, Slot
from airflow_provider_chasqui.cli.worker import WorkPlan
from airflow_provider_chasqui.core.errors import MissingSoftware
from airflow_provider_chasqui.engine.exporter import Exporter
from airflow_provider_chasqui.engine.metrics import Metrics, add_up
from airflow_provider_chasqui.engine.serve import Endpoint, Standing

log = logging.getLogger("chasqui")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
# A process that ran this long did not die of the same thing as the one before it.
_RAN_WELL_S = 60.0
_USAGE, _REFUSED = 2, 3


class Supervisor:
    """The parent: it runs no jobs and loads no handlers, so nothing of theirs can hang it.

    The first SIGTERM or SIGINT drains, a second one kills. SIGHUP starts all processes anew, each
    after it has drained; with a terminal it means that the terminal is gone, and drains.
    """

    def __init__(
        self, plan: WorkPlan, processes: int, address: tuple[str, int] | None, watched: Path | None
    ):
        self._plan = plan
        self._slots = [Slot(number, plan) for number in range(1, processes + 1)]
        self._watched = watched
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._exit_code = 0
        self._killed_by: signal.Signals | None = None
        self._began_at = time.monotonic()
        self._endpoint: Endpoint | None = None
        if address is not None:
            exporter = Exporter(self._metrics)
            host, port = address
            self._endpoint = Endpoint(
                exporter, self._standing, host=host, port=port, extra=(_Processes(self._slots),)
            )

    async def run(self) -> int:
        """Keep the processes until told to stop; returns the exit code."""
        plan = self._plan
        logs.set_up(plan.log_level, plan.log_json, 0)
        watch = self._watcher()
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(each, self._signalled, each)
        if self._endpoint is not None:
            self._endpoint.start()
            log.info("serving /metrics, /healthz and /readyz at port %d", self._endpoint.port)
        log.info(
            "working on %s at %s: %d x %d jobs at once, handlers %s",
            ", ".join(plan.queues), plan.target.where, len(self._slots),
            plan.config.concurrency, plan.handlers,
        )  # fmt: skip
        tending = [asyncio.create_task(self._tend(slot)) for slot in self._slots]
        watching = asyncio.create_task(self._reload(watch)) if watch is not None else None
        try:
            await self._stopping.wait()
            await self._wind_down(tending)
        finally:
            for task in (*tending, *([watching] if watching else [])):
                task.cancel()
            if self._endpoint is not None:
                self._endpoint.close()
        if self._killed_by is not None:
            return 128 + self._killed_by
        log.info("drained" if self._exit_code == 0 else "ended with trouble")
        return self._exit_code

    async def _tend(self, slot: Slot) -> None:
        """Keep one slot filled."""
        failures = 0
        while not self._stopping.is_set():
            living = asyncio.create_task(slot.live())
            code = await living
            if self._stopping.is_set():
                # Killed before it could say that it handles SIGTERM: it held nothing.
                fine = code == 0 or (code == -signal.SIGTERM and not slot.was_ready)
                if not fine and not self._exit_code:
                    self._exit_code = 1
                return
            if slot.rolling:
                continue
            if code == _USAGE and self._watched is not None:
                log.error("process %d: waiting for a file to change", slot.number)
                await self._either(self._changed.wait(), self._stopping.wait())
                continue
            if code in (_USAGE, _REFUSED) and not slot.ever_ready:
                self._exit_code = _USAGE if code == _USAGE else 1
                self._stopping.set()
                return
            ran_s = time.monotonic() - slot.started_at
            failures = 0 if ran_s > _RAN_WELL_S else failures + 1
            wait = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** max(0, failures - 1))
            log.error("process %d %s; starting again in %g s", slot.number, _how(code), wait)
            await self._either(asyncio.sleep(wait), self._changed.wait(), self._stopping.wait())

    async def _either(self, *coroutines: Any) -> None:
        tasks = [asyncio.ensure_future(each) for each in coroutines]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _wind_down(self, tending: list[asyncio.Task[None]]) -> None:
        for slot in self._slots:
            slot.signal(signal.SIGTERM)
        most = self._plan.config.drain.total_seconds() + GRACE_S
        _, left = await asyncio.wait(tending, timeout=most)
        if left:
            self._exit_code = 1
            log.error("%d processes did not end within %g s and are killed", len(left), most)
            self._kill()
            await asyncio.wait(tending, timeout=5)
        for task in tending:
            if task.done() and not task.cancelled() and (error := task.exception()):
                self._exit_code = 1
                log.error("a process could not be kept: %s", error)

    def _kill(self) -> None:
        for slot in self._slots:
            slot.signal(signal.SIGKILL)

    def _signalled(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP and not _has_terminal():
            self._roll("SIGHUP")
        elif self._stopping.is_set():
            log.warning("%s again: ending at once", number.name)
            self._killed_by = number
            self._kill()
        else:
            log.info("%s: draining for up to %g s", number.name, self._drain_s)
            self._stopping.set()

    @property
    def _drain_s(self) -> float:
        return self._plan.config.drain.total_seconds()

    def _roll(self, why: str) -> None:
        """Let every process drain and a new one take its place."""
        log.info("%s: starting the processes anew, each when it has drained", why)
        for slot in self._slots:
            slot.rolling = True
            slot.signal(signal.SIGTERM)
        self._changed.set()
        self._changed.clear()

    def _watcher(self) -> Any:
        if self._watched is None:
            return None
        try:
            from watchfiles import PythonFilter, awatch
        except ImportError as cause:
            raise MissingSoftware("--reload needs watchfiles: pip install watchfiles") from cause
        return awatch(self._watched, watch_filter=PythonFilter(), stop_event=self._stopping)

    async def _reload(self, changes: Any) -> None:
        with suppress(RuntimeError):
            async for changed in changes:
                names = sorted({Path(path).name for _, path in changed})
                self._roll(f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} changed")

    def _metrics(self) -> list[Metrics]:
        return add_up(each for slot in self._slots for each in slot.snapshots())

    def _standing(self) -> Standing:
        facts = [slot.facts() for slot in self._slots]
        ages = [queue["last_read_age_s"] for slot in facts for queue in slot["queues"].values()]
        known = [age for age in ages if age is not None]
        draining = self._stopping.is_set()
        young = time.monotonic() - self._began_at < STUCK_S
        anyone = any(slot.pid is not None for slot in self._slots)
        alive = not any(slot.stuck for slot in self._slots) and (anyone or young)
        ready = not draining and all(slot.ready for slot in self._slots)
        detail = {
            "draining": draining,
            "last_read_age_s": max(known) if known and len(known) == len(ages) else None,
            "processes": facts,
        }
        return Standing(alive, ready, detail)


class _Processes:
    """A collector of what the supervisor itself knows."""

    def __init__(self, slots: list[Slot]):
        self._slots = slots

    def collect(self) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        up = sum(slot.pid is not None for slot in self._slots)
        yield GaugeMetricFamily("chasqui_worker_processes", "Processes that run", up)
        ready = sum(slot.ready for slot in self._slots)
        yield GaugeMetricFamily("chasqui_worker_processes_ready", "Processes that read", ready)
        again = sum(max(0, slot.starts - 1) for slot in self._slots)
        yield CounterMetricFamily("chasqui_worker_restarts", "Processes started again", again)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _has_terminal() -> bool:
    try:
        with open("/dev/tty"):
            return True
    except OSError:
        return False
