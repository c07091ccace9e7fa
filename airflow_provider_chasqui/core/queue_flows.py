"""What a queue's methods mean, as flows: checks, defaults and the clock, without a colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from airflow_provider_chasqui.core.batch import (
    BATCH_TTL_MS,
    MAX_INDEX,
    MAX_PARTS,
    Batch,
    BatchPosition,
    BatchProgress,
    check_batch_id,
    check_int,
)
from airflow_provider_chasqui.core.codec import encode_job_name, encode_text
from airflow_provider_chasqui.core.command import CommandFlow
from airflow_provider_chasqui.core.commands import batches, delayed, enqueue, inspect, wait
from airflow_provider_chasqui.core.commands import dead_letters as dead_letters_commands
from airflow_provider_chasqui.core.commands import delayed as delayed_commands
from airflow_provider_chasqui.core.commands.batches import PartOptions
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter, DeadLetterReport
from airflow_provider_chasqui.core.commands.enqueue import ReplicationWaiter
from airflow_provider_chasqui.core.commands.inspect import JobStatus
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.cron import Cron, Every, Schedule
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.errors import BatchNotFound, InvalidArgument
from airflow_provider_chasqui.core.ids import ProducerSession, UlidGenerator
from airflow_provider_chasqui.core.job import DeadLetter, EnqueueResult, EnqueueResults, NewJob
from airflow_provider_chasqui.core.job_encoder import (
    build_envelope,
    check_retry,
    encode_new_job,
    resolve_run_at_ms,
    to_epoch_ms,
)
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.core.repeat import MisfirePolicy, Repeat
from airflow_provider_chasqui.core.retry import RetryPolicy

CancelResult = Literal["cancelled", "asked"]


class DeadLetterQuery(TypedDict, total=False):
    """Which letters are meant: every filter that is given must fit."""

    ids: Iterable[str]
    job_ids: Iterable[str]
    reason: str
    job_name: str
    older_than: timedelta
    newer_than: timedelta
    text: str
    batch_id: str


class BatchOptions(TypedDict, total=False):
    """What the jobs of a batch have in common."""

    job_name: str
    delay: timedelta
    run_at: datetime
    retry: RetryPolicy
    source: str
    ttl: timedelta


class QueueFlows:
    """The verbs of one queue."""

    def __init__(self, keys: Keys, config: QueueConfig, clock: Callable[[], int]):
        self.keys = keys
        self.config = config
        self.clock = clock
        self._ulid_generator = UlidGenerator()
        self._producer_session = ProducerSession()

    def add_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> CommandFlow[EnqueueResults]:
        now_ms = self.clock()
        try:
            wanted = enqueue.extract_simple_jobs(map(NewJob.coerce, jobs), self.config)
        except TypeError as cause:
            raise InvalidArgument(
                f"a job is a NewJob or a mapping of its fields: {cause}"
            ) from cause
        with self._producer_session.begin_call() as call:
            if isinstance(wanted, enqueue.SimpleJobs):
                plain = enqueue.add_simple_jobs(
                    self.keys, wanted, self.config, call, now_ms, self._ulid_generator
                )
                return (yield from plain)
            ready = [
                encode_new_job(job, self.config, now_ms, self._ulid_generator.next)
                for job in wanted
            ]
            return (yield from enqueue.add_many(self.keys, ready, self.config, call, now_ms))

    def add(self, job: NewJob) -> CommandFlow[EnqueueResult]:
        now_ms = self.clock()
        ready = encode_new_job(job, self.config, now_ms, self._ulid_generator.next)
        with self._producer_session.begin_call() as call:
            return (yield from enqueue.add_one(self.keys, ready, self.config, call, now_ms))

    def add_batch(
        self, payloads: Iterable[Any], batch_id: str | None, options: BatchOptions
    ) -> CommandFlow[Batch]:
        batch = check_batch_id(
            self._ulid_generator.next(self.clock()) if batch_id is None else batch_id
        )
        part = self._part_options(options)
        now_ms = self.clock()
        return (yield from batches.add(self.keys, batch, payloads, part, self.config, now_ms))

    def add_part(
        self,
        batch_id: str,
        part: int,
        payloads: Iterable[Any],
        first_index: int,
        options: BatchOptions,
    ) -> CommandFlow[int]:
        check_int("part", part, 0, MAX_PARTS - 1)
        check_int("first", first_index, 0, MAX_INDEX)
        place = BatchPosition(check_batch_id(batch_id), part, first_index)
        chosen = self._part_options(options)
        now_ms = self.clock()
        return (
            yield from batches.add_part(self.keys, place, payloads, chosen, self.config, now_ms)
        )

    def finalize_batch(
        self, batch_id: str, total: int, parts: int, options: BatchOptions
    ) -> CommandFlow[Batch]:
        batch = check_batch_id(batch_id)
        check_int("total", total, 0, MAX_INDEX * MAX_PARTS)
        check_int("parts", parts, 0, MAX_PARTS)
        chosen = self._part_options(options)
        confirmer = ReplicationWaiter(self.keys, self.config)
        seal = batches.finalize(self.keys, batch, total, parts, chosen, self.clock())
        yield from confirmer.send([seal])
        confirmer.check()
        return Batch(self.keys.queue_name, batch, total, parts)

    def _part_options(self, options: BatchOptions) -> PartOptions:
        _check_known_keys(options, BatchOptions, "a batch has no option")
        run_at_ms = resolve_run_at_ms(
            options.get("delay"), options.get("run_at"), self.config, self.clock()
        )
        ttl_ms = BATCH_TTL_MS if "ttl" not in options else to_ms(options["ttl"])
        if not ttl_ms or ttl_ms < 1:
            raise InvalidArgument("ttl= is how long the batch is remembered; it must be above 0")
        check_retry(options.get("retry"))
        source = options.get("source", "")
        encode_text(source, "a batch's source")
        return PartOptions(
            options.get("job_name", ""), options.get("retry"), run_at_ms, source, ttl_ms
        )

    def batch(self, batch_id: str) -> CommandFlow[BatchProgress]:
        found = yield from batches.progress(self.keys, check_batch_id(batch_id))
        if found is None:
            raise BatchNotFound(f"there is no batch {batch_id!r}, or it has expired")
        return found

    def failed_jobs(self, batch_id: str, limit: int) -> CommandFlow[list[str]]:
        check_int("limit", limit, 0)
        found = yield from self.batch(batch_id)
        return (yield from batches.dead_job_ids(self.keys, batch_id, found.parts, limit))

    def wait_batch(self, batch_id: str, timeout: timedelta) -> CommandFlow[BatchProgress]:
        wait_ms = to_ms(timeout) or 0
        return wait.wait_for_batch(self.keys, check_batch_id(batch_id), wait_ms, self.clock)

    def cancel(self, job_id: str) -> CommandFlow[CancelResult]:
        if (yield from delayed.cancel(self.keys, job_id)):
            return "cancelled"
        yield from delayed.request_cancel(self.keys, job_id, self.clock())
        return "asked"

    def reschedule(
        self, job_id: str, delay: timedelta | None, run_at: datetime | None
    ) -> CommandFlow[bool]:
        if delay is None and run_at is None:
            raise InvalidArgument("say when: delay= or at=")
        now_ms = self.clock()
        run_at_ms = resolve_run_at_ms(delay, run_at, self.config, now_ms) or now_ms
        return (yield from delayed.reschedule(self.keys, job_id, run_at_ms, now_ms))

    def result(self, job_id: str, default: Any) -> CommandFlow[Any]:
        kept, value = yield inspect.get_result(self.keys, job_id)
        return value if kept else default

    def results(self, job_ids: Iterable[str]) -> CommandFlow[dict[str, Any]]:
        wanted = list(job_ids)
        answers = yield [inspect.get_result(self.keys, job_id) for job_id in wanted]
        return {
            job_id: value for job_id, (kept, value) in zip(wanted, answers, strict=True) if kept
        }

    def wait(self, job_id: str, timeout: timedelta) -> CommandFlow[Any]:
        wait_ms = to_ms(timeout) or 0
        return wait.wait_for_job(self.keys, job_id, self.config.group, wait_ms, self.clock)

    def get_status(self, job_id: str) -> CommandFlow[JobStatus]:
        return inspect.find_job(self.keys, job_id, self.config.group)

    def dead_letters(
        self, limit: int, after: str | None, newest_first: bool, filters: DeadLetterQuery
    ) -> CommandFlow[list[DeadLetter]]:
        check_int("limit", limit, 0)
        return dead_letters_commands.peek(
            self.keys, self._build_filter(filters), limit, after, newest_first
        )

    def replay(
        self, limit: int | None, max_replays: int | None, dry_run: bool, filters: DeadLetterQuery
    ) -> CommandFlow[DeadLetterReport]:
        if max_replays is not None:
            check_int("budget", max_replays, 1)
        if limit is not None:
            check_int("limit", limit, 0)
        most = self.config.max_replays if max_replays is None else max_replays
        return dead_letters_commands.replay(
            self.keys, self._build_filter(filters), limit, most, dry_run
        )

    def purge(
        self, limit: int | None, dry_run: bool, filters: DeadLetterQuery
    ) -> CommandFlow[DeadLetterReport]:
        if limit is not None:
            check_int("limit", limit, 0)
        return dead_letters_commands.purge(self.keys, self._build_filter(filters), limit, dry_run)

    def _build_filter(self, filters: DeadLetterQuery) -> DeadLetterFilter:
        _check_known_keys(filters, DeadLetterQuery, "letters cannot be chosen by")
        now_ms = self.clock()
        older, newer = filters.get("older_than"), filters.get("newer_than")
        return DeadLetterFilter(
            ids=_id_set(filters.get("ids"), "ids"),
            job_ids=_id_set(filters.get("job_ids"), "job_ids"),
            reason=filters.get("reason"),
            job_name=filters.get("job_name"),
            before_ms=None if older is None else now_ms - (to_ms(older) or 0),
            after_ms=None if newer is None else now_ms - (to_ms(newer) or 0),
            text=filters.get("text"),
            batch_id=filters.get("batch_id"),
        )

    def repeat(
        self,
        payload: Any,
        schedule: Schedule,
        job_name: str,
        key: str | None,
        limit: int | None,
        start: datetime | None,
        end: datetime | None,
        misfire: MisfirePolicy,
    ) -> CommandFlow[str]:
        encode_job_name(job_name)
        if not isinstance(schedule, Every | Cron):
            raise InvalidArgument("a schedule is Every(...) or Cron(...)")
        if not isinstance(misfire, MisfirePolicy):
            raise InvalidArgument("missed= is SKIP, FIRE_ONCE or fire_all(...)")
        chosen = schedule.default_key(job_name) if key is None else key
        if not encode_text(chosen, "a repeat's key").strip():
            raise InvalidArgument("a repeat's key is a non-blank string")
        now_ms = self.clock()
        build_envelope(
            self._ulid_generator.next(now_ms), payload, self.config, now_ms, None
        )  # it must fit
        repeat = Repeat(
            chosen,
            job_name,
            schedule,
            encode_payload(payload),
            limit,
            None if start is None else to_epoch_ms(start),
            None if end is None else to_epoch_ms(end),
            misfire,
        )
        yield delayed_commands.upsert_repeat(self.keys, repeat, now_ms)
        return repeat.key


def _check_known_keys(options: Mapping[str, Any], typed_dict: Any, message_prefix: str) -> None:
    unknown = sorted(set(options) - set(typed_dict.__annotations__))
    if unknown:
        names = ", ".join(typed_dict.__annotations__)
        raise InvalidArgument(f"{message_prefix} {', '.join(unknown)}; known are {names}")


def _id_set(ids: Iterable[str] | None, option: str) -> frozenset[str] | None:
    if isinstance(ids, str):
        raise InvalidArgument(f"{option}= is several ids: put the one into a list")
    return None if ids is None else frozenset(ids)
