"""Queue provider of `MessageQueueTrigger(scheme="chasqui", queue_name=...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class ChasquiMessageQueueProvider(BaseMessageQueueProvider):
    """Provider of Chasqui queues for Airflow's common messaging."""

    scheme = "chasqui"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger that consumes messages of a queue."""
        from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger

        return ChasquiMessageTrigger
