"""Results of the jobs of a batch."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

# The number of results that one hash holds. With more of them, or with results of more than 64
# bytes, the server stores the hash in a form that takes more memory.
BUCKET_SIZE = 128
DEFAULT_PAGE_SIZE = 4096

BatchJobStatus = Literal["done", "dead", "cancelled", "pending"]


class BatchResult(NamedTuple):
    """The outcome of one job of a batch.

    :param job_id: the id of the job.
    :param part: the number of its part, from 0.
    :param index: the index of the job in its part, from 0.
    :param key: the key of the input row, or None if the batch was sent without keys.
    :param status: `done`; `dead`; `cancelled` if the batch was cancelled before the job finished;
        `pending` if the job has not finished. A job that was cancelled on its own is `dead`.
    :param result: the return value of the handler. None if the job is not done, if the handler
        returned None, or if the worker does not store results.
    :param error: the error of a dead job, from its dead letter. Of a job that is done: why the
        result could not be stored, for example because it is too large.
    :param reason: why the job is dead, such as `retries_exhausted`. None if its dead letter was
        deleted, or if the job was cancelled on its own and therefore has none.
    :param attempts: the number of attempts of a dead job.
    :param duration_ms: how long the handler ran. None, because it is not stored.
    """

    job_id: str
    part: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    key: Any
    status: BatchJobStatus
    result: Any
    error: str | None = None
    reason: str | None = None
    attempts: int | None = None
    duration_ms: int | None = None
