"""Airflow metrics of tasks and triggers: the names `chasqui.*` listed in docs/metrics.md."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

# A colon ends the metric name in the StatsD format.
_INVALID_TAG_CHARS = re.compile(r"[^A-Za-z0-9_.-]")
_STATS_MODULE_BEFORE_3_2 = "airflow.stats"


class AirflowStats:
    """Client of Airflow's metrics. Does nothing if metrics are disabled.

    Airflow has one metrics module for task processes and another one for its own components. The
    triggerer, which runs the triggers, is such a component.

    :param module: the name of Airflow's metrics module.
    """

    def __init__(self, module: str):
        self._module = module

    def incr(self, name: str, value: int, queue_name: str) -> None:
        """Increment the counter `chasqui.<name>`.

        :param name: the name of the counter, without the prefix.
        :param value: the increment. 0 emits nothing.
        :param queue_name: the queue, emitted as a tag.
        """
        if value:
            _load_stats(self._module).incr(f"chasqui.{name}", value, tags=_tags(queue_name))

    def record_wait(self, name: str, context: Context, queue_name: str) -> None:
        """Record the time since this try of the task started in the timer `chasqui.<name>`.

        The time includes the time in which the task was deferred or rescheduled.

        :param name: the name of the timer, without the prefix.
        :param context: the task's context.
        :param queue_name: the queue, emitted as a tag.
        """
        ti: Any = context["ti"]
        started_at = ti.start_date
        if getattr(ti.task, "reschedule", False):  # every poke of such a sensor is a new start
            started_at = ti.get_first_reschedule_date(context) or started_at
        if started_at is not None:
            duration = datetime.now(UTC) - started_at
            _load_stats(self._module).timing(f"chasqui.{name}", duration, tags=_tags(queue_name))


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
