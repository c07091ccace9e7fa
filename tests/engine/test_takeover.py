"""A worker that takes over an entry of its own, because it was too slow to renew it."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.engine.consumer import ConsumerRuntime
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.engine.conftest import settings


async def test_what_is_settled_while_a_read_takes_it_over_does_not_run_again(
    queue: AsyncQueue,
) -> None:
    async def handle(job) -> None:
        pass

    crew = ConsumerRuntime(queue, Handlers(handle), settings(claim_after=timedelta(milliseconds=1)))
    desk, reader, channel = crew.state, crew._reader, crew._async_executor.buffer
    await queue.client.execute(consumer_group.create(desk.keys, desk.group))
    await queue.add_many([{"payload": 1}, {"payload": 2}])
    await reader._read_and_dispatch()
    (first, _), (second, _) = channel.take_all()
    # The reply to this read is still on its way when the answer to the settlement arrives.
    desk.read_started()
    taken_over = await reader._read(10, 0)
    while len(taken_over) < 2:
        taken_over = await reader._read(10, 0)
    await queue.client.execute(consumer_group.ack(desk.keys, desk.group, [first.id]))
    desk.mark_acked([first.id])
    await reader._accept_entries(taken_over)
    assert not channel.items, "the first is settled, the second is still ours"
    # A read that begins later cannot bring what is gone, only what was left.
    desk.in_flight.pop(second.id)
    desk.read_started()
    await reader._accept_entries(taken_over[1:])
    assert [entry.id for entry, _ in channel.take_all()] == [second.id]
    await crew._reader_client.close()
