"""The built package, in a clean environment, with the oldest and the newest redis-py it allows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.servers import RedisServer

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(300), pytest.mark.xdist_group("wheel")]

ROOT = Path(__file__).parents[1]
BIN = Path(sys.prefix) / "bin"

# Adds a job, reads it and acknowledges it, with a blocking read that is longer than the timeout.
PROGRAM = """
import asyncio, pathlib, sys
import airflow_provider_chasqui as chasqui
from airflow_provider_chasqui.core.commands import consumer_group, events
from airflow_provider_chasqui.redis_client.scripts import LUA_DIR

home = pathlib.Path(chasqui.__file__).parent
assert sys.prefix in str(home), home
assert pathlib.Path(str(LUA_DIR)) == home / "lua", LUA_DIR
assert "airflow" not in sys.modules

target = sys.argv[1] + "?timeout=0.2"
with chasqui.Queue("wheel", target) as queue:
    job = queue.add({"to": "ada"}, job_name="welcome")
    queue.add_batch(range(500), batch_id="b")
    queue.client.execute(consumer_group.create(queue.keys, "default"))
    entries = queue.client.execute(consumer_group.read(queue.keys, "default", "c", 1, 0))
    entry = consumer_group.parse_entry(entries[0], 10**6)
    assert (entry.job.id, entry.job.name) == (job.job_id, "welcome")
    assert entry.job.payload == {"to": "ada"}
    assert queue.job_status(job.job_id).state == "running"
    assert queue.client.execute(consumer_group.ack(queue.keys, "default", [entry.id])) == [True]
    assert queue.client.execute(events.wait_for_events(queue.keys, "$", 1, 500)) == []

async def main():
    async with chasqui.AsyncQueue("wheel", target) as queue:
        assert (await queue.depth()).waiting == 500
        assert (await queue.add(1)).created
        assert await queue.client.execute(events.wait_for_events(queue.keys, "$", 1, 500)) == []

asyncio.run(main())
print("version", chasqui.__version__)
"""


def run(*command: object, cwd: Path | None = None) -> str:
    completed = subprocess.run(
        [str(argument) for argument in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(BIN / "python", "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def version() -> str:
    from airflow_provider_chasqui import __version__

    return __version__


def test_the_wheel_contains_the_package_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(only(dist, "*.whl")) as wheel:
        names = set(wheel.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        described = wheel.read(metadata).decode()
    lua = {str(file.relative_to(ROOT)) for file in (ROOT / "lua").rglob("*.lua")}
    assert len(lua) > 20
    assert {f"airflow_provider_chasqui/{file}" for file in lua} <= names
    assert "airflow_provider_chasqui/py.typed" in names
    prefixes = ("airflow_provider_chasqui/", f"airflow_provider_chasqui-{version()}.dist-info/")
    assert [name for name in names if not name.startswith(prefixes)] == []
    unwanted = ("__pycache__", "/tests/", "/demo/", "/benchmarks/")
    assert [name for name in names if any(part in name for part in unwanted)] == []
    assert f"\nVersion: {version()}\n" in described


def test_the_source_archive_can_be_built_from(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(only(dist, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = only(tmp_path, f"airflow_provider_chasqui-{version()}")
    for wanted in ("pyproject.toml", "LICENSE", "README.md", "lua/add.lua"):
        assert (unpacked / wanted).exists(), wanted
    again = tmp_path / "again"
    run(BIN / "python", "-m", "build", "--no-isolation", "--wheel", "--outdir", again, unpacked)
    with zipfile.ZipFile(only(dist, "*.whl")) as one, zipfile.ZipFile(only(again, "*.whl")) as two:
        assert sorted(one.namelist()) == sorted(two.namelist())


def test_two_builds_are_the_same_byte_for_byte(dist: Path, tmp_path: Path) -> None:
    """The wheel does not depend on the directory or the date, so a build can be verified."""
    with tarfile.open(only(dist, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = only(tmp_path, f"airflow_provider_chasqui-{version()}")
    for file in unpacked.rglob("*"):
        os.utime(file, (10**9, 10**9))
    again = tmp_path / "again"
    run(BIN / "python", "-m", "build", "--no-isolation", "--wheel", "--outdir", again, unpacked)
    assert only(again, "*.whl").read_bytes() == only(dist, "*.whl").read_bytes()


def test_the_version_is_defined_once() -> None:
    tracked = run("git", "ls-files", "*.py", "*.toml", "*.md", cwd=ROOT).split()
    version_pattern = re.compile(rf"(?:^|[^\d.=<>~]){re.escape(version())}(?:[^\d.]|$)")
    assignment_pattern = re.compile(r"""^\s*(?:__version__|version)\s*=""", re.MULTILINE)
    files = []
    for name in tracked:
        text = (ROOT / name).read_text()
        files += [
            name
            for line in text.splitlines()
            if assignment_pattern.match(line) and version_pattern.search(line)
        ]
    assert files == ["airflow_provider_chasqui/__init__.py"]


@pytest.mark.parametrize(
    ("redis_py", "archive"),
    [("redis==6.4.0", "*.whl"), ("redis", "*.whl"), ("redis", "*.tar.gz")],
    ids=["oldest", "newest", "source"],
)
def test_a_job_runs_from_the_installed_package(
    dist: Path, tmp_path: Path, valkey_server: RedisServer, redis_py: str, archive: str
) -> None:
    home = tmp_path / "venv"
    python = home / "bin" / "python"
    run(BIN / "uv", "venv", "-q", "--python", sys.executable, home)
    install = (BIN / "uv", "pip", "install", "-q", "--python", python)
    # Without Airflow, which the queue does not need.
    needs = ("hiredis", "msgpack", "croniter", "hatchling")
    run(*install, redis_py, *needs, "-c", _constraints(tmp_path, redis_py))
    run(*install, "--no-deps", "--no-build-isolation", only(dist, archive))
    with RedisServer.start(valkey_server.binary) as own:
        output = run(python, "-I", "-c", PROGRAM, own.url, cwd=tmp_path)
    assert output == f"version {version()}\n"


def _constraints(folder: Path, redis_py: str) -> Path:
    """Return the pinned constraints, without redis-py if the test chooses its version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in redis_py:
        lines = [line for line in lines if not line.startswith("redis==")]
    file = folder / "constraints.txt"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_oldest_allowed_redis_py_is_tested() -> None:
    assert '"redis[hiredis]>=6.4,' in (ROOT / "pyproject.toml").read_text()
