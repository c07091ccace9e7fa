"""What happens after a failed attempt: how often, and after how long."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from airflow_provider_chasqui.core.durations import parse_duration, to_ms
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.validation import require_choice

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1


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
                raise InvalidArgument(f"backoff {name} must be a whole number of ms, not {value!r}")
        number = self.multiplier
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise InvalidArgument(f"backoff multiplier must be a number, not {number!r}")

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
            raise InvalidArgument(
                f"max_attempts must be a whole number from 0 to {U32_MAX}, not {top!r}"
            )
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise InvalidArgument(f"backoff must be a Backoff, not {type(self.backoff).__name__}")


@dataclass(frozen=True, slots=True)
class RetryDefaults:
    """The worker's answer wherever a job's policy leaves a field open."""

    max_attempts: int = 25
    delay_ms: int = 100
    max_delay_ms: int = 30_000
    multiplier: float = 2.0
    jitter_ms: int = 100

    def max_attempts_for(self, policy: RetryPolicy | None) -> int:
        if policy is None or policy.max_attempts is None:
            return self.max_attempts
        return policy.max_attempts

    def backoff_ms(
        self, policy: RetryPolicy | None, retry_number: int, random_fraction: float
    ) -> int:
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
            return wait + int(random_fraction * jitter_ms)
        delay_ms, cap = self.delay_ms, self.max_delay_ms
        multiplier, jitter_ms = self.multiplier, self.jitter_ms
        if backoff is not None:
            delay_ms = backoff.delay_ms
            multiplier = multiplier if backoff.multiplier is None else backoff.multiplier
            cap = cap if backoff.max_delay_ms is None else backoff.max_delay_ms
            jitter_ms = jitter_ms if backoff.jitter_ms is None else backoff.jitter_ms
        grown = _exponential_delay_ms(delay_ms, float(multiplier), retry_number, cap)
        return min(grown + int(random_fraction * jitter_ms), max(cap, jitter_ms))


@lru_cache(maxsize=256)
def _exponential_delay_ms(
    delay_ms: int, multiplier: float, retry_number: int, max_delay_ms: int
) -> int:
    """A foreign producer may have written any number here; the answer is from 0 to the cap."""
    try:
        grown = delay_ms * multiplier ** (retry_number - 1)
    except OverflowError:
        return max_delay_ms
    return 0 if math.isnan(grown) or grown < 0 else int(min(grown, max_delay_ms))


_POLICY_FIELDS = ("max_attempts", "backoff")
_BACKOFF_FIELDS = ("kind", "delay", "max_delay", "multiplier", "jitter")


def parse_retry_policy(value: Any, name: str = "retry") -> RetryPolicy | None:
    """Return a retry policy from what a DAG, a Spark option or the CLI contains.

    The forms are a `RetryPolicy`, a number of attempts, or a mapping (or its JSON text) such as
    `{"max_attempts": 5, "backoff": {"kind": "exponential", "delay": "1s", "max_delay": "5m"}}`.
    Durations are those of `parse_duration`.

    :param value: the policy, or None for the worker's default.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the value has none of the forms.
    """
    if value is None or isinstance(value, RetryPolicy):
        return value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise InvalidArgument(_expected_policy(value, name)) from None
    if isinstance(value, int) and not isinstance(value, bool):
        return RetryPolicy(max_attempts=value)
    if not isinstance(value, Mapping):
        raise InvalidArgument(_expected_policy(value, name))
    unknown = set(value) - set(_POLICY_FIELDS)
    if unknown:
        raise InvalidArgument(
            f"{name} has no field {', '.join(sorted(map(str, unknown)))}; "
            f"{_expected_policy(value, name)}"
        )
    return RetryPolicy(value.get("max_attempts"), _parse_backoff(value.get("backoff"), name))


def _parse_backoff(value: Any, name: str) -> Backoff | None:
    if value is None or isinstance(value, Backoff):
        return value
    if not isinstance(value, Mapping) or "kind" not in value or "delay" not in value:
        raise InvalidArgument(_expected_policy({"backoff": value}, name))
    unknown = set(value) - set(_BACKOFF_FIELDS)
    if unknown:
        raise InvalidArgument(
            f"{name}.backoff has no field {', '.join(sorted(map(str, unknown)))}; "
            f"its fields are {', '.join(_BACKOFF_FIELDS)}"
        )
    require_choice(f"{name}.backoff.kind", value["kind"], ("fixed", "exponential"))

    def milliseconds(field: str) -> int | None:
        duration = value.get(field)
        if duration is None:
            return None
        return to_ms(parse_duration(duration, f"{name}.backoff.{field}"))

    return Backoff(
        value["kind"],
        milliseconds("delay") or 0,
        milliseconds("max_delay"),
        value.get("multiplier"),
        milliseconds("jitter"),
    )


def _expected_policy(value: Any, name: str) -> str:
    return (
        f"{name} must be a RetryPolicy, a number of attempts, or a mapping such as "
        '{"max_attempts": 5, "backoff": {"kind": "exponential", "delay": "1s", "max_delay": "5m"}}; '
        f"not {value!r}"
    )
