"""peek, replay, purge: letters, chosen by id, reason, name, age or text.

Letters a bounded step at a time: a filter that fits nothing must not read all of them at once.

Each step says where the next one goes on, so a caller can show how far it is and stop in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.batch import parse_batch_job_id
from airflow_provider_chasqui.core.codec import decode_envelope, decode_job_name, encode_job
from airflow_provider_chasqui.core.command import (
    Arg,
    Command,
    CommandFlow,
    as_int,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import DeadLetter
from airflow_provider_chasqui.core.keys import Keys

PAGE_SIZE = 500
_REPLAY_CHUNK_SIZE = 100
REPLAY_COUNT_TTL_MS = 30 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which letters are meant; every field that is given must fit. Times are of the burial."""

    ids: frozenset[str] | None = None
    job_ids: frozenset[str] | None = None
    reason: str | None = None
    job_name: str | None = None
    before_ms: int | None = None
    after_ms: int | None = None
    text: str | None = None
    batch_id: str | None = None

    def matches(self, dead_letter: DeadLetter) -> bool:
        at_ms = dead_lettered_at_ms(dead_letter)
        return (
            (self.ids is None or dead_letter.id in self.ids)
            and (self.job_ids is None or dead_letter.job_id in self.job_ids)
            and (self.reason is None or dead_letter.reason == self.reason)
            and (self.job_name is None or dead_letter.job_name == self.job_name)
            and (self.before_ms is None or at_ms < self.before_ms)
            and (self.after_ms is None or at_ms >= self.after_ms)
            and (
                self.text is None
                or self.text in f"{dead_letter.error or ''}\n{dead_letter.detail or ''}"
            )
            and (self.batch_id is None or _batch_id(dead_letter) == self.batch_id)
        )


def _batch_id(dead_letter: DeadLetter) -> str | None:
    place = parse_batch_job_id(dead_letter.job_id or "")
    return place.batch_id if place else None


def dead_lettered_at_ms(dead_letter: DeadLetter) -> int:
    if dead_letter.failed_at_ms is not None:
        return dead_letter.failed_at_ms
    return int(dead_letter.id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """What a replay or purge did, or with a dry run would do."""

    matched: int = 0
    affected: int = 0
    max_replays_reached: int = 0
    unreadable: int = 0
    missing: int = 0
    dry_run: bool = False


def parse_dead_letter(raw_entry: Sequence[Any]) -> DeadLetter:
    """Return a raw DLQ entry as a letter; whatever is in it, this succeeds."""
    fields = {raw_entry[1][i]: raw_entry[1][i + 1] for i in range(0, len(raw_entry[1]) - 1, 2)}
    d = fields.get(b"d", b"")
    name = decode_job_name(fields.get(b"n", b""))
    try:
        job = decode_envelope(d, name)
    except DecodeError:
        job = None
    return DeadLetter(
        id=raw_entry[0].decode(),
        source_id=_decode_text(fields.get(b"source_id")) or "",
        reason=_decode_text(fields.get(b"reason")) or "",
        detail=_decode_text(fields.get(b"detail")),
        job_name=name,
        raw=d,
        job=job,
        error=_decode_text(fields.get(b"error")),
        attempts=_parse_int(fields.get(b"attempts")),
        failed_at_ms=_parse_int(fields.get(b"failed_at")),
    )


def _decode_text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _parse_int(raw: bytes | None) -> int | None:
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 20 else None


def _parse_dead_letters(reply: Any) -> list[DeadLetter]:
    return [parse_dead_letter(raw) for raw in reply]


def page_oldest_first(
    keys: Keys, after: str, count: int = PAGE_SIZE, last_id: str = "+"
) -> Command[list[DeadLetter]]:
    """Letters in order of burial, from behind the letter `after` ("-": from the first)."""
    start = "-" if after == "-" else f"({after}"
    return redis_command(
        "XRANGE", keys.dlq, start, last_id, "COUNT", count, parse=_parse_dead_letters
    )


def page_newest_first(keys: Keys, before: str, count: int = PAGE_SIZE) -> Command[list[DeadLetter]]:
    """Letters newest first, from before the letter `before` ("+": from the newest)."""
    end = "+" if before == "+" else f"({before}"
    return redis_command("XREVRANGE", keys.dlq, end, "-", "COUNT", count, parse=_parse_dead_letters)


def peek(
    keys: Keys, dlq_filter: DeadLetterFilter, limit: int, after: str | None, newest_first: bool
) -> CommandFlow[list[DeadLetter]]:
    """Return up to `limit` chosen letters, from behind the letter `after`."""
    found: list[DeadLetter] = []
    cursor = after or ("+" if newest_first else "-")
    turn = page_newest_first if newest_first else page_oldest_first
    while len(found) < limit and (letters := (yield turn(keys, cursor))):
        found += [each for each in letters if dlq_filter.matches(each)]
        cursor = letters[-1].id
    return found[:limit]


def replay_chunk(
    keys: Keys, dead_letters: Sequence[DeadLetter], max_replays: int
) -> Command[bytes]:
    """Move readable letters back to the stream, attempt 0; one sign for each."""
    names = [keys.dlq, keys.stream]
    args: list[Arg] = [max_replays, REPLAY_COUNT_TTL_MS]
    for each in dead_letters:
        assert each.job is not None
        place = parse_batch_job_id(each.job.id)
        dead = keys.batch_dead(place.batch_id, place.part) if place else keys.dlq
        names += (keys.replay_count(each.job.id), dead)
        args += (
            each.id,
            encode_job(each.job, attempt=0),
            each.job_name,
            place.index if place else -1,
        )
    return script_command("replay", bytes, names, args)


def _apply_to_matching(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    limit: int | None,
    operation: Callable[[list[DeadLetter]], CommandFlow[bytes]],
) -> CommandFlow[bytes]:
    """Act on the chosen ones of the letters that stand now; `act` answers a sign for each.

    A job that is replayed may die again meanwhile: its new letter is younger than the last one we
    go to, so it is not replayed twice.
    """
    newest = yield page_newest_first(keys, "+", 1)
    left = 2**62 if limit is None else limit
    signs, cursor = b"", "-"
    while (
        newest
        and left
        and (letters := (yield page_oldest_first(keys, cursor, PAGE_SIZE, newest[0].id)))
    ):
        chosen = [each for each in letters if dlq_filter.matches(each)][:left]
        left -= len(chosen)
        for start in range(0, len(chosen), _REPLAY_CHUNK_SIZE):
            signs += yield from operation(chosen[start : start + _REPLAY_CHUNK_SIZE])
        cursor = letters[-1].id
    return signs


def replay(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    limit: int | None,
    max_replays: int | None,
    dry_run: bool,
) -> CommandFlow[DeadLetterReport]:
    """Put chosen letters back on the stream; unreadable ones are counted and passed over."""

    def act(chosen: list[DeadLetter]) -> CommandFlow[bytes]:
        readable = [each for each in chosen if each.job is not None]
        passed = b"?" * (len(chosen) - len(readable))
        if dry_run or not readable:
            return passed + b"1" * len(readable)
        moved: bytes = yield replay_chunk(keys, readable, max_replays or 0)
        return passed + moved

    signs = yield from _apply_to_matching(keys, dlq_filter, limit, act)
    moved, over, unreadable, gone = (signs.count(sign) for sign in (b"1", b"x", b"?", b"0"))
    return DeadLetterReport(len(signs), moved, over, unreadable, gone, dry_run)


def replay_ids(keys: Keys, ids: Sequence[str], max_replays: int) -> CommandFlow[DeadLetterReport]:
    """Put these letters back on the stream, found by their id instead of by looking through all."""
    pages = yield [
        redis_command("XRANGE", keys.dlq, each, each, "COUNT", 1, parse=_parse_dead_letters)
        for each in ids
    ]
    found = [each for page in pages for each in page]
    readable = [each for each in found if each.job is not None]
    signs = b""
    for start in range(0, len(readable), _REPLAY_CHUNK_SIZE):
        signs += yield replay_chunk(keys, readable[start : start + _REPLAY_CHUNK_SIZE], max_replays)
    gone = len(ids) - len(found) + signs.count(b"0")
    moved, over = signs.count(b"1"), signs.count(b"x")
    return DeadLetterReport(len(ids), moved, over, len(found) - len(readable), gone)


def purge(
    keys: Keys, dlq_filter: DeadLetterFilter, limit: int | None, dry_run: bool
) -> CommandFlow[DeadLetterReport]:
    """Delete chosen letters for good; a purged job of a batch stays counted as dead."""

    def act(chosen: list[DeadLetter]) -> CommandFlow[bytes]:
        if dry_run or not chosen:
            return b"1" * len(chosen)
        ids = [each.id for each in chosen]
        deleted: int = yield redis_command("XDEL", keys.dlq, *ids, parse=as_int)
        return b"1" * deleted + b"0" * (len(chosen) - deleted)

    signs = yield from _apply_to_matching(keys, dlq_filter, limit, act)
    moved = signs.count(b"1")
    return DeadLetterReport(len(signs), moved, missing=len(signs) - moved, dry_run=dry_run)


MAX_SCANNED = 5_000
MAX_CHANGED = 1_000
_PAGED_REPLAY_CHUNK_SIZE = 100


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Letters that fit, how many were looked at, and where to go on; None at the end."""

    dead_letters: list[DeadLetter]
    scanned: int
    cursor: str | None


def search(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    limit: int,
    cursor: str | None,
    *,
    max_scanned: int = MAX_SCANNED,
) -> CommandFlow[DeadLetterPage]:
    """Return up to `limit` letters that fit, newest first, looking at no more than `at_most`."""
    found: list[DeadLetter] = []
    looked, before = 0, cursor or "+"
    while looked < max_scanned:
        # A page without a filter is no larger than what is wanted of it.
        size = min(PAGE_SIZE, limit + 1) if dlq_filter == DeadLetterFilter() else PAGE_SIZE
        page = yield page_newest_first(keys, before, size)
        for each in page:
            if len(found) == limit:
                return DeadLetterPage(found, looked, before)
            looked += 1
            before = each.id
            if dlq_filter.matches(each):
                found.append(each)
        if len(page) < size:
            return DeadLetterPage(found, looked, None)
    return DeadLetterPage(found, looked, before)


def get(keys: Keys, dead_letter_id: str) -> CommandFlow[DeadLetter | None]:
    """Return one letter by its own id."""
    found = yield from get_many(keys, [dead_letter_id])
    return found[0] if found else None


def get_many(keys: Keys, ids: Sequence[str]) -> CommandFlow[list[DeadLetter]]:
    """Return the letters with these ids that are still there."""
    pages = yield [
        redis_command("XRANGE", keys.dlq, each, each, "COUNT", 1, parse=_parse_dead_letter_page)
        for each in ids
    ]
    return [each for page in pages for each in page]


def _parse_dead_letter_page(reply: Sequence[Sequence[object]]) -> list[DeadLetter]:
    return [parse_dead_letter(raw) for raw in reply]


@dataclass(frozen=True, slots=True)
class PageReport:
    """What one step of a replay or purge did. `until` is the newest letter that it will go to."""

    report: DeadLetterReport
    scanned: int
    cursor: str | None
    last_id: str


@dataclass(frozen=True, slots=True)
class PageRange:
    """Where a step begins and ends: behind the letter `cursor`, and not behind `until`.

    A job that is replayed may die again meanwhile. Its new letter is behind `until`, so it is not
    replayed twice.
    """

    cursor: str | None = None
    last_id: str | None = None


def replay_page(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    page_range: PageRange,
    max_replays: int | None,
    dry_run: bool,
) -> CommandFlow[PageReport]:
    """Put letters that fit back on the stream, oldest first, no more than one step of them."""

    def act(chosen: list[DeadLetter]) -> CommandFlow[DeadLetterReport]:
        readable = [each for each in chosen if each.job is not None]
        signs = b"1" * len(readable)
        if not dry_run:
            signs = b""
            for start in range(0, len(readable), _PAGED_REPLAY_CHUNK_SIZE):
                chunk = readable[start : start + _PAGED_REPLAY_CHUNK_SIZE]
                signs += yield replay_chunk(keys, chunk, max_replays or 0)
        moved, over, gone = (signs.count(sign) for sign in (b"1", b"x", b"0"))
        return DeadLetterReport(
            len(chosen), moved, over, len(chosen) - len(readable), gone, dry_run
        )

    return (yield from _process_page(keys, dlq_filter, page_range, act))


def purge_page(
    keys: Keys, dlq_filter: DeadLetterFilter, page_range: PageRange, dry_run: bool
) -> CommandFlow[PageReport]:
    """Delete letters that fit for good, oldest first, no more than one step of them."""

    def act(chosen: list[DeadLetter]) -> CommandFlow[DeadLetterReport]:
        deleted = len(chosen)
        if chosen and not dry_run:
            deleted = yield redis_command(
                "XDEL", keys.dlq, *(each.id for each in chosen), parse=as_int
            )
        return DeadLetterReport(
            len(chosen), deleted, missing=len(chosen) - deleted, dry_run=dry_run
        )

    return (yield from _process_page(keys, dlq_filter, page_range, act))


def _process_page(
    keys: Keys,
    dlq_filter: DeadLetterFilter,
    page_range: PageRange,
    operation: Callable[[list[DeadLetter]], CommandFlow[DeadLetterReport]],
) -> CommandFlow[PageReport]:
    if dlq_filter.ids is not None:
        chosen = yield from get_many(keys, sorted(dlq_filter.ids))
        report = yield from operation([each for each in chosen if dlq_filter.matches(each)])
        return PageReport(report, len(chosen), None, page_range.last_id or "")
    until = page_range.last_id
    if until is None:
        newest = yield page_newest_first(keys, "+", 1)
        if not newest:
            return PageReport((yield from operation([])), 0, None, "")
        until = newest[0].id
    total, looked, cursor = DeadLetterReport(), 0, page_range.cursor or "-"
    while looked < MAX_SCANNED and total.matched < MAX_CHANGED:
        page = yield page_oldest_first(keys, cursor, PAGE_SIZE, until)
        done = yield from operation([each for each in page if dlq_filter.matches(each)])
        total = _add_reports(total, done)
        looked += len(page)
        if len(page) < PAGE_SIZE:
            return PageReport(total, looked, None, until)
        cursor = page[-1].id
    return PageReport(total, looked, cursor, until)


def _add_reports(report: DeadLetterReport, other: DeadLetterReport) -> DeadLetterReport:
    return DeadLetterReport(
        report.matched + other.matched,
        report.affected + other.affected,
        report.max_replays_reached + other.max_replays_reached,
        report.unreadable + other.unreadable,
        report.missing + other.missing,
        other.dry_run,
    )
