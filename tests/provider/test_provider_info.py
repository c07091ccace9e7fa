"""The provider's metadata: it is correct, complete and accepted by Airflow."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

import pytest

from airflow_provider_chasqui.get_provider_info import get_provider_info

INFO = get_provider_info()
CLASS_LISTS = ("hook-class-names", "extra-links", "notifications", "queues", "cli", "transfers")


def _schema(name: str) -> Any:
    return json.loads(files("airflow").joinpath(name).read_text())


def test_the_metadata_matches_the_runtime_schema() -> None:
    import jsonschema

    jsonschema.validate(INFO, _schema("provider_info.schema.json"))


def test_the_metadata_matches_the_schema_of_provider_sources() -> None:
    """This schema describes the connection form, which the runtime schema does not."""
    import jsonschema

    schema = _schema("provider.yaml.schema.json")
    for key, value in INFO.items():
        if key in (
            "queues",
            "task-decorators",
        ):  # Airflow 3.3.2 reads a shape that differs from its schema
            continue
        part = {"definitions": schema.get("definitions", {}), **schema["properties"][key]}
        jsonschema.validate(value, part)


def test_the_entry_point_refers_to_get_provider_info() -> None:
    providers = entry_points(group="apache_airflow_provider")
    objects = {
        entry_point.load()
        for entry_point in providers
        if entry_point.value.startswith("airflow_provider_chasqui")
    }
    assert objects == {get_provider_info}


def _modules() -> list[str]:
    packages = ("operators", "sensors", "hooks", "triggers")
    entries = [entry for package in packages for entry in INFO[package]]
    names = [name for entry in entries for name in entry["python-modules"]]
    return [*names, *{transfer["python-module"] for transfer in INFO["transfers"]} - set(names)]


def _objects() -> list[str]:
    names = [name for key in CLASS_LISTS for name in INFO.get(key, []) if isinstance(name, str)]
    names += [connection["hook-class-name"] for connection in INFO["connection-types"]]
    names += [decorator["class-name"] for decorator in INFO["task-decorators"]]
    names += [plugin["plugin-class"] for plugin in INFO.get("plugins", [])]
    for uri in INFO["asset-uris"]:
        names += [uri[key] for key in ("handler", "factory", "to_openlineage_converter")]
    return names


@pytest.mark.parametrize("name", _modules())
def test_every_listed_module_can_be_imported(name: str) -> None:
    import_module(name)


@pytest.mark.parametrize("name", _objects())
def test_every_listed_object_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(import_module(module), attribute))


def test_every_public_module_is_listed() -> None:
    """A module with a class such as `Chasqui...Operator` must be in the metadata."""
    import airflow_provider_chasqui

    suffixes = {
        "operators": "Operator",
        "sensors": "Sensor",
        "hooks": "Hook",
        "triggers": "Trigger",
    }
    listed = set(_modules())
    for package, suffix in suffixes.items():
        public_class = re.compile(rf"^class (Chasqui|Rsmq)\w*{suffix}\(", re.M)
        for file in files(airflow_provider_chasqui).joinpath(package).iterdir():
            if file.name.endswith(".py") and public_class.search(file.read_text()):
                module = f"airflow_provider_chasqui.{package}.{file.name.removesuffix('.py')}"
                assert module in listed, f"{module} is not in get_provider_info"


def test_reading_the_metadata_imports_no_other_module() -> None:
    code = """
import sys
from airflow_provider_chasqui.get_provider_info import get_provider_info
get_provider_info()
names = {n for n in sys.modules if n.startswith("airflow_provider_chasqui")}
assert names == {"airflow_provider_chasqui", "airflow_provider_chasqui.get_provider_info"}, names
heavy = {"redis", "airflow", "pyspark"} & set(sys.modules)
assert not heavy, heavy
"""
    _run_python(code)


def test_importing_the_listed_modules_imports_neither_redis_nor_pyspark() -> None:
    names = [name for name in _modules() if ".spark" not in name]
    objects = [name.rpartition(".")[0] for name in _objects()]
    code = f"""
import sys
from importlib import import_module
for name in {sorted({*names, *objects})!r}:
    import_module(name)
heavy = {{"redis", "hiredis", "pyspark"}} & set(sys.modules)
assert not heavy, heavy
"""
    _run_python(code)


def _run_python(code: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::airflow.utils.deprecation_tools.DeprecatedImportWarning")
def test_airflow_registers_the_provider() -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert "airflow-provider-chasqui" in manager.providers
    hook = manager.hooks["chasqui"]
    assert hook is not None
    assert hook.hook_name == "Chasqui"
    fields = INFO["connection-types"][0]["conn-fields"]
    assert set(fields) <= {key.rpartition("__")[2] for key in manager.connection_form_widgets}
    behaviour = manager.field_behaviours["chasqui"]
    assert behaviour["relabeling"]["schema"] == "Database number"
    assert "chasqui" in manager.asset_uri_handlers
    assert any(name == "chasqui" for name, _ in manager.taskflow_decorators.items())
    assert "airflow_provider_chasqui.links.job.ChasquiJobLink" in manager.extra_links_class_names
    assert "airflow_provider_chasqui.notifications.chasqui.ChasquiNotifier" in manager.notification


def test_airflow_knows_the_configuration_section() -> None:
    from airflow.configuration import conf

    assert conf.getfloat("chasqui", "poll_interval") == 15.0
