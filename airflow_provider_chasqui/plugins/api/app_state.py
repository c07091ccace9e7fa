"""The state that the API keeps in memory, and the dependencies through which routes get it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from airflow_provider_chasqui.engine.queue_discovery import QueueDiscovery
from airflow_provider_chasqui.plugins.api.depth_history import DepthHistory, ThroughputCache
from airflow_provider_chasqui.plugins.api.server_pool import ServerConnection, ServerPool


class AppState:
    """Server connections, depth history, throughput and discovered queues of one app."""

    def __init__(self) -> None:
        self.server_pool = ServerPool()
        self.depth_history = DepthHistory()
        self.throughput_cache = ThroughputCache()
        self._discoveries: dict[str, QueueDiscovery] = {}

    def queue_discovery(self, connection_id: str) -> QueueDiscovery:
        """Return the queue discovery of a connection; it is created on first use.

        :param connection_id: the id of the Airflow connection.
        """
        return self._discoveries.setdefault(connection_id, QueueDiscovery())


def _get_app_state(request: Request) -> AppState:
    app_state: AppState = request.app.state.chasqui
    return app_state


AppStateDep = Annotated[AppState, Depends(_get_app_state)]


async def _get_server(connection_id: str, app_state: AppStateDep) -> ServerConnection:
    return await app_state.server_pool.get(connection_id)


ServerDep = Annotated[ServerConnection, Depends(_get_server)]
