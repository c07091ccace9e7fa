"""cancel, for all of a batch that has not ended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from airflow_provider_chasqui.core.batch import job_id, place_of, set_bits
from airflow_provider_chasqui.core.codec import decode_member
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Arg, Flow, as_int, as_is, command
from airflow_provider_chasqui.core.ops import delayed
from airflow_provider_chasqui.core.replies import pairs

_CHUNK = 1000


def cancel_batch(keys: Keys, batch: str, now_ms: int) -> Flow[int]:
    """Take back what of the batch is delayed and ask the workers to drop the rest.

    Returns how many jobs had not ended.
    """
    taken = yield from _cancel_delayed(keys, batch)
    asked = 0
    for part, sent in sorted((yield command("HGETALL", keys.batch(batch), parse=_sent)).items()):
        bits = yield [
            command("GET", keys.batch_done(batch, part), parse=as_is),
            command("GET", keys.batch_dead(batch, part), parse=as_is),
        ]
        ended = {index for each in bits for index in set_bits(each or b"")}
        open_ones = (job_id(batch, part, i) for i in range(sent) if i not in ended)
        asked += yield from _ask_cancel(keys, open_ones, now_ms)
    return taken + asked


def _sent(reply: list[bytes]) -> dict[int, int]:
    return {int(k[5:]): int(v) for k, v in pairs(reply) if k.startswith(b"sent:")}


def _cancel_delayed(keys: Keys, batch: str) -> Flow[int]:
    at = taken = 0
    while members := (yield delayed.page(keys, at)):
        ours = [
            delayed.cancel_member(keys, name, member)
            for member, _ in members
            if (name := _name(member)) and (place := place_of(name)) and place.batch == batch
        ]
        gone = sum((yield ours)) if ours else 0
        taken += gone
        at += len(members) - gone
    return taken


def _name(member: bytes) -> str:
    try:
        return decode_member(member).id
    except DecodeError:
        return ""


def _ask_cancel(keys: Keys, names: Iterator[str], now_ms: int) -> Flow[int]:
    asked = 0
    while chunk := list(islice(names, _CHUNK)):
        scored: list[Arg] = [arg for name in chunk for arg in (now_ms, name)]
        yield [
            command("ZADD", keys.cancelled, *scored, parse=as_int),
            command("PEXPIRE", keys.cancelled, delayed.CANCEL_LIFE_MS, parse=as_int),
        ]
        asked += len(chunk)
    return asked
