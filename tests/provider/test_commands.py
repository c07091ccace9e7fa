"""`airflow chasqui …`: the CLI with the server of an Airflow connection."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget, Tls, from_url
from tests.conftest import Server
from tests.provider.conftest import connection_json

TARGETS = [
    RedisTarget(nodes=(("redis", 6380),), db=3, username="ada", password="p@ss/:"),
    RedisTarget(nodes=(("::1", 6379),), tls=Tls("/ca", "/cert", "/key", True, False)),
    RedisTarget(
        nodes=(("s1", 26379), ("s2", 26380)), sentinel_master="main/1", sentinel_password="a&b"
    ),
    RedisTarget(nodes=(("n1", 7000), ("n2", 7001)), cluster=True, timeout=2.5, retries=0),
]


@pytest.mark.parametrize("target", TARGETS, ids=["plain", "tls", "sentinel", "cluster"])
def test_the_environment_of_the_cli_describes_the_server(target: RedisTarget) -> None:
    environment = target.to_env()
    parsed = from_url(
        environment["CHASQUI_URL"],
        username=environment.get("CHASQUI_USERNAME"),
        password=environment.get("CHASQUI_PASSWORD"),
    )
    assert parsed == target
    assert "p@ss" not in environment["CHASQUI_URL"]


@pytest.mark.timeout(120)
def test_airflow_chasqui_inspect_uses_the_connection(
    native_server: Server, queue_name: str
) -> None:
    connection = connection_json(native_server.url, "auto")
    with Queue(queue_name, native_server.url) as queue:
        queue.add_many([{"payload": n} for n in range(7)])
    env = os.environ | {"AIRFLOW_CONN_QUEUES": connection}
    command = ["airflow", "chasqui", "inspect", "--conn-id", "queues", queue_name, "--json"]
    process = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=env,
    )
    assert process.returncode == 0, process.stderr
    assert '"waiting": 7' in process.stdout.replace('":7', '": 7')
