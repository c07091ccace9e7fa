"""Log format of workers, and removal of passwords from logs and process titles."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback

from airflow_provider_chasqui.core.durations import format_timestamp

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
        text = f"{_format_time(record)} {level} {name} {escape_control(record.getMessage())}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return mask_passwords(text)


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
            "message": mask_passwords(record.getMessage()),
        }
        if record.exc_info:
            fields["error"] = mask_passwords("".join(traceback.format_exception(*record.exc_info)))
        return json.dumps(fields)


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


_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*):\S*@", re.I)
_PASSWORD_OPTION = re.compile(r"((?:sentinel_)?password=)[^&\s'\"]+", re.I)


def mask_passwords(text: str) -> str:
    """Return the text with the password of every URL in it replaced by ***."""
    return _PASSWORD_OPTION.sub(r"\1***", _URL_PASSWORD.sub(r"\1:***@", text))


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
