"""Batches: enqueue the jobs of a batch exactly once, in parts, and read its progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from airflow_provider_chasqui.core.batch import (
    BATCH_TTL_MS,
    MAX_INDEX,
    MAX_PARTS,
    Batch,
    BatchPosition,
    BatchProgress,
    batch_job_id,
    iter_set_bits,
)
from airflow_provider_chasqui.core.chunking import (
    MAX_CHUNK_BYTES,
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
    as_int,
    as_pairs,
    as_raw,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.enqueue import ReplicationWaiter
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument
from airflow_provider_chasqui.core.job_encoder import build_envelopes
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.resp import Arg
from airflow_provider_chasqui.core.retry import RetryPolicy

_INT_FIELDS = frozenset(("total", "parts", "created"))


class PartOptions:
    """Options of all jobs of one part of a batch.

    :param job_name: the name of the jobs.
    :param retry: the retry policy of the jobs; None for that of the worker.
    :param run_at_ms: when the jobs become due, in milliseconds; None for now.
    :param source: who enqueued the batch, for the UI.
    :param ttl_ms: how long the state of the batch is stored, in milliseconds.
    """

    __slots__ = ("job_name", "retry", "run_at_ms", "source", "ttl_ms")

    def __init__(
        self,
        job_name: str = "",
        retry: RetryPolicy | None = None,
        run_at_ms: int | None = None,
        source: str = "",
        ttl_ms: int = BATCH_TTL_MS,
    ):
        self.job_name = encode_job_name(job_name)
        self.retry = retry
        self.run_at_ms = run_at_ms
        self.source = source
        self.ttl_ms = ttl_ms


def add(
    keys: Keys,
    batch_id: str,
    payloads: Iterable[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> CommandFlow[Batch]:
    """Enqueue a batch of one part and finalize it.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param payloads: the payloads of the jobs.
    :param options: the options of the jobs.
    :param config: the configuration of the queue.
    :param now_ms: the current time in milliseconds.
    :raises ReplicationTimeout: if the write concern was not met.
    """
    replication_waiter = ReplicationWaiter(keys, config)
    position = BatchPosition(batch_id, 0, 0)
    total = yield from add_part(
        keys, position, payloads, options, config, now_ms, replication_waiter
    )
    finalize_command = finalize(keys, batch_id, total, 1, options, now_ms)
    yield from replication_waiter.send([finalize_command])
    replication_waiter.check()
    return Batch(keys.queue_name, batch_id, total, 1)


def add_part(
    keys: Keys,
    position: BatchPosition,
    payloads: Iterable[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
    replication_waiter: ReplicationWaiter | None = None,
) -> CommandFlow[int]:
    """Enqueue the jobs of one part of a batch.

    The chunks of a part must arrive in order. The script refuses a gap, so after a lost connection
    the whole pipeline is sent again and jobs that had arrived are skipped. If the queue has a
    `max_len`, chunks are sent one at a time.

    :param keys: the keys of the queue.
    :param position: the batch, the part and the index of the first job.
    :param payloads: the payloads of the jobs.
    :param options: the options of the jobs.
    :param config: the configuration of the queue.
    :param now_ms: the current time in milliseconds.
    :param replication_waiter: sends the commands. The caller that passes one must call its
        `check()`.
    :return: the index after the last job.
    :raises InvalidArgument: if the part has too many jobs.
    :raises ReplicationTimeout: if the write concern was not met.
    """
    sender = replication_waiter or ReplicationWaiter(keys, config)
    index = position.index
    envelopes = _encode_envelopes(position, payloads, options, config, now_ms)
    chunks = chunked(envelopes, len, MAX_CHUNK_JOBS, MAX_CHUNK_BYTES)
    max_chunks = 1 if config.max_len else MAX_PIPELINE_CHUNKS
    pipelines = chunked(chunks, lambda chunk: sum(map(len, chunk)), max_chunks, MAX_PIPELINE_BYTES)
    for pipeline in pipelines:
        commands: list[DeferredCommand[int]] = []
        for chunk in pipeline:
            chunk_position = replace(position, index=index)
            build = partial(_add_command, keys, chunk_position, chunk, options, config, now_ms)
            commands.append(DeferredCommand("add_batch_part", build))
            index += len(chunk)
        yield from sender.send(commands)
    if replication_waiter is None:
        sender.check()
    return index


def add_chunk(
    keys: Keys,
    position: BatchPosition,
    payloads: Sequence[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Command[int]:
    """Enqueue a chunk of a part in one script call.

    :param keys: the keys of the queue.
    :param position: the batch, the part and the index of the first job.
    :param payloads: the payloads of the jobs.
    :param options: the options of the jobs.
    :param config: the configuration of the queue.
    :param now_ms: the current time in milliseconds.
    :return: a command that returns the number of jobs that were created.
    """
    envelopes = list(_encode_envelopes(position, payloads, options, config, now_ms))
    return _add_command(keys, position, envelopes, options, config, now_ms)


def _encode_envelopes(
    position: BatchPosition,
    payloads: Iterable[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Iterable[bytes]:
    # In blocks, because encoding jobs one by one is slower (see docs/performance.md).
    index, remaining = position.index, iter(payloads)
    while block := list(islice(remaining, MAX_CHUNK_JOBS)):
        if index + len(block) > MAX_INDEX + 1:
            raise InvalidArgument(
                f"a part of a batch can have at most {MAX_INDEX + 1} jobs; use several parts"
            )
        job_ids = [
            batch_job_id(position.batch_id, position.part, job_index)
            for job_index in range(index, index + len(block))
        ]
        yield from build_envelopes(job_ids, block, config, now_ms, options.retry)
        index += len(block)


def _add_command(
    keys: Keys,
    position: BatchPosition,
    envelopes: Sequence[bytes],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Command[int]:
    args: list[Arg] = [
        config.max_len or 0,
        position.part,
        position.index,
        options.run_at_ms or 0,
        options.ttl_ms,
        now_ms,
        options.source,
    ]
    for envelope in envelopes:
        if options.run_at_ms:
            args += (encode_delayed_member(options.job_name, envelope), b"")
        else:
            args += (envelope, options.job_name)
    return script_command(
        "add_batch_part", as_int, [keys.stream, keys.delayed, keys.batch(position.batch_id)], args
    )


def finalize(
    keys: Keys, batch_id: str, total: int, parts: int, options: PartOptions, now_ms: int
) -> Command[int]:
    """Write the total number of jobs. Only a finalized batch can finish.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :param total: the number of jobs in all parts.
    :param parts: the number of parts.
    :param options: the options; only `source` and `ttl_ms` are used.
    :param now_ms: the current time in milliseconds.
    """
    args: list[Arg] = [total, parts, now_ms, options.source, options.ttl_ms]
    return script_command("finalize_batch", as_int, [keys.batch(batch_id)], args)


def progress(keys: Keys, batch_id: str) -> CommandFlow[BatchProgress | None]:
    """Return the progress of a batch, or None if it does not exist.

    :param keys: the keys of the queue.
    :param batch_id: the id of the batch.
    :raises DecodeError: if the hash of the batch is not readable.
    """
    fields = yield redis_command("HGETALL", keys.batch(batch_id), parse=_parse_fields)
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
    counts: list[int] = []
    if 0 < parts <= MAX_PARTS:
        bitmap_keys = [keys.batch_done(batch_id, part) for part in range(parts)]
        bitmap_keys += [keys.batch_dead(batch_id, part) for part in range(parts)]
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
    )


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
