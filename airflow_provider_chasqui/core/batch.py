"""Batches: job ids that say which batch they belong to, and what is known of its progress."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.keys import BATCH_PREFIX

BATCH_TTL_MS = 30 * 24 * 3600 * 1000
MAX_PARTS = 100_000
MAX_INDEX = 2**32 - 1

_BATCH_ID_PATTERN = re.compile(r"[A-Za-z0-9._~@+-]{1,200}\Z")
_JOB_ID_PATTERN = re.compile(r"batch:(.+):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,9})\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """Where a job stands in its batch."""

    batch_id: str
    part: int
    index: int


def batch_job_id(batch_id: str, part: int, index: int) -> str:
    return f"{BATCH_PREFIX}{batch_id}:{part}:{index}"


def parse_batch_job_id(job_id: str) -> BatchPosition | None:
    """Return the place that a job id names, or None if the job is of no batch."""
    if not job_id.startswith(BATCH_PREFIX) or not (match := _JOB_ID_PATTERN.match(job_id)):
        return None
    place = BatchPosition(match[1], int(match[2]), int(match[3]))
    return place if place.part < MAX_PARTS and place.index <= MAX_INDEX else None


def check_batch_id(batch_id: str) -> str:
    """Return the batch id, or raise: it becomes part of keys and job ids."""
    if not isinstance(batch_id, str) or not _BATCH_ID_PATTERN.match(batch_id):
        raise InvalidArgument(
            f"a batch id has 1 to 200 letters, digits or any of . _ ~ @ + - ; not {batch_id!r}"
        )
    return batch_id


def check_int(name: str, value: Any, minimum: int, maximum: int = 2**63 - 1) -> None:
    """Raise unless the value is a whole number from low to high."""
    if type(value) is not int or not minimum <= value <= maximum:
        raise InvalidArgument(
            f"{name} is a whole number from {minimum} to {maximum}, not {value!r}"
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that was handed off: what a waiter needs to follow it."""

    queue_name: str
    batch_id: str
    total: int
    parts: int = 1

    def job_ids(self) -> Iterator[str]:
        """The ids of a batch of one part, in order."""
        if self.parts != 1:
            raise InvalidArgument(
                "the parts of a batch know their own sizes; ask the queue",
                queue_name=self.queue_name,
            )
        return (batch_job_id(self.batch_id, 0, index) for index in range(self.total))


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch has come. `total` is None until every part was sent."""

    batch_id: str
    total: int | None
    parts: int
    enqueued: int
    done: int
    dead: int
    created_at_ms: int | None
    source: str

    @property
    def processed(self) -> int:
        return self.done + self.dead

    @property
    def finished(self) -> bool:
        return self.total is not None and self.processed >= self.total

    @property
    def remaining(self) -> int | None:
        return None if self.total is None else max(0, self.total - self.processed)


def iter_set_bits(bitmap: bytes) -> Iterator[int]:
    """Yield the index of every set bit, in Redis' order."""
    for byte_index, byte in enumerate(bitmap):
        if byte:
            for bit in range(8):
                if byte >> (7 - bit) & 1:
                    yield byte_index * 8 + bit
