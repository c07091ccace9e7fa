"""Ships: batches that many Spark tasks hand off together, all of it exactly once.

Tasks stage their jobs out of sight; the commit lets one write win (`begin`) and moves its stages
to the queue (`publish`). From `begin` on there is only forward: whoever finds a ship half
published, a retry, another driver, an operator before it submits anything, carries it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.batch import BATCH_LIFE_MS
from airflow_provider_chasqui.core.errors import BatchConflict, StageLost
from airflow_provider_chasqui.core.keys import BATCH_PREFIX, Keys
from airflow_provider_chasqui.core.op import Arg, Flow, Op, Packed, as_int, command, script
from airflow_provider_chasqui.core.replies import pairs

PUBLISH_ROWS = 1000
_PUBLISH_BYTES = 4 * 1024 * 1024
_WINDOW = 8
_REPORT_LIFE_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Stage:
    """What one task attempt has staged: the list that holds it, and how much."""

    part: int
    key: str
    rows: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class ShipOptions:
    """What the jobs of a ship have in common.

    `timed` says that every item carries its own due time; `own_ids` that rows bring their job
    ids, so that no bits are set for them and nobody can await the batch.
    """

    delay_ms: int = 0
    timed: bool = False
    own_ids: bool = False
    source: str = "spark"
    life_ms: int = BATCH_LIFE_MS


@dataclass(frozen=True, slots=True)
class ShipState:
    """Where a ship stands: `new`, `publishing` or `done`; `total` is known once it is done."""

    state: str
    total: int | None = None
    write: str = ""


def state(keys: Keys, ship: str) -> Flow[ShipState]:
    """Return where a ship stands."""
    write, total = yield [
        command("HGET", keys.ship(ship), "write", parse=_text_or_none),
        command("HGET", keys.batch(ship), "total", parse=_text_or_none),
    ]
    if write is not None:
        return ShipState("publishing", write=write)
    return ShipState("new") if total is None else ShipState("done", int(total))


def _text_or_none(reply: Any) -> str | None:
    return None if reply is None else reply.decode()


def open_stage(
    keys: Keys,
    ship: str,
    write: str,
    stage: str,
    items: Packed,
    ttl_ms: int,
    *,
    anew: bool = False,
) -> Op[int]:
    """Stage the first items of a task attempt; answers the list's length, or -1 if it is too late.

    Sent twice it would stage twice, so the caller compares the length with what it has sent.
    """
    names = [keys.ship(ship), keys.batch(ship), keys.ship_stages(ship), stage]
    args: list[Arg] = [keys.ship_aborted(ship, write), int(anew), ttl_ms, items]
    return script("ship_stage", as_int, names, args)


def fill_stage(stage: str, items: Packed) -> Op[int]:
    """Stage more items; answers the list's length.

    RPUSHX, because a list that was swept meanwhile must not come back. Sent twice it would stage
    twice, so here too the caller compares the length with what it has sent.
    """
    return command("RPUSHX", stage, items, parse=as_int)


def keep_stage(stage: str, ttl_ms: int) -> Op[int]:
    return command("PEXPIRE", stage, ttl_ms, parse=as_int)


def _verdict(reply: Any) -> tuple[str, str]:
    return reply[0].decode(), reply[1].decode()


def begin(
    keys: Keys,
    ship: str,
    write: str,
    stages: Sequence[Stage],
    options: ShipOptions,
    now_ms: int,
    *,
    anew: bool = False,
) -> Flow[ShipState]:
    """Let this write win, unless another one has; says who publishes or that all is done."""
    rows, size = sum(each.rows for each in stages), sum(each.size for each in stages)
    parts = max((each.part for each in stages), default=-1) + 1
    header: dict[str, Arg] = {
        "parts": 0 if options.own_ids else parts,
        "delay": options.delay_ms,
        "timed": int(options.timed),
        "life": options.life_ms,
        "created": now_ms,
        "source": options.source,
        "chunk": _chunk(rows, size),
    }
    flat: list[Arg] = [item for pair in header.items() for item in pair]
    clear = (yield from _bits(keys, ship)) if anew else []
    names = [keys.ship(ship), keys.batch(ship), keys.ship_stages(ship)]
    names += [*(each.key for each in stages), *clear]
    args: list[Arg] = [write, int(anew), len(stages), rows, len(flat), *flat]
    args += [item for each in stages for item in (each.part, each.rows)]
    verdict, about = yield script("ship_begin", _verdict, names, args)
    if verdict == "lost":
        raise StageLost(
            f"what was staged in {about!r} is gone (expired after stageTtl, or the server lost "
            "data); nothing of this ship is visible: run the write again"
        )
    if verdict == "taken":
        raise BatchConflict(
            f"jobs of the batch {ship!r} are on the queue already, sent in another way; finish "
            "that, or choose another shipId"
        )
    if verdict == "done":
        return ShipState("done", int(about))
    return ShipState("publishing", write=about)


def _chunk(rows: int, size: int) -> int:
    """How many jobs one script call moves: few enough that workers hardly notice."""
    mean = size // rows if rows else 0
    return max(1, min(PUBLISH_ROWS, _PUBLISH_BYTES // mean)) if mean else PUBLISH_ROWS


def _bits(keys: Keys, ship: str) -> Flow[list[str]]:
    parts = yield command("HGET", keys.batch(ship), "parts", parse=_text_or_none)
    names = []
    for part in range(int(parts or 0)):
        names += [keys.batch_done(ship, part), keys.batch_dead(ship, part)]
    return names


def publish(keys: Keys, ship: str) -> Flow[ShipState]:
    """Move the jobs of the write that has won to the queue and seal the batch.

    Several may do this at once: every call takes jobs off a stage and puts them on the queue in
    one step, so no job goes out twice and what one leaves the other finds.
    """
    while True:
        fields: Mapping[str, str] = yield command("HGETALL", keys.ship(ship), parse=_hash)
        if "write" not in fields:
            return (yield from state(keys, ship))
        write, at_most = fields["write"], int(fields.get("chunk", PUBLISH_ROWS))
        stages = {int(k[6:]): name for k, name in fields.items() if k.startswith("stage:")}
        for part, stage in sorted(stages.items()):
            yield from _empty(keys, ship, write, part, stage, at_most)
        # Asked before finishing: a stage that another publisher empties now is counted by then.
        left = yield [command("EXISTS", name, parse=as_int) for name in stages.values()]
        total = yield from _finish(keys, ship, write)
        if total >= 0:
            return ShipState("done", total)
        if total == -1 and not any(left):
            raise StageLost(
                f"the ship {ship!r} is partly published and the rest of it is gone from the "
                "server; delete its keys and ship again under another shipId"
            )


def _empty(keys: Keys, ship: str, write: str, part: int, stage: str, at_most: int) -> Flow[None]:
    names = [keys.stream, keys.delayed, keys.ship(ship), keys.batch(ship), stage]
    call = script("ship_publish", as_int, names, [write, part, at_most])
    # One at a time first: most parts of a small ship are empty after one call.
    calls = 1
    while all((yield [call] * calls)):
        calls = _WINDOW


def _finish(keys: Keys, ship: str, write: str) -> Flow[int]:
    staged = yield command("SMEMBERS", keys.ship_stages(ship), parse=_texts)
    names = [keys.ship(ship), keys.batch(ship), keys.ship_stages(ship), *staged]
    total: int = yield script("ship_finish", as_int, names, [write])
    return total


def _texts(reply: Any) -> list[str]:
    return sorted(each.decode() for each in reply)


def _hash(reply: Any) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in pairs(reply)}


def recover(keys: Keys, ship: str) -> Flow[ShipState]:
    """Carry on a ship that was interrupted while publishing; else only say where it stands."""
    found = yield from state(keys, ship)
    if found.state != "publishing":
        return found
    return (yield from publish(keys, ship))


def abort(keys: Keys, ship: str, write: str, ttl_ms: int) -> Flow[bool]:
    """Give a write up; says False if that write has won and must be carried on.

    Marked first, so that a task which comes late either is refused or has staged what is dropped.
    """
    mark = keys.ship_aborted(ship, write)
    names = [keys.ship(ship), keys.ship_stages(ship)]
    marked: int = yield script("ship_abort", as_int, names, [write, mark, ttl_ms])
    return bool(marked) and (yield from drop(keys, ship, write))


def drop(keys: Keys, ship: str, write: str) -> Flow[bool]:
    """Drop what a write has staged; says False if that write has won and must be carried on."""
    prefix, mark = f"{keys.ship(ship)}:{write}:", keys.ship_aborted(ship, write)
    staged = yield command("SMEMBERS", keys.ship_stages(ship), parse=_texts)
    mine = [name for name in staged if name.startswith(prefix) and name != mark]
    names = [keys.ship(ship), keys.ship_stages(ship), *mine]
    dropped: int = yield script("ship_abort", as_int, names, [write, "", 0])
    return bool(dropped)


def push(keys: Keys, items: Packed, options: ShipOptions) -> Op[int]:
    """Put items on the queue at once (delivery=direct): sent twice, they are there twice."""
    args: list[Arg] = [options.delay_ms, int(options.timed), items]
    return script("ship_push", as_int, [keys.stream, keys.delayed], args)


def push_once(keys: Keys, ship: str, rows: Packed, options: ShipOptions, now_ms: int) -> Op[int]:
    """Put the rows on the queue that are not there yet (delivery=dedup)."""
    prefix = "" if options.own_ids else f"{BATCH_PREFIX}{ship}:0:"
    args: list[Arg] = [
        options.delay_ms, int(options.timed), options.life_ms, now_ms, options.source, prefix, rows,
    ]  # fmt: skip
    names = [keys.stream, keys.delayed, keys.batch(ship), keys.ship_ids(ship)]
    return script("ship_once", as_int, names, args)


def seal(
    keys: Keys,
    ship: str,
    rows: Iterable[tuple[int, int]],
    parts: int,
    options: ShipOptions,
    now_ms: int,
) -> Op[int]:
    """Write the total of a batch that was sent directly (with (part, rows)) or deduplicated."""
    args: list[Arg] = [0 if options.own_ids else parts, now_ms, options.source, options.life_ms]
    args += [item for pair in rows for item in pair]
    return script("ship_seal", as_int, [keys.batch(ship), keys.ship_ids(ship)], args)


def add_report(keys: Keys, ship: str, counts: Mapping[str, int]) -> list[Op[int]]:
    """Add to what is written down about a replay from Spark."""
    name = keys.ship_report(ship)
    ops = [command("HINCRBY", name, key, count, parse=as_int) for key, count in counts.items()]
    return [*ops, command("PEXPIRE", name, _REPORT_LIFE_MS, parse=as_int)]


def report(keys: Keys, ship: str) -> Op[dict[str, int]]:
    return command("HGETALL", keys.ship_report(ship), parse=_counts)


def _counts(reply: Any) -> dict[str, int]:
    return {key: int(value) for key, value in _hash(reply).items()}
