"""Reader of the script headers, which are contracts between a script and its callers.

lua/README.md describes the format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LUA = Path(__file__).parents[2] / "lua"
SCRIPTS = sorted(path.stem for path in LUA.glob("*.lua"))

_SECTIONS = ("KEYS", "ARGV", "RETURNS")
_SLOT = re.compile(r"(\d+)(\.\.)?\s+(\S.*)")


@dataclass(frozen=True)
class Slots:
    """The KEYS or the ARGV of a script: fixed positions, then optionally a repeated group."""

    fixed: int
    repeats: bool
    group_size: int = 0

    def accept(self, count: int) -> bool:
        """Return whether `count` values match. A repeated group must be complete."""
        remaining = count - self.fixed
        if not self.repeats:
            return remaining == 0
        return remaining >= 0 and (not self.group_size or remaining % self.group_size == 0)


@dataclass(frozen=True)
class Contract:
    """The header of one script, and its code without comments."""

    name: str
    purpose: str
    keys: Slots
    args: Slots
    returns: str
    code: str


def read(name: str) -> Contract:
    """Read the header of a script and fail if it does not have the agreed format."""
    lines = (LUA / f"{name}.lua").read_text("utf-8").splitlines()
    header = lines[1:] if lines[0].startswith("#!lua") else lines
    sections = _split_sections(name, header)
    purpose = " ".join(sections["purpose"])
    assert purpose.startswith(f"{name}: "), f"lua/{name}.lua: the header begins with {purpose!r}"
    keys, args = (_parse_slots(name, sections[section]) for section in ("KEYS", "ARGV"))
    code = [line for line in lines if not line.startswith(("--", "#!"))]
    return Contract(name, purpose, keys, args, " ".join(sections["RETURNS"]), "\n".join(code))


def _split_sections(name: str, lines: list[str]) -> dict[str, list[str]]:
    """Return the purpose and the sections, with wrapped lines joined to one item per slot."""
    sections: dict[str, list[str]] = {"purpose": []}
    current = "purpose"
    for line in lines:
        text = line.removeprefix("--")
        if not line.startswith("--") or text.startswith(" @include"):
            break
        if text.strip() in _SECTIONS:
            current = text.strip()
            sections[current] = []
        elif current != "purpose" and not text.startswith("   "):
            break  # an ordinary comment below the header
        elif current in ("KEYS", "ARGV") and not text.startswith("        "):
            sections[current].append(text.strip())
        elif text.strip():
            sections[current][-1:] = [" ".join([*sections[current][-1:], text.strip()])]
    order = tuple(sections)
    assert order == ("purpose", *_SECTIONS), f"lua/{name}.lua has the sections {order}"
    return sections


def _parse_slots(name: str, lines: list[str]) -> Slots:
    slots = []
    for line in lines:
        match = _SLOT.fullmatch(line)
        assert match, f"lua/{name}.lua: {line!r} does not begin with a position"
        slots.append((int(match[1]), bool(match[2]), match[3]))
    numbers = [number for number, _, _ in slots]
    assert numbers == list(range(1, len(numbers) + 1)), f"lua/{name}.lua has positions {numbers}"
    assert not any(repeats for _, repeats, _ in slots[:-1]), (
        f"lua/{name}.lua: only the last position may repeat"
    )
    _, repeats, meaning = slots[-1]
    return Slots(len(slots) - repeats, repeats, _group_size(meaning) if repeats else 0)


def _group_size(meaning: str) -> int:
    """Return the number of values in a repeated group, or 0 if the header does not fix it."""
    if not meaning.startswith("per ") or "fields and values" in meaning:
        return 0
    items = re.sub(r"\([^)]*\)", "", meaning.partition(":")[2])
    if ";" in items or " if " in items or "," not in items:
        return 0
    return items.replace(" and ", ",").count(",") + 1
