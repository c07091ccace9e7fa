"""Queue operations as sans-IO generators: validation, defaults and timestamps.

`Queue` and `AsyncQueue` share them. The commands themselves are in `core.commands`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from airflow_provider_chasqui.core.batch import (
    BATCH_TTL_MS,
    MAX_INDEX,
    MAX_PARTS,
    Batch,
    BatchPosition,
    BatchProgress,
    EncodedChunk,
    check_batch_id,
)
from airflow_provider_chasqui.core.chunk_reader import encode_chunks
from airflow_provider_chasqui.core.codec import encode_job_name, encode_text
from airflow_provider_chasqui.core.command import CommandFlow
from airflow_provider_chasqui.core.commands import (
    batches,
    cancellation,
    delayed,
    enqueue,
    flow_control,
    inspect,
    results,
    wait,
)
from airflow_provider_chasqui.core.commands import dead_letters as dead_letter_commands
from airflow_provider_chasqui.core.commands.batches import CancelBatchResult, PartOptions
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterFilter, DeadLetterReport
from airflow_provider_chasqui.core.commands.enqueue import ReplicationWaiter
from airflow_provider_chasqui.core.commands.inspect import JobStatus
from airflow_provider_chasqui.core.commands.results import BatchResultReader
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.cron import Cron, Every, Schedule
from airflow_provider_chasqui.core.durations import format_duration, to_ms
from airflow_provider_chasqui.core.errors import BatchNotFound, InvalidArgument, RateLimitTimeout
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
from airflow_provider_chasqui.core.rate_limit import RateLimits, parse_rate_limits
from airflow_provider_chasqui.core.repeat import MisfirePolicy, Repeat
from airflow_provider_chasqui.core.retry import RetryPolicy
from airflow_provider_chasqui.core.validation import require_duration, require_int

CancelResult = Literal["cancelled", "requested"]


class DeadLetterQuery(TypedDict, total=False):
    """Filters for dead letters. A dead letter must meet all that are given.

    :param ids: ids of dead letters.
    :param job_ids: ids of jobs.
    :param reason: why the job died, such as `retries_exhausted`.
    :param job_name: the name of the job.
    :param older_than: moved to the DLQ at least this long ago.
    :param newer_than: moved to the DLQ at most this long ago.
    :param text: a part of the error or the detail.
    :param batch_id: the batch of the job.
    """

    ids: Iterable[str]
    job_ids: Iterable[str]
    reason: str
    job_name: str
    older_than: timedelta
    newer_than: timedelta
    text: str
    batch_id: str


class BatchOptions(TypedDict, total=False):
    """Options of all jobs of a batch.

    :param job_name: the name of the jobs.
    :param delay: how long to wait before the jobs run.
    :param run_at: when the jobs run; instead of `delay`.
    :param retry: the retry policy of the jobs.
    :param source: who enqueued the batch, for the UI.
    :param ttl: how long the state of the batch is stored. Default: 30 days.
    :param owner: who may cancel the batch with `cancel_batch(owner=)`. It is stored when the batch
        is created; `Queue.attach_batch` changes it.
    """

    job_name: str
    delay: timedelta
    run_at: datetime
    retry: RetryPolicy
    source: str
    ttl: timedelta
    owner: str


class QueueFlows:
    """The operations of one queue that validate arguments or set defaults.

    The parameters are documented at the methods of `Queue`.

    :param keys: the keys of the queue.
    :param config: the configuration of the queue.
    :param clock: returns the current time in milliseconds.
    """

    def __init__(self, keys: Keys, config: QueueConfig, clock: Callable[[], int]):
        self.keys = keys
        self.config = config
        self.clock = clock
        self._ulid_generator = UlidGenerator()
        self._producer_session = ProducerSession()

    def add(self, job: NewJob) -> CommandFlow[EnqueueResult]:
        """Add one job."""
        now_ms = self.clock()
        encoded_job = encode_new_job(job, self.config, now_ms, self._ulid_generator.next)
        with self._producer_session.begin_call() as call:
            return (yield from enqueue.add_one(self.keys, encoded_job, self.config, call, now_ms))

    def add_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> CommandFlow[EnqueueResults]:
        """Add jobs, in one call of the fast path if none of them has options."""
        now_ms = self.clock()
        try:
            new_jobs = enqueue.extract_simple_jobs(map(NewJob.coerce, jobs), self.config)
        except TypeError as cause:
            raise InvalidArgument(
                f"a job must be a NewJob or a mapping of its fields: {cause}"
            ) from cause
        with self._producer_session.begin_call() as call:
            if isinstance(new_jobs, enqueue.SimpleJobs):
                flow = enqueue.add_simple_jobs(
                    self.keys, new_jobs, self.config, call, now_ms, self._ulid_generator
                )
                return (yield from flow)
            encoded_jobs = [
                encode_new_job(job, self.config, now_ms, self._ulid_generator.next)
                for job in new_jobs
            ]
            return (yield from enqueue.add_many(self.keys, encoded_jobs, self.config, call, now_ms))

    def add_batch(
        self,
        payloads: Iterable[Any],
        keys: Iterable[Any] | None,
        batch_id: str | None,
        options: BatchOptions,
    ) -> CommandFlow[Batch]:
        """Enqueue a batch of one part."""
        batch_id = self._batch_id(batch_id)
        chunks = encode_chunks(payloads, keys, BatchPosition(batch_id, 0, 0))
        return (yield from self.add_encoded_batch(chunks, batch_id, options))

    def add_encoded_batch(
        self, chunks: Iterable[EncodedChunk], batch_id: str | None, options: BatchOptions
    ) -> CommandFlow[Batch]:
        """Enqueue a batch of one part whose payloads are encoded."""
        batch_id = self._batch_id(batch_id)
        part_options = self._part_options(options)
        now_ms = self.clock()
        return (
            yield from batches.add(self.keys, batch_id, chunks, part_options, self.config, now_ms)
        )

    def _batch_id(self, batch_id: str | None) -> str:
        return check_batch_id(
            self._ulid_generator.next(self.clock()) if batch_id is None else batch_id
        )

    def add_part(
        self,
        batch_id: str,
        part: int,
        payloads: Iterable[Any],
        keys: Iterable[Any] | None,
        first_index: int,
        options: BatchOptions,
    ) -> CommandFlow[int]:
        """Enqueue one part of a batch."""
        require_int("part", part, 0, MAX_PARTS - 1)
        require_int("start_index", first_index, 0, MAX_INDEX)
        position = BatchPosition(check_batch_id(batch_id), part, first_index)
        part_options = self._part_options(options)
        now_ms = self.clock()
        chunks = encode_chunks(payloads, keys, position)
        return (
            yield from batches.add_part(
                self.keys, position, chunks, part_options, self.config, now_ms
            )
        )

    def finalize_batch(
        self, batch_id: str, total: int, parts: int, options: BatchOptions
    ) -> CommandFlow[Batch]:
        """Write the total of a batch that was enqueued in parts."""
        check_batch_id(batch_id)
        require_int("total", total, 0, MAX_INDEX * MAX_PARTS)
        require_int("parts", parts, 0, MAX_PARTS)
        part_options = self._part_options(options)
        replication_waiter = ReplicationWaiter(self.keys, self.config)
        command = batches.finalize(self.keys, batch_id, total, parts, part_options, self.clock())
        yield from replication_waiter.send([command])
        replication_waiter.check()
        return Batch(self.keys.queue_name, batch_id, total, parts)

    def _part_options(self, options: BatchOptions) -> PartOptions:
        _check_known_keys(options, BatchOptions, "unknown batch option")
        run_at_ms = resolve_run_at_ms(
            options.get("delay"), options.get("run_at"), self.config, self.clock()
        )
        ttl_ms = BATCH_TTL_MS if "ttl" not in options else to_ms(options["ttl"])
        if not ttl_ms or ttl_ms < 1:
            raise InvalidArgument(
                f"ttl= must be at least 1 ms, not {options['ttl']}; it is how long the state of "
                "the batch is stored"
            )
        check_retry(options.get("retry"))
        source = options.get("source", "")
        encode_text(source, "a batch's source")
        owner = options.get("owner", "")
        encode_text(owner, "a batch's owner")
        return PartOptions(
            options.get("job_name", ""), options.get("retry"), run_at_ms, source, ttl_ms, owner
        )

    def batch(self, batch_id: str) -> CommandFlow[BatchProgress]:
        """Return the progress of a batch, or raise BatchNotFound."""
        progress = yield from batches.progress(self.keys, check_batch_id(batch_id))
        if progress is None:
            raise BatchNotFound(f"batch {batch_id!r} does not exist or has expired")
        return progress

    def attach_batch(self, batch_id: str, owner: str) -> CommandFlow[BatchProgress | None]:
        """Store the owner of a batch and return its progress, or None if it does not exist."""
        encode_text(owner, "a batch's owner")
        return (yield from batches.attach(self.keys, check_batch_id(batch_id), owner))

    def cancel_batch(self, batch_id: str, owner: str | None) -> CommandFlow[CancelBatchResult]:
        """Cancel a batch, or raise BatchNotFound."""
        if owner is not None:
            encode_text(owner, "a batch's owner")
        token = self._ulid_generator.next(self.clock())
        result = yield from batches.cancel(self.keys, check_batch_id(batch_id), owner, token)
        if result is None:
            raise BatchNotFound(f"batch {batch_id!r} does not exist or has expired")
        return result

    def failed_jobs(self, batch_id: str, limit: int) -> CommandFlow[list[str]]:
        """Return the ids of the dead jobs of a batch."""
        require_int("limit", limit, 0)
        progress = yield from self.batch(batch_id)
        return (yield from batches.dead_job_ids(self.keys, batch_id, progress.parts, limit))

    def wait_batch(
        self,
        batch_id: str,
        timeout: timedelta,
        monotonic_clock: Callable[[], float],
        on_progress: Callable[[BatchProgress], None] | None,
    ) -> CommandFlow[BatchProgress]:
        """Wait until every job of a batch is done or dead."""
        timeout_ms = to_ms(timeout) or 0
        return wait.wait_for_batch(
            self.keys, check_batch_id(batch_id), timeout_ms, monotonic_clock, on_progress
        )

    def wait(
        self, job_id: str, timeout: timedelta, monotonic_clock: Callable[[], float]
    ) -> CommandFlow[Any]:
        """Wait until a job is done and return its result."""
        timeout_ms = to_ms(timeout) or 0
        return wait.wait_for_job(
            self.keys, job_id, self.config.group, timeout_ms, monotonic_clock, self.clock
        )

    def get_status(self, job_id: str) -> CommandFlow[JobStatus]:
        """Return the state of a job."""
        return inspect.find_job(self.keys, job_id, self.config.group)

    def result(self, job_id: str, default: Any) -> CommandFlow[Any]:
        """Return the stored result of a job, or the default."""
        exists, result = yield from results.get_result(self.keys, job_id)
        return result if exists else default

    def results(self, job_ids: Iterable[str]) -> CommandFlow[dict[str, Any]]:
        """Return the stored results of jobs by job id."""
        return results.get_results(self.keys, job_ids)

    def batch_result_reader(self, batch_id: str, page_size: int) -> BatchResultReader:
        """Return a reader of the results of a batch."""
        require_int("page_size", page_size, 1)
        return BatchResultReader(self.keys, check_batch_id(batch_id), page_size)

    def cancel(self, job_id: str) -> CommandFlow[CancelResult]:
        """Cancel a delayed job, or request that workers drop or interrupt the job."""
        removed = yield from cancellation.cancel(self.keys, job_id)
        return "cancelled" if removed else "requested"

    def reschedule(
        self, job_id: str, delay: timedelta | None, run_at: datetime | None
    ) -> CommandFlow[bool]:
        """Change the due time of a delayed job."""
        if delay is None and run_at is None:
            raise InvalidArgument("the new due time is missing; specify delay= or run_at=")
        now_ms = self.clock()
        run_at_ms = resolve_run_at_ms(delay, run_at, self.config, now_ms) or now_ms
        return (yield from delayed.reschedule(self.keys, job_id, run_at_ms, now_ms))

    def pause(self, job_name: str | None) -> CommandFlow[None]:
        """Pause the queue or a job name."""
        if job_name is not None:
            encode_job_name(job_name)
        yield flow_control.pause(self.keys, job_name)

    def resume(self, job_name: str | None) -> CommandFlow[None]:
        """Resume the queue or a job name."""
        if job_name is not None:
            encode_job_name(job_name)
        yield from flow_control.resume(self.keys, job_name)

    def rate_limit(
        self, name: str, rates: RateLimits, weight: int | Sequence[int], timeout: timedelta | None
    ) -> CommandFlow[int]:
        """Reserve the next time that a rate limit allows; return the wait in microseconds."""
        parsed_rates = parse_rate_limits(rates)
        weights = [weight] * len(parsed_rates) if isinstance(weight, int) else list(weight)
        if len(weights) != len(parsed_rates):
            raise InvalidArgument(
                f"weight= must be one integer or one per rate: {len(parsed_rates)} rates, "
                f"{len(weights)} weights"
            )
        for rate, rate_weight in zip(parsed_rates, weights, strict=True):
            require_int("weight", rate_weight, 1, rate.limit)
        if timeout is not None:
            require_duration("timeout", timeout, timedelta(0))
        key = self._rate_limit_key(name)
        reserved = yield flow_control.take_rate_limit(
            key, parsed_rates, weights, max_wait_ms=to_ms(timeout)
        )
        if not reserved.waits_us:
            raise RateLimitTimeout(
                f"the rate limit {name!r} allows the next call in "
                f"{format_duration(reserved.next_wait_us / 1000)}, which is later than "
                f"timeout={timeout}; nothing was reserved",
                queue_name=self.keys.queue_name,
            )
        return int(reserved.waits_us[0])

    def pause_rate_limit(self, name: str, duration: timedelta) -> CommandFlow[None]:
        """Allow no call of a rate limit for some time."""
        require_duration("duration", duration, timedelta(0))
        yield flow_control.pause_rate_limit(self._rate_limit_key(name), to_ms(duration))

    def _rate_limit_key(self, name: str) -> str:
        if not encode_text(name, "the name of a rate limit").strip():
            raise InvalidArgument(f"the name of a rate limit must not be blank, not {name!r}")
        return self.keys.rate_limit(name)

    def dead_letters(
        self, limit: int, after: str | None, newest_first: bool, filters: DeadLetterQuery
    ) -> CommandFlow[list[DeadLetter]]:
        """Return a page of matching dead letters."""
        require_int("limit", limit, 0)
        dlq_filter = build_dead_letter_filter(filters, self.clock())
        page = yield from dead_letter_commands.search(
            self.keys, dlq_filter, limit, after, newest_first=newest_first, max_scanned=None
        )
        return page.dead_letters

    def replay(
        self, limit: int | None, max_replays: int | None, dry_run: bool, filters: DeadLetterQuery
    ) -> CommandFlow[DeadLetterReport]:
        """Move matching dead letters back to the stream."""
        if limit is not None:
            require_int("limit", limit, 0)
        if max_replays is None:
            max_replays = self.config.max_replays
        else:
            require_int("max_replays", max_replays, 1)
        dlq_filter = build_dead_letter_filter(filters, self.clock())
        return dead_letter_commands.replay(self.keys, dlq_filter, limit, max_replays, dry_run)

    def purge(
        self, limit: int | None, dry_run: bool, filters: DeadLetterQuery
    ) -> CommandFlow[DeadLetterReport]:
        """Delete matching dead letters."""
        if limit is not None:
            require_int("limit", limit, 0)
        dlq_filter = build_dead_letter_filter(filters, self.clock())
        return dead_letter_commands.purge(self.keys, dlq_filter, limit, dry_run)

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
        """Create or replace a repeat and return its key."""
        encode_job_name(job_name)
        if limit is not None:
            require_int("limit", limit, 1)
        if not isinstance(schedule, Every | Cron):
            raise InvalidArgument(f"schedule must be Every(...) or Cron(...), not {schedule!r}")
        if not isinstance(misfire, MisfirePolicy):
            raise InvalidArgument(
                f"misfire= must be SKIP, FIRE_ONCE or fire_all(...), not {misfire!r}"
            )
        if limit is not None:
            # ChasquiMQ reads a limit of 0 as "no limit".
            require_int("limit", limit, 1)
        if key is None:
            key = schedule.default_key(job_name)
        if not encode_text(key, "a repeat's key").strip():
            raise InvalidArgument(f"the key of a repeat must not be blank, not {key!r}")
        now_ms = self.clock()
        # Validates the payload and its size.
        build_envelope(self._ulid_generator.next(now_ms), payload, self.config, now_ms, None)
        repeat = Repeat(
            key,
            job_name,
            schedule,
            encode_payload(payload),
            limit,
            None if start is None else to_epoch_ms(start),
            None if end is None else to_epoch_ms(end),
            misfire,
        )
        repeat.first_fire(now_ms)  # validates the end
        stored_spec = yield delayed.get_repeat_spec(self.keys, repeat.key)
        yield delayed.upsert_repeat(self.keys, repeat, now_ms, stored_spec)
        return repeat.key


def build_dead_letter_filter(query: DeadLetterQuery, now_ms: int) -> DeadLetterFilter:
    """Return the filter for a query.

    :param query: the conditions as a caller specifies them.
    :param now_ms: the current time in milliseconds, to which the ages are relative.
    :raises InvalidArgument: if the query has an unknown field, or text instead of a list of ids.
    """
    _check_known_keys(query, DeadLetterQuery, "unknown filter for dead letters")
    older_than, newer_than = query.get("older_than"), query.get("newer_than")
    return DeadLetterFilter(
        ids=_id_set(query.get("ids"), "ids"),
        job_ids=_id_set(query.get("job_ids"), "job_ids"),
        reason=query.get("reason"),
        job_name=query.get("job_name"),
        before_ms=None if older_than is None else now_ms - to_ms(older_than),
        after_ms=None if newer_than is None else now_ms - to_ms(newer_than),
        text=query.get("text"),
        batch_id=query.get("batch_id"),
    )


def _check_known_keys(options: Mapping[str, Any], typed_dict: Any, message_prefix: str) -> None:
    unknown = sorted(set(options) - set(typed_dict.__annotations__))
    if unknown:
        allowed = ", ".join(typed_dict.__annotations__)
        raise InvalidArgument(f"{message_prefix}: {', '.join(unknown)}; allowed are {allowed}")


def _id_set(ids: Iterable[str] | None, option: str) -> frozenset[str] | None:
    if isinstance(ids, str):
        raise InvalidArgument(f"{option}= must be a list of ids, not {ids!r}; use [{ids!r}]")
    return None if ids is None else frozenset(ids)
