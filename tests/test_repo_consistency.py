"""Tests that files outside the code agree with it: registry, workflow, templates, changelog."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.__main__ import NEXT
from tests.test_site import airflow_classes

ROOT = Path(__file__).parents[1]
ISSUE_TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def registry_entries() -> dict[str, str]:
    """Return the descriptions in the registry file, by the path of the class."""
    registry = read_yaml(".airflow-registry.yaml")
    sections = [value for value in registry.values() if isinstance(value, list)]
    return {entry["module"]: entry["description"] for section in sections for entry in section}


def test_the_registry_lists_every_class_once_with_a_description() -> None:
    assert sorted(path.rpartition(".")[2] for path in registry_entries()) == airflow_classes()
    assert all(registry_entries().values())


@pytest.mark.parametrize("path", sorted(registry_entries()))
def test_every_class_in_the_registry_exists(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)


@pytest.mark.parametrize("command", [command for command, _ in NEXT])
def test_the_commands_that_the_demo_suggests_exist(command: str) -> None:
    program, *words = command.split()
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.M)
    elif program.startswith(".venv/bin/"):
        scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
        assert program.removeprefix(".venv/bin/") in scripts
    else:
        assert (ROOT / program).exists()


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# The jobs with more rights than reading, and what for.
WRITING_JOBS = {
    ("release", "attest"): {"attestations": "write", "id-token": "write"},
    ("release", "publish"): {"id-token": "write"},  # trusted publishing on PyPI
    ("release", "github"): {"contents": "write"},  # the release with its files
}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit(file: Path) -> None:
    """A tag can be moved to other code, a commit cannot."""
    used = re.findall(r"uses: (.*)", file.read_text())
    assert used
    for action in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_an_action_has_one_version_in_all_workflows() -> None:
    texts = "".join(file.read_text() for file in WORKFLOWS)
    versions = set(re.findall(r"uses: ([\w-]+/[\w-]+)@(\S+)", texts))
    assert len({action for action, _ in versions}) == len(versions)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_have_the_least_permissions(file: Path) -> None:
    workflow = read_yaml(str(file.relative_to(ROOT)))
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for name, job in workflow["jobs"].items():
        allowed = WRITING_JOBS.get((file.stem, name), {"contents": "read"})
        assert job.get("permissions", workflow["permissions"]) in (allowed, {"contents": "read"})
        for step in job.get("steps", ()):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
            # A value of the event in a script could be a command.
            assert "${{" not in step.get("run", ""), step
    # YAML reads the key `on` as True. This event runs code of a fork with the secrets.
    assert "pull_request_target" not in workflow[True]


def test_the_matrix_fails_if_nothing_ran() -> None:
    workflow = read_yaml(".github/workflows/tests.yml")
    assert workflow["env"]["CHASQUI_REQUIRE_SERVERS"] == "1"
    for job in ("all", "server"):
        assert int(workflow["jobs"][job]["steps"][-1]["env"]["CHASQUI_MIN_PASSED"]) >= 900


def test_the_release_needs_a_signed_tag_of_this_version_and_equal_builds() -> None:
    jobs = read_yaml(".github/workflows/release.yml")["jobs"]
    script = "\n".join(step.get("run", "") for step in jobs["build"]["steps"])
    for part in (".verification.verified", "hatchling version", "CHANGELOG.md", "diff <("):
        assert part in script
    assert "--require-hashes" in script
    assert (jobs["attest"]["needs"], jobs["publish"]["needs"]) == ("build", "attest")
    assert jobs["publish"]["environment"] == "pypi"
    assert not re.search(r"secrets\.", (ROOT / ".github/workflows/release.yml").read_text())


def test_owners_and_dependency_updates_name_existing_files() -> None:
    for line in (ROOT / ".github" / "CODEOWNERS").read_text().splitlines():
        path = line.split()[0] if line else "#"
        assert path in ("#", "*") or (ROOT / path.strip("/")).exists(), line
    for update in read_yaml(".github/dependabot.yml")["updates"]:
        assert (ROOT / update["directory"].strip("/")).is_dir()


def test_the_workflow_names_servers_that_the_tests_know() -> None:
    jobs = read_yaml(".github/workflows/tests.yml")["jobs"]
    fixtures = (ROOT / "tests" / "conftest.py").read_text()
    for server in jobs["server"]["strategy"]["matrix"]["server"]:
        assert f'"{server}"' in fixtures, server
    assert jobs["all"]["steps"][-1]["run"].endswith(".ci/run")


def test_the_pre_commit_hooks_run_the_programs_of_make_check() -> None:
    (repo,) = read_yaml(".pre-commit-config.yaml")["repos"]
    programs = {hook["entry"].split()[0] for hook in repo["hooks"]}
    makefile = (ROOT / "Makefile").read_text()
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.M)
    assert check
    assert programs == {f".venv/bin/{name}" for name in re.findall(r"\$\(BIN\)/(\w+)", check[1])}


@pytest.mark.parametrize("page", ISSUE_TEMPLATES, ids=lambda page: page.name)
def test_an_issue_template_has_a_name_and_a_description(page: Path) -> None:
    _, head, body = page.read_text("utf-8").split("---\n", 2)
    assert {"name", "about"} <= set(yaml.safe_load(head))
    assert body.strip()


def test_every_release_in_the_changelog_has_a_wire_section() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    releases = re.split(r"^## ", text, flags=re.M)[1:]
    assert releases
    for release in releases:
        assert "### Wire" in release


def test_the_layout_table_lists_every_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    packages = {
        init.parent.name for init in (ROOT / "airflow_provider_chasqui").glob("*/__init__.py")
    }
    assert [name for name in sorted(packages) if not re.search(rf"[`/]{name}/", text)] == []
