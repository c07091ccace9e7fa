"""RsmqHook: RSMQ queues from an Airflow connection."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseHook

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.hooks._connection import parse_connection
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.rsmq_types import (
        RsmqMessage,
        RsmqQueueAttributes,
        SecondsInput,
        TimeUnit,
    )
    from airflow_provider_chasqui.rsmq.client import RsmqClient
    from airflow_provider_chasqui.rsmq.client_async import AsyncRsmqClient


class RsmqHook(BaseHook):
    """RSMQ's verbs on the server of a connection of type `chasqui`.

        with RsmqHook() as hook:
            hook.send_message("emails", "hello")

    :param rsmq_conn_id: the connection.
    :param namespace: what the keys begin with; every client of the queues must say the same.
    :param realtime: publish every send, for those who listen.
    :param units: "ms" for queues that the Rust client rsmq_async made.
    """

    conn_name_attr = "rsmq_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "chasqui"
    hook_name = "RSMQ"

    def __init__(
        self,
        rsmq_conn_id: str = DEFAULT_CONN_ID,
        *,
        namespace: str = "rsmq",
        realtime: bool = False,
        units: TimeUnit = "s",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rsmq_conn_id = rsmq_conn_id
        self._options: dict[str, Any] = {
            "namespace": namespace,
            "realtime": realtime,
            "units": units,
        }

    @cached_property
    def client(self) -> RsmqClient:
        """The client, made when it is first needed."""
        from airflow_provider_chasqui.rsmq.client import RsmqClient

        connection = self.get_connection(self.rsmq_conn_id)
        return RsmqClient(parse_connection(connection).target, **self._options)

    def get_conn(self) -> RsmqClient:
        return self.client

    async def async_client(self) -> AsyncRsmqClient:
        """Return a new client for the running event loop; the caller closes it."""
        from airflow_provider_chasqui.rsmq.client_async import AsyncRsmqClient

        connection = await self.aget_connection(self.rsmq_conn_id)
        return AsyncRsmqClient(parse_connection(connection).target, **self._options)

    def create_queue(
        self,
        qname: str,
        *,
        vt: SecondsInput | None = None,
        delay: SecondsInput | None = None,
        maxsize: int | None = None,
    ) -> int:
        """Create a queue."""
        return self.client.create_queue(qname, vt=vt, delay=delay, maxsize=maxsize)

    def list_queues(self) -> list[str]:
        """Return the names of all queues, in no order."""
        return self.client.list_queues()

    def delete_queue(self, qname: str) -> int:
        """Delete a queue and all its messages."""
        return self.client.delete_queue(qname)

    def get_queue_attributes(self, qname: str) -> RsmqQueueAttributes:
        """Return a queue's settings and counts."""
        return self.client.get_queue_attributes(qname)

    def set_queue_attributes(
        self,
        qname: str,
        *,
        vt: SecondsInput | None = None,
        delay: SecondsInput | None = None,
        maxsize: int | None = None,
    ) -> RsmqQueueAttributes:
        """Change what is given and return the new attributes."""
        return self.client.set_queue_attributes(qname, vt=vt, delay=delay, maxsize=maxsize)

    def send_message(self, qname: str, message: str, *, delay: SecondsInput | None = None) -> str:
        """Send a string and return its id."""
        return self.client.send_message(qname, message, delay=delay)

    def receive_message(self, qname: str, *, vt: SecondsInput | None = None) -> RsmqMessage | None:
        """Return the first visible message and hide it for a while."""
        return self.client.receive_message(qname, vt=vt)

    def pop_message(self, qname: str) -> RsmqMessage | None:
        """Return the first visible message and delete it."""
        return self.client.pop_message(qname)

    def delete_message(self, qname: str, message_id: str) -> int:
        """Delete a message; 1, or 0 if there is none."""
        return self.client.delete_message(qname, message_id)

    def change_message_visibility(self, qname: str, message_id: str, *, vt: SecondsInput) -> int:
        """Let a message become visible `vt` seconds from now; 1, or 0 if there is none."""
        return self.client.change_message_visibility(qname, message_id, vt=vt)

    def peek_messages(
        self, qname: str, *, limit: int = 10, hidden: bool = False
    ) -> list[RsmqMessage]:
        """Return messages without receiving them."""
        return self.client.peek_messages(qname, limit=limit, include_hidden=hidden)

    def test_connection(self) -> tuple[bool, str]:
        """Reach the server and look for queues."""
        try:
            return (
                True,
                f"Connected to {self.client.target.display_name}: {len(self.list_queues())} queues.",
            )
        except ChasquiError as problem:
            return False, str(problem)
        finally:
            self.close()

    def close(self) -> None:
        """Give the connections back; the hook can be used again."""
        client = self.__dict__.pop("client", None)
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
