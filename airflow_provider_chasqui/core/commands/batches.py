"""Batches: jobs handed off together, part by part, each index once; and how far they are."""

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
    Arg,
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
from airflow_provider_chasqui.core.retry import RetryPolicy

_INT_FIELDS = frozenset(("total", "parts", "created"))


class PartOptions:
    """What the jobs of a part have in common."""

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


def add_chunk(
    keys: Keys,
    position: BatchPosition,
    payloads: Sequence[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Command[int]:
    """Put payloads on the queue as the jobs from `place` on; answers how many were new."""
    raws = list(_encode_envelopes(position, payloads, options, config, now_ms))
    return _add_command(keys, position, raws, options, config, now_ms)


def _encode_envelopes(
    position: BatchPosition,
    payloads: Iterable[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Iterable[bytes]:
    # Block by block: a third of the time of as many calls for one job.
    index, waiting = position.index, iter(payloads)
    while block := list(islice(waiting, MAX_CHUNK_JOBS)):
        if index + len(block) > MAX_INDEX + 1:
            raise InvalidArgument(f"a part has at most {MAX_INDEX + 1} jobs; use several parts")
        names = [
            batch_job_id(position.batch_id, position.part, at)
            for at in range(index, index + len(block))
        ]
        yield from build_envelopes(names, block, config, now_ms, options.retry)
        index += len(block)


def _add_command(
    keys: Keys,
    position: BatchPosition,
    encoded_jobs: Sequence[bytes],
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
    for raw in encoded_jobs:
        if options.run_at_ms:
            args += (encode_delayed_member(options.job_name, raw), b"")
        else:
            args += (raw, options.job_name)
    return script_command(
        "add_batch_part", as_int, [keys.stream, keys.delayed, keys.batch(position.batch_id)], args
    )


def add_part(
    keys: Keys,
    position: BatchPosition,
    payloads: Iterable[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
    replication_waiter: ReplicationWaiter | None = None,
) -> CommandFlow[int]:
    """Hand off the jobs of one part, from `place.index` on; returns where the part ends.

    Chunks of a part must arrive in order; the script refuses a gap, so a lost window is sent again
    as a whole and what had arrived is passed over. With a limit the chunks go one by one.
    Whoever gives a `confirmer` checks it.
    """
    sender = replication_waiter or ReplicationWaiter(keys, config)
    index = position.index
    raws = _encode_envelopes(position, payloads, options, config, now_ms)
    chunks = chunked(raws, len, MAX_CHUNK_JOBS, MAX_CHUNK_BYTES)
    most = 1 if config.max_len else MAX_PIPELINE_CHUNKS
    for window in chunked(chunks, lambda chunk: sum(map(len, chunk)), most, MAX_PIPELINE_BYTES):
        ops: list[DeferredCommand[int]] = []
        for chunk in window:
            here = replace(position, index=index)
            send = partial(_add_command, keys, here, chunk, options, config, now_ms)
            ops.append(DeferredCommand("add_batch_part", send))
            index += len(chunk)
        yield from sender.send(ops)
    if replication_waiter is None:
        sender.check()
    return index


def finalize(
    keys: Keys, batch_id: str, total: int, parts: int, options: PartOptions, now_ms: int
) -> Command[int]:
    """Write the total: from here on the batch can finish."""
    args: list[Arg] = [total, parts, now_ms, options.source, options.ttl_ms]
    return script_command("finalize_batch", as_int, [keys.batch(batch_id)], args)


def add(
    keys: Keys,
    batch_id: str,
    payloads: Iterable[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> CommandFlow[Batch]:
    """Hand off a batch of one part and seal it."""
    confirmer = ReplicationWaiter(keys, config)
    place = BatchPosition(batch_id, 0, 0)
    total = yield from add_part(keys, place, payloads, options, config, now_ms, confirmer)
    yield from confirmer.send([finalize(keys, batch_id, total, 1, options, now_ms)])
    confirmer.check()
    return Batch(keys.queue_name, batch_id, total, 1)


def _parse_fields(reply: Any) -> dict[str, str]:
    return {key.decode(): value.decode("utf-8", "replace") for key, value in as_pairs(reply)}


def progress(keys: Keys, batch_id: str) -> CommandFlow[BatchProgress | None]:
    """Return how far the batch is, or None if there is no such batch."""
    fields = yield redis_command("HGETALL", keys.batch(batch_id), parse=_parse_fields)
    if not fields:
        return None
    try:
        numbers = {key: int(value) for key, value in fields.items() if key in _INT_FIELDS}
        sent = {int(key[5:]): int(value) for key, value in fields.items() if key[:5] == "sent:"}
    except ValueError as cause:
        raise DecodeError(
            f"the record of batch {batch_id!r} holds something that is no number; find out who else "
            "writes under this queue's name, and remove it"
        ) from cause
    parts = numbers.get("parts", max(sent, default=-1) + 1)
    counts: list[int] = []
    if 0 < parts <= MAX_PARTS:
        names = [keys.batch_done(batch_id, part) for part in range(parts)]
        names += [keys.batch_dead(batch_id, part) for part in range(parts)]
        counts = yield [redis_command("BITCOUNT", name, parse=as_int) for name in names]
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


def dead_job_ids(keys: Keys, batch_id: str, parts: int, limit: int) -> CommandFlow[list[str]]:
    """Return the ids of the batch's dead jobs, in order, at most `limit`."""
    found: list[str] = []
    for part in range(parts):
        bits = yield redis_command("GET", keys.batch_dead(batch_id, part), parse=as_raw)
        wanted = islice(iter_set_bits(bits or b""), limit - len(found))
        found += [batch_job_id(batch_id, part, index) for index in wanted]
        if len(found) >= limit:
            break
    return found


def completion_bits(keys: Keys, position: BatchPosition) -> list[Command[int]]:
    """Ask whether a job of a batch is done, and whether it is dead."""
    done, dead = (
        keys.batch_done(position.batch_id, position.part),
        keys.batch_dead(position.batch_id, position.part),
    )
    return [redis_command("GETBIT", key, position.index, parse=as_int) for key in (done, dead)]
