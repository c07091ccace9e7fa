"""Lease queues on every server, and a clock that is the server's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue
from airflow_provider_chasqui.queue import Queue

MS = timedelta(milliseconds=1)
LONG = timedelta(seconds=30)


@pytest.fixture
def queue(server: Any, queue_name: str) -> Iterator[Queue]:
    """The same queue as its producers see it."""
    with Queue(queue_name, server.url, dialect=server.dialect) as queue:
        yield queue


@pytest.fixture
def leasing(server: Any, queue_name: str) -> Iterator[Callable[..., LeaseQueue]]:
    """Open the queue for leasing: `leasing(mode="exclusive", ordered=True, poison="block")`."""
    opened: list[LeaseQueue] = []

    def open_one(**settings: Any) -> LeaseQueue:
        config = LeaseConfig(**settings)
        opened.append(LeaseQueue(queue_name, server.url, dialect=server.dialect, config=config))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def until(condition: Callable[[], Any], seconds: float = 10) -> Any:
    """Wait for a condition and return what it said."""
    deadline = time.monotonic() + seconds
    while not (said := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)
    return said
