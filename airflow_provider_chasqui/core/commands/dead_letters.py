"""Dead letters: read, search, replay and purge the entries of the DLQ.

Replay and purge share one loop, `_process`. It goes through the DLQ from the oldest to the newest
dead letter, in pages, and stops at a limit. Its report has a cursor, so that a caller can continue,
show the progress or stop in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.chunking import chunked
from airflow_provider_chasqui.core.codec import (
    decode_envelope,
    decode_job_id,
    decode_job_name,
    encode_job,
)
from airflow_provider_chasqui.core.command import (
    Command,
    CommandFlow,
    as_int,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.pages import (
    MAX_PAGE_BYTES,
    METADATA_BYTES,
    RawEntry,
    StreamPage,
    is_cut,
    read_entry,
    read_page,
)
from airflow_provider_chasqui.core.errors import DecodeError, InvalidArgument
from airflow_provider_chasqui.core.job import DeadLetter, Job
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.resp import Arg
from airflow_provider_chasqui.core.stream_id import StreamId

PAGE_SIZE = 500
MAX_SCANNED = 5_000
MAX_CHANGED = 1_000
REPLAY_COUNT_TTL_MS = 30 * 24 * 3600 * 1000
_REPLAY_CHUNK_SIZE = 100
# One status character per dead letter in the reply of the `replay` script.
_REPLAYED, _MAX_REPLAYS_REACHED, _MISSING = b"1", b"x", b"0"


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Conditions on dead letters. A dead letter must meet all that are given.

    `before_ms` and `after_ms` compare the time at which the job was moved to the DLQ. `text` is
    searched for in the error and the detail.
    """

    ids: frozenset[str] | None = None
    job_ids: frozenset[str] | None = None
    reason: str | None = None
    job_name: str | None = None
    before_ms: int | None = None
    after_ms: int | None = None
    text: str | None = None
    batch_id: str | None = None

    def matches(self, dead_letter: DeadLetter) -> bool:
        """Return whether the dead letter meets all conditions.

        :param dead_letter: the dead letter.
        """
        failed_at_ms = dead_lettered_at_ms(dead_letter)
        return (
            (self.ids is None or dead_letter.id in self.ids)
            and (self.job_ids is None or dead_letter.job_id in self.job_ids)
            and (self.reason is None or dead_letter.reason == self.reason)
            and (self.job_name is None or dead_letter.job_name == self.job_name)
            and (self.before_ms is None or failed_at_ms < self.before_ms)
            and (self.after_ms is None or failed_at_ms >= self.after_ms)
            and (
                self.text is None
                or self.text in f"{dead_letter.error or ''}\n{dead_letter.detail or ''}"
            )
            and (self.batch_id is None or _batch_id(dead_letter) == self.batch_id)
        )


_NO_FILTER = DeadLetterFilter()


def _batch_id(dead_letter: DeadLetter) -> str | None:
    position = parse_batch_job_id(dead_letter.job_id or "")
    return position.batch_id if position else None


def dead_lettered_at_ms(dead_letter: DeadLetter) -> int:
    """Return when the job was moved to the DLQ, in milliseconds since the epoch.

    :param dead_letter: the dead letter. If it has no `failed_at` field, as those of ChasquiMQ, the
        time comes from its id.
    """
    if dead_letter.failed_at_ms is not None:
        return dead_letter.failed_at_ms
    return StreamId.parse(dead_letter.id).ms


def parse_dead_letter(raw_entry: Sequence[Any]) -> DeadLetter:
    """Parse an entry of the DLQ. Never fails; `job` is None if the envelope is not readable.

    :param raw_entry: the entry as the server replied it, id and flat list of fields.
    """
    fields = {raw_entry[1][i]: raw_entry[1][i + 1] for i in range(0, len(raw_entry[1]) - 1, 2)}
    envelope = fields.get(b"d", b"")
    job_name = decode_job_name(fields.get(b"n", b""))
    try:
        job = decode_envelope(envelope, job_name)
    except DecodeError:
        job = None
    return DeadLetter(
        id=raw_entry[0].decode(),
        source_id=_decode_text(fields.get(b"source_id")) or "",
        reason=_decode_text(fields.get(b"reason")) or "",
        detail=_decode_text(fields.get(b"detail")),
        job_name=job_name,
        raw=envelope,
        job=job,
        error=_decode_text(fields.get(b"error")),
        attempts=_parse_int(fields.get(b"attempts")),
        failed_at_ms=_parse_int(fields.get(b"failed_at")),
    )


def _decode_text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _parse_int(raw: bytes | None) -> int | None:
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 20 else None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A dead letter whose job may be cut after its id, and the size of the whole entry."""

    dead_letter: DeadLetter
    size: int
    cut: bool


def _parse_candidate(raw_entry: RawEntry) -> _Candidate:
    dead_letter, cut = parse_dead_letter(raw_entry), is_cut(raw_entry)
    job_id = decode_job_id(dead_letter.raw) if cut else ""
    if job_id and dead_letter.job is None:
        job = Job(job_id, b"", 0, name=dead_letter.job_name)
        dead_letter = replace(dead_letter, job=job)
    return _Candidate(dead_letter, raw_entry[2], cut)


def page_newest_first(keys: Keys, before: str, count: int = PAGE_SIZE) -> Command[list[DeadLetter]]:
    """Read a page of the DLQ, newest first, of at most `MAX_PAGE_BYTES`.

    :param keys: the keys of the queue.
    :param before: the id of the dead letter before which the page begins; `+` for the newest.
    :param count: the maximum number of dead letters. A page is empty only at the end of the DLQ.
    """
    end = "+" if before == "+" else f"({before}"
    command: Command[Any] = read_page(keys.dlq, end, "-", count, newest_first=True)
    return replace(command, parse=lambda reply: [parse_dead_letter(row) for row in reply[1:]])


def _scan(
    keys: Keys, cursor: str | None, count: int, *, newest_first: bool = False, last_id: str = "+"
) -> Command[StreamPage]:
    """Read the metadata of dead letters after a cursor."""
    first, last = ("+", "-") if newest_first else ("-", last_id)
    start = first if cursor in (None, first) else f"({cursor}"
    return read_page(
        keys.dlq, start, last, count, newest_first=newest_first, max_value_bytes=METADATA_BYTES
    )


def _read_whole(keys: Keys, candidates: Sequence[_Candidate]) -> CommandFlow[list[DeadLetter]]:
    """Return dead letters with their whole jobs; those that were deleted are left out."""
    dead_letters: list[DeadLetter] = []
    for chunk in chunked(candidates, lambda item: item.size, PAGE_SIZE, MAX_PAGE_BYTES):
        commands = [read_entry(keys.dlq, item.dead_letter.id) for item in chunk if item.cut]
        pages = iter((yield commands) if commands else ())
        for item in chunk:
            if not item.cut:
                dead_letters.append(item.dead_letter)
            else:
                dead_letters += map(parse_dead_letter, next(pages).entries)
    return dead_letters


def get(keys: Keys, dead_letter_id: str) -> CommandFlow[DeadLetter | None]:
    """Return one dead letter, or None if it does not exist.

    :param keys: the keys of the queue.
    :param dead_letter_id: the id of the dead letter (not of its job).
    """
    dead_letters = yield from get_many(keys, [dead_letter_id])
    return dead_letters[0] if dead_letters else None


def get_many(keys: Keys, ids: Sequence[str]) -> CommandFlow[list[DeadLetter]]:
    """Return the dead letters with these ids, in the same order; ids that do not exist are skipped.

    :param keys: the keys of the queue.
    :param ids: the ids of the dead letters (not of their jobs).
    """
    return (yield from _read_whole(keys, (yield from _scan_ids(keys, ids))))


def _scan_ids(keys: Keys, ids: Sequence[str]) -> CommandFlow[list[_Candidate]]:
    pages = yield [
        read_entry(keys.dlq, entry_id, max_value_bytes=METADATA_BYTES) for entry_id in ids
    ]
    return [_parse_candidate(raw_entry) for page in pages for raw_entry in page.entries]


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Matching dead letters, and how many were scanned for them.

    `cursor` is the id at which to continue, or None if the end of the DLQ was reached.
    """

    dead_letters: list[DeadLetter]
    scanned: int
    cursor: str | None


def search(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    limit: int,
    cursor: str | None,
    *,
    newest_first: bool = True,
    max_scanned: int | None = MAX_SCANNED,
) -> CommandFlow[DeadLetterPage]:
    """Return the dead letters that match a filter.

    :param keys: the keys of the queue.
    :param dlq_filter: the conditions.
    :param limit: the maximum number of dead letters to return.
    :param cursor: the cursor of the page before, or the id of its last dead letter; None to begin.
    :param newest_first: the direction.
    :param max_scanned: the number of dead letters after which to stop; None for no limit. With a
        limit, the page also ends when its dead letters have `MAX_PAGE_BYTES`.
    """
    position = cursor
    # One more than the limit shows whether there is a next page.
    page_size = min(PAGE_SIZE, limit + 1) if dlq_filter == _NO_FILTER else PAGE_SIZE
    matches: list[_Candidate] = []
    scanned = matched_bytes = 0
    has_more = True
    while has_more and (max_scanned is None or scanned < max_scanned):
        page = yield _scan(keys, position, page_size, newest_first=newest_first)
        has_more = page.has_more
        for candidate in map(_parse_candidate, page.entries):
            too_large = max_scanned is not None and matched_bytes >= MAX_PAGE_BYTES
            if len(matches) == limit or too_large:
                return DeadLetterPage((yield from _read_whole(keys, matches)), scanned, position)
            scanned += 1
            position = candidate.dead_letter.id
            if dlq_filter.matches(candidate.dead_letter):
                matches.append(candidate)
                matched_bytes += candidate.size
    dead_letters = yield from _read_whole(keys, matches)
    return DeadLetterPage(dead_letters, scanned, position if has_more else None)


@dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """The result of a replay or purge, or with `dry_run` what the result would be.

    `matched` dead letters met the filter and `affected` of them were replayed or deleted. The
    others had reached `max_replays`, were `unreadable`, or were `missing` because another caller
    replayed or deleted them first. `missing` also counts ids that do not exist.
    """

    matched: int = 0
    affected: int = 0
    max_replays_reached: int = 0
    unreadable: int = 0
    missing: int = 0
    dry_run: bool = False

    def __add__(self, other: DeadLetterReport) -> DeadLetterReport:
        return DeadLetterReport(
            self.matched + other.matched,
            self.affected + other.affected,
            self.max_replays_reached + other.max_replays_reached,
            self.unreadable + other.unreadable,
            self.missing + other.missing,
            self.dry_run or other.dry_run,
        )


@dataclass(frozen=True, slots=True)
class PageRange:
    """The part of the DLQ that a page covers: after `cursor`, up to and including `last_id`.

    A replayed job may die again before the last page. Its new dead letter comes after `last_id`, so
    one replay never replays a job twice. None for `last_id` means the newest dead letter.
    """

    cursor: str | None = None
    last_id: str | None = None


@dataclass(frozen=True, slots=True)
class PageReport:
    """The result of one page of a replay or purge.

    `cursor` and `last_id` define the range of the next page. `cursor` is None after the last one.
    """

    report: DeadLetterReport
    scanned: int
    cursor: str | None
    last_id: str

    @property
    def next_range(self) -> PageRange | None:
        """The range of the next page, or None after the last page."""
        return None if self.cursor is None else PageRange(self.cursor, self.last_id)


def replay(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    limit: int | None,
    max_replays: int | None,
    dry_run: bool,
) -> CommandFlow[DeadLetterReport]:
    """Move all matching dead letters back to the stream, as attempt 0.

    :param keys: the keys of the queue.
    :param dlq_filter: the conditions.
    :param limit: the maximum number of dead letters, oldest first; None for no limit.
    :param max_replays: skip jobs that were already replayed this often; None for no limit.
    :param dry_run: only count.
    """
    page = yield from replay_page(
        keys, dlq_filter, PageRange(), max_replays, dry_run, limit=limit, max_scanned=None
    )
    return page.report


def replay_ids(keys: Keys, ids: Sequence[str], max_replays: int) -> CommandFlow[DeadLetterReport]:
    """Move the dead letters with these ids back to the stream, as attempt 0.

    :param keys: the keys of the queue.
    :param ids: the ids of the dead letters.
    :param max_replays: skip jobs that were already replayed this often; 0 for no limit.
    :return: the report. `matched` counts the given ids, existing or not.
    """
    dlq_filter = DeadLetterFilter(ids=frozenset(ids))
    report = yield from replay(keys, dlq_filter, None, max_replays, False)
    return replace(report, matched=len(ids))


def replay_page(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    page_range: PageRange,
    max_replays: int | None,
    dry_run: bool,
    *,
    limit: int | None = MAX_CHANGED,
    max_scanned: int | None = MAX_SCANNED,
) -> CommandFlow[PageReport]:
    """Move one page of matching dead letters back to the stream, as attempt 0.

    :param keys: the keys of the queue.
    :param dlq_filter: the conditions.
    :param page_range: `PageRange()` to begin, then `next_range` of the page before.
    :param max_replays: skip jobs that were already replayed this often; None for no limit.
    :param dry_run: only count. Jobs that have reached `max_replays` are counted as affected.
    :param limit: the maximum number of matching dead letters; None for no limit.
    :param max_scanned: the number of dead letters after which to stop; None for no limit.
    """
    operation = partial(_replay, keys, max_replays or 0, dry_run)
    report = DeadLetterReport(dry_run=dry_run)
    return _process(keys, dlq_filter, page_range, limit, max_scanned, operation, report)


def _replay(
    keys: Keys, max_replays: int, dry_run: bool, candidates: list[_Candidate]
) -> CommandFlow[DeadLetterReport]:
    if dry_run:
        readable = sum(item.dead_letter.job is not None for item in candidates)
        unreadable = len(candidates) - readable
        return DeadLetterReport(len(candidates), readable, unreadable=unreadable, dry_run=True)
    statuses = b""
    unreadable = 0
    for chunk in chunked(candidates, lambda item: item.size, _REPLAY_CHUNK_SIZE, MAX_PAGE_BYTES):
        dead_letters = yield from _read_whole(keys, chunk)
        statuses += _MISSING * (len(chunk) - len(dead_letters))
        readable_ones = [item for item in dead_letters if item.job is not None]
        unreadable += len(dead_letters) - len(readable_ones)
        if readable_ones:
            statuses += yield replay_chunk(keys, readable_ones, max_replays)
    return DeadLetterReport(
        matched=len(candidates),
        affected=statuses.count(_REPLAYED),
        max_replays_reached=statuses.count(_MAX_REPLAYS_REACHED),
        unreadable=unreadable,
        missing=statuses.count(_MISSING),
    )


def replay_chunk(
    keys: Keys, dead_letters: Sequence[DeadLetter], max_replays: int
) -> Command[bytes]:
    """Move readable dead letters back to the stream in one script call, as attempt 0.

    A cancel request for such a job, from before the replay, is deleted.

    :param keys: the keys of the queue.
    :param dead_letters: the dead letters; each must have a job.
    :param max_replays: skip jobs that were already replayed this often; 0 for no limit.
    :return: a command that returns one character per dead letter: `1` replayed, `x` max_replays
        reached, `0` missing.
    """
    key_names = [keys.dlq, keys.stream, keys.cancel_requests]
    args: list[Arg] = [max_replays, REPLAY_COUNT_TTL_MS]
    for dead_letter in dead_letters:
        assert dead_letter.job is not None
        position = parse_batch_job_id(dead_letter.job.id)
        dead_bits = keys.batch_dead(position.batch_id, position.part) if position else keys.dlq
        key_names += (keys.replay_count(dead_letter.job.id), dead_bits)
        args += (
            dead_letter.id,
            encode_job(dead_letter.job, attempt=0),
            dead_letter.job_name,
            position.index if position else -1,
            dead_letter.job.id,
        )
    return script_command("replay", bytes, key_names, args)


def purge(
    keys: Keys, dlq_filter: DeadLetterFilter, limit: int | None, dry_run: bool
) -> CommandFlow[DeadLetterReport]:
    """Delete all matching dead letters. A purged job of a batch still counts as dead.

    :param keys: the keys of the queue.
    :param dlq_filter: the conditions.
    :param limit: the maximum number of dead letters, oldest first; None for no limit.
    :param dry_run: only count.
    """
    page = yield from purge_page(
        keys, dlq_filter, PageRange(), dry_run, limit=limit, max_scanned=None
    )
    return page.report


def purge_page(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    page_range: PageRange,
    dry_run: bool,
    *,
    limit: int | None = MAX_CHANGED,
    max_scanned: int | None = MAX_SCANNED,
) -> CommandFlow[PageReport]:
    """Delete one page of matching dead letters.

    :param keys: the keys of the queue.
    :param dlq_filter: the conditions.
    :param page_range: `PageRange()` to begin, then `next_range` of the page before.
    :param dry_run: only count.
    :param limit: the maximum number of matching dead letters; None for no limit.
    :param max_scanned: the number of dead letters after which to stop; None for no limit.
    """
    operation = partial(_purge, keys, dry_run)
    report = DeadLetterReport(dry_run=dry_run)
    return _process(keys, dlq_filter, page_range, limit, max_scanned, operation, report)


def _purge(
    keys: Keys, dry_run: bool, candidates: list[_Candidate]
) -> CommandFlow[DeadLetterReport]:
    matched = deleted = len(candidates)
    if candidates and not dry_run:
        ids = [item.dead_letter.id for item in candidates]
        deleted = yield redis_command("XDEL", keys.dlq, *ids, parse=as_int)
    return DeadLetterReport(matched, deleted, missing=matched - deleted, dry_run=dry_run)


def _process(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    page_range: PageRange,
    limit: int | None,
    max_scanned: int | None,
    operation: Callable[[list[_Candidate]], CommandFlow[DeadLetterReport]],
    report: DeadLetterReport,
) -> CommandFlow[PageReport]:
    """Apply an operation to matching dead letters until a limit, `last_id` or the end."""
    ids = None if dlq_filter.ids is None else _ids_after(dlq_filter.ids, page_range.cursor)
    cursor, last_id = page_range.cursor, page_range.last_id or ""
    if ids is None and not last_id:
        newest = yield _scan(keys, None, 1, newest_first=True)
        if not newest.entries:
            return PageReport(report, 0, None, "")
        last_id = newest.entries[0][0].decode()
    if ids is not None:
        if page_range.cursor is None:
            report += DeadLetterReport(missing=len(dlq_filter.ids or ()) - len(ids))
        if not ids:
            return PageReport(report, 0, None, last_id)
    scanned = 0
    while (limit is None or report.matched < limit) and (
        max_scanned is None or scanned < max_scanned
    ):
        remaining = None if limit is None else limit - report.matched
        page_size = PAGE_SIZE
        if remaining is not None and (ids is not None or dlq_filter == _NO_FILTER):
            page_size = min(PAGE_SIZE, remaining)
        if ids is None:
            stream_page = yield _scan(keys, cursor, page_size, last_id=last_id)
            page = [_parse_candidate(raw_entry) for raw_entry in stream_page.entries]
            at_end = not stream_page.has_more
            cursor = page[-1].dead_letter.id if page else cursor
        else:
            page_ids, ids = ids[:page_size], ids[page_size:]
            page = yield from _scan_ids(keys, page_ids)
            report += DeadLetterReport(missing=len(page_ids) - len(page))
            at_end = not ids
            cursor = page_ids[-1]
        scanned += len(page)
        matches = [item for item in page if dlq_filter.matches(item.dead_letter)]
        if remaining is not None and len(matches) > remaining:
            matches = matches[:remaining]
            cursor, at_end = matches[-1].dead_letter.id, False
        report += yield from operation(matches)
        if at_end:
            return PageReport(report, scanned, None, last_id)
    return PageReport(report, scanned, cursor, last_id)


def _ids_after(ids: Collection[str], cursor: str | None) -> list[str]:
    """Return the well-formed ids after the cursor, in stream order."""
    start = StreamId(0, 0) if cursor is None else StreamId.parse(cursor).next()
    parsed = []
    for text in ids:
        try:
            stream_id = StreamId.parse(text)
        except InvalidArgument:
            continue
        if str(stream_id) == text and stream_id >= start:
            parsed.append(stream_id)
    return [str(stream_id) for stream_id in sorted(parsed)]
