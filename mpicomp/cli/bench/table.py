"""The bench's table: it grows with every size in a pipe, and is printed at the end on a terminal and in Markdown."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import click

from ...bench.plan import show_size
from ...bench.rows import figures, in_short, label, micros
from ...bench.schema import Document, Row, key
from ..console import Column, plain_line, print_markdown, print_table, width_of
from .layouts import Layout, Look

NARROW = 100  # columns of a terminal below which the table omits the `wide` columns, which files have anyway


class Cells(NamedTuple):
    """A column of the main table: how it looks, and its cell for a row."""

    column: Column
    cell: Callable[[Row], str]
    wide: bool = False  # only in wide tables
    paired: bool = False  # again for the in-place row, if there are two places


def _columns(look: Look) -> list[Cells]:
    name = Column("implementation", max(14, *map(len, look.names)), left=True)
    change = [Cells(Column("change", 6, left=True), _change, paired=True)] if look.compared else []
    return [
        Cells(Column("size", 9), lambda row: show_size(row["nbytes"])),
        Cells(name, lambda row: label(row, look.differ, place=not look.two_places)),
        Cells(Column("time us", 9), lambda row: micros(row["t_med_us"]), paired=True),
        Cells(Column("p99 us", 9), lambda row: micros(row["t_p99_us"]), wide=True),
        Cells(Column("spread", 6), lambda row: f"{row['spread_pct']:.0f}%", wide=True),
        Cells(Column("rounds", 6), _rounds, wide=True),
        Cells(Column("algbw", 7), lambda row: figures(row["algbw_gbs"]), paired=True),
        Cells(Column("busbw", 7), lambda row: figures(row["busbw_gbs"]), paired=True),
        Cells(Column("sent", 10), sent),
        Cells(Column("vs", 6), lambda row: "-" if row["vs"] is None else f"{row['vs']:.2f}x", paired=True),
        *change,
        Cells(Column("result", 6, left=True), _result, paired=True),
    ]


class Table(Layout):
    """The table for people."""

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._width = width_of(sys.stdout)
        self._rows: list[Row] = []
        narrow = look.two_places or (self._width is not None and self._width < NARROW)
        self._cells = [one for one in _columns(look) if not (narrow and one.wide)]
        self._in_place = [one for one in self._cells if one.paired and look.two_places]
        again = (Column(f"in: {one.column.title}", one.column.width, one.column.left) for one in self._in_place)
        self._columns = [*(one.column for one in self._cells), *again]

    def begin(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.comment(line)
        if self._width is None:
            self._plain([column.title for column in self._columns])

    def add(self, rows: Sequence[Row]) -> None:
        self._rows += rows
        if self._width is None:
            for cells in self._lines(rows):
                self._plain(cells)

    def end(self, document: Document, lines: Sequence[str]) -> None:
        if self._width is not None:
            self.print(self._columns, self._lines(self._rows))
        self._print_schemes()
        self._print_bounded()
        for line in (*in_short(self._rows), *lines):
            self.comment(line)

    def comment(self, line: str) -> None:
        """Print a line that is not data; folded on a terminal, whole for programs."""
        for part in textwrap.wrap(line, self._width - 4, subsequent_indent="  ") if self._width else [line]:
            click.echo(f"# {part}")

    def print(self, columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> None:
        """Print a whole table."""
        print_table(columns, rows, title)

    def _plain(self, cells: Sequence[str]) -> None:
        click.echo(plain_line(cells, self._columns, [max(one.width, len(one.title)) for one in self._columns]))

    def _lines(self, rows: Iterable[Row]) -> list[list[str]]:
        """The cells of each line: a row, or with two places both rows of an implementation and size."""
        if not self.look.two_places:
            return [[one.cell(row) for one in self._cells] for row in rows]
        pairs: dict[tuple[int, str], dict[str, Row]] = {}
        for row in rows:
            name = label(row, self.look.differ, place=False)
            pairs.setdefault((row["nbytes"], name), {})[row["place"] or "out"] = row
        return [[*(one.cell(pair["out"]) for one in self._cells),
                 *(one.cell(pair["in"]) if "in" in pair else "-" for one in self._in_place)]
                for pair in pairs.values() if "out" in pair]  # fmt: skip

    def _print_schemes(self) -> None:
        """Print the phases of each scheme; they differ between exchanges, so each scheme has its own table."""
        tables: dict[str, list[Row]] = {}
        for row in self._rows:
            if row["scheme"] and row["part"] == "step":
                tables.setdefault(label(row, self.look.differ), []).append(row)
        alone = {key({**row, "part": "step"}): row for row in self._rows if row["part"] == "local"}
        for scheme, rows in tables.items():
            local = [alone.get(key(row)) for row in rows]
            phases = list(dict.fromkeys(name for row in rows for name in row["t_phase_us"] or ()))
            own = ("compress alone", "decompress alone") if any(local) else ()
            titles = ("size", "density", "sent", "ratio", "break-even", "local", *own, *phases)
            click.echo()
            self.print([Column(title) for title in titles],
                       [scheme_cells(row, one, phases) for row, one in zip(rows, local, strict=True)],
                       f"{scheme} (break-even in GB/s, times in us)")  # fmt: skip
        if any(row["break_even_gbs"] is not None for row in self._rows):
            click.echo()
            self.comment("break-even: the scheme saves time on links slower than this, by the computing time of a rank "
                         "(local) and the bytes saved against a bandwidth-optimal dense all-reduce")  # fmt: skip

    def _print_bounded(self) -> None:
        """Print ratio and errors of each error-bounded all-reduce."""
        titles = ("size", "implementation", "ratio", "largest error", "allowed", "PSNR dB", "ran")
        columns = [Column(title, left=title in ("implementation", "ran")) for title in titles]
        tables: dict[str, list[list[str]]] = {}
        for row in self._rows:
            if row["bound"] is not None:
                name = label(row, self.look.differ)
                tables.setdefault(row["data"] or "", []).append([show_size(row["nbytes"]), name, *bounded_cells(row)])
        for data, rows in tables.items():
            click.echo()
            self.print(columns, rows, f"error-bounded all-reduce, {data} (errors against the result in float64)")


class Markdown(Table):
    """The same tables in Markdown, for an issue or a wiki."""

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._width = 0  # prints at the end

    def comment(self, line: str) -> None:
        click.echo(f"- {line}")

    def print(self, columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> None:
        click.echo(f"**{title}**\n" if title else "")
        print_markdown(columns, rows)
        click.echo()


def scheme_cells(row: Row, alone: Row | None, phases: Sequence[str]) -> list[str]:
    """One line of a scheme's own table."""
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.1f}"
    even = "never" if row["break_even_gbs"] == 0 else figures(row["break_even_gbs"])
    own = (alone["t_compress_us"], alone["t_decompress_us"]) if alone else ()
    times = (row["t_local_us"], *own, *((row["t_phase_us"] or {}).get(name) for name in phases))
    return [show_size(row["nbytes"]), f"{row['density'] or 0:.4g}", sent(row), ratio, even,
            *("-" if time is None else micros(time) for time in times)]  # fmt: skip


def bounded_cells(row: Row) -> list[str]:
    """Ratio, errors and path of an error-bounded all-reduce."""
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
    errors = ["-" if error is None else f"{error:.2e}" for error in (row["max_error"], row["error_limit"])]
    if row["error_limit"] == 0:  # of the exact path
        errors[1] = "rounding"
    psnr = "-" if row["psnr_db"] is None else f"{row['psnr_db']:.1f}"
    return [ratio, *errors, psnr, f"{row['ran']}: {row['reason']}" if row["reason"] else row["ran"] or "-"]


def sent(row: Row) -> str:
    """Bytes on the wire, marked with ~ if a formula gives them."""
    return ("~" if row["wire_modelled"] else "") + show_size(row["wire_bytes"]) if row["wire_bytes"] else "-"


def _rounds(row: Row) -> str:
    return f"{row['launches']} jobs" if (row["launches"] or 1) > 1 else str(row["iters"])


def _change(row: Row) -> str:
    return "-" if row["change_pct"] is None else "SLOWER" if row["regressed"] else f"{row['change_pct']:+.0f}%"


def _result(row: Row) -> str:
    return {True: "ok", False: "WRONG", None: "-"}[row["ok"]]
