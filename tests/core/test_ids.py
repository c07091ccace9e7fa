"""Ids that sort, and calls that are told apart."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_chasqui.core.ids import ProducerSession, UlidGenerator, ulid_timestamp_ms


@given(st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=200))
def test_ids_sort_as_they_were_minted_whatever_the_clock_does(clock):
    ulids = UlidGenerator()
    minted = [ulids.next(now_ms) for now_ms in clock]
    assert minted == sorted(set(minted))
    assert all(len(each) == 26 for each in minted)
    assert ulid_timestamp_ms(minted[0]) == clock[0]
    assert ulid_timestamp_ms(minted[-1]) == max(clock)


def test_threads_never_share_an_id():
    ulids, minted = UlidGenerator(), []

    def mint():
        minted.extend([ulids.next(5) for _ in range(2000)])

    threads = [threading.Thread(target=mint) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(minted)) == 8000


@given(st.text(max_size=30))
def test_what_is_no_ulid_has_no_time(text):
    found = ulid_timestamp_ms(text)
    assert found is None or len(text) == 26


# The child only writes to a pipe and leaves, so other threads of the test process do not matter.
in_threads_too = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_a_fork(ask) -> str:
    """Return what `ask` answers in a forked process."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write_end, ask().encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        said = answer.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    return said


@in_threads_too
def test_a_fork_mints_other_ids():
    """Both would count up from the same id within the same millisecond."""
    ulids = UlidGenerator()
    ulids.next(5)
    theirs = [in_a_fork(lambda: ulids.next(5)) for _ in range(3)]
    assert len({ulids.next(5), *theirs}) == 4


def name_of_a_call(producer: ProducerSession) -> str:
    with producer.begin_call() as call:
        return call.idempotency_token(0)


@in_threads_too
def test_a_fork_is_another_producer():
    """Else its first add would be taken for its parent's, and lost."""
    producer = ProducerSession()
    theirs = [in_a_fork(lambda: name_of_a_call(producer)) for _ in range(3)]
    assert len({name_of_a_call(producer), *theirs}) == 4


def test_calls_one_after_another_share_a_name_and_calls_at_the_same_time_do_not():
    """Redis remembers 100 ids of a name: a call must not be pushed out of it while it is open."""
    producer = ProducerSession()
    with producer.begin_call() as first, producer.begin_call() as second:
        assert first.producer_id != second.producer_id
    with producer.begin_call() as third:
        assert third.producer_id in (first.producer_id, second.producer_id)
    numbers = {call.call_number for call in (first, second, third)}
    assert len(numbers) == 3


def test_a_name_is_given_back_when_a_call_fails():
    producer = ProducerSession()
    names = set()
    for _ in range(10):
        try:
            with producer.begin_call() as call:
                names.add(call.producer_id)
                raise OSError
        except OSError:
            pass
    assert len(names) == 1


def test_many_ids_at_once_go_on_where_the_last_one_was() -> None:
    ulids = UlidGenerator()
    ids = [ulids.next(5), *ulids.next_many(5, 1000), ulids.next(5), *ulids.next_many(4, 3)]
    assert ids == sorted(set(ids))
    assert len(ids) == 1005
    assert {ulid_timestamp_ms(each) for each in ids} == {5}


def test_many_ids_that_run_out_of_digits_go_on() -> None:
    ulids = UlidGenerator()
    ulids.next(5)
    ulids._low = (1 << 20) - 3
    ids = ulids.next_many(5, 10)
    assert ids == sorted(set(ids))
    assert len(ids) == 10
