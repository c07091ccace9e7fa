"""What goes wrong, done for real: signals, server settings, and the wire between."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis

from tests.chaos.harness.history import Struck, job_id_of, read_notes
from tests.chaos.harness.plan import Fault
from tests.support.proxy import Cut, Proxy

if TYPE_CHECKING:
    from tests.chaos.harness.environment import Stage

HOUR_MS = 3_600_000
AHEAD_MS = 2_000


class Faults:
    """Strikes one fault after the other and notes when each began and ended."""

    def __init__(self, stage: Stage):
        self._stage = stage
        self._timers: list[threading.Timer] = []
        self.struck: list[Struck] = []

    def strike(self, fault: Fault) -> None:
        began = time.monotonic()
        if fault.kind in self._stage.hooks:
            self._stage.hooks[fault.kind]()
            return self._note(fault.kind, began)
        method: Callable[[Fault], tuple[int, ...] | None] = getattr(self, f"_{fault.kind}")
        pids = method(fault)
        # A stopped one is woken by a timer, and noted then.
        if fault.kind != "stop_worker":
            fatal = fault.kind in ("kill_worker", "kill_leader")
            if pids != ():
                self._note(fault.kind, began, pids or (), fatal)

    def heal(self) -> None:
        """Wait for the timers; everything else ended with its fault."""
        for timer in self._timers:
            timer.join()

    def _note(
        self, kind: str, began: float, pids: tuple[int, ...] = (), fatal: bool = False
    ) -> None:
        self.struck.append(Struck(kind, began, time.monotonic(), pids, fatal))

    # -- workers ---------------------------------------------------------------------------------

    def _kill_worker(self, fault: Fault) -> tuple[int, ...]:
        pids = self._stage.worker_pids()
        return self._kill(pids[fault.choice % len(pids)]) if pids else ()

    def _kill_leader(self, fault: Fault) -> tuple[int, ...]:
        """The one that promotes, if something it runs tells who it is; else any."""
        pid = leader_pid(self._stage.client, self._stage.queue_name, self._stage.folder)
        if pid in self._stage.worker_pids():
            return self._kill(pid)
        return self._kill_worker(fault)

    def _kill(self, pid: int) -> tuple[int, ...]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return (pid,)

    def _stop_worker(self, fault: Fault) -> None:
        pids = self._stage.worker_pids()
        if not pids:
            return
        pid, began = pids[fault.choice % len(pids)], time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

        def wake() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            # What it held may be taken over until it has said that it is back.
            self._note("stop_worker", began, (pid,))

        self._timers.append(threading.Timer(fault.hold_s, wake))
        self._timers[-1].start()

    def _kill_supervisor(self, fault: Fault) -> None:
        self._stage.replace_supervisor(fault.choice)

    # -- the wire --------------------------------------------------------------------------------

    def _cut(self, fault: Fault) -> None:
        """Every connection that is open now ends; each new one ends after some byte."""
        dice = random.Random(fault.choice)
        proxy: Proxy = self._stage.proxy
        proxy.policy = lambda _: Cut(dice.choice(("up", "down")), dice.randrange(4000))
        proxy.cut_all()
        time.sleep(fault.hold_s)
        proxy.policy = lambda _: None
        proxy.cut_all()

    def _slow(self, fault: Fault) -> None:
        self._stage.proxy.delay = 0.01 + fault.choice / 50_000
        time.sleep(fault.hold_s)
        self._stage.proxy.delay = 0.0

    def _kill_clients(self, fault: Fault) -> None:
        self._stage.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    # -- the server ------------------------------------------------------------------------------

    def _kill_server(self, fault: Fault) -> None:
        self._stage.server.kill()
        time.sleep(fault.hold_s)
        self._stage.server.restart()

    def _stop_server(self, fault: Fault) -> None:
        self._stage.server.pause()
        time.sleep(fault.hold_s)
        self._stage.server.resume()

    def _pause(self, fault: Fault) -> None:
        mode = ("ALL", "WRITE")[fault.choice % 2]
        self._stage.client.execute_command("CLIENT", "PAUSE", int(fault.hold_s * 1000), mode)
        time.sleep(fault.hold_s)

    def _no_memory(self, fault: Fault) -> None:
        self._setting(fault, "maxmemory", "1", "0")

    def _no_replicas(self, fault: Fault) -> None:
        self._setting(fault, "min-replicas-to-write", "1", "0")

    def _setting(self, fault: Fault, name: str, bad: str, good: str) -> None:
        self._stage.client.config_set(name, bad)
        time.sleep(fault.hold_s)
        self._stage.client.config_set(name, good)

    def _read_only(self, fault: Fault) -> None:
        # A replica of nobody: it keeps its data and refuses writes.
        self._stage.client.execute_command("REPLICAOF", "127.0.0.1", "1")
        time.sleep(fault.hold_s)
        self._stage.client.execute_command("REPLICAOF", "NO", "ONE")

    def _flush_scripts(self, fault: Fault) -> None:
        self._stage.client.script_flush()

    # -- clocks ----------------------------------------------------------------------------------

    def _clock_back(self, fault: Fault) -> None:
        self._jump(-HOUR_MS, fault.hold_s)

    def _clock_ahead(self, fault: Fault) -> None:
        # Not by an hour: a delay that a wrong clock reckons is that wrong, and the test would wait.
        self._jump(AHEAD_MS, fault.hold_s)

    def _jump(self, ms: int, hold_s: float) -> None:
        self._stage.skew.set(ms)
        time.sleep(hold_s)
        self._stage.skew.set(0)


def leader_pid(client: Any, queue: str, folder: Any) -> int:
    """The process that leads the promoting, found from outside; 0 if it runs nothing now."""
    tag = f"{{chasqui:{queue}}}"
    try:
        holder = client.get(f"{tag}:promoter:lock")
        pending = client.xpending_range(f"{tag}:stream", "default", "-", "+", 1000)
        mine = [each["message_id"] for each in pending if each["consumer"] == holder]
        for entry_id in mine:
            found = client.xrange(f"{tag}:stream", entry_id, entry_id)
            job = job_id_of(found[0][1][b"d"]) if found else None
            for run in reversed(read_notes(folder)):
                if run.job_id == job and run.end is None:
                    return run.pid
    except redis.RedisError:
        pass
    return 0
