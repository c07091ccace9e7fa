"""Ships: batches that many Spark tasks hand off together, all of it exactly once.

Tasks stage their jobs out of sight; the commit lets one write win (`begin`) and moves its stages
to the queue (`publish`). From `begin` on there is only forward: whoever finds a ship half
published, a retry, another driver, an operator before it submits anything, carries it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_TTL_MS
from airflow_provider_chasqui.core.command import (
    Arg,
    Command,
    CommandFlow,
    EncodedArgs,
    as_int,
    as_pairs,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.errors import BatchConflict, StagedDataLost
from airflow_provider_chasqui.core.keys import BATCH_PREFIX, Keys

PUBLISH_CHUNK_ROWS = 1000
_PUBLISH_CHUNK_BYTES = 4 * 1024 * 1024
_MAX_PIPELINED_CALLS = 8
_REPORT_TTL_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one task attempt has staged: the list that holds it, and how much."""

    part: int
    key: str
    rows: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StagedWriteOptions:
    """What the jobs of a ship have in common.

    `timed` says that every item carries its own due time; `own_ids` that rows bring their job
    ids, so that no bits are set for them and nobody can await the batch.
    """

    delay_ms: int = 0
    per_row_run_at: bool = False
    explicit_ids: bool = False
    source: str = "spark"
    ttl_ms: int = BATCH_TTL_MS


@dataclass(frozen=True, slots=True)
class WriteState:
    """Where a ship stands: `new`, `publishing` or `done`; `total` is known once it is done."""

    state: str
    total: int | None = None
    writer_id: str = ""


def get_state(keys: Keys, batch_id: str) -> CommandFlow[WriteState]:
    """Return where a ship stands."""
    write, total = yield [
        redis_command("HGET", keys.staged_write(batch_id), "writer_id", parse=_text_or_none),
        redis_command("HGET", keys.batch(batch_id), "total", parse=_text_or_none),
    ]
    if write is not None:
        return WriteState("publishing", writer_id=write)
    return WriteState("new") if total is None else WriteState("done", int(total))


def _text_or_none(reply: Any) -> str | None:
    return None if reply is None else reply.decode()


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
    """Stage the first items of a task attempt; answers the list's length, or -1 if it is too late.

    Sent twice it would stage twice, so the caller compares the length with what it has sent.
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
    """Stage more items; answers the list's length.

    RPUSHX, because a list that was swept meanwhile must not come back. Sent twice it would stage
    twice, so here too the caller compares the length with what it has sent.
    """
    return redis_command("RPUSHX", stage_key, items, parse=as_int)


def extend_stage_ttl(stage_key: str, ttl_ms: int) -> Command[int]:
    return redis_command("PEXPIRE", stage_key, ttl_ms, parse=as_int)


def _parse_commit_reply(reply: Any) -> tuple[str, str]:
    return reply[0].decode(), reply[1].decode()


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
    """Let this write win, unless another one has; says who publishes or that all is done."""
    rows, size = (
        sum(each.rows for each in staged_parts),
        sum(each.size_bytes for each in staged_parts),
    )
    parts = max((each.part for each in staged_parts), default=-1) + 1
    header: dict[str, Arg] = {
        "parts": 0 if options.explicit_ids else parts,
        "delay_ms": options.delay_ms,
        "per_row_run_at": int(options.per_row_run_at),
        "ttl_ms": options.ttl_ms,
        "created": now_ms,
        "source": options.source,
        "chunk_rows": _publish_chunk_rows(rows, size),
    }
    flat: list[Arg] = [item for pair in header.items() for item in pair]
    clear = (yield from _bit_keys(keys, batch_id)) if overwrite else []
    names = [keys.staged_write(batch_id), keys.batch(batch_id), keys.staged_parts(batch_id)]
    names += [*(each.key for each in staged_parts), *clear]
    args: list[Arg] = [writer_id, int(overwrite), len(staged_parts), rows, len(flat), *flat]
    args += [item for each in staged_parts for item in (each.part, each.rows)]
    verdict, about = yield script_command("write_commit", _parse_commit_reply, names, args)
    if verdict == "staging_lost":
        raise StagedDataLost(
            f"what was staged in {about!r} is gone (expired after stagingTtl, or the server lost "
            "data); nothing of this ship is visible: run the write again"
        )
    if verdict == "conflict":
        raise BatchConflict(
            f"jobs of the batch {batch_id!r} are on the queue already, sent in another way; finish "
            "that, or choose another batchId"
        )
    if verdict == "done":
        return WriteState("done", int(about))
    return WriteState("publishing", writer_id=about)


def _publish_chunk_rows(rows: int, size_bytes: int) -> int:
    """How many jobs one script call moves: few enough that workers hardly notice."""
    mean = size_bytes // rows if rows else 0
    return (
        max(1, min(PUBLISH_CHUNK_ROWS, _PUBLISH_CHUNK_BYTES // mean))
        if mean
        else PUBLISH_CHUNK_ROWS
    )


def _bit_keys(keys: Keys, batch_id: str) -> CommandFlow[list[str]]:
    parts = yield redis_command("HGET", keys.batch(batch_id), "parts", parse=_text_or_none)
    names = []
    for part in range(int(parts or 0)):
        names += [keys.batch_done(batch_id, part), keys.batch_dead(batch_id, part)]
    return names


def publish(keys: Keys, batch_id: str) -> CommandFlow[WriteState]:
    """Move the jobs of the write that has won to the queue and seal the batch.

    Several may do this at once: every call takes jobs off a stage and puts them on the queue in
    one step, so no job goes out twice and what one leaves the other finds.
    """
    while True:
        fields: Mapping[str, str] = yield redis_command(
            "HGETALL", keys.staged_write(batch_id), parse=_parse_hash
        )
        if "writer_id" not in fields:
            return (yield from get_state(keys, batch_id))
        write, at_most = fields["writer_id"], int(fields.get("chunk_rows", PUBLISH_CHUNK_ROWS))
        stages = {int(k[7:]): name for k, name in fields.items() if k.startswith("staged:")}
        for part, stage in sorted(stages.items()):
            yield from _publish_part(keys, batch_id, write, part, stage, at_most)
        # Asked before finishing: a stage that another publisher empties now is counted by then.
        left = yield [redis_command("EXISTS", name, parse=as_int) for name in stages.values()]
        total = yield from _finalize_staged(keys, batch_id, write)
        if total >= 0:
            return WriteState("done", total)
        if total == -1 and not any(left):
            raise StagedDataLost(
                f"the ship {batch_id!r} is partly published and the rest of it is gone from the "
                "server; delete its keys and ship again under another batchId"
            )


def _publish_part(
    keys: Keys, batch_id: str, writer_id: str, part: int, stage_key: str, limit: int
) -> CommandFlow[None]:
    names = [
        keys.stream,
        keys.delayed,
        keys.staged_write(batch_id),
        keys.batch(batch_id),
        stage_key,
    ]
    call = script_command("write_publish", as_int, names, [writer_id, part, limit])
    # One at a time first: most parts of a small ship are empty after one call.
    calls = 1
    while all((yield [call] * calls)):
        calls = _MAX_PIPELINED_CALLS


def _finalize_staged(keys: Keys, batch_id: str, writer_id: str) -> CommandFlow[int]:
    staged = yield redis_command("SMEMBERS", keys.staged_parts(batch_id), parse=_parse_sorted_texts)
    names = [
        keys.staged_write(batch_id),
        keys.batch(batch_id),
        keys.staged_parts(batch_id),
        *staged,
    ]
    total: int = yield script_command("write_finalize_staged", as_int, names, [writer_id])
    return total


def _parse_sorted_texts(reply: Any) -> list[str]:
    return sorted(each.decode() for each in reply)


def _parse_hash(reply: Any) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in as_pairs(reply)}


def resume(keys: Keys, batch_id: str) -> CommandFlow[WriteState]:
    """Carry on a ship that was interrupted while publishing; else only say where it stands."""
    found = yield from get_state(keys, batch_id)
    if found.state != "publishing":
        return found
    return (yield from publish(keys, batch_id))


def abort(keys: Keys, batch_id: str, writer_id: str, ttl_ms: int) -> CommandFlow[bool]:
    """Give a write up; says False if that write has won and must be carried on.

    Marked first, so that a task which comes late either is refused or has staged what is dropped.
    """
    mark = keys.staged_write_aborted(batch_id, writer_id)
    names = [keys.staged_write(batch_id), keys.staged_parts(batch_id)]
    marked: int = yield script_command("write_abort", as_int, names, [writer_id, mark, ttl_ms])
    return bool(marked) and (yield from discard(keys, batch_id, writer_id))


def discard(keys: Keys, batch_id: str, writer_id: str) -> CommandFlow[bool]:
    """Drop what a write has staged; says False if that write has won and must be carried on."""
    prefix, mark = (
        f"{keys.staged_write(batch_id)}:{writer_id}:",
        keys.staged_write_aborted(batch_id, writer_id),
    )
    staged = yield redis_command("SMEMBERS", keys.staged_parts(batch_id), parse=_parse_sorted_texts)
    mine = [name for name in staged if name.startswith(prefix) and name != mark]
    names = [keys.staged_write(batch_id), keys.staged_parts(batch_id), *mine]
    dropped: int = yield script_command("write_abort", as_int, names, [writer_id, "", 0])
    return bool(dropped)


def add(keys: Keys, items: EncodedArgs, options: StagedWriteOptions) -> Command[int]:
    """Put items on the queue at once (delivery=at_least_once): sent twice, they are there twice."""
    args: list[Arg] = [options.delay_ms, int(options.per_row_run_at), items]
    return script_command("write_add", as_int, [keys.stream, keys.delayed], args)


def add_deduplicated(
    keys: Keys, batch_id: str, rows: EncodedArgs, options: StagedWriteOptions, now_ms: int
) -> Command[int]:
    """Put the rows on the queue that are not there yet (delivery=dedup)."""
    prefix = "" if options.explicit_ids else f"{BATCH_PREFIX}{batch_id}:0:"
    args: list[Arg] = [
        options.delay_ms, int(options.per_row_run_at), options.ttl_ms, now_ms, options.source, prefix, rows,
    ]  # fmt: skip
    names = [keys.stream, keys.delayed, keys.batch(batch_id), keys.dedup_ids(batch_id)]
    return script_command("write_add_deduplicated", as_int, names, args)


def finalize(
    keys: Keys,
    batch_id: str,
    part_rows: Iterable[tuple[int, int]],
    parts: int,
    options: StagedWriteOptions,
    now_ms: int,
) -> Command[int]:
    """Write the total of a batch that was sent directly (with (part, rows)) or deduplicated."""
    args: list[Arg] = [0 if options.explicit_ids else parts, now_ms, options.source, options.ttl_ms]
    args += [item for pair in part_rows for item in pair]
    return script_command(
        "write_finalize", as_int, [keys.batch(batch_id), keys.dedup_ids(batch_id)], args
    )


def add_report(keys: Keys, batch_id: str, counts: Mapping[str, int]) -> list[Command[int]]:
    """Add to what is written down about a replay from Spark."""
    name = keys.spark_replay_report(batch_id)
    ops = [
        redis_command("HINCRBY", name, key, count, parse=as_int) for key, count in counts.items()
    ]
    return [*ops, redis_command("PEXPIRE", name, _REPORT_TTL_MS, parse=as_int)]


def get_report(keys: Keys, batch_id: str) -> Command[dict[str, int]]:
    return redis_command("HGETALL", keys.spark_replay_report(batch_id), parse=_parse_counts)


def _parse_counts(reply: Any) -> dict[str, int]:
    return {key: int(value) for key, value in _parse_hash(reply).items()}
