"""What travels to Spark: one small zip made of the installed package, and the file to submit."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from airflow_provider_chasqui.store.scripts import LUA

ROOMS = ("core", "store", "spark")
FILES = ("__init__.py", "queue.py")
ZIP = "chasqui_spark.zip"
MAIN = "chasqui_ship.py"

# Spark looks through the modules whose names begin so, and registers their DefaultSource.
_DISCOVERED = (
    "pyspark_chasqui.py",
    "from airflow_provider_chasqui.spark.source import ChasquiDataSource as DefaultSource\n",
)
_MAIN = "from airflow_provider_chasqui.spark.ship import main\n\nmain()\n"


def build_zip(folder: Path) -> Path:
    """Write the zip that executors need into a folder; the same package makes the same bytes."""
    target = folder / ZIP
    package = files("airflow_provider_chasqui")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in sorted(_contents(package)):
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            archive.writestr(entry, raw, zipfile.ZIP_DEFLATED)
    return target


def build_main(folder: Path) -> Path:
    """Write the application that ships or replays; it lives in the zip, this only calls it."""
    target = folder / MAIN
    target.write_text(_MAIN)
    return target


def _contents(package: Traversable) -> Iterator[tuple[str, bytes]]:
    home = "airflow_provider_chasqui"
    yield _DISCOVERED[0], _DISCOVERED[1].encode()
    for name in FILES:
        yield f"{home}/{name}", (package / name).read_bytes()
    for room in ROOMS:
        yield from _walk(package / room, f"{home}/{room}", ".py")
    yield from _walk(LUA, f"{home}/lua", ".lua")


def _walk(folder: Traversable, prefix: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        name = f"{prefix}/{each.name}"
        if each.is_dir():
            yield from _walk(each, name, suffix)
        elif each.name.endswith(suffix):
            yield name, each.read_bytes()
