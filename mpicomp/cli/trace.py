"""``mpicomp trace``: what a recording says, without MPI."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import MpicompError
from ..trace.units import duration, nbytes, sparkline
from .trace_export import export
from .trace_group import TraceGroup

ROOMY = 100  # columns of a terminal from which on tables have frames and wide gaps
_MOST_RANKS = 16  # rows of a table over ranks; beyond it the latest ranks are shown

_trace_file = click.argument("file", type=click.Path(path_type=Path))
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


@click.group(cls=TraceGroup, context_settings={"help_option_names": ["-h", "--help"]})
def trace() -> None:
    """Read, check, explain and rescue recordings (no MPI needed)."""


trace.add_command(export)


@trace.command()
@_trace_file
@_as_json
def info(file: Path, as_json: bool) -> None:
    """Who ran what, how much was recorded, and what is missing."""
    with _errors():
        from ..trace import info

        card = info(file)
    if as_json:
        _print_json(card)
        return
    console = _console()
    _show_card(console, file, card)
    for name in ("mpi_library", "python_version", "numpy_version", "cupy_version", "git_revision", "run_id"):
        if card.get(name):
            _show_fact(console, name.replace("_", " "), card[name])
    for name, value in card["environment"].items():
        _show_fact(console, "environment", f"{name}={value}")


@trace.command()
@_trace_file
@click.option("--by", default="kind,algo,scheme,size", show_default=True, help="Also dtype, op, step, rank.")
@_as_json
def summary(file: Path, by: str, as_json: bool) -> None:
    """Time and bytes by kind, algorithm, scheme and size."""
    keys = _keys(by)
    with _errors():
        from ..trace import summary

        rows = summary(file, keys)
    if as_json:
        _print_json(rows)
    else:
        _console().print(_summary_table(keys, rows))


@trace.command()
@_trace_file
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write one HTML file with pictures instead.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@_as_json
def report(file: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """The run card, phases, steps, traffic, imbalance and metrics."""
    with _errors():
        from ..trace import report, write_page

        result = write_page(file, output, force=force) if output else report(file)
    if as_json:
        _print_json(result)
        return
    if output:
        click.echo(f"{output}: written")
        return
    console = _console()
    _show_card(console, file, result["run"])
    _show_phases(console, result)
    _show_imbalance(console, result["imbalance"])
    _show_metrics(console, result["metrics"])


@trace.command()
@click.argument("spool", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The HDF5 file to write.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--max-events", type=click.IntRange(1), default=200_000_000, show_default=True,
              help="A larger run becomes a folder, OUTPUT.d, of files with so many events.")  # fmt: skip
@_as_json
def recover(spool: tuple[Path, ...], output: Path, force: bool, max_events: int, as_json: bool) -> None:
    """Build a trace from the journals of a killed run.

    SPOOL is the folder that the run left beside its output (NAME.h5.spool), or one folder a node. The journals
    are kept.
    """
    with _errors():
        from ..trace import recover

        merged = recover(list(spool), output, force=force, max_events=max_events)
    if as_json:
        _print_json({**merged._asdict(), "path": str(merged.path)})
        return
    console = _console()
    console.print(f"{merged.path}: {merged.n_events} events of {merged.n_ranks} ranks", markup=False)
    _warn_ranks(console, merged.status, merged.n_dropped)
    for journal, damage in merged.damage.items():
        console.print(Text(f"{journal}: {damage}", style="yellow"))


@trace.command()
@_trace_file
@_as_json
def validate(file: Path, as_json: bool) -> None:
    """Check a file against the format; exit code 2 if it departs from it."""
    with _errors():
        from ..trace import validate

        faults = validate(file)
    if as_json:
        _print_json({"valid": not faults, "faults": faults})
    else:
        for fault in faults or ["valid"]:
            click.echo(f"{file}: {fault}")
    sys.exit(2 if faults else 0)


@contextmanager
def _errors() -> Iterator[None]:
    """What the user can put right is one line, not a traceback."""
    try:
        yield
    except (MpicompError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _keys(by: str) -> list[str]:
    known = ("kind", "algo", "scheme", "size", "dtype", "op", "step", "rank")
    keys = [key.strip() for key in by.split(",") if key.strip()]
    for key in keys:
        if key not in known:
            raise click.BadParameter(f"cannot group by {key!r}: choose from {', '.join(known)}", param_hint="--by")
    if not keys:
        raise click.BadParameter("give at least one of " + ", ".join(known), param_hint="--by")
    return ["size_bin" if key == "size" else key for key in keys]


def _console() -> Console:
    """As wide as the terminal; wide enough for every column where there is none, as in a pipe."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=200 if piped else None)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def _table(console: Console, *columns: str, left: int = 1) -> Table:
    """Plain columns when piped, close together on a narrow terminal; the first ``left`` ones hold text."""
    narrow = console.width < ROOMY
    frame = box.SIMPLE_HEAD if console.is_terminal and not narrow else None
    table = Table(box=frame, pad_edge=False, padding=(0, 1, 0, 0) if narrow else (0, 1), header_style="bold")
    for column in columns[:left]:
        table.add_column(column, overflow="fold", min_width=5)
    for column in columns[left:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _show_fact(console: Console, name: str, value: object) -> None:
    """A name and what there is to say; on a terminal in lines that begin below each other."""
    lines, room = [str(value)], max(20, console.width - 15)
    if console.is_terminal:
        lines = textwrap.wrap(lines[0], room, break_long_words=False, break_on_hyphens=False) or lines
    for head, line in zip_longest([name], lines, fillvalue=""):
        console.print(Text.assemble((f"{head:<15}", "bold"), line), soft_wrap=True)


def _show_card(console: Console, file: Path, card: dict[str, Any]) -> None:
    _show_fact(console, "trace", file)
    if card.get("title"):
        _show_fact(console, "title", card["title"])
    hosts = card["hosts"]
    shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    _show_fact(console, "ranks", f"{card.get('n_ranks')} on {_count(len(hosts), 'node')} ({shown})")
    _show_fact(console, "recorded", f"{_count(card['n_events'], 'event')} in {duration(card['duration'])}")
    _show_fact(console, "created", f"{card.get('created')} by {card.get('creator')}")
    _show_fact(console, "command", " ".join(card["command_line"]))
    _warn_ranks(console, card["ranks_not_closed"], card["n_dropped"])
    if card["missing_parts"]:
        console.print(Text(f"INCOMPLETE     {card['missing_parts']}", style="bold red"))
    if card["n_backwards"]:
        console.print(Text(f"{_count(card['n_backwards'], 'event')} end before they begin", style="bold red"))


def _warn_ranks(console: Console, not_closed: dict[int, str], n_dropped: int) -> None:
    by_state: dict[str, list[int]] = {}
    for rank, state in not_closed.items():
        by_state.setdefault(state, []).append(int(rank))
    if by_state:
        from ..trace.facts import some_ranges

        said = "; ".join(f"{state}: rank {some_ranges(ranks)}" for state, ranks in by_state.items())
        console.print(Text(f"INCOMPLETE     {said}", style="bold red"))
    if n_dropped:
        console.print(Text(f"{_count(n_dropped, 'event')} dropped: the disk was full", style="bold red"))


def _summary_table(keys: list[str], rows: list[dict[str, Any]]) -> Table:
    heads = ["size" if key == "size_bin" else key for key in keys]
    table = _table(_console(), *heads, "count", "median", "p99", "total", "sent", left=len(keys))
    for row in rows:
        cells = [nbytes(row[key]) if key == "size_bin" else str(row[key]) for key in keys]
        times = [duration(row[name]) for name in ("median", "p99", "total")]
        table.add_row(*(Text(cell) for cell in cells), str(row["count"]), *times, nbytes(row["nbytes_sent"]))
    return table


def _show_phases(console: Console, result: dict[str, Any]) -> None:
    console.print()
    table = _table(console, "phase", "count", "median", "p99", "total", "share", "sent")
    for row in result["phases"]:
        times = [duration(row[name]) for name in ("median", "p99", "total")]
        table.add_row(Text(row["kind"]), str(row["count"]), *times, f"{row['share']:.1%}", nbytes(row["nbytes_sent"]))
    console.print(table)
    console.print()
    steps, traffic = result["steps"], result["traffic"]
    if steps["count"]:
        shown = ", ".join(f"{name} {duration(steps[name])}" for name in ("median", "p99", "first"))
        _show_fact(console, "steps", f"{steps['count']}: {shown}")
    if traffic["kind"]:
        sent = f"{nbytes(traffic['nbytes_sent_per_rank_and_step'])} per rank and step"
        rate = traffic["compression_rate"]
        _show_fact(console, "sent", sent + (f", {_compared(rate)} a dense all-reduce" if rate else ""))


def _show_imbalance(console: Console, imbalance: dict[str, Any]) -> None:
    if not imbalance["kind"]:
        return
    uncertainty = imbalance["clock_uncertainty"]
    known = f"clocks known to {duration(uncertainty)}" if uncertainty else "all ranks read one clock"
    wait = f"the last rank comes {duration(imbalance['median_wait'])} after the median one"
    _show_fact(console, "imbalance", f"at {imbalance['kind']} {wait} ({known})")
    if not imbalance["significant"]:
        _show_fact(console, "", "no rank is later than the others by more than the clocks can tell")
        return
    late = [(value, rank) for rank, value in enumerate(imbalance["lateness"]) if value is not None]
    said = ", ".join(f"{rank}: {duration(value)}" for value, rank in sorted(late, reverse=True)[:_MOST_RANKS])
    _show_fact(console, "", f"median lateness of rank {said}")


def _show_metrics(console: Console, metrics: dict[str, dict[str, Any]]) -> None:
    if not metrics:
        return
    console.print()
    table = _table(console, "metric", "steps", "first", "last", "min", "course")
    for name, course in metrics.items():
        numbers = ["-" if course[key] is None else f"{course[key]:.5g}" for key in ("first", "last", "min")]
        spark = sparkline(course["values"]) if console.encoding.startswith("utf") else ""
        table.add_row(Text(name), str(len(course["steps"])), *numbers, spark)
    console.print(table)


def _compared(rate: float) -> str:
    if 0.99 < rate < 1.01:
        return "as much as"
    return f"{rate:.3g} x less than" if rate > 1 else f"{1 / rate:.3g} x more than"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
