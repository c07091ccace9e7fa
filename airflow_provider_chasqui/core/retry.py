"""Retry policies: the number of attempts and the delay before each retry.

`OutcomeHandler.retry_or_dead_letter` in engine/outcomes.py decides whether a failed job is retried.
"""

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
from airflow_provider_chasqui.core.validation import require_choice, require_int

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before a retry. A field that is None is chosen by the worker.

    `Backoff.fixed` and `Backoff.exponential` create one from `timedelta` values.

    :param kind: `fixed` or `exponential`.
    :param delay_ms: the delay before the first retry.
    :param max_delay_ms: the longest delay.
    :param multiplier: the factor from one delay to the next.
    :param jitter_ms: the largest random time that is added.
    """

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
            require_int(f"backoff {name}", value, 0, U64_MAX)
        multiplier = self.multiplier
        if multiplier is not None and (
            isinstance(multiplier, bool) or not isinstance(multiplier, int | float)
        ):
            raise InvalidArgument(f"backoff multiplier must be a number, not {multiplier!r}")

    @classmethod
    def fixed(cls, delay: timedelta, *, jitter: timedelta | None = None) -> Backoff:
        """Return a backoff with the same delay before every retry.

        :param delay: the delay.
        :param jitter: the largest random time that is added. Default none.
        """
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
        """Return a backoff whose delay grows by a factor.

        :param initial: the delay before the first retry.
        :param multiplier: the factor. Default 2.
        :param max_delay: the longest delay. Default None, the worker's.
        :param jitter: the largest random time that is added. Default None, the worker's.
        """
        return cls("exponential", to_ms(initial) or 0, to_ms(max_delay), multiplier, to_ms(jitter))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The retry policy of one job. It overrides the worker's.

    :param max_attempts: the number of attempts, the first one included. None for the worker's.
    :param backoff: the delays. None for the worker's.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            require_int("max_attempts", self.max_attempts, 0, U32_MAX)
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise InvalidArgument(f"backoff must be a Backoff, not {type(self.backoff).__name__}")


@dataclass(frozen=True, slots=True)
class RetryDefaults:
    """The worker's values for the fields that a job's policy leaves open.

    :param max_attempts: the number of attempts. Default 25.
    :param delay_ms: the delay before the first retry. Default 100 ms.
    :param max_delay_ms: the longest delay. Default 30 s.
    :param multiplier: the factor from one delay to the next. Default 2.
    :param jitter_ms: the largest random time that is added. Default 100 ms.
    """

    max_attempts: int = 25
    delay_ms: int = 100
    max_delay_ms: int = 30_000
    multiplier: float = 2.0
    jitter_ms: int = 100

    def max_attempts_for(self, policy: RetryPolicy | None) -> int:
        """Return the number of attempts of a job with this policy."""
        if policy is None or policy.max_attempts is None:
            return self.max_attempts
        return policy.max_attempts

    def backoff_ms(
        self, policy: RetryPolicy | None, retry_number: int, random_fraction: float
    ) -> int:
        """Return the delay before a retry.

        A fixed delay gets neither the worker's maximum nor its jitter. Jitter raises an exponential
        delay at most to its maximum, or to the jitter if that is larger.

        :param policy: the policy of the job.
        :param retry_number: 1 for the first retry.
        :param random_fraction: a random number in [0, 1) for the jitter.
        """
        backoff = policy.backoff if policy else None
        if backoff is not None and backoff.kind == "fixed":
            jitter_ms = backoff.jitter_ms or 0
            delay_ms = backoff.delay_ms
            if backoff.max_delay_ms is not None:
                delay_ms = min(delay_ms, backoff.max_delay_ms)
            return delay_ms + int(random_fraction * jitter_ms)
        delay_ms, max_delay_ms = self.delay_ms, self.max_delay_ms
        multiplier, jitter_ms = self.multiplier, self.jitter_ms
        if backoff is not None:
            delay_ms = backoff.delay_ms
            multiplier = multiplier if backoff.multiplier is None else backoff.multiplier
            if backoff.max_delay_ms is not None:
                max_delay_ms = backoff.max_delay_ms
            jitter_ms = jitter_ms if backoff.jitter_ms is None else backoff.jitter_ms
        delay_ms = _exponential_delay_ms(delay_ms, float(multiplier), retry_number, max_delay_ms)
        return min(delay_ms + int(random_fraction * jitter_ms), max(max_delay_ms, jitter_ms))


@lru_cache(maxsize=256)
def _exponential_delay_ms(
    delay_ms: int, multiplier: float, retry_number: int, max_delay_ms: int
) -> int:
    """Return the delay, from 0 to the maximum whatever numbers another producer wrote."""
    try:
        delay = delay_ms * multiplier ** (retry_number - 1)
    except OverflowError:
        return max_delay_ms
    return 0 if math.isnan(delay) or delay < 0 else int(min(delay, max_delay_ms))


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
        '{"max_attempts": 5, "backoff": {"kind": "exponential", "delay": "1s"}}; '
        f"not {value!r}"
    )
