"""Output of the commands: tables and JSON."""

from __future__ import annotations

import json
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

from airflow_provider_chasqui.core.json_values import to_jsonable
from airflow_provider_chasqui.supervisor.logging_setup import escape_control as escape_control

_NON_TTY_WIDTH = 160
# The minimum width of a flexible column, and the space between two columns.
_MIN_FLEX_WIDTH = 24
_COLUMN_GAP = 2


def console(*, err: bool = False) -> Console:
    """Return a console for stdout or stderr without rich's markup and highlighting."""
    stream = sys.stderr if err else sys.stdout
    width = height = None
    if not stream.isatty() and "COLUMNS" not in os.environ:
        width, height = _NON_TTY_WIDTH, 50  # rich would truncate to 80 columns
    return Console(
        stderr=err, width=width, height=height, highlight=False, markup=False, emoji=False
    )


def truncate(text: str, max_length: int) -> str:
    """Return the text, shortened with an ellipsis if it is longer than `max_length`."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def shorten_middle(text: str, max_length: int) -> str:
    """Return the text, without its middle if it is longer than `max_length`.

    Ids of a batch differ at their end, so both ends are kept.

    :param text: the text.
    :param max_length: the maximum length.
    """
    if len(text) <= max_length:
        return text
    start = (max_length - 1) // 2
    return f"{text[:start]}…{text[start + 1 - max_length :]}"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    :param title: the heading.
    :param align_right: whether values are right-aligned.
    :param optional: whether the column is omitted on a narrow terminal, the last one first.
    :param flexible: whether values are truncated to the width that remains.
    """

    title: str
    align_right: bool = False
    optional: bool = False
    flexible: bool = False


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table, or one value per line if the terminal is too narrow.

    :param columns: the columns.
    :param rows: the values of each row, in the order of the columns.
    """
    out = console()
    cells = [[escape_control(value) for value in row] for row in rows]
    visible = list(range(len(columns)))
    while not _fits(visible, columns, cells, out.width):
        optional = [i for i in visible if columns[i].optional]
        if not optional:
            _print_vertical(out, columns, cells)
            return
        visible.remove(optional[-1])
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    widths = {i: _column_width(i, columns, cells) for i in visible}
    flexible = sorted((i for i in visible if columns[i].flexible), key=widths.__getitem__)
    remaining = out.width - _COLUMN_GAP * (len(visible) - 1)
    remaining -= sum(width for i, width in widths.items() if i not in flexible)
    # Narrow columns first: what they do not need remains for the others.
    for position, i in enumerate(flexible):
        widths[i] = min(widths[i], remaining // (len(flexible) - position))
        remaining -= widths[i]
    for i in visible:
        column = columns[i]
        grid.add_column(
            Text(column.title),
            justify="right" if column.align_right else "left",
            overflow="ellipsis",
            no_wrap=True,
            width=widths[i],
        )
    for row in cells:
        grid.add_row(*(Text(row[i]) for i in visible))
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
    min_widths = [
        min(width, _MIN_FLEX_WIDTH) if columns[i].flexible else width
        for i, width in zip(visible, widths, strict=True)
    ]
    return sum(min_widths) + _COLUMN_GAP * (len(visible) - 1) <= max_width


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
    """Return a table with one name and value per line.

    :param pairs: the names and values.
    :param title: the title of the table.
    """
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    if title:
        grid.title, grid.title_justify = Text(escape_control(title), style="bold"), "left"
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name), value if isinstance(value, Text) else Text(escape_control(value)))
    return grid


def print_line(message: object, *, err: bool = False, style: str = "") -> None:
    """Print one line."""
    console(err=err).print(Text(escape_control(message), style=style), soft_wrap=True)


def print_nonzero_counts(*counts: tuple[int, str]) -> None:
    """Print a line for each count that is not zero."""
    for count, description in counts:
        if count:
            print_line(f"{count} {description}")


def write_line(text: str, *, err: bool = False) -> None:
    """Write one line without wrapping and flush it, for scripts and pipes."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def print_json(value: Any, *, single_line: bool = False) -> None:
    """Print one JSON document.

    :param value: the value.
    :param single_line: whether the document is one line, for streams of documents.
    """
    text = json.dumps(
        to_jsonable(value), ensure_ascii=True, allow_nan=False, indent=None if single_line else 2
    )
    write_line(text)


def compact_json(value: Any) -> str:
    """Return a value as JSON on one line, for a table cell."""
    return json.dumps(to_jsonable(value), ensure_ascii=False)
