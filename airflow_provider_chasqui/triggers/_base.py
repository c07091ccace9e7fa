"""Triggers whose fields are declared once: constructor, attributes and what is stored agree."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_chasqui.hooks._stats import triggerer_stats


@dataclass(kw_only=True, eq=False, repr=False)
class DataclassTrigger(BaseTrigger):
    """Base of our triggers. Fields hold JSON values only, so that a rebuilt trigger is the same."""

    def __post_init__(self) -> None:
        BaseTrigger.__init__(self)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kind = type(self)
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return f"{kind.__module__}.{kind.__qualname__}", values


def build_event(payload: dict[str, Any], queue_name: str) -> TriggerEvent:
    """The event that ends a wait. One that tells of an error is counted as such."""
    if payload.get("status") == "error":
        triggerer_stats.incr("trigger_errors", 1, queue_name)
    return TriggerEvent(payload)
