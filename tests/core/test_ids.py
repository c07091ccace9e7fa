"""Job ids that sort by time, and idempotency tokens that differ per call."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_chasqui.core.ids import ProducerSession, UlidGenerator, ulid_timestamp_ms


@given(st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=200))
def test_ids_sort_in_the_order_of_their_creation_even_if_the_clock_jumps(clock):
    ulids = UlidGenerator()
    ids = [ulids.next(now_ms) for now_ms in clock]
    assert ids == sorted(set(ids))
    assert all(len(ulid) == 26 for ulid in ids)
    assert ulid_timestamp_ms(ids[0]) == clock[0]
    assert ulid_timestamp_ms(ids[-1]) == max(clock)


def test_threads_never_generate_the_same_id():
    ulids, ids = UlidGenerator(), []

    def generate():
        ids.extend([ulids.next(5) for _ in range(2000)])

    threads = [threading.Thread(target=generate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 8000


@given(st.text(max_size=30))
def test_a_text_that_is_no_ulid_has_no_timestamp(text):
    timestamp_ms = ulid_timestamp_ms(text)
    assert timestamp_ms is None or len(text) == 26


# The child only writes to a pipe and exits, so other threads of the test process do not matter.
allow_fork_with_threads = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_a_fork(function) -> str:
    """Return the result of a function in a forked process."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write_end, function().encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        result = pipe.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    return result


@allow_fork_with_threads
def test_a_forked_process_generates_other_ids():
    """Without a check both processes would increment the same id within a millisecond."""
    ulids = UlidGenerator()
    ulids.next(5)
    ids_of_forks = [in_a_fork(lambda: ulids.next(5)) for _ in range(3)]
    assert len({ulids.next(5), *ids_of_forks}) == 4


def token_of_a_call(producer: ProducerSession) -> str:
    with producer.begin_call() as call:
        return call.idempotency_token(0)


@allow_fork_with_threads
def test_a_forked_process_is_another_producer():
    """Otherwise its first add would count as a repetition of its parent's add, and be lost."""
    producer = ProducerSession()
    ids_of_forks = [in_a_fork(lambda: token_of_a_call(producer)) for _ in range(3)]
    assert len({token_of_a_call(producer), *ids_of_forks}) == 4


def test_sequential_calls_share_a_producer_id_and_concurrent_calls_do_not():
    """Redis stores 100 call ids per producer id, so an open call must not be evicted by others."""
    producer = ProducerSession()
    with producer.begin_call() as first, producer.begin_call() as second:
        assert first.producer_id != second.producer_id
    with producer.begin_call() as third:
        assert third.producer_id in (first.producer_id, second.producer_id)
    numbers = {call.call_number for call in (first, second, third)}
    assert len(numbers) == 3


def test_a_failed_call_releases_its_producer_id():
    producer = ProducerSession()
    producer_ids = set()
    for _ in range(10):
        try:
            with producer.begin_call() as call:
                producer_ids.add(call.producer_id)
                raise OSError
        except OSError:
            pass
    assert len(producer_ids) == 1


def test_a_bulk_of_ids_follows_the_last_id() -> None:
    ulids = UlidGenerator()
    ids = [ulids.next(5), *ulids.next_many(5, 1000), ulids.next(5), *ulids.next_many(4, 3)]
    assert ids == sorted(set(ids))
    assert len(ids) == 1005
    assert {ulid_timestamp_ms(ulid) for ulid in ids} == {5}


def test_a_bulk_of_ids_carries_over_to_the_higher_digits() -> None:
    ulids = UlidGenerator()
    ulids.next(5)
    ulids._low = (1 << 20) - 3
    ids = ulids.next_many(5, 10)
    assert ids == sorted(set(ids))
    assert len(ids) == 10
