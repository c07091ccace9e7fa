"""The Lua scripts: read from lua/, stitched for a dialect, addressed by their SHA1."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

_INCLUDE_PATTERN = re.compile(r"^-- @include (\w+)$", re.MULTILINE)
# Read as resources: on a Spark executor the package lives in a zip.
_PACKAGED_DIR = files("airflow_provider_chasqui") / "lua"
_CHECKOUT_DIR = Path(__file__).parents[2] / "lua"

LUA_DIR: Traversable = _PACKAGED_DIR if _PACKAGED_DIR.is_dir() else _CHECKOUT_DIR


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: bytes
    sha: bytes


@cache
def load_script(name: str, dialect: str) -> Script:
    """Return a script with its includes, which are looked up in the dialect's folder, then lib/."""

    def stitch(match: re.Match[str]) -> str:
        for folder in (LUA_DIR / dialect, LUA_DIR / "lib"):
            path = folder / f"{match[1]}.lua"
            if path.is_file():
                return path.read_text("utf-8").rstrip()
        raise FileNotFoundError(
            f"lua/{name}.lua includes {match[1]!r}, which is not there ({dialect})"
        )

    text = (LUA_DIR / f"{name}.lua").read_text("utf-8")
    source = _INCLUDE_PATTERN.sub(stitch, text).encode()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
