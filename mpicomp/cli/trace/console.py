"""What the commands of ``mpicomp trace`` share: their options, how errors end them, facts and tables on a console."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...errors import MpicompError
from ...trace.units import duration
from ..console import Progress, width_of

ROOMY = 100  # columns of a terminal from which on tables have frames and wide gaps

trace_file = click.argument("file", type=click.Path(path_type=Path))
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


@contextmanager
def errors() -> Iterator[None]:
    """What the user can put right is one line, not a traceback."""
    try:
        yield
    except (MpicompError, OSError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Of long work, on stderr."""
    shown = Progress()
    try:
        yield shown
    finally:
        shown.clear()


def chosen_ranks(ctx: click.Context, option: click.Parameter, text: str | None) -> list[int] | None:
    """The callback of ``--ranks``: ``0-2,5`` as [0, 1, 2, 5]."""
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
    """As wide as the terminal; wide enough for every column where there is none, as in a pipe."""
    shown = width_of(sys.stdout)
    behind = shown is None and sys.stdout.isatty()  # a launcher, whose own output is no terminal
    width = None if "COLUMNS" in os.environ else shown or 200
    return Console(highlight=False, width=width, force_terminal=False if behind else None)


def new_table(console: Console, *columns: str, left: int = 1) -> Table:
    """Plain columns when piped, close together on a narrow terminal; the first ``left`` ones hold text."""
    narrow = console.width < ROOMY
    frame = box.SIMPLE_HEAD if console.is_terminal and not narrow else None
    table = Table(box=frame, pad_edge=False, padding=(0, 1, 0, 0) if narrow else (0, 1), header_style="bold")
    for column in columns[:left]:
        table.add_column(column, overflow="fold", min_width=5)
    for column in columns[left:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def show_fact(console: Console, name: str, value: object) -> None:
    """A name and what there is to say; on a terminal in lines that begin below each other."""
    lines, room = [str(value)], max(20, console.width - 15)
    if console.is_terminal:
        lines = textwrap.wrap(lines[0], room, break_long_words=False, break_on_hyphens=False) or lines
    for head, line in zip_longest([name], lines, fillvalue=""):
        console.print(Text.assemble((f"{head:<15}", "bold"), line), soft_wrap=True)


def show_clocks(console: Console, doubt: float | None) -> None:
    """What the clocks allow to say: they are known to ``doubt`` ns, 0 where all ranks read one."""
    if doubt is None:
        said = "not needed: every time is of one rank's own clock"
    else:
        said = f"known to {duration(doubt)}; less is not claimed" if doubt else "all ranks read one"
    show_fact(console, "clocks", said)
