"""`make demo` runs, says what it promises, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest


@pytest.mark.timeout(90)
def test_the_demo_tells_its_story() -> None:
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "airflow_provider_chasqui.demo"],
        capture_output=True,
        text=True,
        timeout=80,
        env=environment,
        check=True,
    )
    assert done.stderr == ""
    text = done.stdout
    assert "…" not in text, "something does not fit into 80 columns"
    assert re.search(r"the same again +digest-1 +no +waiting", text)
    assert re.search(r"taken back +oops-1 +yes +cancelled", text)
    assert "sent 50,000 of 50,000, done 0 · the same call again added 0" in text
    assert re.search(r"50,003 +0 +1 +0 +2", text)
    assert "the server is gone again" in text
