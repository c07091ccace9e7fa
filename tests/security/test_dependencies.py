"""What is installed is what was looked at: every package is pinned, and CI audits the pins."""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;#]+)")
# They install the others.
TOOLS = {"pip", "setuptools", "wheel"}
OURS = "airflow-provider-chasqui"


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {plain(found[1]): found[2] for line in lines if (found := PIN.match(line))}


def test_every_line_is_an_exact_pin() -> None:
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    loose = [line for line in lines if line and not line.startswith("#") and not PIN.match(line)]
    assert loose == []


def test_everything_installed_is_pinned() -> None:
    installed = {plain(each.metadata["Name"]): each.version for each in distributions()}
    known = pins()
    unpinned = {name for name in installed if name not in known} - TOOLS - {OURS}
    assert unpinned == set(), "run `make freeze`, or pin them in constraints.txt"


def test_ci_audits_the_pins() -> None:
    """The audit asks a database over the network, so it is a job of CI and not a test."""
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert "pip-audit" in workflow
    assert "constraints.txt" in workflow
