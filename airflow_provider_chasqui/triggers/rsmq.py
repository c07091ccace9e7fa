"""RsmqMessageTrigger: wait until an RSMQ queue has a visible message, and take none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_chasqui.core.errors import ConnectionFailed, RsmqError
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.hooks.rsmq import RsmqHook
from airflow_provider_chasqui.triggers._base import DataclassTrigger, build_event

if TYPE_CHECKING:
    from airflow_provider_chasqui.redis_client.pubsub import ChannelSubscriber
    from airflow_provider_chasqui.rsmq.client_async import AsyncRsmqClient


@dataclass(kw_only=True, eq=False, repr=False)
class RsmqMessageTrigger(DataclassTrigger):
    """Fires once, when a message can be received.

    A realtime sender wakes it at once; for the others it looks every `poll_interval` seconds, and
    when the next hidden message becomes visible. It takes no message, so a triggerer that dies
    loses none. `until` is the waiter's own deadline, handed back with the event.
    """

    rsmq_queue_name: str
    namespace: str = "rsmq"
    units: Any = "s"
    poll_interval: float = 5.0
    deadline: float = 0.0
    rsmq_conn_id: str = DEFAULT_CONN_ID

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from airflow_provider_chasqui.redis_client.pubsub import ChannelSubscriber

        hook = RsmqHook(self.rsmq_conn_id, namespace=self.namespace, units=self.units)
        async with await hook.async_client() as client:
            keys = client.flows.keys(self.rsmq_queue_name)
            async with ChannelSubscriber(
                client.connection_manager, keys.hash_tag, keys.channel
            ) as listener:
                event = {"deadline": self.deadline} | await self._wait(client, listener)
                yield build_event(event, self.rsmq_queue_name)

    async def _wait(self, client: AsyncRsmqClient, listener: ChannelSubscriber) -> dict[str, Any]:
        while True:
            try:
                visible, due_ms = await self._check_queue(client)
            except RsmqError as problem:
                return {"error": str(problem), "reason": problem.name}
            except ConnectionFailed as problem:
                self.log.warning("%s", problem)
                await asyncio.sleep(self.poll_interval)
                continue
            if visible:
                return {"rsmq_queue_name": self.rsmq_queue_name, "visible": visible}
            await listener.wait(self._wait_seconds(due_ms))

    async def _check_queue(self, client: AsyncRsmqClient) -> tuple[int, int | None]:
        visible = (await client.get_queue_attributes(self.rsmq_queue_name)).visiblemsgs
        first = await client.peek_messages(self.rsmq_queue_name, limit=1, include_hidden=True)
        return visible, first[0].visible_at_ms if first else None

    def _wait_seconds(self, visible_at_ms: int | None) -> float:
        if visible_at_ms is None:
            return self.poll_interval
        return max(0.01, min(self.poll_interval, visible_at_ms / 1000 - time.time()))
