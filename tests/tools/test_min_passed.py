"""A run in which almost all tests were skipped fails, if CI asks for a number of passed tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("wanted", "processes", "code"), [("1", "0", 0), ("100000", "2", 1)])
def test_a_run_with_too_few_passed_tests_fails(wanted: str, processes: str, code: int) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "tests/core/test_ids.py"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"CHASQUI_MIN_PASSED": wanted},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("tests passed, but" in done.stdout) == bool(code)
