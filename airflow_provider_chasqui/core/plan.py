"""What a queue's methods mean, as flows: checks, defaults and the clock, without a colour."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Literal, TypedDict

from airflow_provider_chasqui.core.batch import (
    BATCH_LIFE_MS,
    Batch,
    BatchProgress,
    Place,
    check_batch_id,
)
from airflow_provider_chasqui.core.codec import encode_name, encode_payload
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BadInput, UnknownBatch
from airflow_provider_chasqui.core.ids import Ulids
from airflow_provider_chasqui.core.job import Added, Letter, NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow
from airflow_provider_chasqui.core.ops import (
    adding,
    batches,
    delayed,
    letters,
    looking,
    repeats,
    waiting,
)
from airflow_provider_chasqui.core.ops.adding import Call
from airflow_provider_chasqui.core.ops.batches import PartOptions
from airflow_provider_chasqui.core.ops.letters import Choose, LetterReport
from airflow_provider_chasqui.core.ops.looking import Found
from airflow_provider_chasqui.core.policy import RetryPolicy, to_ms
from airflow_provider_chasqui.core.prepare import due, instant_ms, prepare
from airflow_provider_chasqui.core.repeat import Missed, Repeat
from airflow_provider_chasqui.core.schedule import Schedule

Cancelled = Literal["cancelled", "asked"]


class LetterFilter(TypedDict, total=False):
    """Which letters are meant: every filter that is given must fit."""

    ids: Iterable[str]
    job_ids: Iterable[str]
    reason: str
    name: str
    older_than: timedelta
    newer_than: timedelta
    text: str
    batch: str


class JobOptions(TypedDict, total=False):
    """What the jobs of a batch have in common."""

    name: str
    delay: timedelta
    at: datetime
    retry: RetryPolicy
    source: str
    life: timedelta


class Plan:
    """The verbs of one queue."""

    def __init__(self, keys: Keys, config: QueueConfig, clock: Callable[[], int]):
        self.keys = keys
        self.config = config
        self.clock = clock
        self._ulids = Ulids()
        self._producer = str(uuid.uuid4())
        self._calls = count()

    def add_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> Flow[list[Added]]:
        now_ms = self.clock()
        try:
            wanted = [NewJob.of(job) for job in jobs]
        except TypeError as cause:
            raise BadInput(f"a job is a NewJob or a mapping of its fields: {cause}") from cause
        call = Call(self._producer, next(self._calls))
        ready = [prepare(job, self.config, now_ms, self._ulids.mint) for job in wanted]
        return (yield from adding.add_all(self.keys, ready, self.config, call, now_ms))

    def add(self, job: NewJob) -> Flow[Added]:
        return (yield from self.add_many([job]))[0]

    def add_batch(
        self, payloads: Iterable[Any], batch_id: str | None, options: JobOptions
    ) -> Flow[Batch]:
        batch = check_batch_id(self._ulids.mint(self.clock()) if batch_id is None else batch_id)
        part = self._part_options(options)
        now_ms = self.clock()
        return (yield from batches.add_batch(self.keys, batch, payloads, part, self.config, now_ms))

    def add_part(
        self, batch_id: str, part: int, payloads: Iterable[Any], first: int, options: JobOptions
    ) -> Flow[int]:
        place = Place(check_batch_id(batch_id), part, first)
        chosen = self._part_options(options)
        now_ms = self.clock()
        return (
            yield from batches.add_part(self.keys, place, payloads, chosen, self.config, now_ms)
        )

    def seal_batch(self, batch_id: str, total: int, parts: int, options: JobOptions) -> Flow[Batch]:
        batch = check_batch_id(batch_id)
        yield batches.seal(
            self.keys, batch, total, parts, self._part_options(options), self.clock()
        )
        return Batch(self.keys.queue, batch, total, parts)

    def _part_options(self, options: JobOptions) -> PartOptions:
        run_at_ms = due(options.get("delay"), options.get("at"), self.config, self.clock())
        life_ms = to_ms(options.get("life")) or BATCH_LIFE_MS
        return PartOptions(
            options.get("name", ""),
            options.get("retry"),
            run_at_ms,
            options.get("source", ""),
            life_ms,
        )

    def batch(self, batch_id: str) -> Flow[BatchProgress]:
        found = yield from batches.progress(self.keys, check_batch_id(batch_id))
        if found is None:
            raise UnknownBatch(f"there is no batch {batch_id!r}, or it has expired")
        return found

    def dead_in_batch(self, batch_id: str, limit: int) -> Flow[list[str]]:
        found = yield from self.batch(batch_id)
        return (yield from batches.dead_ids(self.keys, batch_id, found.parts, limit))

    def wait_batch(self, batch_id: str, timeout: timedelta) -> Flow[BatchProgress]:
        wait_ms = to_ms(timeout) or 0
        return waiting.wait_batch(self.keys, check_batch_id(batch_id), wait_ms, self.clock)

    def cancel(self, job_id: str) -> Flow[Cancelled]:
        if (yield from delayed.cancel(self.keys, job_id)):
            return "cancelled"
        yield from delayed.ask_cancel(self.keys, job_id, self.clock())
        return "asked"

    def reschedule(self, job_id: str, delay: timedelta | None, at: datetime | None) -> Flow[bool]:
        if delay is None and at is None:
            raise BadInput("say when: delay= or at=")
        now_ms = self.clock()
        run_at_ms = due(delay, at, self.config, now_ms) or now_ms
        return (yield from delayed.reschedule(self.keys, job_id, run_at_ms, now_ms))

    def result(self, job_id: str, default: Any) -> Flow[Any]:
        kept, value = yield looking.result(self.keys, job_id)
        return value if kept else default

    def results(self, job_ids: Iterable[str]) -> Flow[dict[str, Any]]:
        wanted = list(job_ids)
        answers = yield [looking.result(self.keys, job_id) for job_id in wanted]
        return {
            job_id: value for job_id, (kept, value) in zip(wanted, answers, strict=True) if kept
        }

    def wait(self, job_id: str, timeout: timedelta) -> Flow[Any]:
        wait_ms = to_ms(timeout) or 0
        return waiting.wait_job(self.keys, job_id, self.config.group, wait_ms, self.clock)

    def find(self, job_id: str) -> Flow[Found]:
        return looking.find(self.keys, job_id, self.config.group)

    def letters(
        self, limit: int, after: str | None, newest_first: bool, filters: LetterFilter
    ) -> Flow[list[Letter]]:
        return letters.peek(self.keys, self._choose(filters), limit, after, newest_first)

    def replay(
        self, limit: int | None, budget: int | None, dry_run: bool, filters: LetterFilter
    ) -> Flow[LetterReport]:
        most = self.config.replay_budget if budget is None else budget
        return letters.replay(self.keys, self._choose(filters), limit, most, dry_run)

    def purge(self, limit: int | None, dry_run: bool, filters: LetterFilter) -> Flow[LetterReport]:
        return letters.purge(self.keys, self._choose(filters), limit, dry_run)

    def _choose(self, filters: LetterFilter) -> Choose:
        unknown = set(filters) - set(LetterFilter.__annotations__)
        if unknown:
            known = ", ".join(LetterFilter.__annotations__)
            raise BadInput(f"letters cannot be chosen by {', '.join(unknown)}; known are {known}")
        now_ms = self.clock()
        older, newer = filters.get("older_than"), filters.get("newer_than")
        return Choose(
            ids=frozenset(filters["ids"]) if "ids" in filters else None,
            job_ids=frozenset(filters["job_ids"]) if "job_ids" in filters else None,
            reason=filters.get("reason"),
            name=filters.get("name"),
            before_ms=None if older is None else now_ms - (to_ms(older) or 0),
            after_ms=None if newer is None else now_ms - (to_ms(newer) or 0),
            text=filters.get("text"),
            batch=filters.get("batch"),
        )

    def repeat(
        self,
        payload: Any,
        schedule: Schedule,
        name: str,
        key: str | None,
        limit: int | None,
        start: datetime | None,
        end: datetime | None,
        missed: Missed,
    ) -> Flow[str]:
        encode_name(name)
        repeat = Repeat(
            schedule.key(name) if key is None else key,
            name,
            schedule,
            encode_payload(payload),
            limit,
            None if start is None else instant_ms(start),
            None if end is None else instant_ms(end),
            missed,
        )
        yield repeats.put(self.keys, repeat, self.clock())
        return repeat.key
