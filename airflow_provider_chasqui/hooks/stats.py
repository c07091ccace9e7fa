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
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9_.-]")
_BEFORE_3_2 = "airflow.stats"


class Teller:
    """Tells one of Airflow's statistics; costs nothing worth counting where they are off.

    Airflow has two of them, each set up in other processes: one for tasks, one for its own parts,
    of which the triggerer runs our triggers.
    """

    def __init__(self, home: str):
        self._home = home

    def count(self, what: str, number: int, queue_name: str) -> None:
        """Add to the counter `chasqui.<what>`."""
        if number:
            _stats(self._home).incr(f"chasqui.{what}", number, tags=_tags(queue_name))

    def waited(self, what: str, context: Context, queue_name: str) -> None:
        """Time `chasqui.<what>`: since this try of the task began, deferred or put off or not."""
        ti: Any = context["ti"]
        began = ti.start_date
        if getattr(ti.task, "reschedule", False):  # each look of such a sensor is a start
            began = ti.get_first_reschedule_date(context) or began
        if began is not None:
            took = datetime.now(UTC) - began
            _stats(self._home).timing(f"chasqui.{what}", took, tags=_tags(queue_name))


in_task = Teller("airflow.sdk.observability.stats")
in_triggerer = Teller("airflow.observability.stats")


def _tags(queue_name: str) -> dict[str, str]:
    return {"queue_name": _NOT_IN_A_TAG.sub("_", queue_name)}


@cache
def _stats(home: str) -> Any:
    try:
        return import_module(home).Stats
    except ModuleNotFoundError:
        return import_module(_BEFORE_3_2).Stats
