"""The Spark data source "chasqui": `df.write.format("chasqui")`, `spark.read.format("chasqui")`.

This package, core, redis_client, queue.py, clock.py and lua/ are sent to the executors in one zip.
Their dependencies are checked at import, so that a missing one is reported with instructions.
"""

from __future__ import annotations

from importlib.util import find_spec

from airflow_provider_chasqui.core.errors import MissingDependency

REQUIRED_MODULES = ("croniter", "msgpack", "numpy", "pyarrow", "redis")


def missing_modules() -> list[str]:
    """Return the required modules that are not installed in this Python."""
    return [name for name in REQUIRED_MODULES if find_spec(name) is None]


if _missing := missing_modules():
    raise MissingDependency(
        f"the Chasqui data source needs {', '.join(_missing)} in the Python of the Spark driver "
        f"and of every executor; install it there: pip install {' '.join(_missing)}"
    )
