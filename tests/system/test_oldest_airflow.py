"""The oldest supported Airflow, in a separate virtual environment."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server
from tests.provider.conftest import connection_json, working
from tests.support.servers import RedisServer, valkey_binary

ROOT = Path(__file__).parents[2]
OLDEST = os.environ.get("CHASQUI_OLDEST_AIRFLOW", "3.1")
EXAMPLES = (
    "enqueue_and_wait",
    "batch_of_ten_thousand",
    "fan_out_with_back_pressure",
    "dlq_replay_daily",
    "results_to_next_task",
    "consume_in_a_task",
)
INSPECT_SCRIPT = f"""
import runpy, warnings
import airflow
from airflow.providers_manager import ProvidersManager
print("version", airflow.__version__)
print("hook", ProvidersManager().hooks["chasqui"].hook_class_name)
for name in {EXAMPLES!r}:
    runpy.run_path(f"example_dags/{{name}}.py")
"""
pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("oldest-airflow"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="session")
def oldest() -> Path:
    """The Python of an environment with the oldest Airflow and this package; created once."""
    folder = ROOT / ".cache" / f"airflow-{OLDEST}"
    folder.mkdir(parents=True, exist_ok=True)
    fingerprint = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    stamp, python = folder / "ready", folder / "venv" / "bin" / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != fingerprint:
            shutil.rmtree(folder / "venv", ignore_errors=True)
            uv = str(Path(sys.executable).with_name("uv"))
            _run(uv, "venv", "-q", "--python", sys.executable, str(folder / "venv"))
            packages = [f"apache-airflow~={OLDEST}.0", "-e", str(ROOT)]
            _run(uv, "pip", "install", "-q", "--python", str(python), *packages)
            stamp.write_text(fingerprint)
    return python


def _run(*command: str, env: dict[str, str] | None = None) -> str:
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=400, env=env, cwd=ROOT
    )
    assert process.returncode == 0, (
        f"{' '.join(command)}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}"
    )
    return process.stdout + process.stderr


@pytest.fixture
def server() -> Iterator[Server]:
    with RedisServer.start(valkey_binary()) as process:
        yield Server(process.url, "portable")


@pytest.fixture
def env(oldest: Path, server: Server, tmp_path: Path) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    return inherited | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "example_dags"),
        "AIRFLOW_CONN_CHASQUI_DEFAULT": connection_json(server.url, "auto"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{oldest.parent}{os.pathsep}{os.environ['PATH']}",
    }


def test_the_provider_is_registered_and_an_example_enqueues_a_job(
    oldest: Path, env: dict[str, str], server: Server
) -> None:
    def airflow(*args: str) -> str:
        return _run(str(oldest), "-m", "airflow", *args, env=env)

    output = _run(str(oldest), "-c", INSPECT_SCRIPT, env=env)
    assert f"version {OLDEST}." in output
    assert "hook airflow_provider_chasqui.hooks.chasqui.ChasquiHook" in output
    airflow("db", "migrate")

    async def thumbnail(job: Any) -> Any:
        return {"file": f"{job.payload['width']}-{job.payload['image']}"}

    with working(server, "thumbnails", thumbnail, store_results=True):
        output = airflow("dags", "test", "chasqui_enqueue_and_wait")
    assert "published 320-cat.png" in output
