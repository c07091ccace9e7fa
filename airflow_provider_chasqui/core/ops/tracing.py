"""The trace that a job or a batch belongs to: a key beside them, so that the jobs stay as they are.

A side key outlives retries, delays and replays, and no other program has to carry it on.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_chasqui.core.batch import place_of
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Op, command

LIFE_S = 7 * 24 * 3600


def trace_key(keys: Keys, job_id: str) -> str:
    """Where the trace of a job stands; all jobs of a batch share one."""
    place = place_of(job_id)
    return keys.batch_trace(place.batch) if place else keys.trace(job_id)


def leave(key: str, traceparent: str) -> Op[bool]:
    """Leave a trace, unless an earlier try has left one."""
    return command("SET", key, traceparent, "NX", "EX", LIFE_S, parse=bool)


def left(key: str) -> Op[str | None]:
    """Return the trace that was left."""
    return command("GET", key, parse=_text)


def _text(reply: Any) -> str | None:
    return None if reply is None else bytes(reply).decode("ascii", "replace")
