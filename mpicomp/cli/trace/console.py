"""Common parts of the commands of ``mpicomp trace``: options, errors, and views on a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...trace.units import duration
from ...trace.views import Fact, Grid, View
from ..console import Progress, column_parts, width_of

ROOMY = 100  # narrowest terminal (columns) on which tables have frames and wide gaps
LEAST = 5  # characters of a column of words
_NAME = 15  # width of a fact's name

trace_file = click.argument("file", type=click.Path(path_type=Path))
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Progress of long work, on stderr."""
    shown = Progress()
    try:
        yield shown
    finally:
        shown.clear()


def chosen_ranks(ctx: click.Context, option: click.Parameter, text: str | None) -> list[int] | None:
    """Parse ``--ranks``: ``0-2,5`` is [0, 1, 2, 5]."""
    if text is None:
        return None
    try:
        runs = [[int(end) for end in run.split("-", 1)] for run in text.split(",")]
    except ValueError:
        runs = []
    if not runs or any(run[0] > run[-1] or run[-1] >= 1 << 24 for run in runs):
        raise click.BadParameter(f"expected ranks as 0-3,8, got {text!r}")
    return [rank for run in runs for rank in range(run[0], run[-1] + 1)]


def roomy_console() -> Console:
    """A console as wide as the terminal, or wide enough for every column in a pipe."""
    shown = width_of(sys.stdout)
    behind = shown is None and sys.stdout.isatty()  # below a launcher whose output is no terminal
    width = None if "COLUMNS" in os.environ else shown or 200
    return Console(highlight=False, width=width, force_terminal=False if behind else None)


def render(console: Console, view: View) -> None:
    """Print facts, tables, notes and the uncertainty of clock comparisons."""
    show_facts(console, view.facts)
    show_tables(console, view.grids, apart=bool(view.facts))
    show_facts(console, view.notes)
    show_clocks(console, view.clocks)


def show_facts(console: Console, facts: Iterable[Fact]) -> None:
    """Print names and texts, on a terminal in lines aligned below each other."""
    for name, text, alarm in facts:
        text = _encodable(console, text)
        if not text:
            continue
        lines, room = [text], max(20, console.width - _NAME)
        if console.is_terminal:
            lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or lines
        for head, line in zip_longest([name], lines, fillvalue=""):
            shown = Text.assemble((f"{head:<{_NAME - 1}} " if name or not alarm else "", "bold"), line)
            if alarm:
                shown.stylize("bold red")
            console.print(shown, soft_wrap=True)


def show_tables(console: Console, grids: Iterable[Grid], apart: bool = False) -> None:
    """Print tables, with a blank line between two: plain columns in a pipe, close together on a narrow terminal.

    Columns beyond the width follow below, behind the first column again.
    """
    for grid in grids:
        if apart:
            console.print()
        rows = [[_encodable(console, cell) for cell in row] for row in grid.rows(grid.most)]
        for part in _parts(console, grid, rows):
            console.print(_table(console, grid, rows, part))
        if grid.length > grid.most:
            console.print(f"... and {grid.length - grid.most} more (--json has all)", markup=False)
        apart = True


def _parts(console: Console, grid: Grid, rows: list[list[str]]) -> list[list[int]]:
    """Column numbers of the tables that show a grid: one table, unless that would cut numbers."""
    natural = [max(map(len, cells)) for cells in zip([column.title for column in grid.columns], *rows, strict=True)]
    least = [min(LEAST, most) if place < grid.left else most for place, most in enumerate(natural)]
    if console.width >= ROOMY or sum(least) + len(least) <= console.width:
        return [[*range(len(natural))]]
    return column_parts(natural, console.width)


def _table(console: Console, grid: Grid, rows: list[list[str]], part: list[int]) -> Table:
    """Some columns of a grid."""
    narrow = console.width < ROOMY
    frame = box.SIMPLE_HEAD if console.is_terminal and not narrow else None
    table = Table(box=frame, pad_edge=False, padding=(0, 1, 0, 0) if narrow else (0, 1), header_style="bold")
    for place in part:
        title = Text(grid.columns[place].title)
        if place < grid.left:
            table.add_column(title, overflow="fold", min_width=LEAST)
        else:
            table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[place]) for place in part))
    return table


def show_clocks(console: Console, uncertainty: float | None) -> None:
    """Print the uncertainty (ns) of comparisons between clocks; None if no clocks are compared."""
    text = "not needed: every time is of one rank's own clock"
    if uncertainty is not None:
        text = f"known to {duration(uncertainty)}; less is not claimed" if uncertainty else "all ranks read one"
    show_facts(console, [Fact("clocks", text)])


def _encodable(console: Console, text: str) -> str:
    """Text without characters that the terminal cannot print, such as those of a sparkline."""
    return text if console.encoding.startswith("utf") else text.encode("ascii", "ignore").decode()
