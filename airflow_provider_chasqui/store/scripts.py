"""The Lua scripts: read from lua/, stitched for a dialect, addressed by their SHA1."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

_INCLUDE = re.compile(r"^-- @include (\w+)$", re.MULTILINE)
# Read as resources: on a Spark executor the package lives in a zip.
_PACKAGED = files("airflow_provider_chasqui") / "lua"
_CHECKOUT = Path(__file__).parents[2] / "lua"

LUA: Traversable = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: bytes
    sha: bytes


@cache
def script(name: str, dialect: str) -> Script:
    """Return a script with its includes, which are looked up in the dialect's folder, then lib/."""

    def stitch(match: re.Match[str]) -> str:
        for folder in (LUA / dialect, LUA / "lib"):
            path = folder / f"{match[1]}.lua"
            if path.is_file():
                return path.read_text("utf-8").rstrip()
        raise FileNotFoundError(
            f"lua/{name}.lua includes {match[1]!r}, which is not there ({dialect})"
        )

    text = (LUA / f"{name}.lua").read_text("utf-8")
    source = _INCLUDE.sub(stitch, text).encode()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
