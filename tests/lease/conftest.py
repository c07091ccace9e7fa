"""Fixtures: lease queues on every server, and the clock of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue

MS = timedelta(milliseconds=1)
LONG = timedelta(seconds=30)
Leasing = Callable[..., LeaseQueue]


@pytest.fixture
def leasing(server: Any, queue_name: str) -> Iterator[Leasing]:
    """Open the queue for leasing; keyword arguments are those of `LeaseConfig`."""
    opened: list[LeaseQueue] = []

    def open_one(**settings: Any) -> LeaseQueue:
        config = LeaseConfig(**settings)
        opened.append(LeaseQueue(queue_name, server.url, dialect=server.dialect, config=config))
        return opened[-1]

    yield open_one
    for lease_queue in opened:
        lease_queue.close()
