"""Read the state of a queue: counts, one job, pages of jobs, consumer groups.

Apart from `save_progress`, which a worker uses to store what `get_progress` returns, no command
here writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.codec import decode_envelope, decode_job_name
from airflow_provider_chasqui.core.command import (
    AnyCommand,
    Command,
    CommandFlow,
    DeferredCommand,
    DialectCommand,
    as_int,
    as_pairs,
    as_raw,
    as_score_ms,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands import (
    batches,
    dead_letters,
    delayed,
    events,
    flow_control,
)
from airflow_provider_chasqui.core.commands.consumer_group import (
    NO_SIZE_LIMIT,
    parse_entry,
    pending_count,
)
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter
from airflow_provider_chasqui.core.commands.pages import (
    MAX_PAGE_BYTES,
    METADATA_BYTES,
    StreamPage,
    read_entry,
    read_page,
)
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Job, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.payload import decode_payload
from airflow_provider_chasqui.core.resp import Arg

R = TypeVar("R")

PAGE_SIZE = 1000
_MAX_PENDING = 1000
# More than the bytes before the id in an envelope.
_ID_OFFSET_BYTES = 64
_BATCH_SCAN_COUNT = 2000
_PROGRESS_TTL_S = 3600
_QUEUE_KEY = re.compile(r"\{chasqui:([^{}]+)\}:(stream|dlq|events|delayed|repeat)\Z", re.DOTALL)


# Counts


@dataclass(frozen=True, slots=True)
class Depth:
    """The counts of a queue.

    `lag` is the number of entries that the consumer group has not read; None if the server does not
    know it. `oldest_entry_ms` and `next_due_ms` are timestamps in milliseconds since the epoch.
    `paused` tells whether the queue is paused. Jobs whose name is paused count as delayed.
    """

    waiting: int
    running: int
    delayed: int
    dead: int
    lag: int | None
    oldest_entry_ms: int | None
    next_due_ms: int | None
    consumers: int
    repeats: int
    paused: bool = False
    paused_job_names: tuple[str, ...] = ()


def depth(keys: Keys, group: str) -> CommandFlow[Depth]:
    """Return the counts of a queue, read in one pipeline.

    :param keys: the keys of the queue.
    :param group: the consumer group of the workers.
    """
    (
        entries,
        pending,
        groups,
        delayed_count,
        dead,
        first_entry,
        first_due,
        repeats,
        *pauses,
    ) = yield [
        redis_command("XLEN", keys.stream, parse=as_int),
        pending_count(keys, group),
        consumer_groups(keys),
        redis_command("ZCARD", keys.delayed, parse=as_int),
        redis_command("XLEN", keys.dlq, parse=as_int),
        redis_command("XRANGE", keys.stream, "-", "+", "COUNT", 1, parse=as_raw),
        redis_command("ZRANGE", keys.delayed, 0, 0, "WITHSCORES", parse=as_raw),
        redis_command("ZCARD", keys.repeat, parse=as_int),
        *flow_control.pause_state_commands(keys),
    ]
    group_info = next((info for info in groups if info.name == group), None)
    pause_state = flow_control.parse_pause_state(*pauses)
    next_due_ms = as_score_ms(first_due[1]) if first_due else None
    if next_due_ms is not None and next_due_ms >= flow_control.PARKED_FROM_MS:
        next_due_ms = None
    return Depth(
        waiting=max(0, entries - pending),
        running=pending,
        delayed=delayed_count,
        dead=dead,
        lag=group_info.lag if group_info else entries,
        oldest_entry_ms=_entry_ms(first_entry[0]) if first_entry else None,
        next_due_ms=next_due_ms,
        consumers=group_info.consumers if group_info else 0,
        repeats=repeats,
        paused=pause_state.queue,
        paused_job_names=tuple(sorted(pause_state.job_names)),
    )


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group of the stream. `lag` is None if the server does not know it."""

    name: str
    consumers: int
    pending: int
    lag: int | None
    last_delivered_id: str


def consumer_groups(keys: Keys) -> Command[list[ConsumerGroup]]:
    """Return the consumer groups of the stream, of workers and of watchers.

    :param keys: the keys of the queue.
    """
    return redis_command(
        "XINFO", "GROUPS", keys.stream, parse=_parse_consumer_groups, default_if_missing=list
    )


def _parse_consumer_groups(reply: Any) -> list[ConsumerGroup]:
    groups = []
    for raw_group in reply:
        info = dict(as_pairs(raw_group))
        lag = info.get(b"lag")
        groups.append(
            ConsumerGroup(
                info[b"name"].decode("utf-8", "replace"),
                int(info[b"consumers"]),
                int(info[b"pending"]),
                None if lag is None else int(lag),
                info[b"last-delivered-id"].decode(),
            )
        )
    return groups


def oldest_unread_ms(keys: Keys, group: str) -> CommandFlow[int | None]:
    """Return when the oldest entry that the group has not read was added, in milliseconds.

    :param keys: the keys of the queue.
    :param group: the consumer group of the workers.
    :return: the time, or None if the group has read every entry.
    """
    groups = yield consumer_groups(keys)
    last_read = next((info.last_delivered_id for info in groups if info.name == group), "0-0")
    first = yield redis_command(
        "XRANGE", keys.stream, f"({last_read}", "+", "COUNT", 1, parse=as_raw
    )
    return _entry_ms(first[0]) if first else None


def entries_added(stream: str) -> Command[int | None]:
    """Return how many entries were ever added to a stream. The rate of change is the throughput.

    :param stream: the key of the stream.
    :return: a command that returns the number, 0 without a stream, or None if the server does not
        report it.
    """
    return redis_command(
        "XINFO", "STREAM", stream, parse=_parse_entries_added, default_if_missing=lambda: 0
    )


def _parse_entries_added(reply: Any) -> int | None:
    added = dict(as_pairs(reply)).get(b"entries-added")
    return None if added is None else int(added)


# One job


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job: waiting, delayed, running, done, dead or unknown.

    A job that was acknowledged without a result, a batch bit or an event is unknown. `exhaustive`
    is False if the search stopped at its limit, so that an unknown job may exist after all.
    """

    state: str
    job: Job | None = None
    entry_id: str | None = None
    due_ms: int | None = None
    reason: str | None = None
    exhaustive: bool = True

    @property
    def final(self) -> bool:
        """Whether the job is done or dead."""
        return self.state in ("done", "dead")


UNKNOWN = JobStatus("unknown")
# A status if the job was found, and whether everything was searched.
_SearchResult = tuple[JobStatus | None, bool]


def find_job(
    keys: Keys,
    job_id: str,
    group: str,
    *,
    created_after_ms: int | None = None,
    max_scanned: int | None = None,
) -> CommandFlow[JobStatus]:
    """Return the state of a job.

    Batch bits and the result are read first. Then the stream, the delayed set (its index first),
    the dead letters and the events are searched page by page.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :param group: the consumer group of the workers.
    :param created_after_ms: when the job was created at the earliest; older stream entries are
        skipped. Default: the time in the id if it is a ULID.
    :param max_scanned: stop after about this many stream entries, delayed jobs, dead letters and
        events each; None for no limit.
    """
    position = parse_batch_job_id(job_id)
    if position:
        done, dead = yield batches.completion_bits(keys, position)
        if done or dead:
            return JobStatus("done" if done else "dead")
    if (yield redis_command("EXISTS", keys.result(job_id), parse=as_int)):
        return JobStatus("done")
    exhaustive = True
    for _ in range(2):  # the job may move to a key that was already searched
        status, complete = yield from _search_stream(
            keys, job_id, group, created_after_ms, max_scanned
        )
        exhaustive = exhaustive and complete
        for search in (_search_delayed, _search_dead_letters):
            if status is None:
                status, complete = yield from search(keys, job_id, max_scanned)
                exhaustive = exhaustive and complete
        if status is not None:
            return status
        if not exhaustive:
            break
    status, complete = yield from _search_events(keys, job_id, max_scanned)
    return status or JobStatus("unknown", exhaustive=exhaustive and complete)


def _search_stream(
    keys: Keys, job_id: str, group: str, created_after_ms: int | None, max_scanned: int | None
) -> CommandFlow[_SearchResult]:
    start_ms = created_after_ms
    if start_ms is None:
        start_ms = events.earliest_creation_ms(job_id)
    needle = job_id.encode("utf-8", "surrogatepass")
    # The id is at the beginning of an envelope, so the payloads need not be transferred.
    max_value_bytes = len(needle) + _ID_OFFSET_BYTES

    def scan(start: str) -> Command[StreamPage]:
        return read_page(keys.stream, start, "+", PAGE_SIZE, max_value_bytes=max_value_bytes)

    page = yield scan("-" if start_ms is None else str(start_ms))
    if not page.entries and start_ms is not None and created_after_ms is None:
        # Every entry is older than the time in the id, so the id may not be a ULID.
        page = yield scan("-")
    scanned = 0
    while page.entries:
        for raw_entry in page.entries:
            if not any(needle in field for field in raw_entry[1]):
                continue
            found, pending = yield [
                read_entry(keys.stream, raw_entry[0].decode()),
                _read_pending(keys, group, raw_entry[0], raw_entry[0], 1),
            ]
            entry = parse_entry(found.entries[0][:2], NO_SIZE_LIMIT) if found.entries else None
            if isinstance(entry, StreamEntry) and entry.job.id == job_id:
                state = "running" if pending else "waiting"
                return JobStatus(state, entry.job, entry.id), True
        if not page.has_more:
            return None, True
        scanned += len(page.entries)
        if max_scanned is not None and scanned >= max_scanned:
            return None, False
        page = yield scan(f"({page.entries[-1][0].decode()}")
    return None, True


def _search_delayed(keys: Keys, job_id: str, max_scanned: int | None) -> CommandFlow[_SearchResult]:
    found, complete = yield from delayed.search_member(keys, job_id, max_scanned)
    if found is None:
        return None, complete
    _, due_ms, job = found
    return JobStatus("delayed", job, due_ms=due_ms), True


def _search_dead_letters(
    keys: Keys, job_id: str, max_scanned: int | None
) -> CommandFlow[_SearchResult]:
    dlq_filter = DeadLetterFilter(job_ids=frozenset({job_id}))
    page = yield from dead_letters.search(keys, dlq_filter, 1, None, max_scanned=max_scanned)
    if not page.dead_letters:
        return None, page.cursor is None
    dead_letter = page.dead_letters[0]
    return JobStatus("dead", dead_letter.job, reason=dead_letter.reason), True


def _search_events(keys: Keys, job_id: str, max_scanned: int | None) -> CommandFlow[_SearchResult]:
    end, scanned = "+", 0
    while page := (yield events.events_newest_first(keys, end)):
        for event in page:
            if event.job_id == job_id and event.name == "completed":
                return JobStatus("done"), True
            if event.job_id == job_id and event.name == "dlq":
                return JobStatus("dead", reason=event.reason), True
        scanned += len(page)
        if max_scanned is not None and scanned >= max_scanned:
            return None, len(page) < events.PAGE_SIZE
        end = f"({page[-1].entry_id}"
    return None, True


def read_entries(keys: Keys, start: str, count: int = PAGE_SIZE) -> Command[list[Any]]:
    """Read a page of the stream, oldest first, without parsing the entries.

    :param keys: the keys of the queue.
    :param start: where the page begins, as XRANGE takes it: `-`, an entry id, or `(` and an id.
    :param count: the maximum number of entries. The page also ends at `MAX_PAGE_BYTES`, so only an
        empty page is the end of the stream.
    """
    page: Command[Any] = read_page(keys.stream, start, "+", count)
    return replace(page, parse=lambda reply: [entry[:2] for entry in reply[1:]])


_MAX_PERCENT = 100


def get_progress(keys: Keys, job_id: str) -> Command[Any]:
    """Return the progress that the running handler reported last, or None.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    """
    return redis_command(
        "MGET", keys.progress_value(job_id), keys.progress(job_id), parse=_parse_progress
    )


def _parse_progress(reply: Sequence[bytes | None]) -> Any:
    value, percent = reply
    if value:
        return decode_payload(value)
    if percent is not None and percent.isdigit():
        return int(percent)
    return None


def save_progress(keys: Keys, values: Mapping[str, bytes]) -> Command[int]:
    """Store the progress that running handlers report.

    An integer from 0 to 100 is stored as newer versions of ChasquiMQ do: as decimal text. Any other
    value has a key of its own, which is empty if the last value is such an integer.

    :param keys: the keys of the queue.
    :param values: the progress as MessagePack by job id.
    """
    key_names: list[str] = []
    args: list[Arg] = [_PROGRESS_TTL_S]
    for job_id, value in values.items():
        # MessagePack encodes an integer up to 127 as one byte.
        is_percent = len(value) == 1 and value[0] <= _MAX_PERCENT
        if is_percent:
            key_names.append(keys.progress(job_id))
            args.append(value[0])
        key_names.append(keys.progress_value(job_id))
        args.append(b"" if is_percent else value)
    return script_command("save_progress", as_int, key_names, args)


# Pages of jobs


@dataclass(frozen=True, slots=True)
class JobRow:
    """An entry of the stream. `job` is None if the entry is not readable.

    `consumer`, `idle_ms` and `deliveries` are None unless a consumer has read the entry.
    """

    entry_id: str
    job_name: str
    size: int
    job: Job | None
    consumer: str | None = None
    idle_ms: int | None = None
    deliveries: int | None = None

    @property
    def state(self) -> str:
        """`waiting` or `running`."""
        return "waiting" if self.consumer is None else "running"


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of entries. `next_cursor` begins the next page; None after the last page."""

    rows: list[JobRow]
    next_cursor: str | None


def jobs_page(
    keys: Keys, group: str, after: str | None, count: int, *, waiting: bool = False
) -> CommandFlow[JobPage]:
    """Return a page of the stream, oldest first.

    :param keys: the keys of the queue.
    :param group: the consumer group of the workers.
    :param after: the cursor of the page before; None to begin.
    :param count: the maximum number of entries.
    :param waiting: begin at the first entry that the group has not read.
    """
    start = "-" if after is None else f"({after}"
    if waiting and after is None:
        groups = yield consumer_groups(keys)
        last_read_id = next((info.last_delivered_id for info in groups if info.name == group), None)
        start = "-" if last_read_id is None else f"({last_read_id}"
    page = yield read_page(keys.stream, start, "+", count)
    if not page.entries:
        return JobPage([], None)
    first_id, last_id = page.entries[0][0], page.entries[-1][0]
    pending: dict[str, _PendingInfo] = {}
    while True:
        # The range may also contain pending entries that were deleted from the stream.
        more = yield _read_pending(keys, group, first_id, last_id, _MAX_PENDING)
        pending |= more
        if len(more) < _MAX_PENDING:
            break
        first_id = f"({list(more)[-1]}"
    rows = [_job_row(entry, pending.get(entry[0].decode())) for entry in page.entries]
    return JobPage(rows, rows[-1].entry_id if page.has_more else None)


def running_jobs_page(
    keys: Keys, group: str, after: str | None, count: int
) -> CommandFlow[JobPage]:
    """Return a page of the entries that workers have read and not acknowledged, oldest first.

    :param keys: the keys of the queue.
    :param group: the consumer group of the workers.
    :param after: the cursor of the page before; None to begin.
    :param count: the maximum number of entries.
    """
    start = "-" if after is None else f"({after}"
    pending = yield _read_pending(keys, group, start, "+", count)
    if not pending:
        return JobPage([], None)
    sizes = yield [
        read_entry(keys.stream, entry_id, max_value_bytes=METADATA_BYTES) for entry_id in pending
    ]
    shown: list[str] = []
    total_bytes = 0
    for entry_id, metadata in zip(pending, sizes, strict=True):
        total_bytes += metadata.entries[0][2] if metadata.entries else 0
        if shown and total_bytes > MAX_PAGE_BYTES:
            break
        shown.append(entry_id)
    pages = yield [read_entry(keys.stream, entry_id) for entry_id in shown]
    # A pending entry may have been deleted from the stream. It is listed without its fields.
    rows = [
        _job_row(page.entries[0] if page.entries else (entry_id.encode(), ()), pending[entry_id])
        for entry_id, page in zip(shown, pages, strict=True)
    ]
    has_more = len(shown) < len(pending) or len(pending) == count
    return JobPage(rows, shown[-1] if has_more else None)


# The consumer, the idle time in ms and the number of deliveries.
_PendingInfo = tuple[str, int, int]


def _read_pending(
    keys: Keys, group: str, start: Arg, end: Arg, count: int
) -> Command[dict[str, _PendingInfo]]:
    return redis_command(
        "XPENDING",
        keys.stream,
        group,
        start,
        end,
        count,
        parse=_parse_pending,
        default_if_missing=dict,
    )


def _parse_pending(reply: Any) -> dict[str, _PendingInfo]:
    return {
        row[0].decode(): (row[1].decode("utf-8", "replace"), int(row[2]), int(row[3]))
        for row in reply
    }


def _job_row(raw_entry: Sequence[Any], pending: _PendingInfo | None) -> JobRow:
    fields = dict(zip(raw_entry[1][::2], raw_entry[1][1::2], strict=False))
    envelope = fields.get(b"d", b"")
    job_name = decode_job_name(fields.get(b"n", b""))
    try:
        job: Job | None = decode_envelope(envelope, job_name)
    except DecodeError:
        job = None
    pending_fields = pending or (None, None, None)
    return JobRow(raw_entry[0].decode(), job_name, len(envelope), job, *pending_fields)


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A delayed job. `job` is None if the member is not readable."""

    due_ms: int
    size: int
    job: Job | None


@dataclass(frozen=True, slots=True)
class DelayedPage:
    """A page of delayed jobs. `next_start` is the rank of the next one; None after the last."""

    rows: list[DelayedRow]
    next_start: int | None


def delayed_jobs_page(keys: Keys, start: int, count: int) -> CommandFlow[DelayedPage]:
    """Return a page of delayed jobs, the earliest due time first.

    :param keys: the keys of the queue.
    :param start: the rank of the first job.
    :param count: the maximum number of jobs. The page also ends at `MAX_PAGE_BYTES`.
    """
    members, total = yield [
        delayed.members_page(keys, start, count),
        redis_command("ZCARD", keys.delayed, parse=as_int),
    ]
    rows = [
        DelayedRow(due_ms, len(member), delayed.decode_or_none(member))
        for member, due_ms in members
    ]
    end = start + len(rows)
    return DelayedPage(rows, end if rows and end < total else None)


# Queues and batches by SCAN


@dataclass(frozen=True, slots=True)
class ScanPage:
    """Names found by one SCAN call, and the cursor of the next one; "0" after the last."""

    names: list[str]
    cursor: str


def scan_queues(cursor: str, key_type: str, count: int) -> Command[ScanPage]:
    """Return names of queues that have a key of a type.

    :param cursor: the SCAN cursor; "0" to begin.
    :param key_type: `stream` or `zset`.
    :param count: the COUNT hint of SCAN.
    """

    def parse(reply: Any) -> ScanPage:
        matches = (_QUEUE_KEY.match(key.decode("utf-8", "replace")) for key in reply[1])
        return ScanPage(sorted({match[1] for match in matches if match}), reply[0].decode())

    return redis_command(
        "SCAN", cursor, "MATCH", "{chasqui:*}:*", "COUNT", count, "TYPE", key_type, parse=parse
    )


def scan_batches(keys: Keys, cursor: str, count: int) -> Command[ScanPage]:
    """Return ids of batches of the queue. There is no index of batches, so their keys are scanned.

    :param keys: the keys of the queue.
    :param cursor: the SCAN cursor; "0" to begin.
    :param count: the COUNT hint of SCAN.
    """
    prefix = keys.batch("")
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"

    def parse(reply: Any) -> ScanPage:
        names = [key.decode("utf-8", "replace").removeprefix(prefix) for key in reply[1]]
        return ScanPage([name for name in names if ":" not in name], reply[0].decode())

    return redis_command(
        "SCAN", cursor, "MATCH", pattern, "COUNT", count, "TYPE", "hash", parse=parse
    )


def list_batch_ids(keys: Keys, limit: int) -> CommandFlow[list[str]]:
    """Return the ids of batches that have not expired, in no particular order.

    Scans every key of the server in small steps. Intended for interactive use.

    :param keys: the keys of the queue.
    :param limit: the maximum number of ids.
    """
    batch_ids: dict[str, None] = {}
    cursor = "0"
    while True:
        page = yield scan_batches(keys, cursor, _BATCH_SCAN_COUNT)
        batch_ids |= dict.fromkeys(page.names)
        cursor = page.cursor
        if cursor == "0" or len(batch_ids) >= limit:
            return list(batch_ids)[:limit]


def _entry_ms(raw_entry: Sequence[Any]) -> int:
    return int(raw_entry[0].partition(b"-")[0])


# Several flows at once


def run_in_lockstep(flows: Iterable[CommandFlow[R]]) -> CommandFlow[list[R]]:
    """Run several flows side by side, sending the commands of each step in one pipeline.

    :param flows: the flows.
    :return: their results, in the same order.
    """
    running = list(flows)
    results: list[Any] = [None] * len(running)
    replies_by_flow: list[tuple[int, Any]] = [(index, None) for index in range(len(running))]
    while replies_by_flow:
        steps: list[tuple[int, list[AnyCommand[Any]], bool]] = []
        for index, reply in replies_by_flow:
            try:
                step = running[index].send(reply)
            except StopIteration as stop:
                results[index] = stop.value
                continue
            if isinstance(step, Command | DialectCommand | DeferredCommand):
                steps.append((index, [step], True))
            else:
                steps.append((index, list(step), False))
        replies: list[Any] = []
        if any(commands for _, commands, _ in steps):
            replies = yield [command for _, commands, _ in steps for command in commands]
        replies_by_flow, start = [], 0
        for index, commands, is_single in steps:
            flow_replies = replies[start : start + len(commands)]
            start += len(commands)
            replies_by_flow.append((index, flow_replies[0] if is_single else flow_replies))
    return results
