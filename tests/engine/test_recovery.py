"""Test of a worker that reclaims its own entry because it renewed the claim too late."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.engine.consumer import ConsumerRuntime
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import settings


async def test_an_entry_acked_while_a_read_reclaims_it_does_not_run_again(
    queue: AsyncQueue,
) -> None:
    async def handle(job) -> None:
        pass

    runtime = ConsumerRuntime(
        queue, Handlers(handle), settings(claim_after=timedelta(milliseconds=1))
    )
    state, reader, buffer = runtime.state, runtime._reader, runtime._async_executor.buffer
    await queue.client.execute(consumer_group.create(state.keys, state.group))
    await queue.add_many([{"payload": 1}, {"payload": 2}])
    await reader._read_and_dispatch()
    (first, _), (second, _) = buffer.take_all()
    # The reply to the ack arrives before the reply to this read.
    state.read_started()
    reclaimed = await reader._read(10, 0)
    while len(reclaimed) < 2:
        reclaimed = await reader._read(10, 0)
    await queue.client.execute(consumer_group.ack(state.keys, state.group, [first.id]))
    state.forget_entries([first.id])
    await reader._accept_entries(reclaimed)
    assert not buffer.items, "the first entry is acked, the second is still in flight"
    # A read that starts after the ack returns only entries that still exist.
    state.in_flight.pop(second.id)
    state.read_started()
    await reader._accept_entries(reclaimed[1:])
    assert [entry.id for entry, _ in buffer.take_all()] == [second.id]
    await runtime._reader_client.close()
