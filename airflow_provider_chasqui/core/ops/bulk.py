"""add, for many jobs of which nothing is said but payload and name: the bulk of all bulks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from airflow_provider_chasqui.core.chunks import CHUNK_BYTES, CHUNK_JOBS, WINDOW_CHUNKS
from airflow_provider_chasqui.core.codec import bin_head, encode_name, envelope_tail
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.ids import Call, Ulids
from airflow_provider_chasqui.core.job import Added, NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, Late, Op, Packed, script
from airflow_provider_chasqui.core.ops.adding import ONCE_MS, signs
from airflow_provider_chasqui.core.ops.confirming import Confirmer
from airflow_provider_chasqui.core.payload import encode_payloads

# What an envelope with a ULID has besides the payload, at most.
_FRAME = 64
# Jobs so small that a chunk of them need not be weighed.
_SMALL = CHUNK_BYTES // CHUNK_JOBS // 4
_UNSAID = tuple(NewJob()[2:])
# Envelope, name, no marker: what the `add` script takes for a job. One formatting does it all,
# which is a third of the time of assembling the envelope and packing three arguments.
_JOB = b"$%d\r\n\x94\xba%b%b%b%b\r\n%b$1\r\n0\r\n"


def is_plain(jobs: Sequence[NewJob], config: QueueConfig) -> bool:
    """Whether these jobs can go the short way."""
    if len(jobs) < 2 or config.max_len or config.announce:
        return False
    return all(job[2:] == _UNSAID for job in jobs)


def encode_bodies(jobs: Sequence[NewJob], config: QueueConfig) -> list[bytes] | None:
    """Return the payloads as they will be sent, or None if they are too large to go this way."""
    bodies = encode_payloads([job.payload for job in jobs])
    most = max(map(len, bodies))
    return bodies if most <= _SMALL and most + _FRAME <= config.max_payload_bytes else None


def add_plain(
    keys: Keys, jobs: Sequence[NewJob], bodies: Sequence[bytes], config: QueueConfig,
    call: Call, now_ms: int, ulids: Ulids,
) -> Flow[list[Added]]:  # fmt: skip
    """Add the jobs in order. All that can be wrong with them has been found before this."""
    named = {name: _argument(encode_name(name)) for name in {job.name for job in jobs}}
    names = [named[job.name] for job in jobs]
    ids = ulids.mint_many(now_ms, len(jobs))
    tail = envelope_tail(now_ms, 0, None)
    confirmer = Confirmer(keys, config)
    fresh: list[bool] = []
    starts = range(0, len(jobs), CHUNK_JOBS)
    for window in range(0, len(starts), WINDOW_CHUNKS):
        ops = [
            Late("add", partial(_chunk, keys, ids, bodies, names, tail, start, call.token(number)))
            for number, start in enumerate(starts[window : window + WINDOW_CHUNKS], window)
        ]
        for flags in (yield from confirmer.send(ops)):
            fresh += flags
    confirmer.check()
    return list(map(Added, ids, fresh))


def _argument(raw: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def _chunk(
    keys: Keys, ids: Sequence[str], bodies: Sequence[bytes], names: Sequence[bytes], tail: bytes,
    start: int, token: str,
) -> Op[list[bool]]:  # fmt: skip
    here = slice(start, start + CHUNK_JOBS)
    frame = 2 + 26 + len(tail)
    parts = []
    for job_id, body, name in zip(ids[here], bodies[here], names[here], strict=True):
        head = bin_head(len(body))
        size = frame + len(head) + len(body)
        parts.append(_JOB % (size, job_id.encode(), head, body, tail, name))
    packed = Packed(3 * len(parts), b"".join(parts))
    return script("add", signs, [keys.stream, keys.once(token)], [0, ONCE_MS, packed])
