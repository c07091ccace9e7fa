"""depth, find, results, events: looking without touching.

Where is this job? Asked by a person who waits: so far, and no further.

Pages of a queue for people who look at it: every call reads a bounded number of entries.

What happened lately, counted: samples of the events stream, bounded however busy it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.codec import (
    decode_delayed_member,
    decode_envelope,
    decode_job_name,
)
from airflow_provider_chasqui.core.command import (
    AnyCommand,
    Arg,
    Command,
    CommandFlow,
    DialectCommand,
    as_int,
    as_pairs,
    as_raw,
    as_score_ms,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands import batches, dead_letters, delayed
from airflow_provider_chasqui.core.commands import events as event_commands
from airflow_provider_chasqui.core.commands.consumer_group import parse_entry
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.ids import ulid_timestamp_ms
from airflow_provider_chasqui.core.job import Job, StreamEntry
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.payload import decode_payload

PAGE_SIZE = 1000
_MAX_CLOCK_SKEW_MS = 3600 * 1000
_PROGRESS_TTL_S = 3600


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


def depth(keys: Keys, group: str) -> CommandFlow[Depth]:
    """Return the counts of a queue in one pipeline."""
    entries, pending, group_info, later, dead, first, due, repeats = yield [
        redis_command("XLEN", keys.stream, parse=as_int),
        redis_command(
            "XPENDING",
            keys.stream,
            group,
            parse=lambda reply: int(reply[0]),
            default_if_missing=lambda: 0,
        ),
        redis_command(
            "XINFO", "GROUPS", keys.stream, parse=_parse_group_stats, default_if_missing=dict
        ),
        redis_command("ZCARD", keys.delayed, parse=as_int),
        redis_command("XLEN", keys.dlq, parse=as_int),
        redis_command("XRANGE", keys.stream, "-", "+", "COUNT", 1, parse=as_raw),
        redis_command("ZRANGE", keys.delayed, 0, 0, "WITHSCORES", parse=as_raw),
        redis_command("ZCARD", keys.repeat, parse=as_int),
    ]
    info = group_info.get(group, {})
    return Depth(
        waiting=max(0, entries - pending),
        running=pending,
        delayed=later,
        dead=dead,
        lag=info.get("lag") if info else entries,
        oldest_entry_ms=int(first[0][0].partition(b"-")[0]) if first else None,
        next_due_ms=as_score_ms(due[1]) if due else None,
        consumers=info.get("consumers") or 0,
        repeats=repeats,
    )


def _parse_group_stats(reply: Any) -> dict[str, dict[str, int | None]]:
    found = {}
    for raw in reply:
        info = {key.decode(): value for key, value in as_pairs(raw)}
        name = info["name"].decode("utf-8", "replace")
        found[name] = {key: info.get(key) for key in ("lag", "consumers", "pending")}
    return found


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where a job is: waiting, delayed, running, done, dead or unknown."""

    state: str
    job: Job | None = None
    entry_id: str | None = None
    due_ms: int | None = None
    reason: str | None = None

    @property
    def final(self) -> bool:
        return self.state in ("done", "dead")


UNKNOWN = JobStatus("unknown")


def find_job(keys: Keys, job_id: str, group: str) -> CommandFlow[JobStatus]:
    """Return where a job is.

    What is indexed (batch bits, result, delayed index) is asked first; then the delayed set, the
    stream, the letters and the events are looked through page by page. A job that settled without
    a trace is unknown.
    """
    place = parse_batch_job_id(job_id)
    if place:
        done, dead = yield batches.completion_bits(keys, place)
        if done or dead:
            return JobStatus("done" if done else "dead")
    if (yield redis_command("EXISTS", keys.result(job_id), parse=as_int)):
        return JobStatus("done")
    for _ in range(2):  # twice: it may have moved from where we had not looked to where we had
        for look in (_search_stream, _search_delayed, _search_dead_letters):
            found = yield from look(keys, job_id, group)
            if found:
                return found
    return (yield from _search_events(keys, job_id))


def _search_delayed(keys: Keys, job_id: str, _group: str) -> CommandFlow[JobStatus | None]:
    located = yield from delayed.find_member(keys, job_id)
    return JobStatus("delayed", located[2], due_ms=located[1]) if located else None


def _search_stream(keys: Keys, job_id: str, group: str) -> CommandFlow[JobStatus | None]:
    minted_ms = ulid_timestamp_ms(job_id)
    start = "-" if minted_ms is None else str(max(0, minted_ms - _MAX_CLOCK_SKEW_MS))
    raw = yield read_entries(keys, start)
    if not raw and start != "-":
        # No entry is as young as the id seems to be: it may only look like a ULID.
        raw = yield read_entries(keys, "-")
    needle = job_id.encode("utf-8", "surrogatepass")
    while raw:
        for each in raw:
            if not any(needle in field for field in each[1]):
                continue
            entry = parse_entry(each, 2**62)
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
                return JobStatus("running" if pending else "waiting", entry.job, entry.id)
        raw = yield read_entries(keys, f"({raw[-1][0].decode()}")
    return None


def read_entries(keys: Keys, start: str, count: int = PAGE_SIZE) -> Command[list[Any]]:
    return redis_command("XRANGE", keys.stream, start, "+", "COUNT", count, parse=as_raw)


def _search_dead_letters(keys: Keys, job_id: str, _group: str) -> CommandFlow[JobStatus | None]:
    choose = dead_letters.DeadLetterFilter(job_ids=frozenset({job_id}))
    found = yield from dead_letters.peek(keys, choose, 1, None, True)
    return JobStatus("dead", found[0].job, reason=found[0].reason) if found else None


def _search_events(keys: Keys, job_id: str) -> CommandFlow[JobStatus]:
    end = "+"
    while events := (yield event_commands.events_newest_first(keys, end)):
        for each in events:
            if each.job_id == job_id and each.name == "completed":
                return JobStatus("done")
            if each.job_id == job_id and each.name == "dlq":
                return JobStatus("dead", reason=each.reason)
        end = f"({events[-1].entry_id}"
    return UNKNOWN


def get_result(keys: Keys, job_id: str) -> Command[tuple[bool, Any]]:
    """Whether a result is kept, and what it is."""

    def read(reply: Any) -> tuple[bool, Any]:
        try:
            return _parse_result(reply)
        except DecodeError as error:
            error.job_id = job_id
            raise

    return redis_command("GET", keys.result(job_id), parse=read)


def _parse_result(reply: Any) -> tuple[bool, Any]:
    return (False, None) if reply is None else (True, decode_payload(reply))


def get_progress(keys: Keys, job_id: str) -> Command[Any]:
    """What a running handler last said."""
    return redis_command("GET", keys.progress(job_id), parse=lambda reply: _parse_result(reply)[1])


def save_progress(keys: Keys, values: Mapping[str, bytes]) -> Command[int]:
    """Keep what running handlers say, by job id; values are encoded already."""
    args: list[Arg] = [_PROGRESS_TTL_S, *values.values()]
    return script_command(
        "save_progress", as_int, [keys.progress(job_id) for job_id in values], args
    )


_MAX_STREAM_PAGES = 30
_STREAM_PAGE_SIZE = 1_000
_MAX_DELAYED_SCANS = 10
_DELAYED_SCAN_COUNT = 3_000
_NO_SIZE_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class JobSearchResult:
    """Where a job is. Not `complete`: there was more to look through than a person may wait for."""

    status: JobStatus
    complete: bool


def find_job_bounded(
    keys: Keys, job_id: str, group: str, created_after_ms: int | None
) -> CommandFlow[JobSearchResult]:
    """Return where a job is, looking at a bounded number of entries, delayed jobs and letters.

    `since_ms` is when the job was made, if that is known: no entry of it is older.
    """
    place = parse_batch_job_id(job_id)
    settled = None
    if place:
        done, dead = yield batches.completion_bits(keys, place)
        settled = "done" if done else "dead" if dead else None
    if settled is None and (yield redis_command("EXISTS", keys.result(job_id), parse=as_int)):
        settled = "done"
    if settled is not None:
        return JobSearchResult(JobStatus(settled), True)
    entry, all_entries = yield from _search_stream_bounded(keys, job_id, group, created_after_ms)
    if entry:
        return JobSearchResult(entry, True)
    later, all_delayed = yield from _search_delayed_bounded(keys, job_id)
    if later:
        return JobSearchResult(later, True)
    page = yield from dead_letters.search(
        keys, DeadLetterFilter(job_ids=frozenset({job_id})), 1, None
    )
    if page.dead_letters:
        return JobSearchResult(
            JobStatus("dead", page.dead_letters[0].job, reason=page.dead_letters[0].reason), True
        )
    return JobSearchResult(UNKNOWN, all_entries and all_delayed and page.cursor is None)


def _search_stream_bounded(
    keys: Keys, job_id: str, group: str, created_after_ms: int | None
) -> CommandFlow[tuple[JobStatus | None, bool]]:
    needle = job_id.encode("utf-8", "surrogatepass")
    start = "-" if created_after_ms is None else str(created_after_ms)
    for _ in range(_MAX_STREAM_PAGES):
        raw = yield read_entries(keys, start, _STREAM_PAGE_SIZE)
        for each in raw:
            if not any(needle in field for field in each[1]):
                continue
            entry = parse_entry(each, _NO_SIZE_LIMIT)
            if isinstance(entry, StreamEntry) and entry.job.id == job_id:
                held = yield redis_command(
                    "XPENDING",
                    keys.stream,
                    group,
                    entry.id,
                    entry.id,
                    1,
                    parse=as_raw,
                    default_if_missing=list,
                )
                return JobStatus("running" if held else "waiting", entry.job, entry.id), True
        if len(raw) < _STREAM_PAGE_SIZE:
            return None, True
        start = f"({raw[-1][0].decode()}"
    return None, False


def _search_delayed_bounded(keys: Keys, job_id: str) -> CommandFlow[tuple[JobStatus | None, bool]]:
    member = yield redis_command("GET", keys.delayed_index(job_id), parse=as_raw)
    if member is not None:
        score = yield redis_command("ZSCORE", keys.delayed, member, parse=as_raw)
        found = None if score is None else _delayed_status(member, job_id, as_score_ms(score))
        if found:
            return found, True
    cursor = b"0"
    for _ in range(_MAX_DELAYED_SCANS):
        cursor, members = yield delayed.scan_members(keys, cursor, job_id, _DELAYED_SCAN_COUNT)
        for member, due_ms in members:
            found = _delayed_status(member, job_id, due_ms)
            if found:
                return found, True
        if cursor == b"0":
            return None, True
    return None, False


def _delayed_status(member: bytes, job_id: str, due_ms: int) -> JobStatus | None:
    try:
        job = decode_delayed_member(member)
    except DecodeError:
        return None
    return JobStatus("delayed", job, due_ms=due_ms) if job.id == job_id else None


R = TypeVar("R")

_MAX_PENDING = 1000
_BATCH_SCAN_COUNT = 2000
_QUEUE_KEY = re.compile(r"\{chasqui:([^{}]+)\}:(stream|dlq|events|delayed|repeat)\Z", re.DOTALL)


def run_in_lockstep(flows: Iterable[CommandFlow[R]]) -> CommandFlow[list[R]]:
    """Run flows side by side: what they ask for in the same step travels in one pipeline."""
    running = list(flows)
    answers: list[Any] = [None] * len(running)
    asked = [(index, None) for index in range(len(running))]
    while asked:
        steps: list[tuple[int, list[AnyCommand[Any]], bool]] = []
        for index, answer in asked:
            try:
                step = running[index].send(answer)
            except StopIteration as done:
                answers[index] = done.value
                continue
            single = isinstance(step, Command | DialectCommand)
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
    job_name: str
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
    next_cursor: str | None


def jobs_page(
    keys: Keys, group: str, after: str | None, count: int, *, waiting: bool = False
) -> CommandFlow[JobPage]:
    """Return entries of the stream, oldest first; with `waiting`, those that nobody has read."""
    start = "-" if after is None else f"({after}"
    if waiting and after is None:
        found = yield consumer_groups(keys)
        read_to = next((each.last_delivered_id for each in found if each.name == group), None)
        start = "-" if read_to is None else f"({read_to}"
    raw = yield redis_command("XRANGE", keys.stream, start, "+", "COUNT", count, parse=as_raw)
    if not raw:
        return JobPage([], None)
    pending = yield redis_command(
        "XPENDING", keys.stream, group, raw[0][0], raw[-1][0], _MAX_PENDING,
        parse=_parse_pending, default_if_missing=dict,
    )  # fmt: skip
    rows = [_job_row(each, pending.get(each[0].decode())) for each in raw]
    return JobPage(rows, rows[-1].entry_id if len(raw) == count else None)


def running_jobs_page(
    keys: Keys, group: str, after: str | None, count: int
) -> CommandFlow[JobPage]:
    """Return the entries that workers hold, oldest first."""
    start = "-" if after is None else f"({after}"
    pending = yield redis_command(
        "XPENDING",
        keys.stream,
        group,
        start,
        "+",
        count,
        parse=_parse_pending,
        default_if_missing=dict,
    )
    if not pending:
        return JobPage([], None)
    found = yield [
        redis_command("XRANGE", keys.stream, each, each, "COUNT", 1, parse=as_raw)
        for each in pending
    ]
    # Somebody may have deleted the entry itself: that is held too.
    rows = [
        _job_row(raw[0] if raw else (entry_id.encode(), ()), held)
        for raw, (entry_id, held) in zip(found, pending.items(), strict=True)
    ]
    return JobPage(rows, list(pending)[-1] if len(pending) == count else None)


_PendingInfo = tuple[str, int, int]


def _parse_pending(reply: Any) -> dict[str, _PendingInfo]:
    return {
        raw[0].decode(): (raw[1].decode("utf-8", "replace"), int(raw[2]), int(raw[3]))
        for raw in reply
    }


def _job_row(raw_entry: Sequence[Any], pending: _PendingInfo | None) -> JobRow:
    fields = dict(zip(raw_entry[1][::2], raw_entry[1][1::2], strict=False))
    d = fields.get(b"d", b"")
    name = decode_job_name(fields.get(b"n", b""))
    try:
        job: Job | None = decode_envelope(d, name)
    except DecodeError:
        job = None
    return JobRow(raw_entry[0].decode(), name, len(d), job, *(pending or (None, None, None)))


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """One delayed job; `job` is None where it cannot be read."""

    due_ms: int
    size: int
    job: Job | None


def delayed_jobs_page(keys: Keys, start: int, count: int) -> CommandFlow[list[DelayedRow]]:
    """Return delayed jobs from the `start`-th on, soonest first."""
    members = yield delayed.members_page(keys, start, count)
    rows = []
    for member, due_ms in members:
        try:
            job: Job | None = decode_delayed_member(member)
        except DecodeError:
            job = None
        rows.append(DelayedRow(due_ms, len(member), job))
    return rows


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group of the stream. `lag` is None where the server cannot know it."""

    name: str
    consumers: int
    pending: int
    lag: int | None
    last_delivered_id: str


def consumer_groups(keys: Keys) -> Command[list[ConsumerGroup]]:
    """The consumer groups of the stream: the workers' own, and those of watchers."""
    return redis_command(
        "XINFO", "GROUPS", keys.stream, parse=_parse_consumer_groups, default_if_missing=list
    )


def _parse_consumer_groups(reply: Any) -> list[ConsumerGroup]:
    found = []
    for raw in reply:
        info = dict(as_pairs(raw))
        lag = info.get(b"lag")
        found.append(
            ConsumerGroup(
                info[b"name"].decode("utf-8", "replace"),
                int(info[b"consumers"]),
                int(info[b"pending"]),
                None if lag is None else int(lag),
                info[b"last-delivered-id"].decode(),
            )
        )
    return found


def entries_added(stream: str) -> Command[int | None]:
    """How many entries a stream has ever had; the difference of two answers is a throughput."""
    return redis_command(
        "XINFO", "STREAM", stream, parse=_parse_entries_added, default_if_missing=lambda: 0
    )


def _parse_entries_added(reply: Any) -> int | None:
    added = dict(as_pairs(reply)).get(b"entries-added")
    return None if added is None else int(added)


@dataclass(frozen=True, slots=True)
class ScanPage:
    """What a turn of SCAN found, and the cursor of the next; "0" when it has come around."""

    names: list[str]
    cursor: str


def scan_queues(cursor: str, key_type: str, count: int) -> Command[ScanPage]:
    """Names of queues that have a key of this type ("stream" or "zset")."""

    def read(reply: Any) -> ScanPage:
        hits = (_QUEUE_KEY.match(key.decode("utf-8", "replace")) for key in reply[1])
        return ScanPage(sorted({hit[1] for hit in hits if hit}), reply[0].decode())

    return redis_command(
        "SCAN", cursor, "MATCH", "{chasqui:*}:*", "COUNT", count, "TYPE", key_type, parse=read
    )


def scan_batches(keys: Keys, cursor: str, count: int) -> Command[ScanPage]:
    """Ids of batches of the queue. The wire has no index of them: their hashes are looked for."""
    prefix = keys.batch("")
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"

    def read(reply: Any) -> ScanPage:
        names = [key.decode("utf-8", "replace").removeprefix(prefix) for key in reply[1]]
        return ScanPage([name for name in names if ":" not in name], reply[0].decode())

    return redis_command(
        "SCAN", cursor, "MATCH", pattern, "COUNT", count, "TYPE", "hash", parse=read
    )


def list_batch_ids(keys: Keys, limit: int) -> CommandFlow[list[str]]:
    """The ids of batches that are remembered, in no order.

    Looks through every key of the server in small steps, so it is for people, not for loops.
    """
    found: dict[str, None] = {}
    cursor = "0"
    while True:
        turn = yield scan_batches(keys, cursor, _BATCH_SCAN_COUNT)
        found |= dict.fromkeys(turn.names)
        cursor = turn.cursor
        if cursor == "0" or len(found) >= limit:
            return list(found)[:limit]


@dataclass(frozen=True, slots=True)
class ThroughputBucket:
    """One slice of time. With `sampled`, the counts are scaled up from its first events."""

    start_ms: int
    completed: int
    retried: int
    dead: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class _BucketSample:
    start_ms: int
    counts: Counter[bytes]
    event_count: int
    # How many events the slice has if it went on as it began; what was seen, if that was all.
    estimate: float
    truncated: bool


def sample_throughput(
    keys: Keys, now_ms: int, period_ms: int, bucket_count: int, max_events: int
) -> CommandFlow[list[ThroughputBucket]]:
    """Count the ends of jobs in `beats` slices of the last `span_ms`, oldest first.

    At most `each` events are read of a slice. Where there are more, their number is guessed from
    how dense the first ones are, and the guesses are fitted to the length of the stream, which is
    known: if all of it lies in the span, their sum is right.
    """
    slice_ms = period_ms // bucket_count
    # Aligned, so that the slices of one look and of the next are the same ones.
    begin_ms = (now_ms // slice_ms - bucket_count + 1) * slice_ms
    starts = [begin_ms + index * slice_ms for index in range(bucket_count)]
    length, first_ms, *slices = yield [
        redis_command("XLEN", keys.events, parse=as_int),
        redis_command("XRANGE", keys.events, "-", "+", "COUNT", 1, parse=_first_entry_ms),
        *(_read_bucket(keys, start, slice_ms, now_ms, max_events) for start in starts),
    ]
    exact = sum(each.event_count for each in slices if not each.truncated)
    guessed = sum(each.estimate for each in slices if each.truncated)
    fit = max(0, length - exact) / guessed if guessed else 1.0
    if first_ms < begin_ms:  # older events take part in the length, so it is only a bound
        fit = min(1.0, fit)
    return [_to_bucket(each, fit) for each in slices]


def _first_entry_ms(reply: Sequence[Any]) -> int:
    return _entry_ms(reply[0]) if reply else 0


def _entry_ms(raw_entry: Sequence[Any]) -> int:
    return int(raw_entry[0].partition(b"-")[0])


def _read_bucket(
    keys: Keys, start_ms: int, bucket_ms: int, now_ms: int, max_events: int
) -> Command[_BucketSample]:
    end_ms = start_ms + bucket_ms - 1

    def read(reply: Sequence[Any]) -> _BucketSample:
        counts, seen = Counter(_event_name(raw[1]) for raw in reply), len(reply)
        guess, full = float(seen), seen == max_events
        if full:
            took_ms = _entry_ms(reply[-1]) - start_ms + 1
            guess *= max(1.0, (min(end_ms, now_ms) - start_ms + 1) / took_ms)
        return _BucketSample(start_ms, counts, seen, guess, full)

    return redis_command("XRANGE", keys.events, start_ms, end_ms, "COUNT", max_events, parse=read)


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
