"""Test vectors of ChasquiMQ 1.3.0, and the arguments that give the same bytes here."""

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
    """Return the vectors of a file."""
    content: list[Vector] = json.loads((_HOME / f"{file}.json").read_text("utf-8"))
    return content


def case(vector: Vector) -> str:
    return str(vector["case"])


def value(raw: Any) -> Any:
    """Return an input as a Python value. Values that JSON cannot represent are stored as maps."""
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
    """Return the policy for `attempts` and `backoff` of ChasquiMQ's add."""
    if "attempts" not in inputs and "backoff" not in inputs:
        return None
    return RetryPolicy(inputs.get("attempts"), _backoff(value(inputs.get("backoff"))))


def _backoff(backoff: Any) -> Backoff | None:
    if backoff is None:
        return None
    if type(backoff) is int:
        return Backoff("fixed", backoff)
    if isinstance(backoff, dict):
        return Backoff(**backoff.get("BackoffSpec", backoff))
    return backoff  # type: ignore[no-any-return]


def when(inputs: Vector) -> dict[str, Any]:
    """Return `delay` or `run_at` for `delay_ms` and `delay` of ChasquiMQ's add."""
    options: dict[str, Any] = {}
    if "delay" in inputs:
        text = inputs["delay"]
        delay = eval(text, _DATETIME) if text.startswith("datetime") else None
        options["delay"] = delay or datetime.timedelta(seconds=1)
    match inputs.get("delay_ms"):
        case None:
            pass
        case str() as text if text.startswith("datetime"):
            options["run_at"] = eval(text, _DATETIME)
        case "True":
            options["delay"] = True
        case ms if "delay" in options:
            options["run_at"] = datetime.datetime.fromtimestamp(int(ms) / 1000, datetime.UTC)
        case ms:
            options["delay"] = datetime.timedelta(milliseconds=int(ms))
    return options
