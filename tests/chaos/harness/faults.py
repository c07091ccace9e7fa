"""The faults of the harness: signals, server settings, and the network between."""

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

from tests.chaos.harness.history import FaultEvent, job_id_of, read_runs
from tests.chaos.harness.plan import Fault
from tests.support.proxy import Cut, TcpProxy, no_cut

if TYPE_CHECKING:
    from tests.chaos.harness.environment import Environment

HOUR_MS = 3_600_000
AHEAD_MS = 2_000


class Faults:
    """Injects one fault after the other and records when each began and ended."""

    def __init__(self, environment: Environment):
        self._environment = environment
        self._timers: list[threading.Timer] = []
        self.events: list[FaultEvent] = []

    def inject(self, fault: Fault) -> None:
        """Inject a fault. All but `stop_worker` have ended when this returns."""
        began = time.monotonic()
        if fault.kind in self._environment.hooks:
            self._environment.hooks[fault.kind]()
            return self._record(fault.kind, began)
        method: Callable[[Fault], tuple[int, ...] | None] = getattr(self, f"_{fault.kind}")
        pids = method(fault)
        # A timer resumes a stopped worker, and records the fault then.
        if fault.kind != "stop_worker":
            fatal = fault.kind in ("kill_worker", "kill_leader")
            if pids != ():
                self._record(fault.kind, began, pids or (), fatal)

    def wait(self) -> None:
        """Wait until every stopped worker was resumed."""
        for timer in self._timers:
            timer.join()

    def _record(
        self, kind: str, began: float, pids: tuple[int, ...] = (), fatal: bool = False
    ) -> None:
        self.events.append(FaultEvent(kind, began, time.monotonic(), pids, fatal))

    # -- workers ---------------------------------------------------------------------------------

    def _kill_worker(self, fault: Fault) -> tuple[int, ...]:
        pids = self._environment.worker_pids()
        return self._kill(pids[fault.choice % len(pids)]) if pids else ()

    def _kill_leader(self, fault: Fault) -> tuple[int, ...]:
        """Kill the leader of the promoters if its process is known, otherwise any worker."""
        pid = leader_pid(
            self._environment.client, self._environment.queue_name, self._environment.folder
        )
        if pid in self._environment.worker_pids():
            return self._kill(pid)
        return self._kill_worker(fault)

    def _kill(self, pid: int) -> tuple[int, ...]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return (pid,)

    def _stop_worker(self, fault: Fault) -> None:
        pids = self._environment.worker_pids()
        if not pids:
            return
        pid, began = pids[fault.choice % len(pids)], time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

        def resume() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            # Other workers may claim its entries until it renews its claims.
            self._record("stop_worker", began, (pid,))

        self._timers.append(threading.Timer(fault.hold_s, resume))
        self._timers[-1].start()

    def _kill_supervisor(self, fault: Fault) -> None:
        self._environment.replace_supervisor(fault.choice)

    # -- the network -----------------------------------------------------------------------------

    def _cut(self, fault: Fault) -> None:
        """End all open connections, and each new one after a random number of bytes."""
        rng = random.Random(fault.choice)
        proxy: TcpProxy = self._environment.proxy
        proxy.policy = lambda _: Cut(rng.choice(("up", "down")), rng.randrange(4000))
        proxy.disconnect_all()
        time.sleep(fault.hold_s)
        proxy.policy = no_cut
        proxy.disconnect_all()

    def _slow(self, fault: Fault) -> None:
        self._environment.proxy.delay = 0.01 + fault.choice / 50_000
        time.sleep(fault.hold_s)
        self._environment.proxy.delay = 0.0

    def _kill_clients(self, fault: Fault) -> None:
        self._environment.client.execute_command(
            "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
        )

    # -- the server ------------------------------------------------------------------------------

    def _kill_server(self, fault: Fault) -> None:
        self._environment.server.kill()
        time.sleep(fault.hold_s)
        self._environment.server.restart()

    def _stop_server(self, fault: Fault) -> None:
        self._environment.server.pause()
        time.sleep(fault.hold_s)
        self._environment.server.resume()

    def _pause(self, fault: Fault) -> None:
        mode = ("ALL", "WRITE")[fault.choice % 2]
        self._environment.client.execute_command("CLIENT", "PAUSE", int(fault.hold_s * 1000), mode)
        time.sleep(fault.hold_s)

    def _no_memory(self, fault: Fault) -> None:
        self._change_setting(fault, "maxmemory", "1", "0")

    def _no_replicas(self, fault: Fault) -> None:
        self._change_setting(fault, "min-replicas-to-write", "1", "0")

    def _change_setting(self, fault: Fault, name: str, bad: str, good: str) -> None:
        self._environment.client.config_set(name, bad)
        time.sleep(fault.hold_s)
        self._environment.client.config_set(name, good)

    def _read_only(self, fault: Fault) -> None:
        # A replica of a server that does not exist keeps its data and rejects writes.
        self._environment.client.execute_command("REPLICAOF", "127.0.0.1", "1")
        time.sleep(fault.hold_s)
        self._environment.client.execute_command("REPLICAOF", "NO", "ONE")

    def _flush_scripts(self, fault: Fault) -> None:
        self._environment.client.script_flush()

    # -- clocks ----------------------------------------------------------------------------------

    def _clock_back(self, fault: Fault) -> None:
        self._skew_clock(-HOUR_MS, fault.hold_s)

    def _clock_ahead(self, fault: Fault) -> None:
        # Not by an hour: delays that are computed with this clock would take that much longer.
        self._skew_clock(AHEAD_MS, fault.hold_s)

    def _skew_clock(self, ms: int, hold_s: float) -> None:
        self._environment.skew.set(ms)
        time.sleep(hold_s)
        self._environment.skew.set(0)


def leader_pid(client: Any, queue: str, folder: Any) -> int:
    """Return the process of the leading promoter, or 0 if it runs no job now.

    The process is found without the code under test: the leader's pending entries name its jobs,
    and the files of the handlers name the processes that run them.
    """
    tag = f"{{chasqui:{queue}}}"
    try:
        leader = client.get(f"{tag}:promoter:lock")
        pending = client.xpending_range(f"{tag}:stream", "default", "-", "+", 1000)
        entry_ids = [entry["message_id"] for entry in pending if entry["consumer"] == leader]
        for entry_id in entry_ids:
            entries = client.xrange(f"{tag}:stream", entry_id, entry_id)
            job_id = job_id_of(entries[0][1][b"d"]) if entries else None
            for run in reversed(read_runs(folder)):
                if run.job_id == job_id and run.end is None:
                    return run.pid
    except redis.RedisError:
        pass
    return 0
