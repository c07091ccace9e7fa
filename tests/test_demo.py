"""`make demo` and `make up` work in a clean copy of the repository."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.testing.embedded_server import EmbeddedServer, find_free_port
from demo import up
from tests.support.hidden_tools import BROWSER, COMPILER, JAVA, NODE, environment_without

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("demo")]
ROOT = Path(__file__).parents[1]
# The copy uses the environment of these tests, because creating one takes minutes.
READY = Path(sys.prefix) / ".ready"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tracked and untracked files, without ignored ones, like a clone."""
    home = tmp_path_factory.mktemp("clean") / "chasqui"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in tracked.split("\0"):
        if name and (ROOT / name).exists():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, home / name)
    return home


@functools.cache
def fresh_machine(links: Path) -> dict[str, str]:
    """Return the environment of a machine with Python and make only, as README requires."""
    links.mkdir()
    env = environment_without(links, *JAVA, *NODE, *BROWSER, *COMPILER)
    for name in ("java", "node", "chromium", "cc", "gcc"):
        assert shutil.which(name, path=env["PATH"]) is None
    return env


def environment(copy: Path) -> dict[str, str]:
    """Return an environment in which Python imports the package from the copy."""
    return fresh_machine(copy.parent / "path") | {
        "PYTHONPATH": str(copy),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "80",
        "NO_COLOR": "1",
    }


def make(copy: Path, *targets: str, seconds: float) -> str:
    """Run make in the copy and return its output."""
    process = subprocess.run(
        ["make", "-o", str(READY), f"VENV={sys.prefix}", *targets],
        cwd=copy,
        env=environment(copy),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stderr == ""
    return process.stdout


def run_an_example(client: httpx.Client) -> None:
    """Run an example DAG and assert that all example DAGs can be imported."""
    dag = "/api/v2/dags/chasqui_enqueue_and_wait"
    while not client.get(dag).is_success:
        time.sleep(0.5)
    run = client.post(f"{dag}/dagRuns", json={"logical_date": None}).json()["dag_run_id"]
    while (state := client.get(f"{dag}/dagRuns/{run}").json()["state"]) in ("queued", "running"):
        time.sleep(0.5)
    assert state == "success"
    assert client.get("/api/v2/importErrors").json()["import_errors"] == []


def running_processes(*marks: str) -> list[str]:
    """Return the command lines of processes whose command or environment contains a mark."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            text = command + (folder / "environ").read_bytes()
        except OSError:
            continue
        if int(folder.name) != os.getpid() and any(mark.encode() in text for mark in marks):
            commands.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return commands


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_demo_completes_with_the_expected_counts(copy: Path) -> None:
    text = make(copy, "demo", seconds=880)
    assert "…" not in text, "a line is longer than 80 columns"
    for step in ("server", "workers", "Airflow", "collect"):
        assert re.search(rf"✓ {step} ", text), text
    # On a slow machine the batch is finished before the sensor starts.
    how = "(deferred, no slot used|already finished)"
    assert re.search(r"✓ write +Spark writes 10,000 jobs", text)
    assert re.search(rf"✓ first_round +{how}: 9,857 done, 143 dead", text)
    assert re.search(r"✓ repair +143 dead letters; replays the retryable ones", text)
    assert re.search(rf"✓ second_round +{how}: 9,977 done, 23 dead", text)
    assert re.search(r"✓ write +cleared and run again \(try [2-9]\): 0 jobs added", text)
    assert re.search(r"10,000 +jobs written by Spark; a second run added 0", text)
    assert re.search(r"120 +Unrecoverable: too heavy: the limit is 30 kg", text)
    assert re.search(r"23 +Unrecoverable: the parcel has no street", text)
    assert re.search(r"120 +were retryable and were replayed", text)
    assert re.search(r"9,977 +completed in the end", text)
    assert "make up" in text
    assert running_processes(f"PYTHONPATH={copy}") == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(copy: Path, stop_signal: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "demo"],
        cwd=copy,
        env=environment(copy),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    with process.stdout:
        assert any("✓ workers" in line for line in process.stdout)
        process.send_signal(stop_signal)
        output = process.stdout.read()
    assert process.wait(60) == 130, output
    assert "Stopped. All processes and files were removed." in output
    assert running_processes(f"PYTHONPATH={copy}") == []


@pytest.mark.timeout(600)
def test_make_up_starts_airflow_with_the_page_and_make_down_stops_it(copy: Path) -> None:
    try:
        text = make(copy, "up", seconds=400)
        (url,) = re.findall(r"(http://127\.0\.0\.1:\d+)/plugin/chasqui", text)
        (user,) = re.findall(r"login +(\S+)", text)
        (password,) = re.findall(r"password +(\S+)", text)
        (redis_url,) = re.findall(r"CHASQUI_URL=(\S+)", text)
        with httpx.Client(base_url=url, timeout=60) as client:
            assert client.get("/chasqui/api/overview").status_code == 401
            login = {"username": user, "password": password}
            token = client.post("/auth/token", json=login).json()["access_token"]
            client.headers["Authorization"] = f"Bearer {token}"
            assert "chasqui" in client.get("/chasqui/static/chasqui.js").text
            overview = client.get("/chasqui/api/overview").text
            run_an_example(client)
        command = [sys.executable, "-m", "airflow_provider_chasqui.cli"]
        command += ["add", "thumbnails", '{"image": "cat.png", "width": 32}']
        command += ["--job-name", "thumbnail", "--wait", "60s", "--url", redis_url]
        process = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert "32-cat.png" in process.stdout, process.stdout + process.stderr
        assert "chasqui_default" in overview
        assert "Chasqui is already running" in make(copy, "up", seconds=60)
        assert running_processes(f"PYTHONPATH={copy}")
    finally:
        text = make(copy, "down", seconds=150)
    assert "Stopped" in text
    assert running_processes(f"PYTHONPATH={copy}") == []
    assert "Nothing is running" in make(copy, "down", seconds=60)


def test_make_up_keeps_the_redis_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "DEFAULT_REDIS_PORT", find_free_port())
    for _ in range(2):
        port, notice = up.choose_redis_port(tmp_path)
        assert (port, notice) == (up.DEFAULT_REDIS_PORT, "")
        with EmbeddedServer(port=port) as server, Queue("emails", server.url) as queue:
            queue.add({"to": "ada"})  # its connection is in TIME_WAIT when the server has stopped


def test_make_up_uses_another_redis_port_if_the_default_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        used_port = other.getsockname()[1]
        monkeypatch.setattr(up, "DEFAULT_REDIS_PORT", used_port)
        port, notice = up.choose_redis_port(tmp_path)
        assert port != used_port
        assert f"port {used_port} is in use" in notice
    assert up.choose_redis_port(tmp_path) == (port, ""), "an exported CHASQUI_URL must stay valid"
