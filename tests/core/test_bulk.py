"""The fast path of add_many sends the same bytes as the general path."""

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
    """Return the commands that a flow sends, and its result."""
    sent: list[Command[list[str]]] = []
    replies = None
    while True:
        try:
            step = flow.send(replies)
        except StopIteration as done:
            return sent, done.value
        commands = [command.build() for command in step if isinstance(command, DeferredCommand)]
        assert len(commands) == len(step)
        sent += commands
        replies = [command.parse(1) for command in commands]


def jobs_in(command: Command[list[str]]) -> list[tuple[bytes, bytes]]:
    """Return the envelope and the name of each job, as the script reads them."""
    reader = hiredis.Reader()
    reader.feed(encode_command(command.args))
    _, *args = reader.gets()
    jobs = []
    while args:
        name, count = args[0], int(args[1])
        jobs += [(envelope, name) for envelope in args[2 : 2 + count]]
        args = args[2 + count :]
    return jobs


def test_both_paths_send_the_same_bytes() -> None:
    jobs = [NewJob(PAYLOADS[i % 7], "" if i % 3 else f"näme{i % 5}") for i in range(600)]
    config = QueueConfig()
    sent, added = sent_by(QueueFlows(KEYS, config, lambda: NOW).add_many(iter(jobs)))
    assert [command.script for command in sent] == ["add_simple_jobs"] * -(-600 // MAX_CHUNK_JOBS)
    assert len({command.keys[1] for command in sent}) == len(sent)
    ids = iter(added.job_ids)
    encoded = [encode_new_job(job, config, NOW, lambda _: next(ids)) for job in jobs]
    sent_jobs = [job for command in sent for job in jobs_in(command)]
    assert sent_jobs == [(job.envelope, job.job_name) for job in encoded]
    assert added.job_ids == sorted(added.job_ids)
    assert added == [EnqueueResult(job_id, True) for job_id in added.job_ids]


def test_the_results_of_add_many_behave_like_a_list() -> None:
    added = EnqueueResults(["a", "b", "c"], [True, False, True])
    expected = [EnqueueResult("a", True), EnqueueResult("b", False), EnqueueResult("c", True)]
    assert added == expected
    assert repr(added) == repr(expected)
    assert (len(added), added[1], added[-1]) == (3, expected[1], expected[2])
    assert added[1:] == expected[1:]
    assert EnqueueResult("b", False) in added
    assert added != expected[:2]
    first, *others = added
    assert [first, *others] == expected


@pytest.mark.parametrize(
    ("jobs", "error"),
    [
        ([NewJob(1), NewJob(object())], EncodeError),
        ([NewJob(1), NewJob(1, "n" * 300)], InvalidArgument),
        ([NewJob(1), NewJob("x" * 2_000_000)], PayloadTooLarge),
    ],
)
def test_an_invalid_job_is_rejected_before_anything_is_sent(
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
def test_jobs_with_more_options_use_the_general_path(last: NewJob, config: QueueConfig) -> None:
    simple = [NewJob(1), NewJob(2, "n")]
    assert isinstance(enqueue.extract_simple_jobs(simple, QueueConfig()), enqueue.SimpleJobs)
    assert enqueue.extract_simple_jobs(iter([*simple, last, NewJob(4)]), config) == [
        *simple,
        last,
        NewJob(4),
    ]
