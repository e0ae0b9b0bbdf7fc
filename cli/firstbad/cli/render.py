"""
Output: tables, facts and messages for people; JSON for programs.

On a terminal tables fit its width: long ids are shortened, texts are folded, and a table that would still be too wide
is printed as one block per row. Elsewhere (a pipe, a file) nothing is shortened, wrapped or coloured, however long
the line gets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Self, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from firstbad.cli.encoding import cell_text, json_text

_UNLIMITED = 1_000_000
_FOLD_TO = 12
"""Cells to which a text column may be folded before the whole table becomes blocks."""
_HEX_ID = re.compile(r"[0-9a-f]{24,}")
_SPECIAL_STYLES = {"BAD": "bold red", "stop": "bold red", "fault": "red", "failed": "bold red", "stopped": "red"}


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where output goes and what it can show. `width` is None when lines may be as long as they get."""

    out: TextIO
    err: TextIO
    width: int | None
    colour: bool

    @classmethod
    def of(cls, out: TextIO, err: TextIO, environ: Mapping[str, str]) -> Self:
        """The terminal behind two streams; any other kind of stream is taken as it is."""
        reconfigure = getattr(out, "reconfigure", None)
        if reconfigure is not None:
            # A locale without the dash or the box signs must not end a command half-way.
            reconfigure(errors="backslashreplace")
        if not out.isatty():
            return cls(out, err, None, False)
        width = Console(file=out).width
        return cls(out, err, max(width, 40), "NO_COLOR" not in environ and environ.get("TERM") != "dumb")

    def line(self, text: str = "") -> None:
        """One line as it is, on standard output."""
        self.out.write(text + "\n")

    def note(self, text: str) -> None:
        """A line for a person on standard error: progress, hints. Never part of the answer."""
        print(text, file=self.err, flush=True)

    def error(self, text: str) -> None:
        """What went wrong, on standard error."""
        print(f"firstbad: {text}", file=self.err, flush=True)

    def json(self, value: Any) -> None:
        """`value` as one strict JSON document."""
        self.line(json_text(value))

    def heading(self, text: str) -> None:
        """A title over what follows."""
        self._show(Text(text, style="bold"))

    def facts(self, facts: Mapping[str, Any], *, digits: int | None = 6) -> None:
        """Names and values, one pair a line."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for name, value in facts.items():
            grid.add_row(f"  {name}", self._cell(value, digits))
        self._show(grid)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, digits: int | None = 6) -> None:
        """Rows under their column names."""
        numeric = [_all_numbers([row[place] for row in rows]) for place in range(len(columns))]
        cells = [[self._cell(value, digits) for value in row] for row in rows]
        if self.width is None:
            self._plain(columns, cells, numeric)
            return
        if _width(columns, cells, numeric, None) > self.width:
            cells = [[_shortened(cell) for cell in row] for row in cells]
        if _width(columns, cells, numeric, _FOLD_TO) > self.width:
            self._blocks(columns, [[self._cell(value, digits) for value in row] for row in rows])
            return
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for place, (name, right) in enumerate(zip(columns, numeric, strict=True)):
            least = _column_width(name, [row[place] for row in cells], None if right else _FOLD_TO)
            table.add_column(
                Text(name), no_wrap=right, overflow="fold", justify="right" if right else "left", min_width=least
            )
        for row in cells:
            table.add_row(*row)
        self._show(table)

    def _plain(self, columns: Sequence[str], cells: list[list[Text]], numeric: Sequence[bool]) -> None:
        texts = [list(columns), *([cell.plain for cell in row] for row in cells)]
        widths = [max(cell_len(row[place]) for row in texts) for place in range(len(columns))]
        for row in [texts[0], ["-" * width for width in widths], *texts[1:]]:
            padded = [
                " " * (width - cell_len(text)) + text if right else text + " " * (width - cell_len(text))
                for text, width, right in zip(row, widths, numeric, strict=True)
            ]
            self.line("  ".join(padded).rstrip())

    def _blocks(self, columns: Sequence[str], cells: list[list[Text]]) -> None:
        for number, row in enumerate(cells, start=1):
            self._show(Text(f"row {number}", style="bold"))
            grid = Table.grid(padding=(0, 2))
            grid.add_column(no_wrap=True, style="dim")
            grid.add_column(overflow="fold")
            for name, cell in zip(columns, row, strict=True):
                grid.add_row(f"  {name}", cell)
            self._show(grid)

    @staticmethod
    def _cell(value: Any, digits: int | None) -> Text:
        text = cell_text(value, digits=digits)
        if value is None:
            return Text(text, style="dim")
        if isinstance(value, float) and not math.isfinite(value):
            return Text(text, style="bold red")
        return Text(text, style=_SPECIAL_STYLES.get(text, "") if isinstance(value, str) else "")

    def _show(self, item: Any) -> None:
        buffer = StringIO()
        console = Console(
            file=buffer,
            width=self.width or _UNLIMITED,
            force_terminal=self.colour,
            no_color=not self.colour,
            color_system="standard" if self.colour else None,
            highlight=False,
            emoji=False,
            markup=False,
            legacy_windows=False,
        )
        console.print(item, soft_wrap=isinstance(item, Text) and self.width is None)
        for text in buffer.getvalue().splitlines():
            self.line(text.rstrip())


def _width(columns: Sequence[str], cells: list[list[Text]], numeric: Sequence[bool], fold_to: int | None) -> int:
    widths = [
        _column_width(name, [row[place] for row in cells], None if numeric[place] else fold_to)
        for place, name in enumerate(columns)
    ]
    # Two cells between columns.
    return sum(widths) + 2 * (len(widths) - 1)


def _column_width(name: str, cells: Sequence[Text], fold_to: int | None) -> int:
    widest = max((cell.cell_len for cell in cells), default=0)
    return max(cell_len(name), widest if fold_to is None else min(widest, fold_to))


def _all_numbers(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _shortened(cell: Text) -> Text:
    found = _HEX_ID.fullmatch(cell.plain)
    # The front of a time-ordered id is the same for runs of one day; both ends tell more.
    return Text(f"{cell.plain[:6]}…{cell.plain[-6:]}", style=cell.style) if found else cell
