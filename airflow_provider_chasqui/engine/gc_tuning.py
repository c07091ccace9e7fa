"""Settings of Python's garbage collector for a process that only runs jobs."""

from __future__ import annotations

import gc

_GEN0_THRESHOLD, _OLD_GEN_THRESHOLD = 20_000, 10


def tune_gc() -> None:
    """Raise the thresholds of the garbage collector and freeze all objects loaded so far.

    Jobs leave few reference cycles, but with Python's defaults the collector runs often and
    traverses every loaded module again; see docs/performance.md. Call this after the imports, in a
    process that only runs jobs. Do not call it in a process with other work, such as Airflow's
    triggerer, because frozen objects are never freed. `chasqui worker` calls it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GEN0_THRESHOLD, _OLD_GEN_THRESHOLD, _OLD_GEN_THRESHOLD)
