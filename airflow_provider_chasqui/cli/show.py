"""How answers look: tables for people, JSON for machines."""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 160
# What a column that may be cut needs at least, and what lies between two columns.
_FLEX_LEAST = 24
_GAP = 2


def console(*, err: bool = False) -> Console:
    stream = sys.stderr if err else sys.stdout
    width = height = None
    if not stream.isatty() and "COLUMNS" not in os.environ:
        width, height = _PIPE_WIDTH, 50  # rich would cut tables to 80 columns in a file
    return Console(
        stderr=err, width=width, height=height, highlight=False, markup=False, emoji=False
    )


def clean(value: object) -> str:
    """Return text that cannot drive the terminal: control characters are written out."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class Column:
    """A column of a table. `extra` ones are left out where there is no room, the last one first;
    the `flex` one is made as wide as there is room, and cut; all others are shown in full.
    """

    title: str
    right: bool = False
    extra: bool = False
    flex: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    """Print rows; where even the columns that matter have no room, each row as a card."""
    out = console()
    cells = [[clean(value) for value in row] for row in rows]
    shown = list(range(len(columns)))
    while not _fits(shown, columns, cells, out.width):
        extras = [i for i in shown if columns[i].extra]
        if not extras:
            _print_cards(out, columns, cells)
            return
        shown.remove(extras[-1])
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    room = out.width - _GAP * (len(shown) - 1)
    room -= sum(_width(i, columns, cells) for i in shown if not columns[i].flex)
    for i in shown:
        column, width = columns[i], _width(i, columns, cells)
        grid.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            overflow="ellipsis",
            no_wrap=True,
            width=min(width, room) if column.flex else width,
        )
    for row in cells:
        grid.add_row(*(Text(row[i]) for i in shown))
    out.print(grid)


def _width(i: int, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    return max(cell_len(columns[i].title), *(cell_len(row[i]) for row in cells), 1)


def _fits(
    shown: Sequence[int], columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int
) -> bool:
    widths = [_width(i, columns, cells) for i in shown]
    least = [
        min(width, _FLEX_LEAST) if columns[i].flex else width
        for i, width in zip(shown, widths, strict=True)
    ]
    return sum(least) + _GAP * (len(shown) - 1) <= room


def _print_cards(out: Console, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    for number, row in enumerate(cells):
        if number:
            out.print()
        pairs = zip(columns, row, strict=True)
        out.print(facts((column.title, value) for column, value in pairs if value not in ("", "-")))


def facts(pairs: Iterable[tuple[str, object]], title: str = "") -> Table:
    """Return names and values, one under the other."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    if title:
        grid.title, grid.title_justify = Text(clean(title), style="bold"), "left"
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name), value if isinstance(value, Text) else Text(clean(value)))
    return grid


def say(message: object, *, err: bool = False, style: str = "") -> None:
    """Print one plain line."""
    console(err=err).print(Text(clean(message), style=style), soft_wrap=True)


def also(*counts: tuple[int, str]) -> None:
    """Print a line for each count that is not zero."""
    for count, what in counts:
        if count:
            say(f"{count} {what}")


def line_out(text: str, *, err: bool = False) -> None:
    """Write one line as it is, at once: never wrapped, for scripts and pipes."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def as_json(value: Any, *, line: bool = False) -> None:
    """Print one JSON document; `line` keeps it on one line, for streams of them."""
    text = json.dumps(plain(value), ensure_ascii=True, allow_nan=False, indent=None if line else 2)
    line_out(text)


def plain(value: Any) -> Any:
    """Return what JSON can carry: bytes as {"base64": …}, keys as text, NaN as text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def compact(value: Any) -> str:
    """Return a value as JSON on one line, for a table's cell."""
    return json.dumps(plain(value), ensure_ascii=False)
