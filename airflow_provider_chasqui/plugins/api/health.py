"""How a server is: its version, dialect, memory and how long it takes to answer."""

from __future__ import annotations

import re
import time
from typing import Any

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.op import as_is, command
from airflow_provider_chasqui.plugins.api.errors import as_json
from airflow_provider_chasqui.plugins.api.reach import Line
from airflow_provider_chasqui.queue import AsyncQueue

_EVICTING = ("allkeys", "volatile")


async def health(line: Line) -> dict[str, Any]:
    """Return how the server behind a line is; never raises for a server that fails."""
    shown: dict[str, Any] = {"where": line.settings.target.where, "ok": True, "error": None}
    try:
        return {**shown, **await line.ask("page", _look)}
    except ChasquiError as error:
        return {**shown, "ok": False, "error": as_json(error)}


async def _look(queue: AsyncQueue) -> dict[str, Any]:
    dialect = await queue.dialect()
    began = time.perf_counter()
    await queue.drive.run(command("PING", parse=as_is))
    took_ms = (time.perf_counter() - began) * 1000
    try:
        raw = await queue.drive.run(command("INFO", parse=as_is))
    except ChasquiError:  # a managed server may hide it
        raw = b""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    policy = _field(text, "maxmemory_policy")
    warning = None
    if policy and policy.startswith(_EVICTING):
        warning = (
            f"maxmemory-policy is {policy}: jobs may be thrown away when memory is short; set it "
            "to noeviction"
        )
    return {
        "dialect": dialect,
        "version": _version(text),
        "latency_ms": round(took_ms, 2),
        "memory": int(_field(text, "used_memory") or 0) or None,
        "memory_max": int(_field(text, "maxmemory") or 0) or None,
        "clients": int(_field(text, "connected_clients") or 0) or None,
        "warning": warning,
    }


def _version(text: str) -> str | None:
    if valkey := _field(text, "valkey_version"):
        return f"Valkey {valkey}"
    redis = _field(text, "redis_version")
    return f"Redis {redis}" if redis else None


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}:(\S+)", text, re.M)
    return found[1] if found else None
