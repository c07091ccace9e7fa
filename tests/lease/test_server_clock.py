"""Tests of leases while the clock of the server jumps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest

from airflow_provider_chasqui.lease import LeaseConfig, LeaseQueue
from tests.conftest import Server
from tests.lease.conftest import EXCLUSIVE, ORDERED, SHARED, payloads
from tests.support.redis_state import plain_client
from tests.support.server_clock import MovableClock
from tests.support.waiting import wait_until

TIMES = {"claim_after": timedelta(seconds=2), "visibility_timeout": timedelta(seconds=2)}


@pytest.fixture(params=[SHARED, EXCLUSIVE, ORDERED], ids=["shared", "exclusive", "ordered"])
def consumers(
    request: pytest.FixtureRequest, clock_server: Server, queue_name: str
) -> Iterator[tuple[LeaseQueue, LeaseQueue]]:
    """Two processes that lease from the same queue."""
    config = LeaseConfig(**request.param | TIMES)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                LeaseQueue(
                    queue_name, clock_server.url, config=config, dialect=clock_server.dialect
                )
            )
            for _ in range(2)
        )
        yield first, second


def test_leases_are_not_taken_over_after_a_jump_of_the_clock(
    consumers: tuple[LeaseQueue, LeaseQueue], clock_server: Server, server_clock: MovableClock
) -> None:
    holder, other = consumers
    holder.produce(["held"])
    [lease] = holder.lease("holder")
    assert other.lease("other") == []
    server_clock.move(3600)
    holder.produce(["new"])
    # Only one consumer at a time leases from an ordered queue.
    new = (holder if holder.config.ordered else other).lease("holder", 10)
    assert payloads(new) == ["new"]
    holder.ack(*new)
    # The call waits; it does not poll for the entry that looks idle.
    with plain_client(clock_server.url) as client:
        client.config_resetstat()
        assert other.lease("other", wait=timedelta(seconds=1)) == []
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] < 10
    [lease] = holder.extend(lease)
    # The holder does not extend the lease again.
    assert payloads(wait_until(lambda: other.lease("other"))) == ["held"]
