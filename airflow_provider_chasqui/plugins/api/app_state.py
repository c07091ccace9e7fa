"""What the API keeps in memory: ways to the servers, what was found there, and how full it was."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Depends, Request

from airflow_provider_chasqui.plugins.api.depth_history import DepthHistory, ThroughputCache
from airflow_provider_chasqui.plugins.api.queue_discovery import QueueDiscovery
from airflow_provider_chasqui.plugins.api.server_pool import ServerConnection, ServerPool


class AppState:
    """One for each event loop that serves the app."""

    def __init__(self) -> None:
        self.server_pool = ServerPool()
        self.depth_history = DepthHistory()
        self.throughput_cache = ThroughputCache()
        self._discoveries: dict[str, QueueDiscovery] = {}

    def queue_discovery(self, connection_id: str) -> QueueDiscovery:
        return self._discoveries.setdefault(connection_id, QueueDiscovery())


def _get_app_state(request: Request) -> AppState:
    found: AppState = request.app.state.chasqui
    return found


AppStateDep = Annotated[AppState, Depends(_get_app_state)]


async def _get_server(connection_id: str, app_state: AppStateDep) -> ServerConnection:
    return await app_state.server_pool.get(connection_id)


ServerDep = Annotated[ServerConnection, Depends(_get_server)]


def now_ms() -> int:
    return time.time_ns() // 1_000_000
