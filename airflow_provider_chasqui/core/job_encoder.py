"""Validation and encoding of new jobs. Every error is raised before anything is sent."""

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
from airflow_provider_chasqui.core.durations import MILLISECOND, to_ms
from airflow_provider_chasqui.core.errors import EncodeError, InvalidArgument, PayloadTooLarge
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.core.validation import require_choice, require_duration

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EncodedJob(NamedTuple):
    """A job ready to send. `run_at_ms` is None if the job is not delayed."""

    job_id: str
    job_name: bytes
    envelope: bytes
    run_at_ms: int | None
    dedup_ttl_ms: int
    has_explicit_id: bool


def encode_new_job(
    job: NewJob, config: QueueConfig, now_ms: int, new_id: Callable[[int], str]
) -> EncodedJob:
    """Validate and encode a job.

    :param job: the job.
    :param config: the limits of the queue.
    :param now_ms: the current time.
    :param new_id: returns a new job id.
    :raises InvalidArgument: if a field is invalid.
    """
    dedup_ttl_ms = 0
    if job.job_id is None:
        job_id = new_id(now_ms)
    else:
        check_job_id(job_id := job.job_id)
    if job.retry is not None:
        check_retry(job.retry)
    if job.dedup_ttl is not None:
        if job.job_id is None:
            raise InvalidArgument(
                "dedup_ttl requires job_id: duplicates are recognised by their job id"
            )
        dedup_ttl_ms = to_ms(job.dedup_ttl)
        if dedup_ttl_ms < 1:
            raise InvalidArgument(f"dedup_ttl must be at least a millisecond, not {job.dedup_ttl}")
    immediate = job.delay is None and job.run_at is None
    return EncodedJob(
        job_id,
        b"" if job.job_name == "" else encode_job_name(job.job_name),
        build_envelope(job_id, job.payload, config, now_ms, job.retry),
        None if immediate else resolve_run_at_ms(job.delay, job.run_at, config, now_ms),
        dedup_ttl_ms,
        job.job_id is not None,
    )


def check_job_id(job_id: Any) -> None:
    """Raise `InvalidArgument` if a caller may not use this job id."""
    if not isinstance(job_id, str) or not job_id.strip():
        raise InvalidArgument(f"a job id must be a non-blank string, not {job_id!r}")
    if job_id.startswith(BATCH_PREFIX):
        raise InvalidArgument(
            f"job ids that start with {BATCH_PREFIX!r} are reserved for batches; use add_batch"
        )
    encode_text(job_id, "a job id")


def check_retry(retry: RetryPolicy | None) -> None:
    """Raise `InvalidArgument` unless every worker can decode and apply the policy."""
    if retry is None:
        return
    if not isinstance(retry, RetryPolicy):
        raise InvalidArgument(f"retry must be a RetryPolicy, not {type(retry).__name__}")
    if (backoff := retry.backoff) is None:
        return
    require_choice("the kind of a backoff", backoff.kind, ("fixed", "exponential"))
    multiplier = backoff.multiplier
    if multiplier is not None and not 0 < multiplier < math.inf:
        raise InvalidArgument(
            f"the multiplier of a backoff must be finite and above 0, not {multiplier!r}"
        )


def build_envelope(
    job_id: str, payload: Any, config: QueueConfig, now_ms: int, retry: RetryPolicy | None
) -> bytes:
    """Return the `d` field of a new job.

    :raises EncodeError: if the payload cannot be encoded.
    :raises PayloadTooLarge: if the result is larger than the queue allows.
    """
    try:
        body = encode_payload(payload)
    except EncodeError as error:
        raise EncodeError(error.message, job_id=job_id) from error
    envelope = encode_envelope(job_id, body, now_ms, 0, retry)
    _check_size(job_id, envelope, config)
    return envelope


def build_envelopes(
    job_ids: Sequence[str],
    bodies: Sequence[bytes],
    config: QueueConfig,
    now_ms: int,
    retry: RetryPolicy | None,
) -> list[bytes]:
    """Return the `d` fields of new jobs whose payloads are encoded.

    :raises PayloadTooLarge: if one of them is larger than the queue allows.
    """
    envelopes = encode_envelopes(job_ids, bodies, now_ms, retry)
    if max(map(len, envelopes), default=0) > config.max_payload_bytes:
        for job_id, envelope in zip(job_ids, envelopes, strict=True):
            _check_size(job_id, envelope, config)
    return envelopes


def _check_size(job_id: str, envelope: bytes, config: QueueConfig) -> None:
    if len(envelope) > config.max_payload_bytes:
        raise PayloadTooLarge(
            f"the job has {len(envelope)} bytes, the limit is {config.max_payload_bytes}; send a "
            "reference to the data instead, or raise max_payload_bytes here and on the workers",
            job_id=job_id,
        )


def resolve_run_at_ms(
    delay: timedelta | None, run_at: datetime | None, config: QueueConfig, now_ms: int
) -> int | None:
    """Return when a job is due, or None if it is due now.

    :param delay: the time until then.
    :param run_at: the time itself. A datetime without a time zone is UTC.
    :param config: the limits of the queue.
    :param now_ms: the current time.
    :raises InvalidArgument: if both are passed, or the delay is negative or too long.
    """
    if delay is not None and run_at is not None:
        raise InvalidArgument("pass delay or run_at, not both")
    if delay is not None:
        wait_ms = to_ms(require_duration("delay", delay, timedelta(0)))
    elif run_at is not None:
        wait_ms = to_epoch_ms(run_at) - now_ms
    else:
        return None
    if wait_ms // 1000 > config.max_delay // timedelta(seconds=1):
        raise InvalidArgument(
            f"the job would be delayed by {timedelta(milliseconds=wait_ms)}, the limit is "
            f"{config.max_delay}; raise max_delay in QueueConfig to allow it"
        )
    return now_ms + wait_ms if wait_ms > 0 else None


def to_epoch_ms(value: datetime) -> int:
    """Return a datetime in milliseconds since the epoch. Without a time zone it is UTC."""
    if not isinstance(value, datetime):
        raise InvalidArgument(f"a timestamp must be a datetime, not {type(value).__name__}")
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // MILLISECOND
