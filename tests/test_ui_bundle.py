"""The committed bundle of the page is what the sources in ui/ build.

A minified file that is never compared is the easiest place to hide code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[1]
STATIC = Path("airflow_provider_chasqui/plugins/static")


def test_the_bundle_is_built_from_the_sources(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        if os.environ.get("CHASQUI_REQUIRE_SERVERS") == "1":
            pytest.fail("npm is not installed")
        pytest.skip("npm is not installed")
    shutil.copytree(ROOT / "ui", tmp_path / "ui", ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / STATIC).mkdir(parents=True)
    for command in (["install", "--no-save", "--no-audit", "--no-fund"], ["run", "build"]):
        done = subprocess.run(
            ["npm", "--prefix", "ui", "--silent", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    built = {file.name: file.read_bytes() for file in (tmp_path / STATIC).iterdir()}
    committed = {file.name: file.read_bytes() for file in (ROOT / STATIC).iterdir()}
    assert built.keys() == committed.keys()
    changed = [name for name in built if built[name] != committed[name]]
    assert changed == [], "run `make ui` and commit the result"
