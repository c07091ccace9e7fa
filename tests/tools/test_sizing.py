"""The figures on docs/sizing.md are what the tool measures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.sizing import measure

PAGE = Path(__file__).parents[2] / "docs" / "sizing.md"
ROWS = {
    "waiting": "a job that waits",
    "waiting, in a batch": "a job of a batch that waits",
    "delayed": "a delayed job",
    "delayed, with an id": "a delayed job with an id of its own",
    "letter": "a dead letter, with an error of 60 bytes",
    "unique id": "a unique id, as long as it is remembered",
    "events stream": "the events stream, at its bound of 100 000 events",
}


def test_the_page_says_what_is_measured() -> None:
    page = PAGE.read_text("utf-8")
    found = measure(4000)
    assert set(found) == set(ROWS)
    for thing, row in ROWS.items():
        (said,) = re.findall(rf"^\| {re.escape(row)} \| ([\d ]+) \|$", page, re.M)
        # Fewer of them share what a server takes for any number.
        assert found[thing] == pytest.approx(float(said.replace(" ", "")), rel=0.3), thing
