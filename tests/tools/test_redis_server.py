"""The finder of Redis servers, with real binaries: what it accepts, what it rejects, and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import valkey_binary
from tools.redis_server import REDIS7, REDIS8, NotFound, cache_folder, find, obtain, version_of

SCRIPT = Path(__file__).parents[2] / "tools" / "redis_server.py"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Return an environment with an empty PATH and an empty cache."""
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def on_path(environ: dict[str, str], binary: Path) -> Path:
    link = Path(environ["PATH"]) / "redis-server"
    link.symlink_to(binary)
    return link


def cached(environ: dict[str, str], name: str, binary: Path) -> Path:
    link = cache_folder(environ) / name / "redis-server"
    link.parent.mkdir(parents=True)
    link.symlink_to(binary)
    return link


def test_an_empty_machine_has_no_redis(bare: dict[str, str]) -> None:
    assert find(REDIS8, bare) is None
    assert find(REDIS7, bare) is None


def test_a_new_enough_binary_on_the_path_is_used(
    bare: dict[str, str], redis86_binary: Path
) -> None:
    assert find(REDIS8, bare | {"PATH": str(on_path(bare, redis86_binary).parent)}) is not None


def test_the_variable_takes_precedence_over_path_and_cache(
    bare: dict[str, str], redis86_binary: Path
) -> None:
    on_path(bare, redis86_binary)
    cached(bare, "redis-8.6.0", redis86_binary)
    environ = bare | {"CHASQUI_REDIS_SERVER": str(redis86_binary)}
    assert find(REDIS8, environ) == redis86_binary


def test_the_path_takes_precedence_over_the_cache(
    bare: dict[str, str], redis86_binary: Path
) -> None:
    cached(bare, "redis-8.6.0", redis86_binary)
    assert find(REDIS8, bare) == cache_folder(bare) / "redis-8.6.0" / "redis-server"
    link = on_path(bare, redis86_binary)
    assert find(REDIS8, bare) == link


def test_a_too_old_binary_on_the_path_is_rejected(
    bare: dict[str, str], redis7_binary: Path
) -> None:
    link = on_path(bare, redis7_binary)
    assert find(REDIS8, bare) is None
    assert find(REDIS7, bare) == link


def test_a_newer_redis_is_not_a_redis_7(bare: dict[str, str], redis86_binary: Path) -> None:
    on_path(bare, redis86_binary)
    assert find(REDIS7, bare) is None


def test_valkey_named_redis_server_is_rejected(bare: dict[str, str]) -> None:
    on_path(bare, valkey_binary())
    assert version_of(valkey_binary()) is None
    assert find(REDIS8, bare) is None


def test_an_unsuitable_binary_in_the_variable_is_an_error(
    bare: dict[str, str], redis7_binary: Path
) -> None:
    for binary in (str(redis7_binary), str(valkey_binary()), "/nowhere/redis-server"):
        with pytest.raises(NotFound, match=r"CHASQUI_REDIS_SERVER=.*Redis 8\.6\+ is needed"):
            find(REDIS8, bare | {"CHASQUI_REDIS_SERVER": binary})


def test_the_newest_cached_binary_is_used_and_a_broken_one_skipped(
    bare: dict[str, str], redis86_binary: Path, redis7_binary: Path
) -> None:
    cached(bare, "redis-7.0.15", redis7_binary)
    cached(bare, "redis-9.9.9", Path("/nowhere"))
    newest = cached(bare, "redis-8.6.3", redis86_binary)
    assert find(REDIS8, bare) == newest


def test_obtain_uses_an_existing_binary_and_writes_no_cache(
    bare: dict[str, str], redis86_binary: Path
) -> None:
    link = on_path(bare, redis86_binary)
    assert obtain(REDIS8, bare) == link
    assert not cache_folder(bare).exists()


def test_the_command_prints_only_the_path(redis86_binary: Path) -> None:
    environ = os.environ | {"CHASQUI_REDIS_SERVER": str(redis86_binary)}
    result = subprocess.run([sys.executable, SCRIPT], env=environ, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{redis86_binary}\n", "")


def test_the_command_reports_that_there_is_none(bare: dict[str, str]) -> None:
    result = subprocess.run(
        [sys.executable, SCRIPT, "--no-get"], env=bare, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert "not found on this machine" in result.stderr
