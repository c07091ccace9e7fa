"""`make demo` and `make up`, in a clean copy of the repository, as a newcomer runs them."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.hidden_tools import BROWSER, COMPILER, JAVA, NODE, environment_without

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("demo")]
ROOT = Path(__file__).parents[1]
# The environment is the one of these tests: to make one anew takes minutes, and `make test` did it.
READY = Path(sys.prefix) / ".ready"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone would hold, once all is committed, and nothing that was made here."""
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
    """The environment of a machine with only what README asks for: Python and make."""
    links.mkdir()
    env = environment_without(links, *JAVA, *NODE, *BROWSER, *COMPILER)
    for name in ("java", "node", "chromium", "cc", "gcc"):
        assert shutil.which(name, path=env["PATH"]) is None
    return env


def environment(copy: Path) -> dict[str, str]:
    """What is started finds our code in the copy, not in this checkout."""
    return fresh_machine(copy.parent / "path") | {
        "PYTHONPATH": str(copy), "PYTHONUNBUFFERED": "1", "COLUMNS": "80", "NO_COLOR": "1",
    }  # fmt: skip


def make(copy: Path, *words: str, seconds: float) -> str:
    """Run make there and return what it says."""
    done = subprocess.run(
        ["make", "-o", str(READY), f"VENV={sys.prefix}", *words],
        cwd=copy, env=environment(copy), capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def run_an_example(client: httpx.Client) -> None:
    """The example DAGs are there, can be read, and find their worker."""
    dag = "/api/v2/dags/chasqui_enqueue_and_wait"
    while not client.get(dag).is_success:
        time.sleep(0.5)
    run = client.post(f"{dag}/dagRuns", json={"logical_date": None}).json()["dag_run_id"]
    while (state := client.get(f"{dag}/dagRuns/{run}").json()["state"]) in ("queued", "running"):
        time.sleep(0.5)
    assert state == "success"
    assert client.get("/api/v2/importErrors").json()["import_errors"] == []


def left_behind(*marks: str) -> list[str]:
    """The processes whose command line or environment tells that they belong to the copy."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            told = command + (folder / "environ").read_bytes()
        except OSError:
            continue
        if int(folder.name) != os.getpid() and any(mark.encode() in told for mark in marks):
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_demo_tells_the_whole_story(copy: Path) -> None:
    text = make(copy, "demo", seconds=880)
    assert "…" not in text, "something does not fit into 80 columns"
    for step in ("server", "workers", "Airflow", "collect"):
        assert re.search(rf"✓ {step} ", text), text
    how = "(deferred, no slot held|over at the first look)"  # on a slow machine there is no wait
    assert re.search(r"✓ ship +Spark adds it up to 10,000 parcels", text)
    assert re.search(rf"✓ first_round +{how}: 9,857 done, 143 dead", text)
    assert re.search(r"✓ repair +Spark groups 143 dead letters", text)
    assert re.search(rf"✓ second_round +{how}: 9,977 done, 23 dead", text)
    assert re.search(r"✓ ship +cleared and run again, its try [2-9]: 0 jobs added", text)
    assert re.search(r"10,000 +jobs shipped by Spark; a second go added 0", text)
    assert re.search(r"120 +Unrecoverable: the lift carries 30 kg at most", text)
    assert re.search(r"23 +Unrecoverable: there is no street on it", text)
    assert re.search(r"120 +were worth another try, and replayed", text)
    assert re.search(r"9,977 +delivered in the end", text)
    assert "make up" in text
    assert left_behind(f"PYTHONPATH={copy}") == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_leaves_nothing_behind(copy: Path, how: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "demo"],
        cwd=copy, env=environment(copy), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        until_workers = next((line for line in process.stdout if "✓ workers" in line), None)
        assert until_workers
        process.send_signal(how)
        rest = process.stdout.read()
    assert process.wait(60) == 130, rest
    assert "Stopped; everything is gone again" in rest
    assert left_behind(f"PYTHONPATH={copy}") == []


@pytest.mark.timeout(600)
def test_up_leaves_airflow_with_the_page_running_and_down_ends_all_of_it(copy: Path) -> None:
    try:
        text = make(copy, "up", seconds=400)
        (url,) = re.findall(r"(http://127\.0\.0\.1:\d+)/plugin/chasqui", text)
        (user,) = re.findall(r"login +(\S+)", text)
        (password,) = re.findall(r"password +(\S+)", text)
        (queues,) = re.findall(r"CHASQUI_URL=(\S+)", text)
        with httpx.Client(base_url=url, timeout=60) as client:
            assert client.get("/chasqui/api/overview").status_code == 401
            login = {"username": user, "password": password}
            token = client.post("/auth/token", json=login).json()["access_token"]
            client.headers["Authorization"] = f"Bearer {token}"
            assert "chasqui" in client.get("/chasqui/static/chasqui.js").text
            overview = client.get("/chasqui/api/overview").text
            run_an_example(client)
        command = [sys.executable, "-m", "airflow_provider_chasqui.cli"]
        said = subprocess.run(
            [*command, "add", "thumbnails", '{"image": "cat.png", "width": 32}', "--job-name",
             "thumbnail", "--wait", "60s", "--url", queues],
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert "32-cat.png" in said.stdout, said.stdout + said.stderr
        assert "chasqui_default" in overview
        assert "It is running already" in make(copy, "up", seconds=60)
        assert left_behind(f"PYTHONPATH={copy}")
    finally:
        text = make(copy, "down", seconds=150)
    assert "Stopped" in text
    assert left_behind(f"PYTHONPATH={copy}") == []
    assert "Nothing is running" in make(copy, "down", seconds=60)
