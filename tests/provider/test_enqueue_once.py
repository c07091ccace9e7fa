"""Later tries, clears, changed payloads and kills, without Airflow and with real servers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import BatchConflict, EncodeError, InvalidArgument
from airflow_provider_chasqui.operators._enqueue import (
    EnqueueOnceResult,
    EnqueueRequest,
    cancel_enqueued,
    enqueue_once,
)
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import working
from tests.provider.test_enqueue import waiting
from tests.support.proxy import TcpProxy
from tests.support.waiting import wait_until

log = logging.getLogger(__name__)


def send(queue: Queue, payloads: Iterable[Any], **options: Any) -> EnqueueOnceResult:
    rows = list(payloads)
    options = {"batch_id": "b", "owner": "1:x"} | options
    return enqueue_once(queue, EnqueueRequest(payloads=lambda: rows, **options), log)


def payloads_to_run(queue: Queue) -> list[Any]:
    """Return the payloads of the jobs that a worker would run, in order."""
    return [
        job.payload
        for job in waiting(queue)
        if not queue.batch_progress(job.id.split(":")[1]).cancelled
    ]


def test_a_retry_finds_what_was_sent(queue: Queue) -> None:
    first = send(queue, [1, 2, 3])
    second = send(queue, [1, 2, 3], owner="2:y")
    assert (first.created, second.created) == (True, False)
    assert first.handle == second.handle
    assert payloads_to_run(queue) == [1, 2, 3]


def test_a_retry_continues_an_interrupted_send(queue: Queue) -> None:
    queue.add_batch_part("b", 0, [1, 2])
    result = send(queue, [1, 2, 3], owner="2:y")
    assert (result.created, result.handle.total) == (True, 3)
    assert payloads_to_run(queue) == [1, 2, 3]


def test_a_clear_cancels_what_is_unfinished_and_sends_again(queue: Queue) -> None:
    send(queue, [1, 2])
    send(queue, [1, "corrected"], owner="2:y")  # other payloads: a second generation
    cleared = send(queue, [4], batch_id="b~c2", earlier_batch_ids=("b~c1", "b"), owner="3:z")
    assert cleared.created
    assert payloads_to_run(queue) == [4]
    assert queue.batch_progress("b").cancelled
    assert queue.batch_progress("b~g2").cancelled


def test_a_clear_with_reattach_finds_what_was_sent_before(queue: Queue) -> None:
    send(queue, [1, 2])
    options: dict[str, Any] = {"batch_id": "b~c1", "earlier_batch_ids": ("b",)}
    cleared = send(queue, [1, 2], on_clear="reattach", owner="2:y", **options)
    assert (cleared.created, cleared.handle.batch_id) == (False, "b")
    assert payloads_to_run(queue) == [1, 2]


@pytest.mark.parametrize("changed", [[1, "corrected"], [1, 2, 3], [1]])
def test_changed_payloads_are_sent_again(
    queue: Queue, changed: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    send(queue, [1, 2])
    result = send(queue, changed, owner="2:y")
    assert (result.created, result.handle.batch_id) == (True, "b~g2")
    assert payloads_to_run(queue) == changed
    assert "this try has other payloads than batch b" in caplog.text
    third = send(queue, changed, owner="3:z")
    assert (third.created, third.handle.batch_id) == (False, "b~g2")
    assert payloads_to_run(queue) == changed


def test_changed_payloads_of_a_finished_batch_are_sent_again(
    queue: Queue, connected: Server
) -> None:
    async def handle(job: Any) -> None:
        return None

    send(queue, [1, 2])
    with working(connected, queue.name, handle):
        wait_until(lambda: queue.batch_progress("b").finished, message="the first batch")
    for number in (2, 3):
        result = send(queue, [1, "corrected"], owner=f"{number}:y")
        assert (result.created, result.handle.batch_id) == (number == 2, "b~g2")
    assert payloads_to_run(queue) == [1, "corrected"]


def test_changed_payloads_fail_or_are_ignored(queue: Queue) -> None:
    send(queue, [1, 2])
    with pytest.raises(BatchConflict, match="an earlier try sent other payloads as batch b"):
        send(queue, [1, "corrected"], on_change="fail")
    kept = send(queue, [1, "corrected"], on_change="keep")
    assert (kept.created, kept.handle.total) == (False, 2)
    assert payloads_to_run(queue) == [1, 2]


def test_changed_payloads_of_an_interrupted_send_cannot_be_ignored(queue: Queue) -> None:
    queue.add_batch_part("b", 0, [1, 2])
    with pytest.raises(BatchConflict, match="return the same payloads"):
        send(queue, ["corrected"], on_change="keep")


def test_the_payloads_of_a_complete_batch_are_not_read_again(queue: Queue) -> None:
    send(queue, [1, 2])
    request = EnqueueRequest(payloads=lambda: 1 // 0, batch_id="b", compare_complete=False)  # type: ignore[arg-type,return-value]
    assert enqueue_once(queue, request, log).handle.total == 2


def test_only_the_last_try_can_cancel_and_the_next_one_sends_again(queue: Queue) -> None:
    handle = send(queue, [1, 2], owner="1:x").handle
    send(queue, [1, 2], owner="2:y")
    assert cancel_enqueued(queue, handle, "1:x") == "not_owner"
    assert payloads_to_run(queue) == [1, 2]
    assert cancel_enqueued(queue, handle, "2:y") == "cancelled"
    assert payloads_to_run(queue) == []
    third = send(queue, [1, 2], owner="3:z")
    assert (third.created, third.handle.batch_id) == (True, "b~g2")
    assert payloads_to_run(queue) == [1, 2]
    # A zombie of the second try cannot cancel what the third one sent.
    assert cancel_enqueued(queue, third.handle, "2:y") == "not_owner"


def test_a_cancel_before_the_send_is_reported(queue: Queue) -> None:
    from airflow_provider_chasqui.operators._enqueue import EnqueueHandle

    handle = EnqueueHandle(queue.name, "never-sent", None, None)
    assert cancel_enqueued(queue, handle, "1:x") == "nothing was sent"


def test_the_row_and_the_key_of_an_unsupported_value_are_named(queue: Queue) -> None:
    rows = [{"id": 1}] * 1500 + [{"id": {1}}]
    with pytest.raises(EncodeError, match="row 1500: the value of id in the payload"):
        send(queue, rows)


def test_a_single_payload_has_the_id_of_its_job(queue: Queue) -> None:
    result = send(queue, [{"n": 1}], single=True)
    assert result.handle.to_xcom() == "batch:b:0:0"
    assert [job.id for job in waiting(queue)] == ["batch:b:0:0"]


def test_one_payload_takes_at_most_two_round_trips(queue: Queue, connected: Server) -> None:
    with (
        TcpProxy(connected.url) as proxy,
        Queue(queue.name, proxy.url, dialect=connected.dialect) as producer,
    ):
        for batch_id in ("connects-and-loads-scripts", "b"):
            for number in (1, 2):
                before = proxy.round_trips
                send(producer, [{"n": 1}], single=True, batch_id=batch_id, owner=f"{number}:x")
                round_trips = proxy.round_trips - before
                if batch_id == "b":
                    assert round_trips == 2
    assert payloads_to_run(queue) == [{"n": 1}, {"n": 1}]


@pytest.mark.parametrize(
    "options",
    [{"first_use": True, "source": "airflow:d/r/t"}, {"source": "airflow:d/another-run/t"}],
    ids=["another map index", "another run"],
)
def test_the_batch_of_another_task_instance_is_not_cancelled(
    queue: Queue, options: dict[str, Any]
) -> None:
    """The user chose the same batch_id for both. Both are sent with other payloads."""
    send(queue, [1, 2], source="airflow:d/r/t")
    with pytest.raises(InvalidArgument, match="another task instance"):
        send(queue, [3], owner="1:y", **options)
    assert not queue.batch_progress("b").cancelled
    assert payloads_to_run(queue) == [1, 2]
