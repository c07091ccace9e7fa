"""Results: read the values that handlers returned.

A job outside a batch has a key of its own for its result, as in ChasquiMQ. The results of a batch
are in hashes of `BUCKET_SIZE` results each ("buckets"), because a key per result takes several
times its size in memory. `ack_with_results` writes both kinds.
"""

from __future__ import annotations

import gc
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, repeat
from typing import Any

import msgpack

from airflow_provider_chasqui.core.batch import (
    BatchPosition,
    batch_job_id,
    parse_batch_job_id,
)
from airflow_provider_chasqui.core.codec import decode_job_id
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_int,
    as_pairs,
    as_raw,
    redis_command,
)
from airflow_provider_chasqui.core.commands.dead_letters import parse_dead_letter
from airflow_provider_chasqui.core.commands.pages import MAX_PAGE_BYTES, read_entry, read_page
from airflow_provider_chasqui.core.errors import BatchNotFound, DecodeError
from airflow_provider_chasqui.core.job import DeadLetter
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.payload import decode_payload
from airflow_provider_chasqui.core.results import BUCKET_SIZE, BatchJobStatus, BatchResult
from airflow_provider_chasqui.core.stream_id import StreamId

# The only key of the mapping that is stored in place of a result that cannot be stored.
ERROR_FIELD = "chasqui_error"

_ENCODED_ERROR_FIELD = msgpack.packb(ERROR_FIELD)
_FIELDS = [b"%d" % field for field in range(BUCKET_SIZE)]
_EMPTY_BUCKET: list[bytes | None] = [None] * BUCKET_SIZE
_BUCKET_BITMAP_BYTES = BUCKET_SIZE // 8
_RESULTS_PER_PIPELINE = 256
_DEAD_LETTERS_PER_SCAN = 500
# Enough for the fields of a dead letter; its job may be cut after the id.
_MAX_VALUE_BYTES = 4096
# Dead letters that are older than the batch by more than this cannot belong to it, whatever the
# difference between the clocks of the producer and the server.
_MAX_CLOCK_SKEW_MS = 3600 * 1000
# Part, index, and the id of the dead letter.
_DEAD_LETTER_RECORD = struct.Struct(">IIQQ")
_new_result = partial(tuple.__new__, BatchResult)


# Single results


def get_result(keys: Keys, job_id: str) -> CommandFlow[tuple[bool, Any]]:
    """Return whether a result is stored, and the result.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :raises DecodeError: if the stored result is not readable.
    """
    found = yield from get_results(keys, [job_id])
    return job_id in found, found.get(job_id)


def get_results(keys: Keys, job_ids: Iterable[str]) -> CommandFlow[dict[str, Any]]:
    """Return the stored results of jobs by job id.

    :param keys: the keys of the queue.
    :param job_ids: the ids of the jobs.
    :raises DecodeError: if a stored result is not readable.
    """
    job_ids = list(job_ids)
    found: dict[str, Any] = {}
    for start in range(0, len(job_ids), _RESULTS_PER_PIPELINE):
        chunk = job_ids[start : start + _RESULTS_PER_PIPELINE]
        bodies = yield from read_encoded_results(keys, chunk)
        for job_id, body in zip(chunk, bodies, strict=True):
            if body is not None:
                found[job_id] = _decode_result(job_id, body)
    return found


def read_encoded_results(keys: Keys, job_ids: Sequence[str]) -> CommandFlow[list[bytes | None]]:
    """Return the stored results of jobs as MessagePack, None for a job without one.

    The result of a batch's job has a key of its own if a worker of ChasquiMQ wrote it.

    :param keys: the keys of the queue.
    :param job_ids: the ids of the jobs.
    """
    commands: list[Command[Any]] = []
    for job_id in job_ids:
        if position := parse_batch_job_id(job_id):
            commands.append(_get_batch_result(keys, position))
        commands.append(redis_command("GET", keys.result(job_id), parse=as_raw))
    replies = iter((yield commands) if commands else ())
    bodies = []
    for job_id in job_ids:
        body = next(replies)
        if parse_batch_job_id(job_id):
            own_key = next(replies)
            body = own_key if body is None else body
        bodies.append(body)
    return bodies


def _get_batch_result(keys: Keys, position: BatchPosition) -> Command[Any]:
    bucket, field = divmod(position.index, BUCKET_SIZE)
    key = keys.batch_results(position.batch_id, position.part, bucket)
    return redis_command("HGET", key, field, parse=as_raw)


def _decode_result(job_id: str, body: bytes) -> Any:
    try:
        return decode_payload(body)
    except DecodeError as error:
        error.job_id = job_id
        raise


# Results of a batch


@dataclass(frozen=True, slots=True)
class ResultPage:
    """The stored state of successive jobs of a batch part.

    :param created: the time at which the batch was created, as stored; None if it does not exist.
    :param cancelled: whether the batch is cancelled.
    :param start: the index of the first job.
    :param done: a character per job, "1" if its done bit is set.
    :param dead: a character per job, "1" if its dead bit is set.
    :param bodies: the results as MessagePack, None for a job without a result.
    """

    created: bytes | None
    cancelled: bool
    start: int
    done: str
    dead: str
    bodies: list[bytes | None]


def read_result_page(
    keys: Keys, batch_id: str, part: int, start: int, stop: int
) -> CommandFlow[ResultPage]:
    """Read the bits, then the results of successive jobs, of `MAX_PAGE_BYTES` at most.

    The bit of a job is set together with its result, so the results of all jobs whose bit is set
    are found. A result that is larger than a page has a page to itself.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param part: the number of the part.
    :param start: the index of the first job.
    :param stop: the index after the last job. The page may end before it.
    """
    first_bucket, first_field = divmod(start, BUCKET_SIZE)
    bucket_keys = [
        keys.batch_results(batch_id, part, bucket)
        for bucket in range(first_bucket, (stop - 1) // BUCKET_SIZE + 1)
    ]
    byte_range = (first_bucket * _BUCKET_BITMAP_BYTES, stop // 8)
    (created, cancelled), done, dead, *sizes = yield [
        redis_command("HMGET", keys.batch(batch_id), "created", "cancelled", parse=as_raw),
        redis_command("GETRANGE", keys.batch_done(batch_id, part), *byte_range, parse=as_raw),
        redis_command("GETRANGE", keys.batch_dead(batch_id, part), *byte_range, parse=as_raw),
        *[
            redis_command("MEMORY", "USAGE", key, "SAMPLES", 0, parse=lambda reply: reply or 0)
            for key in bucket_keys
        ],
    ]
    count = bisect_right(list(accumulate(sizes)), MAX_PAGE_BYTES)
    if count:
        commands = [
            redis_command("HGETALL", key, parse=_parse_bucket)
            for key, size in zip(bucket_keys[:count], sizes, strict=False)
            if size
        ]
        rows = iter((yield commands) if commands else ())
        bodies = list(
            chain.from_iterable(next(rows) if size else _EMPTY_BUCKET for size in sizes[:count])
        )[first_field:]
        stop = min(stop, (first_bucket + count) * BUCKET_SIZE)
    else:
        bodies = yield from _read_large_bucket(bucket_keys[0], first_field)
        stop = min(stop, start + len(bodies))
    window = slice(first_field, first_field + stop - start)
    return ResultPage(
        created,
        cancelled is not None,
        start,
        _format_bits(done, len(bucket_keys))[window],
        _format_bits(dead, len(bucket_keys))[window],
        bodies[: stop - start],
    )


def _parse_bucket(reply: Sequence[Any]) -> list[bytes | None]:
    return list(map(dict(zip(reply[::2], reply[1::2], strict=True)).get, _FIELDS))


def _read_large_bucket(key: str, first_field: int) -> CommandFlow[list[bytes | None]]:
    """Return results of a bucket from a field on, as many as a page has, at least one."""
    fields = range(first_field, BUCKET_SIZE)
    lengths = yield [redis_command("HSTRLEN", key, field, parse=as_int) for field in fields]
    count = max(1, bisect_right(list(accumulate(lengths)), MAX_PAGE_BYTES))
    bodies: list[bytes | None] = yield redis_command("HMGET", key, *fields[:count], parse=as_raw)
    return bodies


def _format_bits(bitmap: bytes, buckets: int) -> str:
    """Return a bitmap as text, a character per bit. Missing bytes at the end are zero."""
    padded = bitmap.ljust(buckets * BUCKET_SIZE // 8, b"\0")
    return f"{int.from_bytes(padded, 'big'):0{buckets * BUCKET_SIZE}b}"


class BatchResultReader:
    """Reads the results of a batch page by page, in the order of parts and indexes.

    Its memory does not grow with the number of results. Of each dead job it remembers where its
    dead letter is.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param page_size: the maximum number of results per page.
    """

    def __init__(self, keys: Keys, batch_id: str, page_size: int):
        self._keys = keys
        self._batch_id = batch_id
        self._page_size = page_size
        self._created: bytes | None = None
        # The parts that are not read to the end yet: number, next index, number of jobs.
        self._parts: list[tuple[int, int, int]] | None = None
        self._part_numbers: list[int] = []
        self._key_blocks: list[int] = []
        self._dead_letters: list[bytes] | None = None

    def next_page(self) -> CommandFlow[list[BatchResult]]:
        """Return the next page, which is empty only at the end of the batch.

        :raises BatchNotFound: if the batch does not exist, or expired while it was being read.
        :raises DecodeError: if a stored value is not readable.
        """
        if self._parts is None:
            self._parts = yield from self._read_parts()
        if not self._parts:
            return []
        part, start, total = self._parts[-1]
        stop = min(total, start + self._page_size)
        if start == 0:
            self._key_blocks = yield _list_key_blocks(self._keys, self._batch_id, part)
        page = yield from read_result_page(self._keys, self._batch_id, part, start, stop)
        if page.created is None or page.created != self._created:
            raise self._not_found("has expired or was sent again while it was being read")
        stop = start + len(page.done)
        if stop < total:
            self._parts[-1] = part, stop, total
        else:
            self._parts.pop()
        row_keys: list[Any] = [None] * len(page.done)
        if block_starts := _covering_blocks(self._key_blocks, start, stop):
            key_name = self._keys.batch_keys(self._batch_id, part)
            blocks = yield redis_command("HMGET", key_name, *block_starts, parse=as_raw)
            row_keys = _join_key_blocks(block_starts, blocks, start, stop)
        return (yield from self._build_results(part, page, row_keys))

    def _read_parts(self) -> CommandFlow[list[tuple[int, int, int]]]:
        reply = yield redis_command("HGETALL", self._keys.batch(self._batch_id), parse=as_pairs)
        fields = dict(reply)
        if not fields:
            raise self._not_found("does not exist or has expired")
        self._created = fields.get(b"created")
        sent = {int(name[5:]): int(value) for name, value in reply if name[:5] == b"sent:"}
        self._part_numbers = list(sent)
        # The next part is the last one.
        return [(part, 0, jobs) for part, jobs in sorted(sent.items(), reverse=True) if jobs]

    def _not_found(self, problem: str) -> BatchNotFound:
        return BatchNotFound(
            f"batch {self._batch_id!r} {problem}", queue_name=self._keys.queue_name
        )

    def _build_results(
        self, part: int, page: ResultPage, row_keys: Sequence[Any]
    ) -> CommandFlow[list[BatchResult]]:
        count = len(page.done)
        indexes = range(page.start, page.start + count)
        prefix = batch_job_id(self._batch_id, part, 0)[:-1]
        job_ids = map(prefix.__add__, map(str, indexes))
        statuses: Iterable[BatchJobStatus] = repeat("done", count)
        bodies = page.bodies
        dead_letters: dict[int, DeadLetter] = {}
        if "0" in page.done:
            unfinished: BatchJobStatus = "cancelled" if page.cancelled else "pending"
            statuses = [
                "done" if done == "1" else "dead" if dead == "1" else unfinished
                for done, dead in zip(page.done, page.dead, strict=True)
            ]
            # A job that was done once and is dead after a replay has an old result.
            bodies = [
                body if status == "done" else None
                for body, status in zip(bodies, statuses, strict=True)
            ]
            dead = [
                index for index, status in zip(indexes, statuses, strict=True) if status == "dead"
            ]
            if dead:
                dead_letters = yield from self._find_dead_letters(part, dead)
        with _paused_collector():
            results, errors = _decode_results(prefix, page.start, bodies)
            if not errors and not dead_letters:
                none = repeat(None)
                columns = (job_ids, repeat(part), indexes, row_keys, statuses, results)
                return list(map(_new_result, zip(*columns, none, none, none, none, strict=False)))
            rows = []
            for job_id, index, key, status, result in zip(
                job_ids, indexes, row_keys, statuses, results, strict=True
            ):
                dead_letter = dead_letters.get(index)
                if dead_letter is None:
                    error = errors.get(index)
                    rows.append(BatchResult(job_id, part, index, key, status, result, error))
                else:
                    error = dead_letter.error or dead_letter.detail
                    details = (error, dead_letter.reason or None, dead_letter.attempts)
                    rows.append(BatchResult(job_id, part, index, key, status, None, *details))
            return rows

    def _find_dead_letters(
        self, part: int, indexes: Sequence[int]
    ) -> CommandFlow[dict[int, DeadLetter]]:
        """Return the dead letters of jobs by index. Those that were deleted are left out."""
        if self._dead_letters is None:
            self._dead_letters = yield from self._scan_dead_letters()
        entry_ids = {}
        for index in indexes:
            # The last record of a job is its newest dead letter.
            end = _DEAD_LETTER_RECORD.pack(part, index, 2**64 - 1, 2**64 - 1)
            position = bisect_right(self._dead_letters, end) - 1
            if position >= 0:
                found_part, found_index, ms, seq = _DEAD_LETTER_RECORD.unpack(
                    self._dead_letters[position]
                )
                if (found_part, found_index) == (part, index):
                    entry_ids[index] = f"{ms}-{seq}"
        found: dict[int, DeadLetter] = {}
        items = list(entry_ids.items())
        for start in range(0, len(items), _DEAD_LETTERS_PER_SCAN):
            chunk = items[start : start + _DEAD_LETTERS_PER_SCAN]
            pages = yield [
                read_entry(self._keys.dlq, entry_id, max_value_bytes=_MAX_VALUE_BYTES)
                for _, entry_id in chunk
            ]
            for (index, _), page in zip(chunk, pages, strict=True):
                for entry in page.entries:
                    found[index] = parse_dead_letter(entry)
        return found

    def _scan_dead_letters(self) -> CommandFlow[list[bytes]]:
        """Return where the dead letters of the batch are, sorted by part, index and id.

        The scan goes back from the newest one and ends when it has found all, or at dead letters
        that are older than the batch.
        """
        counts = yield [
            redis_command("BITCOUNT", self._keys.batch_dead(self._batch_id, part), parse=as_int)
            for part in self._part_numbers
        ]
        records: list[bytes] = []
        oldest_ms = int(self._created or 0) - _MAX_CLOCK_SKEW_MS
        end, has_more = "+", True
        while has_more and len(records) < sum(counts):
            page = yield read_page(
                self._keys.dlq,
                end,
                "-",
                _DEAD_LETTERS_PER_SCAN,
                newest_first=True,
                max_value_bytes=_MAX_VALUE_BYTES,
            )
            has_more = page.has_more
            for raw_id, fields, _ in page.entries:
                entry_id = StreamId.parse(raw_id)
                envelope = dict(as_pairs(fields)).get(b"d", b"")
                position = parse_batch_job_id(decode_job_id(envelope))
                if position and position.batch_id == self._batch_id:
                    records.append(
                        _DEAD_LETTER_RECORD.pack(position.part, position.index, *entry_id)
                    )
                if entry_id.ms < oldest_ms:
                    has_more = False
                end = f"({entry_id}"
        records.sort()
        return records


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Pause the garbage collector, which takes as long as decoding a page of small results."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _list_key_blocks(keys: Keys, batch_id: str, part: int) -> Command[list[int]]:
    """Return the index of the first job of each stored block of input keys, in order."""
    return redis_command(
        "HKEYS",
        keys.batch_keys(batch_id, part),
        parse=lambda reply: sorted(int(field) for field in reply),
    )


def _covering_blocks(block_starts: Sequence[int], start: int, stop: int) -> Sequence[int]:
    """Return the starts of the blocks that have the keys of these jobs."""
    first = max(0, bisect_right(block_starts, start) - 1)
    return block_starts[first : bisect_left(block_starts, stop)]


def _join_key_blocks(
    block_starts: Sequence[int], blocks: Sequence[bytes | None], start: int, stop: int
) -> list[Any]:
    """Return the input keys of jobs. Blocks may overlap if the batch was sent in several tries."""
    row_keys: list[Any] = [None] * (stop - start)
    for block_start, block in zip(block_starts, blocks, strict=True):
        values = decode_payload(block) if block is not None else []
        first, last = max(start, block_start), min(stop, block_start + len(values))
        if first < last:
            row_keys[first - start : last - start] = values[
                first - block_start : last - block_start
            ]
    return row_keys


def _decode_results(
    prefix: str, start: int, bodies: Sequence[bytes | None]
) -> tuple[list[Any], dict[int, str]]:
    """Return the results, and by index the errors that are stored in place of a result."""
    stored = [body for body in bodies if body is not None]
    encoded = b"".join(stored)
    try:
        # One array of all results is decoded several times faster than each of them separately.
        values = decode_payload(b"\xdd" + len(stored).to_bytes(4, "big") + encoded)
    except DecodeError:
        values = []
        for index, body in enumerate(bodies, start):
            if body is not None:
                values.append(_decode_result(f"{prefix}{index}", body))
    results: list[Any] = values
    if len(stored) < len(bodies):
        remaining = iter(values)
        results = [None if body is None else next(remaining) for body in bodies]
    errors: dict[int, str] = {}
    if _ENCODED_ERROR_FIELD in encoded:
        for index, result in enumerate(results, start):
            if isinstance(result, dict) and result.keys() == {ERROR_FIELD}:
                errors[index] = str(result[ERROR_FIELD])
                results[index - start] = None
    return results, errors
