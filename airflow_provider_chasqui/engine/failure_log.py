"""Log lines about failed attempts.

The first failure of a kind is logged with its traceback. Further ones are counted and logged as one
line per interval, so that a bad deployment does not flood the log. A kind is the job name, the
class of the error and the line of code that raised it.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from airflow_provider_chasqui.engine.backoff import log

_INTERVAL_S = 60.0
# A kind that did not occur for this time is forgotten: the next failure has its traceback again.
_FORGET_AFTER_S = 600.0
_MAX_KINDS = 100
# The file and the line that raised an error.
_Position = tuple[str, int]
_NO_POSITION: _Position = ("", 0)
_OTHER = ("", "", _NO_POSITION)
_MAX_TRACEBACK_CHARS = 4000
_ENGINE = str(Path(__file__).parent)
_PACKAGE_FILES = (_ENGINE, str(Path(__file__).parents[1] / "jobs.py"))


@dataclass(slots=True)
class _Kind:
    """What was counted since the last log line of a kind of failure."""

    logged_at: float
    seen_at: float
    count: int = 0
    dead: int = 0
    job_id: str = ""
    text: str = ""


class FailureLog:
    """Logs failed attempts of one queue.

    :param queue_name: the queue.
    :param clock: returns the time in seconds.
    """

    def __init__(self, queue_name: str, clock: Callable[[], float] = time.monotonic):
        self._queue_name = queue_name
        self._clock = clock
        self._kinds: dict[tuple[str, str, _Position], _Kind] = {}

    def record(
        self,
        job_id: str,
        job_name: str,
        attempt: int,
        error: BaseException | None,
        text: str,
        consequence: str,
        dead: bool,
    ) -> None:
        """Log or count a failed attempt.

        :param job_id: the job.
        :param job_name: the name of the job.
        :param attempt: the number of the attempt, from 1.
        :param error: what the handler raised; None if it returned `Retry`.
        :param text: the class and the message of the error.
        :param consequence: what happens to the job.
        :param dead: whether the job is dead-lettered.
        """
        now = self._clock()
        frames = user_frames(error)
        key = (job_name, error_name(error), _position(frames))
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) >= _MAX_KINDS:
            key = _OTHER
            kind = self._kinds.setdefault(key, _Kind(now, now))
        if kind is not None:
            log.debug("outcomes: job %s failed in attempt %d: %s", job_id, attempt, text)
            kind.count += 1
            kind.dead += dead
            kind.seen_at, kind.job_id, kind.text = now, job_id, text
            return
        self._kinds[key] = _Kind(now, now)
        exc_info: Any = None
        if error is not None and (frames is not None or error.__cause__ is not None):
            exc_info = (type(error), error, frames)
        log.warning(
            "outcomes: job %s (%s) failed in attempt %d%s: %s",
            job_id,
            job_name or "no name",
            attempt,
            consequence,
            text,
            exc_info=exc_info,
            extra={
                "queue": self._queue_name,
                "job_id": job_id,
                "job_name": job_name,
                "attempt": attempt,
            },
        )

    def flush(self, final: bool = False) -> None:
        """Log the counts whose interval is over.

        :param final: whether to log all counts, because the worker stops.
        """
        now = self._clock()
        for key, kind in list(self._kinds.items()):
            if kind.count and (final or now - kind.logged_at >= _INTERVAL_S):
                self._summarize(key, kind, now)
            elif not kind.count and now - kind.seen_at >= _FORGET_AFTER_S:
                del self._kinds[key]

    def _summarize(self, key: tuple[str, str, _Position], kind: _Kind, now: float) -> None:
        job_name, error_class, (file, line) = key
        subject = "other jobs" if key == _OTHER else job_name or "jobs without a name"
        at = f" at {Path(file).name}:{line}" if file else ""
        log.warning(
            "outcomes: %d more failed attempts of %s (%d dead-lettered)%s in %.0f s; the last one "
            "was job %s: %s",
            kind.count,
            subject,
            kind.dead,
            "" if key == _OTHER else f" with {error_class}{at}",
            now - kind.logged_at,
            kind.job_id,
            kind.text,
        )
        kind.logged_at, kind.count, kind.dead = now, 0, 0


def error_name(error: BaseException | None) -> str:
    """Return the class of an error for metrics and logs; `Retry` if the handler returned it.

    :param error: the error, or None.
    """
    return "Retry" if error is None else type(error).__name__


def user_frames(error: BaseException | None) -> TracebackType | None:
    """Return the traceback of an error from the first frame that is not of the engine.

    :param error: the error, or None.
    """
    frames = None if error is None else error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE_FILES):
        frames = frames.tb_next
    return frames


def format_traceback(error: BaseException | None) -> str | None:
    """Return the end of an error's traceback for a dead letter, or None if it has no frames.

    :param error: the error, or None.
    """
    frames = user_frames(error)
    if error is None or (frames is None and error.__cause__ is None):
        return None
    try:
        text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    except Exception:  # an error whose text cannot be formatted
        text = "".join(traceback.format_tb(frames))
    return text[-_MAX_TRACEBACK_CHARS:]


def _position(frames: TracebackType | None) -> _Position:
    if frames is None:
        return _NO_POSITION
    while frames.tb_next is not None:
        frames = frames.tb_next
    return frames.tb_frame.f_code.co_filename, frames.tb_lineno
