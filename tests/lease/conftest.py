"""Fixtures and configurations of the tests of leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.lease import Lease, LeaseConfig, LeaseQueue

MS = timedelta(milliseconds=1)
LONG = timedelta(seconds=30)
# The arguments of `LeaseConfig` for each mode.
SHARED: dict[str, Any] = {}
EXCLUSIVE: dict[str, Any] = {"mode": "exclusive"}
ORDERED: dict[str, Any] = EXCLUSIVE | {"ordered": True, "on_max_deliveries": "block"}
# A job may be delivered once, so that a delivery that was counted but not made is noticed.
SHARED_ONCE, EXCLUSIVE_ONCE, ORDERED_ONCE = (
    mode | {"max_deliveries": 1} for mode in (SHARED, EXCLUSIVE, ORDERED)
)
Leasing = Callable[..., LeaseQueue]


def payloads(leases: Iterable[Lease]) -> list[Any]:
    """Return the payloads of leases."""
    return [lease.payload for lease in leases]


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
