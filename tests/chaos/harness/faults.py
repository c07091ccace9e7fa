"""The faults of the harness: signals, server settings, and the network between."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis

from tests.chaos.harness.history import FaultEvent
from tests.chaos.harness.plan import Fault
from tests.chaos.harness.recorder import job_id_of, read_runs
from tests.support.proxy import Cut, TcpProxy, no_cut

if TYPE_CHECKING:
    from tests.chaos.harness.environment import Environment, ProducerProcess, Supervisor

HOUR_MS = 3_600_000
AHEAD_MS = 2_000
# The number of connections that `max_clients` leaves, one of which is the connection of the tests.
FEW_CLIENTS = 5
BUSY_SCRIPT = "local began = os.clock() while os.clock() - began < tonumber(ARGV[1]) do end"


@dataclass
class Begun:
    """A fault that has begun.

    :param end: ends the fault; None if it has ended.
    :param pids: returns the processes that it hits now; None if it hits all of them.
    :param in_background: whether other faults may begin before it ends.
    """

    end: Callable[[], None] | None = None
    pids: Callable[[], Iterable[int]] | None = None
    in_background: bool = False
    fatal: bool = False
    pending: frozenset[str] | None = None


class Faults:
    """Injects one fault after the other and records when each began and ended."""

    def __init__(self, environment: Environment):
        self._environment = environment
        self._timers: list[threading.Timer] = []
        self.events: list[FaultEvent] = []

    def inject(self, fault: Fault) -> None:
        """Inject a fault. It has ended when this returns, unless it continues in the background."""
        at = time.monotonic()
        if fault.kind in self._environment.hooks:
            self._environment.hooks[fault.kind]()
            self.events.append(FaultEvent(fault.kind, at, time.monotonic()))
            return
        method: Callable[[Fault], Begun | None] = getattr(self, f"_{fault.kind}")
        begun = method(fault)
        if begun is None:  # there is no process that it could hit
            return
        hit = set(begun.pids()) if begun.pids else set()

        def finish() -> None:
            if begun.end is not None:
                begun.end()
            pids = hit | set(begun.pids()) if begun.pids else set()
            if pids or not begun.pids:
                event = FaultEvent(
                    fault.kind,
                    at,
                    time.monotonic(),
                    tuple(sorted(pids)),
                    begun.fatal,
                    begun.pending,
                )
                self.events.append(event)

        if begun.end is None:
            finish()
        elif begun.in_background:
            self._timers.append(threading.Timer(fault.hold_s, finish))
            self._timers[-1].start()
        else:
            time.sleep(fault.hold_s)
            finish()

    def wait(self) -> None:
        """Wait until every fault has ended."""
        for timer in self._timers:
            timer.join()

    # -- processes -------------------------------------------------------------------------------

    def _kill_worker(self, fault: Fault) -> Begun | None:
        pids = self._environment.worker_pids()
        return self._kill(fault, pids[fault.choice % len(pids)]) if pids else None

    def _kill_leader(self, fault: Fault) -> Begun | None:
        """Kill the leader of the promoters if its process is known, otherwise any worker."""
        pid = leader_pid(
            self._environment.client, self._environment.queue_name, self._environment.folder
        )
        if pid in self._environment.worker_pids():
            return self._kill(fault, pid)
        return self._kill_worker(fault)

    def _kill(self, fault: Fault, pid: int) -> Begun:
        """Kill a process, in three of four cases after recording which jobs are not acked."""
        pending = None
        with suppress(ProcessLookupError):
            if fault.choice % 4:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.05)  # let the server process what the worker has sent
                pending = self._environment.pending_jobs()
            os.kill(pid, signal.SIGKILL)
        return Begun(pids=lambda: (pid,), fatal=True, pending=pending)

    def _stop_worker(self, fault: Fault) -> Begun | None:
        pids = self._environment.worker_pids()
        return self._suspend(pids[fault.choice % len(pids)]) if pids else None

    def _stop_supervisor(self, fault: Fault) -> Begun:
        targets = self._environment.targets
        return self._suspend(targets[fault.choice % len(targets)].process.pid)

    def _stop_producer(self, fault: Fault) -> Begun:
        producers = self._environment.producers
        return self._suspend(producers[fault.choice % len(producers)].process.pid)

    def _suspend(self, pid: int) -> Begun:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

        def resume() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        return Begun(resume, lambda: (pid,), in_background=True)

    def _kill_supervisor(self, fault: Fault) -> Begun:
        pids = self._environment.replace_supervisor(fault.choice)
        return Begun(pids=lambda: pids)

    def _kill_producer(self, fault: Fault) -> Begun | None:
        pids = self._environment.replace_producer(fault.choice)
        return Begun(pids=lambda: pids, fatal=True) if pids else None

    # -- the network -----------------------------------------------------------------------------

    def _cut(self, fault: Fault) -> Begun:
        """End all open connections, and each new one after a random number of bytes."""
        rng = random.Random(fault.choice)

        def begin(proxy: TcpProxy) -> None:
            proxy.policy = lambda _: Cut(rng.choice(("up", "down")), rng.randrange(4000))
            proxy.disconnect_all()

        def end(proxy: TcpProxy) -> None:
            proxy.policy = no_cut
            proxy.disconnect_all()

        return self._on_links(fault, begin, end)

    def _slow(self, fault: Fault) -> Begun:
        def begin(proxy: TcpProxy) -> None:
            proxy.delay = 0.01 + fault.choice / 50_000

        def end(proxy: TcpProxy) -> None:
            proxy.delay = 0.0

        return self._on_links(fault, begin, end)

    def _hold(self, fault: Fault) -> Begun:
        """Deliver no data in either direction, and all of it afterwards, as TCP does."""

        def begin(proxy: TcpProxy) -> None:
            proxy.hold_requests()
            proxy.hold_replies()

        def end(proxy: TcpProxy) -> None:
            proxy.release_requests()
            proxy.release_replies()

        return self._on_links(fault, begin, end)

    def _hold_requests(self, fault: Fault) -> Begun:
        return self._on_links(fault, TcpProxy.hold_requests, TcpProxy.release_requests)

    def _hold_replies(self, fault: Fault) -> Begun:
        return self._on_links(fault, TcpProxy.hold_replies, TcpProxy.release_replies)

    def _half_open(self, fault: Fault) -> Begun:
        """Let the open connections transport nothing any more, without ending them."""
        return self._on_links(fault, TcpProxy.silence_all, lambda _: None)

    def _on_links(
        self,
        fault: Fault,
        begin: Callable[[TcpProxy], None],
        end: Callable[[TcpProxy], None],
    ) -> Begun:
        """Begin a fault on the links of one process, or of all."""
        owners: list[Supervisor | ProducerProcess]
        owners = [*self._environment.targets, *self._environment.producers]
        one = fault.hits_one_link
        if one:
            owner = owners[fault.choice // 3 % len(owners)]
            proxies = [owner.proxy]
        else:
            proxies = self._environment.proxies

        def pids() -> Iterable[int]:
            if owner in self._environment.producers:
                return (owner.process.pid,)
            return (
                pid
                for supervisor in self._environment.supervisors
                if supervisor.proxy is owner.proxy
                for pid in supervisor.children()
            )

        for proxy in proxies:
            begin(proxy)

        def end_all() -> None:
            for proxy in proxies:
                end(proxy)

        return Begun(end_all, pids if one else None, in_background=one)

    def _kill_clients(self, fault: Fault) -> Begun:
        self._environment.client.execute_command(
            "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
        )
        return Begun()

    # -- the server ------------------------------------------------------------------------------

    def _kill_server(self, fault: Fault) -> Begun:
        self._environment.server.kill()
        return Begun(self._environment.server.restart)

    def _stop_server(self, fault: Fault) -> Begun:
        self._environment.server.pause()
        return Begun(self._environment.server.resume)

    def _pause(self, fault: Fault) -> Begun:
        mode = ("ALL", "WRITE")[fault.choice % 2]
        milliseconds = max(1, int(fault.hold_s * 1000))
        self._environment.client.execute_command("CLIENT", "PAUSE", milliseconds, mode)
        return Begun(lambda: None)

    def _busy_script(self, fault: Fault) -> Begun:
        """Run a script that the server replies BUSY for."""
        client = self._environment.client
        client.config_set("busy-reply-threshold", "50")
        client.eval(BUSY_SCRIPT, 0, min(fault.hold_s, 2.0))
        client.config_set("busy-reply-threshold", "5000")
        return Begun()

    def _max_clients(self, fault: Fault) -> Begun:
        """End all connections, and refuse all but a few new ones."""
        self._environment.client.config_set("maxclients", FEW_CLIENTS)
        self._kill_clients(fault)
        return Begun(lambda: self._environment.client.config_set("maxclients", 10_000))

    def _no_memory(self, fault: Fault) -> Begun:
        return self._change_setting("maxmemory", "1", "0")

    def _no_replicas(self, fault: Fault) -> Begun:
        return self._change_setting("min-replicas-to-write", "1", "0")

    def _change_setting(self, name: str, bad: str, good: str) -> Begun:
        self._environment.client.config_set(name, bad)
        return Begun(lambda: self._environment.client.config_set(name, good))

    def _read_only(self, fault: Fault) -> Begun:
        # A replica of a server that does not exist keeps its data and rejects writes.
        client = self._environment.client
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        return Begun(lambda: client.execute_command("REPLICAOF", "NO", "ONE"))

    def _flush_scripts(self, fault: Fault) -> Begun:
        self._environment.client.script_flush()
        return Begun()

    # -- clocks ----------------------------------------------------------------------------------

    def _clock_back(self, fault: Fault) -> Begun:
        return self._skew_clock(-HOUR_MS)

    def _clock_ahead(self, fault: Fault) -> Begun:
        # Not by an hour: delays that are computed with this clock would take that much longer.
        return self._skew_clock(AHEAD_MS)

    def _skew_clock(self, ms: int) -> Begun:
        self._environment.skew.set(ms)
        return Begun(lambda: self._environment.skew.set(0))


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
        entries = [
            entry for id in entry_ids[:3] for entry in client.xrange(f"{tag}:stream", id, id)
        ]
    except redis.RedisError:
        return 0
    job_ids = {job_id_of(fields[b"d"]) for _, fields in entries}
    active = (run for run in read_runs(folder) if run.end is None) if job_ids else ()
    return next((run.pid for run in active if run.job_id in job_ids), 0)
