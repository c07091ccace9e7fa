"""A worker that takes over an entry of its own, because it was too slow to renew it."""

from __future__ import annotations

from airflow_provider_chasqui.core.ops import delivery
from airflow_provider_chasqui.engine.consumer import Crew
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.queue import AsyncQueue
from tests.engine.conftest import settings


async def test_what_is_settled_while_a_read_takes_it_over_does_not_run_again(
    queue: AsyncQueue,
) -> None:
    async def handle(job) -> None:
        pass

    crew = Crew(queue, Handlers(handle), settings(claim_idle_ms=1))
    desk, reader, channel = crew.desk, crew._reader, crew._workers.channel
    await queue.drive.run(delivery.make_group(desk.keys, desk.group))
    await queue.add_many([{"payload": 1}, {"payload": 2}])
    await reader._turn()
    (first, _), (second, _) = channel.drain()
    # The reply to this read is still on its way when the answer to the settlement arrives.
    desk.reads()
    taken_over = await reader._read(10, 0)
    while len(taken_over) < 2:
        taken_over = await reader._read(10, 0)
    await queue.drive.run(delivery.settle(desk.keys, desk.group, [first.id]))
    desk.settled([first.id])
    await reader._take(taken_over)
    assert not channel.items, "the first is settled, the second is still ours"
    # A read that begins later cannot bring what is gone, only what was left.
    desk.held.pop(second.id)
    desk.reads()
    await reader._take(taken_over[1:])
    assert [entry.id for entry, _ in channel.drain()] == [second.id]
    await crew._lane.close()
