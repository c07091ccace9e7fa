"""Cancelling batches with `Queue`: cost, fencing, lost replies, refused adds."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import BatchCancelled, BatchNotFound
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.support.proxy import HoldAt, TcpProxy
from tests.support.redis_state import dump


def count_calls(client: Any) -> dict[str, int]:
    """Return how often each command ran, also inside scripts."""
    statistics = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in statistics.items()}


@pytest.mark.parametrize("jobs", [1000, 50_000])
def test_the_cost_of_a_cancel_does_not_depend_on_the_number_of_jobs(queue, client, jobs):
    queue.add_batch(range(jobs), batch_id="b", owner="me")
    fields = client.hlen(queue.keys.batch("b"))
    queue.cancel_batch("b", owner="other")  # loads the script
    client.config_resetstat()
    assert queue.cancel_batch("b", owner="me") == "cancelled"
    calls = count_calls(client)
    assert calls.pop("evalsha") == 1
    # Two bitmaps, one hash, one sorted set; INFO and CONFIG are the calls of this test.
    assert sum(calls.values()) < 20, calls
    assert client.hlen(queue.keys.batch("b")) == fields + 2
    assert client.zcard(queue.keys.cancelled_batches) == 1
    progress = queue.batch_progress("b")
    assert (progress.cancelled, progress.ended, progress.finished) == (True, True, False)
    assert (progress.done, progress.dead, progress.remaining) == (0, 0, jobs)
    assert abs((progress.cancelled_at_ms or 0) - client.time()[0] * 1000) < 60_000


def test_only_the_owner_of_a_batch_can_cancel_it_with_its_name(queue):
    queue.add_batch(range(3), batch_id="b", owner="try-1")
    assert queue.batch_progress("b").owner == "try-1"
    queue.add_batch(range(3), batch_id="b", owner="try-2")
    assert queue.batch_progress("b").owner == "try-1", "only attach_batch replaces an owner"
    progress = queue.attach_batch("b", "try-2")
    assert progress is not None
    assert (progress.owner, progress.total, progress.cancelled) == ("try-2", 3, False)
    assert queue.cancel_batch("b", owner="try-1") == "not_owner"
    assert not queue.batch_progress("b").cancelled
    assert queue.cancel_batch("b", owner="try-2") == "cancelled"
    assert queue.cancel_batch("b", owner="try-2") == "already_cancelled"
    assert queue.cancel_batch("b", owner="try-1") == "not_owner"
    assert queue.cancel_batch("b") == "already_cancelled"


def test_a_batch_of_several_parts_is_attached_and_cancelled(queue):
    for part in range(3):
        queue.add_batch_part("b", part, range(5), owner="me")
    queue.finalize_batch("b", total=15, parts=3)
    progress = queue.attach_batch("b", "you")
    assert progress is not None
    assert (progress.parts, progress.total, progress.owner) == (3, 15, "you")
    assert queue.cancel_batch("b") == "cancelled"


def test_a_missing_batch_cannot_be_attached_or_cancelled(queue, client):
    assert queue.attach_batch("b", "me") is None
    with pytest.raises(BatchNotFound):
        queue.cancel_batch("b")
    assert dump(client, queue.keys) == {}


@pytest.mark.parametrize("finalized", [True, False])
def test_a_cancelled_batch_refuses_more_jobs_before_any_write(queue, client, finalized):
    queue.add_batch_part("b", 0, range(5))
    if finalized:
        queue.finalize_batch("b", total=5, parts=1)
    assert queue.cancel_batch("b") == "cancelled"
    before = dump(client, queue.keys)
    for add in (
        lambda: queue.add_batch(range(5), batch_id="b"),
        lambda: queue.add_batch_part("b", 0, range(9)),
        lambda: queue.add_batch_part("b", 1, [1], delay=timedelta(hours=1)),
        lambda: queue.finalize_batch("b", total=5, parts=1),
    ):
        with pytest.raises(BatchCancelled, match="CMQ-310"):
            add()
    assert dump(client, queue.keys) == before


def test_a_wait_for_a_cancelled_batch_ends(queue):
    queue.add_batch(range(5), batch_id="b")
    queue.cancel_batch("b")
    with pytest.raises(BatchCancelled):
        queue.wait_batch("b", timeout=timedelta(seconds=5))


def test_a_cancel_whose_reply_was_lost_has_the_same_reply_when_it_is_sent_again(
    server, client, queue_name
):
    sha = load_script("cancel_batch", server.dialect).sha
    with Queue(queue_name, server.url, dialect=server.dialect) as direct:
        direct.add_batch(range(3), batch_id="b", owner="me")
        direct.cancel_batch("b", owner="other")  # loads the script
    with (
        TcpProxy(server.url, trigger=HoldAt(sha, "after")) as proxy,
        Queue(queue_name, proxy.url, dialect=server.dialect) as queue,
    ):
        results: list[str] = []
        thread = threading.Thread(
            target=lambda: results.append(queue.cancel_batch("b", owner="me"))
        )
        thread.start()
        assert proxy.triggered.wait(10)
        proxy.disconnect_all()
        thread.join(20)
        assert results == ["cancelled"]
        assert client.zcard(queue.keys.cancelled_batches) == 1
        assert queue.cancel_batch("b", owner="me") == "already_cancelled"
