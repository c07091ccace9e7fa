"""Base class of the triggers: fields are declared once, as those of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.hooks._stats import triggerer_stats


@dataclass(kw_only=True, eq=False, repr=False)
class DataclassTrigger(BaseTrigger):
    """A trigger whose dataclass fields are its serialized form. Fields contain JSON values only."""

    def __post_init__(self) -> None:
        BaseTrigger.__init__(self)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the constructor arguments, from which Airflow rebuilds it."""
        cls = type(self)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return f"{cls.__module__}.{cls.__qualname__}", values


def require_seconds(name: str, value: float, *, allow_zero: bool = False) -> None:
    """Check a number of seconds.

    :param name: the name of the argument, for the error message.
    :param value: the number.
    :param allow_zero: whether 0 is allowed; not by default.
    :raises InvalidArgument: if the number is too small.
    """
    if value < 0 or (value == 0 and not allow_zero):
        bound = "of at least 0" if allow_zero else "above 0"
        raise InvalidArgument(f"{name} must be a number of seconds {bound}, not {value!r}")


def build_event(payload: dict[str, Any], queue_name: str) -> TriggerEvent:
    """Return the event that ends a wait, and count it if it reports an error.

    :param payload: the payload of the event; the status `error` marks an error.
    :param queue_name: the queue under which the error is counted.
    """
    if payload.get("status") == "error":
        triggerer_stats.incr("trigger_errors", 1, queue_name)
    return TriggerEvent(payload)
