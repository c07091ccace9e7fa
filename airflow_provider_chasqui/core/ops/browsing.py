"""Pages of a queue for people who look at it: every call reads a bounded number of entries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_chasqui.core.codec import decode_envelope, decode_member, decode_name
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.event import Event
from airflow_provider_chasqui.core.job import Job
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import AnyOp, Choice, Flow, Op, as_is, command
from airflow_provider_chasqui.core.ops import delayed
from airflow_provider_chasqui.core.replies import event, pairs

R = TypeVar("R")

_PENDING = 1000
_SCANNED = 2000
_QUEUE_KEY = re.compile(r"\{chasqui:([^{}]+)\}:(stream|dlq|events|delayed|repeat)\Z", re.DOTALL)


def together(flows: Iterable[Flow[R]]) -> Flow[list[R]]:
    """Run flows side by side: what they ask for in the same step travels in one pipeline."""
    running = list(flows)
    answers: list[Any] = [None] * len(running)
    asked = [(index, None) for index in range(len(running))]
    while asked:
        steps: list[tuple[int, list[AnyOp[Any]], bool]] = []
        for index, answer in asked:
            try:
                step = running[index].send(answer)
            except StopIteration as done:
                answers[index] = done.value
                continue
            single = isinstance(step, Op | Choice)
            steps.append((index, [step] if single else list(step), single))  # type: ignore[list-item, arg-type]
        replies: list[Any] = []
        if any(ops for _, ops, _ in steps):
            replies = yield [op for _, ops, _ in steps for op in ops]
        asked, start = [], 0
        for index, ops, single in steps:
            part: Any = replies[start : start + len(ops)]
            start += len(ops)
            asked.append((index, part[0] if single else part))
    return answers


@dataclass(frozen=True, slots=True)
class JobRow:
    """One entry of the stream as a list shows it; `job` is None where it cannot be read."""

    entry_id: str
    name: str
    size: int
    job: Job | None
    consumer: str | None = None
    idle_ms: int | None = None
    deliveries: int | None = None

    @property
    def state(self) -> str:
        return "waiting" if self.consumer is None else "running"


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some entries, and where to go on; None if there are no more."""

    rows: list[JobRow]
    after: str | None


def jobs_page(
    keys: Keys, group: str, after: str | None, count: int, *, waiting: bool = False
) -> Flow[JobPage]:
    """Return entries of the stream, oldest first; with `waiting`, those that nobody has read."""
    start = "-" if after is None else f"({after}"
    if waiting and after is None:
        found = yield groups(keys)
        read_to = next((each.last_id for each in found if each.name == group), None)
        start = "-" if read_to is None else f"({read_to}"
    raw = yield command("XRANGE", keys.stream, start, "+", "COUNT", count, parse=as_is)
    if not raw:
        return JobPage([], None)
    pending = yield command(
        "XPENDING", keys.stream, group, raw[0][0], raw[-1][0], _PENDING,
        parse=_pending, absent=dict,
    )  # fmt: skip
    rows = [_row(each, pending.get(each[0].decode())) for each in raw]
    return JobPage(rows, rows[-1].entry_id if len(raw) == count else None)


def running_page(keys: Keys, group: str, after: str | None, count: int) -> Flow[JobPage]:
    """Return the entries that workers hold, oldest first."""
    start = "-" if after is None else f"({after}"
    pending = yield command(
        "XPENDING", keys.stream, group, start, "+", count, parse=_pending, absent=dict
    )
    if not pending:
        return JobPage([], None)
    found = yield [
        command("XRANGE", keys.stream, each, each, "COUNT", 1, parse=as_is) for each in pending
    ]
    # Somebody may have deleted the entry itself: that is held too.
    rows = [
        _row(raw[0] if raw else (entry_id.encode(), ()), held)
        for raw, (entry_id, held) in zip(found, pending.items(), strict=True)
    ]
    return JobPage(rows, list(pending)[-1] if len(pending) == count else None)


_Held = tuple[str, int, int]


def _pending(reply: Any) -> dict[str, _Held]:
    return {
        raw[0].decode(): (raw[1].decode("utf-8", "replace"), int(raw[2]), int(raw[3]))
        for raw in reply
    }


def _row(raw: Sequence[Any], held: _Held | None) -> JobRow:
    fields = dict(zip(raw[1][::2], raw[1][1::2], strict=False))
    d = fields.get(b"d", b"")
    name = decode_name(fields.get(b"n", b""))
    try:
        job: Job | None = decode_envelope(d, name)
    except DecodeError:
        job = None
    return JobRow(raw[0].decode(), name, len(d), job, *(held or (None, None, None)))


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """One delayed job; `job` is None where it cannot be read."""

    due_ms: int
    size: int
    job: Job | None


def delayed_page(keys: Keys, start: int, count: int) -> Flow[list[DelayedRow]]:
    """Return delayed jobs from the `start`-th on, soonest first."""
    members = yield delayed.page(keys, start, count)
    rows = []
    for member, due_ms in members:
        try:
            job: Job | None = decode_member(member)
        except DecodeError:
            job = None
        rows.append(DelayedRow(due_ms, len(member), job))
    return rows


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group of the stream. `lag` is None where the server cannot know it."""

    name: str
    consumers: int
    pending: int
    lag: int | None
    last_id: str


def groups(keys: Keys) -> Op[list[Group]]:
    """The consumer groups of the stream: the workers' own, and those of watchers."""
    return command("XINFO", "GROUPS", keys.stream, parse=_groups, absent=list)


def _groups(reply: Any) -> list[Group]:
    found = []
    for raw in reply:
        info = dict(pairs(raw))
        lag = info.get(b"lag")
        found.append(
            Group(
                info[b"name"].decode("utf-8", "replace"),
                int(info[b"consumers"]),
                int(info[b"pending"]),
                None if lag is None else int(lag),
                info[b"last-delivered-id"].decode(),
            )
        )
    return found


def entries_added(stream: str) -> Op[int | None]:
    """How many entries a stream has ever had; the difference of two answers is a throughput."""
    return command("XINFO", "STREAM", stream, parse=_added, absent=lambda: 0)


def _added(reply: Any) -> int | None:
    added = dict(pairs(reply)).get(b"entries-added")
    return None if added is None else int(added)


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """Events of one job among those that were looked at, and where to go on; None at the end."""

    events: list[Event]
    after: str | None


def job_events(keys: Keys, job_id: str, after: str, count: int) -> Op[TimelinePage]:
    """The events of one job among the `count` events behind `after`."""
    needle = job_id.encode("utf-8", "surrogatepass")

    def read(reply: Any) -> TimelinePage:
        hits = [event(raw) for raw in reply if needle in raw[1]]
        last = reply[-1][0].decode() if len(reply) == count else None
        return TimelinePage([each for each in hits if each.job_id == job_id], last)

    return command("XRANGE", keys.events, f"({after}", "+", "COUNT", count, parse=read)


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a turn of SCAN found, and the cursor of the next; "0" when it has come around."""

    names: list[str]
    cursor: str


def scan_queues(cursor: str, kind: str, count: int) -> Op[Scanned]:
    """Names of queues that have a key of this type ("stream" or "zset")."""

    def read(reply: Any) -> Scanned:
        hits = (_QUEUE_KEY.match(key.decode("utf-8", "replace")) for key in reply[1])
        return Scanned(sorted({hit[1] for hit in hits if hit}), reply[0].decode())

    return command(
        "SCAN", cursor, "MATCH", "{chasqui:*}:*", "COUNT", count, "TYPE", kind, parse=read
    )


def scan_batches(keys: Keys, cursor: str, count: int) -> Op[Scanned]:
    """Ids of batches of the queue. The wire has no index of them: their hashes are looked for."""
    prefix = keys.batch("")
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"

    def read(reply: Any) -> Scanned:
        names = [key.decode("utf-8", "replace").removeprefix(prefix) for key in reply[1]]
        return Scanned([name for name in names if ":" not in name], reply[0].decode())

    return command("SCAN", cursor, "MATCH", pattern, "COUNT", count, "TYPE", "hash", parse=read)


def batch_ids(keys: Keys, limit: int) -> Flow[list[str]]:
    """The ids of batches that are remembered, in no order.

    Looks through every key of the server in small steps, so it is for people, not for loops.
    """
    found: dict[str, None] = {}
    cursor = "0"
    while True:
        turn = yield scan_batches(keys, cursor, _SCANNED)
        found |= dict.fromkeys(turn.names)
        cursor = turn.cursor
        if cursor == "0" or len(found) >= limit:
            return list(found)[:limit]
