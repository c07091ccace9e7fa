"""The supported releases of redis-py: the oldest and the newest one work, others are named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import redis

from airflow_provider_chasqui.core.errors import MissingDependency
from airflow_provider_chasqui.redis_client import connection
from airflow_provider_chasqui.redis_client.connection import SUPPORTED_REDIS_PY, check_redis_py
from tests.support.servers import RedisServer

ROOT = Path(__file__).parents[2]

# Adds, reads, waits in a blocking read, and runs into a timeout, with both kinds of connections.
SCRIPT = """
import asyncio, sys, time
import redis
from airflow_provider_chasqui import AsyncQueue, ChasquiError, Queue
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.redis_client.connection import check_redis_py

folder, url, name = sys.argv[1:]
assert redis.__file__.startswith(folder), redis.__file__
check_redis_py()

def xread(keys, block_ms, declared_ms):
    args = ("XREAD", "BLOCK", block_ms, "STREAMS", keys.stream, "$")
    return redis_command(*args, parse=as_raw, block_ms=declared_ms)

with Queue(name, url) as queue:
    job_id = queue.add({"n": 1}).job_id
    assert queue.job_status(job_id).state == "waiting"
    # The command blocks for longer than the timeout of the target, and returns nothing.
    assert queue.client.execute(xread(queue.keys, 600, 600)) is None
    assert queue.depth().waiting == 1
    started = time.monotonic()
    try:
        queue.client.execute(xread(queue.keys, 5000, 0))
    except ChasquiError as error:
        assert "did not reply in time" in str(error), error
    else:
        raise AssertionError("no timeout")
    assert time.monotonic() - started < 3
    assert queue.depth().waiting == 1

async def main():
    async with AsyncQueue(name, url) as queue:
        await queue.add({"n": 2})
        assert await queue.client.execute(xread(queue.keys, 600, 600)) is None
        assert (await queue.depth()).waiting == 2
        started = time.monotonic()
        try:
            await queue.client.execute(xread(queue.keys, 5000, 0))
        except ChasquiError as error:
            assert "did not reply in time" in str(error), error
        else:
            raise AssertionError("no timeout")
        assert time.monotonic() - started < 3
        assert (await queue.depth()).waiting == 2

asyncio.run(main())
print(redis.__version__)
"""


def install(resolution: str, folder: Path) -> None:
    """Install redis-py into a folder: the oldest or the newest release of the supported range."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    command += ["--resolution", resolution, "--target", str(folder), f"redis{SUPPORTED_REDIS_PY}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if result.returncode:
        pytest.skip(f"redis-py cannot be downloaded: {result.stderr.strip()[-200:]}")


@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_the_oldest_and_the_newest_supported_release_work(
    resolution: str, tmp_path: Path, valkey_server: RedisServer, queue_name: str
) -> None:
    install(resolution, tmp_path)
    url = f"{valkey_server.url}?timeout=0.4&retries=0"
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), url, queue_name],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    oldest = SUPPORTED_REDIS_PY.partition(",")[0].removeprefix(">=")
    assert result.stdout.startswith(oldest) == (resolution == "lowest-direct"), result.stdout


def test_the_package_requires_the_supported_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"redis[hiredis]{SUPPORTED_REDIS_PY}" in project["dependencies"]


def test_the_installed_release_is_supported() -> None:
    check_redis_py.cache_clear()
    check_redis_py()


@pytest.mark.parametrize("missing", ["parser class", "attribute"])
def test_an_unsupported_release_is_an_error_with_its_version_and_the_range(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "parser class":
        monkeypatch.setattr(connection, "_AsyncHiredisParser", None)
    else:
        monkeypatch.setattr(connection.redis, "Connection", type("Connection", (), {}))
    monkeypatch.setattr(redis, "__version__", "99.0.1")
    check_redis_py.cache_clear()
    try:
        with pytest.raises(MissingDependency, match=r"redis-py 99\.0\.1 is not supported") as info:
            check_redis_py()
    finally:
        check_redis_py.cache_clear()
    assert SUPPORTED_REDIS_PY in str(info.value)
