"""Jobs: as passed by the caller, as stored in the stream, and as dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, overload

from airflow_provider_chasqui.core.payload import decode_payload
from airflow_provider_chasqui.core.retry import RetryPolicy


class NewJob(NamedTuple):
    """A job to add.

    :param payload: any value that MessagePack can encode.
    :param job_name: selects the handler. Default empty.
    :param job_id: the id. Default None, a new ULID.
    :param delay: the time until the job is due. At most one of `delay` and `run_at`.
    :param run_at: when the job is due. A datetime without a time zone is UTC.
    :param retry: the retry policy. Default None, the worker's.
    :param dedup_ttl: how long a second add with the same `job_id` is ignored.
    """

    payload: Any = None
    job_name: str = ""
    job_id: str | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    retry: RetryPolicy | None = None
    dedup_ttl: timedelta | None = None

    @classmethod
    def coerce(cls, job: NewJob | Mapping[str, Any]) -> NewJob:
        """Return the job itself, or a job with the fields of a mapping."""
        return job if isinstance(job, NewJob) else cls(**job)


class EnqueueResult(NamedTuple):
    """The result of an add.

    :param job_id: the id of the job.
    :param created: whether this call added it; False if a job with this id existed already.
    """

    job_id: str
    created: bool


class EnqueueResults(Sequence[EnqueueResult]):
    """The results of `add_many`, in the order of the jobs. A sequence of `EnqueueResult`.

    Items are created on access, because creating all of them at once would make large bulk adds
    slower (docs/performance.md).

    :param job_ids: the ids of the jobs.
    :param created: for each job whether the call added it.
    """

    __slots__ = ("_created", "job_ids")

    def __init__(self, job_ids: list[str], created: Sequence[bool]):
        self.job_ids = job_ids
        self._created = created

    def __len__(self) -> int:
        return len(self.job_ids)

    @overload
    def __getitem__(self, index: int) -> EnqueueResult: ...
    @overload
    def __getitem__(self, index: slice) -> EnqueueResults: ...
    def __getitem__(self, index: int | slice) -> EnqueueResult | EnqueueResults:
        if isinstance(index, slice):
            return EnqueueResults(self.job_ids[index], self._created[index])
        return EnqueueResult(self.job_ids[index], self._created[index])

    def __iter__(self) -> Iterator[EnqueueResult]:
        return map(EnqueueResult, self.job_ids, self._created)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(slots=True)
class Job:
    """A job as it is stored in the stream.

    :param id: the id.
    :param body: the payload as MessagePack. `payload` decodes it on first access.
    :param created_at_ms: when the job was added.
    :param attempt: the number of earlier attempts, 0 for the first. The wire counts from 0.
    :param retry: the retry policy, or None for the worker's.
    :param name: the job name.
    """

    id: str
    body: bytes
    created_at_ms: int
    attempt: int = 0
    retry: RetryPolicy | None = None
    name: str = ""
    _payload: Any = field(default=None, repr=False, compare=False)
    _decoded: bool = field(default=False, repr=False, compare=False)

    @property
    def payload(self) -> Any:
        """The decoded payload.

        :raises DecodeError: if the bytes are not MessagePack.
        """
        if not self._decoded:
            self._payload = decode_payload(self.body)
            self._decoded = True
        return self._payload


@dataclass(slots=True)
class StreamEntry:
    """A stream entry that was delivered to a consumer, with the number of earlier deliveries."""

    id: str
    job: Job
    previous_deliveries: int = 0
    idle_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry of the dead-letter queue.

    :param id: the id of the entry in the dead-letter queue.
    :param source_id: the id of the entry in the queue's stream.
    :param reason: why the job was dead-lettered, for example `retries_exhausted`.
    :param detail: more about the reason.
    :param job_name: the job name.
    :param raw: the bytes of the job.
    :param job: the decoded job, or None if the bytes cannot be decoded.
    :param error: the message of the last error.
    :param attempts: the number of attempts.
    :param failed_at_ms: when the last attempt failed.
    """

    id: str
    source_id: str
    reason: str
    detail: str | None
    job_name: str
    raw: bytes
    job: Job | None
    error: str | None = None
    attempts: int | None = None
    failed_at_ms: int | None = None

    @property
    def job_id(self) -> str | None:
        """The id of the job, or None if the bytes cannot be decoded."""
        return self.job.id if self.job else None


@dataclass(frozen=True, slots=True)
class InvalidEntry:
    """A stream entry that cannot be decoded, with the reason for its dead letter."""

    id: str
    raw: bytes
    job_name: str
    reason: str
    detail: str | None
    previous_deliveries: int = 0
