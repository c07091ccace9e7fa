"""The sizes in docs/sizing.md are those that the tool measures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.sizing import measure

PAGE = Path(__file__).parents[2] / "docs" / "sizing.md"


def documented_sizes() -> list[tuple[str, float]]:
    """Return the label and the size of each row of the table, except rows such as `1/8`."""
    (table,) = re.findall(
        r"^\|[^\n]*payload of 110 bytes[^\n]*\n((?:\|.*\n)+)", PAGE.read_text(), re.M
    )
    rows = re.findall(r"^\| ([^|]+) \| ([\d ]+) \|$", table, re.M)
    return [(label, float(size.replace(" ", ""))) for label, size in rows]


def test_the_documented_sizes_are_those_that_are_measured() -> None:
    measured = measure(4000)
    documented = documented_sizes()
    assert len(documented) == len(measured)
    for (label, size), (kind, bytes_per_job) in zip(documented, measured.items(), strict=True):
        # With fewer jobs than in the documentation, each has a larger share of fixed costs.
        assert bytes_per_job == pytest.approx(size, rel=0.3), f"{kind}, documented as {label!r}"
