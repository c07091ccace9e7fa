"""What happens after a failed attempt: how often, and after how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from airflow_provider_chasqui.core.errors import BadInput

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1


def to_ms(span: timedelta | None) -> int | None:
    """Return a span in whole milliseconds, rounded down."""
    if span is None:
        return None
    if not isinstance(span, timedelta):
        raise BadInput(f"a span of time is a timedelta, not {type(span).__name__}")
    return span // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt; a field left None is the worker's to choose."""

    kind: str
    delay_ms: int
    max_delay_ms: int | None = None
    multiplier: float | None = None
    jitter_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("delay_ms", "max_delay_ms", "jitter_ms"):
            value = getattr(self, name)
            if value is None and name != "delay_ms":
                continue
            if type(value) is not int or not 0 <= value <= U64_MAX:
                raise BadInput(f"backoff {name} must be a whole number of ms, not {value!r}")
        number = self.multiplier
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise BadInput(f"backoff multiplier must be a number, not {number!r}")

    @classmethod
    def fixed(cls, delay: timedelta, *, jitter: timedelta | None = None) -> Backoff:
        return cls("fixed", to_ms(delay) or 0, None, None, to_ms(jitter))

    @classmethod
    def exponential(
        cls,
        initial: timedelta,
        *,
        multiplier: float = 2.0,
        max_delay: timedelta | None = None,
        jitter: timedelta | None = None,
    ) -> Backoff:
        return cls("exponential", to_ms(initial) or 0, to_ms(max_delay), multiplier, to_ms(jitter))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A job's own wish about retries; it overrides the worker's."""

    max_attempts: int | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        top = self.max_attempts
        if top is not None and (type(top) is not int or not 0 <= top <= U32_MAX):
            raise BadInput(f"max_attempts must be a whole number from 0 to {U32_MAX}, not {top!r}")
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise BadInput(f"backoff must be a Backoff, not {type(self.backoff).__name__}")


@dataclass(frozen=True, slots=True)
class RetryDefaults:
    """The worker's answer wherever a job's policy leaves a field open."""

    max_attempts: int = 25
    delay_ms: int = 100
    max_delay_ms: int = 30_000
    multiplier: float = 2.0
    jitter_ms: int = 100

    def attempts(self, policy: RetryPolicy | None) -> int:
        if policy is None or policy.max_attempts is None:
            return self.max_attempts
        return policy.max_attempts

    def wait_ms(self, policy: RetryPolicy | None, retry: int, draw: float) -> int:
        """Return the wait before the `retry`-th retry (1 is the first); draw is in [0, 1).

        A fixed delay is kept as given: no default cap and no default jitter is put on it, and
        jitter never carries an exponential delay past its cap.
        """
        backoff = policy.backoff if policy else None
        if backoff is not None and backoff.kind == "fixed":
            jitter_ms = backoff.jitter_ms or 0
            wait = backoff.delay_ms
            cap = backoff.max_delay_ms
            if cap is not None:
                wait = min(wait, cap)
            return wait + int(draw * jitter_ms)
        delay_ms, cap = self.delay_ms, self.max_delay_ms
        multiplier, jitter_ms = self.multiplier, self.jitter_ms
        if backoff is not None:
            delay_ms = backoff.delay_ms
            multiplier = multiplier if backoff.multiplier is None else backoff.multiplier
            cap = cap if backoff.max_delay_ms is None else backoff.max_delay_ms
            jitter_ms = jitter_ms if backoff.jitter_ms is None else backoff.jitter_ms
        grown = _grown(delay_ms, float(multiplier), retry, cap)
        return min(grown + int(draw * jitter_ms), max(cap, jitter_ms))


@lru_cache(maxsize=256)
def _grown(delay_ms: int, multiplier: float, retry: int, cap: int) -> int:
    """A foreign producer may have written any number here; the answer is from 0 to the cap."""
    try:
        grown = delay_ms * multiplier ** (retry - 1)
    except OverflowError:
        return cap
    return 0 if math.isnan(grown) or grown < 0 else int(min(grown, cap))
