"""Letters a bounded step at a time: a filter that fits nothing must not read all of them at once.

Each step says where the next one goes on, so a caller can show how far it is and stop in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_chasqui.core.job import Letter
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, as_int, command
from airflow_provider_chasqui.core.ops import letters
from airflow_provider_chasqui.core.ops.letters import PAGE, Choose, LetterReport

LOOK = 5_000
ACT = 1_000
_CHUNK = 100


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Letters that fit, how many were looked at, and where to go on; None at the end."""

    letters: list[Letter]
    looked: int
    cursor: str | None


def look(
    keys: Keys, choose: Choose, limit: int, cursor: str | None, *, at_most: int = LOOK
) -> Flow[LetterPage]:
    """Return up to `limit` letters that fit, newest first, looking at no more than `at_most`."""
    found: list[Letter] = []
    looked, before = 0, cursor or "+"
    while looked < at_most:
        # A page without a filter is no larger than what is wanted of it.
        size = min(PAGE, limit + 1) if choose == Choose() else PAGE
        page = yield letters.page_back(keys, before, size)
        for each in page:
            if len(found) == limit:
                return LetterPage(found, looked, before)
            looked += 1
            before = each.id
            if choose.fits(each):
                found.append(each)
        if len(page) < size:
            return LetterPage(found, looked, None)
    return LetterPage(found, looked, before)


def get(keys: Keys, letter_id: str) -> Flow[Letter | None]:
    """Return one letter by its own id."""
    found = yield from by_ids(keys, [letter_id])
    return found[0] if found else None


def by_ids(keys: Keys, ids: Sequence[str]) -> Flow[list[Letter]]:
    """Return the letters with these ids that are still there."""
    pages = yield [
        command("XRANGE", keys.dlq, each, each, "COUNT", 1, parse=_letters) for each in ids
    ]
    return [each for page in pages for each in page]


def _letters(reply: Sequence[Sequence[object]]) -> list[Letter]:
    return [letters.letter(raw) for raw in reply]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of a replay or purge did. `until` is the newest letter that it will go to."""

    report: LetterReport
    looked: int
    cursor: str | None
    until: str


@dataclass(frozen=True, slots=True)
class Span:
    """Where a step begins and ends: behind the letter `cursor`, and not behind `until`.

    A job that is replayed may die again meanwhile. Its new letter is behind `until`, so it is not
    replayed twice.
    """

    cursor: str | None = None
    until: str | None = None


def replay_step(
    keys: Keys, choose: Choose, span: Span, budget: int | None, dry_run: bool
) -> Flow[Step]:
    """Put letters that fit back on the stream, oldest first, no more than one step of them."""

    def act(chosen: list[Letter]) -> Flow[LetterReport]:
        readable = [each for each in chosen if each.job is not None]
        signs = b"1" * len(readable)
        if not dry_run:
            signs = b""
            for start in range(0, len(readable), _CHUNK):
                chunk = readable[start : start + _CHUNK]
                signs += yield letters.move_back(keys, chunk, budget or 0)
        moved, over, gone = (signs.count(sign) for sign in (b"1", b"x", b"0"))
        return LetterReport(len(chosen), moved, over, len(chosen) - len(readable), gone, dry_run)

    return (yield from _step(keys, choose, span, act))


def purge_step(keys: Keys, choose: Choose, span: Span, dry_run: bool) -> Flow[Step]:
    """Delete letters that fit for good, oldest first, no more than one step of them."""

    def act(chosen: list[Letter]) -> Flow[LetterReport]:
        deleted = len(chosen)
        if chosen and not dry_run:
            deleted = yield command("XDEL", keys.dlq, *(each.id for each in chosen), parse=as_int)
        return LetterReport(len(chosen), deleted, gone=len(chosen) - deleted, dry_run=dry_run)

    return (yield from _step(keys, choose, span, act))


def _step(
    keys: Keys, choose: Choose, span: Span, act: Callable[[list[Letter]], Flow[LetterReport]]
) -> Flow[Step]:
    if choose.ids is not None:
        chosen = yield from by_ids(keys, sorted(choose.ids))
        report = yield from act([each for each in chosen if choose.fits(each)])
        return Step(report, len(chosen), None, span.until or "")
    until = span.until
    if until is None:
        newest = yield letters.page_back(keys, "+", 1)
        if not newest:
            return Step((yield from act([])), 0, None, "")
        until = newest[0].id
    total, looked, cursor = LetterReport(), 0, span.cursor or "-"
    while looked < LOOK and total.matched < ACT:
        page = yield letters.page(keys, cursor, PAGE, until)
        done = yield from act([each for each in page if choose.fits(each)])
        total = _sum(total, done)
        looked += len(page)
        if len(page) < PAGE:
            return Step(total, looked, None, until)
        cursor = page[-1].id
    return Step(total, looked, cursor, until)


def _sum(one: LetterReport, other: LetterReport) -> LetterReport:
    return LetterReport(
        one.matched + other.matched,
        one.moved + other.moved,
        one.over_budget + other.over_budget,
        one.unreadable + other.unreadable,
        one.gone + other.gone,
        other.dry_run,
    )
