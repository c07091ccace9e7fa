"""Rate limits: how often something may happen, and their text form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.validation import require_duration, require_int

MAX_LIMIT = 1_000_000_000
_MILLISECOND = timedelta(milliseconds=1)
_UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
_RATE = re.compile(r"\s*(\d{1,10})\s*/\s*(\S.*?)\s*")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A number of calls per time.

    Calls are spaced evenly: 600 per minute are one every 100 ms, and never more than 600 within any
    minute. After a time without calls, `burst` of them may follow each other at once; then at most
    `limit + burst - 1` are within any period.

    :param limit: the number of calls, or their total weight, per period.
    :param period: the period, at least one millisecond.
    :param burst: how many calls may follow each other at once. Default 1, evenly spaced.
    :raises InvalidArgument: if a value is not valid.
    """

    limit: int
    period: timedelta
    burst: int = 1

    def __post_init__(self) -> None:
        require_int("limit", self.limit, 1, MAX_LIMIT)
        require_duration("period", self.period, _MILLISECOND)
        require_int("burst", self.burst, 1, self.limit)

    @classmethod
    def parse(cls, text: str) -> RateLimit:
        """Return a rate limit from text such as `600/minute` or `10/500ms`.

        :param text: a number, a slash, and second, minute, hour, day or a duration.
        :raises InvalidArgument: if the text is not a rate limit.
        """
        match = _RATE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidArgument(
                f"a rate limit must be text such as 600/minute or 10/500ms, or a RateLimit; "
                f"not {text!r}"
            )
        limit, unit = match.groups()
        period = _UNITS.get(unit.lower())
        return cls(int(limit), period or parse_duration(unit, "the period of a rate limit"))

    def __str__(self) -> str:
        for unit, period in _UNITS.items():
            if period == self.period:
                return f"{self.limit}/{unit}"
        return f"{self.limit}/{self.period / _MILLISECOND:.0f}ms"


RateLimits = str | RateLimit | Sequence[str | RateLimit]


def parse_rate_limits(rates: RateLimits) -> list[RateLimit]:
    """Return rate limits from one or several of them.

    :param rates: a `RateLimit`, text such as `600/minute`, or a list of these.
    :raises InvalidArgument: if one is not valid, or if the list is empty.
    """
    if isinstance(rates, str | RateLimit):
        rates = [rates]
    if not isinstance(rates, Sequence) or not rates:
        raise InvalidArgument(f"at least one rate limit is required, such as 600/minute: {rates!r}")
    return [rate if isinstance(rate, RateLimit) else RateLimit.parse(rate) for rate in rates]


@dataclass(frozen=True, slots=True)
class RateLimitGrant:
    """Permission for one call, which can be used as a context manager around it.

    :param name: the name of the rate limit.
    :param waited: how long the caller has waited for it.
    """

    name: str
    waited: timedelta

    def __enter__(self) -> RateLimitGrant:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing: a rate limit counts starts, not durations."""
