"""One follower per connection and queue in a process, however many tasks wait there.

It reads the events stream once for everybody and holds at most two connections: one that listens
and one that looks. Events are hints; what decides are the batch bits, the results and the letters,
which are looked at again from time to time, so that a lost event delays an answer but never loses
it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow_provider_chasqui.core.batch import place_of
from airflow_provider_chasqui.core.errors import ChasquiError, LoginRefused, NotConnected
from airflow_provider_chasqui.core.event import FINAL, Event
from airflow_provider_chasqui.core.ops import looking
from airflow_provider_chasqui.core.ops.looking import Depth
from airflow_provider_chasqui.triggers.memory import Memory, position
from airflow_provider_chasqui.triggers.watch import (
    BatchSight,
    BatchWatch,
    DepthWatch,
    JobEnd,
    JobWatch,
    Watch,
)

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue import AsyncQueue

log = logging.getLogger(__name__)

_PAGE = 1000
_LONGEST_PAUSE = 30.0
_LOGIN_TRIES = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """How often is looked, in seconds.

    `recheck` is for bits and results; `census` is the pass over the whole queue that tells whether
    a job which nobody heard of is still there, the first one coming early.
    """

    recheck: float = 15.0
    first_census: float = 10.0
    census: float = 300.0
    batch: float = 0.5
    bit_late: float = 1.0
    gather: float = 0.05
    block: float = 5.0

    def jitter(self, span: float) -> float:
        return span * random.uniform(0.8, 1.2)


class Follower:
    """Follows one queue for everybody in this event loop who waits for something on it."""

    def __init__(self, open_queue: Callable[[], Awaitable[AsyncQueue]], pace: Pace | None = None):
        self._open_queue = open_queue
        self.pace = pace or Pace()
        self.jobs: dict[str, set[JobWatch]] = {}
        self.batches: dict[str, set[BatchWatch]] = {}
        self.depths: set[DepthWatch] = set()
        self.memory: Memory | None = None
        self.users = 0
        self._cursor = "0-0"
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return not (self.jobs or self.batches or self.depths)

    def watches(self) -> list[Watch]:
        jobs = [watch for group in self.jobs.values() for watch in group]
        flocks = [watch for group in self.batches.values() for watch in group]
        return [*jobs, *flocks, *self.depths]

    async def job(self, job_id: str, since: str) -> JobEnd:
        """Wait until a job has ended; `since` is a place in the events before it was added."""
        watch = JobWatch(since, job_id=job_id)
        group = self.jobs.setdefault(job_id, set())
        group.add(watch)
        self._start(watch)
        try:
            end: JobEnd = await watch.answer
            return end
        finally:
            group.discard(watch)
            if not group and self.jobs.get(job_id) is group:
                del self.jobs[job_id]

    async def batch(self, batch_id: str, since: str) -> AsyncGenerator[BatchSight, None]:
        """Yield what is seen of a batch, at each change, until all of it has ended."""
        watch = BatchWatch(since, batch_id=batch_id)
        group = self.batches.setdefault(batch_id, set())
        group.add(watch)
        self._start(watch)
        try:
            while True:
                await watch.answer
                watch.answer = asyncio.Future()
                assert watch.sight is not None
                yield watch.sight
                if watch.sight.finished:
                    return
        finally:
            group.discard(watch)
            if not group and self.batches.get(batch_id) is group:
                del self.batches[batch_id]

    async def depth(self, every: float) -> AsyncGenerator[Depth, None]:
        """Yield the depth of the queue again and again; all who wait share each look."""
        watch = DepthWatch("0-0", every=every)
        self.depths.add(watch)
        self._start(watch)
        try:
            while True:
                await watch.answer
                watch.answer = asyncio.Future()
                assert watch.depth is not None
                yield watch.depth
        finally:
            self.depths.discard(watch)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _start(self, watch: Watch) -> None:
        now = asyncio.get_running_loop().time()
        watch.census_at = now + self.pace.jitter(self.pace.first_census)
        self._wake.set()
        if self._task is None or self._task.done():
            # A context of its own: this work is not the first waiter's, nor are its log lines.
            context = contextvars.Context()
            self._task = asyncio.get_running_loop().create_task(self._run(), context=context)

    async def _run(self) -> None:
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            started = clock()
            try:
                async with await self._open_queue() as queue:
                    await self._follow(queue)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failures = 1 if clock() - started > _LONGEST_PAUSE else failures + 1
                if not _passing(error, failures):
                    return self._fail(error)
                pause = min(_LONGEST_PAUSE, 0.5 * 2**failures) * random.uniform(0.5, 1.0)
                log.warning("Following is interrupted, next try in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)

    async def _follow(self, queue: AsyncQueue) -> None:
        from airflow_provider_chasqui.triggers.tending import Tender

        await asyncio.sleep(self.pace.gather)  # many triggers start together
        if self.memory is None:
            oldest = min((watch.since for watch in self.watches()), key=position, default="0-0")
            self.memory = Memory(oldest)
            self._cursor = oldest
        for watch in self.watches():
            watch.check_at = 0.0
        listener = asyncio.create_task(self._listen(queue, self.memory))
        tender = asyncio.create_task(Tender(self, queue, self.memory).run())
        try:
            done, _ = await asyncio.wait({listener, tender}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            listener.cancel()
            tender.cancel()
            await asyncio.gather(listener, tender, return_exceptions=True)

    async def _listen(self, queue: AsyncQueue, memory: Memory) -> None:
        block_ms = int(self.pace.block * 1000)
        while True:
            wait = looking.events_wait(queue.keys, self._cursor, _PAGE, block_ms)
            for event in await queue.drive.run(wait):
                self._cursor = event.entry_id
                memory.hear(event)
                self.notice(event)

    def notice(self, event: Event) -> None:
        """Tell those whom an event concerns; they are looked at soon."""
        now = asyncio.get_running_loop().time()
        final = event.name in FINAL
        for watch in self.jobs.get(event.job_id, ()):
            watch.census_at = max(watch.census_at, now + self.pace.census)
            watch.strikes = 0
            if final:
                watch.check_at = 0.0
                self._wake.set()
        if final and self.batches and (place := place_of(event.job_id)):
            for flock in self.batches.get(place.batch, ()):
                flock.heard.hear(place, event.name == "completed")
                flock.census_at = max(flock.census_at, now + self.pace.census)
                flock.strikes = 0
                # A batch in full swing ends a job every millisecond: a look in a while is enough.
                soon = max(now, flock.looked_at + self.pace.batch)
                if soon < flock.check_at:
                    flock.check_at = soon
                    self._wake.set()

    async def woken(self, timeout: float) -> None:
        """Return when there is something to look at, at the latest after `timeout`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        self._wake.clear()

    def _fail(self, error: Exception) -> None:
        for watch in self.watches():
            if not watch.answer.done():
                watch.answer.set_exception(error)


def _passing(error: Exception, failures: int) -> bool:
    """Whether the error may go away by itself. A new password may be in the connection by now."""
    if isinstance(error, LoginRefused):
        return failures < _LOGIN_TRIES
    return isinstance(error, NotConnected) or (
        isinstance(error, ChasquiError) and error.code == "CMQ-001"
    )


_followers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], Follower]] = (
    WeakKeyDictionary()
)


@asynccontextmanager
async def following(
    server: str,
    queue_name: str,
    open_queue: Callable[[], Awaitable[AsyncQueue]],
    pace: Callable[[], Pace] = Pace,
) -> AsyncIterator[Follower]:
    """Lend the follower of a queue; the last one to leave closes it."""
    mine = _followers.setdefault(asyncio.get_running_loop(), {})
    key = (server, queue_name)
    follower = mine.get(key)
    if follower is None:
        follower = mine[key] = Follower(open_queue, pace())
    try:
        follower.users += 1
        yield follower
    finally:
        follower.users -= 1
        if not follower.users:
            if mine.get(key) is follower:
                del mine[key]
            await follower.close()
