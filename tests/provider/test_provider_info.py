"""What Airflow is told about the provider is true, and Airflow understands it."""

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
NAMED = ("hook-class-names", "extra-links", "notifications", "queues", "cli", "transfers")


def _schema(name: str) -> Any:
    return json.loads(files("airflow").joinpath(name).read_text())


def test_it_fits_the_schema_that_airflow_checks_at_run_time() -> None:
    import jsonschema

    jsonschema.validate(INFO, _schema("provider_info.schema.json"))


def test_it_fits_the_schema_of_provider_sources() -> None:
    """That one describes the form of a connection, which the other leaves open."""
    import jsonschema

    schema = _schema("provider.yaml.schema.json")
    for key, value in INFO.items():
        if key in ("queues", "task-decorators"):  # 3.3.2 reads another shape than it documents
            continue
        part = {"definitions": schema.get("definitions", {}), **schema["properties"][key]}
        jsonschema.validate(value, part)


def test_the_entry_point_leads_here() -> None:
    found = entry_points(group="apache_airflow_provider")
    ours = [each for each in found if each.value.startswith("airflow_provider_chasqui")]
    assert {each.load() for each in ours} == {get_provider_info}


def _modules() -> list[str]:
    rooms = ("operators", "sensors", "hooks", "triggers")
    return [name for room in rooms for part in INFO[room] for name in part["python-modules"]]


def _objects() -> list[str]:
    found = [name for key in NAMED for name in INFO.get(key, []) if isinstance(name, str)]
    found += [each["hook-class-name"] for each in INFO["connection-types"]]
    found += [each["class-name"] for each in INFO["task-decorators"]]
    found += [each["plugin-class"] for each in INFO.get("plugins", [])]
    for uri in INFO["asset-uris"]:
        found += [uri[key] for key in ("handler", "factory", "to_openlineage_converter")]
    return found


@pytest.mark.parametrize("name", _modules())
def test_every_module_it_names_can_be_imported(name: str) -> None:
    import_module(name)


@pytest.mark.parametrize("name", _objects())
def test_every_object_it_names_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(import_module(module), attribute))


def test_no_public_module_of_our_rooms_is_left_out() -> None:
    """A class with an Airflow suffix that Airflow is not told of is an oversight."""
    import airflow_provider_chasqui as package

    suffixes = {
        "operators": "Operator", "sensors": "Sensor", "hooks": "Hook", "triggers": "Trigger",
    }  # fmt: skip
    listed = set(_modules())
    for room, suffix in suffixes.items():
        folder = files(package).joinpath(room)
        for file in folder.iterdir():
            if not file.name.endswith(".py"):
                continue
            text = file.read_text()
            public = [
                line for line in text.splitlines()
                if re.match(rf"class (Chasqui|Rsmq)\w*{suffix}\(", line)
            ]  # fmt: skip
            name = f"airflow_provider_chasqui.{room}.{file.name.removesuffix('.py')}"
            assert not public or name in listed, f"{name} is not in get_provider_info"


def test_reading_it_imports_nothing_of_ours() -> None:
    code = """
import sys
from airflow_provider_chasqui.get_provider_info import get_provider_info
get_provider_info()
names = {n for n in sys.modules if n.startswith("airflow_provider_chasqui")}
assert names == {"airflow_provider_chasqui", "airflow_provider_chasqui.get_provider_info"}, names
heavy = {"redis", "airflow", "pyspark"} & set(sys.modules)
assert not heavy, heavy
"""
    _python(code)


def test_a_dag_file_may_import_all_of_it_without_redis_or_pyspark() -> None:
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
    _python(code)


def _python(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::airflow.utils.deprecation_tools.DeprecatedImportWarning")
def test_airflow_registers_all_of_it() -> None:
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


def test_the_configuration_section_is_known_to_airflow() -> None:
    from airflow.configuration import conf

    assert conf.getfloat("chasqui", "poll_interval") == 15.0
