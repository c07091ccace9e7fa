"""What is sent again, how often and after what pause: without a socket and without a clock."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions as redis

from airflow_provider_chasqui.core.command import (
    Command,
    DialectCommand,
    as_int,
    as_raw,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.commands.enqueue import IDEMPOTENCY_TTL_MS
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    KeyTypeMismatch,
    PermissionDenied,
    QueueFull,
    RedisServerError,
)
from airflow_provider_chasqui.core.resp import encode_command
from airflow_provider_chasqui.redis_client.retry import PipelineRequest
from airflow_provider_chasqui.redis_client.scripts import load_script as lua

GET = redis_command("GET", "k", parse=as_raw)
LEAD = script_command("acquire_leader_lock", as_int, ["lock"], ["me", 5])
LEAD_PACKED = encode_command(("EVALSHA", lua("lead", "native").sha, 1, "lock", "me", 5))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def exchange(
    *ops: Command[Any] | DialectCommand[Any], retries: int = 8, clock: Clock | None = None
) -> PipelineRequest:
    return PipelineRequest(ops, "native", "here", retries, clock or Clock())


def asked_for(exchange: PipelineRequest) -> tuple[bytes, list[int | None]]:
    pieces, owners = exchange.encode_pending()
    return b"".join(pieces), owners


def test_answers_come_in_the_order_of_the_operations() -> None:
    asked = exchange(GET, redis_command("XLEN", "s", parse=as_int))
    data, owners = asked_for(asked)
    assert data == b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*2\r\n$4\r\nXLEN\r\n$1\r\ns\r\n"
    assert asked.handle_replies([b"v", 7], owners) == 0.0
    assert asked.finished
    assert asked.results("q") == [b"v", 7]


def test_the_dialect_chooses_the_command() -> None:
    choice = DialectCommand(redis_command("A", parse=as_raw), redis_command("B", parse=as_raw))
    assert b"A" in asked_for(PipelineRequest([choice], "native", "here", 0))[0]
    assert b"B" in asked_for(PipelineRequest([choice], "portable", "here", 0))[0]


def test_an_unknown_script_is_loaded_once_and_only_the_open_calls_are_sent_again() -> None:
    asked = exchange(GET, LEAD, LEAD)
    data, owners = asked_for(asked)
    assert data.count(LEAD_PACKED) == 2
    assert (
        asked.handle_replies([b"v", redis.NoScriptError("x"), redis.NoScriptError("x")], owners)
        == 0.0
    )
    data, owners = asked_for(asked)
    assert encode_command(GET.args) not in data
    assert data.count(b"LOAD") == 1
    assert data.count(LEAD_PACKED) == 2
    assert owners == [None, 1, 2]
    asked.handle_replies([b"sha", 1, 0], owners)
    assert asked.results("q") == [b"v", 1, 0]


def test_a_script_that_may_not_be_loaded_is_not_permitted() -> None:
    asked = exchange(LEAD)
    asked.handle_replies([redis.NoScriptError("x")], asked.encode_pending()[1])
    refusal = redis.NoPermissionError("User u has no permissions to run the 'script|load' command")
    with pytest.raises(PermissionDenied, match=r"script\|load.*security-acl"):
        asked.handle_replies([refusal, redis.NoScriptError("x")], asked.encode_pending()[1])


def test_moved_asks_for_the_topology_and_ask_does_not() -> None:
    asked = exchange(GET)
    assert (
        asked.handle_replies([redis.MovedError("1 10.0.0.1:7")], asked.encode_pending()[1]) == 0.0
    )
    assert asked.topology_changed
    assert asked.ask_node is None
    asked.topology_changed = False
    assert asked.handle_replies([redis.AskError("1 10.0.0.2:8")], asked.encode_pending()[1]) > 0
    assert not asked.topology_changed
    assert asked.ask_node == ("10.0.0.2", 8)
    data, owners = asked_for(asked)
    assert data.startswith(encode_command(["ASKING"]))
    asked.handle_replies([b"OK", b"v"], owners)
    assert asked.results("q") == [b"v"]


def test_asking_again_goes_to_the_owner() -> None:
    asked = exchange(GET)
    asked.handle_replies([redis.AskError("1 10.0.0.2:8")], asked.encode_pending()[1])
    asked.handle_replies([b"OK", redis.TryAgainError("x")], asked.encode_pending()[1])
    assert asked.ask_node is None
    assert asked.topology_changed


def test_a_refusal_behind_an_open_operation_is_asked_again() -> None:
    asked = exchange(GET, GET, GET)
    gap = redis.ResponseError("CHASQUIGAP 0")
    asked.handle_replies([redis.TryAgainError("x"), gap, b"v"], asked.encode_pending()[1])
    assert not asked.finished
    _, owners = asked.encode_pending()
    assert owners == [0, 1]
    asked.handle_replies([b"a", b"b"], owners)
    assert asked.results("q") == [b"a", b"b", b"v"]


@pytest.mark.parametrize(
    "reply",
    [
        redis.ReadOnlyError("You can't write against a read only replica."),
        redis.TryAgainError("Multiple keys request during rehashing of slot"),
        redis.ClusterDownError("The cluster is down"),
        redis.MasterDownError("Link with MASTER is down"),
        redis.ResponseError("BUSY Redis is busy running a script."),
        redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
        redis.ResponseError("UNBLOCKED force unblock from blocking operation"),
    ],
)
def test_what_passes_is_waited_for(reply: Exception) -> None:
    asked = exchange(GET, retries=3)
    waits = [asked.handle_replies([reply], asked.encode_pending()[1]) for _ in range(3)]
    assert all(wait > 0 for wait in waits)
    with pytest.raises(RedisServerError):
        asked.handle_replies([reply], asked.encode_pending()[1])


def test_pauses_double_up_to_a_second_and_are_jittered() -> None:
    seen: list[list[float]] = [[] for _ in range(9)]
    for _ in range(200):
        asked = exchange(GET, retries=9)
        for each in seen:
            each.append(asked.handle_disconnect(redis.ConnectionError("gone")))
    for number, waits in enumerate(seen):
        top = min(1.0, 0.02 * 2**number)
        assert top / 2 <= min(waits) < max(waits) <= top
        assert max(waits) - min(waits) > top / 4


def test_it_gives_up_after_the_retries() -> None:
    asked = exchange(GET, retries=2)
    for _ in range(2):
        asked.handle_disconnect(redis.ConnectionError("gone"))
    with pytest.raises(ConnectionFailed, match="no connection to here: gone"):
        asked.handle_disconnect(redis.ConnectionError("gone"))


def test_it_gives_up_while_the_server_still_remembers_the_first_send() -> None:
    clock = Clock()
    asked = exchange(GET, retries=1000, clock=clock)

    def try_for_ever() -> None:
        while True:
            clock.now += asked.handle_disconnect(redis.TimeoutError("slow")) + 10.0

    with pytest.raises(ConnectionFailed):
        try_for_ever()
    assert 60 <= clock.now <= IDEMPOTENCY_TTL_MS / 1000 - 10


def test_its_patience_counts_from_the_first_send() -> None:
    clock = Clock()
    clock.now = 1000.0
    asked = PipelineRequest([GET], "native", "here", 1000, clock, started_at=950.0)
    asked.handle_disconnect(redis.ConnectionError("lost"))
    clock.now = 1011.0
    with pytest.raises(ConnectionFailed):
        asked.handle_disconnect(redis.ConnectionError("lost"))


def test_a_long_agreed_silence_is_not_impatience() -> None:
    clock = Clock()
    asked = exchange(redis_command("XREAD", parse=as_raw, block_ms=90_000), clock=clock)
    assert asked.block_timeout == 90
    clock.now = 91
    assert asked.handle_disconnect(redis.ConnectionError("gone")) > 0


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (redis.AuthenticationError("invalid username-password pair"), AuthenticationFailed),
        (redis.NoPermissionError("no permissions to run 'cluster|slots'"), PermissionDenied),
        (redis.ResponseError("ERR This instance has cluster support disabled"), RedisServerError),
    ],
)
def test_some_failures_are_final_at_once(error: Exception, ours: type[Exception]) -> None:
    with pytest.raises(ours):
        exchange(GET).handle_disconnect(error)


@pytest.mark.parametrize(
    ("reply", "ours"),
    [
        (redis.ResponseError("CHASQUIFULL 10"), QueueFull),
        (redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), QueueFull),
        (redis.ResponseError("WRONGTYPE Operation against a key"), KeyTypeMismatch),
        (redis.ResponseError("ERR something else"), RedisServerError),
    ],
)
def test_a_refusal_is_the_answer_of_its_operation_only(
    reply: Exception, ours: type[Exception]
) -> None:
    asked = exchange(GET, GET)
    asked.handle_replies([b"v", reply], asked.encode_pending()[1])
    good, bad = asked.results("q")
    assert good == b"v"
    assert type(bad) is ours
    assert bad.queue == "q"
    assert bad.__cause__ is reply


def test_absent_answers_for_a_missing_group() -> None:
    op = redis_command("XPENDING", "s", "g", parse=as_raw, default_if_missing=lambda: "none")
    asked = exchange(op)
    asked.handle_replies(
        [redis.ResponseError("NOGROUP No such key 's'")], asked.encode_pending()[1]
    )
    assert asked.results("q") == ["none"]
