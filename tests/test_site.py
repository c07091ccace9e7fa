"""Tests of the documentation site: it builds without a warning, and it is complete."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_chasqui.get_provider_info import get_provider_info
from tests import test_snippets

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "airflow_provider_chasqui"
AIRFLOW_PACKAGES = ("operators", "sensors", "triggers", "hooks", "notifications")
CLASS = re.compile(r"^class ((?:Chasqui|Rsmq)\w*(?:Operator|Sensor|Trigger|Hook|Notifier))\(", re.M)
REFERENCE = "".join(page.read_text("utf-8") for page in sorted((DOCS / "reference").glob("*.md")))
REFERENCE_NAMES = re.findall(r"^::: (\S+)$", REFERENCE, re.M)
FRONT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")


def airflow_modules() -> list[Path]:
    return [file for package in AIRFLOW_PACKAGES for file in (PACKAGE / package).glob("*.py")]


def airflow_classes() -> list[str]:
    return sorted(
        name for file in airflow_modules() for name in CLASS.findall(file.read_text("utf-8"))
    )


def mkdocs_config() -> dict[str, Any]:
    class Loader(yaml.SafeLoader):
        """Loader that ignores the Python tags of mkdocs.yml."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    config: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)
    return config


def nav_pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for item in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from nav_pages(item)


@pytest.mark.timeout(240)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    assert "WARNING" not in build.stderr
    operators = (tmp_path / "reference" / "operators" / "index.html").read_text("utf-8")
    assert "wait_for_completion" in operators
    assert ":param" not in operators, "Sphinx fields are not rendered"


def test_every_page_is_in_the_navigation() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert pages - set(nav_pages(mkdocs_config()["nav"])) == set()


def test_airflow_classes_are_found() -> None:
    assert len(airflow_classes()) > 15


@pytest.mark.parametrize("name", airflow_classes())
def test_every_airflow_class_is_on_the_overview_page(name: str) -> None:
    assert f"`{name}" in (DOCS / "airflow" / "index.md").read_text("utf-8")


@pytest.mark.parametrize("name", airflow_classes())
def test_every_airflow_class_is_in_the_reference(name: str) -> None:
    """Either the class is listed, or its module is."""
    (file,) = (file for file in airflow_modules() if f"class {name}(" in file.read_text("utf-8"))
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    assert {module, f"{module}.{name}"} & set(REFERENCE_NAMES)


def resolve(path: str) -> Any:
    """Return the module, class or function of a dotted path."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(resolve(module), name)


def functions_of(thing: Any) -> Iterator[tuple[str, str, set[str]]]:
    """Yield the name, the docstring and the parameter names of everything public in `thing`."""
    if inspect.ismodule(thing):
        for name, member in vars(thing).items():
            if not name.startswith("_") and getattr(member, "__module__", "") == thing.__name__:
                yield from functions_of(member)
    elif inspect.isclass(thing):
        parameters = {
            name
            for base in thing.__mro__
            for function in (base.__dict__.get("__init__"), base.__dict__.get("__new__"))
            if inspect.isfunction(function)
            for name in inspect.signature(function).parameters
        }
        fields = {name for base in thing.__mro__ for name in inspect.get_annotations(base)}
        yield thing.__qualname__, vars(thing).get("__doc__") or "", parameters | fields
        for name, member in vars(thing).items():
            if not name.startswith("_") and inspect.isfunction(member):
                yield from functions_of(member)
    elif inspect.isfunction(thing):
        yield thing.__qualname__, thing.__doc__ or "", set(inspect.signature(thing).parameters)


@pytest.mark.parametrize("path", REFERENCE_NAMES)
def test_documented_parameters_exist(path: str) -> None:
    unknown = [
        f"{name}: {parameter}"
        for name, text, parameters in functions_of(resolve(path))
        if not {"options", "kwargs"} & parameters or inspect.isclass(resolve(path))
        for parameter in re.findall(r"^\s*:param (\w+):", text, re.M)
        if parameter not in parameters
    ]
    assert unknown == []


def test_every_connection_field_and_configuration_option_is_documented() -> None:
    info = get_provider_info()
    page = (DOCS / "airflow" / "connection.md").read_text("utf-8")
    connection_type = next(
        entry for entry in info["connection-types"] if entry["connection-type"] == "chasqui"
    )
    fields = connection_type["conn-fields"]
    assert [field for field in fields if f"`{field}`" not in page] == []
    page = (DOCS / "reference" / "configuration.md").read_text("utf-8")
    for option, details in info["config"]["chasqui"]["options"].items():
        assert f"| `{option}` |" in page, option
        assert details["description"]


def leaf_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from leaf_commands(child, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


def test_every_command_and_every_worker_option_is_documented() -> None:
    page = (DOCS / "cli.md").read_text("utf-8")
    commands = dict(leaf_commands(test_snippets.chasqui()))
    assert [name for name in commands if f"chasqui {name}" not in page] == []
    parameters = commands["worker"].params
    options = {parameter.opts[0] for parameter in parameters if parameter.opts[0][0] == "-"}
    assert [option for option in options if f"`{option}`" not in page] == []


def test_every_image_is_on_a_page() -> None:
    text = "".join(page.read_text("utf-8") for page in (*DOCS.rglob("*.md"), ROOT / "README.md"))
    images = {image.name for image in (DOCS / "images").iterdir()}
    assert images - set(re.findall(r"images/([\w-]+\.(?:png|svg))\)", text)) == set()


def test_the_architecture_page_names_existing_files() -> None:
    page = (DOCS / "architecture.md").read_text("utf-8")
    files = set(re.findall(r"`([\w/]+\.(?:py|lua))`", page))
    scripts = {file for file in files if file.endswith(".lua")}
    missing = [
        file for file in files - scripts if not any((d / file).is_file() for d in (PACKAGE, ROOT))
    ]
    missing += [
        file for file in scripts if not (ROOT / "lua" / file.removeprefix("lua/")).is_file()
    ]
    assert missing == []


def test_the_diagrams_name_existing_scripts() -> None:
    for image in (DOCS / "images").glob("*.svg"):
        labels = re.findall(r">([^<]*\.lua[^<]*)<", image.read_text("utf-8"))
        for name in re.findall(r"\b(\w+\.lua)", " ".join(labels)):
            # A long name is broken after an underscore.
            matches = list((ROOT / "lua").glob(f"*{name}"))
            assert matches, f"{image.name}: {name}"


def decision_records() -> list[Path]:
    return sorted((DOCS / "adr").glob("[0-9]*.md"))


@pytest.mark.parametrize("record", decision_records(), ids=lambda record: record.stem)
def test_a_decision_record_has_its_sections_and_is_listed(record: Path) -> None:
    text = record.read_text("utf-8")
    headings = re.findall(r"^## (.+)$", text, re.M)
    assert headings == ["Context", "Decision", "Consequences"]
    assert f"# {int(record.name[:4])}. " in text
    assert f"({record.name})" in (DOCS / "adr" / "index.md").read_text("utf-8")


@pytest.mark.parametrize("name", FRONT_PAGES)
def test_the_links_of_the_front_pages_lead_to_files(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text("utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []
