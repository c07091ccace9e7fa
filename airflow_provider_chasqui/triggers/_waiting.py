"""The waits themselves: the same text runs in a trigger and, without one, in the task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_chasqui.core.commands.inspect import Depth
from airflow_provider_chasqui.core.errors import (
    BatchFailed,
    ChasquiError,
    JobFailed,
    JobNotFound,
    WaitTimeout,
)
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.triggers._event_follower import (
    BatchSnapshot,
    EventFollower,
    PollIntervals,
    shared_follower,
)

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue_async import AsyncQueue

MAX_DEAD_IDS = 100
LogFunction = Callable[..., None]


def load_poll_intervals() -> PollIntervals:
    """The pace that Airflow's configuration asks for."""
    from airflow.providers.common.compat.sdk import conf

    default = PollIntervals()
    return PollIntervals(
        poll_interval=conf.getfloat("chasqui", "poll_interval", fallback=default.poll_interval),
        first_scan_delay=conf.getfloat(
            "chasqui", "first_scan_delay", fallback=default.first_scan_delay
        ),
        scan_interval=conf.getfloat("chasqui", "scan_interval", fallback=default.scan_interval),
    )


@dataclass(frozen=True)
class QueueSource:
    """A queue of a connection. `hook` is given where the connection is already looked up."""

    chasqui_conn_id: str
    queue_name: str
    hook: ChasquiHook | None = None

    async def open(self) -> AsyncQueue:
        # Without a hook the connection is looked up anew each time: its password may have changed.
        hook = self.hook or ChasquiHook(self.chasqui_conn_id)
        return await hook.async_queue(self.queue_name)

    def follower(self) -> AbstractAsyncContextManager[EventFollower]:
        return shared_follower(
            self.chasqui_conn_id, self.queue_name, self.open, load_poll_intervals
        )


async def error_as_event(wait: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return what the wait found, or the error that makes waiting useless, as an event."""
    try:
        return await wait
    except ChasquiError as error:
        return {"status": "error", "kind": type(error).__name__, "message": error.message}


async def wait_job(source: QueueSource, job_id: str, events_after: str) -> dict[str, Any]:
    """Wait until a job has ended and return how."""
    async with source.follower() as follower:
        end = await follower.wait_for_job(job_id, events_after)
    return {"queue_name": source.queue_name} | end.as_dict()


async def wait_batch(
    source: QueueSource,
    batch_id: str,
    events_after: str,
    failure_limit: FailureLimit,
    log: LogFunction,
    log_interval: float,
) -> dict[str, Any]:
    """Wait until all of a batch has ended, or too much of it died; say how far it is."""
    teller = ProgressLogger(batch_id, log, log_interval)
    async with (
        source.follower() as follower,
        aclosing(follower.batch_snapshots(batch_id, events_after)) as sights,
    ):
        async for sight in sights:
            teller.update(sight)
            if failure_limit.fail_fast and failure_limit.is_exceeded(
                sight.dead + sight.lost, sight.progress.total
            ):
                break
    event = {"queue_name": source.queue_name} | batch_event(batch_id, sight)
    if sight.dead:
        async with await source.open() as queue:
            event["dead_ids"] = await queue.dead_job_ids(batch_id, limit=MAX_DEAD_IDS)
    return event


def batch_event(batch_id: str, snapshot: BatchSnapshot) -> dict[str, Any]:
    return {
        "status": "finished" if snapshot.finished else "aborted",
        "batch_id": batch_id,
        "total": snapshot.progress.total,
        "done": snapshot.done,
        "dead": snapshot.dead,
        "lost": snapshot.lost,
        "dead_ids": [],
    }


async def wait_depth(
    source: QueueSource, limits: DepthLimits, poll_interval: float, log: LogFunction
) -> dict[str, Any]:
    """Wait until the queue has room and return its depth."""
    async with (
        source.follower() as follower,
        aclosing(follower.depth_samples(poll_interval)) as depths,
    ):
        async for depth in depths:
            over = limits.exceeded(depth)
            if not over:
                break
            log("The queue %r has no room yet: %s", source.queue_name, ", ".join(over))
    return depth_event(depth)


def depth_event(depth: Depth) -> dict[str, Any]:
    names = ("waiting", "running", "delayed", "dead", "lag")
    return {"status": "below_limits"} | {name: getattr(depth, name) for name in names}


@dataclass(frozen=True)
class FailureLimit:
    """How many jobs of a batch may die."""

    max_failed: int | None = 0
    max_failed_ratio: float | None = None
    fail_fast: bool = False

    def is_exceeded(self, failed: int, total: int | None) -> bool:
        """Whether more died than is allowed; with both limits, either one allows."""
        allowed = [float(self.max_failed)] if self.max_failed is not None else []
        if self.max_failed_ratio is not None:
            allowed.append(self.max_failed_ratio * (total or 0) if total is not None else failed)
        return bool(allowed) and failed > max(allowed)


@dataclass(frozen=True)
class DepthLimits:
    """How deep a queue may be. `lag` falls back to what waits where the server cannot tell."""

    max_waiting: int | None = None
    max_running: int | None = None
    max_lag: int | None = None
    max_delayed: int | None = None
    max_dead: int | None = None

    def exceeded(self, depth: Depth) -> list[str]:
        """Return the limits that are exceeded, in words."""
        found = {
            "waiting": depth.waiting,
            "running": depth.running,
            "lag": depth.waiting if depth.lag is None else depth.lag,
            "delayed": depth.delayed,
            "dead": depth.dead,
        }
        limits = {name: getattr(self, f"max_{name}") for name in found}
        return [
            f"{count} {name} (at most {limits[name]})"
            for name, count in found.items()
            if limits[name] is not None and count > limits[name]
        ]


class ProgressLogger:
    """Says how far a batch is: at the first look, then every so often, and at the end."""

    def __init__(self, batch_id: str, log: LogFunction, interval: float):
        self._batch_id = batch_id
        self._log = log
        self._interval = interval
        self._logged_at: float | None = None
        self._logged_count = 0

    def update(self, snapshot: BatchSnapshot) -> None:
        now, settled = time.monotonic(), snapshot.done + snapshot.dead
        if (
            self._logged_at is not None
            and not snapshot.finished
            and now - self._logged_at < self._interval
        ):
            return
        pace = ""
        if self._logged_at is not None and now > self._logged_at:
            pace = f", {(settled - self._logged_count) / (now - self._logged_at):.0f} a second"
        self._logged_at, self._logged_count = now, settled
        total = snapshot.progress.total
        share = "" if not total else f" ({settled / total:.0%})"
        self._log(
            "Batch %s: %d of %s ended%s, %d dead%s",
            self._batch_id, settled, "?" if total is None else total, share, snapshot.dead, pace,
        )  # fmt: skip


def check_job_event(event: dict[str, Any], queue_name: str | None) -> None:
    """Return if the job is done, else raise the job's own error."""
    job_id = event.get("job_id")
    match event["status"]:
        case "done":
            return
        case "dead":
            why = event["error"] or "it was cancelled, or its letter was purged"
            reason = f" ({event['reason']})" if event["reason"] else ""
            raise JobFailed(f"the job died{reason}: {why}", queue_name=queue_name, job_id=job_id)
        case "unknown":
            raise JobNotFound(
                "no trace of the job is left: it is not on the queue, not dead, and no result or "
                "event tells its end",
                queue_name=queue_name,
                job_id=job_id,
            )
        case _:
            raise_from_event(event, queue_name)


def check_batch_event(
    event: dict[str, Any], queue_name: str | None, failure_limit: FailureLimit
) -> dict[str, Any]:
    """Return the counts of a batch that ended well, else raise."""
    if event["status"] not in ("finished", "aborted"):
        raise_from_event(event, queue_name)
    failed, total = event["dead"] + event["lost"], event["total"]
    if failure_limit.is_exceeded(failed, total):
        lost = f" and {event['lost']} lost" if event["lost"] else ""
        first = f"; the first: {', '.join(event['dead_ids'][:3])}" if event["dead_ids"] else ""
        raise BatchFailed(
            f"{event['dead']} of {total} jobs of the batch {event['batch_id']!r} are dead{lost}, "
            f"more than is allowed; see their letters{first}",
            queue_name=queue_name,
        )
    counts = ("queue_name", "batch_id", "total", "done", "dead", "lost", "dead_ids")
    return {name: event[name] for name in counts}


def raise_from_event(event: dict[str, Any], queue_name: str | None) -> None:
    """Raise the error that an event tells of."""
    from airflow_provider_chasqui.core import errors

    kind = getattr(errors, str(event.get("kind")), ChasquiError)
    raise kind(event.get("message", f"unexpected event {event!r}"), queue_name=queue_name)


def wait_in_process(
    wait: Coroutine[Any, Any, dict[str, Any]], timeout: timedelta | None, description: str
) -> dict[str, Any]:
    """Wait in this process, as a task does that is not deferred."""
    seconds = None if timeout is None else timeout.total_seconds()
    try:
        return asyncio.run(asyncio.wait_for(error_as_event(wait), seconds))
    except TimeoutError:
        raise WaitTimeout(f"{description} did not end within {seconds:g} s") from None
