"""An entry that is trimmed while its job runs: the outcome is written, and nothing stays pending.

A producer of another program that adds with MAXLEN trims the oldest entries, which are the running
ones.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.outcome import Unrecoverable
from airflow_provider_chasqui.engine import heartbeat
from tests.engine.conftest import working
from tests.support.redis_state import plain_client
from tests.support.waiting import wait_until_async

CLAIM_AFTER = timedelta(milliseconds=600)


async def test_the_outcome_of_a_trimmed_running_job_is_written(queue, server):
    """The heartbeat renews the claim several times while the handlers run."""
    started = 0
    release = asyncio.Event()

    async def handle(job) -> None:
        nonlocal started
        started += 1
        if job.attempt == 0:
            await release.wait()
        if job.payload == "die":
            raise Unrecoverable("as instructed")
        if job.payload == "fail" and job.attempt == 0:
            raise RuntimeError("as instructed")

    await queue.add_batch(["ok", "fail", "die"], batch_id="b")
    async with working(queue, handle, claim_after=CLAIM_AFTER) as consumer:
        await wait_until_async(lambda: started == 3)
        with plain_client(server.url) as client:
            client.xtrim(queue.keys.stream, maxlen=0, approximate=False)
        await asyncio.sleep(1.5)
        release.set()
        progress = await queue.wait_batch("b", timeout=timedelta(seconds=10))
        assert (progress.done, progress.dead) == (2, 1)
        assert started == 4
        assert consumer.metrics.counts["already_acked"] == 0
    assert (await queue.depth()).running == 0


async def test_trimmed_entries_of_a_dead_worker_are_removed_and_reported(
    queue, server, caplog, monkeypatch
):
    monkeypatch.setattr(heartbeat, "_CLEANUP_INTERVAL_S", 0.5)
    caplog.set_level(logging.WARNING, "chasqui")
    await queue.client.execute(consumer_group.create(queue.keys, "default"))
    await queue.add(1)
    await queue.client.execute(consumer_group.read(queue.keys, "default", "dead", 1, 0))
    with plain_client(server.url) as client:
        client.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    ttl = timedelta(milliseconds=700)
    async with working(queue, lambda job: None, claim_after=CLAIM_AFTER, consumer_idle_ttl=ttl):
        await wait_until_async(lambda: _only_one_consumer(queue))
    assert (await queue.depth()).running == 0
    assert "heartbeat: 1 jobs" in caplog.text


async def _only_one_consumer(queue) -> bool:
    return "dead" not in [consumer.name for consumer in await queue.consumers()]
