"""RsmqSensor: wait for messages in an RSMQ queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowFailException, conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.hooks.rsmq import RsmqHook
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.core.rsmq_types import RsmqMessage
    from airflow_provider_chasqui.rsmq.client import RsmqClient

ReceiveMode = Literal["receive", "pop", "peek"]


class RsmqSensor(BaseSensorOperator):
    """Wait until an RSMQ queue has a visible message, and return messages.

    :param rsmq_queue_name: the RSMQ queue.
    :param receive_mode: "receive" hides the messages for `vt`, and a later task must delete them;
        "pop" deletes them at once; "peek" does not change them.
    :param max_messages: the maximum number of messages.
    :param vt: the seconds, or the timedelta, for which received messages are hidden. Default: the
        setting of the queue.
    :param namespace: the prefix of the RSMQ keys.
    :param units: "s", or "ms" for queues that the Rust client rsmq_async created.
    :param deferrable: wait in the triggerer, without a worker slot. A message of a realtime sender
        ends the wait at once. Otherwise the trigger polls every `poke_interval` seconds.
    :param rsmq_conn_id: the id of the connection.
    """

    template_fields: Sequence[str] = ("rsmq_queue_name", "namespace", "rsmq_conn_id")
    ui_color = "#d9e6ea"

    def __init__(
        self,
        *,
        rsmq_queue_name: str,
        receive_mode: ReceiveMode = "receive",
        max_messages: int = 1,
        vt: int | timedelta | None = None,
        namespace: str = "rsmq",
        units: Any = "s",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        rsmq_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if receive_mode not in ("receive", "pop", "peek"):
            raise InvalidArgument(
                f"receive_mode must be 'receive', 'pop' or 'peek', not {receive_mode!r}"
            )
        if max_messages < 1:
            raise InvalidArgument(f"max_messages must be at least 1, not {max_messages}")
        self.rsmq_queue_name = rsmq_queue_name
        self.receive_mode = receive_mode
        self.max_messages = max_messages
        self.vt = vt
        self.namespace = namespace
        self.units = units
        self.deferrable = deferrable
        self.rsmq_conn_id = rsmq_conn_id

    def execute(self, context: Context) -> Any:
        """Return messages, or defer until one is visible."""
        if not self.deferrable:
            return super().execute(context)
        return self._receive_or_defer(time.time() + self.timeout)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Receive the messages, or defer again if another client received them first.

        :param event: the event of RsmqMessageTrigger.
        """
        if "error" in event:
            raise AirflowFailException(event["error"])
        return self._receive_or_defer(event["deadline"])

    def _receive_or_defer(self, deadline: float) -> Any:
        with fail_without_retry():
            messages = self._fetch_messages()
        if messages:
            return messages
        from airflow_provider_chasqui.triggers.rsmq import RsmqMessageTrigger

        trigger = RsmqMessageTrigger(
            rsmq_queue_name=self.rsmq_queue_name,
            namespace=self.namespace,
            units=self.units,
            poll_interval=self.poke_interval,
            deadline=deadline,
            rsmq_conn_id=self.rsmq_conn_id,
        )
        return self.defer(
            trigger=trigger,
            method_name="execute_complete",
            timeout=timedelta(seconds=max(0.1, deadline - time.time())),
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Return whether a message was visible, and the messages."""
        with fail_without_retry():
            messages = self._fetch_messages()
        return PokeReturnValue(bool(messages), messages)

    def _fetch_messages(self) -> list[dict[str, Any]]:
        with RsmqHook(self.rsmq_conn_id, namespace=self.namespace, units=self.units) as hook:
            client = hook.get_conn()
            if self.receive_mode == "peek":
                messages = client.peek_messages(self.rsmq_queue_name, limit=self.max_messages)
            else:
                messages = self._receive(client)
        return [_to_xcom(message) for message in messages]

    def _receive(self, client: RsmqClient) -> list[RsmqMessage]:
        messages: dict[str, RsmqMessage] = {}
        while len(messages) < self.max_messages:
            if self.receive_mode == "pop":
                message = client.pop_message(self.rsmq_queue_name)
            else:
                message = client.receive_message(self.rsmq_queue_name, vt=self.vt)
            if message is None or message.id in messages:  # vt=0 returns the same message again
                break
            messages[message.id] = message
        return list(messages.values())


def _to_xcom(message: RsmqMessage) -> dict[str, Any]:
    return {
        name: value
        for name, value in asdict(message).items()
        if name not in ("raw", "visible_at_ms")
    }
