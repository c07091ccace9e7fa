"""Files sent to Spark: a zip with the code that executors need, and the application to submit."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from airflow_provider_chasqui.redis_client.scripts import LUA_DIR

PACKAGES = ("core", "redis_client", "spark")
MODULES = ("__init__.py", "arrow_encoder.py", "clock.py", "queue.py")
ZIP_NAME = "chasqui_spark.zip"
MAIN_NAME = "chasqui_submit.py"

# Spark imports modules named pyspark_* and registers the DefaultSource of each.
_AUTO_REGISTER_MODULE = (
    "pyspark_chasqui.py",
    "from airflow_provider_chasqui.spark.source import ChasquiDataSource as DefaultSource\n",
)
_MAIN_SOURCE = "from airflow_provider_chasqui.spark.submit_main import main\n\nmain()\n"


def build_zip(folder: Path) -> Path:
    """Write the zip that executors need. The same package produces the same bytes.

    :param folder: the folder to write into.
    :return: the path of the zip.
    """
    target = folder / ZIP_NAME
    package = files("airflow_provider_chasqui")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in sorted(_zip_entries(package)):
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            archive.writestr(entry, raw, zipfile.ZIP_DEFLATED)
    return target


def build_main(folder: Path) -> Path:
    """Write the application to submit, which calls `submit_main` in the zip.

    :param folder: the folder to write into.
    :return: the path of the application.
    """
    target = folder / MAIN_NAME
    target.write_text(_MAIN_SOURCE)
    return target


def _zip_entries(package: Traversable) -> Iterator[tuple[str, bytes]]:
    root = "airflow_provider_chasqui"
    yield _AUTO_REGISTER_MODULE[0], _AUTO_REGISTER_MODULE[1].encode()
    for name in MODULES:
        yield f"{root}/{name}", (package / name).read_bytes()
    for name in PACKAGES:
        yield from _iter_files(package / name, f"{root}/{name}", ".py")
    yield from _iter_files(LUA_DIR, f"{root}/lua", ".lua")


def _iter_files(folder: Traversable, prefix: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        name = f"{prefix}/{item.name}"
        if item.is_dir():
            yield from _iter_files(item, name, suffix)
        elif item.name.endswith(suffix):
            yield name, item.read_bytes()
