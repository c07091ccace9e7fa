"""depth, find, results, events: looking without touching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.batch import place_of
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.event import Event
from airflow_provider_chasqui.core.ids import time_of
from airflow_provider_chasqui.core.job import Entry, Job
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import (
    Arg,
    Flow,
    Op,
    as_int,
    as_is,
    as_score,
    command,
    script,
)
from airflow_provider_chasqui.core.ops import batches, delayed, letters
from airflow_provider_chasqui.core.ops.delivery import delivery
from airflow_provider_chasqui.core.payload import decode_payload
from airflow_provider_chasqui.core.replies import event, last_id, pairs

PAGE = 1000
_SKEW_MS = 3600 * 1000
_PROGRESS_LIFE_S = 3600


@dataclass(frozen=True, slots=True)
class Depth:
    """How full a queue is. Ages are in ms; `lag` is what the group has not read yet."""

    waiting: int
    running: int
    delayed: int
    dead: int
    lag: int | None
    oldest_entry_ms: int | None
    next_due_ms: int | None
    consumers: int
    repeats: int


def depth(keys: Keys, group: str) -> Flow[Depth]:
    """Return the counts of a queue in one pipeline."""
    entries, pending, group_info, later, dead, first, due, repeats = yield [
        command("XLEN", keys.stream, parse=as_int),
        command(
            "XPENDING", keys.stream, group, parse=lambda reply: int(reply[0]), absent=lambda: 0
        ),
        command("XINFO", "GROUPS", keys.stream, parse=_groups, absent=dict),
        command("ZCARD", keys.delayed, parse=as_int),
        command("XLEN", keys.dlq, parse=as_int),
        command("XRANGE", keys.stream, "-", "+", "COUNT", 1, parse=as_is),
        command("ZRANGE", keys.delayed, 0, 0, "WITHSCORES", parse=as_is),
        command("ZCARD", keys.repeat, parse=as_int),
    ]
    info = group_info.get(group, {})
    return Depth(
        waiting=max(0, entries - pending),
        running=pending,
        delayed=later,
        dead=dead,
        lag=info.get("lag") if info else entries,
        oldest_entry_ms=int(first[0][0].partition(b"-")[0]) if first else None,
        next_due_ms=as_score(due[1]) if due else None,
        consumers=info.get("consumers") or 0,
        repeats=repeats,
    )


def _groups(reply: Any) -> dict[str, dict[str, int | None]]:
    found = {}
    for raw in reply:
        info = {key.decode(): value for key, value in pairs(raw)}
        name = info["name"].decode("utf-8", "replace")
        found[name] = {key: info.get(key) for key in ("lag", "consumers", "pending")}
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """Where a job is: waiting, delayed, running, done, dead or unknown."""

    state: str
    job: Job | None = None
    entry_id: str | None = None
    due_ms: int | None = None
    reason: str | None = None

    @property
    def final(self) -> bool:
        return self.state in ("done", "dead")


UNKNOWN = Found("unknown")


def find(keys: Keys, job_id: str, group: str) -> Flow[Found]:
    """Return where a job is.

    What is indexed (batch bits, result, delayed index) is asked first; then the delayed set, the
    stream, the letters and the events are looked through page by page. A job that settled without
    a trace is unknown.
    """
    place = place_of(job_id)
    if place:
        done, dead = yield batches.bit(keys, place)
        if done or dead:
            return Found("done" if done else "dead")
    if (yield command("EXISTS", keys.result(job_id), parse=as_int)):
        return Found("done")
    for _ in range(2):  # twice: it may have moved from where we had not looked to where we had
        for look in (_among_entries, _among_delayed, _among_letters):
            found = yield from look(keys, job_id, group)
            if found:
                return found
    return (yield from _among_events(keys, job_id))


def _among_delayed(keys: Keys, job_id: str, _group: str) -> Flow[Found | None]:
    located = yield from delayed.locate(keys, job_id)
    return Found("delayed", located[2], due_ms=located[1]) if located else None


def _among_entries(keys: Keys, job_id: str, group: str) -> Flow[Found | None]:
    minted_ms = time_of(job_id)
    start = "-" if minted_ms is None else str(max(0, minted_ms - _SKEW_MS))
    raw = yield entries(keys, start)
    if not raw and start != "-":
        # No entry is as young as the id seems to be: it may only look like a ULID.
        raw = yield entries(keys, "-")
    needle = job_id.encode("utf-8", "surrogatepass")
    while raw:
        for each in raw:
            if not any(needle in field for field in each[1]):
                continue
            entry = delivery(each, 2**62)
            if isinstance(entry, Entry) and entry.job.id == job_id:
                pending = yield command(
                    "XPENDING", keys.stream, group, entry.id, entry.id, 1, parse=as_is, absent=list
                )
                return Found("running" if pending else "waiting", entry.job, entry.id)
        raw = yield entries(keys, f"({raw[-1][0].decode()}")
    return None


def entries(keys: Keys, start: str, count: int = PAGE) -> Op[list[Any]]:
    return command("XRANGE", keys.stream, start, "+", "COUNT", count, parse=as_is)


def _among_letters(keys: Keys, job_id: str, _group: str) -> Flow[Found | None]:
    choose = letters.Choose(job_ids=frozenset({job_id}))
    found = yield from letters.peek(keys, choose, 1, None, True)
    return Found("dead", found[0].job, reason=found[0].reason) if found else None


def _among_events(keys: Keys, job_id: str) -> Flow[Found]:
    end = "+"
    while events := (yield events_back(keys, end)):
        for each in events:
            if each.job_id == job_id and each.name == "completed":
                return Found("done")
            if each.job_id == job_id and each.name == "dlq":
                return Found("dead", reason=each.reason)
        end = f"({events[-1].entry_id}"
    return UNKNOWN


def result(keys: Keys, job_id: str) -> Op[tuple[bool, Any]]:
    """Whether a result is kept, and what it is."""

    def read(reply: Any) -> tuple[bool, Any]:
        try:
            return _result(reply)
        except DecodeError as error:
            error.job_id = job_id
            raise

    return command("GET", keys.result(job_id), parse=read)


def _result(reply: Any) -> tuple[bool, Any]:
    return (False, None) if reply is None else (True, decode_payload(reply))


def progress(keys: Keys, job_id: str) -> Op[Any]:
    """What a running handler last said."""
    return command("GET", keys.progress(job_id), parse=lambda reply: _result(reply)[1])


def note_progress(keys: Keys, values: Mapping[str, bytes]) -> Op[int]:
    """Keep what running handlers say, by job id; values are encoded already."""
    args: list[Arg] = [_PROGRESS_LIFE_S, *values.values()]
    return script("note_progress", as_int, [keys.progress(job_id) for job_id in values], args)


def _events(reply: Any) -> list[Event]:
    return [event(raw) for raw in reply]


def events_after(keys: Keys, after: str, count: int = PAGE) -> Op[list[Event]]:
    """Events behind the entry `after`, oldest first."""
    return command("XRANGE", keys.events, f"({after}", "+", "COUNT", count, parse=_events)


def events_back(keys: Keys, end: str, count: int = PAGE) -> Op[list[Event]]:
    """Events newest first."""
    return command("XREVRANGE", keys.events, end, "-", "COUNT", count, parse=_events)


def events_wait(keys: Keys, after: str, count: int, block_ms: int) -> Op[list[Event]]:
    """Events behind the entry `after`; waits for the first one up to `block_ms`."""
    return command(
        "XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", keys.events, after,
        parse=lambda reply: _events(reply[0][1]) if reply else [], block_ms=block_ms,
    )  # fmt: skip


def events_tail(keys: Keys) -> Op[str]:
    """The id of the newest event: a place to follow from. "0-0" if there is none."""
    return command("XINFO", "STREAM", keys.events, parse=last_id, absent=lambda: "0-0")
