"""A job as the caller gives it, as the wire carries it, and as a worker receives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, overload

from airflow_provider_chasqui.core.payload import decode_payload
from airflow_provider_chasqui.core.retry import RetryPolicy


class NewJob(NamedTuple):
    """A job to be added: the payload and everything that may be said about it."""

    payload: Any = None
    job_name: str = ""
    job_id: str | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    retry: RetryPolicy | None = None
    dedup_ttl: timedelta | None = None

    @classmethod
    def coerce(cls, job: NewJob | Mapping[str, Any]) -> NewJob:
        return job if isinstance(job, NewJob) else cls(**job)


class EnqueueResult(NamedTuple):
    """What became of an add: the job's id, and whether this call is the one that added it."""

    job_id: str
    created: bool


class EnqueueResults(Sequence[EnqueueResult]):
    """What became of a bulk, in its order; reads like a list of `Added`.

    Each is made when it is looked at. All of them at once would make a bulk of a hundred thousand
    take nearly half as long again, for Python's collector would walk over them.
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
    """A job as the wire carries it; `body` is the payload's own MessagePack, decoded on demand."""

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
        """The caller's value. Raises DecodeError if the bytes are not MessagePack."""
        if not self._decoded:
            self._payload = decode_payload(self.body)
            self._decoded = True
        return self._payload


@dataclass(slots=True)
class StreamEntry:
    """One delivery of a job: the stream entry, and how often it was delivered before."""

    id: str
    job: Job
    previous_deliveries: int = 0
    idle_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead job. `job` is None where its bytes cannot be read; `raw` always holds them."""

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
        return self.job.id if self.job else None


@dataclass(frozen=True, slots=True)
class InvalidEntry:
    """A stream entry that cannot become a job, with the reason its letter will carry."""

    id: str
    raw: bytes
    job_name: str
    reason: str
    detail: str | None
    previous_deliveries: int = 0
