"""Lua scripts: read from lua/, assembled for a dialect, identified by their SHA1."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from airflow_provider_chasqui.core.errors import ConnectionFailed

_INCLUDE_PATTERN = re.compile(r"^-- @include (\w+)$", re.MULTILINE)
# Read as package resources, because on a Spark executor the package is in a zip file.
_PACKAGED_DIR = files("airflow_provider_chasqui") / "lua"
_CHECKOUT_DIR = Path(__file__).parents[2] / "lua"

LUA_DIR: Traversable = _PACKAGED_DIR if _PACKAGED_DIR.is_dir() else _CHECKOUT_DIR


@dataclass(frozen=True, slots=True)
class Script:
    """A script with its includes, and the SHA1 that EVALSHA takes."""

    name: str
    source: bytes
    sha: bytes


@cache
def load_script(name: str, dialect: str) -> Script:
    """Return a script with its includes.

    :param name: the name of the file in lua/, without its ending.
    :param dialect: "native" or "portable". Includes are searched in this folder, then in lib/.
    :raises FileNotFoundError: if the script or an include does not exist.
    :raises ConnectionFailed: if a file cannot be read, such as when too many files are open.
    """
    try:
        return _read_script(name, dialect)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConnectionFailed(
            f"cannot read the script lua/{name}.lua: {error.strerror}; close other files, or raise "
            "the limit of open files (ulimit -n)"
        ) from error


def _read_script(name: str, dialect: str) -> Script:

    def read_include(match: re.Match[str]) -> str:
        for folder in (LUA_DIR / dialect, LUA_DIR / "lib"):
            path = folder / f"{match[1]}.lua"
            if path.is_file():
                return path.read_text("utf-8").rstrip()
        raise FileNotFoundError(
            f"lua/{name}.lua includes {match[1]!r}, which is not in lua/{dialect} or lua/lib"
        )

    text = (LUA_DIR / f"{name}.lua").read_text("utf-8")
    source = _INCLUDE_PATTERN.sub(read_include, text).encode()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
