"""The Spark data source "chasqui": `df.write.format("chasqui")`, `spark.read.format("chasqui")`.

This package, core, store, queue.py and lua/ travel to the executors in one zip. What they need
beside it is asked for here, where the answer can still be a sentence.
"""

from __future__ import annotations

from importlib.util import find_spec

from airflow_provider_chasqui.core.errors import MissingDependency

REQUIRED_MODULES = ("croniter", "msgpack", "numpy", "pyarrow", "redis")


def missing_modules() -> list[str]:
    """Return what is not installed here but must be."""
    return [name for name in REQUIRED_MODULES if find_spec(name) is None]


if _missing := missing_modules():
    raise MissingDependency(
        f"the Chasqui data source needs {', '.join(_missing)} in the Python of the Spark driver and "
        f"of every executor; install it there: pip install {' '.join(_missing)}"
    )
