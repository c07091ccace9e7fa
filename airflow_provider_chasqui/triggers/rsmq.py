"""RsmqMessageTrigger: wait until an RSMQ queue has a visible message."""

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
    """Trigger that fires once, when a message is visible.

    It receives no message, so a triggerer that dies loses none. A message of a realtime sender ends
    the wait at once. Otherwise the trigger polls, and also when the next hidden message becomes
    visible.

    :param rsmq_queue_name: the RSMQ queue.
    :param namespace: the prefix of the RSMQ keys.
    :param units: "s", or "ms" for queues that the Rust client rsmq_async created.
    :param poll_interval: the seconds between two polls.
    :param deadline: the deadline of the sensor, which the event returns to it.
    :param rsmq_conn_id: the id of the connection.
    """

    rsmq_queue_name: str
    namespace: str = "rsmq"
    units: Any = "s"
    poll_interval: float = 5.0
    deadline: float = 0.0
    rsmq_conn_id: str = DEFAULT_CONN_ID

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when a message is visible, or when the queue does not exist."""
        from airflow_provider_chasqui.redis_client.pubsub import ChannelSubscriber

        hook = RsmqHook(self.rsmq_conn_id, namespace=self.namespace, units=self.units)
        async with await hook.async_client() as client:
            keys = client.flows.keys(self.rsmq_queue_name)
            async with ChannelSubscriber(
                client.connection_manager, keys.hash_tag, keys.channel
            ) as subscriber:
                event = {"deadline": self.deadline} | await self._wait(client, subscriber)
                yield build_event(event, self.rsmq_queue_name)

    async def _wait(self, client: AsyncRsmqClient, subscriber: ChannelSubscriber) -> dict[str, Any]:
        while True:
            try:
                visible, next_visible_ms = await self._check_queue(client)
            except RsmqError as error:
                return {"error": str(error), "reason": error.name}
            except ConnectionFailed as error:
                self.log.warning(
                    "rsmq trigger: cannot read the queue %s, next try in %g s: %s",
                    self.rsmq_queue_name,
                    self.poll_interval,
                    error,
                )
                await asyncio.sleep(self.poll_interval)
                continue
            if visible:
                return {"rsmq_queue_name": self.rsmq_queue_name, "visible": visible}
            await subscriber.wait(self._wait_seconds(next_visible_ms))

    async def _check_queue(self, client: AsyncRsmqClient) -> tuple[int, int | None]:
        """Return the number of visible messages, and when the first message becomes visible."""
        attributes = await client.get_queue_attributes(self.rsmq_queue_name)
        messages = await client.peek_messages(self.rsmq_queue_name, limit=1, include_hidden=True)
        return attributes.visiblemsgs, messages[0].visible_at_ms if messages else None

    def _wait_seconds(self, visible_at_ms: int | None) -> float:
        if visible_at_ms is None:
            return self.poll_interval
        return max(0.01, min(self.poll_interval, visible_at_ms / 1000 - time.time()))
