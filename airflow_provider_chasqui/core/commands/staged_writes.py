"""Staged writes: batches that many Spark tasks send together, exactly once.

Each task stages its jobs in lists that workers do not read. `commit` selects one writer, and
`publish` moves its staged jobs to the queue. After the commit the write can only be completed: any
process that finds a batch partly published (a retry, another driver, an operator before it submits
a Spark job) continues it with `resume`.

States of a batch: new -> publishing (after `commit`) -> done (after `publish`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_TTL_MS
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_int,
    as_pairs,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.errors import BatchCancelled, BatchConflict, StagedDataLost
from airflow_provider_chasqui.core.keys import BATCH_PREFIX, Keys
from airflow_provider_chasqui.core.resp import Arg, EncodedArgs

PUBLISH_CHUNK_ROWS = 1000
_PUBLISH_CHUNK_BYTES = 4 * 1024 * 1024
_MAX_PIPELINED_CALLS = 8
_REPORT_TTL_MS = 7 * 24 * 3600 * 1000
_STAGED_FIELD_PREFIX = "staged:"


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The staged jobs of one task attempt: their list, number and size."""

    part: int
    key: str
    rows: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StagedWriteOptions:
    """Options that apply to all jobs of a write.

    :param delay_ms: the delay of all jobs.
    :param per_row_run_at: each item has its own due time.
    :param explicit_ids: rows have their own job ids. Such jobs set no bits, so the batch cannot be
        awaited.
    :param source: the source that the batch records.
    :param ttl_ms: the TTL of the batch.
    """

    delay_ms: int = 0
    per_row_run_at: bool = False
    explicit_ids: bool = False
    source: str = "spark"
    ttl_ms: int = BATCH_TTL_MS


@dataclass(frozen=True, slots=True)
class WriteState:
    """The state of a write: "new", "publishing" or "done". `total` is known when it is done."""

    state: str
    total: int | None = None
    writer_id: str = ""


def get_state(keys: Keys, batch_id: str) -> CommandFlow[WriteState]:
    """Return the state of the write of a batch."""
    writer_id, total = yield [
        redis_command("HGET", keys.staged_write(batch_id), "writer_id", parse=_text_or_none),
        redis_command("HGET", keys.batch(batch_id), "total", parse=_text_or_none),
    ]
    if writer_id is not None:
        return WriteState("publishing", writer_id=writer_id)
    return WriteState("new") if total is None else WriteState("done", int(total))


def _text_or_none(reply: Any) -> str | None:
    return None if reply is None else reply.decode()


# Staging


def stage_first(
    keys: Keys,
    batch_id: str,
    writer_id: str,
    stage_key: str,
    items: EncodedArgs,
    ttl_ms: int,
    *,
    overwrite: bool = False,
) -> Command[int]:
    """Stage the first items of a task attempt.

    The command is not idempotent: sent twice, it stages the items twice. The caller compares the
    length of the list with the number of items that it sent.

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :param writer_id: the writer that the task belongs to.
    :param stage_key: the list of the task attempt.
    :param items: the encoded items.
    :param ttl_ms: the TTL of the staged data.
    :param overwrite: whether a complete batch is replaced.
    :return: a command; its result is the length of the list, or -1 if the writer was aborted or a
        write of the batch is already committed.
    """
    names = [
        keys.staged_write(batch_id),
        keys.batch(batch_id),
        keys.staged_parts(batch_id),
        stage_key,
    ]
    args: list[Arg] = [
        keys.staged_write_aborted(batch_id, writer_id),
        int(overwrite),
        ttl_ms,
        items,
    ]
    return script_command("write_stage", as_int, names, args)


def stage_more(stage_key: str, items: EncodedArgs) -> Command[int]:
    """Stage more items.

    RPUSHX does not create a list that was deleted by an abort. As with `stage_first`, the caller
    compares the length of the list with the number of items that it sent.

    :param stage_key: the list of the task attempt.
    :param items: the encoded items.
    :return: a command; its result is the length of the list, or 0 if it does not exist.
    """
    return redis_command("RPUSHX", stage_key, items, parse=as_int)


def extend_stage_ttl(stage_key: str, ttl_ms: int) -> Command[int]:
    """Set the TTL of a staged list."""
    return redis_command("PEXPIRE", stage_key, ttl_ms, parse=as_int)


# Commit and publish


def commit(
    keys: Keys,
    batch_id: str,
    writer_id: str,
    staged_parts: Sequence[StagedPart],
    options: StagedWriteOptions,
    now_ms: int,
    *,
    overwrite: bool = False,
) -> CommandFlow[WriteState]:
    """Commit a write, unless another writer of the batch has committed before.

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :param writer_id: the writer to commit.
    :param staged_parts: the staged lists of the successful task attempts.
    :param options: options of the jobs.
    :param now_ms: the creation time of the batch.
    :param overwrite: replace a complete batch.
    :return: "publishing" with the writer that has committed, or "done" if the batch is complete.
    :raises StagedDataLost: if staged jobs are missing.
    :raises BatchConflict: if jobs of the batch were sent by another mechanism.
    """
    rows = sum(part.rows for part in staged_parts)
    size_bytes = sum(part.size_bytes for part in staged_parts)
    parts = max((part.part for part in staged_parts), default=-1) + 1
    header: dict[str, Arg] = {
        "parts": 0 if options.explicit_ids else parts,
        "delay_ms": options.delay_ms,
        "per_row_run_at": int(options.per_row_run_at),
        "ttl_ms": options.ttl_ms,
        "created": now_ms,
        "source": options.source,
        "chunk_rows": _publish_chunk_rows(rows, size_bytes),
    }
    header_args: list[Arg] = [item for pair in header.items() for item in pair]
    old_parts = None
    if overwrite:
        old_parts = yield redis_command("HGET", keys.batch(batch_id), "parts", parse=_text_or_none)
    names = [
        keys.staged_write(batch_id),
        keys.batch(batch_id),
        keys.staged_parts(batch_id),
        *(part.key for part in staged_parts),
        *_bitmap_keys(keys, batch_id, max(parts, int(old_parts or 0))),
    ]
    args: list[Arg] = [writer_id, int(overwrite), len(staged_parts), rows]
    args += [len(header_args), *header_args]
    args += [item for part in staged_parts for item in (part.part, part.rows)]
    status, detail = yield script_command("write_commit", _parse_commit_reply, names, args)
    if status == "staging_lost":
        raise StagedDataLost(
            f"the staged jobs in {detail!r} are missing: they expired after stagingTtl, or the "
            "server lost data. No job of this write was published; run the write again"
        )
    if status == "conflict":
        raise BatchConflict(
            f"jobs of the batch {batch_id!r} were already sent by another mechanism; finish that "
            "batch, or choose another batchId"
        )
    if status == "done":
        return WriteState("done", int(detail))
    return WriteState("publishing", writer_id=detail)


def _parse_commit_reply(reply: Any) -> tuple[str, str]:
    return reply[0].decode(), reply[1].decode()


def _publish_chunk_rows(rows: int, size_bytes: int) -> int:
    """Return the number of jobs that one script call moves, small enough not to delay workers."""
    mean_bytes = size_bytes // rows if rows else 0
    if not mean_bytes:
        return PUBLISH_CHUNK_ROWS
    return max(1, min(PUBLISH_CHUNK_ROWS, _PUBLISH_CHUNK_BYTES // mean_bytes))


def _bitmap_keys(keys: Keys, batch_id: str, parts: int) -> list[str]:
    """Return the keys of the done bitmap and the dead bitmap of each part."""
    return [
        key
        for part in range(parts)
        for key in (keys.batch_done(batch_id, part), keys.batch_dead(batch_id, part))
    ]


def publish(keys: Keys, batch_id: str) -> CommandFlow[WriteState]:
    """Move the jobs of the committed write to the queue and finalize the batch.

    Several processes may publish at the same time. Each call removes jobs from a staged list and
    adds them to the queue atomically, so that no job is published twice.

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :return: the state, normally "done".
    :raises StagedDataLost: if the remaining staged jobs are missing.
    :raises BatchCancelled: if the batch was cancelled. Its staged jobs are then deleted.
    """
    while True:
        header: Mapping[str, str] = yield redis_command(
            "HGETALL", keys.staged_write(batch_id), parse=_parse_hash
        )
        if "writer_id" not in header:
            return (yield from get_state(keys, batch_id))
        writer_id = header["writer_id"]
        chunk_rows = int(header.get("chunk_rows", PUBLISH_CHUNK_ROWS))
        lists = {
            int(name.removeprefix(_STAGED_FIELD_PREFIX)): key
            for name, key in header.items()
            if name.startswith(_STAGED_FIELD_PREFIX)
        }
        for part, stage_key in sorted(lists.items()):
            yield from _publish_part(keys, batch_id, writer_id, part, stage_key, chunk_rows)
        # Check the lists before finalizing: if another publisher empties a list after the check,
        # the finalize call already counts its jobs.
        remaining = yield [redis_command("EXISTS", key, parse=as_int) for key in lists.values()]
        parts = int(header.get("parts", 0))
        total = yield from _finalize_staged(keys, batch_id, writer_id, parts)
        if total >= 0:
            return WriteState("done", total)
        if total == -3:
            raise BatchCancelled(
                f"the batch {batch_id!r} was cancelled while it was published; its remaining "
                "staged jobs were deleted. To send them again, use another batchId"
            )
        if total == -1 and not any(remaining):
            raise StagedDataLost(
                f"the batch {batch_id!r} is partly published and its remaining staged jobs are "
                "missing on the server; delete its keys and write again under another batchId"
            )


def _publish_part(
    keys: Keys, batch_id: str, writer_id: str, part: int, stage_key: str, limit: int
) -> CommandFlow[None]:
    command = publish_part(keys, batch_id, writer_id, part, stage_key, limit)
    # Start with one call: most parts of a small batch are empty after it.
    calls = 1
    while all((yield [command] * calls)):
        calls = _MAX_PIPELINED_CALLS


def publish_part(
    keys: Keys, batch_id: str, writer_id: str, part: int, stage_key: str, limit: int
) -> Command[int]:
    """Move the next jobs of one part of the committed write to the queue.

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :param writer_id: the writer that has committed.
    :param part: the part.
    :param stage_key: the staged list of the part.
    :param limit: the maximum number of jobs.
    :return: a command; its result is the number of jobs moved.
    """
    names = [
        keys.stream,
        keys.delayed,
        keys.staged_write(batch_id),
        keys.batch(batch_id),
        stage_key,
        keys.batch_done(batch_id, part),
        keys.batch_dead(batch_id, part),
    ]
    return script_command("write_publish", as_int, names, [writer_id, part, limit])


def _finalize_staged(keys: Keys, batch_id: str, writer_id: str, parts: int) -> CommandFlow[int]:
    staged = yield redis_command("SMEMBERS", keys.staged_parts(batch_id), parse=_parse_sorted_texts)
    names = [
        keys.staged_write(batch_id),
        keys.batch(batch_id),
        keys.staged_parts(batch_id),
        *staged,
        *_bitmap_keys(keys, batch_id, parts),
    ]
    args: list[Arg] = [writer_id, len(staged)]
    total: int = yield script_command("write_finalize_staged", as_int, names, args)
    return total


def _parse_sorted_texts(reply: Any) -> list[str]:
    return sorted(member.decode() for member in reply)


def _parse_hash(reply: Any) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in as_pairs(reply)}


def resume(keys: Keys, batch_id: str) -> CommandFlow[WriteState]:
    """Continue a write that was interrupted while publishing; otherwise only return its state.

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :raises StagedDataLost: if the remaining staged jobs are missing.
    """
    state = yield from get_state(keys, batch_id)
    if state.state != "publishing":
        return state
    return (yield from publish(keys, batch_id))


# Abort


def abort(keys: Keys, batch_id: str, writer_id: str, ttl_ms: int) -> CommandFlow[bool]:
    """Abort a writer: mark it as aborted, then delete its staged jobs.

    Because of the marker, a late task is either refused, or its staged jobs are deleted here.

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :param writer_id: the writer.
    :param ttl_ms: the TTL of the marker.
    :return: False if the writer has committed and must be published.
    """
    marker = keys.staged_write_aborted(batch_id, writer_id)
    names = [keys.staged_write(batch_id), keys.staged_parts(batch_id)]
    marked: int = yield script_command("write_abort", as_int, names, [writer_id, marker, ttl_ms])
    return bool(marked) and (yield from discard(keys, batch_id, writer_id))


def discard(keys: Keys, batch_id: str, writer_id: str) -> CommandFlow[bool]:
    """Delete the staged jobs of a writer.

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :param writer_id: the writer.
    :return: False if the writer has committed and must be published.
    """
    prefix = f"{keys.staged_write(batch_id)}:{writer_id}:"
    marker = keys.staged_write_aborted(batch_id, writer_id)
    staged = yield redis_command("SMEMBERS", keys.staged_parts(batch_id), parse=_parse_sorted_texts)
    lists = [name for name in staged if name.startswith(prefix) and name != marker]
    names = [keys.staged_write(batch_id), keys.staged_parts(batch_id), *lists]
    discarded: int = yield script_command("write_abort", as_int, names, [writer_id, "", 0])
    return bool(discarded)


# Writes without staging


def add(
    keys: Keys, batch_id: str, part: int, rows: int, items: EncodedArgs, options: StagedWriteOptions
) -> Command[int]:
    """Add items to the queue (delivery=at_least_once). Items that are sent twice are added twice.

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :param part: the part of the batch that the items belong to.
    :param rows: the number of rows of the part, with these items.
    :param items: the encoded items.
    :param options: options of the jobs.
    :return: a command; its result is the number of jobs.
    """
    names = [keys.stream, keys.delayed, keys.batch(batch_id)]
    names += [keys.batch_done(batch_id, part), keys.batch_dead(batch_id, part)]
    args: list[Arg] = [options.delay_ms, int(options.per_row_run_at), options.ttl_ms]
    args += ("" if options.explicit_ids else part, rows, items)
    return script_command("write_add", as_int, names, args)


def add_deduplicated(
    keys: Keys, batch_id: str, rows: EncodedArgs, options: StagedWriteOptions, now_ms: int
) -> Command[int]:
    """Add the rows that were not added before (delivery=dedup).

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :param rows: the encoded rows.
    :param options: options of the jobs.
    :param now_ms: the creation time of the batch.
    :return: a command; its result is the number of new jobs, or -1 if the batch is complete.
    """
    id_prefix = "" if options.explicit_ids else f"{BATCH_PREFIX}{batch_id}:0:"
    args: list[Arg] = [
        options.delay_ms,
        int(options.per_row_run_at),
        options.ttl_ms,
        now_ms,
        options.source,
        id_prefix,
        rows,
    ]
    names = [keys.stream, keys.delayed, keys.batch(batch_id), keys.dedup_ids(batch_id)]
    names += _bitmap_keys(keys, batch_id, 1)
    return script_command("write_add_deduplicated", as_int, names, args)


def finalize(
    keys: Keys,
    batch_id: str,
    part_rows: Iterable[tuple[int, int]],
    parts: int,
    options: StagedWriteOptions,
    now_ms: int,
) -> Command[int]:
    """Write the total of a batch that was sent without staging.

    :param keys: the keys of the queue.
    :param batch_id: the batch.
    :param part_rows: part and number of rows (delivery=at_least_once); empty for delivery=dedup.
    :param parts: the number of parts.
    :param options: options of the jobs.
    :param now_ms: the creation time of the batch.
    :return: a command; its result is the total.
    """
    parts = 0 if options.explicit_ids else parts
    args: list[Arg] = [parts, now_ms, options.source, options.ttl_ms]
    args += [item for pair in part_rows for item in pair]
    names = [keys.batch(batch_id), keys.dedup_ids(batch_id), *_bitmap_keys(keys, batch_id, parts)]
    return script_command("write_finalize", as_int, names, args)


# Reports of replays from Spark


def add_report(keys: Keys, batch_id: str, counts: Mapping[str, int]) -> list[Command[int]]:
    """Add counts to the report of a replay from Spark.

    :param keys: the keys of the queue.
    :param batch_id: the id of the replay.
    :param counts: the counts to add, by name.
    """
    key = keys.spark_replay_report(batch_id)
    commands = [
        redis_command("HINCRBY", key, name, count, parse=as_int) for name, count in counts.items()
    ]
    return [*commands, redis_command("PEXPIRE", key, _REPORT_TTL_MS, parse=as_int)]


def get_report(keys: Keys, batch_id: str) -> Command[dict[str, int]]:
    """Return the report of a replay from Spark."""
    return redis_command("HGETALL", keys.spark_replay_report(batch_id), parse=_parse_counts)


def _parse_counts(reply: Any) -> dict[str, int]:
    return {key: int(value) for key, value in _parse_hash(reply).items()}
