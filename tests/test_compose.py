"""The docker-compose file, read down to the last word: no engine runs it here.

Whatever it names must be there: images, commands, variables, paths, ports, and each other.
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

from airflow_provider_chasqui.cli.parsing import parse_duration
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.get_provider_info import get_provider_info
from airflow_provider_chasqui.redis_client.target import from_url
from demo.up import QUEUES
from tests import test_snippets
from tools.redis_server import REDIS8

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, each in SERVICES.items() if "build" in each]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DAGS = "/opt/airflow/dags"


def environment(name: str) -> dict[str, str]:
    return {key: str(value) for key, value in SERVICES[name].get("environment", {}).items()}


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_it_starts_what_the_page_on_deployment_says() -> None:
    assert set(SERVICES) == {"redis", "airflow", "spark", "spark-worker", "worker"}
    assert set(OURS) == set(SERVICES) - {"redis"}
    assert "docker-compose.yml" in (ROOT / "docs" / "deployment.md").read_text("utf-8")


def test_the_images() -> None:
    """Redis speaks the native dialect; ours is built here, from the Airflow and Python we test."""
    name, _, tag = SERVICES["redis"]["image"].partition(":")
    assert (name, tag) == ("redis", "8.6")
    assert REDIS8.accepts((*version(tag), 0))
    assert {SERVICES[name]["build"] for name in OURS} == {"."}
    assert len({SERVICES[name]["image"] for name in OURS}) == 1
    ((airflow, python),) = re.findall(
        r"^FROM apache/airflow:([\d.]+)-python([\d.]+)$", DOCKERFILE, re.M
    )
    pins = (ROOT / "constraints.txt").read_text()
    assert f"\napache-airflow=={airflow}\n" in pins
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]


def test_the_image_is_built_from_what_is_there() -> None:
    ((source, target),) = re.findall(r"^COPY --chown=airflow:root (\S+) (\S+)$", DOCKERFILE, re.M)
    assert source == "."
    (installed,) = re.findall(r"^RUN pip install (.*)$", DOCKERFILE, re.M)
    words = shlex.split(installed)
    assert words[words.index("-c") + 1] == f"{target}/constraints.txt"
    (extras,) = re.findall(rf"^{target}\[(.*)\]$", words[-1])
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "pyspark" in extras
    kept_out = (ROOT / ".dockerignore").read_text().split()
    needed = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "lua")
    for name in (*needed, "airflow_provider_chasqui"):
        assert (ROOT / name).exists()
        assert name not in kept_out


def test_the_commands() -> None:
    from airflow.cli.cli_config import core_commands

    assert SERVICES["airflow"]["command"] in {command.name for command in core_commands}
    program, *words = SERVICES["worker"]["entrypoint"]
    assert program in PROJECT["scripts"]
    test_snippets.parse(test_snippets.chasqui(), words)
    assert {word.partition("=")[2] for word in words if word.startswith("--queue=")} == set(QUEUES)
    module, _, attribute = words[1].partition(":")
    assert SERVICES["worker"]["working_dir"] == DAGS
    assert f"\n{attribute} = Handlers()" in (ROOT / "example_dags" / f"{module}.py").read_text()


@pytest.mark.parametrize("name", ["spark", "spark-worker"])
def test_the_commands_of_spark(name: str) -> None:
    import pyspark

    program, main, *words = SERVICES[name]["entrypoint"]
    assert (Path(sys.prefix) / "bin" / program).exists()
    (core,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(core) as jar:
        assert f"{main.replace('.', '/')}.class" in jar.namelist()
    host = SERVICES["spark"]["hostname"]
    assert words == (["--host", host] if name == "spark" else [f"spark://{host}:7077"])


def test_the_commands_of_redis(redis86_binary: Path) -> None:
    """The real server reads them."""
    from tests.support.servers import RedisServer

    program, *words = SERVICES["redis"]["command"]
    assert program == "redis-server"
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    assert pairs["--maxmemory-policy"] == "noeviction"
    assert pairs["--appendonly"] == "yes"
    with RedisServer.start(redis86_binary, *words) as server:
        assert server.url


def test_every_variable_is_one_that_somebody_reads() -> None:
    from airflow.configuration import conf

    ours = get_provider_info()["config"]
    examples = "".join(file.read_text() for file in (ROOT / "example_dags").glob("*.py"))
    command = (ROOT / "airflow_provider_chasqui" / "cli" / "server.py").read_text()
    for name in OURS:
        for key in environment(name):
            if found := re.fullmatch(r"AIRFLOW__([A-Z]+)__([A-Z_]+)", key):
                section, option = found[1].lower(), found[2].lower()
                known = ours[section]["options"] if section in ours else conf.getsection(section)
                assert known is not None, key
                assert option in known, key
            elif key.startswith("CHASQUI_"):
                assert f'"{key}"' in command, key
            elif key.startswith("FLAGSHIP_"):
                assert f'"{key}"' in examples, key
            else:
                assert key.startswith("AIRFLOW_CONN_") or key == "PYSPARK_PYTHON", key


def test_all_of_them_mean_the_same_redis_and_the_same_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow_provider_chasqui.hooks.chasqui import ChasquiHook

    airflow = environment("airflow")
    for key, value in airflow.items():
        if key.startswith("AIRFLOW_CONN_"):
            monkeypatch.setenv(key, value)
    nodes = ChasquiHook("chasqui_default").settings.target.nodes
    assert nodes == (("redis", 6379),)
    assert {from_url(environment(name)["CHASQUI_URL"]).nodes for name in OURS} == {nodes}
    assert airflow["AIRFLOW__CHASQUI__CONNECTIONS"] == "chasqui_default"
    spark = json.loads(airflow["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert SERVICES["spark-worker"]["entrypoint"][-1] == f"{spark['host']}:{spark['port']}"


def test_the_paths_and_volumes() -> None:
    made = set(re.findall(r"install -d -o airflow -g root (\S+)", DOCKERFILE))
    for name, service in SERVICES.items():
        for volume in service["volumes"]:
            source, _, target = volume.partition(":")
            if source.startswith("./"):
                assert (ROOT / source).is_dir()
                assert target == DAGS
            else:
                assert source in COMPOSE["volumes"]
                # A volume takes its owner from the image: ours must have made the folder.
                assert name == "redis" or target in made
    assert {environment(name)["FLAGSHIP_HOME"] for name in OURS} <= made
    assert set(COMPOSE["volumes"]) == {"redis", "shared"}


def test_the_ports() -> None:
    from airflow.configuration import conf

    (port,) = SERVICES["airflow"]["ports"]
    own = os.environ.get("AIRFLOW__API__PORT") or conf.get("api", "port")
    assert port == f"127.0.0.1:{own}:{own}"
    assert [name for name, each in SERVICES.items() if "ports" in each] == ["airflow"]
    assert f"http://localhost:{own}" in (ROOT / "docs" / "deployment.md").read_text("utf-8")


def test_they_wait_for_each_other_and_have_time_to_end() -> None:
    for service in SERVICES.values():
        wanted = service.get("depends_on", {})
        for other in wanted:
            condition = wanted[other]["condition"] if isinstance(wanted, dict) else None
            assert condition != "service_healthy" or "healthcheck" in SERVICES[other]
            assert other in SERVICES
    grace = parse_duration(SERVICES["worker"]["stop_grace_period"])
    assert grace >= ConsumerConfig().shutdown_timeout + timedelta(seconds=10)
