"""Printing: coloured tables and a progress line on a terminal, plain aligned text anywhere else."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from .._util.plurals import count

LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "srun")
PLAIN_PROGRESS_S = 30.0  # without a terminal, progress is a line in a log: rare
NARROWEST = 10  # characters of a column of words
BAR = 20  # characters of a progress bar
ALARM = {"WRONG", "SLOWER"}  # a row with such a cell is red
RED = "\x1b[31m{}\x1b[0m"


class Column(NamedTuple):
    """A column of a table: its title, its width in plain text, and on which side its cells align."""

    title: str
    width: int = 0
    left: bool = False


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal on which the user sees ``stream``; None if it is not a terminal.

    Under a launcher its own output decides: Open MPI gives every rank a terminal of zero columns, even if mpirun
    itself writes to a file, and MPICH gives none.
    """
    descriptor = 2 if stream is sys.stderr else 1
    launcher = _launcher()
    try:
        if launcher is not None:
            with open(f"/proc/{launcher}/fd/{descriptor}") as output:
                return os.get_terminal_size(output.fileno()).columns or None
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _launcher() -> int | None:
    """Process id of the launcher above this process; None if it is not on this node."""
    pid = os.getppid()
    for _ in range(4):
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            return None
        if name in LAUNCHERS:
            return pid
        pid = int(rest.split()[1])
    return None


def say(text: str, head: str = "") -> None:
    """Print a sentence behind ``head``: folded and indented on a terminal, one line elsewhere."""
    print(folded(text, width_of(sys.stdout), head))


def folded(text: str, width: int | None, head: str = "") -> str:
    """The text of `say` for a terminal of ``width`` columns. Lines break at blanks: paths and options stay whole."""
    if width is None:
        return head + text
    return textwrap.fill(text, width, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False,
                         break_on_hyphens=False)


def print_json(document: object) -> None:
    """Print ``document`` as `plain` gives it."""
    print(json.dumps(plain(document), indent=1, allow_nan=False))


def plain(value: object) -> object:
    """``value`` in types that JSON knows: arrays become lists, numbers that are not finite become None."""
    text = json.dumps(value, default=lambda array: array.tolist())
    return json.loads(text, parse_constant=lambda name: None)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table: in colours, or as plain lines if the terminal is too narrow for the numbers or there is none.

    In plain lines, columns beyond the width follow below, behind the first column again.
    """
    width, cells = width_of(sys.stdout), [*zip(*rows, strict=True)] or [()] * len(columns)
    natural = [max(map(len, (column.title, *cells))) for column, cells in zip(columns, cells, strict=True)]
    least = [min(most, NARROWEST) if column.left else max(map(len, (*column.title.split(), *cells)))
             for column, most, cells in zip(columns, natural, cells, strict=True)]  # fmt: skip
    if width is not None and sum(least) + len(least) <= width:
        _print_rich(columns, rows, title, least, width, narrow=sum(natural) + 2 * len(natural) > width)
        return
    if title:
        print(f"# {title}")
    for part in column_parts(natural, width):
        some, room = [columns[i] for i in part], [natural[i] for i in part]
        print(plain_line([column.title for column in some], some, room))
        for row in rows:
            line = plain_line([row[i] for i in part], some, room)
            print(RED.format(line) if width is not None and ALARM & set(row) and _in_colours() else line)


def print_markdown(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown, with aligned columns."""
    titles = [column.title for column in columns]
    widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
    rule = [f"{'-' * (width - 1)}{'-' if column.left else ':'}" for column, width in zip(columns, widths, strict=True)]
    for cells in (titles, rule, *rows):
        print(f"| {' | '.join(_padded(cells, columns, widths))} |")


def _in_colours() -> bool:
    return not os.environ.get("NO_COLOR")  # https://no-color.org; bold type is no colour


def column_parts(natural: Sequence[int], width: int | None) -> list[list[int]]:
    """Column numbers of each part: the first column, and as many others as fit beside it."""
    parts = [[0]]
    for i in range(1, len(natural)):
        taken = sum(natural[j] + 2 for j in parts[-1])
        if width is not None and len(parts[-1]) > 1 and taken + natural[i] > width:
            parts.append([0])
        parts[-1].append(i)
    return parts


def _print_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str, least: Sequence[int], width: int,
                narrow: bool) -> None:
    """Print in colours; ``narrow``: less space between columns, titles of numbers in several lines, words folded."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold",
                  padding=(0, 1 if narrow else 2, 0, 0))
    for column, room in zip(columns, least, strict=True):
        if column.left:
            table.add_column(column.title, overflow="fold", min_width=room)
        else:
            table.add_column(column.title.replace(" ", "\n") if narrow else column.title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row), style="red" if ALARM & set(row) else None)
    Console(force_terminal=True, width=width, highlight=False, no_color=not _in_colours()).print(table)


def plain_line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    """One aligned line; a cell that is too long pushes the rest of its line and is never cut."""
    return "  ".join(_padded(cells, columns, widths)).rstrip()


def _padded(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    return [cell.ljust(width) if column.left else cell.rjust(width)
            for cell, column, width in zip(cells, columns, widths, strict=True)]  # fmt: skip


class Progress:
    """Progress of a long command on stderr: ``[#####               ]  25%`` and a text, rewritten, on a terminal.

    Elsewhere a line now and then.

    Only calls draw it, no thread: a thread that wakes up would disturb timings.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._width = width_of(sys.stderr)
        self._quiet = quiet
        self._last = time.monotonic()

    def __call__(self, text: str, done: float | None = None) -> None:
        """Show ``text``, and the share of the work that is ``done``, from 0 to 1."""
        if self._quiet:
            return
        if done is not None:
            text = f"{done:4.0%} {text}"
        if self._width is not None:
            if done is not None:
                full = round(BAR * min(1.0, max(0.0, done)))
                text = f"[{'#' * full:<{BAR}}] {text}"
            sys.stderr.write("\r\x1b[2K" + text[: self._width - 1])
        elif time.monotonic() - self._last > PLAIN_PROGRESS_S:
            self._last = time.monotonic()
            sys.stderr.write(f"# {text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line on a terminal."""
        if self._width is not None and not self._quiet:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


class SteadyProgress(Progress):
    """Progress of a training, whose evaluations may be hours apart.

    Without a terminal a thread prints a line every 30 s, until the context ends.
    """

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet)
        self.step = 0  # steps done; set by the training
        self._text, self._over = "starting", threading.Event()
        if not quiet and self._width is None:
            threading.Thread(target=self._repeat, daemon=True).start()

    def __enter__(self) -> SteadyProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.clear()

    def __call__(self, text: str, done: float | None = None) -> None:
        if self._width is not None:
            super().__call__(text, done)
        else:
            self._text = text if done is None else f"{done:4.0%} {text}"

    def _repeat(self) -> None:
        while not self._over.wait(PLAIN_PROGRESS_S):
            done = f"; {count(self.step, 'step')} done" if self.step else ""
            sys.stderr.write(f"# {self._text}{done}\n")
            sys.stderr.flush()
