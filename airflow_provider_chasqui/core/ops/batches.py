"""Batches: jobs handed off together, part by part, each index once; and how far they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from airflow_provider_chasqui.core.batch import (
    BATCH_LIFE_MS,
    MAX_INDEX,
    MAX_PARTS,
    Batch,
    BatchProgress,
    Place,
    job_id,
    set_bits,
)
from airflow_provider_chasqui.core.chunks import (
    CHUNK_BYTES,
    CHUNK_JOBS,
    WINDOW_BYTES,
    WINDOW_CHUNKS,
    pieces,
)
from airflow_provider_chasqui.core.codec import encode_member, encode_name
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BadInput, DecodeError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Arg, Flow, Late, Op, as_int, as_is, command, script
from airflow_provider_chasqui.core.ops.confirming import Confirmer
from airflow_provider_chasqui.core.policy import RetryPolicy
from airflow_provider_chasqui.core.prepare import envelopes
from airflow_provider_chasqui.core.replies import pairs

_NUMBERS = frozenset(("total", "parts", "created"))


class PartOptions:
    """What the jobs of a part have in common."""

    __slots__ = ("life_ms", "name", "retry", "run_at_ms", "source")

    def __init__(
        self,
        name: str = "",
        retry: RetryPolicy | None = None,
        run_at_ms: int | None = None,
        source: str = "",
        life_ms: int = BATCH_LIFE_MS,
    ):
        self.name = encode_name(name)
        self.retry = retry
        self.run_at_ms = run_at_ms
        self.source = source
        self.life_ms = life_ms


def add_chunk(
    keys: Keys,
    place: Place,
    payloads: Sequence[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Op[int]:
    """Put payloads on the queue as the jobs from `place` on; answers how many were new."""
    raws = list(_envelopes(place, payloads, options, config, now_ms))
    return _send(keys, place, raws, options, config, now_ms)


def _envelopes(
    place: Place,
    payloads: Iterable[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Iterable[bytes]:
    # Block by block: a third of the time of as many calls for one job.
    index, waiting = place.index, iter(payloads)
    while block := list(islice(waiting, CHUNK_JOBS)):
        if index + len(block) > MAX_INDEX + 1:
            raise BadInput(f"a part has at most {MAX_INDEX + 1} jobs; use several parts")
        names = [job_id(place.batch, place.part, at) for at in range(index, index + len(block))]
        yield from envelopes(names, block, config, now_ms, options.retry)
        index += len(block)


def _send(
    keys: Keys,
    place: Place,
    raws: Sequence[bytes],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Op[int]:
    args: list[Arg] = [
        config.max_len or 0,
        place.part,
        place.index,
        options.run_at_ms or 0,
        options.life_ms,
        now_ms,
        options.source,
    ]
    for raw in raws:
        if options.run_at_ms:
            args += (encode_member(options.name, raw), b"")
        else:
            args += (raw, options.name)
    return script("add_part", as_int, [keys.stream, keys.delayed, keys.batch(place.batch)], args)


def add_part(
    keys: Keys,
    place: Place,
    payloads: Iterable[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
    confirmer: Confirmer | None = None,
) -> Flow[int]:
    """Hand off the jobs of one part, from `place.index` on; returns where the part ends.

    Chunks of a part must arrive in order; the script refuses a gap, so a lost window is sent again
    as a whole and what had arrived is passed over. With a limit the chunks go one by one.
    Whoever gives a `confirmer` checks it.
    """
    sender = confirmer or Confirmer(keys, config)
    index = place.index
    raws = _envelopes(place, payloads, options, config, now_ms)
    chunks = pieces(raws, len, CHUNK_JOBS, CHUNK_BYTES)
    most = 1 if config.max_len else WINDOW_CHUNKS
    for window in pieces(chunks, lambda chunk: sum(map(len, chunk)), most, WINDOW_BYTES):
        ops: list[Late[int]] = []
        for chunk in window:
            here = replace(place, index=index)
            send = partial(_send, keys, here, chunk, options, config, now_ms)
            ops.append(Late("add_part", send))
            index += len(chunk)
        yield from sender.send(ops)
    if confirmer is None:
        sender.check()
    return index


def seal(
    keys: Keys, batch: str, total: int, parts: int, options: PartOptions, now_ms: int
) -> Op[int]:
    """Write the total: from here on the batch can finish."""
    args: list[Arg] = [total, parts, now_ms, options.source, options.life_ms]
    return script("seal_batch", as_int, [keys.batch(batch)], args)


def add_batch(
    keys: Keys,
    batch: str,
    payloads: Iterable[Any],
    options: PartOptions,
    config: QueueConfig,
    now_ms: int,
) -> Flow[Batch]:
    """Hand off a batch of one part and seal it."""
    confirmer = Confirmer(keys, config)
    place = Place(batch, 0, 0)
    total = yield from add_part(keys, place, payloads, options, config, now_ms, confirmer)
    yield from confirmer.send([seal(keys, batch, total, 1, options, now_ms)])
    confirmer.check()
    return Batch(keys.queue, batch, total, 1)


def _hash(reply: Any) -> dict[str, str]:
    return {key.decode(): value.decode("utf-8", "replace") for key, value in pairs(reply)}


def progress(keys: Keys, batch: str) -> Flow[BatchProgress | None]:
    """Return how far the batch is, or None if there is no such batch."""
    fields = yield command("HGETALL", keys.batch(batch), parse=_hash)
    if not fields:
        return None
    try:
        numbers = {key: int(value) for key, value in fields.items() if key in _NUMBERS}
        sent = {int(key[5:]): int(value) for key, value in fields.items() if key[:5] == "sent:"}
    except ValueError as cause:
        raise DecodeError(
            f"the record of batch {batch!r} holds something that is no number; find out who else "
            "writes under this queue's name, and remove it"
        ) from cause
    parts = numbers.get("parts", max(sent, default=-1) + 1)
    counts: list[int] = []
    if 0 < parts <= MAX_PARTS:
        names = [keys.batch_done(batch, part) for part in range(parts)]
        names += [keys.batch_dead(batch, part) for part in range(parts)]
        counts = yield [command("BITCOUNT", name, parse=as_int) for name in names]
    return BatchProgress(
        id=batch,
        total=numbers.get("total"),
        parts=parts,
        sent=sum(sent.values()),
        done=sum(counts[:parts]),
        dead=sum(counts[parts:]),
        created_at_ms=numbers.get("created"),
        source=fields.get("source", ""),
    )


def dead_ids(keys: Keys, batch: str, parts: int, limit: int) -> Flow[list[str]]:
    """Return the ids of the batch's dead jobs, in order, at most `limit`."""
    found: list[str] = []
    for part in range(parts):
        bits = yield command("GET", keys.batch_dead(batch, part), parse=as_is)
        wanted = islice(set_bits(bits or b""), limit - len(found))
        found += [job_id(batch, part, index) for index in wanted]
        if len(found) >= limit:
            break
    return found


def bit(keys: Keys, place: Place) -> list[Op[int]]:
    """Ask whether a job of a batch is done, and whether it is dead."""
    done, dead = keys.batch_done(place.batch, place.part), keys.batch_dead(place.batch, place.part)
    return [command("GETBIT", key, place.index, parse=as_int) for key in (done, dead)]
