"""What the API keeps in memory: ways to the servers, what was found there, and how full it was."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Depends, Request

from airflow_provider_chasqui.plugins.api.catalog import Catalog
from airflow_provider_chasqui.plugins.api.history import History, Pulses
from airflow_provider_chasqui.plugins.api.reach import Line, Reach


class State:
    """One for each event loop that serves the app."""

    def __init__(self) -> None:
        self.reach = Reach()
        self.history = History()
        self.pulses = Pulses()
        self._catalogs: dict[str, Catalog] = {}

    def catalog(self, connection_id: str) -> Catalog:
        return self._catalogs.setdefault(connection_id, Catalog())


def _state(request: Request) -> State:
    found: State = request.app.state.chasqui
    return found


Here = Annotated[State, Depends(_state)]


async def _line(connection_id: str, here: Here) -> Line:
    return await here.reach.line(connection_id)


TheLine = Annotated[Line, Depends(_line)]


def now_ms() -> int:
    return time.time_ns() // 1_000_000
