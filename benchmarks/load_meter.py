"""Measurement of the CPU load of other processes during a run."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def _busy_s() -> float:
    """Return the CPU seconds of the machine since its start, including steal time."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
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


class LoadMeter:
    """Measures how many cores other processes use, from its creation to `read`.

    Child processes are excluded after they were waited for.

    :param servers: the ids of running processes to exclude.
    """

    def __init__(self, *servers: int):
        self._servers = list(servers)
        self._started = time.monotonic()
        self._busy, self._own = _busy_s(), _own_s(self._servers)

    def read(self) -> float:
        """Return the average number of cores used by other processes."""
        seconds = max(1e-9, time.monotonic() - self._started)
        other_s = (_busy_s() - self._busy) - (_own_s(self._servers) - self._own)
        return max(0.0, other_s / seconds)
