"""`airflow chasqui …` works on an Airflow connection."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from airflow_provider_chasqui.airflow_cli import target_environment
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
def test_the_program_finds_the_server_of_the_connection(target: RedisTarget) -> None:
    found = target_environment(target)
    read = from_url(
        found["CHASQUI_URL"],
        username=found.get("CHASQUI_USERNAME"),
        password=found.get("CHASQUI_PASSWORD"),
    )
    assert read == target
    assert "p@ss" not in found["CHASQUI_URL"]


@pytest.mark.timeout(120)
def test_airflow_chasqui_inspect(native_server: Server, queue_name: str) -> None:
    connection = connection_json(native_server.url, "auto")
    with Queue(queue_name, native_server.url) as queue:
        queue.add_many([{"payload": n} for n in range(7)])
    env = os.environ | {"AIRFLOW_CONN_QUEUES": connection}
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "chasqui", "inspect", "--conn-id", "queues",
         queue_name, "--json"],
        capture_output=True, text=True, check=False, timeout=100, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"waiting": 7' in done.stdout.replace('":7', '": 7')
