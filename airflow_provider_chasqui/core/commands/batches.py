"""Batches: enqueue the jobs of a batch exactly once, in parts, and read its progress."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

from airflow_provider_chasqui.core.batch import (
    BATCH_TTL_MS,
    MAX_INDEX,
    MAX_PARTS,
    Batch,
    BatchPosition,
    BatchProgress,
    EncodedChunk,
    batch_error,
    batch_job_id,
    iter_set_bits,
)
from airflow_provider_chasqui.core.chunk_reader import ChunkReader, JobBlock
from airflow_provider_chasqui.core.chunking import (
    MAX_CHUNK_JOBS,
    MAX_PIPELINE_BYTES,
    MAX_PIPELINE_CHUNKS,
    chunked,
)
from airflow_provider_chasqui.core.codec import encode_delayed_member, encode_job_name
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    DeferredCommand,
    as_bool,
    as_int,
    as_pairs,
    as_raw,
    as_score_ms,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.enqueue import ReplicationWaiter
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BatchChanged, DecodeError, InvalidArgument
from airflow_provider_chasqui.core.job_encoder import build_envelopes
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.resp import Arg
from airflow_provider_chasqui.core.retry import RetryPolicy

CancelBatchResult = Literal["cancelled", "already_cancelled", "finished", "not_owner"]

_INT_FIELDS = frozenset(("total", "parts", "created", "cancelled"))


class PartOptions:
    """Options of all jobs of one part of a batch.

    :param job_name: the name of the jobs.
    :param retry: the retry policy of the jobs; None for that of the worker.
    :param run_at_ms: when the jobs become due, in milliseconds; None for now.
    :param source: who enqueued the batch, for the UI.
    :param ttl_ms: how long the state of the batch is stored, in milliseconds.
    :param owner: the owner of the batch, if it has none yet.
    """

    __slots__ = ("job_name", "owner", "retry", "run_at_ms", "source", "ttl_ms")

    def __init__(
        self,
        job_name: str = "",
        retry: RetryPolicy | None = None,
        run_at_ms: int | None = None,
        source: str = "",
        ttl_ms: int = BATCH_TTL_MS,
        owner: str = "",
    ):
        self.job_name = encode_job_name(job_name)
        self.retry = retry
        self.run_at_ms = run_at_ms
        self.source = source
        self.ttl_ms = ttl_ms
        self.owner = owner

    def ttl_from(self, now_ms: int) -> int:
        """Return how long the batch is stored from now on. A delay of the jobs is added.

        :param now_ms: the current time in milliseconds.
        """
        return self.ttl_ms + max(0, (self.run_at_ms or now_ms) - now_ms)


def add(
    keys: Keys,
    batch_id: str,
    chunks: Iterable[EncodedChunk],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> CommandFlow[Batch]:
    """Enqueue a batch of one part and finalize it.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param chunks: the jobs.
    :param options: the options of the jobs.
    :param config: the configuration of the queue.
    :param now_ms: the current time in milliseconds.
    :raises ReplicationTimeout: if the write concern was not met.
    """
    replication_waiter = ReplicationWaiter(keys, config)
    position = BatchPosition(batch_id, 0, 0)
    encoder = _PartEncoder(position, chunks, options, config, now_ms)
    yield from encoder.skip_sent(keys, is_complete=True)
    commands: list[DeferredCommand[int]] = []
    for next_commands in encoder.build_pipelines(keys):
        if commands:
            yield from replication_waiter.send(commands)
        commands = next_commands
    # The total is sent with the last jobs, so that a small batch needs one round trip.
    total = encoder.position.index
    finalize_command = finalize(keys, batch_id, total, 1, options, now_ms)
    yield from replication_waiter.send([*commands, finalize_command])
    replication_waiter.check()
    return Batch(keys.queue_name, batch_id, total, 1)


def add_part(
    keys: Keys,
    position: BatchPosition,
    chunks: Iterable[EncodedChunk],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> CommandFlow[int]:
    """Enqueue the jobs of one part of a batch.

    Jobs that were sent before are not sent again; they are only compared with the stored digest.
    The chunks of a part must arrive in order. The script refuses a gap, so after a lost connection
    the whole pipeline is sent again and jobs that had arrived are skipped. If the queue has a
    `max_len`, chunks are sent one at a time.

    :param keys: the keys of the queue.
    :param position: the batch, the part and the index of the first job.
    :param chunks: the jobs.
    :param options: the options of the jobs.
    :param config: the configuration of the queue.
    :param now_ms: the current time in milliseconds.
    :return: the index after the last job.
    :raises InvalidArgument: if the part has too many jobs.
    :raises BatchCancelled: if the batch is cancelled.
    :raises BatchChanged: if other payloads were sent before.
    :raises ReplicationTimeout: if the write concern was not met.
    """
    replication_waiter = ReplicationWaiter(keys, config)
    encoder = _PartEncoder(position, chunks, options, config, now_ms)
    yield from encoder.skip_sent(keys)
    for commands in encoder.build_pipelines(keys):
        yield from replication_waiter.send(commands)
    replication_waiter.check()
    return encoder.position.index


@dataclass(frozen=True, slots=True)
class _PartState:
    """What was sent of a part before: the number of jobs, and a hash of their payloads."""

    sent: int
    digest: str
    total: int | None
    cancelled: bool


def _get_part_state(keys: Keys, position: BatchPosition) -> Command[_PartState]:
    def parse(reply: Any) -> _PartState:
        sent, digest, total, cancelled = reply
        return _PartState(
            int(sent or 0),
            (digest or b"").decode("utf-8", "replace"),
            None if total is None else int(total),
            cancelled is not None,
        )

    fields = (f"sent:{position.part}", f"digest:{position.part}", "total", "cancelled")
    return redis_command("HMGET", keys.batch(position.batch_id), *fields, parse=parse)


class _PartEncoder:
    """Encodes the jobs of a part, and hashes their payloads and keys in the same pass.

    The digest after n jobs is a hash of the payloads of the first n jobs, each followed by its key
    if the batch has keys. So a second send can compare what was sent before it was interrupted.
    MessagePack values delimit themselves, therefore the hash of their concatenation is unambiguous.
    A part that is sent from another index than 0 has no digest, because the payloads before that
    index are not known here.
    """

    def __init__(
        self,
        position: BatchPosition,
        chunks: Iterable[EncodedChunk],
        options: PartOptions,
        config: QueueConfig,
        now_ms: int,
    ):
        self.position = position
        self._reader = ChunkReader(chunks, options.job_name)
        self._options = options
        self._config = config
        self._now_ms = now_ms
        self._hash = hashlib.blake2b(digest_size=16) if position.index == 0 else None

    @property
    def digest(self) -> str:
        """The hash of the jobs up to `position`, or an empty string if it is not known."""
        return "" if self._hash is None else self._hash.hexdigest()

    def skip_sent(self, keys: Keys, *, is_complete: bool = False) -> CommandFlow[None]:
        """Consume the jobs that were sent before, and compare them.

        A part of one chunk is sent without reading its state first: the script compares it.

        :param keys: the keys of the queue.
        :param is_complete: whether these are all jobs of the part. Then fewer than were sent before
            are an error.
        :raises BatchCancelled: if the batch is cancelled.
        :raises BatchChanged: if other payloads were sent before, or the batch was finalized with
            fewer jobs.
        """
        if not self._reader.has_more_than(MAX_CHUNK_JOBS):
            return
        state: _PartState = yield _get_part_state(keys, self.position)
        if state.cancelled:
            raise batch_error("CHASQUICANCELLED", "")
        remaining = state.sent - self.position.index
        while remaining > 0 and (block := self._reader.read(min(remaining, MAX_CHUNK_JOBS))):
            self._pass(block)
            remaining -= len(block.payloads)
        part = f"part {self.position.part} of batch {self.position.batch_id!r}"
        if remaining > 0:
            if is_complete:
                raise BatchChanged(
                    f"{part} has {self.position.index} payloads now, but {state.sent} jobs were "
                    "sent before; send them under another batch_id"
                )
            return
        if self._hash is not None and state.digest not in ("", self.digest):
            raise BatchChanged(
                f"the payloads of {part} differ: {state.sent} jobs were sent before, and the first "
                f"{state.sent} payloads are not the same now; send them under another batch_id"
            )
        if state.total is not None and self._reader.has_more_than(0):
            raise BatchChanged(
                f"{part} has more payloads than before: it was already finalized with "
                f"{state.sent} jobs; send them under another batch_id"
            )

    def build_pipelines(self, keys: Keys) -> Iterator[list[DeferredCommand[int]]]:
        """Yield the commands of one pipeline after the other and move the position behind them.

        :param keys: the keys of the queue.
        """
        max_chunks = 1 if self._config.max_len else MAX_PIPELINE_CHUNKS
        for pipeline in chunked(
            self._read_chunks(), lambda chunk: chunk.size, max_chunks, MAX_PIPELINE_BYTES
        ):
            yield [
                DeferredCommand(
                    "add_batch_part",
                    partial(_add_command, keys, chunk, self._options, self._config, self._now_ms),
                )
                for chunk in pipeline
            ]

    def _read_chunks(self) -> Iterator[_PartChunk]:
        """Encode the jobs that were not sent before, in chunks of one script call."""
        while block := self._reader.read():
            position, digest = self.position, self.digest
            jobs = len(block.payloads)
            if position.index + jobs > MAX_INDEX + 1:
                raise InvalidArgument(
                    f"a part of a batch can have at most {MAX_INDEX + 1} jobs; use several parts"
                )
            job_ids = [
                batch_job_id(position.batch_id, position.part, index)
                for index in range(position.index, position.index + jobs)
            ]
            envelopes = build_envelopes(
                job_ids, block.payloads, self._config, self._now_ms, self._options.retry
            )
            self._pass(block)
            size = sum(map(len, envelopes)) + sum(map(len, block.keys))
            yield _PartChunk(
                position, envelopes, block.job_names, block.keys, (digest, self.digest), size
            )

    def _pass(self, block: JobBlock) -> None:
        """Move the position behind a block."""
        if self._hash is not None:
            self._hash.update(block.content())
        index = self.position.index + len(block.payloads)
        self.position = replace(self.position, index=index)


@dataclass(frozen=True, slots=True)
class _PartChunk:
    """The jobs of one script call.

    :param position: the position of the first job.
    :param envelopes: the `d` fields of the jobs.
    :param job_names: the encoded names of the jobs.
    :param keys: the encoded keys of the jobs; empty if the batch has no keys.
    :param digests: the digests of the part before and after these jobs.
    :param size: the size of the jobs and keys in bytes.
    """

    position: BatchPosition
    envelopes: Sequence[bytes]
    job_names: Sequence[bytes]
    keys: Sequence[bytes]
    digests: tuple[str, str]
    size: int


def add_chunk(
    keys: Keys,
    position: BatchPosition,
    chunk: EncodedChunk,
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Command[int]:
    """Enqueue a chunk of a part in one script call.

    :param keys: the keys of the queue.
    :param position: the batch, the part and the index of the first job.
    :param chunk: the jobs, at most as many as fit into one call.
    :param options: the options of the jobs.
    :param config: the configuration of the queue.
    :param now_ms: the current time in milliseconds.
    :return: a command that returns the number of jobs that were created.
    """
    ((command,),) = _PartEncoder(position, [chunk], options, config, now_ms).build_pipelines(keys)
    return command.build()


def _add_command(
    keys: Keys, chunk: _PartChunk, options: PartOptions, config: QueueConfig, now_ms: int
) -> Command[int]:
    position = chunk.position
    args: list[Arg] = [
        config.max_len or 0,
        position.part,
        position.index,
        options.run_at_ms or 0,
        options.ttl_from(now_ms),
        now_ms,
        options.source,
        options.owner,
        *chunk.digests,
        b"".join(chunk.keys),
        struct.pack(f">{len(chunk.keys)}H", *map(len, chunk.keys)),
    ]
    for envelope, job_name in zip(chunk.envelopes, chunk.job_names, strict=True):
        if options.run_at_ms:
            args += (encode_delayed_member(job_name, envelope), b"")
        else:
            args += (envelope, job_name)
    key_names = [
        keys.stream,
        keys.delayed,
        keys.batch(position.batch_id),
        keys.batch_done(position.batch_id, position.part),
        keys.batch_dead(position.batch_id, position.part),
        keys.batch_keys(position.batch_id, position.part),
    ]
    return script_command("add_batch_part", as_int, key_names, args)


def finalize(
    keys: Keys, batch_id: str, total: int, parts: int, options: PartOptions, now_ms: int
) -> Command[int]:
    """Write the total number of jobs. Only a finalized batch can finish.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param total: the number of jobs in all parts.
    :param parts: the number of parts.
    :param options: the options; only `source`, `ttl_ms` and `owner` are used.
    :param now_ms: the current time in milliseconds.
    """
    args: list[Arg] = [total, parts, now_ms, options.source, options.ttl_from(now_ms)]
    args.append(options.owner)
    key_names = [keys.batch(batch_id), *_bitmap_keys(keys, batch_id, parts)]
    key_names += [keys.batch_keys(batch_id, part) for part in range(parts)]
    return script_command("finalize_batch", as_int, key_names, args)


def progress(keys: Keys, batch_id: str) -> CommandFlow[BatchProgress | None]:
    """Return the progress of a batch, or None if it does not exist.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :raises DecodeError: if the hash of the batch is not readable.
    """
    fields = yield redis_command("HGETALL", keys.batch(batch_id), parse=_parse_fields)
    return (yield from _read_progress(keys, batch_id, fields, []))


def attach(keys: Keys, batch_id: str, owner: str) -> CommandFlow[BatchProgress | None]:
    """Store the owner of a batch and return its progress, or None if it does not exist.

    A batch of one part needs one round trip, others need two.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param owner: the new owner.
    """
    fields, counts = yield attach_command(keys, batch_id, owner)
    return (yield from _read_progress(keys, batch_id, fields, counts))


def attach_command(
    keys: Keys, batch_id: str, owner: str
) -> Command[tuple[dict[str, str], list[int]]]:
    """Store the owner of a batch and read its fields and the counts of its first part.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param owner: the new owner.
    :return: a command that returns the fields and the number of done and of dead jobs.
    """
    key_names = [keys.batch(batch_id), *_bitmap_keys(keys, batch_id, 1)]
    return script_command(
        "attach_batch", lambda reply: (_parse_fields(reply[0]), reply[1]), key_names, [owner]
    )


def cancel(
    keys: Keys, batch_id: str, owner: str | None, token: str
) -> CommandFlow[CancelBatchResult | None]:
    """Cancel a batch.

    A batch of one part needs one round trip, others need two.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param owner: cancel only if this is the stored owner; None cancels in any case.
    :param token: identifies this call, so that a resend returns the same result.
    :return: the result, or None if the batch does not exist.
    """
    status, parts = yield cancel_command(keys, batch_id, owner, token, 1)
    while status == "other_parts":
        status, parts = yield cancel_command(keys, batch_id, owner, token, parts)
    return None if status == "missing" else status


def cancel_command(
    keys: Keys, batch_id: str, owner: str | None, token: str, parts: int
) -> Command[tuple[Any, int]]:
    """Cancel a batch whose number of parts is known.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param owner: cancel only if this is the stored owner; None cancels in any case.
    :param token: identifies the call.
    :param parts: the number of parts. The script needs the bitmaps of all of them.
    :return: a command that returns the result and the number of parts of the batch. The result is
        `missing` if the batch does not exist, or `other_parts` if it has another number of parts.
    """
    key_names = [keys.batch(batch_id), keys.cancelled_batches]
    key_names += _bitmap_keys(keys, batch_id, parts)
    args: list[Arg] = [batch_id, int(owner is not None), owner or "", token, BATCH_TTL_MS]
    return script_command(
        "cancel_batch", lambda reply: (reply[0].decode(), reply[1]), key_names, args
    )


def cancelled_after(keys: Keys, score: int, limit: int) -> Command[list[tuple[str, int]]]:
    """Read the batches that were cancelled after a known one, the oldest first.

    Some of them may have expired.

    :param keys: the keys of the queue.
    :param score: the score of the last known batch; 0 for all.
    :param limit: the maximum number of batches.
    :return: a command that returns ids and scores.
    """
    return redis_command(
        "ZRANGEBYSCORE",
        keys.cancelled_batches,
        f"({score}",
        "+inf",
        "WITHSCORES",
        "LIMIT",
        0,
        limit,
        parse=_parse_cancelled_batches,
    )


def _parse_cancelled_batches(reply: Any) -> list[tuple[str, int]]:
    return [
        (member.decode("utf-8", "replace").partition(":")[2], as_score_ms(score))
        for member, score in as_pairs(reply)
    ]


def is_cancelled(keys: Keys, batch_id: str) -> Command[bool]:
    """Return whether a batch is cancelled.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    """
    return redis_command("HEXISTS", keys.batch(batch_id), "cancelled", parse=as_bool)


def _bitmap_keys(keys: Keys, batch_id: str, parts: int) -> list[str]:
    """Return the keys of the done bitmaps of all parts, then those of the dead bitmaps."""
    done = [keys.batch_done(batch_id, part) for part in range(parts)]
    return done + [keys.batch_dead(batch_id, part) for part in range(parts)]


def _read_progress(
    keys: Keys, batch_id: str, fields: dict[str, str], counts: list[int]
) -> CommandFlow[BatchProgress | None]:
    """Return the progress; read the bitmaps unless `counts` has the counts of all parts."""
    if not fields:
        return None
    try:
        numbers = {name: int(value) for name, value in fields.items() if name in _INT_FIELDS}
        sent = {int(name[5:]): int(value) for name, value in fields.items() if name[:5] == "sent:"}
    except ValueError as cause:
        raise DecodeError(
            f"the hash of batch {batch_id!r} has a field that must be an integer and is not; find "
            "the program that writes to this queue's keys, and delete the batch"
        ) from cause
    parts = numbers.get("parts", max(sent, default=-1) + 1)
    if not 0 < parts <= MAX_PARTS:
        counts = []
    elif len(counts) != 2 * parts:
        bitmap_keys = _bitmap_keys(keys, batch_id, parts)
        counts = yield [redis_command("BITCOUNT", key, parse=as_int) for key in bitmap_keys]
    return BatchProgress(
        batch_id=batch_id,
        total=numbers.get("total"),
        parts=parts,
        enqueued=sum(sent.values()),
        done=sum(counts[:parts]),
        dead=sum(counts[parts:]),
        created_at_ms=numbers.get("created"),
        source=fields.get("source", ""),
        cancelled_at_ms=numbers.get("cancelled"),
        owner=fields.get("owner", ""),
        digest=_combine_digests(fields, parts),
    )


def _combine_digests(fields: dict[str, str], parts: int) -> str:
    """Return the digest of the only part, or a hash of the digests of all parts."""
    if parts == 1:
        return fields.get("digest:0", "")
    digests = [fields.get(f"digest:{part}", "") for part in range(parts)] if parts > 0 else []
    if not digests or not all(digests):
        return ""
    return hashlib.blake2b(",".join(digests).encode(), digest_size=16).hexdigest()


def _parse_fields(reply: Any) -> dict[str, str]:
    return {name.decode(): value.decode("utf-8", "replace") for name, value in as_pairs(reply)}


def dead_job_ids(keys: Keys, batch_id: str, parts: int, limit: int) -> CommandFlow[list[str]]:
    """Return the ids of the dead jobs of a batch, in order.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param parts: the number of parts of the batch.
    :param limit: the maximum number of ids.
    """
    job_ids: list[str] = []
    for part in range(parts):
        bitmap = yield redis_command("GET", keys.batch_dead(batch_id, part), parse=as_raw)
        indexes = islice(iter_set_bits(bitmap or b""), limit - len(job_ids))
        job_ids += [batch_job_id(batch_id, part, index) for index in indexes]
        if len(job_ids) >= limit:
            break
    return job_ids


def completion_bits(keys: Keys, position: BatchPosition) -> list[Command[int]]:
    """Return two commands that read the done bit and the dead bit of a job.

    :param keys: the keys of the queue.
    :param position: the position of the job in its batch.
    """
    bitmap_keys = (
        keys.batch_done(position.batch_id, position.part),
        keys.batch_dead(position.batch_id, position.part),
    )
    return [redis_command("GETBIT", key, position.index, parse=as_int) for key in bitmap_keys]
