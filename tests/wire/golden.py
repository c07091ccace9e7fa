"""The golden vectors: bytes that ChasquiMQ 1.3.0 wrote, and how to ask our Queue for the same."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from airflow_provider_chasqui.core.retry import Backoff, RetryPolicy

_HOME = Path(__file__).parent / "vectors"
_DATETIME = {"datetime": datetime}

Vector = dict[str, Any]


def vectors(file: str) -> list[Vector]:
    found: list[Vector] = json.loads((_HOME / f"{file}.json").read_text("utf-8"))
    return found


def case(vector: Vector) -> str:
    return str(vector["case"])


def value(raw: Any) -> Any:
    """Return an input as Python had it: the files write what JSON cannot say as small maps."""
    match raw:
        case {"__bytes_hex__": text}:
            return bytes.fromhex(text)
        case {"__float__": text}:
            return float(text)
        case {"__int__": text}:
            return int(text)
        case {"__tuple__": items}:
            return tuple(value(item) for item in items)
        case {"__dict__": pairs}:
            return {value(key): value(item) for key, item in pairs}
        case {"__repeat__": [text, times]}:
            return text * times
        case dict():
            return {key: value(item) for key, item in raw.items()}
        case list():
            return [value(item) for item in raw]
    return raw


def fields(pairs: list[list[str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), bytes.fromhex(text)) for name, text in pairs]


def retry(inputs: Vector) -> RetryPolicy | None:
    """Return the policy that `attempts` and `backoff` of ChasquiMQ's add stand for."""
    if "attempts" not in inputs and "backoff" not in inputs:
        return None
    return RetryPolicy(inputs.get("attempts"), _backoff(value(inputs.get("backoff"))))


def _backoff(given: Any) -> Backoff | None:
    if given is None:
        return None
    if type(given) is int:
        return Backoff("fixed", given)
    if isinstance(given, dict):
        return Backoff(**given.get("BackoffSpec", given))
    return given  # type: ignore[no-any-return]


def when(inputs: Vector) -> dict[str, Any]:
    """Return `delay` or `at` for our add from ChasquiMQ's `delay_ms` and `delay`."""
    chosen: dict[str, Any] = {}
    if "delay" in inputs:
        text = inputs["delay"]
        given = eval(text, _DATETIME) if text.startswith("datetime") else None
        chosen["delay"] = given or datetime.timedelta(seconds=1)
    match inputs.get("delay_ms"):
        case None:
            pass
        case str() as text if text.startswith("datetime"):
            chosen["run_at"] = eval(text, _DATETIME)
        case "True":
            chosen["delay"] = True
        case ms if "delay" in chosen:
            at = datetime.datetime.fromtimestamp(int(ms) / 1000, datetime.UTC)
            chosen["run_at"] = at
        case ms:
            chosen["delay"] = datetime.timedelta(milliseconds=int(ms))
    return chosen
