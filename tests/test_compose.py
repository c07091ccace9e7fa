"""docker-compose.yml and Dockerfile agree with the code. No container engine is needed.

The tests check images, commands, variables, paths, ports and references between services.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tomllib
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.get_provider_info import get_provider_info
from airflow_provider_chasqui.redis_client.target import from_url
from demo.up import QUEUES
from tests import test_snippets
from tools.redis_server import REDIS8

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
BUILT = [name for name, service in SERVICES.items() if "build" in service]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DAGS = "/opt/airflow/dags"


def environment(name: str) -> dict[str, str]:
    return {key: str(value) for key, value in SERVICES[name].get("environment", {}).items()}


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_it_starts_the_documented_services() -> None:
    assert set(SERVICES) == {"redis", "airflow", "spark", "spark-worker", "worker"}
    assert set(BUILT) == set(SERVICES) - {"redis"}
    assert "docker-compose.yml" in (ROOT / "docs" / "deployment.md").read_text("utf-8")


def test_the_images_are_those_that_are_tested() -> None:
    """Redis supports the native dialect; the built image has the tested Airflow and Python."""
    name, _, tag = SERVICES["redis"]["image"].partition(":")
    assert (name, tag) == ("redis", "8.6")
    assert REDIS8.accepts((*version(tag), 0))
    assert {SERVICES[name]["build"] for name in BUILT} == {"."}
    assert len({SERVICES[name]["image"] for name in BUILT}) == 1
    ((airflow, python),) = re.findall(
        r"^FROM apache/airflow:([\d.]+)-python([\d.]+)$", DOCKERFILE, re.M
    )
    pins = (ROOT / "constraints.txt").read_text()
    assert f"\napache-airflow=={airflow}\n" in pins
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]


def test_the_image_is_built_from_existing_files() -> None:
    ((source, target),) = re.findall(r"^COPY --chown=airflow:root (\S+) (\S+)$", DOCKERFILE, re.M)
    assert source == "."
    (installed,) = re.findall(r"^RUN pip install (.*)$", DOCKERFILE, re.M)
    arguments = shlex.split(installed)
    assert arguments[arguments.index("-c") + 1] == f"{target}/constraints.txt"
    (extras,) = re.findall(rf"^{target}\[(.*)\]$", arguments[-1])
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "pyspark" in extras
    ignored = (ROOT / ".dockerignore").read_text().split()
    needed = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "lua")
    for name in (*needed, "airflow_provider_chasqui"):
        assert (ROOT / name).exists()
        assert name not in ignored


def test_the_commands_exist() -> None:
    from airflow.cli.cli_config import core_commands

    assert SERVICES["airflow"]["command"] in {command.name for command in core_commands}
    program, *arguments = SERVICES["worker"]["entrypoint"]
    assert program in PROJECT["scripts"]
    test_snippets.parse(test_snippets.chasqui(), arguments)
    queues = {text.partition("=")[2] for text in arguments if text.startswith("--queue=")}
    assert queues == set(QUEUES)
    module, _, attribute = arguments[1].partition(":")
    assert SERVICES["worker"]["working_dir"] == DAGS
    assert f"\n{attribute} = Handlers()" in (ROOT / "example_dags" / f"{module}.py").read_text()


@pytest.mark.parametrize("name", ["spark", "spark-worker"])
def test_the_spark_commands_exist(name: str) -> None:
    import pyspark

    program, main, *arguments = SERVICES[name]["entrypoint"]
    assert (Path(sys.prefix) / "bin" / program).exists()
    (core,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(core) as jar:
        assert f"{main.replace('.', '/')}.class" in jar.namelist()
    host = SERVICES["spark"]["hostname"]
    assert arguments == (["--host", host] if name == "spark" else [f"spark://{host}:7077"])


def test_the_redis_command_is_valid(redis86_binary: Path) -> None:
    """A Redis server accepts the arguments."""
    from tests.support.servers import RedisServer

    program, *arguments = SERVICES["redis"]["command"]
    assert program == "redis-server"
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert pairs["--maxmemory-policy"] == "noeviction"
    assert pairs["--appendonly"] == "yes"
    with RedisServer.start(redis86_binary, *arguments) as server:
        assert server.url


def test_every_environment_variable_is_used() -> None:
    from airflow.configuration import conf

    provider_config = get_provider_info()["config"]
    examples = "".join(file.read_text() for file in (ROOT / "example_dags").glob("*.py"))
    command = (ROOT / "airflow_provider_chasqui" / "cli" / "server.py").read_text()
    for name in BUILT:
        for key in environment(name):
            if match := re.fullmatch(r"AIRFLOW__([A-Z]+)__([A-Z_]+)", key):
                section, option = match[1].lower(), match[2].lower()
                known = (
                    provider_config[section]["options"]
                    if section in provider_config
                    else conf.getsection(section)
                )
                assert known is not None, key
                assert option in known, key
            elif key.startswith("CHASQUI_"):
                assert f'"{key}"' in command, key
            elif key.startswith("FLAGSHIP_"):
                assert f'"{key}"' in examples, key
            else:
                assert key.startswith("AIRFLOW_CONN_") or key == "PYSPARK_PYTHON", key


def test_all_services_use_the_same_redis_and_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow_provider_chasqui.hooks.chasqui import ChasquiHook

    airflow = environment("airflow")
    for key, value in airflow.items():
        if key.startswith("AIRFLOW_CONN_"):
            monkeypatch.setenv(key, value)
    nodes = ChasquiHook("chasqui_default").settings.target.nodes
    assert nodes == (("redis", 6379),)
    assert {from_url(environment(name)["CHASQUI_URL"]).nodes for name in BUILT} == {nodes}
    assert airflow["AIRFLOW__CHASQUI__CONNECTIONS"] == "chasqui_default"
    spark = json.loads(airflow["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert SERVICES["spark-worker"]["entrypoint"][-1] == f"{spark['host']}:{spark['port']}"


def test_the_paths_and_volumes_exist() -> None:
    folders = set(re.findall(r"install -d -o airflow -g root (\S+)", DOCKERFILE))
    for name, service in SERVICES.items():
        for volume in service["volumes"]:
            source, _, target = volume.partition(":")
            if source.startswith("./"):
                assert (ROOT / source).is_dir()
                assert target == DAGS
            else:
                assert source in COMPOSE["volumes"]
                # A volume takes its owner from the image, so the image must create the folder.
                assert name == "redis" or target in folders
    assert {environment(name)["FLAGSHIP_HOME"] for name in BUILT} <= folders
    assert set(COMPOSE["volumes"]) == {"redis", "shared"}


def test_only_airflow_has_a_port() -> None:
    from airflow.configuration import conf

    (port,) = SERVICES["airflow"]["ports"]
    default_port = os.environ.get("AIRFLOW__API__PORT") or conf.get("api", "port")
    assert port == f"127.0.0.1:{default_port}:{default_port}"
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["airflow"]
    assert f"http://localhost:{default_port}" in (ROOT / "docs" / "deployment.md").read_text(
        "utf-8"
    )


def test_dependencies_exist_and_the_worker_has_time_to_stop() -> None:
    for service in SERVICES.values():
        dependencies = service.get("depends_on", {})
        for other in dependencies:
            is_mapping = isinstance(dependencies, dict)
            condition = dependencies[other]["condition"] if is_mapping else None
            assert condition != "service_healthy" or "healthcheck" in SERVICES[other]
            assert other in SERVICES
    grace_period = parse_duration(SERVICES["worker"]["stop_grace_period"])
    assert grace_period >= ConsumerConfig().shutdown_timeout + timedelta(seconds=10)
