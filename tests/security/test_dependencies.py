"""Every installed package is pinned, and CI audits the pins."""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;#]+)")
# Packages that install the others.
INSTALLERS = {"pip", "setuptools", "wheel"}
PROVIDER = "airflow-provider-chasqui"


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {normalized(match[1]): match[2] for line in lines if (match := PIN.match(line))}


def test_every_constraint_is_an_exact_pin() -> None:
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    inexact = [line for line in lines if line and not line.startswith("#") and not PIN.match(line)]
    assert inexact == []


def test_every_installed_package_is_pinned() -> None:
    installed = {normalized(package.metadata["Name"]) for package in distributions()}
    unpinned = installed - pins().keys() - INSTALLERS - {PROVIDER}
    assert unpinned == set(), "run `make freeze`, or pin them in constraints.txt"


def test_ci_audits_the_pins_on_every_push_and_every_night() -> None:
    """The audit queries a database over the network, so it runs in CI and not as a test."""
    workflows = ROOT / ".github" / "workflows"
    audit = (workflows / "audit.yml").read_text()
    assert "pip-audit" in audit
    assert "constraints.txt" in audit
    for name in ("tests.yml", "nightly.yml"):
        assert "uses: ./.github/workflows/audit.yml" in (workflows / name).read_text()


def test_the_tools_of_the_release_are_pinned_by_hash() -> None:
    text = (ROOT / ".github" / "release-tools.txt").read_text().replace("\\\n", " ")
    tools = {
        normalized(match[1]): match for line in text.splitlines() if (match := PIN.match(line))
    }
    wanted = (ROOT / ".github" / "release-tools.in").read_text().splitlines()
    assert {name for name in wanted if not name.startswith("#")} <= tools.keys()
    for name, match in tools.items():
        assert "--hash=sha256:" in match.string, name
        # What builds the package is what the tests have built it with.
        assert match[2] == pins().get(name, match[2]), name
