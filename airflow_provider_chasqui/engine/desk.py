"""What the parts of one consumer share: where they work, and what they hold."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.ops.delivery import Delivery
from airflow_provider_chasqui.engine.context import Run
from airflow_provider_chasqui.engine.metrics import Metrics
from airflow_provider_chasqui.queue import AsyncQueue, wall_clock

# No more is read ahead than would be done in this time, and than fits into so many bytes.
_AHEAD_S = 0.5
_AHEAD_BYTES = 16 * 1024 * 1024


class Desk:
    """The common ground of a consumer's parts.

    `held` has every entry that is ours and not yet settled; the keeper renews it. `busy` counts
    those that a worker must still run: as many as there are workers, and `ahead` more while
    handlers are quick. No job waits behind a slow handler that another consumer could run.
    """

    def __init__(self, queue: AsyncQueue, config: ConsumerConfig):
        self.queue = queue
        self.keys = queue.keys
        self.config = config
        self.group = config.group
        self.consumer = config.consumer_id or f"c-{uuid.uuid4()}"
        self.metrics = Metrics(queue.name)
        self.clock = wall_clock
        self.held: dict[str, Delivery] = {}
        self.lost: set[str] = set()
        self.cancelled: set[str] = set()
        self.cancels_asked = False
        self._settled_meanwhile: list[Sequence[str]] = []
        self.running: dict[str, Run] = {}
        self.stopping = asyncio.Event()
        self.ended = 0
        self.busy = 0
        self.ahead = 0
        self._most_ahead = 0
        self.weighed(1)
        # With that many at hand or fewer, it is time to read again.
        self._enough = config.concurrency - 1
        self._measured = 0
        self._spent_s = 0.0
        self._room = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def stop(self) -> None:
        self.stopping.set()
        self._room.set()

    def took(self, count: int) -> None:
        self.busy += count
        if self.busy:
            self._quiet.clear()

    def weighed(self, entry_bytes: int) -> None:
        """How large entries are at present; large ones are not hoarded."""
        # Two reads: one is under way while the other is worked on.
        self._most_ahead = min(2 * self.config.read_count, _AHEAD_BYTES // max(1, entry_bytes))

    def started(self, run: Run) -> None:
        self.running[run.entry.id] = run

    def finished(self, seconds: float | None = None, count: int = 1) -> None:
        """Entries are out of the workers' hands; after runs of so many seconds, or unrun."""
        if seconds is not None:
            self.ended += count
            self._spent_s += seconds
        self.busy = busy = self.busy - count
        if busy <= self._enough:
            self._room.set()
            if not busy:
                self._quiet.set()

    async def room(self) -> int:
        """Wait until entries can be taken; return how many, 0 if the consumer stops."""
        while not self.stopping.is_set():
            self._look_ahead()
            room = self.config.concurrency + self.ahead - self.busy
            # 0 means a stop to the reader, which would ask again at once, and again.
            if self.busy <= self._enough and room > 0:
                return room
            self._room.clear()
            await self._room.wait()
        return 0

    @property
    def hands_free(self) -> bool:
        """Whether a worker has nothing to do."""
        return self.busy < self.config.concurrency

    async def free_hand(self) -> None:
        """Wait until a worker has nothing to do, or the consumer stops."""
        while not self.hands_free and not self.stopping.is_set():
            self._room.clear()
            await self._room.wait()

    def _look_ahead(self) -> None:
        if ended := self.ended - self._measured:
            self.ahead, config = self._most_ahead, self.config
            if self._spent_s:
                soon = config.concurrency * ended * _AHEAD_S / self._spent_s
                self.ahead = min(self.ahead, int(soon))
            self._enough = config.concurrency + (self.ahead // 2 if self.ahead else -1)
            self._measured, self._spent_s = self.ended, 0.0

    async def quiet(self) -> None:
        """Wait until nothing is left to run."""
        await self._quiet.wait()

    def reads(self) -> None:
        """A read begins: what is settled from here on may yet stand in its reply."""
        self._settled_meanwhile.clear()

    def settled_meanwhile(self, entry_id: str) -> bool:
        """Whether the entry was settled since the read began.

        Losing order: a read takes over an entry of ours that was idle for too long, the settlement
        that was on its way deletes it, its answer arrives first, and the job would run again.
        """
        return any(entry_id in ids for ids in self._settled_meanwhile)

    def settled(self, entry_ids: Sequence[str]) -> None:
        self._settled_meanwhile.append(entry_ids)
        held = self.held
        for entry_id in entry_ids:
            held.pop(entry_id, None)
        if self.lost or self.cancelled:
            self.lost.difference_update(entry_ids)
            self.cancelled.difference_update(entry_ids)

    async def pause(self, seconds: float) -> bool:
        """Sleep, but not past the stop; says whether to go on."""
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return True
        return False
