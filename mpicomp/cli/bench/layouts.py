"""How rows are printed: for people, for programs, and as nccl-tests and OSU's benchmarks print theirs.

A layout is told the names of the implementations, whether there is a baseline, and the fields that rows of one name
differ in; then ``begin`` (lines that say what is measured), ``add`` (rows, size by size) and ``end`` (the whole
document, and lines of it to be said).
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import click

from ...bench.documents import write_csv
from ...bench.rows import label
from ..console import print_json
from .table import Table

Row = dict[str, Any]
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


class Rows:
    """One line a row on stdout, as they come; what is said about the run goes to stderr."""

    def __init__(self, names: Sequence[str], compared: bool, differ: Sequence[str] = ()) -> None:
        self._differ = differ

    def begin(self, lines: Sequence[str]) -> None:
        """Nothing but data goes to stdout."""

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            click.echo(json.dumps(row))

    def end(self, document: dict[str, Any], lines: Sequence[str]) -> None:
        _comments(lines, err=True)


class Csv(Rows):
    def begin(self, lines: Sequence[str]) -> None:
        write_csv(sys.stdout, [])

    def add(self, rows: Sequence[Row]) -> None:
        write_csv(sys.stdout, list(rows), title=False)


class Json(Rows):
    """The whole document, at the end."""

    def add(self, rows: Sequence[Row]) -> None:
        """Kept by the report."""

    def end(self, document: dict[str, Any], lines: Sequence[str]) -> None:
        print_json(document)


class _Tables(Rows, ABC):
    """One table an implementation, in the form of another tool; they come at the end, one after the other."""

    def begin(self, lines: Sequence[str]) -> None:
        _comments(lines)

    def add(self, rows: Sequence[Row]) -> None:
        """Sizes come one by one, a table has all of one implementation."""

    def end(self, document: dict[str, Any], lines: Sequence[str]) -> None:
        tables: dict[str, list[Row]] = {}
        for row in document["rows"]:
            tables.setdefault(label({**row, "place": None}, self._differ), []).append(row)
        for name, rows in tables.items():
            what = "" if "collective" in self._differ else f"{rows[0]['collective']} "
            click.echo(f"#\n# {what}{name}")
            self.table(rows)
        _comments(lines)

    @abstractmethod
    def table(self, rows: list[Row]) -> None:
        """Print one table."""


class Nccl(_Tables):
    """The layout of nccl-tests; time is our median of maxima, ``N/A`` what was not measured."""

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


LAYOUTS: dict[str, type] = {"table": Table, "csv": Csv, "jsonl": Rows, "json": Json, "nccl": Nccl, "osu": Osu}
