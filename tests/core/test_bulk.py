"""The short way of a bulk writes the very bytes that the general way writes."""

from __future__ import annotations

import pytest

from airflow_provider_chasqui.core.chunks import CHUNK_JOBS
from airflow_provider_chasqui.core.config import QueueConfig
from airflow_provider_chasqui.core.errors import BadInput, EncodeError, PayloadTooLarge
from airflow_provider_chasqui.core.job import NewJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, Late
from airflow_provider_chasqui.core.ops import adding, bulk
from airflow_provider_chasqui.core.plan import Plan
from airflow_provider_chasqui.core.prepare import prepare
from airflow_provider_chasqui.store.resp import pack

NOW = 1_900_000_000_000
KEYS = Keys("q")
PAYLOADS = [None, 1, "ü" * 70, {"a": [1.5, b"\0\xff"]}, "x" * 500, list(range(90)), b"y" * 300]


def sent_by(flow: Flow[object]) -> list[bytes]:
    """What a flow sends when every job is new, call by call."""
    sent, answers = [], None
    while True:
        try:
            step = flow.send(answers)
        except StopIteration:
            return sent
        ops = [each.make() if isinstance(each, Late) else each for each in step]
        sent += [pack((*op.keys, *op.args)) for op in ops]
        answers = [
            op.parse(b"1" * ((len(op.args) - 2) // 3 or op.args[2].count // 3)) for op in ops
        ]


def test_the_bytes_are_the_same() -> None:
    jobs = [NewJob(PAYLOADS[i % 7], "" if i % 3 else f"näme{i % 5}") for i in range(600)]
    config = QueueConfig()
    plan = Plan(KEYS, config, lambda: NOW)
    short = sent_by(plan.add_many(jobs))
    assert len(short) == -(-600 // CHUNK_JOBS)

    first = Plan(KEYS, config, lambda: NOW)
    first._ulids = Again(short)
    ready = [prepare(job, config, NOW, first._ulids.mint) for job in jobs]
    chunks = [ready[i : i + CHUNK_JOBS] for i in range(0, 600, CHUNK_JOBS)]
    for number, (data, chunk) in enumerate(zip(short, chunks, strict=True)):
        token = data.split(b"once:")[1].split(b"\r\n")[0].decode()
        op = adding.add_chunk(KEYS, chunk, 0, token)
        assert pack((*op.keys, *op.args)) == data, number


class Again:
    """Mints the ids that were sent before."""

    def __init__(self, sent: list[bytes]):
        cuts = [part for data in sent for part in data.split(b"\x94\xba")[1:]]
        self._ids = iter([cut[:26].decode() for cut in cuts])

    def mint(self, _: int) -> str:
        return next(self._ids)


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


def test_jobs_of_which_more_is_said_go_the_general_way() -> None:
    plain, config = [NewJob(1), NewJob(2)], QueueConfig()
    assert bulk.is_plain(plain, config)
    assert not bulk.is_plain([*plain, NewJob(3, id="mine")], config)
    assert not bulk.is_plain(plain, QueueConfig(max_len=10))
    assert not bulk.is_plain(plain, QueueConfig(announce=True))
    assert bulk.encode_bodies([NewJob(1), NewJob("x" * 100_000)], config) is None
