"""Log format of workers, and removal of passwords from logs and process titles."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from typing import Any

from airflow_provider_chasqui.core.durations import format_timestamp
from airflow_provider_chasqui.core.masking import mask_passwords

_MAX_MESSAGE_CHARS, _MAX_TRACEBACK_CHARS = 8_000, 32_000
_LEVEL_COLORS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[1;31m"}


class _TextFormatter(logging.Formatter):
    """Format `2030-01-31T12:00:00.123Z INFO  chasqui[1] message`; [0] is the supervisor."""

    def __init__(self, process_number: int, use_color: bool):
        super().__init__()
        self._process_number = process_number
        self._use_color = use_color

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:<7}"
        if self._use_color and record.levelname in _LEVEL_COLORS:
            level = f"{_LEVEL_COLORS[record.levelname]}{level}\033[0m"
        name = f"{record.name}[{self._process_number}]"
        text = f"{_format_time(record)} {level} {name} {escape_control(_message(record))}"
        if record.exc_info:
            # An indented line cannot be mistaken for the first line of a log record.
            lines = _traceback(record.exc_info).rstrip("\n").split("\n")
            text += "".join(f"\n  {escape_control(line)}" for line in lines)
        return text


class _JsonFormatter(logging.Formatter):
    """Format one JSON object per line."""

    def __init__(self, process_number: int):
        super().__init__()
        self._process_number = process_number

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "ts": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process_number,
            "pid": record.process,
            "message": _message(record),
        }
        # The engine adds these to records about a job.
        for name in ("queue", "job_id", "job_name", "attempt"):
            if hasattr(record, name):
                fields[name] = getattr(record, name)
        if record.exc_info:
            fields["error"] = _traceback(record.exc_info)
        return json.dumps(fields)


def _message(record: logging.LogRecord) -> str:
    return mask_passwords(shorten(record.getMessage(), _MAX_MESSAGE_CHARS))


def _traceback(exc_info: Any) -> str:
    text = "".join(traceback.format_exception(*exc_info))
    return mask_passwords(shorten(text, _MAX_TRACEBACK_CHARS))


def shorten(text: str, max_chars: int) -> str:
    """Return a text without its middle if it is longer than the limit.

    :param text: the text.
    :param max_chars: the number of characters to keep.
    """
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters omitted … {text[-half:]}"


def escape_control(value: object) -> str:
    """Return text in which control characters are escaped, so that it is safe on a terminal."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _format_time(record: logging.LogRecord) -> str:
    return format_timestamp(int(record.created * 1000))


def configure(level: str, as_json: bool, process_number: int) -> None:
    """Send all logs of this process to stderr.

    :param level: the log level.
    :param as_json: whether lines are JSON objects.
    :param process_number: the number of the worker process, 0 for the supervisor.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter(process_number)
        if as_json
        else _TextFormatter(process_number, use_color=sys.stderr.isatty())
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for noisy in ("asyncio", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def mask_process_title() -> None:
    """Remove the password of --url from the process title.

    It was visible until this call. CHASQUI_URL and --password-file are never visible.
    """
    masked = [mask_passwords(argument) for argument in sys.argv]
    if masked == sys.argv:
        return
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(" ".join(["chasqui", *masked[1:]]))
