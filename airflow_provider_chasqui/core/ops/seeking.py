"""Where is this job? Asked by a person who waits: so far, and no further."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_chasqui.core.batch import place_of
from airflow_provider_chasqui.core.codec import decode_member
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Entry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, as_int, as_is, as_score, command
from airflow_provider_chasqui.core.ops import batches, delayed, letter_pages, looking
from airflow_provider_chasqui.core.ops.delivery import delivery
from airflow_provider_chasqui.core.ops.letters import Choose
from airflow_provider_chasqui.core.ops.looking import UNKNOWN, Found

_PAGES = 30
_ENTRIES = 1_000
_TURNS = 10
_SCANNED = 3_000
_ANY_SIZE = 2**62


@dataclass(frozen=True, slots=True)
class Sought:
    """Where a job is. Not `complete`: there was more to look through than a person may wait for."""

    found: Found
    complete: bool


def seek(keys: Keys, job_id: str, group: str, since_ms: int | None) -> Flow[Sought]:
    """Return where a job is, looking at a bounded number of entries, delayed jobs and letters.

    `since_ms` is when the job was made, if that is known: no entry of it is older.
    """
    place = place_of(job_id)
    settled = None
    if place:
        done, dead = yield batches.bit(keys, place)
        settled = "done" if done else "dead" if dead else None
    if settled is None and (yield command("EXISTS", keys.result(job_id), parse=as_int)):
        settled = "done"
    if settled is not None:
        return Sought(Found(settled), True)
    entry, all_entries = yield from _among_entries(keys, job_id, group, since_ms)
    if entry:
        return Sought(entry, True)
    later, all_delayed = yield from _among_delayed(keys, job_id)
    if later:
        return Sought(later, True)
    page = yield from letter_pages.look(keys, Choose(job_ids=frozenset({job_id})), 1, None)
    if page.letters:
        return Sought(Found("dead", page.letters[0].job, reason=page.letters[0].reason), True)
    return Sought(UNKNOWN, all_entries and all_delayed and page.cursor is None)


def _among_entries(
    keys: Keys, job_id: str, group: str, since_ms: int | None
) -> Flow[tuple[Found | None, bool]]:
    needle = job_id.encode("utf-8", "surrogatepass")
    start = "-" if since_ms is None else str(since_ms)
    for _ in range(_PAGES):
        raw = yield looking.entries(keys, start, _ENTRIES)
        for each in raw:
            if not any(needle in field for field in each[1]):
                continue
            entry = delivery(each, _ANY_SIZE)
            if isinstance(entry, Entry) and entry.job.id == job_id:
                held = yield command(
                    "XPENDING", keys.stream, group, entry.id, entry.id, 1, parse=as_is, absent=list
                )
                return Found("running" if held else "waiting", entry.job, entry.id), True
        if len(raw) < _ENTRIES:
            return None, True
        start = f"({raw[-1][0].decode()}"
    return None, False


def _among_delayed(keys: Keys, job_id: str) -> Flow[tuple[Found | None, bool]]:
    member = yield command("GET", keys.didx(job_id), parse=as_is)
    if member is not None:
        score = yield command("ZSCORE", keys.delayed, member, parse=as_is)
        found = None if score is None else _delayed(member, job_id, as_score(score))
        if found:
            return found, True
    cursor = b"0"
    for _ in range(_TURNS):
        cursor, members = yield delayed.scan(keys, cursor, job_id, _SCANNED)
        for member, due_ms in members:
            found = _delayed(member, job_id, due_ms)
            if found:
                return found, True
        if cursor == b"0":
            return None, True
    return None, False


def _delayed(member: bytes, job_id: str, due_ms: int) -> Found | None:
    try:
        job = decode_member(member)
    except DecodeError:
        return None
    return Found("delayed", job, due_ms=due_ms) if job.id == job_id else None
