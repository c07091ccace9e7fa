"""add, schedule: jobs onto the queue, once each however often the bytes are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from airflow_provider_chasqui.core.codec import encode_member
from airflow_provider_chasqui.core.config import CHUNK, QueueConfig
from airflow_provider_chasqui.core.errors import QueueFull
from airflow_provider_chasqui.core.event import EVENTS_KEPT, event_fields
from airflow_provider_chasqui.core.job import Added
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Arg, Choice, Flow, Op, as_int, command, script
from airflow_provider_chasqui.core.prepare import Ready

# As long as Redis itself remembers an IDMP id by default.
ONCE_MS = 100_000
_MARKER_GRACE_S = 3600
_WINDOW = 64


def _signs(reply: Any) -> list[bool]:
    return [sign == ord("1") for sign in reply]


def _sent(_: Any) -> list[bool]:
    return [True]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a producer; its chunks are marked so that sending them again is harmless."""

    producer: str
    number: int

    def chunk(self, index: int) -> str:
        return f"{self.producer}:{self.number}:{index}"


def add(keys: Keys, job: Ready, producer: str) -> Choice[list[bool]]:
    """Put one plain job on the stream.

    The native dialect sends the wire's own XADD ... IDMP, which costs no marker key; the portable
    one marks what IDMP would: this id of this producer.
    """
    name: tuple[Arg, ...] = ("n", job.name) if job.name else ()
    head = ("XADD", keys.stream, "IDMP", producer, job.id)
    native = command(*head, "*", "d", job.envelope, *name, parse=_sent)
    return Choice(native, add_chunk(keys, [job], 0, f"{producer}:{job.id}"))


def add_chunk(keys: Keys, jobs: Sequence[Ready], max_len: int, token: str) -> Op[list[bool]]:
    """Put jobs on the stream in one call: all of them, or none where the queue is full."""
    markers = [keys.unique(job.id) for job in jobs if job.unique_ms]
    args: list[Arg] = [max_len, ONCE_MS]
    for job in jobs:
        args += (job.envelope, job.name, job.unique_ms)
    return script("add", _signs, [keys.stream, keys.once(token), *markers], args)


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
    return script("schedule", _signs, names, args)


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


def add_all(
    keys: Keys, jobs: Sequence[Ready], config: QueueConfig, call: Call, now_ms: int
) -> Flow[list[Added]]:
    """Add jobs of any kind, in order; many chunks travel in one pipeline.

    With a limit the chunks go one by one and stop at the first that does not fit, so that what was
    added is always the beginning of the list.
    """
    chunks = list(_chunks(jobs))
    window = 1 if config.max_len else _WINDOW
    added: list[Added] = []
    for start in range(0, len(chunks), window):
        part = chunks[start : start + window]
        ops: list[Any] = [
            _send(keys, chunk, config, call, index, now_ms)
            for index, chunk in enumerate(part, start)
        ]
        try:
            flags = yield ops
        except QueueFull as full:
            full.message += f"; {len(added)} of {len(jobs)} jobs were added"
            full.args = (full.message,)
            raise
        for chunk, signs in zip(part, flags, strict=True):
            added += [Added(job.id, fresh) for job, fresh in zip(chunk, signs, strict=True)]
    if config.announce:
        fresh_ids = {result.id for result in added if result.fresh}
        told = [job for job in jobs if job.id in fresh_ids]
        yield [announce(keys, told[i : i + CHUNK], now_ms) for i in range(0, len(told), CHUNK)]
    return added


def _send(
    keys: Keys, chunk: Sequence[Ready], config: QueueConfig, call: Call, index: int, now_ms: int
) -> Op[list[bool]] | Choice[list[bool]]:
    if chunk[0].run_at_ms is not None:
        return schedule_chunk(keys, chunk, now_ms, call.chunk(index))
    if len(chunk) == 1 and not config.max_len and not chunk[0].unique_ms:
        return add(keys, chunk[0], call.producer)
    return add_chunk(keys, chunk, config.max_len or 0, call.chunk(index))


def _chunks(jobs: Sequence[Ready]) -> list[Sequence[Ready]]:
    chunks: list[Sequence[Ready]] = []
    for _, run in groupby(jobs, key=lambda job: job.run_at_ms is not None):
        same = list(run)
        chunks += [same[i : i + CHUNK] for i in range(0, len(same), CHUNK)]
    return chunks
