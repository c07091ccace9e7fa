"""The Airflow connection: its fields, and the connection test of the form."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.cron import Every
from airflow_provider_chasqui.core.errors import (
    AuthenticationFailed,
    ChasquiError,
    ConnectionFailed,
    InvalidArgument,
    KeyTypeMismatch,
    PermissionDenied,
    RedisServerError,
)
from airflow_provider_chasqui.hooks._connection import parse_connection
from airflow_provider_chasqui.hooks._connection_check import check_connection
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.hooks.rsmq import RsmqHook
from tests.conftest import Server
from tests.provider.conftest import connect, connection_json
from tests.support.servers import Certificates, RedisServer


def connection(**fields: Any) -> Connection:
    extra = fields.pop("extra", {})
    return Connection(conn_id="c", conn_type="chasqui", extra=json.dumps(extra), **fields)


def test_a_standalone_server() -> None:
    settings = parse_connection(
        connection(host="redis", port=6380, login="ada", password="pw", schema="2")
    )
    assert settings.target.nodes == (("redis", 6380),)
    assert (settings.target.db, settings.target.username, settings.target.password) == (
        2,
        "ada",
        "pw",
    )
    assert (settings.target.tls, settings.queue_name, settings.dialect) == (None, None, None)


def test_sentinel_nodes_and_credentials() -> None:
    extra = {"mode": "sentinel", "nodes": "s1, s2:26380", "sentinel_master": "main"}
    target = parse_connection(connection(extra=extra | {"sentinel_password": "spw"})).target
    assert target.nodes == (("s1", 26379), ("s2", 26380))
    assert (target.sentinel_master, target.sentinel_password) == ("main", "spw")


def test_cluster_nodes_and_tls_files() -> None:
    extra = {"mode": "cluster", "nodes": "n1,[::1]:7000", "tls": True, "tls_ca_file": "/ca"}
    target = parse_connection(connection(extra=extra | {"tls_verify": "false"})).target
    assert target.cluster
    assert target.nodes == (("n1", 6379), ("::1", 7000))
    assert target.tls is not None
    assert (target.tls.ca_file, target.tls.verify) == ("/ca", False)


def test_the_fields_of_a_uri_are_parsed_from_text() -> None:
    uri = "chasqui://ada:p%40ss@redis:6380/3?tls=true&max_len=500&timeout=2.5&group=g&queue_name=q"
    settings = parse_connection(Connection.from_uri(uri, conn_id="c"))
    assert (settings.target.password, settings.target.db) == ("p@ss", 3)
    assert settings.target.tls is not None
    assert (settings.config.max_len, settings.config.group, settings.target.timeout) == (
        500,
        "g",
        2.5,
    )
    assert settings.queue_name == "q"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"extra": {"mode": "ring"}}, "mode must be one of standalone, sentinel, cluster"),
        ({"extra": {"mode": "sentinel", "nodes": "a"}}, "requires sentinel_master"),
        ({"extra": {"nodes": "a,b"}}, "several nodes require the mode"),
        ({"extra": {"nodes": "a:port"}}, "nodes must be a list such as host:port"),
        ({"extra": {"tls": "maybe"}}, "tls must be true or false"),
        ({"extra": {"timeout": "soon"}}, "timeout must be a number"),
        ({"schema": "first"}, "db must be a number"),
        ({"extra": {"mode": "cluster"}, "schema": "1"}, "database 0"),
        ({"extra": {"max_len": -1}}, "max_len must be an integer"),
    ],
)
def test_the_error_names_the_invalid_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_connection(connection(**fields))


def test_the_connection_test_reports_dialect_and_permissions(connected: Server) -> None:
    succeeded, message = ChasquiHook().test_connection()
    assert succeeded, message
    assert f"{connected.dialect} dialect" in message
    assert "all permissions are granted" in message


def test_the_connection_test_creates_no_keys(
    monkeypatch: pytest.MonkeyPatch, redis86_binary: Any
) -> None:
    from redis import Redis

    with RedisServer.start(redis86_binary) as process:
        connect(monkeypatch, Server(process.url, "native"))
        assert ChasquiHook().test_connection()[0]
        with Redis.from_url(process.url) as client:
            assert client.dbsize() == 0


def test_the_connection_test_lists_missing_permissions(
    monkeypatch: pytest.MonkeyPatch, redis86_binary: Any
) -> None:
    rule = "user ada +@all -setbit -zadd -xgroup|create -getbit ~* on >pw"
    with RedisServer.start(redis86_binary, config=f"{rule}\n") as process:
        fields = json.loads(connection_json(process.url, "auto"))
        fields |= {"login": "ada", "password": "pw"}
        monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", json.dumps(fields))
        succeeded, message = ChasquiHook().test_connection()
    assert not succeeded
    assert "GETBIT, XGROUP CREATE, ZADD" in message
    assert "+getbit +xgroup|create +zadd" in message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"password": "wrong-secret"}, "refused the login"),
        ({"port": 1, "password": "wrong-secret"}, "no connection to"),
    ],
)
def test_the_connection_test_reports_the_problem_without_secrets(
    monkeypatch: pytest.MonkeyPatch, redis86_binary: Any, fields: dict[str, Any], message: str
) -> None:
    with RedisServer.start(redis86_binary, "--requirepass", "right") as process:
        base = json.loads(connection_json(process.url, "auto", retries=0))
        monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", json.dumps(base | fields))
        succeeded, report = ChasquiHook().test_connection()
    assert not succeeded
    assert message in report
    assert "secret" not in report


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionFailed("the connection was lost"), ConnectionFailed),
        (AuthenticationFailed("the login was refused"), AuthenticationFailed),
        (PermissionDenied("no permission"), PermissionDenied),
        (RedisServerError("NOGROUP no such group"), None),
        (KeyTypeMismatch("another type"), None),
    ],
)
def test_the_connection_test_fails_by_the_class_of_the_error(
    error: ChasquiError, expected: type[ChasquiError] | None
) -> None:
    """A refused command is a missing permission; any other reply proves the permission."""

    def execute(command: Any) -> Any:
        if command.args[0] == "XADD":
            raise error
        return b""

    queue: Any = SimpleNamespace(
        dialect=lambda: "native",
        keys=SimpleNamespace(hash_tag="{chasqui:q}"),
        client=SimpleNamespace(execute=execute),
    )
    if expected is None:
        assert "all permissions are granted" in check_connection(queue, "redis:6379")
    else:
        with pytest.raises(expected) as raised:
            check_connection(queue, "redis:6379")
        assert type(raised.value) is expected


def test_the_connection_test_works_with_a_client_certificate(
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
        succeeded, message = ChasquiHook().test_connection()
    assert succeeded, message


def test_the_connection_test_warns_of_an_eviction_policy(
    monkeypatch: pytest.MonkeyPatch, redis86_binary: Any
) -> None:
    with RedisServer.start(redis86_binary, "--maxmemory-policy", "allkeys-lru") as process:
        connect(monkeypatch, Server(process.url, "native"))
        succeeded, message = ChasquiHook().test_connection()
    assert succeeded
    assert "allkeys-lru" in message


def test_the_queues_of_a_hook_share_its_connections(connected: Server, queue_name: str) -> None:
    with ChasquiHook() as hook:
        assert hook.queue(queue_name) is hook.queue(queue_name)
        assert hook.queue(queue_name).add(1).created
        assert hook.queue(f"{queue_name}-2").add(1).created
        with hook.lease_queue(queue_name) as leases:
            (lease,) = leases.lease("me")
            leases.ack(lease.token)
        assert hook.queue(queue_name).depth().waiting == 0


def test_the_connection_contains_the_default_queue(
    monkeypatch: pytest.MonkeyPatch, native_server: Server, queue_name: str
) -> None:
    connect(monkeypatch, native_server)
    with pytest.raises(InvalidArgument, match="queue_name is required"):
        ChasquiHook().get_conn()
    connect(monkeypatch, native_server, queue_name=queue_name)
    with ChasquiHook() as hook:
        assert hook.get_conn().name == queue_name


async def test_a_hook_opens_an_async_queue(connected: Server, queue_name: str) -> None:
    hook = ChasquiHook()
    async with await hook.async_queue(queue_name) as queue:
        await queue.add(1)
        assert (await queue.depth()).waiting == 1


async def test_an_event_loop_reads_the_extra_fields_without_a_blocking_call(
    connected: Server, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, connected, queue_name=queue_name)

    def refuse(connection: Any) -> None:
        raise AssertionError("this masks the secrets with a blocking call to the supervisor")

    monkeypatch.setattr(Connection, "extra_dejson", property(refuse))
    async with await ChasquiHook().async_queue() as queue:
        assert queue.name == queue_name
    async with await RsmqHook().async_client():
        pass


def test_secrets_are_masked_in_logs(monkeypatch: pytest.MonkeyPatch, native_server: Server) -> None:
    from airflow.sdk.log import redact

    fields = json.loads(connection_json(native_server.url, "auto", sentinel_password="deep-secret"))
    monkeypatch.setenv(
        "AIRFLOW_CONN_CHASQUI_DEFAULT", json.dumps(fields | {"password": "top-secret"})
    )
    hook = ChasquiHook()
    assert hook.settings.target.password == "top-secret"
    redacted = redact("redis://:top-secret@x and deep-secret")
    assert "secret" not in str(redacted)
    assert "secret" not in repr(hook.settings)


async def test_a_hook_creates_consumer_promoter_and_scheduler(
    connected: Server, queue_name: str
) -> None:
    logging.getLogger("airflow").setLevel(logging.WARNING)
    hook, all_ran = ChasquiHook(), asyncio.Event()
    payloads = set()

    async def handle(job: Any) -> None:
        payloads.add(job.payload)
        if payloads == {"now", "later", "again"}:
            all_ran.set()

    services = [
        hook.consumer(handle, queue_name, ConsumerConfig(promoter=None, scheduler=None)),
        hook.promoter(queue_name),
        hook.scheduler(queue_name),
    ]
    tasks = [asyncio.create_task(service.run()) for service in services]
    async with await hook.async_queue(queue_name) as queue:
        await queue.add("now")
        await queue.add("later", delay=timedelta(milliseconds=300))
        await queue.repeat("again", Every(200))
        await asyncio.wait_for(all_ran.wait(), 20)
    for service in services:
        service.stop()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
