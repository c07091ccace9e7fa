"""What a queue's methods mean, as flows: checks, defaults and the clock, without a colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from airflow_provider_chasqui.core.batch import (
    BATCH_LIFE_MS,
    MAX_INDEX,
    MAX_PARTS,
    Batch,
    BatchProgress,
    Place,
    check_batch_id,
    check_number,
)
from airflow_provider_chasqui.core.codec import encode_name, encode_text
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BadInput, UnknownBatch
from airflow_provider_chasqui.core.ids import Producer, Ulids
from airflow_provider_chasqui.core.job import Added, AddedJobs, Letter, NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow
from airflow_provider_chasqui.core.ops import (
    adding,
    batches,
    bulk,
    delayed,
    letters,
    looking,
    repeats,
    waiting,
)
from airflow_provider_chasqui.core.ops.batches import PartOptions
from airflow_provider_chasqui.core.ops.confirming import Confirmer
from airflow_provider_chasqui.core.ops.letters import Choose, LetterReport
from airflow_provider_chasqui.core.ops.looking import Found
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.policy import RetryPolicy, to_ms
from airflow_provider_chasqui.core.prepare import check_retry, due, envelope, instant_ms, prepare
from airflow_provider_chasqui.core.repeat import Missed, Repeat
from airflow_provider_chasqui.core.schedule import Cron, Every, Schedule

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
        self._producer = Producer()

    def add_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> Flow[AddedJobs]:
        now_ms = self.clock()
        try:
            wanted = bulk.sort_out(map(NewJob.of, jobs), self.config)
        except TypeError as cause:
            raise BadInput(f"a job is a NewJob or a mapping of its fields: {cause}") from cause
        with self._producer.call() as call:
            if isinstance(wanted, bulk.Plain):
                plain = bulk.add_plain(self.keys, wanted, self.config, call, now_ms, self._ulids)
                return (yield from plain)
            ready = [prepare(job, self.config, now_ms, self._ulids.mint) for job in wanted]
            return (yield from adding.add_all(self.keys, ready, self.config, call, now_ms))

    def add(self, job: NewJob) -> Flow[Added]:
        now_ms = self.clock()
        ready = prepare(job, self.config, now_ms, self._ulids.mint)
        with self._producer.call() as call:
            return (yield from adding.add_one(self.keys, ready, self.config, call, now_ms))

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
        check_number("part", part, 0, MAX_PARTS - 1)
        check_number("first", first, 0, MAX_INDEX)
        place = Place(check_batch_id(batch_id), part, first)
        chosen = self._part_options(options)
        now_ms = self.clock()
        return (
            yield from batches.add_part(self.keys, place, payloads, chosen, self.config, now_ms)
        )

    def seal_batch(self, batch_id: str, total: int, parts: int, options: JobOptions) -> Flow[Batch]:
        batch = check_batch_id(batch_id)
        check_number("total", total, 0, MAX_INDEX * MAX_PARTS)
        check_number("parts", parts, 0, MAX_PARTS)
        chosen = self._part_options(options)
        confirmer = Confirmer(self.keys, self.config)
        seal = batches.seal(self.keys, batch, total, parts, chosen, self.clock())
        yield from confirmer.send([seal])
        confirmer.check()
        return Batch(self.keys.queue, batch, total, parts)

    def _part_options(self, options: JobOptions) -> PartOptions:
        _only(options, JobOptions, "a batch has no option")
        run_at_ms = due(options.get("delay"), options.get("at"), self.config, self.clock())
        life_ms = BATCH_LIFE_MS if "life" not in options else to_ms(options["life"])
        if not life_ms or life_ms < 1:
            raise BadInput("life= is how long the batch is remembered; it must be above 0")
        check_retry(options.get("retry"))
        source = options.get("source", "")
        encode_text(source, "a batch's source")
        return PartOptions(
            options.get("name", ""), options.get("retry"), run_at_ms, source, life_ms
        )

    def batch(self, batch_id: str) -> Flow[BatchProgress]:
        found = yield from batches.progress(self.keys, check_batch_id(batch_id))
        if found is None:
            raise UnknownBatch(f"there is no batch {batch_id!r}, or it has expired")
        return found

    def dead_in_batch(self, batch_id: str, limit: int) -> Flow[list[str]]:
        check_number("limit", limit, 0)
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
        check_number("limit", limit, 0)
        return letters.peek(self.keys, self._choose(filters), limit, after, newest_first)

    def replay(
        self, limit: int | None, budget: int | None, dry_run: bool, filters: LetterFilter
    ) -> Flow[LetterReport]:
        if budget is not None:
            check_number("budget", budget, 1)
        if limit is not None:
            check_number("limit", limit, 0)
        most = self.config.replay_budget if budget is None else budget
        return letters.replay(self.keys, self._choose(filters), limit, most, dry_run)

    def purge(self, limit: int | None, dry_run: bool, filters: LetterFilter) -> Flow[LetterReport]:
        if limit is not None:
            check_number("limit", limit, 0)
        return letters.purge(self.keys, self._choose(filters), limit, dry_run)

    def _choose(self, filters: LetterFilter) -> Choose:
        _only(filters, LetterFilter, "letters cannot be chosen by")
        now_ms = self.clock()
        older, newer = filters.get("older_than"), filters.get("newer_than")
        return Choose(
            ids=_names(filters.get("ids"), "ids"),
            job_ids=_names(filters.get("job_ids"), "job_ids"),
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
        if not isinstance(schedule, Every | Cron):
            raise BadInput("a schedule is Every(...) or Cron(...)")
        if not isinstance(missed, Missed):
            raise BadInput("missed= is SKIP, FIRE_ONCE or fire_all(...)")
        chosen = schedule.key(name) if key is None else key
        if not encode_text(chosen, "a repeat's key").strip():
            raise BadInput("a repeat's key is a non-blank string")
        now_ms = self.clock()
        envelope(self._ulids.mint(now_ms), payload, self.config, now_ms, None)  # it must fit
        repeat = Repeat(
            chosen,
            name,
            schedule,
            encode_payload(payload),
            limit,
            None if start is None else instant_ms(start),
            None if end is None else instant_ms(end),
            missed,
        )
        yield repeats.put(self.keys, repeat, now_ms)
        return repeat.key


def _only(given: Mapping[str, Any], known: Any, complaint: str) -> None:
    unknown = sorted(set(given) - set(known.__annotations__))
    if unknown:
        names = ", ".join(known.__annotations__)
        raise BadInput(f"{complaint} {', '.join(unknown)}; known are {names}")


def _names(names: Iterable[str] | None, what: str) -> frozenset[str] | None:
    if isinstance(names, str):
        raise BadInput(f"{what}= is several ids: put the one into a list")
    return None if names is None else frozenset(names)
