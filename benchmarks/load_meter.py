"""How much of the machine others used while we measured."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def _busy_s() -> float:
    """CPU seconds of the whole machine since it started; time stolen by a host counts as used."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / _TICK


def _process_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _own_s(servers: list[int]) -> float:
    own = sum(_process_s(pid) for pid in servers)
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        own += usage.ru_utime + usage.ru_stime
    return own


class Gauge:
    """The cores that others kept busy between its making and `read`.

    Processes that we started count as ours once they have ended and were waited for; `servers` are
    those that go on running.
    """

    def __init__(self, *servers: int):
        self._servers = list(servers)
        self._began = time.monotonic()
        self._busy, self._own = _busy_s(), _own_s(self._servers)

    def read(self) -> float:
        took = max(1e-9, time.monotonic() - self._began)
        foreign = (_busy_s() - self._busy) - (_own_s(self._servers) - self._own)
        return max(0.0, foreign / took)
