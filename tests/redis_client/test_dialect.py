"""Detection of the dialect, from recorded replies of real servers and from real servers."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions as redis

from airflow_provider_chasqui.core.errors import ConnectionFailed, PermissionDenied, ServerTooOld
from airflow_provider_chasqui.redis_client.dialect import detect, probe_commands
from airflow_provider_chasqui.redis_client.retry import PipelineRequest
from tests.conftest import Server
from tests.redis_client.conftest import Open, admin
from tests.support.servers import RedisServer

UNKNOWN = redis.ResponseError(
    "ERR unknown command 'XACKDEL', with args beginning with: '{chasqui:q}:probe' "
)
NOT_AN_ID = redis.ResponseError("ERR Invalid stream ID specified as stream command argument")
NO_GROUP = redis.ResponseError(
    "NOGROUP No such key '{chasqui:q}:probe' or consumer group 'g' in XREADGROUP"
)
SYNTAX = redis.ResponseError("ERR syntax error")
# The reply of Redis 6.2.14 and 5.0.14, which parse the shebang line as Lua.
COMPILE = redis.ResponseError(
    "ERR Error compiling script (new function): user_script:1: unexpected symbol near '#' "
)


def parsed(*replies: Any) -> list[Any]:
    """Return the results of the probe commands for some replies."""
    request = PipelineRequest(probe_commands("{chasqui:q}"), "portable", "here", 0)
    request.handle_replies(list(replies), request.encode_pending()[1])
    return request.results("q")


@pytest.mark.parametrize(
    ("replies", "dialect"),
    [
        (([-1], None, NO_GROUP, 1), "native"),  # Redis 8.6.3
        (([-1], NOT_AN_ID, SYNTAX, 1), "portable"),  # Redis 8.2
        (([-1], NOT_AN_ID, NO_GROUP, 1), "portable"),  # Redis 8.4: CLAIM, but no IDMP
        ((UNKNOWN, NOT_AN_ID, SYNTAX, 1), "portable"),  # Redis 7, Valkey 8 and 9
    ],
)
def test_the_replies_to_the_probes_determine_the_dialect(
    replies: tuple[Any, ...], dialect: str
) -> None:
    assert detect(parsed(*replies), "here") == dialect


def test_a_server_older_than_seven_is_too_old() -> None:
    with pytest.raises(ServerTooOld, match=r"CMQ-302.*here is older than Redis 7.0; use Redis"):
        detect(parsed(UNKNOWN, NOT_AN_ID, SYNTAX, COMPILE), "here")


def test_a_missing_permission_is_not_reported_as_an_old_server() -> None:
    denied = redis.NoPermissionError("User u has no permissions to run the 'eval' command")
    with pytest.raises(PermissionDenied, match="CMQ-303"):
        detect(parsed([-1], None, NO_GROUP, denied), "here")


def test_the_dialect_of_every_server_is_detected_without_writing_keys(
    open_queue: Open, server: Server, queue_name: str
) -> None:
    queue = open_queue(queue_name, server.url)
    dialect = queue.dialect()
    assert dialect == ("native" if "native" in server.dialect else dialect)
    with admin(int(server.url.rpartition(":")[2].partition("/")[0])) as client:
        keys = list(client.scan_iter(f"*{queue_name}*", count=1000))
        redis8 = str(client.info("server").get("redis_version", "")).startswith("8")
    assert dialect == ("native" if redis8 else "portable")
    assert keys == []


def test_a_write_to_a_replica_is_reported_as_such(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    master = str(valkey_server.port)
    with RedisServer.start(valkey_server.binary, "--replicaof", "127.0.0.1", master) as replica:
        queue = open_queue(queue_name, f"{replica.url}?retries=1")
        with pytest.raises(ConnectionFailed, match="is a replica and accepts no writes"):
            queue.add(1)
