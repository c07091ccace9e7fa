"""What tasks and triggers tell Airflow's own statistics: `chasqui.*`, listed in docs/metrics.md."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

# A colon would end the name in the format of StatsD.
_INVALID_TAG_CHARS = re.compile(r"[^A-Za-z0-9_.-]")
_STATS_MODULE_BEFORE_3_2 = "airflow.stats"


class AirflowStats:
    """Tells one of Airflow's statistics; costs nothing worth counting where they are off.

    Airflow has two of them, each set up in other processes: one for tasks, one for its own parts,
    of which the triggerer runs our triggers.
    """

    def __init__(self, module: str):
        self._module = module

    def incr(self, name: str, value: int, queue_name: str) -> None:
        """Add to the counter `chasqui.<what>`."""
        if value:
            _load_stats(self._module).incr(f"chasqui.{name}", value, tags=_tags(queue_name))

    def record_wait(self, name: str, context: Context, queue_name: str) -> None:
        """Time `chasqui.<what>`: since this try of the task began, deferred or put off or not."""
        ti: Any = context["ti"]
        began = ti.start_date
        if getattr(ti.task, "reschedule", False):  # each look of such a sensor is a start
            began = ti.get_first_reschedule_date(context) or began
        if began is not None:
            took = datetime.now(UTC) - began
            _load_stats(self._module).timing(f"chasqui.{name}", took, tags=_tags(queue_name))


task_stats = AirflowStats("airflow.sdk.observability.stats")
triggerer_stats = AirflowStats("airflow.observability.stats")


def _tags(queue_name: str) -> dict[str, str]:
    return {"queue_name": _INVALID_TAG_CHARS.sub("_", queue_name)}


@cache
def _load_stats(module: str) -> Any:
    try:
        return import_module(module).Stats
    except ModuleNotFoundError:
        return import_module(_STATS_MODULE_BEFORE_3_2).Stats
