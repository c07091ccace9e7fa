"""Counters of outcomes per minute: how many jobs were completed, failed, retried and dead-lettered.

Workers add to them once per second. The minute is that of the server's clock. A minute has one
counter per outcome, and one per outcome and job name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_bool,
    as_raw,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.idempotency import IDEMPOTENCY_TTL_MS
from airflow_provider_chasqui.core.keys import Keys

OUTCOMES = ("completed", "failed", "retried", "dead")
MINUTE_MS = 60_000
# A day is shown, so a minute is kept slightly longer.
_TTL_MS = 25 * 60 * MINUTE_MS
_MAX_COUNTERS = 400
OTHER_NAMES = "(other)"

# An outcome and a job name.
OutcomeKey = tuple[str, str]


def count_outcomes(
    keys: Keys, token: str, minute: int, counts: Mapping[OutcomeKey, int]
) -> Command[bool]:
    """Add to the counters of a minute.

    :param keys: the keys of the queue.
    :param token: the idempotency token of the call.
    :param minute: the minute since the epoch.
    :param counts: the increments by outcome and job name.
    :return: a command that returns False if a call with the token was executed before.
    """
    totals: Counter[str] = Counter()
    for (outcome, _), count in counts.items():
        totals[outcome] += count
    args: list[str | int] = [IDEMPOTENCY_TTL_MS, _TTL_MS, _MAX_COUNTERS]
    for outcome, count in totals.items():
        args += [outcome, outcome, count]
    for (outcome, job_name), count in counts.items():
        args += [f"{outcome}:{job_name}", f"{outcome}:{OTHER_NAMES}", count]
    return script_command(
        "count_outcomes",
        as_bool,
        [keys.idempotency_marker(token), keys.outcome_counts(minute)],
        args,
    )


@dataclass(frozen=True, slots=True)
class ThroughputBucket:
    """The number of outcomes in one interval.

    :param start_ms: when the interval begins, in milliseconds since the epoch.
    :param completed: the completed jobs.
    :param failed: the failed runs.
    :param retried: the runs after which the job is retried.
    :param dead: the dead-lettered jobs.
    """

    start_ms: int
    completed: int
    failed: int
    retried: int
    dead: int


def read_throughput(
    keys: Keys, now_ms: int, minutes: int, bucket_count: int
) -> CommandFlow[list[ThroughputBucket]]:
    """Return the outcomes of the last minutes in equal intervals, oldest first.

    :param keys: the keys of the queue.
    :param now_ms: the current time in milliseconds; the last interval contains it.
    :param minutes: the length of the period.
    :param bucket_count: the number of intervals, if the period has as many minutes.
    """
    minutes_per_bucket = max(1, minutes // bucket_count)
    bucket_count = -(-minutes // minutes_per_bucket)
    # Aligned, so that successive calls use the same intervals.
    last_bucket = now_ms // MINUTE_MS // minutes_per_bucket
    first_minute = (last_bucket - bucket_count + 1) * minutes_per_bucket
    rows: Sequence[Sequence[Any]] = yield [
        redis_command("HMGET", keys.outcome_counts(minute), *OUTCOMES, parse=as_raw)
        for minute in range(first_minute, first_minute + bucket_count * minutes_per_bucket)
    ]
    buckets = []
    for index in range(0, len(rows), minutes_per_bucket):
        columns = zip(*rows[index : index + minutes_per_bucket], strict=True)
        sums = [sum(int(value or 0) for value in column) for column in columns]
        buckets.append(ThroughputBucket((first_minute + index) * MINUTE_MS, *sums))
    return buckets
