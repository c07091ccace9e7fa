"""Read the state of a queue: counts, one job, pages of jobs, consumer groups, throughput.

Apart from `save_progress`, which a worker uses to store what `get_progress` returns, no command
here writes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from airflow_provider_chasqui.core.commands import batches, dead_letters, delayed, events
from airflow_provider_chasqui.core.commands.consumer_group import (
    NO_SIZE_LIMIT,
    parse_entry,
    pending_count,
)
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Job, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.payload import decode_payload
from airflow_provider_chasqui.core.resp import Arg

R = TypeVar("R")

PAGE_SIZE = 1000
_MAX_PENDING = 1000
_BATCH_SCAN_COUNT = 2000
_PROGRESS_TTL_S = 3600
_QUEUE_KEY = re.compile(r"\{chasqui:([^{}]+)\}:(stream|dlq|events|delayed|repeat)\Z", re.DOTALL)


# Counts


@dataclass(frozen=True, slots=True)
class Depth:
    """The counts of a queue.

    `lag` is the number of entries that the consumer group has not read; None if the server does not
    know it. `oldest_entry_ms` and `next_due_ms` are timestamps in milliseconds since the epoch.
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


def depth(keys: Keys, group: str) -> CommandFlow[Depth]:
    """Return the counts of a queue, read in one pipeline.

    :param keys: the keys of the queue.
    :param group: the consumer group of the workers.
    """
    entries, pending, groups, delayed_count, dead, first_entry, first_due, repeats = yield [
        redis_command("XLEN", keys.stream, parse=as_int),
        pending_count(keys, group),
        consumer_groups(keys),
        redis_command("ZCARD", keys.delayed, parse=as_int),
        redis_command("XLEN", keys.dlq, parse=as_int),
        redis_command("XRANGE", keys.stream, "-", "+", "COUNT", 1, parse=as_raw),
        redis_command("ZRANGE", keys.delayed, 0, 0, "WITHSCORES", parse=as_raw),
        redis_command("ZCARD", keys.repeat, parse=as_int),
    ]
    group_info = next((info for info in groups if info.name == group), None)
    return Depth(
        waiting=max(0, entries - pending),
        running=pending,
        delayed=delayed_count,
        dead=dead,
        lag=group_info.lag if group_info else entries,
        oldest_entry_ms=_entry_ms(first_entry[0]) if first_entry else None,
        next_due_ms=as_score_ms(first_due[1]) if first_due else None,
        consumers=group_info.consumers if group_info else 0,
        repeats=repeats,
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
    page = yield read_entries(keys, "-" if start_ms is None else str(start_ms))
    if not page and start_ms is not None and created_after_ms is None:
        # Every entry is older than the time in the id, so the id may not be a ULID.
        page = yield read_entries(keys, "-")
    needle = job_id.encode("utf-8", "surrogatepass")
    scanned = 0
    while page:
        for raw_entry in page:
            if not any(needle in field for field in raw_entry[1]):
                continue
            entry = parse_entry(raw_entry, NO_SIZE_LIMIT)
            if isinstance(entry, StreamEntry) and entry.job.id == job_id:
                pending = yield redis_command(
                    "XPENDING",
                    keys.stream,
                    group,
                    entry.id,
                    entry.id,
                    1,
                    parse=as_raw,
                    default_if_missing=list,
                )
                state = "running" if pending else "waiting"
                return JobStatus(state, entry.job, entry.id), True
        scanned += len(page)
        if max_scanned is not None and scanned >= max_scanned:
            return None, len(page) < PAGE_SIZE
        page = yield read_entries(keys, f"({page[-1][0].decode()}")
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
    :param count: the maximum number of entries.
    """
    return redis_command("XRANGE", keys.stream, start, "+", "COUNT", count, parse=as_raw)


def get_result(keys: Keys, job_id: str) -> Command[tuple[bool, Any]]:
    """Return whether a result is stored, and the result.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    :raises DecodeError: by the command, if the stored result is not readable.
    """

    def parse(reply: Any) -> tuple[bool, Any]:
        try:
            return _parse_result(reply)
        except DecodeError as error:
            error.job_id = job_id
            raise

    return redis_command("GET", keys.result(job_id), parse=parse)


def _parse_result(reply: Any) -> tuple[bool, Any]:
    return (False, None) if reply is None else (True, decode_payload(reply))


def get_progress(keys: Keys, job_id: str) -> Command[Any]:
    """Return the progress that the running handler reported last, or None.

    :param keys: the keys of the queue.
    :param job_id: the id of the job.
    """
    return redis_command("GET", keys.progress(job_id), parse=lambda reply: _parse_result(reply)[1])


def save_progress(keys: Keys, values: Mapping[str, bytes]) -> Command[int]:
    """Store the progress that running handlers report.

    :param keys: the keys of the queue.
    :param values: the encoded progress by job id.
    """
    args: list[Arg] = [_PROGRESS_TTL_S, *values.values()]
    return script_command(
        "save_progress", as_int, [keys.progress(job_id) for job_id in values], args
    )


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
    entries = yield read_entries(keys, start, count)
    if not entries:
        return JobPage([], None)
    pending = yield _read_pending(keys, group, entries[0][0], entries[-1][0], _MAX_PENDING)
    rows = [_job_row(entry, pending.get(entry[0].decode())) for entry in entries]
    return JobPage(rows, rows[-1].entry_id if len(entries) == count else None)


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
    replies = yield [
        redis_command("XRANGE", keys.stream, entry_id, entry_id, "COUNT", 1, parse=as_raw)
        for entry_id in pending
    ]
    # A pending entry may have been deleted from the stream. It is listed without its fields.
    rows = [
        _job_row(entries[0] if entries else (entry_id.encode(), ()), info)
        for entries, (entry_id, info) in zip(replies, pending.items(), strict=True)
    ]
    return JobPage(rows, list(pending)[-1] if len(pending) == count else None)


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


def delayed_jobs_page(keys: Keys, start: int, count: int) -> CommandFlow[list[DelayedRow]]:
    """Return a page of delayed jobs, the earliest due time first.

    :param keys: the keys of the queue.
    :param start: the rank of the first job.
    :param count: the maximum number of jobs.
    """
    members = yield delayed.members_page(keys, start, count)
    return [
        DelayedRow(due_ms, len(member), delayed.decode_or_none(member))
        for member, due_ms in members
    ]


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


# Throughput


@dataclass(frozen=True, slots=True)
class ThroughputBucket:
    """The number of finished jobs in one interval.

    If `sampled`, the numbers are extrapolated from the first events of the interval.
    """

    start_ms: int
    completed: int
    retried: int
    dead: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class _BucketSample:
    """The first events of an interval. If `truncated`, `estimate` extrapolates their number."""

    start_ms: int
    counts: Counter[bytes]
    event_count: int
    estimate: float
    truncated: bool


def sample_throughput(
    keys: Keys, now_ms: int, period_ms: int, bucket_count: int, max_events: int
) -> CommandFlow[list[ThroughputBucket]]:
    """Count finished jobs in equal intervals of the recent past, oldest first.

    If an interval has more than `max_events` events, their number is estimated from the density of
    the first ones. The estimates are then scaled to the length of the events stream, which is
    known. If all events are within the period, the sum is exact.

    :param keys: the keys of the queue.
    :param now_ms: the current time in milliseconds.
    :param period_ms: the length of the period in milliseconds.
    :param bucket_count: the number of intervals.
    :param max_events: the maximum number of events to read per interval.
    """
    bucket_ms = period_ms // bucket_count
    # Aligned, so that successive calls use the same intervals.
    period_start_ms = (now_ms // bucket_ms - bucket_count + 1) * bucket_ms
    bucket_starts = [period_start_ms + index * bucket_ms for index in range(bucket_count)]
    length, first_ms, *samples = yield [
        redis_command("XLEN", keys.events, parse=as_int),
        redis_command("XRANGE", keys.events, "-", "+", "COUNT", 1, parse=_first_entry_ms),
        *(_read_bucket(keys, start, bucket_ms, now_ms, max_events) for start in bucket_starts),
    ]
    exact = sum(sample.event_count for sample in samples if not sample.truncated)
    estimated = sum(sample.estimate for sample in samples if sample.truncated)
    correction = max(0, length - exact) / estimated if estimated else 1.0
    if first_ms < period_start_ms:  # the length includes older events: only an upper bound
        correction = min(1.0, correction)
    return [_to_bucket(sample, correction) for sample in samples]


def _first_entry_ms(reply: Sequence[Any]) -> int:
    return _entry_ms(reply[0]) if reply else 0


def _entry_ms(raw_entry: Sequence[Any]) -> int:
    return int(raw_entry[0].partition(b"-")[0])


def _read_bucket(
    keys: Keys, start_ms: int, bucket_ms: int, now_ms: int, max_events: int
) -> Command[_BucketSample]:
    end_ms = start_ms + bucket_ms - 1

    def parse(reply: Sequence[Any]) -> _BucketSample:
        counts = Counter(_event_name(raw_entry[1]) for raw_entry in reply)
        event_count = len(reply)
        estimate, truncated = float(event_count), event_count == max_events
        if truncated:
            sampled_ms = _entry_ms(reply[-1]) - start_ms + 1
            estimate *= max(1.0, (min(end_ms, now_ms) - start_ms + 1) / sampled_ms)
        return _BucketSample(start_ms, counts, event_count, estimate, truncated)

    return redis_command("XRANGE", keys.events, start_ms, end_ms, "COUNT", max_events, parse=parse)


def _to_bucket(sample: _BucketSample, correction: float) -> ThroughputBucket:
    scale = max(1.0, sample.estimate * correction / sample.event_count) if sample.truncated else 1.0
    completed, retried, dead = (
        round(sample.counts[name] * scale) for name in (b"completed", b"retry-scheduled", b"dlq")
    )
    return ThroughputBucket(sample.start_ms, completed, retried, dead, sample.truncated)


def _event_name(fields: Sequence[bytes]) -> bytes:
    for index in range(0, len(fields) - 1, 2):
        if fields[index] == b"e":
            return fields[index + 1]
    return b""


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
