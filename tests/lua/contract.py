"""The header of a script, read as the contract that it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LUA = Path(__file__).parents[2] / "lua"
SCRIPTS = sorted(path.stem for path in LUA.glob("*.lua"))

_SLOT = re.compile(r"(?:^|\s\s)(\d+)(\.\.)?\s+(\S.*?)(?=\s\s\d|$)")


@dataclass(frozen=True)
class Slots:
    """KEYS or ARGV: so many with a place of their own, then perhaps any number more."""

    fixed: int
    more: bool
    group: int = 0

    def take(self, count: int) -> bool:
        """Whether so many fit; a group that repeats must be whole."""
        rest = count - self.fixed
        if not self.more:
            return rest == 0
        return rest >= 0 and (not self.group or rest % self.group == 0)


@dataclass(frozen=True)
class Contract:
    name: str
    keys: Slots
    args: Slots
    returns: str
    body: str
    lines: int


def read(name: str) -> Contract:
    text = (LUA / f"{name}.lua").read_text("utf-8")
    lines = text.splitlines()
    head = lines[1:5] if lines[0].startswith("#!lua") else lines[:4]
    for line, word in zip(head, (f"{name}: ", "KEYS  ", "ARGV  ", "returns "), strict=True):
        assert line.startswith(f"-- {word}"), f"lua/{name}.lua: the header says {line!r}"
    keys, args = (_slots(name, line[9:]) for line in head[1:3])
    code = [line for line in lines if not line.startswith(("--", "#!"))]
    return Contract(name, keys, args, head[3][11:], "\n".join(code), len(lines))


def _slots(name: str, text: str) -> Slots:
    if text == "none":
        return Slots(0, False)
    found = _SLOT.findall(text)
    numbers = [int(number) for number, _, _ in found]
    assert numbers == list(range(1, len(numbers) + 1)), f"lua/{name}.lua counts {numbers}: {text}"
    assert not any(dots for _, dots, _ in found[:-1]), f"lua/{name}.lua: only the last goes on"
    more = bool(found[-1][1])
    what = found[-1][2]
    group = 0
    if more and what.startswith("per ") and "fields and values" not in what:
        items = re.sub(r"\([^)]*\)", "", what.partition(":")[2])
        if ";" not in items and " if " not in items:
            group = items.replace(" and ", ",").count(",") + 1 if "," in items else 0
    return Slots(len(numbers) - more, more, group)
