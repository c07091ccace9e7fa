"""The waits themselves: the same text runs in a trigger and, without one, in the task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_chasqui.core.errors import (
    BatchFailed,
    ChasquiError,
    JobDead,
    UnknownJob,
    WaitTimeout,
)
from airflow_provider_chasqui.core.ops.looking import Depth
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.triggers.follower import Follower, Pace, following
from airflow_provider_chasqui.triggers.watch import BatchSight

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue import AsyncQueue

DEAD_IDS = 100
Say = Callable[..., None]


def pace() -> Pace:
    """The pace that Airflow's configuration asks for."""
    from airflow.providers.common.compat.sdk import conf

    default = Pace()
    return Pace(
        recheck=conf.getfloat("chasqui", "recheck_interval", fallback=default.recheck),
        first_census=conf.getfloat("chasqui", "first_census", fallback=default.first_census),
        census=conf.getfloat("chasqui", "census_interval", fallback=default.census),
    )


@dataclass(frozen=True)
class Source:
    """A queue of a connection. `hook` is given where the connection is already looked up."""

    chasqui_conn_id: str
    queue_name: str
    hook: ChasquiHook | None = None

    async def open(self) -> AsyncQueue:
        # Without a hook the connection is looked up anew each time: its password may have changed.
        hook = self.hook or ChasquiHook(self.chasqui_conn_id)
        return await hook.async_queue(self.queue_name)

    def following(self) -> AbstractAsyncContextManager[Follower]:
        return following(self.chasqui_conn_id, self.queue_name, self.open, pace)


async def guarded(wait: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return what the wait found, or the error that makes waiting useless, as an event."""
    try:
        return await wait
    except ChasquiError as error:
        return {"status": "error", "kind": type(error).__name__, "message": error.message}


async def wait_job(source: Source, job_id: str, since: str) -> dict[str, Any]:
    """Wait until a job has ended and return how."""
    async with source.following() as follower:
        end = await follower.job(job_id, since)
    return {"queue_name": source.queue_name} | end.as_dict()


async def wait_batch(
    source: Source, batch_id: str, since: str, limit: Limit, say: Say, say_every: float
) -> dict[str, Any]:
    """Wait until all of a batch has ended, or too much of it died; say how far it is."""
    teller = Teller(batch_id, say, say_every)
    async with source.following() as follower, aclosing(follower.batch(batch_id, since)) as sights:
        async for sight in sights:
            teller.tell(sight)
            if limit.fail_fast and limit.broken(sight.dead + sight.lost, sight.progress.total):
                break
    event = {"queue_name": source.queue_name} | batch_event(batch_id, sight)
    if sight.dead:
        async with await source.open() as queue:
            event["dead_ids"] = await queue.dead_in_batch(batch_id, limit=DEAD_IDS)
    return event


def batch_event(batch_id: str, sight: BatchSight) -> dict[str, Any]:
    return {
        "status": "ended" if sight.finished else "broken off",
        "batch_id": batch_id,
        "total": sight.progress.total,
        "done": sight.done,
        "dead": sight.dead,
        "lost": sight.lost,
        "dead_ids": [],
    }


async def wait_depth(source: Source, room: Room, every: float, say: Say) -> dict[str, Any]:
    """Wait until the queue has room and return its depth."""
    async with source.following() as follower, aclosing(follower.depth(every)) as depths:
        async for depth in depths:
            over = room.over(depth)
            if not over:
                break
            say("The queue %r has no room yet: %s", source.queue_name, ", ".join(over))
    return depth_event(depth)


def depth_event(depth: Depth) -> dict[str, Any]:
    names = ("waiting", "running", "delayed", "dead", "lag")
    return {"status": "room"} | {name: getattr(depth, name) for name in names}


@dataclass(frozen=True)
class Limit:
    """How many jobs of a batch may die."""

    max_failed: int | None = 0
    max_failed_ratio: float | None = None
    fail_fast: bool = False

    def broken(self, failed: int, total: int | None) -> bool:
        """Whether more died than is allowed; with both limits, either one allows."""
        allowed = [float(self.max_failed)] if self.max_failed is not None else []
        if self.max_failed_ratio is not None:
            allowed.append(self.max_failed_ratio * (total or 0) if total is not None else failed)
        return bool(allowed) and failed > max(allowed)


@dataclass(frozen=True)
class Room:
    """How deep a queue may be. `lag` falls back to what waits where the server cannot tell."""

    max_waiting: int | None = None
    max_running: int | None = None
    max_lag: int | None = None
    max_delayed: int | None = None
    max_dead: int | None = None

    def over(self, depth: Depth) -> list[str]:
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


class Teller:
    """Says how far a batch is: at the first look, then every so often, and at the end."""

    def __init__(self, batch_id: str, say: Say, every: float):
        self._batch = batch_id
        self._say = say
        self._every = every
        self._told_at: float | None = None
        self._told = 0

    def tell(self, sight: BatchSight) -> None:
        now, settled = time.monotonic(), sight.done + sight.dead
        if self._told_at is not None and not sight.finished and now - self._told_at < self._every:
            return
        pace = ""
        if self._told_at is not None and now > self._told_at:
            pace = f", {(settled - self._told) / (now - self._told_at):.0f} a second"
        self._told_at, self._told = now, settled
        total = sight.progress.total
        share = "" if not total else f" ({settled / total:.0%})"
        self._say(
            "Batch %s: %d of %s ended%s, %d dead%s",
            self._batch, settled, "?" if total is None else total, share, sight.dead, pace,
        )  # fmt: skip


def judge_job(event: dict[str, Any], queue_name: str | None) -> None:
    """Return if the job is done, else raise the job's own error."""
    job_id = event.get("job_id")
    match event["status"]:
        case "done":
            return
        case "dead":
            why = event["error"] or "it was cancelled, or its letter was purged"
            reason = f" ({event['reason']})" if event["reason"] else ""
            raise JobDead(f"the job died{reason}: {why}", queue=queue_name, job_id=job_id)
        case "unknown":
            raise UnknownJob(
                "no trace of the job is left: it is not on the queue, not dead, and no result or "
                "event tells its end",
                queue=queue_name,
                job_id=job_id,
            )
        case _:
            raise_error(event, queue_name)


def judge_batch(event: dict[str, Any], queue_name: str | None, limit: Limit) -> dict[str, Any]:
    """Return the counts of a batch that ended well, else raise."""
    if event["status"] not in ("ended", "broken off"):
        raise_error(event, queue_name)
    failed, total = event["dead"] + event["lost"], event["total"]
    if limit.broken(failed, total):
        lost = f" and {event['lost']} lost" if event["lost"] else ""
        first = f"; the first: {', '.join(event['dead_ids'][:3])}" if event["dead_ids"] else ""
        raise BatchFailed(
            f"{event['dead']} of {total} jobs of the batch {event['batch_id']!r} are dead{lost}, "
            f"more than is allowed; see their letters{first}",
            queue=queue_name,
        )
    counts = ("queue_name", "batch_id", "total", "done", "dead", "lost", "dead_ids")
    return {name: event[name] for name in counts}


def raise_error(event: dict[str, Any], queue_name: str | None) -> None:
    """Raise the error that an event tells of."""
    from airflow_provider_chasqui.core import errors

    kind = getattr(errors, str(event.get("kind")), ChasquiError)
    raise kind(event.get("message", f"unexpected event {event!r}"), queue=queue_name)


def here(
    wait: Coroutine[Any, Any, dict[str, Any]], timeout: timedelta | None, what: str
) -> dict[str, Any]:
    """Wait in this process, as a task does that is not deferred."""
    seconds = None if timeout is None else timeout.total_seconds()
    try:
        return asyncio.run(asyncio.wait_for(guarded(wait), seconds))
    except TimeoutError:
        raise WaitTimeout(f"{what} did not end within {seconds:g} s") from None
