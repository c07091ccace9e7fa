"""What travels to Spark: one small zip made of the installed package, and the file to submit."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from airflow_provider_chasqui.redis_client.scripts import LUA_DIR

PACKAGES = ("core", "redis_client", "spark")
MODULES = ("__init__.py", "queue.py")
ZIP_NAME = "chasqui_spark.zip"
MAIN_NAME = "chasqui_submit.py"

# Spark looks through the modules whose names begin so, and registers their DefaultSource.
_AUTO_REGISTER_MODULE = (
    "pyspark_chasqui.py",
    "from airflow_provider_chasqui.spark.source import ChasquiDataSource as DefaultSource\n",
)
_MAIN_SOURCE = "from airflow_provider_chasqui.spark.submit_main import main\n\nmain()\n"


def build_zip(folder: Path) -> Path:
    """Write the zip that executors need into a folder; the same package makes the same bytes."""
    target = folder / ZIP_NAME
    package = files("airflow_provider_chasqui")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in sorted(_zip_entries(package)):
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            archive.writestr(entry, raw, zipfile.ZIP_DEFLATED)
    return target


def build_main(folder: Path) -> Path:
    """Write the application that ships or replays; it lives in the zip, this only calls it."""
    target = folder / MAIN_NAME
    target.write_text(_MAIN_SOURCE)
    return target


def _zip_entries(package: Traversable) -> Iterator[tuple[str, bytes]]:
    home = "airflow_provider_chasqui"
    yield _AUTO_REGISTER_MODULE[0], _AUTO_REGISTER_MODULE[1].encode()
    for name in MODULES:
        yield f"{home}/{name}", (package / name).read_bytes()
    for room in PACKAGES:
        yield from _iter_files(package / room, f"{home}/{room}", ".py")
    yield from _iter_files(LUA_DIR, f"{home}/lua", ".lua")


def _iter_files(folder: Traversable, prefix: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        name = f"{prefix}/{each.name}"
        if each.is_dir():
            yield from _iter_files(each, name, suffix)
        elif each.name.endswith(suffix):
            yield name, each.read_bytes()
