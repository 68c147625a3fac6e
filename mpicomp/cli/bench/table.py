"""The bench's table for people: it grows with every size where it is piped, and comes at once on a terminal."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from ...bench.plan import show_size
from ...bench.rows import figures, in_short, label, micros
from ..console import Column, plain_line, print_table, width_of

NARROW = 100  # columns of a terminal below which the table leaves out what is in the document anyway
COLUMNS = (
    Column("size", 9), Column("implementation", 14, left=True), Column("time us", 9), Column("p99 us", 9),
    Column("spread", 6), Column("rounds", 6), Column("algbw", 7), Column("busbw", 7), Column("sent", 10),
    Column("vs", 6), Column("change", 6, left=True), Column("result", 6, left=True),
)  # fmt: skip
WIDE_ONLY = ("p99 us", "spread", "rounds", "result")


class Table:
    """``names``: the implementations; ``compared``: whether there is a baseline; ``differ``: see ``rows.differing``."""

    def __init__(self, names: Sequence[str], compared: bool, differ: Sequence[str] = ()) -> None:
        self._width, self._differ = width_of(sys.stdout), differ
        self._rows: list[dict[str, Any]] = []
        self._columns = [column for column in COLUMNS if compared or column.title != "change"]
        longest = max(map(len, names))
        self._widths = [max(longest, 14) if column.title == "implementation" else column.width
                        for column in self._columns]  # fmt: skip

    def begin(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._comment(line)
        if self._width is None:
            click.echo(plain_line([column.title for column in self._columns], self._columns, self._widths))

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows += rows
        if self._width is None:
            for row in rows:
                click.echo(plain_line(self._cells(row), self._columns, self._widths))

    def end(self, document: dict[str, Any], lines: Sequence[str]) -> None:
        if self._width is not None:
            self._print_terminal(self._width)
        self._print_schemes()
        for line in (*in_short(self._rows), *lines):
            self._comment(line)

    def _comment(self, line: str) -> None:
        """A line that is not data; folded on a terminal, whole for programs."""
        for part in textwrap.wrap(line, self._width - 4, subsequent_indent="  ") if self._width else [line]:
            click.echo(f"# {part}")

    def _cells(self, row: dict[str, Any]) -> list[str]:
        return [cell for column, cell in zip(COLUMNS, cells(row, self._differ), strict=True) if column in self._columns]

    def _print_terminal(self, width: int) -> None:
        shown = [i for i, column in enumerate(self._columns) if width >= NARROW or column.title not in WIDE_ONLY]
        print_table([self._columns[i] for i in shown], [[self._cells(row)[i] for i in shown] for row in self._rows])

    def _print_schemes(self) -> None:
        """Where the time of the schemes goes; phases differ between exchanges, so each scheme has its own table."""
        tables: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows:
            if row["scheme"]:
                tables.setdefault(label({**row, "part": "step"}, self._differ), []).append(row)
        for scheme, both in tables.items():
            rows = [row for row in both if row["part"] == "step"]
            alone = {row["nbytes"]: row for row in both if row["part"] == "local"}
            phases = list(rows[0]["t_phase_us"] or ())
            own = ("compress", "decompress") if alone else ()
            titles = ("size", "density", "sent", "ratio", "break-even", "local", *own, *phases)
            click.echo()
            print_table([Column(title) for title in titles],
                        [scheme_cells(row, alone.get(row["nbytes"]), phases) for row in rows],
                        title=f"{scheme} (break-even in GB/s, times in us)")  # fmt: skip
        if any(row["break_even_gbs"] is not None for row in self._rows):
            click.echo()
            self._comment("break-even: the scheme saves time on links slower than this, by what a rank computes (local"
                          ") and the bytes it saves against a bandwidth-optimal dense all-reduce")  # fmt: skip


def cells(row: dict[str, Any], differ: Sequence[str] = ()) -> list[str]:
    """One line of the main table."""
    verdict = {True: "ok", False: "WRONG", None: "-"}[row["ok"]]
    rounds = f"{row['launches']} jobs" if (row["launches"] or 1) > 1 else str(row["iters"])
    change = "-" if row["change_pct"] is None else "SLOWER" if row["regressed"] else f"{row['change_pct']:+.0f}%"
    return [
        show_size(row["nbytes"]), label(row, differ), micros(row["t_med_us"]), micros(row["t_p99_us"]),
        f"{row['spread_pct']:.0f}%", rounds, figures(row["algbw_gbs"]), figures(row["busbw_gbs"]),
        sent(row), "-" if row["vs"] is None else f"{row['vs']:.2f}x", change, verdict,
    ]  # fmt: skip


def scheme_cells(row: dict[str, Any], alone: dict[str, Any] | None, phases: Sequence[str]) -> list[str]:
    """One line of a scheme's own table."""
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.1f}"
    even = {None: "-", 0: "never"}.get(row["break_even_gbs"]) or figures(row["break_even_gbs"])
    own = [micros(alone["t_compress_us"]), micros(alone["t_decompress_us"])] if alone else []
    times = (micros(row["t_phase_us"][name]) for name in phases)
    return [show_size(row["nbytes"]), f"{row['density']:.4g}", sent(row), ratio, even, micros(row["t_local_us"]), *own,
            *times]  # fmt: skip


def sent(row: dict[str, Any]) -> str:
    """Bytes on the wire, marked where they are a formula's."""
    return ("~" if row["wire_modelled"] else "") + show_size(row["wire_bytes"]) if row["wire_bytes"] else "-"
