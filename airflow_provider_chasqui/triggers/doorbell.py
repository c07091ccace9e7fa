"""ChasquiDoorbellTrigger: rings while a queue holds messages, and takes none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_chasqui.core.errors import BadInput, LoginRefused, StoreError, WrongType
from airflow_provider_chasqui.core.ops import watching
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.hooks.stats import in_triggerer
from airflow_provider_chasqui.triggers.declared import DeclaredTrigger

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue import AsyncQueue

_BLOCK_MS = 5000


@dataclass(kw_only=True, eq=False, repr=False)
class ChasquiDoorbellTrigger(DeclaredTrigger, BaseEventTrigger):
    """Fires an event at the first message, and again every `ring_every` seconds while any is left.

    The event carries no message: the run that it starts leases some (see `leased_messages`), and
    what it does not hand in comes back. So a burst strands nothing, a paused DAG loses nothing, and
    unpausing rings. `lease` is how long a run may take, in seconds; all who lease from the queue
    use the same.
    """

    queue_name: str
    lease: float = 3600.0
    ring_every: float = 15.0
    chasqui_conn_id: str = DEFAULT_CONN_ID

    def __post_init__(self) -> None:
        BaseEventTrigger.__init__(self)
        if self.lease <= 0 or self.ring_every <= 0:
            raise BadInput("lease= and ring_every= are seconds, above 0")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        queue = await ChasquiHook(self.chasqui_conn_id).async_queue(self.queue_name)
        try:
            while True:
                left = await self._left(queue)
                if not left:
                    continue
                in_triggerer.count("doorbell_rings", 1, self.queue_name)
                yield TriggerEvent({"queue_name": self.queue_name, "waiting": left})
                await asyncio.sleep(self.ring_every)
        finally:
            await queue.close()

    async def _left(self, queue: AsyncQueue) -> int:
        """How many messages there are; with none, come back when one may be there."""
        try:
            life_ms = int(self.lease * 1000)
            left = await queue.drive.flow(watching.left(queue.keys, queue.config.group, life_ms))
            if not left:
                # Bounded, because neither a lease that runs out nor a delay that ends wakes it.
                block_ms = min(_BLOCK_MS, int(self.ring_every * 1000))
                await queue.drive.run(watching.next_entry(queue.keys, block_ms))
            return left
        except (LoginRefused, WrongType):
            raise
        except StoreError as error:
            in_triggerer.count("trigger_errors", 1, self.queue_name)
            self.log.warning("The doorbell of %s waits: %s", self.queue_name, error)
            await asyncio.sleep(self.ring_every)
            return 0
