"""Batches: the ids of their jobs, their positions and their progress."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.errors import (
    BatchCancelled,
    BatchChanged,
    BatchConflict,
    ChasquiError,
    InvalidArgument,
)
from airflow_provider_chasqui.core.keys import BATCH_PREFIX

BATCH_TTL_MS = 30 * 24 * 3600 * 1000
MAX_PARTS = 100_000
MAX_INDEX = 2**32 - 1

_BATCH_ID_PATTERN = re.compile(r"[A-Za-z0-9._~@+-]{1,200}\Z")
_JOB_ID_PATTERN = re.compile(r"batch:(.+):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,9})\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """The position of a job in its batch.

    :param batch_id: the id of the batch.
    :param part: the number of the part, from 0. Each producer of a batch writes its own parts.
    :param index: the index of the job in its part, from 0.
    """

    batch_id: str
    part: int
    index: int


def batch_job_id(batch_id: str, part: int, index: int) -> str:
    """Return the id of a batch's job."""
    return f"{BATCH_PREFIX}{batch_id}:{part}:{index}"


def parse_batch_job_id(job_id: str) -> BatchPosition | None:
    """Return the position that a job id encodes, or None if the job belongs to no batch."""
    if not job_id.startswith(BATCH_PREFIX) or not (match := _JOB_ID_PATTERN.match(job_id)):
        return None
    position = BatchPosition(match[1], int(match[2]), int(match[3]))
    return position if position.part < MAX_PARTS and position.index <= MAX_INDEX else None


def check_batch_id(batch_id: str) -> str:
    """Return the batch id if it may be part of keys and job ids.

    :raises InvalidArgument: if it is not 1 to 200 characters of the allowed ones.
    """
    if not isinstance(batch_id, str) or not _BATCH_ID_PATTERN.match(batch_id):
        raise InvalidArgument(
            "a batch id must have 1 to 200 characters out of A-Z, a-z, 0-9 and . _ ~ @ + -, "
            f"not {batch_id!r}"
        )
    return batch_id


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """Jobs of a batch whose payloads are already encoded, in the order of their indexes.

    :param payloads: one MessagePack value per job. The content is not checked.
    :param keys: the key of each job's input, for example the values of its key columns. Either all
        chunks of a batch have keys, or none has.
    :param job_names: the name of each job; None for the `job_name` of the batch.
    :raises InvalidArgument: if the numbers of payloads, keys and names differ.
    """

    payloads: Sequence[bytes]
    keys: Sequence[Any] | None = None
    job_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "job_names"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.payloads):
                raise InvalidArgument(
                    f"a chunk has {len(self.payloads)} payloads and {len(values)} {name}; pass one "
                    "per payload"
                )


@dataclass(frozen=True, slots=True)
class Batch:
    """An enqueued batch.

    :param queue_name: the queue of its jobs.
    :param batch_id: the id of the batch.
    :param total: the number of jobs.
    :param parts: the number of parts.
    """

    queue_name: str
    batch_id: str
    total: int
    parts: int = 1

    def job_ids(self) -> Iterator[str]:
        """Return the ids of all jobs in the order of their payloads.

        :raises InvalidArgument: if the batch has several parts, whose sizes only the server knows.
        """
        if self.parts != 1:
            raise InvalidArgument(
                "only the server knows the sizes of the parts of a batch; use Queue.batch_progress",
                queue_name=self.queue_name,
            )
        return (batch_job_id(self.batch_id, 0, index) for index in range(self.total))


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a batch.

    :param batch_id: the id of the batch.
    :param total: the number of jobs, or None until every part was enqueued.
    :param parts: the number of parts.
    :param enqueued: the number of jobs enqueued so far.
    :param done: the number of jobs that succeeded.
    :param dead: the number of jobs in the dead-letter queue.
    :param created_at_ms: the time of the first enqueue.
    :param source: the text that the producer passed as `source`.
    :param cancelled_at_ms: when the batch was cancelled, or None.
    :param owner: the owner that `add_batch` or `attach_batch` stored.
    :param digest: a hash of all payloads, or an empty string if it is not known.
    """

    batch_id: str
    total: int | None
    parts: int
    enqueued: int
    done: int
    dead: int
    created_at_ms: int | None
    source: str
    cancelled_at_ms: int | None = None
    owner: str = ""
    digest: str = ""

    @property
    def processed(self) -> int:
        """The number of jobs that succeeded or died."""
        return self.done + self.dead

    @property
    def finished(self) -> bool:
        """Whether every job has succeeded or died."""
        return self.total is not None and self.processed >= self.total

    @property
    def cancelled(self) -> bool:
        """Whether the batch was cancelled. Then `remaining` counts the jobs that do not run."""
        return self.cancelled_at_ms is not None

    @property
    def ended(self) -> bool:
        """Whether no job will run any more: the batch is finished or cancelled."""
        return self.finished or self.cancelled

    @property
    def remaining(self) -> int | None:
        """The number of jobs that have neither succeeded nor died, or None if unknown."""
        return None if self.total is None else max(0, self.total - self.processed)


def batch_error(code: str, detail: str) -> ChasquiError:
    """Return the error for an error reply of a script that changes a batch.

    :param code: the first word of the reply.
    :param detail: the rest of the reply.
    """
    match code:
        case "CHASQUIGAP":
            return BatchConflict(
                f"the parts of the batch do not add up: {detail} jobs were sent so far; send the "
                "missing parts first"
            )
        case "CHASQUIFINALIZED":
            return BatchConflict(
                f"the batch was already finalized with {detail} jobs; use another batch_id"
            )
        case "CHASQUICHANGED":
            part, _, sent = detail.partition(" ")
            return BatchChanged(
                f"the payloads of part {part} of the batch differ from the {sent} that were sent "
                "before; send the same payloads again, or the new ones under another batch_id"
            )
    return BatchCancelled(
        "the batch is cancelled and accepts no more jobs; send them under another batch_id"
    )


def iter_set_bits(bitmap: bytes) -> Iterator[int]:
    """Yield the index of every set bit, in the bit order of Redis."""
    for byte_index, byte in enumerate(bitmap):
        if byte:
            for bit in range(8):
                if byte >> (7 - bit) & 1:
                    yield byte_index * 8 + bit
