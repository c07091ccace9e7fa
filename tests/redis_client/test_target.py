"""Targets from URLs and keywords; errors contain no secret."""

from __future__ import annotations

import os
import socket

import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.redis_client.target import RedisTarget, Tls, from_url
from tests.redis_client.conftest import Open, admin
from tests.support.servers import RedisServer

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis://h", RedisTarget((("h", 6379),))),
        ("redis://h:1234/5", RedisTarget((("h", 1234),), db=5)),
        ("redis://:p@h", RedisTarget((("h", 6379),), password="p")),
        ("redis://u:p@h", RedisTarget((("h", 6379),), username="u", password="p")),
        ("redis://u@h/", RedisTarget((("h", 6379),), username="u")),
        (
            "redis://a%40b:p%2F%23%3F%3A@h",
            RedisTarget((("h", 6379),), username="a@b", password="p/#?:"),
        ),
        ("redis://u:p@ss@h", RedisTarget((("h", 6379),), username="u", password="p@ss")),
        ("redis://[::1]", RedisTarget((("::1", 6379),))),
        ("redis://u:p@[fe80::1]:7000/1", RedisTarget((("fe80::1", 7000),), 1, "u", "p")),
        ("unix:///run/r.sock", RedisTarget((), unix_path="/run/r.sock")),
        (
            "unix://u:p@/run/r%20x.sock?db=3",
            RedisTarget((), 3, "u", "p", unix_path="/run/r x.sock"),
        ),
        ("rediss://h", RedisTarget((("h", 6379),), tls=Tls())),
        (
            "rediss://h?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k&ssl_check_hostname=false",
            RedisTarget((("h", 6379),), tls=Tls("/ca", "/c", "/k", True, False)),
        ),
        ("rediss://h?ssl_cert_reqs=none", RedisTarget((("h", 6379),), tls=Tls(verify=False))),
        (
            "redis+sentinel://u:p@a,b:1,[::1]:2/main/4?sentinel_password=s",
            RedisTarget(
                (("a", 26379), ("b", 1), ("::1", 2)),
                4,
                "u",
                "p",
                sentinel_master="main",
                sentinel_password="s",
            ),
        ),
        (
            "rediss+cluster://a:1,b",
            RedisTarget((("a", 1), ("b", 6379)), cluster=True, tls=Tls()),
        ),
        (
            "redis://h?timeout=2.5&connect_timeout=1&retries=3&client_name=me",
            RedisTarget(
                (("h", 6379),), timeout=2.5, connect_timeout=1, retries=3, client_name="me"
            ),
        ),
    ],
)
def test_a_url_is_parsed_to_a_target(url: str, target: RedisTarget) -> None:
    assert from_url(url) == target


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must begin with one of redis://"),
        ("localhost:6379", "must begin with one of"),
        (f"http://:{SECRET}@h", "must begin with one of"),
        (f"redis://:{SECRET}@", "has no host"),
        ("redis:///0", "has no host"),
        ("redis://h:port", "the port in the URL is not a number"),
        ("redis://h:0", "from 1 to 65535"),
        ("redis://h:70000", "from 1 to 65535"),
        ("redis://h/zero", "the database in the URL is not a number"),
        ("redis://h/0/1", "the path of the server's URL is too long"),
        ("redis://h/²", "not a number"),
        ("redis://::1", "needs brackets"),
        (f"redis://u:{SECRET}#x@h", "write / as %2F"),
        (f"redis://u:{SECRET}/x@h", "write / as %2F"),
        (f"redis://u:{SECRET}?x@h", "write / as %2F"),
        ("redis://h?timeout=soon", "not a number of seconds"),
        ("redis://h?timeout=0", "more than 0 seconds"),
        ("redis://h?retries=-1", "not a number"),
        (f"redis://h?pass={SECRET}", "the URL option 'pass' is not known"),
        ("redis://h?ssl_ca_certs=/ca", "'ssl_ca_certs' is not known"),
        ("redis+sentinel://h", "names the master"),
        ("redis+cluster://h/1", "only database 0"),
        ("unix://run/r.sock", "three slashes"),
        ("unix://", "three slashes"),
        ("redis://a,,b", "has no host"),
    ],
)
def test_the_error_of_an_invalid_url_gives_advice_and_no_secret(url: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as info:
        from_url(url)
    assert message in str(info.value)
    assert "CMQ-004" in str(info.value)
    assert SECRET not in str(info.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": ()},
        {"nodes": (("", 1),)},
        {"nodes": (("h", 0),)},
        {"db": -1},
        {"cluster": True, "sentinel_master": "m"},
        {"cluster": True, "db": 1},
        {"unix_path": "/x", "nodes": (), "cluster": True},
        {"timeout": 0},
        {"connect_timeout": -1},
        {"retries": -1},
    ],
)
def test_invalid_fields_are_rejected(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        RedisTarget(**fields)  # type: ignore[arg-type]


TARGETS = [
    RedisTarget(),
    RedisTarget((("::1", 7000),), 3, "a@b", "p/#?:", timeout=2.5, client_name="me"),
    RedisTarget((("h", 6379),), password="p", tls=Tls("/ca", "/c", "/k", True, False), retries=0),
    RedisTarget((("s1", 1), ("s2", 2)), sentinel_master="main/1", sentinel_password="a&b"),
    RedisTarget((("n1", 7000), ("n2", 7001)), cluster=True, connect_timeout=1),
    RedisTarget((), 4, "u", "p", unix_path="/run/r x.sock"),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.display_name)
def test_a_target_is_restored_from_its_url_and_from_its_environment(target: RedisTarget) -> None:
    assert from_url(target.to_url()) == target
    variables = target.to_env()
    restored = from_url(
        variables["CHASQUI_URL"],
        username=variables.get("CHASQUI_USERNAME"),
        password=variables.get("CHASQUI_PASSWORD"),
    )
    assert restored == target


def test_the_url_of_the_environment_has_no_password() -> None:
    variables = RedisTarget(username="u", password=SECRET).to_env()
    assert SECRET not in variables["CHASQUI_URL"]
    assert variables["CHASQUI_PASSWORD"] == SECRET


def test_the_repr_and_the_display_name_have_no_password() -> None:
    url = f"redis+sentinel://u:{SECRET}@h/m?sentinel_password={SECRET}"
    target = from_url(url)
    assert SECRET not in f"{target!r} {target} {target.display_name}"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://u:p@h/2", "h:6379/2"),
        ("redis://[::1]:1", "[::1]:1/0"),
        ("unix:///r.sock", "unix:/r.sock"),
        ("redis+sentinel://a,b/m", "master 'm' of sentinels a:26379,b:26379"),
        ("redis+cluster://a,b", "cluster at a:6379,b:6379"),
    ],
)
def test_the_display_name_is_the_address(url: str, name: str) -> None:
    assert from_url(url).display_name == name


def test_a_queue_works_over_a_unix_socket(
    open_queue: Open, valkey_server: RedisServer, tmp_path: object, queue_name: str
) -> None:
    path = f"/tmp/chasqui-{os.getpid()}-{queue_name}.sock"
    with RedisServer.start(valkey_server.binary, "--unixsocket", path, "--databases", "4") as own:
        queue = open_queue(queue_name, f"unix://{path}?db=3")
        job = queue.add({"a": 1})
        assert queue.job_status(job.job_id).state == "waiting"
        over_tcp = open_queue(queue_name, f"redis://localhost:{own.port}/3")
        assert over_tcp.job_status(job.job_id).state == "waiting"
        assert open_queue(queue_name, f"redis://localhost:{own.port}/0").depth().waiting == 0


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")
def test_a_queue_works_over_ipv6(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    with RedisServer.start(valkey_server.binary, "--bind", "127.0.0.1", "-::1") as own:
        queue = open_queue(queue_name, f"redis://[::1]:{own.port}")
        assert queue.add(1).created
        assert queue.depth().waiting == 1


def test_the_server_lists_the_client_name(
    open_queue: Open, valkey_server: RedisServer, queue_name: str
) -> None:
    queue = open_queue(queue_name, f"{valkey_server.url}?client_name={queue_name}")
    queue.add(1)
    with admin(valkey_server) as client:
        assert queue_name in {row["name"] for row in client.client_list()}
