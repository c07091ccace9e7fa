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

# Adds a job, reads it back and settles it, with a blocking read that outlasts the timeout.
STORY = """
import asyncio, pathlib, sys
import airflow_provider_chasqui as chasqui
from airflow_provider_chasqui.core.commands import delivery, looking
from airflow_provider_chasqui.redis_client.scripts import LUA

home = pathlib.Path(chasqui.__file__).parent
assert sys.prefix in str(home), home
assert pathlib.Path(str(LUA)) == home / "lua", LUA
assert "airflow" not in sys.modules

target = sys.argv[1] + "?timeout=0.2"
with chasqui.Queue("wheel", target) as queue:
    job = queue.add({"to": "ada"}, name="welcome")
    queue.add_batch(range(500), batch_id="b")
    queue.drive.run(delivery.make_group(queue.keys, "default"))
    raw = queue.drive.run(delivery.read(queue.keys, "default", "c", 1, 0, 30_000))
    entry = delivery.delivery(raw[0], 10**6)
    assert (entry.job.id, entry.job.name, entry.job.payload) == (job.id, "welcome", {"to": "ada"})
    assert queue.find(job.id).state == "running"
    assert queue.drive.run(delivery.settle(queue.keys, "default", [entry.id])) == [True]
    assert queue.drive.run(looking.events_wait(queue.keys, "$", 1, 500)) == []

async def main():
    async with chasqui.AsyncQueue("wheel", target) as queue:
        assert (await queue.depth()).waiting == 500
        assert (await queue.add(1)).fresh
        assert await queue.drive.run(looking.events_wait(queue.keys, "$", 1, 500)) == []

asyncio.run(main())
print("version", chasqui.__version__)
"""


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(BIN / "python", "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def version() -> str:
    from airflow_provider_chasqui import __version__

    return __version__


def test_the_wheel_holds_what_it_needs_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(only(dist, "*.whl")) as wheel:
        names = set(wheel.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        described = wheel.read(metadata).decode()
    lua = {str(file.relative_to(ROOT)) for file in (ROOT / "lua").rglob("*.lua")}
    assert len(lua) > 20
    assert {f"airflow_provider_chasqui/{file}" for file in lua} <= names
    assert "airflow_provider_chasqui/py.typed" in names
    ours = ("airflow_provider_chasqui/", f"airflow_provider_chasqui-{version()}.dist-info/")
    assert [name for name in names if not name.startswith(ours)] == []
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
    """Another folder, another day: the wheel is the same, so anybody can check ours."""
    with tarfile.open(only(dist, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = only(tmp_path, f"airflow_provider_chasqui-{version()}")
    for file in unpacked.rglob("*"):
        os.utime(file, (10**9, 10**9))
    again = tmp_path / "again"
    run(BIN / "python", "-m", "build", "--no-isolation", "--wheel", "--outdir", again, unpacked)
    assert only(again, "*.whl").read_bytes() == only(dist, "*.whl").read_bytes()


def test_the_version_stands_in_one_place() -> None:
    tracked = run("git", "ls-files", "*.py", "*.toml", "*.md", cwd=ROOT).split()
    says = re.compile(rf"(?:^|[^\d.=<>~]){re.escape(version())}(?:[^\d.]|$)")
    ours = re.compile(r"""^\s*(?:__version__|version)\s*=""", re.MULTILINE)
    places = []
    for name in tracked:
        text = (ROOT / name).read_text()
        places += [name for line in text.splitlines() if ours.match(line) and says.search(line)]
    assert places == ["airflow_provider_chasqui/__init__.py"]


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
    # Without Airflow: the queue is to be usable where only its own needs are met.
    needs = ("hiredis", "msgpack", "croniter", "hatchling")
    run(*install, redis_py, *needs, "-c", _looser(tmp_path, redis_py))
    run(*install, "--no-deps", "--no-build-isolation", only(dist, archive))
    with RedisServer.start(valkey_server.binary) as own:
        said = run(python, "-I", "-c", STORY, own.url, cwd=tmp_path)
    assert said == f"version {version()}\n"


def _looser(folder: Path, redis_py: str) -> Path:
    """The frozen constraints, but for redis-py where another one is asked for."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in redis_py:
        lines = [line for line in lines if not line.startswith("redis==")]
    file = folder / "constraints.txt"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_oldest_redis_py_is_the_one_that_is_tried() -> None:
    assert '"redis[hiredis]>=6.4"' in (ROOT / "pyproject.toml").read_text()
