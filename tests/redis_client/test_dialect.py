"""Which dialect a server speaks, from what real servers answered, and from real servers."""

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

REFUSED = redis.ResponseError
UNKNOWN = REFUSED("ERR unknown command 'XACKDEL', with args beginning with: '{chasqui:q}:probe' ")
NOT_AN_ID = REFUSED("ERR Invalid stream ID specified as stream command argument")
NO_GROUP = REFUSED("NOGROUP No such key '{chasqui:q}:probe' or consumer group 'g' in XREADGROUP")
SYNTAX = REFUSED("ERR syntax error")
# Redis 6.2.14 and 5.0.14; they take the first line for Lua.
COMPILE = REFUSED(
    "ERR Error compiling script (new function): user_script:1: unexpected symbol near '#' "
)


def said(*replies: Any) -> list[Any]:
    exchange = PipelineRequest(probe_commands("{chasqui:q}"), "portable", "here", 0)
    exchange.handle_replies(list(replies), exchange.encode_pending()[1])
    return exchange.results("q")


@pytest.mark.parametrize(
    ("replies", "dialect"),
    [
        (([-1], None, NO_GROUP, 1), "native"),  # Redis 8.6.3
        (([-1], NOT_AN_ID, SYNTAX, 1), "portable"),  # Redis 8.2
        (([-1], NOT_AN_ID, NO_GROUP, 1), "portable"),  # Redis 8.4: CLAIM, but no IDMP
        ((UNKNOWN, NOT_AN_ID, SYNTAX, 1), "portable"),  # Redis 7, Valkey 8 and 9
    ],
)
def test_what_a_server_answers_tells_its_dialect(replies: tuple[Any, ...], dialect: str) -> None:
    assert detect(said(*replies), "here") == dialect


def test_a_server_older_than_seven_is_too_old() -> None:
    with pytest.raises(ServerTooOld, match=r"CMQ-302.*here is older than Redis 7.0; use Redis"):
        detect(said(UNKNOWN, NOT_AN_ID, SYNTAX, COMPILE), "here")


def test_a_user_without_rights_is_not_taken_for_an_old_server() -> None:
    refusal = redis.NoPermissionError("User u has no permissions to run the 'eval' command")
    with pytest.raises(PermissionDenied, match="CMQ-303"):
        detect(said([-1], None, NO_GROUP, refusal), "here")


def test_every_server_is_judged_as_it_is(open_queue: Open, server: Server, queue_name: str) -> None:
    queue = open_queue(queue_name, server.url)
    found = queue.dialect()
    assert found == ("native" if "native" in server.dialect else found)
    with admin(int(server.url.rpartition(":")[2].partition("/")[0])) as client:
        keys = list(client.scan_iter(f"*{queue_name}*", count=1000))
        redis8 = str(client.info("server").get("redis_version", "")).startswith("8")
    assert found == ("native" if redis8 else "portable")
    assert keys == []


def test_a_replica_without_its_master_is_said_to_be_one(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    master = str(valkey_server.port)
    with RedisServer.start(valkey_server.binary, "--replicaof", "127.0.0.1", master) as replica:
        queue = open_queue(queue_name, f"{replica.url}?retries=1")
        with pytest.raises(ConnectionFailed, match="is a replica and takes no writes"):
            queue.add(1)
