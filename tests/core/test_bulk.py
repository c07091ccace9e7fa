"""The short way of a bulk writes the very bytes that the general way writes."""

from __future__ import annotations

import hiredis
import pytest

from airflow_provider_chasqui.core.chunking import MAX_CHUNK_JOBS
from airflow_provider_chasqui.core.command import Command, CommandFlow, DeferredCommand
from airflow_provider_chasqui.core.commands import enqueue
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import EncodeError, InvalidArgument, PayloadTooLarge
from airflow_provider_chasqui.core.job import EnqueueResult, EnqueueResults, NewJob
from airflow_provider_chasqui.core.job_encoder import encode_new_job
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.queue_flows import QueueFlows
from airflow_provider_chasqui.core.resp import encode_command

NOW = 1_900_000_000_000
KEYS = Keys("q")
PAYLOADS = [None, 1, "ü" * 70, {"a": [1.5, b"\0\xff"]}, "x" * 500, list(range(90)), b"y" * 300]


def sent_by(flow: CommandFlow[EnqueueResults]) -> tuple[list[Command[list[str]]], EnqueueResults]:
    """What a flow sends, call by call, and what it returns."""
    sent: list[Command[list[str]]] = []
    answers = None
    while True:
        try:
            step = flow.send(answers)
        except StopIteration as done:
            return sent, done.value
        ops = [each.build() for each in step if isinstance(each, DeferredCommand)]
        assert len(ops) == len(step)
        sent += ops
        answers = [op.parse(1) for op in ops]


def jobs_in(op: Command[list[str]]) -> list[tuple[bytes, bytes]]:
    """Envelope and name of each job, as the script reads them."""
    reader = hiredis.Reader()
    reader.feed(encode_command(op.args))
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
    sent, added = sent_by(QueueFlows(KEYS, config, lambda: NOW).add_many(iter(jobs)))
    assert [op.script for op in sent] == ["add_simple_jobs"] * -(-600 // MAX_CHUNK_JOBS)
    assert len({op.keys[1] for op in sent}) == len(sent)
    ids = iter(added.job_ids)
    ready = [encode_new_job(job, config, NOW, lambda _: next(ids)) for job in jobs]
    found = [job for op in sent for job in jobs_in(op)]
    assert found == [(each.envelope, each.job_name) for each in ready]
    assert added.job_ids == sorted(added.job_ids)
    assert added == [EnqueueResult(job_id, True) for job_id in added.job_ids]


def test_what_became_of_a_bulk_reads_like_a_list() -> None:
    added = EnqueueResults(["a", "b", "c"], [True, False, True])
    whole = [EnqueueResult("a", True), EnqueueResult("b", False), EnqueueResult("c", True)]
    assert added == whole
    assert repr(added) == repr(whole)
    assert (len(added), added[1], added[-1]) == (3, whole[1], whole[2])
    assert added[1:] == whole[1:]
    assert EnqueueResult("b", False) in added
    assert added != whole[:2]
    first, *rest = added
    assert [first, *rest] == whole


@pytest.mark.parametrize(
    ("jobs", "error"),
    [
        ([NewJob(1), NewJob(object())], EncodeError),
        ([NewJob(1), NewJob(1, "n" * 300)], InvalidArgument),
        ([NewJob(1), NewJob("x" * 2_000_000)], PayloadTooLarge),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    jobs: list[NewJob], error: type[Exception]
) -> None:
    flow = QueueFlows(KEYS, QueueConfig(), lambda: NOW).add_many(jobs)
    with pytest.raises(error):
        next(flow)


@pytest.mark.parametrize(
    ("last", "config"),
    [
        (NewJob(3, job_id="mine"), QueueConfig()),
        (NewJob("x" * 100_000), QueueConfig()),
        (NewJob(3), QueueConfig(max_len=10)),
        (NewJob(3), QueueConfig(emit_enqueue_events=True)),
    ],
)
def test_jobs_of_which_more_is_said_go_the_general_way(last: NewJob, config: QueueConfig) -> None:
    plain = [NewJob(1), NewJob(2, "n")]
    assert isinstance(enqueue.extract_simple_jobs(plain, QueueConfig()), enqueue.SimpleJobs)
    assert enqueue.extract_simple_jobs(iter([*plain, last, NewJob(4)]), config) == [
        *plain,
        last,
        NewJob(4),
    ]
