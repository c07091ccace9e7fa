"""From what the caller asks for to what the wire carries; refuses before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from airflow_provider_chasqui.core.codec import (
    encode_envelope,
    encode_envelopes,
    encode_job_name,
    encode_text,
)
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import InvalidArgument, PayloadTooLarge
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.payload import encode_payload, encode_payloads
from airflow_provider_chasqui.core.retry import RetryPolicy

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class EncodedJob(NamedTuple):
    """A job that can be sent. `run_at_ms` is None if it is to wait for a worker at once."""

    job_id: str
    job_name: bytes
    envelope: bytes
    run_at_ms: int | None
    dedup_ttl_ms: int
    has_explicit_id: bool


def encode_new_job(
    job: NewJob, config: QueueConfig, now_ms: int, new_id: Callable[[int], str]
) -> EncodedJob:
    """Return the job ready to be sent, or raise InvalidArgument saying what is wrong with it."""
    unique_ms = 0
    if job.job_id is None:
        job_id = new_id(now_ms)
    else:
        check_job_id(job_id := job.job_id)
    if job.retry is not None:
        check_retry(job.retry)
    if job.dedup_ttl is not None:
        if job.job_id is None:
            raise InvalidArgument("unique= needs an id: it is the id that is to be unique")
        unique_ms = to_ms(job.dedup_ttl) or 0
        if unique_ms < 1:
            raise InvalidArgument(f"unique= is how long the id stays taken; not {job.dedup_ttl}")
    at_once = job.delay is None and job.run_at is None
    return EncodedJob(
        job_id,
        b"" if job.job_name == "" else encode_job_name(job.job_name),
        build_envelope(job_id, job.payload, config, now_ms, job.retry),
        None if at_once else resolve_run_at_ms(job.delay, job.run_at, config, now_ms),
        unique_ms,
        job.job_id is not None,
    )


def check_job_id(job_id: Any) -> None:
    if not isinstance(job_id, str) or not job_id.strip():
        raise InvalidArgument("a job id is a non-blank string")
    if job_id.startswith(BATCH_PREFIX):
        raise InvalidArgument(
            f"ids that begin with {BATCH_PREFIX!r} are for batches: use add_batch"
        )
    encode_text(job_id, "a job id")


def check_retry(retry: RetryPolicy | None) -> None:
    """Raise unless every worker will understand the policy."""
    if retry is None:
        return
    if not isinstance(retry, RetryPolicy):
        raise InvalidArgument(f"retry= is a RetryPolicy, not {type(retry).__name__}")
    if (backoff := retry.backoff) is None:
        return
    if backoff.kind not in ("fixed", "exponential"):
        raise InvalidArgument(f"a backoff is 'fixed' or 'exponential', not {backoff.kind!r}")
    factor = backoff.multiplier
    if factor is not None and not 0 < factor < math.inf:
        raise InvalidArgument(f"a backoff's multiplier must be above 0 and finite, not {factor!r}")


def build_envelope(
    job_id: str, payload: Any, config: QueueConfig, now_ms: int, retry: RetryPolicy | None
) -> bytes:
    """Return the `d` field of a new job, or raise if it cannot be or is too large."""
    raw = encode_envelope(job_id, encode_payload(payload), now_ms, 0, retry)
    if len(raw) > config.max_payload_bytes:
        raise PayloadTooLarge(
            f"the job has {len(raw)} bytes, the limit is {config.max_payload_bytes}; send a "
            "reference to the data instead, or raise max_payload_bytes here and on the workers",
            job_id=job_id,
        )
    return raw


def build_envelopes(
    job_ids: Sequence[str],
    payloads: Sequence[Any],
    config: QueueConfig,
    now_ms: int,
    retry: RetryPolicy | None,
) -> list[bytes]:
    """The same for many jobs."""
    raws = encode_envelopes(job_ids, encode_payloads(payloads), now_ms, retry)
    if max(map(len, raws), default=0) > config.max_payload_bytes:
        for job_id, payload in zip(job_ids, payloads, strict=True):
            build_envelope(
                job_id, payload, config, now_ms, retry
            )  # raises for the first too large one
    return raws


def resolve_run_at_ms(
    delay: timedelta | None, run_at: datetime | None, config: QueueConfig, now_ms: int
) -> int | None:
    """Return when the job is due in ms, or None for at once. A time without a zone is UTC."""
    if delay is not None and run_at is not None:
        raise InvalidArgument("give delay= or at=, not both")
    if delay is not None:
        if not isinstance(delay, timedelta):
            raise InvalidArgument(f"delay= is a timedelta, not {type(delay).__name__}")
        if delay < timedelta(0):
            raise InvalidArgument(f"delay= must not be negative: {delay}")
        wait_ms = delay // _MILLISECOND
    elif run_at is not None:
        wait_ms = to_epoch_ms(run_at) - now_ms
    else:
        return None
    if wait_ms // 1000 > config.max_delay // timedelta(seconds=1):
        raise InvalidArgument(
            f"the job would be delayed by {timedelta(milliseconds=wait_ms)}, the limit is "
            f"{config.max_delay}; raise max_delay if that is wanted"
        )
    return now_ms + wait_ms if wait_ms > 0 else None


def to_epoch_ms(value: datetime) -> int:
    """Return a point in time in ms; one without a zone is UTC."""
    if not isinstance(value, datetime):
        raise InvalidArgument(f"a point in time is a datetime, not {type(value).__name__}")
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MILLISECOND
