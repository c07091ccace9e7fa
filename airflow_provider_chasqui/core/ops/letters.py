"""peek, replay, purge: letters, chosen by id, reason, name, age or text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.batch import place_of
from airflow_provider_chasqui.core.codec import decode_envelope, decode_name, encode_job
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Letter
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Arg, Flow, Op, as_int, command, script

PAGE = 500
_CHUNK = 100
REPLAY_COUNT_LIFE_MS = 30 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Choose:
    """Which letters are meant; every field that is given must fit. Times are of the burial."""

    ids: frozenset[str] | None = None
    job_ids: frozenset[str] | None = None
    reason: str | None = None
    name: str | None = None
    before_ms: int | None = None
    after_ms: int | None = None
    text: str | None = None
    batch: str | None = None

    def fits(self, letter: Letter) -> bool:
        at_ms = buried_at_ms(letter)
        return (
            (self.ids is None or letter.id in self.ids)
            and (self.job_ids is None or letter.job_id in self.job_ids)
            and (self.reason is None or letter.reason == self.reason)
            and (self.name is None or letter.name == self.name)
            and (self.before_ms is None or at_ms < self.before_ms)
            and (self.after_ms is None or at_ms >= self.after_ms)
            and (self.text is None or self.text in f"{letter.error or ''}\n{letter.detail or ''}")
            and (self.batch is None or _batch(letter) == self.batch)
        )


def _batch(letter: Letter) -> str | None:
    place = place_of(letter.job_id or "")
    return place.batch if place else None


def buried_at_ms(letter: Letter) -> int:
    if letter.failed_at_ms is not None:
        return letter.failed_at_ms
    return int(letter.id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class LetterReport:
    """What a replay or purge did, or with a dry run would do."""

    matched: int = 0
    moved: int = 0
    over_budget: int = 0
    unreadable: int = 0
    gone: int = 0
    dry_run: bool = False


def letter(raw: Sequence[Any]) -> Letter:
    """Return a raw DLQ entry as a letter; whatever is in it, this succeeds."""
    fields = {raw[1][i]: raw[1][i + 1] for i in range(0, len(raw[1]) - 1, 2)}
    d = fields.get(b"d", b"")
    name = decode_name(fields.get(b"n", b""))
    try:
        job = decode_envelope(d, name)
    except DecodeError:
        job = None
    return Letter(
        id=raw[0].decode(),
        source_id=_text(fields.get(b"source_id")) or "",
        reason=_text(fields.get(b"reason")) or "",
        detail=_text(fields.get(b"detail")),
        name=name,
        raw=d,
        job=job,
        error=_text(fields.get(b"error")),
        attempts=_number(fields.get(b"attempts")),
        failed_at_ms=_number(fields.get(b"failed_at")),
    )


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _number(raw: bytes | None) -> int | None:
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 20 else None


def _letters(reply: Any) -> list[Letter]:
    return [letter(raw) for raw in reply]


def page(keys: Keys, after: str, count: int = PAGE, last: str = "+") -> Op[list[Letter]]:
    """Letters in order of burial, from behind the letter `after` ("-": from the first)."""
    start = "-" if after == "-" else f"({after}"
    return command("XRANGE", keys.dlq, start, last, "COUNT", count, parse=_letters)


def page_back(keys: Keys, before: str, count: int = PAGE) -> Op[list[Letter]]:
    """Letters newest first, from before the letter `before` ("+": from the newest)."""
    end = "+" if before == "+" else f"({before}"
    return command("XREVRANGE", keys.dlq, end, "-", "COUNT", count, parse=_letters)


def peek(
    keys: Keys, choose: Choose, limit: int, after: str | None, newest_first: bool
) -> Flow[list[Letter]]:
    """Return up to `limit` chosen letters, from behind the letter `after`."""
    found: list[Letter] = []
    cursor = after or ("+" if newest_first else "-")
    turn = page_back if newest_first else page
    while len(found) < limit and (letters := (yield turn(keys, cursor))):
        found += [each for each in letters if choose.fits(each)]
        cursor = letters[-1].id
    return found[:limit]


def move_back(keys: Keys, letters: Sequence[Letter], budget: int) -> Op[bytes]:
    """Move readable letters back to the stream, attempt 0; one sign for each."""
    names = [keys.dlq, keys.stream]
    args: list[Arg] = [budget, REPLAY_COUNT_LIFE_MS]
    for each in letters:
        assert each.job is not None
        place = place_of(each.job.id)
        dead = keys.batch_dead(place.batch, place.part) if place else keys.dlq
        names += (keys.replays(each.job.id), dead)
        args += (each.id, encode_job(each.job, attempt=0), each.name, place.index if place else -1)
    return script("replay", bytes, names, args)


def _sweep(
    keys: Keys, choose: Choose, limit: int | None, act: Callable[[list[Letter]], Flow[bytes]]
) -> Flow[bytes]:
    """Act on the chosen ones of the letters that stand now; `act` answers a sign for each.

    A job that is replayed may die again meanwhile: its new letter is younger than the last one we
    go to, so it is not replayed twice.
    """
    newest = yield page_back(keys, "+", 1)
    left = 2**62 if limit is None else limit
    signs, cursor = b"", "-"
    while newest and left and (letters := (yield page(keys, cursor, PAGE, newest[0].id))):
        chosen = [each for each in letters if choose.fits(each)][:left]
        left -= len(chosen)
        for start in range(0, len(chosen), _CHUNK):
            signs += yield from act(chosen[start : start + _CHUNK])
        cursor = letters[-1].id
    return signs


def replay(
    keys: Keys, choose: Choose, limit: int | None, budget: int | None, dry_run: bool
) -> Flow[LetterReport]:
    """Put chosen letters back on the stream; unreadable ones are counted and passed over."""

    def act(chosen: list[Letter]) -> Flow[bytes]:
        readable = [each for each in chosen if each.job is not None]
        passed = b"?" * (len(chosen) - len(readable))
        if dry_run or not readable:
            return passed + b"1" * len(readable)
        moved: bytes = yield move_back(keys, readable, budget or 0)
        return passed + moved

    signs = yield from _sweep(keys, choose, limit, act)
    moved, over, unreadable, gone = (signs.count(sign) for sign in (b"1", b"x", b"?", b"0"))
    return LetterReport(len(signs), moved, over, unreadable, gone, dry_run)


def replay_ids(keys: Keys, ids: Sequence[str], budget: int) -> Flow[LetterReport]:
    """Put these letters back on the stream, found by their id instead of by looking through all."""
    pages = yield [
        command("XRANGE", keys.dlq, each, each, "COUNT", 1, parse=_letters) for each in ids
    ]
    found = [each for page in pages for each in page]
    readable = [each for each in found if each.job is not None]
    signs = b""
    for start in range(0, len(readable), _CHUNK):
        signs += yield move_back(keys, readable[start : start + _CHUNK], budget)
    gone = len(ids) - len(found) + signs.count(b"0")
    moved, over = signs.count(b"1"), signs.count(b"x")
    return LetterReport(len(ids), moved, over, len(found) - len(readable), gone)


def purge(keys: Keys, choose: Choose, limit: int | None, dry_run: bool) -> Flow[LetterReport]:
    """Delete chosen letters for good; a purged job of a batch stays counted as dead."""

    def act(chosen: list[Letter]) -> Flow[bytes]:
        if dry_run or not chosen:
            return b"1" * len(chosen)
        ids = [each.id for each in chosen]
        deleted: int = yield command("XDEL", keys.dlq, *ids, parse=as_int)
        return b"1" * deleted + b"0" * (len(chosen) - deleted)

    signs = yield from _sweep(keys, choose, limit, act)
    moved = signs.count(b"1")
    return LetterReport(len(signs), moved, gone=len(signs) - moved, dry_run=dry_run)
