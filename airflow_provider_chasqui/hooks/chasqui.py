"""ChasquiHook: queues, leases and the whole engine from an Airflow connection."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseHook

from airflow_provider_chasqui.core.errors import BadInput, ChasquiError
from airflow_provider_chasqui.hooks.connection import ChasquiConnection, read_connection

if TYPE_CHECKING:
    from airflow_provider_chasqui.queue import AsyncQueue, Queue
    from airflow_provider_chasqui.store.connect import Link

DEFAULT_CONN_ID = "chasqui_default"


class ChasquiHook(BaseHook):
    """The doorway to the queues of one connection.

    Queues of a hook share its connections; `close`, or using the hook in a `with`, gives them back.

        with ChasquiHook() as hook:
            hook.queue("emails").add({"to": "ada@example.org"})
    """

    conn_name_attr = "chasqui_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "chasqui"
    hook_name = "Chasqui"

    def __init__(self, chasqui_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.chasqui_conn_id = chasqui_conn_id
        self._queues: dict[str, Queue] = {}

    @cached_property
    def settings(self) -> ChasquiConnection:
        """What the connection says, looked up once."""
        return read_connection(self.get_connection(self.chasqui_conn_id))

    async def aget_settings(self) -> ChasquiConnection:
        """What the connection says, looked up without blocking the event loop."""
        if "settings" not in self.__dict__:
            connection = await self.aget_connection(self.chasqui_conn_id)
            self.__dict__["settings"] = read_connection(connection)
        return self.settings

    @cached_property
    def _link(self) -> Link:
        from airflow_provider_chasqui.store.connect import Link

        return Link(self.settings.target)

    def get_conn(self) -> Queue:
        """Return the queue that the connection names."""
        return self.queue()

    def queue(self, queue_name: str | None = None) -> Queue:
        """Return a queue; without a name the one that the connection names."""
        name = self._name(queue_name, self.settings)
        if name not in self._queues:
            from airflow_provider_chasqui.queue import Queue

            config, dialect = self.settings.config, self.settings.dialect
            self._queues[name] = Queue(name, self._link, config=config, dialect=dialect)
        return self._queues[name]

    async def async_queue(self, queue_name: str | None = None) -> AsyncQueue:
        """Return a new queue for the running event loop; the caller closes it."""
        from airflow_provider_chasqui.queue import AsyncQueue

        settings = await self.aget_settings()
        name = self._name(queue_name, settings)
        return AsyncQueue(name, settings.target, config=settings.config, dialect=settings.dialect)

    async def aget_conn(self) -> AsyncQueue:
        """Return the queue that the connection names, for the running event loop."""
        return await self.async_queue()

    def test_connection(self) -> tuple[bool, str]:
        """Reach the server, log in, try the rights; say what is there or what to fix."""
        from airflow_provider_chasqui.hooks.check import check

        try:
            queue = self.queue(self.settings.queue_name or "connection-test")
            return True, check(queue, self.settings.target.where)
        except ChasquiError as problem:
            return False, str(problem)
        finally:
            self.close()

    def close(self) -> None:
        """Give the connections back; the hook can be used again."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.close()
        link = self.__dict__.pop("_link", None)
        if link is not None:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _name(self, queue_name: str | None, settings: ChasquiConnection) -> str:
        name = queue_name or settings.queue_name
        if not name:
            raise BadInput(
                f"say which queue: pass queue_name, or set it in the connection "
                f"{self.chasqui_conn_id!r}"
            )
        return name
