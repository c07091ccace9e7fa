"""Virtual environments for tests that need other packages than the test process."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def create_environment(name: str, *packages: str) -> Path:
    """Return the Python of an environment in `.cache`, which is created once.

    :param name: the name of its folder.
    :param packages: the arguments of `uv pip install`.
    """
    folder = ROOT / ".cache" / name
    folder.mkdir(parents=True, exist_ok=True)
    content = (ROOT / "pyproject.toml").read_bytes() + repr(packages).encode()
    fingerprint = hashlib.sha256(content).hexdigest()
    stamp, python = folder / "ready", folder / "venv" / "bin" / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != fingerprint:
            shutil.rmtree(folder / "venv", ignore_errors=True)
            uv = str(Path(sys.executable).with_name("uv"))
            _run(uv, "venv", "-q", "--python", sys.executable, str(folder / "venv"))
            _run(uv, "pip", "install", "-q", "--python", str(python), *packages)
            stamp.write_text(fingerprint)
    return python


def _run(*command: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert process.returncode == 0, f"{' '.join(command)}\n{process.stderr[-3000:]}"
