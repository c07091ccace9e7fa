"""add, schedule: jobs onto the queue, once each however often the bytes are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from airflow_provider_chasqui.core.chunks import (
    CHUNK_BYTES,
    CHUNK_JOBS,
    WINDOW_BYTES,
    WINDOW_CHUNKS,
    pieces,
)
from airflow_provider_chasqui.core.codec import encode_member
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import ChasquiError, QueueFull
from airflow_provider_chasqui.core.event import EVENTS_KEPT, PackedEvent, event_fields
from airflow_provider_chasqui.core.ids import Call
from airflow_provider_chasqui.core.job import Added, AddedJobs
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import (
    Arg,
    Choice,
    Flow,
    Late,
    Op,
    Packed,
    as_int,
    script,
)
from airflow_provider_chasqui.core.ops.confirming import Confirmer
from airflow_provider_chasqui.core.prepare import Ready

# As long as Redis itself remembers an IDMP id by default.
ONCE_MS = 100_000
_MARKER_GRACE_S = 3600
_ADDED = ord("1")
# The command of a single add in RESP: packing it argument by argument is a tenth of all its calls.
_XADD = (
    b"*8\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$4\r\nIDMP\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$1\r\n*\r\n"
    b"$1\r\nd\r\n$%d\r\n%b\r\n"
)
_XADD_NAMED = _XADD.replace(b"*8", b"*10", 1) + b"$1\r\nn\r\n$%d\r\n%b\r\n"


def signs(reply: Any) -> list[bool]:
    """What the `add` script says of each job: whether this call is the one that added it."""
    return [sign == _ADDED for sign in reply]


def _sent(_: Any) -> list[bool]:
    return [True]


def add(keys: Keys, job: Ready, call: Call, index: int = 0) -> Choice[list[bool]]:
    """Put one plain job on the stream.

    The native dialect sends the wire's own XADD ... IDMP, which costs no marker key; the portable
    one leaves the marker that IDMP would. Both remember the call and not the job's id: a second
    call with the same id is a second job, unless `unique` says otherwise.
    """
    stream, producer, step = keys.stream.encode(), call.producer.encode(), call.step(index).encode()
    where = (len(stream), stream, len(producer), producer, len(step), step)
    what = (len(job.envelope), job.envelope)
    if job.name:
        packed = _XADD_NAMED % (*where, *what, len(job.name), job.name)
    else:
        packed = _XADD % (*where, *what)
    native = Op(packed, _sent)
    return Choice(native, Late("add", lambda: add_chunk(keys, [job], 0, call.token(index))))


def add_chunk(keys: Keys, jobs: Sequence[Ready], max_len: int, token: str) -> Op[list[bool]]:
    """Put jobs on the stream in one call: all of them, or none where the queue is full."""
    markers = [keys.unique(job.id) for job in jobs if job.unique_ms]
    args: list[Arg] = [max_len, ONCE_MS]
    for job in jobs:
        args += (job.envelope, job.name, job.unique_ms)
    return script("add", signs, [keys.stream, keys.once(token), *markers], args)


def schedule_chunk(keys: Keys, jobs: Sequence[Ready], now_ms: int, token: str) -> Op[list[bool]]:
    """Put jobs in the delayed set in one call."""
    names = [keys.delayed, keys.once(token)]
    args: list[Arg] = [ONCE_MS]
    for job in jobs:
        run_at_ms = job.run_at_ms or now_ms
        life_s = marker_life_s(run_at_ms - now_ms) if job.named_by_caller else 0
        args += (run_at_ms, encode_member(job.name, job.envelope), life_s, job.unique_ms)
        if job.named_by_caller:
            names += (keys.dlid(job.id), keys.didx(job.id))
        if job.unique_ms:
            names.append(keys.unique(job.id))
    return script("schedule", signs, names, args)


def marker_life_s(wait_ms: int) -> int:
    return max(1, wait_ms // 1000) + _MARKER_GRACE_S


def announce(keys: Keys, jobs: Sequence[Ready], now_ms: int) -> Op[int]:
    """The events of an add that ChasquiMQ leaves out."""
    events = []
    for job in jobs:
        name = job.name.decode("utf-8", "replace")
        if job.run_at_ms is None:
            events.append(event_fields("waiting", job.id, now_ms, name))
        else:
            delay_ms = job.run_at_ms - now_ms
            events.append(event_fields("delayed", job.id, now_ms, name, delay_ms=delay_ms))
    return emit(keys, events)


def emit(keys: Keys, events: Sequence[Sequence[Arg]], kept: int = EVENTS_KEPT) -> Op[int]:
    """Write events, each a flat list of fields and values, in order."""
    args: list[Arg] = [kept]
    for fields in events:
        args.append(len(fields))
        args += fields
    return script("emit", as_int, [keys.events], args)


def emit_packed(keys: Keys, events: Sequence[PackedEvent], kept: int = EVENTS_KEPT) -> Op[int]:
    """Like `emit`, for events that are packed already."""
    packed = Packed(sum(count for count, _ in events), b"".join(data for _, data in events))
    return script("emit", as_int, [keys.events], [kept, packed])


def add_one(keys: Keys, job: Ready, config: QueueConfig, call: Call, now_ms: int) -> Flow[Added]:
    """Add one job of any kind."""
    if config.announce or config.max_len or config.confirm:
        return (yield from add_all(keys, [job], config, call, now_ms))[0]
    # Nothing to sort, weigh and cut into windows, which would be a third of the calls.
    signs = yield _send(keys, [job], config, call, 0, now_ms)
    return Added(job.id, signs[0])


def add_all(
    keys: Keys, jobs: Sequence[Ready], config: QueueConfig, call: Call, now_ms: int
) -> Flow[AddedJobs]:
    """Add jobs of any kind, in order; many chunks travel in one pipeline.

    With a limit the chunks go one by one and stop at the first that does not fit, so that what was
    added is always the beginning of the list.
    """
    confirmer = Confirmer(keys, config)
    fresh: dict[int, bool] = {}
    index = 0
    for window in _windows(jobs, config.max_len is not None):
        ops: list[Any] = [
            _send(keys, [jobs[place] for place in chunk], config, call, index + i, now_ms)
            for i, chunk in enumerate(window)
        ]
        index += len(window)
        try:
            flags = yield from confirmer.send(ops)
        except QueueFull as full:
            if config.max_len:
                full.message += f"; {len(fresh)} of {len(jobs)} jobs were added"
                full.args = (full.message,)
            raise
        for chunk, signs in zip(window, flags, strict=True):
            fresh.update(zip(chunk, signs, strict=True))
    if config.announce:
        told = [job for place, job in enumerate(jobs) if fresh[place]]
        # The jobs are added: an event that cannot be written must not look like a failed add.
        with suppress(ChasquiError):
            for part in pieces(told, lambda _: 0, CHUNK_JOBS * 4, 1):
                yield announce(keys, part, now_ms)
    confirmer.check(jobs[0].id if len(jobs) == 1 else None)
    return AddedJobs([job.id for job in jobs], [fresh[at] for at in range(len(jobs))])


def _send(
    keys: Keys, chunk: Sequence[Ready], config: QueueConfig, call: Call, index: int, now_ms: int
) -> Op[list[bool]] | Choice[list[bool]]:
    if chunk[0].run_at_ms is not None:
        return schedule_chunk(keys, chunk, now_ms, call.token(index))
    if len(chunk) == 1 and not config.max_len and not chunk[0].unique_ms:
        return add(keys, chunk[0], call, index)
    return add_chunk(keys, chunk, config.max_len or 0, call.token(index))


def _windows(jobs: Sequence[Ready], one_by_one: bool) -> Iterator[list[list[int]]]:
    """Yield pipelines of chunks of places in the list; a chunk is all immediate or all delayed."""

    def delayed(place: int) -> bool:
        return jobs[place].run_at_ms is not None

    def weight(place: int) -> int:
        return len(jobs[place].envelope)

    # Without a limit it does not matter whether a delayed job goes before an immediate one.
    places = range(len(jobs)) if one_by_one else sorted(range(len(jobs)), key=delayed)
    chunks = (
        chunk
        for _, run in groupby(places, key=delayed)
        for chunk in pieces(run, weight, CHUNK_JOBS, CHUNK_BYTES)
    )
    most = 1 if one_by_one else WINDOW_CHUNKS
    return pieces(chunks, lambda chunk: sum(map(weight, chunk)), most, WINDOW_BYTES)
