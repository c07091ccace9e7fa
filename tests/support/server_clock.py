"""A server whose clock a test can move, as a wrong time source or a resumed machine does."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.servers import RedisServer

# Adds the milliseconds in a file to the wall clock of the process. The monotonic clock is the real
# one, as it is when the wall clock of a machine is set.
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *offset_ms;

__attribute__((constructor)) static void open_offset(void) {
    int file = open(getenv("CHASQUI_CLOCK_OFFSET"), O_RDONLY);
    void *page = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || page == MAP_FAILED) abort();
    offset_ms = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*original)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = original(clock, now);
    if (offset_ms && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset_ms / 1000;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""


class MovableClock:
    """The clock of one server.

    :param folder: an empty folder for the library and the offset.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler for the library that moves the clock of a server")
        source, library, offset = folder / "clock.c", folder / "clock.so", folder / "offset"
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        offset.write_bytes(struct.pack("q", 0))
        with offset.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)
        self._environment = {"LD_PRELOAD": str(library), "CHASQUI_CLOCK_OFFSET": str(offset)}

    def start_server(self, binary: Path) -> RedisServer:
        """Start a server that uses this clock."""
        return RedisServer.start(binary, environment=self._environment)

    def move(self, seconds: int) -> None:
        """Set the clock forward, or back if `seconds` is negative."""
        (before,) = struct.unpack("q", self._offset[:])
        self._offset[:] = struct.pack("q", before + seconds * 1000)
