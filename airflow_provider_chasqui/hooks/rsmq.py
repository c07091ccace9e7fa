"""RsmqHook: a client of RSMQ queues from an Airflow connection."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseHook

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.hooks._connection import parse_connection, parse_connection_async
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from airflow_provider_chasqui.core.rsmq_types import TimeUnit
    from airflow_provider_chasqui.rsmq.client import RsmqClient
    from airflow_provider_chasqui.rsmq.client_async import AsyncRsmqClient


class RsmqHook(BaseHook):
    """Hook that connects to the RSMQ queues of a connection of type `chasqui`.

    Example::

        with RsmqHook() as hook:
            hook.get_conn().send_message("emails", "hello")

    :param rsmq_conn_id: the id of the connection.
    :param namespace: the prefix of the keys. All clients of a queue must use the same one.
    :param realtime: publish every sent message on the channel of the queue.
    :param units: "s", or "ms" for queues that the Rust client rsmq_async created.
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
        """The client, created at the first use."""
        from airflow_provider_chasqui.rsmq.client import RsmqClient

        connection = self.get_connection(self.rsmq_conn_id)
        return RsmqClient(parse_connection(connection).target, **self._options)

    def get_conn(self) -> RsmqClient:
        """Return the client. The hook closes it."""
        return self.client

    async def async_client(self) -> AsyncRsmqClient:
        """Return a new client for the running event loop. The caller closes it."""
        from airflow_provider_chasqui.rsmq.client_async import AsyncRsmqClient

        connection = await self.aget_connection(self.rsmq_conn_id)
        settings = await parse_connection_async(connection)
        return AsyncRsmqClient(settings.target, **self._options)

    def test_connection(self) -> tuple[bool, str]:
        """Connect to the server and count the queues.

        :return: whether it succeeded, and a message for the user.
        """
        try:
            client = self.get_conn()
            count = len(client.list_queues())
            return True, f"Connected to {client.target.display_name}: {count} queues."
        except ChasquiError as error:
            return False, str(error)
        finally:
            self.close()

    def close(self) -> None:
        """Release the connections. The hook can be used again."""
        client = self.__dict__.pop("client", None)
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
