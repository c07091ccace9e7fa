"""From what the caller asks for to what the wire carries; refuses before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from airflow_provider_chasqui.core.codec import (
    encode_envelope,
    encode_envelopes,
    encode_name,
    encode_text,
)
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BadInput, PayloadTooLarge
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.payload import encode_payload, encode_payloads
from airflow_provider_chasqui.core.policy import RetryPolicy, to_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class Ready(NamedTuple):
    """A job that can be sent. `run_at_ms` is None if it is to wait for a worker at once."""

    id: str
    name: bytes
    envelope: bytes
    run_at_ms: int | None
    unique_ms: int
    named_by_caller: bool


def prepare(job: NewJob, config: QueueConfig, now_ms: int, mint: Callable[[int], str]) -> Ready:
    """Return the job ready to be sent, or raise BadInput saying what is wrong with it."""
    unique_ms = 0
    if job.id is None:
        job_id = mint(now_ms)
    else:
        check_id(job_id := job.id)
    if job.retry is not None:
        check_retry(job.retry)
    if job.unique is not None:
        if job.id is None:
            raise BadInput("unique= needs an id: it is the id that is to be unique")
        unique_ms = to_ms(job.unique) or 0
        if unique_ms < 1:
            raise BadInput(f"unique= is how long the id stays taken; not {job.unique}")
    at_once = job.delay is None and job.at is None
    return Ready(
        job_id,
        b"" if job.name == "" else encode_name(job.name),
        envelope(job_id, job.payload, config, now_ms, job.retry),
        None if at_once else due(job.delay, job.at, config, now_ms),
        unique_ms,
        job.id is not None,
    )


def check_id(job_id: Any) -> None:
    if not isinstance(job_id, str) or not job_id.strip():
        raise BadInput("a job id is a non-blank string")
    if job_id.startswith(BATCH_PREFIX):
        raise BadInput(f"ids that begin with {BATCH_PREFIX!r} are for batches: use add_batch")
    encode_text(job_id, "a job id")


def check_retry(retry: RetryPolicy | None) -> None:
    """Raise unless every worker will understand the policy."""
    if retry is None:
        return
    if not isinstance(retry, RetryPolicy):
        raise BadInput(f"retry= is a RetryPolicy, not {type(retry).__name__}")
    if (backoff := retry.backoff) is None:
        return
    if backoff.kind not in ("fixed", "exponential"):
        raise BadInput(f"a backoff is 'fixed' or 'exponential', not {backoff.kind!r}")
    factor = backoff.multiplier
    if factor is not None and not 0 < factor < math.inf:
        raise BadInput(f"a backoff's multiplier must be above 0 and finite, not {factor!r}")


def envelope(
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


def envelopes(
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
            envelope(job_id, payload, config, now_ms, retry)  # raises for the first too large one
    return raws


def due(
    delay: timedelta | None, at: datetime | None, config: QueueConfig, now_ms: int
) -> int | None:
    """Return when the job is due in ms, or None for at once. A time without a zone is UTC."""
    if delay is not None and at is not None:
        raise BadInput("give delay= or at=, not both")
    if delay is not None:
        if not isinstance(delay, timedelta):
            raise BadInput(f"delay= is a timedelta, not {type(delay).__name__}")
        if delay < timedelta(0):
            raise BadInput(f"delay= must not be negative: {delay}")
        wait_ms = delay // _MS
    elif at is not None:
        wait_ms = instant_ms(at) - now_ms
    else:
        return None
    if wait_ms // 1000 > config.max_delay // timedelta(seconds=1):
        raise BadInput(
            f"the job would be delayed by {timedelta(milliseconds=wait_ms)}, the limit is "
            f"{config.max_delay}; raise max_delay if that is wanted"
        )
    return now_ms + wait_ms if wait_ms > 0 else None


def instant_ms(at: datetime) -> int:
    """Return a point in time in ms; one without a zone is UTC."""
    if not isinstance(at, datetime):
        raise BadInput(f"a point in time is a datetime, not {type(at).__name__}")
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MS
