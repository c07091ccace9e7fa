"""Retries of a request: what is sent again, how often and after which delay, without a socket."""

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
from airflow_provider_chasqui.core.commands.idempotency import IDEMPOTENCY_TTL_MS
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
from airflow_provider_chasqui.redis_client.scripts import load_script

GET = redis_command("GET", "k", parse=as_raw)
ACQUIRE_LOCK = script_command("acquire_leader_lock", as_int, ["lock"], ["me", 5])
ACQUIRE_LOCK_BYTES = encode_command(
    ("EVALSHA", load_script("acquire_leader_lock", "native").sha, 1, "lock", "me", 5)
)


class Clock:
    """Clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_request(
    *commands: Command[Any] | DialectCommand[Any], retries: int = 8, clock: Clock | None = None
) -> PipelineRequest:
    return PipelineRequest(commands, "native", "here", retries, clock or Clock())


def encoded(request: PipelineRequest) -> tuple[bytes, list[int | None]]:
    """Return the bytes to send, and the command index of each reply."""
    chunks, indexes = request.encode_pending()
    return b"".join(chunks), indexes


def test_results_are_in_the_order_of_the_commands() -> None:
    request = make_request(GET, redis_command("XLEN", "s", parse=as_int))
    data, indexes = encoded(request)
    assert data == b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*2\r\n$4\r\nXLEN\r\n$1\r\ns\r\n"
    assert request.handle_replies([b"v", 7], indexes) == 0.0
    assert request.finished
    assert request.results("q") == [b"v", 7]


def test_the_dialect_selects_the_command() -> None:
    command = DialectCommand(redis_command("A", parse=as_raw), redis_command("B", parse=as_raw))
    assert b"A" in encoded(PipelineRequest([command], "native", "here", 0))[0]
    assert b"B" in encoded(PipelineRequest([command], "portable", "here", 0))[0]


def test_an_unknown_script_is_loaded_once_and_only_its_calls_are_sent_again() -> None:
    request = make_request(GET, ACQUIRE_LOCK, ACQUIRE_LOCK)
    data, indexes = encoded(request)
    assert data.count(ACQUIRE_LOCK_BYTES) == 2
    assert (
        request.handle_replies([b"v", redis.NoScriptError("x"), redis.NoScriptError("x")], indexes)
        == 0.0
    )
    data, indexes = encoded(request)
    assert encode_command(GET.args) not in data
    assert data.count(b"LOAD") == 1
    assert data.count(ACQUIRE_LOCK_BYTES) == 2
    assert indexes == [None, 1, 2]
    request.handle_replies([b"sha", 1, 0], indexes)
    assert request.results("q") == [b"v", 1, 0]


def test_a_script_that_the_user_may_not_load_is_a_permission_error() -> None:
    request = make_request(ACQUIRE_LOCK)
    request.handle_replies([redis.NoScriptError("x")], request.encode_pending()[1])
    denied = redis.NoPermissionError("User u has no permissions to run the 'script|load' command")
    with pytest.raises(PermissionDenied, match=r"script\|load.*security-acl"):
        request.handle_replies([denied, redis.NoScriptError("x")], request.encode_pending()[1])


def test_moved_invalidates_the_topology_and_ask_does_not() -> None:
    request = make_request(GET)
    assert (
        request.handle_replies([redis.MovedError("1 10.0.0.1:7")], request.encode_pending()[1])
        == 0.0
    )
    assert request.topology_changed
    assert request.ask_node is None
    request.topology_changed = False
    assert request.handle_replies([redis.AskError("1 10.0.0.2:8")], request.encode_pending()[1]) > 0
    assert not request.topology_changed
    assert request.ask_node == ("10.0.0.2", 8)
    data, indexes = encoded(request)
    assert data.startswith(encode_command(["ASKING"]))
    request.handle_replies([b"OK", b"v"], indexes)
    assert request.results("q") == [b"v"]


@pytest.mark.parametrize("error", [redis.AskError("1 10.0.0.2:8"), redis.MovedError("1 h:7")])
def test_a_redirection_is_followed_without_retries(error: Exception) -> None:
    """The node that redirects has not executed the command, so the reader may send it again."""
    request = make_request(GET, retries=0)
    assert request.handle_replies([error], request.encode_pending()[1]) == 0.0
    assert not request.finished
    _, indexes = request.encode_pending()
    with pytest.raises(ConnectionFailed):
        request.handle_replies([b"OK"] * (len(indexes) - 1) + [error], indexes)


def test_a_transient_error_after_ask_goes_back_to_the_owner() -> None:
    request = make_request(GET)
    request.handle_replies([redis.AskError("1 10.0.0.2:8")], request.encode_pending()[1])
    request.handle_replies([b"OK", redis.TryAgainError("x")], request.encode_pending()[1])
    assert request.ask_node is None
    assert request.topology_changed


def test_an_error_after_an_unfinished_command_is_retried() -> None:
    request = make_request(GET, GET, GET)
    gap = redis.ResponseError("CHASQUIGAP 0")
    request.handle_replies([redis.TryAgainError("x"), gap, b"v"], request.encode_pending()[1])
    assert not request.finished
    _, indexes = request.encode_pending()
    assert indexes == [0, 1]
    request.handle_replies([b"a", b"b"], indexes)
    assert request.results("q") == [b"a", b"b", b"v"]


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
def test_transient_errors_are_retried_after_a_delay(reply: Exception) -> None:
    request = make_request(GET, retries=3)
    delays = [request.handle_replies([reply], request.encode_pending()[1]) for _ in range(3)]
    assert all(delay > 0 for delay in delays)
    with pytest.raises(RedisServerError):
        request.handle_replies([reply], request.encode_pending()[1])


def test_delays_double_up_to_one_second_and_are_jittered() -> None:
    delays_by_attempt: list[list[float]] = [[] for _ in range(9)]
    for _ in range(200):
        request = make_request(GET, retries=9)
        for delays in delays_by_attempt:
            delays.append(request.handle_disconnect(redis.ConnectionError("lost")))
    for attempt, delays in enumerate(delays_by_attempt):
        maximum = min(1.0, 0.02 * 2**attempt)
        assert maximum / 2 <= min(delays) < max(delays) <= maximum
        assert max(delays) - min(delays) > maximum / 4


def test_a_request_gives_up_after_the_retries() -> None:
    request = make_request(GET, retries=2)
    for _ in range(2):
        request.handle_disconnect(redis.ConnectionError("lost"))
    with pytest.raises(ConnectionFailed, match="no connection to here: lost"):
        request.handle_disconnect(redis.ConnectionError("lost"))


def test_a_request_gives_up_before_its_idempotency_id_expires() -> None:
    clock = Clock()
    request = make_request(GET, retries=1000, clock=clock)

    def retry_forever() -> None:
        while True:
            clock.now += request.handle_disconnect(redis.TimeoutError("slow")) + 10.0

    with pytest.raises(ConnectionFailed):
        retry_forever()
    assert 60 <= clock.now <= IDEMPOTENCY_TTL_MS / 1000 - 10


def test_the_retry_timeout_counts_from_the_first_attempt() -> None:
    clock = Clock()
    clock.now = 1000.0
    request = PipelineRequest([GET], "native", "here", 1000, clock, started_at=950.0)
    request.handle_disconnect(redis.ConnectionError("lost"))
    clock.now = 1011.0
    with pytest.raises(ConnectionFailed):
        request.handle_disconnect(redis.ConnectionError("lost"))


def test_the_block_timeout_extends_the_retry_timeout() -> None:
    clock = Clock()
    request = make_request(redis_command("XREAD", parse=as_raw, block_ms=90_000), clock=clock)
    assert request.block_timeout == 90
    clock.now = 91
    assert request.handle_disconnect(redis.ConnectionError("lost")) > 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.AuthenticationError("invalid username-password pair"), AuthenticationFailed),
        (redis.NoPermissionError("no permissions to run 'cluster|slots'"), PermissionDenied),
        (redis.ResponseError("ERR This instance has cluster support disabled"), RedisServerError),
    ],
)
def test_permanent_failures_are_not_retried(error: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected):
        make_request(GET).handle_disconnect(error)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (redis.ResponseError("CHASQUIFULL 10"), QueueFull),
        (redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), QueueFull),
        (redis.ResponseError("WRONGTYPE Operation against a key"), KeyTypeMismatch),
        (redis.ResponseError("ERR something else"), RedisServerError),
    ],
)
def test_an_error_reply_is_the_result_of_its_command_only(
    reply: Exception, expected: type[Exception]
) -> None:
    request = make_request(GET, GET)
    request.handle_replies([b"v", reply], request.encode_pending()[1])
    good, bad = request.results("q")
    assert good == b"v"
    assert type(bad) is expected
    assert bad.queue_name == "q"
    assert bad.__cause__ is reply


def test_a_missing_group_gives_the_default_of_the_command() -> None:
    command = redis_command("XPENDING", "s", "g", parse=as_raw, default_if_missing=lambda: "none")
    request = make_request(command)
    request.handle_replies(
        [redis.ResponseError("NOGROUP No such key 's'")], request.encode_pending()[1]
    )
    assert request.results("q") == ["none"]
