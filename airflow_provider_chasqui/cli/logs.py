"""What a worker writes to stderr: a line each, for people or in JSON."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

from airflow_provider_chasqui.cli.masking import mask
from airflow_provider_chasqui.cli.show import clean

_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[1;31m"}


class _Line(logging.Formatter):
    """`2030-01-31T12:00:00.123Z INFO  chasqui[1] message`; [0] is the supervisor."""

    def __init__(self, process: int, colour: bool):
        super().__init__()
        self._process = process
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:<7}"
        if self._colour and record.levelname in _COLOURS:
            level = f"{_COLOURS[record.levelname]}{level}\033[0m"
        name = f"{record.name}[{self._process}]"
        text = f"{_time(record)} {level} {name} {clean(record.getMessage())}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return mask(text)


class _Json(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, process: int):
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "pid": record.process,
            "message": mask(record.getMessage()),
        }
        if record.exc_info:
            fields["error"] = mask("".join(traceback.format_exception(*record.exc_info)))
        return json.dumps(fields)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"


def set_up(level: str, as_json: bool, process: int) -> None:
    """Send all logs of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    colour = sys.stderr.isatty()
    handler.setFormatter(_Json(process) if as_json else _Line(process, colour))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for noisy in ("asyncio", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
