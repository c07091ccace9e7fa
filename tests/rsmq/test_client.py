"""The RSMQ client on every server: cases that the recording does not contain."""

from __future__ import annotations

import pickle
import string
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core import rsmq_types as values
from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    InvalidArgument,
    RsmqError,
    RsmqInvalidValue,
    RsmqMessageTooLong,
    RsmqQueueExists,
    RsmqQueueNotFound,
)
from airflow_provider_chasqui.redis_client.target import from_url
from airflow_provider_chasqui.rsmq.client import RsmqClient
from airflow_provider_chasqui.rsmq.client_async import AsyncRsmqClient


@pytest.fixture
def rsmq(server: Any, namespace: str) -> Iterator[RsmqClient]:
    with RsmqClient(server.url, namespace=namespace) as client:
        yield client


@pytest.fixture
def raw(server: Any) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


def test_a_message_lives_from_send_to_delete(rsmq: RsmqClient) -> None:
    assert rsmq.create_queue("q", vt=timedelta(minutes=1)) == 1
    first = rsmq.send_message("q", "one")
    second = rsmq.send_message("q", "two", delay=60)
    assert [m.message for m in rsmq.peek_messages("q")] == ["one"]
    assert [m.id for m in rsmq.peek_messages("q", include_hidden=True)] == [first, second]
    got = rsmq.receive_message("q")
    assert got is not None
    assert (got.id, got.message, got.rc) == (first, "one", 1)
    assert got.fr >= int(got.sent or 0)
    assert rsmq.receive_message("q") is None
    attributes = rsmq.get_queue_attributes("q")
    assert (attributes.msgs, attributes.visiblemsgs, attributes.hidden_exact) == (2, 0, 2)
    assert rsmq.delete_message("q", first) == 1
    assert rsmq.delete_message("q", first) == 0
    assert rsmq.change_message_visibility("q", second, vt=0) == 1
    popped = rsmq.pop_message("q")
    assert popped is not None
    assert popped.id == second
    assert rsmq.delete_queue("q") == 1
    assert rsmq.list_queues() == []


async def test_the_asyncio_client_behaves_the_same(server: Any, namespace: str) -> None:
    async with AsyncRsmqClient(server.url, namespace=namespace) as client:
        await client.create_queue("q")
        sent = await client.send_message("q", "späte Grüße ☂")
        got = await client.receive_message("q", vt=0)
        assert got is not None
        assert (got.id, got.message) == (sent, "späte Grüße ☂")
        assert (await client.get_queue_attributes("q")).totalrecv == 1
        with pytest.raises(RsmqQueueNotFound):
            await client.pop_message("nope")


def test_a_call_whose_reply_was_lost_can_be_repeated(rsmq: RsmqClient) -> None:
    """The client repeats a command after a lost connection; it must not count twice."""

    def twice(flow: Any) -> tuple[Any, Any]:
        op = next(flow)
        return rsmq.client.execute(op), rsmq.client.execute(op)

    assert twice(rsmq.flows.create_queue("q", None, None, None)) == (1, 1)
    first, second = twice(rsmq.flows.send_message("q", "x", None))
    assert first == second
    assert rsmq.get_queue_attributes("q").msgs == 1
    assert twice(rsmq.flows.delete_queue("q")) == (1, 1)


def test_ids_have_the_order_of_the_sends(rsmq: RsmqClient) -> None:
    rsmq.create_queue("q")
    ids = [rsmq.send_message("q", str(i)) for i in range(50)]
    assert [m.id for m in rsmq.peek_messages("q", limit=100)] == ids
    assert sorted(ids) == ids


def test_a_missing_queue_is_reported_before_an_invalid_parameter(rsmq: RsmqClient) -> None:
    for call in (
        lambda: rsmq.send_message("nope", 5),
        lambda: rsmq.send_message("nope", "x", delay=-1),
        lambda: rsmq.receive_message("nope", vt="x"),
    ):
        with pytest.raises(RsmqQueueNotFound) as raised:
            call()
        assert raised.value.queue_name == "nope"
        assert "CMQ-401" in str(raised.value)


@pytest.mark.parametrize("name", ["bad name", "a\n", "ä", "a" * 161, "a:b"])
def test_names_that_npm_refuses_are_refused(rsmq: RsmqClient, name: str) -> None:
    with pytest.raises(RsmqError) as raised:
        rsmq.create_queue(name)
    assert raised.value.name == "invalidFormat"


@pytest.mark.parametrize(
    ("value", "read"),
    [("7abc", 7), (1.9, 1), ("  12", 12), ("x", None), (None, None), (True, None),
     (float("nan"), None), ("-3", -3), ("\u0661", None)],
)  # fmt: skip
def test_numbers_are_parsed_like_parseint(value: Any, read: int | None) -> None:
    assert values.parse_js_int(value) == read


def test_maxsize_counts_utf16_units(rsmq: RsmqClient) -> None:
    rsmq.create_queue("q", maxsize=1024)
    rsmq.send_message("q", "☂" * 1024)
    with pytest.raises(RsmqMessageTooLong):
        rsmq.send_message("q", "😀" * 513)
    rsmq.set_queue_attributes("q", maxsize=-1)
    rsmq.send_message("q", "😀" * 100_000)


def test_incomplete_data_of_other_clients_is_accepted(
    rsmq: RsmqClient, raw: redis.Redis, namespace: str
) -> None:
    """A partial hash, a float vt, an id without a body, a body that is not text."""
    raw.hset(f"{namespace}:part:Q", mapping={"vt": "0.5", "modified": "1"})
    attributes = rsmq.get_queue_attributes("part")
    assert (attributes.vt, attributes.delay, attributes.maxsize) == (0.5, 0, 65536)
    rsmq.send_message("part", "x")
    got = rsmq.receive_message("part")
    assert got is not None
    waits = raw.zscore(f"{namespace}:part", got.id) - got.fr
    assert waits == 500
    rsmq.delete_message("part", got.id)
    phantom = "0" * 32
    raw.zadd(f"{namespace}:part", {phantom: 1})
    found = rsmq.receive_message("part")
    assert found is not None
    assert (found.id, found.message) == (phantom, None)
    rsmq.delete_message("part", phantom)
    sent = rsmq.send_message("part", "x")
    raw.hset(f"{namespace}:part:Q", sent, b"\xff\x00")
    found = rsmq.pop_message("part")
    assert found is not None
    assert found.raw == b"\xff\x00"


@pytest.mark.parametrize("stored", ["30000000", "-1", "soon"])
def test_an_invalid_stored_vt_is_refused(
    rsmq: RsmqClient, raw: redis.Redis, namespace: str, stored: str
) -> None:
    rsmq.create_queue("q")
    rsmq.send_message("q", "x")
    raw.hset(f"{namespace}:q:Q", "vt", stored)
    with pytest.raises(RsmqInvalidValue, match="units='ms'"):
        rsmq.receive_message("q")
    rsmq.set_queue_attributes("q", vt=30)
    assert rsmq.receive_message("q") is not None


def test_queues_of_the_rust_client_store_milliseconds(
    server: Any, namespace: str, raw: redis.Redis
) -> None:
    fields = {"vt": "30000", "delay": "0", "maxsize": "65536", "totalsent": "0", "totalrecv": "0"}
    raw.hset(f"{namespace}:rust:Q", mapping=fields)
    with RsmqClient(server.url, namespace=namespace, units="ms") as client:
        assert client.get_queue_attributes("rust").vt == 30
        client.send_message("rust", "x")
        got = client.receive_message("rust")
        assert got is not None
        assert raw.zscore(f"{namespace}:rust", got.id) - got.fr == 30_000
        client.set_queue_attributes("rust", vt=5)
        assert raw.hget(f"{namespace}:rust:Q", "vt") == "5000"


def test_a_hash_without_attributes_is_not_a_queue(
    rsmq: RsmqClient, raw: redis.Redis, namespace: str
) -> None:
    """npm rsmq leaves such a hash if a send races a deleteQueue."""
    raw.hset(f"{namespace}:q:Q", mapping={"totalsent": "1", "a" * 32: "x"})
    with pytest.raises(RsmqQueueNotFound):
        rsmq.receive_message("q")
    assert rsmq.create_queue("q") == 1
    with pytest.raises(RsmqQueueExists):
        rsmq.create_queue("q")


def test_a_cluster_needs_a_hash_tag() -> None:
    cluster = from_url("redis+cluster://127.0.0.1:1")
    with pytest.raises(InvalidArgument, match="hash tag"):
        RsmqClient(cluster)
    RsmqClient(cluster, namespace="{rsmq}").close()


def test_errors_can_be_pickled() -> None:
    error = RsmqQueueNotFound("Queue not found", queue_name="q")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.name, str(again)) == (RsmqQueueNotFound, error.name, str(error))
    assert isinstance(again, ChasquiError)


def test_a_lone_surrogate_is_stored_as_the_replacement_character(
    rsmq: RsmqClient, raw: redis.Redis, namespace: str
) -> None:
    rsmq.create_queue("q")
    message_id = rsmq.send_message("q", "a\ud800b\udc00 \ud83d\ude00")
    stored = raw.hget(f"{namespace}:q:Q", message_id)
    assert stored == "a\ufffdb\ufffd \U0001f600"
    received = rsmq.receive_message("q")
    assert received is not None
    assert received.message == stored


def test_the_random_part_of_a_message_id_uses_every_character_equally() -> None:
    suffixes = [values.random_suffix() for _ in range(3000)]
    assert {len(suffix) for suffix in suffixes} == {22}
    assert len(set(suffixes)) == 3000
    counts = Counter("".join(suffixes))
    assert set(counts) == set(string.ascii_letters + string.digits)
    expected = 3000 * 22 / 62
    assert max(counts.values()) < expected * 1.3
    assert min(counts.values()) > expected * 0.7
