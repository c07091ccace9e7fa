"""The connection: what its fields mean, and what the test button says."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.hooks._connection import parse_connection
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from tests.conftest import Server
from tests.provider.conftest import connect, connection_json
from tests.support.servers import Certificates, RedisServer


def connection(**fields: Any) -> Connection:
    extra = fields.pop("extra", {})
    return Connection(conn_id="c", conn_type="chasqui", extra=json.dumps(extra), **fields)


def test_a_plain_server() -> None:
    found = parse_connection(
        connection(host="redis", port=6380, login="ada", password="pw", schema="2")
    )
    assert found.target.nodes == (("redis", 6380),)
    assert (found.target.db, found.target.username, found.target.password) == (2, "ada", "pw")
    assert (found.target.tls, found.queue_name, found.dialect) == (None, None, None)


def test_sentinels() -> None:
    extra = {"mode": "sentinel", "nodes": "s1, s2:26380", "sentinel_master": "main"}
    found = parse_connection(connection(extra=extra | {"sentinel_password": "spw"})).target
    assert found.nodes == (("s1", 26379), ("s2", 26380))
    assert (found.sentinel_master, found.sentinel_password) == ("main", "spw")


def test_a_cluster_and_tls() -> None:
    extra = {"mode": "cluster", "nodes": "n1,[::1]:7000", "tls": True, "tls_ca_file": "/ca"}
    found = parse_connection(connection(extra=extra | {"tls_verify": "false"})).target
    assert found.cluster
    assert found.nodes == (("n1", 6379), ("::1", 7000))
    assert found.tls is not None
    assert (found.tls.ca_file, found.tls.verify) == ("/ca", False)


def test_a_uri_gives_text_everywhere() -> None:
    uri = "chasqui://ada:p%40ss@redis:6380/3?tls=true&max_len=500&timeout=2.5&group=g&queue_name=q"
    found = parse_connection(Connection.from_uri(uri, conn_id="c"))
    assert (found.target.password, found.target.db) == ("p@ss", 3)
    assert found.target.tls is not None
    assert (found.config.max_len, found.config.group, found.target.timeout) == (500, "g", 2.5)
    assert found.queue_name == "q"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"extra": {"mode": "ring"}}, "mode is one of standalone, sentinel, cluster"),
        ({"extra": {"mode": "sentinel", "nodes": "a"}}, "needs the name of the master"),
        ({"extra": {"nodes": "a,b"}}, "several nodes need the mode"),
        ({"extra": {"nodes": "a:port"}}, "nodes are host:port"),
        ({"extra": {"tls": "maybe"}}, "tls is true or false"),
        ({"extra": {"timeout": "soon"}}, "timeout is a number"),
        ({"schema": "first"}, "db is a number"),
        ({"extra": {"mode": "cluster"}, "schema": "1"}, "only database 0"),
        ({"extra": {"max_len": -1}}, "whole number"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_connection(connection(**fields))


def test_the_button_says_what_is_there(connected: Server) -> None:
    good, said = ChasquiHook().test_connection()
    assert good, said
    assert f"{connected.dialect} dialect" in said
    assert "all rights are there" in said


def test_the_button_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, redis86_binary: Any
) -> None:
    from redis import Redis

    with RedisServer.start(redis86_binary) as process:
        connect(monkeypatch, Server(process.url, "native"))
        assert ChasquiHook().test_connection()[0]
        with Redis.from_url(process.url) as client:
            assert client.dbsize() == 0


def test_the_button_names_the_missing_right(
    monkeypatch: pytest.MonkeyPatch, redis86_binary: Any
) -> None:
    rule = "user ada +@all -setbit -zadd -xgroup|create -getbit ~* on >pw"
    with RedisServer.start(redis86_binary, config=f"{rule}\n") as process:
        fields = json.loads(connection_json(process.url, "auto")) | {
            "login": "ada", "password": "pw"
        }  # fmt: skip
        monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", json.dumps(fields))
        good, said = ChasquiHook().test_connection()
    assert not good
    assert "GETBIT, XGROUP CREATE, ZADD" in said
    assert "+getbit +xgroup|create +zadd" in said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"password": "wrong-secret"}, "refused the login"),
        ({"port": 1, "password": "wrong-secret"}, "no connection to"),
    ],
)
def test_the_button_says_what_to_fix_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, redis86_binary: Any, fields: dict[str, Any], said: str
) -> None:
    with RedisServer.start(redis86_binary, "--requirepass", "right") as process:
        base = json.loads(connection_json(process.url, "auto", retries=0))
        monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", json.dumps(base | fields))
        good, told = ChasquiHook().test_connection()
    assert not good
    assert said in told
    assert "secret" not in told


def test_tls_with_a_client_certificate(
    monkeypatch: pytest.MonkeyPatch, redis86_binary: Any, certificates: Certificates
) -> None:
    with RedisServer.start(redis86_binary, tls=certificates, client_certificate=True) as process:
        url = process.url.replace("rediss", "redis")
        extra = {
            "tls": True,
            "tls_ca_file": str(certificates.ca),
            "tls_cert_file": str(certificates.client),
            "tls_key_file": str(certificates.client_key),
        }
        monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", connection_json(url, "auto", **extra))
        good, said = ChasquiHook().test_connection()
    assert good, said


def test_an_evicting_server_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, redis86_binary: Any
) -> None:
    with RedisServer.start(redis86_binary, "--maxmemory-policy", "allkeys-lru") as process:
        connect(monkeypatch, Server(process.url, "native"))
        good, said = ChasquiHook().test_connection()
    assert good
    assert "allkeys-lru" in said


def test_a_hook_shares_its_connections(connected: Server, queue_name: str) -> None:
    with ChasquiHook() as hook:
        assert hook.queue(queue_name) is hook.queue(queue_name)
        assert hook.queue(queue_name).add(1).created
        assert hook.queue(f"{queue_name}-2").add(1).created
        with hook.lease_queue(queue_name) as leases:
            (lease,) = leases.lease("me")
            leases.ack(lease.token)
        assert hook.queue(queue_name).depth().waiting == 0


def test_the_connection_may_name_the_queue(
    monkeypatch: pytest.MonkeyPatch, native_server: Server, queue_name: str
) -> None:
    connect(monkeypatch, native_server)
    with pytest.raises(InvalidArgument, match="say which queue"):
        ChasquiHook().get_conn()
    connect(monkeypatch, native_server, queue_name=queue_name)
    with ChasquiHook() as hook:
        assert hook.get_conn().name == queue_name


async def test_an_async_queue(connected: Server, queue_name: str) -> None:
    hook = ChasquiHook()
    async with await hook.async_queue(queue_name) as queue:
        await queue.add(1)
        assert (await queue.depth()).waiting == 1


def test_secrets_are_masked_in_logs(monkeypatch: pytest.MonkeyPatch, native_server: Server) -> None:
    from airflow.sdk.log import redact

    fields = json.loads(connection_json(native_server.url, "auto", sentinel_password="deep-secret"))
    monkeypatch.setenv(
        "AIRFLOW_CONN_CHASQUI_DEFAULT", json.dumps(fields | {"password": "top-secret"})
    )
    hook = ChasquiHook()
    assert hook.settings.target.password == "top-secret"
    told = redact("redis://:top-secret@x and deep-secret")
    assert "secret" not in str(told)
    assert "secret" not in repr(hook.settings)


async def test_the_whole_engine_comes_from_a_hook(connected: Server, queue_name: str) -> None:
    import asyncio
    from datetime import timedelta

    from airflow_provider_chasqui.core.cron import Every

    logging.getLogger("airflow").setLevel(logging.WARNING)
    hook, seen = ChasquiHook(), asyncio.Event()
    ran = []

    async def handle(job: Any) -> None:
        ran.append(job.payload)
        if len(set(ran)) == 3:
            seen.set()

    from airflow_provider_chasqui.core.config import ConsumerConfig

    parts = [
        hook.consumer(handle, queue_name, ConsumerConfig(promoter=None, scheduler=None)),
        hook.promoter(queue_name),
        hook.scheduler(queue_name),
    ]
    tasks = [asyncio.create_task(part.run()) for part in parts]
    async with await hook.async_queue(queue_name) as queue:
        await queue.add("now")
        await queue.add("later", delay=timedelta(milliseconds=300))
        await queue.repeat("again", Every(200))
        await asyncio.wait_for(seen.wait(), 20)
    for part in parts:
        part.stop()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
