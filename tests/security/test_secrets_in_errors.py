"""No error text, repr or traceback contains a password, with the oldest and newest redis-py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import RedisServer

ROOT = Path(__file__).parents[2]
SECRETS = ("S3cretPw", "Sent1nelPw")
OLDEST = "redis==6.4.0"

# Connects with the URL in argv and prints everything that a log could contain of the errors.
PROGRAM = """
import asyncio, sys, traceback
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue

def report(error):
    print(type(error).__name__, error, repr(error), error.__dict__)
    traceback.print_exception(error, file=sys.stdout)

async def add(url):
    async with AsyncQueue("q", url) as queue:
        await queue.add(1)

url = sys.argv[1] + ("&" if "?" in sys.argv[1] else "?") + "retries=0&timeout=2"
for call in (lambda: Queue("q", url).add(1), lambda: asyncio.run(add(url))):
    try:
        call()
    except ChasquiError as error:
        report(error)
"""


@pytest.fixture(scope="module", params=["oldest", "newest"])
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return the environment of a program that uses one version of redis-py."""
    path = [str(ROOT)]
    if request.param == "oldest":
        folder = tmp_path_factory.mktemp("redis-py")
        uv = Path(sys.executable).parent / "uv"
        subprocess.run(
            [uv, "pip", "install", "-q", "--no-deps", "--target", folder, OLDEST], check=True
        )
        path.insert(0, str(folder))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def errors(environment: dict[str, str], url: str) -> str:
    """Return what the program prints, after a check that both calls have failed."""
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM, url],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    text = output.stdout + output.stderr
    assert text.count("[CMQ-") >= 2, text
    return text


def assert_no_secret(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text, text


def with_login(url: str) -> str:
    return url.replace("://", f"://ada:{SECRETS[0]}@")


def test_a_server_that_does_not_know_auth(
    environment: dict[str, str], valkey_server: RedisServer
) -> None:
    config = 'rename-command AUTH ""\nrename-command HELLO ""\n'
    with RedisServer.start(valkey_server.binary, config=config) as server:
        text = errors(environment, with_login(server.url))
    assert "unknown command" in text
    assert_no_secret(text)


def test_a_wrong_password(environment: dict[str, str], valkey_server: RedisServer) -> None:
    text = errors(environment, with_login(valkey_server.url))
    assert "refused the login" in text
    assert_no_secret(text)


def test_a_server_without_tls(environment: dict[str, str], valkey_server: RedisServer) -> None:
    url = with_login(valkey_server.url).replace("redis://", "rediss://")
    text = errors(environment, url)
    assert_no_secret(text)


def test_no_sentinel_is_reachable(environment: dict[str, str]) -> None:
    url = f"redis+sentinel://ada:{SECRETS[0]}@127.0.0.1:1,127.0.0.1:2/main/0"
    text = errors(environment, f"{url}?sentinel_password={SECRETS[1]}")
    assert_no_secret(text)


def test_no_server_is_reachable(environment: dict[str, str]) -> None:
    assert_no_secret(errors(environment, f"redis://ada:{SECRETS[0]}@127.0.0.1:1/0"))
