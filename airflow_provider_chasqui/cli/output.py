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

_NON_TTY_WIDTH = 160
# What a column that may be cut needs at least, and what lies between two columns.
_MIN_FLEX_WIDTH = 24
_COLUMN_GAP = 2


def console(*, err: bool = False) -> Console:
    stream = sys.stderr if err else sys.stdout
    width = height = None
    if not stream.isatty() and "COLUMNS" not in os.environ:
        width, height = _NON_TTY_WIDTH, 50  # rich would cut tables to 80 columns in a file
    return Console(
        stderr=err, width=width, height=height, highlight=False, markup=False, emoji=False
    )


def escape_control(value: object) -> str:
    """Return text that cannot drive the terminal: control characters are written out."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def truncate(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


@dataclass(frozen=True)
class Column:
    """A column of a table. `extra` ones are left out where there is no room, the last one first;
    the `flex` one is made as wide as there is room, and cut; all others are shown in full.
    """

    title: str
    align_right: bool = False
    optional: bool = False
    flexible: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    """Print rows; where even the columns that matter have no room, each row as a card."""
    out = console()
    cells = [[escape_control(value) for value in row] for row in rows]
    shown = list(range(len(columns)))
    while not _fits(shown, columns, cells, out.width):
        extras = [i for i in shown if columns[i].optional]
        if not extras:
            _print_vertical(out, columns, cells)
            return
        shown.remove(extras[-1])
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    room = out.width - _COLUMN_GAP * (len(shown) - 1)
    room -= sum(_column_width(i, columns, cells) for i in shown if not columns[i].flexible)
    for i in shown:
        column, width = columns[i], _column_width(i, columns, cells)
        grid.add_column(
            Text(column.title),
            justify="right" if column.align_right else "left",
            overflow="ellipsis",
            no_wrap=True,
            width=min(width, room) if column.flexible else width,
        )
    for row in cells:
        grid.add_row(*(Text(row[i]) for i in shown))
    out.print(grid)


def _column_width(index: int, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    return max(cell_len(columns[index].title), *(cell_len(row[index]) for row in cells), 1)


def _fits(
    visible: Sequence[int],
    columns: Sequence[Column],
    cells: Sequence[Sequence[str]],
    max_width: int,
) -> bool:
    widths = [_column_width(i, columns, cells) for i in visible]
    least = [
        min(width, _MIN_FLEX_WIDTH) if columns[i].flexible else width
        for i, width in zip(visible, widths, strict=True)
    ]
    return sum(least) + _COLUMN_GAP * (len(visible) - 1) <= max_width


def _print_vertical(
    out: Console, columns: Sequence[Column], cells: Sequence[Sequence[str]]
) -> None:
    for number, row in enumerate(cells):
        if number:
            out.print()
        pairs = zip(columns, row, strict=True)
        out.print(
            key_value_table(
                (column.title, value) for column, value in pairs if value not in ("", "-")
            )
        )


def key_value_table(pairs: Iterable[tuple[str, object]], title: str = "") -> Table:
    """Return names and values, one under the other."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    if title:
        grid.title, grid.title_justify = Text(escape_control(title), style="bold"), "left"
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name), value if isinstance(value, Text) else Text(escape_control(value)))
    return grid


def print_line(message: object, *, err: bool = False, style: str = "") -> None:
    """Print one plain line."""
    console(err=err).print(Text(escape_control(message), style=style), soft_wrap=True)


def print_nonzero_counts(*counts: tuple[int, str]) -> None:
    """Print a line for each count that is not zero."""
    for count, what in counts:
        if count:
            print_line(f"{count} {what}")


def write_line(text: str, *, err: bool = False) -> None:
    """Write one line as it is, at once: never wrapped, for scripts and pipes."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def print_json(value: Any, *, single_line: bool = False) -> None:
    """Print one JSON document; `line` keeps it on one line, for streams of them."""
    text = json.dumps(
        to_jsonable(value), ensure_ascii=True, allow_nan=False, indent=None if single_line else 2
    )
    write_line(text)


def to_jsonable(value: Any) -> Any:
    """Return what JSON can carry: bytes as {"base64": …}, keys as text, NaN as text."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(key): to_jsonable(v) for key, v in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [to_jsonable(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def compact_json(value: Any) -> str:
    """Return a value as JSON on one line, for a table's cell."""
    return json.dumps(to_jsonable(value), ensure_ascii=False)
