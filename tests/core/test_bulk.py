"""The short way of a bulk writes the very bytes that the general way writes."""

from __future__ import annotations

import hiredis
import pytest

from airflow_provider_chasqui.core.chunks import CHUNK_JOBS
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BadInput, EncodeError, PayloadTooLarge
from airflow_provider_chasqui.core.job import Added, AddedJobs, NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, Late, Op
from airflow_provider_chasqui.core.ops import bulk
from airflow_provider_chasqui.core.plan import Plan
from airflow_provider_chasqui.core.prepare import prepare
from airflow_provider_chasqui.store.resp import pack

NOW = 1_900_000_000_000
KEYS = Keys("q")
PAYLOADS = [None, 1, "ü" * 70, {"a": [1.5, b"\0\xff"]}, "x" * 500, list(range(90)), b"y" * 300]


def sent_by(flow: Flow[AddedJobs]) -> tuple[list[Op[list[str]]], AddedJobs]:
    """What a flow sends, call by call, and what it returns."""
    sent: list[Op[list[str]]] = []
    answers = None
    while True:
        try:
            step = flow.send(answers)
        except StopIteration as done:
            return sent, done.value
        ops = [each.make() for each in step if isinstance(each, Late)]
        assert len(ops) == len(step)
        sent += ops
        answers = [op.parse(1) for op in ops]


def jobs_in(op: Op[list[str]]) -> list[tuple[bytes, bytes]]:
    """Envelope and name of each job, as the script reads them."""
    reader = hiredis.Reader()
    reader.feed(pack(op.args))
    _, *rest = reader.gets()
    found = []
    while rest:
        name, count = rest[0], int(rest[1])
        found += [(envelope, name) for envelope in rest[2 : 2 + count]]
        rest = rest[2 + count :]
    return found


def test_the_bytes_are_the_same() -> None:
    jobs = [NewJob(PAYLOADS[i % 7], "" if i % 3 else f"näme{i % 5}") for i in range(600)]
    config = QueueConfig()
    sent, added = sent_by(Plan(KEYS, config, lambda: NOW).add_many(iter(jobs)))
    assert [op.script for op in sent] == ["add_plain"] * -(-600 // CHUNK_JOBS)
    assert len({op.keys[1] for op in sent}) == len(sent)
    ids = iter(added.ids)
    ready = [prepare(job, config, NOW, lambda _: next(ids)) for job in jobs]
    found = [job for op in sent for job in jobs_in(op)]
    assert found == [(each.envelope, each.name) for each in ready]
    assert added.ids == sorted(added.ids)
    assert added == [Added(job_id, True) for job_id in added.ids]


def test_what_became_of_a_bulk_reads_like_a_list() -> None:
    added = AddedJobs(["a", "b", "c"], [True, False, True])
    whole = [Added("a", True), Added("b", False), Added("c", True)]
    assert added == whole
    assert repr(added) == repr(whole)
    assert (len(added), added[1], added[-1]) == (3, whole[1], whole[2])
    assert added[1:] == whole[1:]
    assert Added("b", False) in added
    assert added != whole[:2]
    first, *rest = added
    assert [first, *rest] == whole


@pytest.mark.parametrize(
    ("jobs", "error"),
    [
        ([NewJob(1), NewJob(object())], EncodeError),
        ([NewJob(1), NewJob(1, "n" * 300)], BadInput),
        ([NewJob(1), NewJob("x" * 2_000_000)], PayloadTooLarge),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    jobs: list[NewJob], error: type[Exception]
) -> None:
    flow = Plan(KEYS, QueueConfig(), lambda: NOW).add_many(jobs)
    with pytest.raises(error):
        next(flow)


@pytest.mark.parametrize(
    ("last", "config"),
    [
        (NewJob(3, id="mine"), QueueConfig()),
        (NewJob("x" * 100_000), QueueConfig()),
        (NewJob(3), QueueConfig(max_len=10)),
        (NewJob(3), QueueConfig(announce=True)),
    ],
)
def test_jobs_of_which_more_is_said_go_the_general_way(last: NewJob, config: QueueConfig) -> None:
    plain = [NewJob(1), NewJob(2, "n")]
    assert isinstance(bulk.sort_out(plain, QueueConfig()), bulk.Plain)
    assert bulk.sort_out(iter([*plain, last, NewJob(4)]), config) == [*plain, last, NewJob(4)]
