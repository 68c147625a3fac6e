"""Layouts of rows for programs: CSV and JSON, and the tables of nccl-tests and OSU's benchmarks."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import click

from ...bench.documents import write_csv
from ...bench.rows import label
from ...bench.schema import Document, Row
from ..console import print_json

NCCL_TYPES = {"float16": "half", "float32": "float", "float64": "double"}
NCCL_HEAD = (
    "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}           out-of-place                       in-place          ",
    "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6} {:>6}  {:>7}  {:>6}  {:>6} {:>6}",
    "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>5}  {:>7}  {:>6}  {:>6}  {:>5}",
)
NCCL_TITLES = (
    ("",) * 5,
    ("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2),
    ("(B)", "(elements)", "", "", "", *("(us)", "(GB/s)", "(GB/s)", "") * 2),
)
OSU_TITLES = ("Avg Latency(us)", "P50 Tail Lat(us)", "P90 Tail Lat(us)", "P99 Tail Lat(us)")
OSU_NAMES = {"pingpong": "Latency"}


class Look(NamedTuple):
    """The facts that a table needs before its first row."""

    names: Sequence[str]  # of the implementations
    compared: bool = False  # with a baseline
    differ: Sequence[str] = ()  # see `rows.differing`
    two_places: bool = False  # rows out of place and in place, side by side


class Layout(ABC):
    """A form of the report: ``begin`` (facts about the run), ``add`` (rows, size by size), ``end``."""

    def __init__(self, look: Look) -> None:
        self.look = look

    @abstractmethod
    def begin(self, lines: Sequence[str]) -> None: ...

    @abstractmethod
    def add(self, rows: Sequence[Row]) -> None: ...

    @abstractmethod
    def end(self, document: Document, lines: Sequence[str]) -> None:
        """Print the rest; ``lines`` are remarks on the whole run."""


class Rows(Layout):
    """JSON lines: one row per line on stdout as it is measured; remarks go to stderr."""

    def begin(self, lines: Sequence[str]) -> None:
        """Only data goes to stdout."""

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            click.echo(json.dumps(row))

    def end(self, document: Document, lines: Sequence[str]) -> None:
        _comments(lines, err=True)


class Csv(Rows):
    """Rows as CSV."""

    def begin(self, lines: Sequence[str]) -> None:
        write_csv(sys.stdout, [])

    def add(self, rows: Sequence[Row]) -> None:
        write_csv(sys.stdout, rows, title=False)


class Json(Rows):
    """The whole document, at the end."""

    def add(self, rows: Sequence[Row]) -> None:
        """The document has them."""

    def end(self, document: Document, lines: Sequence[str]) -> None:
        print_json(document)


class _Tables(Layout):
    """One table per implementation in the form of another tool, one after the other at the end."""

    def begin(self, lines: Sequence[str]) -> None:
        _comments(lines)

    def add(self, rows: Sequence[Row]) -> None:
        """Sizes come one by one, a table has all of one implementation."""

    def end(self, document: Document, lines: Sequence[str]) -> None:
        tables: dict[str, list[Row]] = {}
        for row in document["rows"]:
            tables.setdefault(label(row, self.look.differ, place=False), []).append(row)
        for name, rows in tables.items():
            what = "" if "collective" in self.look.differ else f"{rows[0]['collective']} "
            click.echo(f"#\n# {what}{name}")
            self.table(rows)
        _comments(lines)

    @abstractmethod
    def table(self, rows: list[Row]) -> None:
        """Print one table."""


class Nccl(_Tables):
    """The layout of nccl-tests; time is our median of maxima, ``N/A`` a missing measurement."""

    def table(self, rows: list[Row]) -> None:
        for form, titles in zip(NCCL_HEAD, NCCL_TITLES, strict=True):
            click.echo(form.format(*titles))
        for nbytes in dict.fromkeys(row["nbytes"] for row in rows):
            places = {row["place"] or "out": row for row in rows if row["nbytes"] == nbytes}
            click.echo(_nccl_line(places))
        wrong = sum(row["n_wrong"] or 0 for row in rows)
        rates = [row["busbw_gbs"] for row in rows if row["busbw_gbs"] is not None]
        click.echo(f"# Out of bounds values : {wrong} {'OK' if not wrong else 'FAILED'}")
        click.echo(f"# Avg bus bandwidth    : {f'{sum(rates) / len(rates):g}' if rates else 'N/A'}")


def _nccl_line(places: dict[str, Row]) -> str:
    row = next(iter(places.values()))
    kind = NCCL_TYPES.get(row["dtype"], row["dtype"])
    line = f"{row['nbytes']:12d}  {row['count']:12d}  {kind:>8}  {row['op'] or 'none':>6}  {row['root']:6d}"
    for place in ("out", "in"):
        one = places.get(place)
        if one is None:
            line += f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
        else:
            wrong = "N/A" if one["n_wrong"] is None else f"{one['n_wrong']:g}"
            rates = f"{one['algbw_gbs']:6.2f}  {one['busbw_gbs'] or 0:6.2f}"
            line += f"  {_nccl_time(one['t_med_us']):>7}  {rates}  {wrong:>5}"
    return line


def _nccl_time(us: float) -> str:
    return f"{us:.0f}" if us >= 10000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}"


class Osu(_Tables):
    """The layout of OSU's latency tests: averages over rounds and ranks; percentiles of the slowest rank's time."""

    def table(self, rows: list[Row]) -> None:
        for place in dict.fromkeys(row["place"] for row in rows):
            name = OSU_NAMES.get(rows[0]["collective"], f"{rows[0]['collective'].capitalize()} Latency")
            click.echo(f"# OSU-like MPI {name} Test{' (in place)' if place == 'in' else ''}")
            click.echo(f"{'# Size':<10}" + "".join(f"{title:>20}" for title in OSU_TITLES))
            for row in rows:
                if row["place"] == place:
                    times = (row["t_avg_us"], row["t_med_us"], row["t_p90_us"], row["t_p99_us"])
                    click.echo(f"{row['nbytes']:<10d}" + "".join(f"{value:20.2f}" for value in times))


def _comments(lines: Sequence[str], err: bool = False) -> None:
    for line in lines:
        click.echo(f"# {line}", err=err)
