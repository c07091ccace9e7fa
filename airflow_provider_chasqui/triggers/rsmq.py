"""RsmqMessageTrigger: wait until an RSMQ queue has a visible message, and take none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_chasqui.core.errors import NotConnected, RsmqError
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.hooks.rsmq import RsmqHook
from airflow_provider_chasqui.triggers.declared import DeclaredTrigger, fire

if TYPE_CHECKING:
    from airflow_provider_chasqui.rsmq.client import AsyncRsmqClient
    from airflow_provider_chasqui.store.listen import Listener


@dataclass(kw_only=True, eq=False, repr=False)
class RsmqMessageTrigger(DeclaredTrigger):
    """Fires once, when a message can be received.

    A realtime sender wakes it at once; for the others it looks every `poll_interval` seconds, and
    when the next hidden message becomes visible. It takes no message, so a triggerer that dies
    loses none. `until` is the waiter's own deadline, handed back with the event.
    """

    rsmq_queue: str
    namespace: str = "rsmq"
    units: Any = "s"
    poll_interval: float = 5.0
    until: float = 0.0
    rsmq_conn_id: str = DEFAULT_CONN_ID

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from airflow_provider_chasqui.store.listen import Listener

        hook = RsmqHook(self.rsmq_conn_id, namespace=self.namespace, units=self.units)
        async with await hook.async_client() as client:
            keys = client.verbs.keys(self.rsmq_queue)
            async with Listener(client.link, keys.tag, keys.channel) as listener:
                event = {"until": self.until} | await self._wait(client, listener)
                yield fire(event, self.rsmq_queue)

    async def _wait(self, client: AsyncRsmqClient, listener: Listener) -> dict[str, Any]:
        while True:
            try:
                visible, due_ms = await self._look(client)
            except RsmqError as problem:
                return {"error": str(problem), "reason": problem.name}
            except NotConnected as problem:
                self.log.warning("%s", problem)
                await asyncio.sleep(self.poll_interval)
                continue
            if visible:
                return {"rsmq_queue": self.rsmq_queue, "visible": visible}
            await listener.hear(self._nap(due_ms))

    async def _look(self, client: AsyncRsmqClient) -> tuple[int, int | None]:
        visible = (await client.get_queue_attributes(self.rsmq_queue)).visiblemsgs
        first = await client.peek_messages(self.rsmq_queue, limit=1, hidden=True)
        return visible, first[0].visible_at_ms if first else None

    def _nap(self, due_ms: int | None) -> float:
        if due_ms is None:
            return self.poll_interval
        return max(0.01, min(self.poll_interval, due_ms / 1000 - time.time()))
