"""Looking for many jobs at once: by bits and results in one pipeline, or in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_chasqui.core.batch import place_of
from airflow_provider_chasqui.core.codec import decode_member
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.job import Entry, Letter
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Choice, Flow, Op, as_int, as_is, command
from airflow_provider_chasqui.core.ops import batches, delayed, letters, looking
from airflow_provider_chasqui.core.ops.delivery import delivery
from airflow_provider_chasqui.triggers.watch import JobWatch

if TYPE_CHECKING:
    from airflow_provider_chasqui.store.drive import AsyncDriver

_WINDOW = 1000


async def side_by_side(drive: AsyncDriver, flows: Sequence[Flow[Any]]) -> list[Any]:
    """Run flows in step: what they ask at the same time travels in one pipeline."""
    answers: list[Any] = [None] * len(flows)
    waiting: dict[int, Any] = {}

    def go_on(index: int, answer: Any) -> None:
        try:
            waiting[index] = flows[index].send(answer)
        except StopIteration as end:
            waiting.pop(index, None)
            answers[index] = end.value

    for index in range(len(flows)):
        go_on(index, None)
    while waiting:
        asked = dict(list(waiting.items())[:_WINDOW])
        ops: list[Any] = []
        for step in asked.values():
            ops += [step] if isinstance(step, Op | Choice) else step
        replies = iter(await drive.many(ops))
        for index, step in asked.items():
            one = isinstance(step, Op | Choice)
            go_on(index, next(replies) if one else [next(replies) for _ in step])
    return answers


def state(keys: Keys, watch: JobWatch) -> Flow[str]:
    """Return done, dead, open, or gone if the job's batch is not there."""
    if watch.place is None:
        kept = yield command("EXISTS", keys.result(watch.job_id), parse=as_int)
        return "done" if kept else "open"
    done, dead, there = yield [
        *batches.bit(keys, watch.place),
        command("EXISTS", keys.batch(watch.place.batch), parse=as_int),
    ]
    if done or dead:
        return "done" if done else "dead"
    return "open" if there else "gone"


def bits(keys: Keys, batch: str, part: int) -> Flow[tuple[bytes, bytes]]:
    """Return the done and the dead bits of one part of a batch."""
    done, dead = yield [
        command("GET", keys.batch_done(batch, part), parse=as_is),
        command("GET", keys.batch_dead(batch, part), parse=as_is),
    ]
    return done or b"", dead or b""


def letters_of(keys: Keys, job_ids: frozenset[str]) -> Flow[dict[str, Letter]]:
    """Return the newest letter of each job that has one, in one pass of the DLQ."""
    found: dict[str, Letter] = {}
    cursor = "+"
    while len(found) < len(job_ids) and (page := (yield letters.page_back(keys, cursor))):
        for letter in page:
            if letter.job_id in job_ids:
                found.setdefault(letter.job_id, letter)
        cursor = page[-1].id
    return found


@dataclass(slots=True)
class Census:
    """Which of the wanted jobs are on the queue, and how many of each wanted batch."""

    jobs: set[str] = field(default_factory=set)
    batches: Counter[str] = field(default_factory=Counter)

    def note(self, job_id: str, wanted: frozenset[str], wanted_batches: frozenset[str]) -> None:
        if job_id in wanted:
            self.jobs.add(job_id)
        place = place_of(job_id) if wanted_batches else None
        if place and place.batch in wanted_batches:
            self.batches[place.batch] += 1


def census(keys: Keys, wanted: frozenset[str], wanted_batches: frozenset[str]) -> Flow[Census]:
    """Pass once over the stream, then over the delayed set, then over the stream's new end.

    A retry moves a job from the stream to the delayed set, so that order meets it; a promotion
    moves it to the stream's end, which is why the end is read last.
    """
    seen = Census()
    start = yield from _among_entries(keys, "-", seen, wanted, wanted_batches)
    at = 0
    while members := (yield delayed.page(keys, at)):
        for member, _ in members:
            try:
                seen.note(decode_member(member).id, wanted, wanted_batches)
            except DecodeError:
                continue
        at += len(members)
    yield from _among_entries(keys, start, seen, wanted, wanted_batches)
    return seen


def _among_entries(
    keys: Keys, start: str, seen: Census, wanted: frozenset[str], wanted_batches: frozenset[str]
) -> Flow[str]:
    while raw := (yield looking.entries(keys, start)):
        for each in raw:
            entry = delivery(each, 2**62)
            if isinstance(entry, Entry):
                seen.note(entry.job.id, wanted, wanted_batches)
        start = f"({raw[-1][0].decode()}"
    return start
