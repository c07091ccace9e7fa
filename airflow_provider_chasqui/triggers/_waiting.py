"""Waits for jobs, batches and queue depths, shared by the triggers and by tasks that do not defer.

A wait returns the payload of a trigger event as a JSON-compatible dict. In the task that resumes,
the `check_*` functions turn such a payload into a return value or an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_chasqui.core import errors
from airflow_provider_chasqui.core.commands import inspect
from airflow_provider_chasqui.core.commands.inspect import Depth
from airflow_provider_chasqui.core.errors import (
    BatchFailed,
    ChasquiError,
    JobFailed,
    JobNotFound,
    WaitTimeout,
)
from airflow_provider_chasqui.core.validation import parse_fraction, parse_int
from airflow_provider_chasqui.core.waiting import CANCELLED, BatchSnapshot, WaitIntervals
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.operators._parsing import none_if_blank
from airflow_provider_chasqui.triggers._wait_registry import (
    WaitRegistry,
    find_obstacles,
    shared_registry,
)

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue

MAX_DEAD_IDS = 100
# Airflow's own timeout of a deferred task comes this much later than that of the trigger, whose
# error contains the state of the job or the batch.
AIRFLOW_TIMEOUT_MARGIN = timedelta(seconds=60)
_MAX_SCANNED_FOR_STATE = 10_000
# The first explanation comes early, so that a missing worker is noticed at once.
_FIRST_EXPLANATION_DELAY = 2.0
LogFunction = Callable[..., None]


def load_wait_intervals() -> WaitIntervals:
    """Return the intervals of the section `chasqui` of Airflow's configuration."""
    from airflow.providers.common.compat.sdk import conf

    default = WaitIntervals()
    return WaitIntervals(
        poll_interval=conf.getfloat("chasqui", "poll_interval", fallback=default.poll_interval),
        first_scan_delay=conf.getfloat(
            "chasqui", "first_scan_delay", fallback=default.first_scan_delay
        ),
        scan_interval=conf.getfloat("chasqui", "scan_interval", fallback=default.scan_interval),
    )


@dataclass(frozen=True)
class QueueSource:
    """A queue of an Airflow connection, which can be opened any number of times.

    :param chasqui_conn_id: the id of the Airflow connection.
    :param queue_name: the name of the queue.
    :param hook: a hook that has loaded the connection. Without one, the default, every `open` loads
        the connection again, because its password may have changed.
    """

    chasqui_conn_id: str
    queue_name: str
    hook: ChasquiHook | None = None

    async def open(self) -> AsyncQueue:
        """Return a new queue; the caller closes it."""
        hook = self.hook or ChasquiHook(self.chasqui_conn_id)
        return await hook.async_queue(self.queue_name)

    def registry(self) -> AbstractAsyncContextManager[WaitRegistry]:
        """Return the shared registry of the queue as a context manager."""
        return shared_registry(
            self.chasqui_conn_id, self.queue_name, self.open, load_wait_intervals
        )


# Waits


async def wait_job(
    source: QueueSource,
    job_id: str,
    events_after: str,
    *,
    must_exist: bool = True,
    timeout: float | None = None,
    log: LogFunction | None = None,
    log_interval: float = 30.0,
) -> dict[str, Any]:
    """Wait until a job has finished.

    :param source: the queue of the job.
    :param job_id: the id of the job.
    :param events_after: an id in the events stream from before the job was added.
    :param must_exist: whether the wait ends if there is no record of the job.
    :param timeout: how long to wait, in seconds; None for no limit.
    :param log: the function that writes a log line, e.g. `log.info`; None for no log.
    :param log_interval: seconds between two log lines about what delays the job.
    :return: the event payload, for `check_job_event`.
    :raises WaitTimeout: if the job has not finished in time; the message has its state.
    :raises ChasquiError: if the wait cannot continue, e.g. because of a rejected password.
    """
    async with (
        source.registry() as registry,
        _explained(source, registry, job_id, timeout, log, log_interval),
    ):
        end = await registry.wait_for_job(
            job_id, events_after, must_exist=must_exist, timeout=timeout
        )
    return {"queue_name": source.queue_name} | end.as_dict()


async def wait_batch(
    source: QueueSource,
    batch_id: str,
    events_after: str,
    failure_limit: FailureLimit,
    log: LogFunction,
    log_interval: float,
    *,
    must_exist: bool = True,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Wait until all jobs of a batch have finished, and log the progress.

    :param source: the queue of the batch.
    :param batch_id: the id of the batch.
    :param events_after: an id in the events stream from before the batch was added.
    :param failure_limit: the limit that ends the wait early if it has `fail_fast`.
    :param log: the function that writes a log line, e.g. `log.info`.
    :param log_interval: seconds between two log lines.
    :param must_exist: whether the wait ends if there is no such batch.
    :param timeout: how long to wait, in seconds; None for no limit.
    :return: the event payload, for `check_batch_event`.
    :raises BatchNotFound: if there is no such batch, or it expired during the wait.
    :raises WaitTimeout: if the batch has not finished in time; the message has its counts.
    :raises ChasquiError: if the wait cannot continue, e.g. because of a rejected password.
    """
    progress_logger = ProgressLogger(batch_id, log, log_interval)
    snapshot: BatchSnapshot | None = None
    error: ChasquiError | None = None
    try:
        async with (
            source.registry() as registry,
            _explained(source, registry, f"batch:{batch_id}", timeout, log, log_interval),
            aclosing(
                registry.batch_snapshots(
                    batch_id, events_after, must_exist=must_exist, timeout=timeout
                )
            ) as snapshots,
        ):
            async for snapshot in snapshots:
                progress_logger.update(snapshot)
                if failure_limit.fail_fast and failure_limit.is_exceeded(
                    snapshot.dead + snapshot.lost, snapshot.progress.total
                ):
                    break
    except ChasquiError as caught:
        if snapshot is None:
            raise
        error = caught
    assert snapshot is not None
    event = {"queue_name": source.queue_name} | batch_event(batch_id, snapshot)
    if error is not None:
        event |= error_event(error)
    if snapshot.dead:
        try:
            async with await source.open() as queue:
                event["dead_ids"] = await queue.dead_job_ids(batch_id, limit=MAX_DEAD_IDS)
        except ChasquiError:
            if error is None:
                raise
    return event


async def wait_depth(
    source: QueueSource,
    limits: DepthLimits,
    poll_interval: float,
    log: LogFunction,
    *,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Wait until the queue exceeds none of the limits.

    :param source: the queue.
    :param limits: the limits.
    :param poll_interval: seconds between two reads of the depth.
    :param log: the function that writes a log line, e.g. `log.info`.
    :param timeout: how long to wait, in seconds; None for no limit.
    :return: the event payload, with the depth of the queue.
    :raises WaitTimeout: if a limit is still exceeded after `timeout`.
    :raises ChasquiError: if the wait cannot continue, e.g. because of a rejected password.
    """
    exceeded: list[str] = []
    try:
        async with (
            asyncio.timeout(timeout),
            source.registry() as registry,
            aclosing(registry.depth_samples(poll_interval)) as depths,
        ):
            async for depth in depths:
                exceeded = limits.exceeded(depth)
                if not exceeded:
                    break
                reasons = [*exceeded, *await registry.obstacles()]
                log("Queue %r exceeds its limits: %s", source.queue_name, "; ".join(reasons))
    except TimeoutError:
        raise WaitTimeout(
            f"the queue still exceeds its limits after {timeout:g} s: "
            f"{', '.join(exceeded) or 'its depth was not read'}",
            queue_name=source.queue_name,
        ) from None
    return depth_event(depth)


@asynccontextmanager
async def _explained(
    source: QueueSource,
    registry: WaitRegistry,
    key: str,
    timeout: float | None,
    log: LogFunction | None,
    log_interval: float,
) -> AsyncIterator[None]:
    """Log what delays a wait, and add it to the error if the wait times out."""
    failures: tuple[int, str | None] = (0, None)

    async def write_log() -> None:
        nonlocal failures
        delay = min(_FIRST_EXPLANATION_DELAY, log_interval)
        while True:
            await asyncio.sleep(delay)
            delay = log_interval
            failures = registry.failures(key)
            with suppress(ChasquiError):  # the registry connects again
                reasons = [*await registry.obstacles(), *_describe_failures(failures)]
                if reasons and log is not None:
                    log("Waiting for %s: %s", key.removeprefix("batch:"), "; ".join(reasons))

    task = asyncio.create_task(write_log())
    try:
        yield
    except WaitTimeout as error:
        failures = max(failures, registry.failures(key), key=lambda failure: failure[0])
        try:
            reasons = await _describe_state(source, registry, key)
        except ChasquiError as unreachable:
            reasons = [f"the server is not reachable: {unreachable}"]
        error.message = "; ".join([error.message, *reasons, *_describe_failures(failures)])
        error.args = (error.message,)
        raise
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _describe_failures(failures: tuple[int, str | None]) -> list[str]:
    count, last_error = failures
    if not count:
        return []
    attempts = "1 attempt failed" if count == 1 else f"{count} attempts failed"
    return [attempts + (f", the last with {last_error}" if last_error else "")]


async def _describe_state(source: QueueSource, registry: WaitRegistry, key: str) -> list[str]:
    """Return where the job is, if the wait was for a job, and what delays the queue."""
    if registry.connection_error is not None:
        return await registry.obstacles()
    reasons = []
    async with await source.open() as queue:
        if not key.startswith("batch:") or key.count(":") > 1:
            flow = inspect.find_job(
                queue.keys, key, queue.config.group, max_scanned=_MAX_SCANNED_FOR_STATE
            )
            status = await queue.client.run_flow(flow)
            reasons.append(f"its state is {status.state}")
        reasons += await find_obstacles(queue)
    return reasons


def wait_in_process(wait: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Run a wait in this process, for a task that does not defer.

    :param wait: a coroutine of `wait_job`, `wait_batch` or `wait_depth`.
    :return: the event payload. The status is `error` if the wait timed out.
    """
    return asyncio.run(error_as_event(wait))


def defer_timeouts(timeout: timedelta | None) -> tuple[float | None, timedelta | None]:
    """Return the deadline of the trigger and the later timeout that Airflow gets.

    :param timeout: how long to wait; None for no limit.
    """
    if timeout is None:
        return None, None
    return time.time() + timeout.total_seconds(), timeout + AIRFLOW_TIMEOUT_MARGIN


def seconds_until(deadline: float | None) -> float | None:
    """Return the number of seconds until a point in time; None for no deadline.

    :param deadline: the time in seconds since the epoch.
    """
    return None if deadline is None else max(0.0, deadline - time.time())


class ProgressLogger:
    """Logs the progress of a batch: its first snapshot, then one per interval, and its last one.

    :param batch_id: the id of the batch.
    :param log: the function that writes a log line, e.g. `log.info`.
    :param interval: seconds between two log lines.
    """

    def __init__(self, batch_id: str, log: LogFunction, interval: float):
        self._batch_id = batch_id
        self._log = log
        self._interval = interval
        self._logged_at: float | None = None
        self._logged_count = 0

    def update(self, snapshot: BatchSnapshot) -> None:
        """Log a snapshot if a log line is due."""
        now, finished_count = time.monotonic(), snapshot.done + snapshot.dead
        if (
            self._logged_at is not None
            and not snapshot.finished
            and now - self._logged_at < self._interval
        ):
            return
        rate = ""
        if self._logged_at is not None and now > self._logged_at:
            jobs_per_s = (finished_count - self._logged_count) / (now - self._logged_at)
            rate = f", {jobs_per_s:.0f} per second"
        self._logged_at, self._logged_count = now, finished_count
        total = snapshot.progress.total
        self._log(
            "%d of %s finished%s, %d dead%s: batch %s",
            finished_count,
            "?" if total is None else total,
            f" ({finished_count / total:.0%})" if total else "",
            snapshot.dead,
            rate,
            self._batch_id,
        )


# Limits


@dataclass(frozen=True)
class FailureLimit:
    """The number of jobs of a batch that may die.

    :param max_failed: the absolute limit, 0 by default; None means no limit.
    :param max_failed_ratio: the limit as a share of all jobs; None, the default, means no limit.
    :param fail_fast: end the wait as soon as the limit is exceeded.
    """

    max_failed: int | None = 0
    max_failed_ratio: float | None = None
    fail_fast: bool = False

    @classmethod
    def parse(cls, max_failed: Any, max_failed_ratio: Any, fail_fast: bool) -> FailureLimit:
        """Return the limit of an operator, whose arguments may be text from a template.

        :param max_failed: an integer or decimal text; None, or a template that renders it, means no
            limit.
        :param max_failed_ratio: a number from 0 to 1 or decimal text, or None.
        :param fail_fast: whether to end the wait as soon as the limit is exceeded.
        :raises InvalidArgument: if a value is none of them.
        """
        count, ratio = none_if_blank(max_failed), none_if_blank(max_failed_ratio)
        return cls(
            None if count is None else parse_int("max_failed", count),
            None if ratio is None else parse_fraction("max_failed_ratio", ratio),
            fail_fast,
        )

    def is_exceeded(self, failed: int, total: int | None) -> bool:
        """Return whether more jobs died than the larger of the two limits allows.

        :param failed: the number of dead and lost jobs.
        :param total: the number of all jobs; None, while it is unknown, never exceeds a ratio.
        """
        limits = [float(self.max_failed)] if self.max_failed is not None else []
        if self.max_failed_ratio is not None:
            limits.append(failed if total is None else self.max_failed_ratio * total)
        return bool(limits) and failed > max(limits)


@dataclass(frozen=True)
class DepthLimits:
    """The maximum depth of a queue. A limit of None, the default, is not checked.

    :param max_waiting: maximum number of waiting jobs: the entries of the stream minus the pending
        ones.
    :param max_running: maximum number of running jobs.
    :param max_lag: maximum lag of the consumer group, as the server reports it. If the server does
        not know the lag, the number of waiting jobs is compared.
    :param max_delayed: maximum number of delayed jobs.
    :param max_dead: maximum number of dead letters.
    """

    max_waiting: int | None = None
    max_running: int | None = None
    max_lag: int | None = None
    max_delayed: int | None = None
    max_dead: int | None = None

    def exceeded(self, depth: Depth) -> list[str]:
        """Return a description of each exceeded limit."""
        counts = {
            "waiting": depth.waiting,
            "running": depth.running,
            "lag": depth.waiting if depth.lag is None else depth.lag,
            "delayed": depth.delayed,
            "dead": depth.dead,
        }
        limits = {name: getattr(self, f"max_{name}") for name in counts}
        return [
            f"{count} {name} (at most {limits[name]})"
            for name, count in counts.items()
            if limits[name] is not None and count > limits[name]
        ]


# Event payloads


def batch_event(batch_id: str, snapshot: BatchSnapshot) -> dict[str, Any]:
    """Return the event payload for the last snapshot of a batch."""
    return {
        "status": "finished" if snapshot.finished else "aborted",
        "batch_id": batch_id,
        "total": snapshot.progress.total,
        "done": snapshot.done,
        "dead": snapshot.dead,
        "lost": snapshot.lost,
        "dead_ids": [],
    }


def depth_event(depth: Depth) -> dict[str, Any]:
    """Return the event payload for a depth that exceeds no limit."""
    names = ("waiting", "running", "delayed", "dead", "lag")
    return {"status": "below_limits"} | {name: getattr(depth, name) for name in names}


async def error_as_event(wait: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return the event payload of a wait, or a payload with the error that ended the wait."""
    try:
        return await wait
    except ChasquiError as error:
        return error_event(error)


def error_event(error: ChasquiError) -> dict[str, Any]:
    """Return the event payload for an error that ended a wait."""
    return {"status": "error", "kind": type(error).__name__, "message": error.message}


def check_job_event(event: dict[str, Any], queue_name: str | None) -> None:
    """Return if the job of an event completed.

    :param event: the payload of `wait_job`.
    :param queue_name: the name of the queue, for the error.
    :raises JobFailed: if the job died.
    :raises JobNotFound: if Redis has no record of the job.
    :raises ChasquiError: if the wait ended with an error.
    """
    job_id = event.get("job_id")
    match event["status"]:
        case "done":
            return
        case "dead":
            default = "it was cancelled"
            if event["reason"] != CANCELLED:
                default += ", or its dead letter was purged"
            error = event["error"] or default
            reason = f" ({event['reason']})" if event["reason"] else ""
            raise JobFailed(f"the job died{reason}: {error}", queue_name=queue_name, job_id=job_id)
        case "unknown":
            raise JobNotFound(
                "there is no record of the job: it is neither on the queue nor in the DLQ, and it "
                "has no result and no final event; check the job id and the queue name",
                queue_name=queue_name,
                job_id=job_id,
            )
        case _:
            raise_from_event(event, queue_name)


def job_counts(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the counts of a single job, in the form of those of a batch.

    :param event: the payload of `wait_job`.
    :return: None if the job has not finished.
    """
    if event["status"] not in ("done", "dead"):
        return None
    done = int(event["status"] == "done")
    return {
        "queue_name": event["queue_name"],
        "job_id": event["job_id"],
        "total": 1,
        "done": done,
        "dead": 1 - done,
        "lost": 0,
        "dead_ids": [] if done else [event["job_id"]],
    }


def check_batch_event(
    event: dict[str, Any], queue_name: str | None, failure_limit: FailureLimit
) -> dict[str, Any]:
    """Return the counts of a batch that stayed within its failure limit.

    :param event: the payload of `wait_batch`.
    :param queue_name: the name of the queue, for the error.
    :param failure_limit: the limit.
    :raises BatchFailed: if more jobs died than the limit allows.
    :raises ChasquiError: if the wait ended with an error.
    """
    if event["status"] not in ("finished", "aborted"):
        raise_from_event(event, queue_name)
    failed, total = event["dead"] + event["lost"], event["total"]
    if failure_limit.is_exceeded(failed, total):
        lost = f" and {event['lost']} lost" if event["lost"] else ""
        examples = f", e.g. of {', '.join(event['dead_ids'][:3])}" if event["dead_ids"] else ""
        raise BatchFailed(
            f"{event['dead']} of {total} jobs of the batch {event['batch_id']!r} are dead{lost}, "
            "which is more than max_failed and max_failed_ratio allow; "
            f"see the dead letters{examples}",
            queue_name=queue_name,
        )
    return batch_counts(event)


def batch_counts(event: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of a batch from an event payload."""
    names = ("queue_name", "batch_id", "total", "done", "dead", "lost", "dead_ids")
    return {name: event[name] for name in names}


def raise_from_event(event: dict[str, Any], queue_name: str | None) -> None:
    """Raise the error that an event payload contains.

    :param event: a payload with the status `error`.
    :param queue_name: the name of the queue, for the error.
    :raises ChasquiError: always; the class is the one that `kind` names.
    """
    error_class = getattr(errors, str(event.get("kind")), ChasquiError)
    raise error_class(event.get("message", f"unexpected event {event!r}"), queue_name=queue_name)
