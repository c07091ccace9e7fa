"""RsmqSensor: wait for messages of an RSMQ queue."""

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
    """Waits until an RSMQ queue has a visible message, and returns up to `max_messages` of them.

    :param rsmq_queue_name: the queue.
    :param receive_mode: "receive" hides them for `vt` seconds, and whoever handles them must delete them;
        "pop" deletes them at once; "peek" leaves them where they are.
    :param deferrable: wait in the triggerer, holding no worker slot. A realtime sender wakes it at
        once, else it looks every `poke_interval` seconds.
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
                f"receive_mode is 'receive', 'pop' or 'peek', not {receive_mode!r}"
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
        if not self.deferrable:
            return super().execute(context)
        return self._receive_or_defer(time.time() + self.timeout)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Take the messages that the trigger saw; if somebody was faster, wait again."""
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
        with fail_without_retry():
            messages = self._fetch_messages()
        return PokeReturnValue(bool(messages), messages)

    def _fetch_messages(self) -> list[dict[str, Any]]:
        with RsmqHook(self.rsmq_conn_id, namespace=self.namespace, units=self.units) as hook:
            if self.receive_mode == "peek":
                found = hook.peek_messages(self.rsmq_queue_name, limit=self.max_messages)
            else:
                found = self._receive(hook.client)
        return [_to_xcom(message) for message in found]

    def _receive(self, client: RsmqClient) -> list[RsmqMessage]:
        found: list[RsmqMessage] = []
        seen: set[str] = set()
        while len(found) < self.max_messages:
            if self.receive_mode == "pop":
                message = client.pop_message(self.rsmq_queue_name)
            else:
                message = client.receive_message(self.rsmq_queue_name, vt=self.vt)
            if message is None or message.id in seen:  # with vt 0 the same one comes again
                break
            seen.add(message.id)
            found.append(message)
        return found


def _to_xcom(message: RsmqMessage) -> dict[str, Any]:
    return {
        name: value
        for name, value in asdict(message).items()
        if name not in ("raw", "visible_at_ms")
    }
