"""Environments in which some programs are not on the PATH."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

JAVA = ("java", "java-*", "javac")
NODE = ("node", "nodejs", "npm", "npx")
BROWSER = ("chromium*", "chrome*", "google-chrome*")
COMPILER = ("cc", "c++", "c89*", "c99*", "gcc*", "g++*", "*-gcc*", "*-g++*", "clang*", "tcc")


def environment_without(folder: Path, *names: str) -> dict[str, str]:
    """Return this process's environment without JAVA_HOME and with these programs off the PATH.

    A directory of the PATH that holds one of them is replaced by links to its other programs.

    :param folder: an existing directory for those links.
    :param names: patterns of program names.
    """
    directories: list[str] = []
    for number, entry in enumerate(os.environ["PATH"].split(os.pathsep)):
        if not os.path.isdir(entry):
            continue
        programs = os.listdir(entry)
        visible = [program for program in programs if not _matches(program, names)]
        if len(visible) == len(programs):
            directories.append(entry)
            continue
        links = folder / str(number)
        links.mkdir()
        for program in visible:
            (links / program).symlink_to(Path(entry, program))
        directories.append(str(links))
    env = os.environ | {"PATH": os.pathsep.join(directories)}
    env.pop("JAVA_HOME", None)
    return env


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
