"""add, for many jobs of which nothing is said but payload and name: the bulk of all bulks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any, NamedTuple

from airflow_provider_chasqui.core.chunks import CHUNK_BYTES, CHUNK_JOBS, WINDOW_CHUNKS
from airflow_provider_chasqui.core.codec import bin_head, encode_name, envelope_tail
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.ids import Call, Ulids
from airflow_provider_chasqui.core.job import AddedJobs, NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Arg, Flow, Late, Op, Packed, script
from airflow_provider_chasqui.core.ops.adding import ONCE_MS
from airflow_provider_chasqui.core.ops.confirming import Confirmer
from airflow_provider_chasqui.core.payload import encode_payloads

# What an envelope with a ULID has besides the payload, at most.
_FRAME = 64
# Jobs so small that a chunk of them need not be weighed.
_SMALL = CHUNK_BYTES // CHUNK_JOBS // 4
_UNSAID = tuple(NewJob()[2:])
# An envelope as an argument. One formatting does it all, which is a third of the time of
# assembling the envelope and packing it.
_JOB = b"$%d\r\n\x94\xba%b%b%b%b\r\n"


class Plain(NamedTuple):
    """Jobs that can go the short way: their payloads as they will be sent, and their names."""

    bodies: list[bytes]
    names: list[str]


def sort_out(jobs: Iterable[NewJob], config: QueueConfig) -> Plain | list[NewJob]:
    """Return the jobs for the short way, or as a list if one of them cannot go it.

    A plain job is not kept but taken apart: a million of them that come from a generator would
    have Python's collector walk over all of them, again and again.
    """
    if config.max_len or config.announce:
        return list(jobs)
    payloads: list[Any] = []
    names: list[str] = []
    rest = iter(jobs)
    for job in rest:
        if job[2:] != _UNSAID:
            return [*map(NewJob, payloads, names), job, *rest]
        payloads.append(job[0])
        names.append(job[1])
    if len(payloads) > 1:
        bodies = encode_payloads(payloads)
        most = max(map(len, bodies))
        if most <= _SMALL and most + _FRAME <= config.max_payload_bytes:
            return Plain(bodies, names)
    return list(map(NewJob, payloads, names))


def add_plain(
    keys: Keys, jobs: Plain, config: QueueConfig, call: Call, now_ms: int, ulids: Ulids
) -> Flow[AddedJobs]:
    """Add the jobs in order. All that can be wrong with them is found before the first is sent."""
    for name in set(jobs.names):
        encode_name(name)

    def chunk(start: int, token: str) -> Op[list[str]]:
        here = slice(start, start + CHUNK_JOBS)
        part = Plain(jobs.bodies[here], jobs.names[here])
        return add_chunk(keys, part, ulids.mint_many(now_ms, len(part.names)), now_ms, token)

    confirmer = Confirmer(keys, config)
    starts = range(0, len(jobs.names), CHUNK_JOBS)
    ids: list[str] = []
    for window in range(0, len(starts), WINDOW_CHUNKS):
        # Made when their turn has come: all that can wait is done while the server works.
        ops = [
            Late("add_plain", partial(chunk, start, call.token(number)))
            for number, start in enumerate(starts[window : window + WINDOW_CHUNKS], window)
        ]
        ids += chain.from_iterable((yield from confirmer.send(ops)))
    confirmer.check()
    return AddedJobs(ids, [True] * len(ids))


def add_chunk(
    keys: Keys, jobs: Plain, ids: Sequence[str], now_ms: int, token: str
) -> Op[list[str]]:
    """Put jobs on the stream in one call, all of them, and answer with their ids."""
    packed = _envelopes(ids, jobs.bodies, envelope_tail(now_ms, 0, None))
    args: list[Arg] = [ONCE_MS]
    start = 0
    for name, run in groupby(jobs.names):
        end = start + sum(1 for _ in run)
        args += (name.encode(), end - start, Packed(end - start, b"".join(packed[start:end])))
        start = end
    return script("add_plain", lambda _: list(ids), [keys.stream, keys.once(token)], args)


def _envelopes(ids: Sequence[str], bodies: Sequence[bytes], tail: bytes) -> list[bytes]:
    frame = 2 + 26 + len(tail)
    packed = []
    for job_id, body in zip(ids, bodies, strict=True):
        head = bin_head(len(body))
        size = frame + len(head) + len(body)
        packed.append(_JOB % (size, job_id.encode(), head, body, tail))
    return packed
