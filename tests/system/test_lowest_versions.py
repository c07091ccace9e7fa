"""The lowest versions that pyproject.toml allows, in a separate virtual environment."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server
from tests.provider.conftest import connection_json, working
from tests.support.environments import create_environment
from tests.support.servers import RedisServer, valkey_binary

ROOT = Path(__file__).parents[2]
EXAMPLES = (
    "enqueue_and_wait",
    "batch_of_ten_thousand",
    "fan_out_with_back_pressure",
    "dlq_replay_daily",
    "results_to_next_task",
    "consume_in_a_task",
)
INSPECT_SCRIPT = f"""
import importlib, pkgutil, runpy
import airflow
import airflow_provider_chasqui
from airflow.providers_manager import ProvidersManager

print("version", airflow.__version__)
# The data source needs a full Spark, which is an extra of its own.
skipped = ("airflow_provider_chasqui.spark.", "airflow_provider_chasqui.cli.__main__")
for module in pkgutil.walk_packages(airflow_provider_chasqui.__path__, "airflow_provider_chasqui."):
    if not module.name.startswith(skipped):
        importlib.import_module(module.name)
manager = ProvidersManager()
print("hook", manager.hooks["chasqui"].hook_class_name)
print("fields", *sorted(manager.connection_form_widgets))
from airflow_provider_chasqui.plugins.api.app import create_app
print("routes", *[route.path for route in create_app().routes])
for name in {EXAMPLES!r}:
    runpy.run_path(f"example_dags/{{name}}.py")
"""
pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("lowest-versions"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python of an environment with this package and its lowest dependencies; created once."""
    package = f"{ROOT}[messaging,metrics,openlineage]"
    return create_environment("lowest-versions", "--resolution", "lowest-direct", "-e", package)


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
def env(python: Path, server: Server, tmp_path: Path) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    return inherited | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "example_dags"),
        "AIRFLOW_CONN_CHASQUI_DEFAULT": connection_json(server.url, "auto"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }


def test_the_provider_works_with_the_lowest_versions(
    python: Path, env: dict[str, str], server: Server
) -> None:
    def airflow(*args: str) -> str:
        return _run(str(python), "-m", "airflow", *args, env=env)

    output = _run(str(python), "-c", INSPECT_SCRIPT, env=env)
    assert "version 3.3.0\n" in output
    assert "hook airflow_provider_chasqui.hooks.chasqui.ChasquiHook" in output
    assert re.search(r"^fields .*chasqui__queue_name", output, re.M), output
    assert re.search(r"^routes .*/api/", output, re.M), output
    airflow("db", "migrate")

    async def thumbnail(job: Any) -> Any:
        return {"file": f"{job.payload['width']}-{job.payload['image']}"}

    with working(server, "thumbnails", thumbnail, store_results=True):
        output = airflow("dags", "test", "chasqui_enqueue_and_wait")
    assert "published 320-cat.png" in output
