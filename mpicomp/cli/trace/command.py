"""Commands of ``mpicomp trace`` that read, check and rescue a recording, without MPI."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from ..._util.plurals import count
from ...trace import views
from ...trace.tables import Result
from ...trace.views import Fact
from ..console import print_json
from ..options import HELP
from .console import (
    as_json,
    render,
    roomy_console,
    show_clocks,
    show_facts,
    show_tables,
    shown_progress,
    trace_file,
)
from .export import export
from .group import TraceGroup


@click.group(cls=TraceGroup, context_settings=HELP)
def trace() -> None:
    """Read, check, explain and rescue recordings (no MPI needed)."""


trace.add_command(export)


@trace.command()
@trace_file
@as_json
def info(file: Path, as_json: bool) -> None:
    """The run: command, versions, amount recorded, missing parts."""
    from ...trace import info

    card = info(file)
    if as_json:
        print_json(card)
        return
    console = roomy_console()
    _show_run(console, file, card)
    show_clocks(console, card["clock_uncertainty"])
    show_facts(console, views.properties(card))


@trace.command()
@trace_file
@click.option("--by", default="kind,algo,scheme,size", help="Also dtype, op, step, rank.")
@as_json
def summary(file: Path, by: str, as_json: bool) -> None:
    """Time and bytes by kind, algorithm, scheme and size."""
    keys = _keys(by)
    from ...trace import summary

    rows = summary(file, keys)
    if as_json:
        print_json(rows)
        return
    render(roomy_console(), views.summary(rows, keys))


@trace.command()
@trace_file
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write one HTML file with pictures instead.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@as_json
def report(file: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """The run card, phases, steps, traffic, imbalance and metrics."""
    with shown_progress() as progress:
        from ...trace import report, write_page

        result = write_page(file, output, force=force, progress=progress) if output else report(file)
    if as_json:
        print_json(result)
        return
    if output:
        click.echo(f"{output}: written")
        return
    console = roomy_console()
    _show_run(console, file, result["run"])
    parts = [views.phases(result["phases"]), views.steps(result["steps"]), views.traffic(result["traffic"]),
             views.imbalance(result["imbalance"])]  # fmt: skip
    show_tables(console, parts[0].grids, apart=True)
    console.print()
    show_facts(console, [fact for part in parts[1:] for fact in part.facts])
    show_tables(console, views.metrics(result["metrics"]).grids, apart=True)


def _show_run(console: Console, file: Path, card: Result) -> None:
    show_facts(console, [Fact("trace", str(file)), *views.run(card), *views.warnings(
        card["ranks_not_closed"], card["n_dropped"], card["missing_parts"], card["n_backwards"])])


@trace.command()
@click.argument("spool", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The HDF5 file to write.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--max-events", type=click.IntRange(1), default=200_000_000,
              help="Most events per file; a larger run becomes a folder of files, OUTPUT.d.")  # fmt: skip
@as_json
def recover(spool: tuple[Path, ...], output: Path, force: bool, max_events: int, as_json: bool) -> None:
    """Build a trace from the journals of a killed run.

    SPOOL is the folder that the run left beside its output (NAME.h5.spool), or one folder per node. The journals
    are kept.
    """
    with shown_progress() as progress:
        from ...trace import recover

        merged = recover(list(spool), output, force=force, max_events=max_events, progress=progress)
    if as_json:
        print_json({**merged._asdict(), "path": str(merged.path)})
        return
    console = roomy_console()
    console.print(f"{merged.path}: {count(merged.n_events, 'event')} of {count(merged.n_ranks, 'rank')}", markup=False)
    show_facts(console, views.warnings(merged.status, merged.n_dropped))
    for journal, damage in merged.damage.items():
        console.print(Text(f"{journal}: {damage}", style="yellow"))


@trace.command()
@trace_file
@as_json
def validate(file: Path, as_json: bool) -> None:
    """Check a file against the format; exit code 2 for faults."""
    from ...trace import validate

    faults = validate(file)
    if as_json:
        print_json({"valid": not faults, "faults": faults})
    else:
        for fault in faults or ["valid"]:
            click.echo(f"{file}: {fault}")
    sys.exit(2 if faults else 0)


def _keys(by: str) -> list[str]:
    known = ("kind", "algo", "scheme", "size", "dtype", "op", "step", "rank")
    keys = [key.strip() for key in by.split(",") if key.strip()]
    for key in keys:
        if key not in known:
            raise click.BadParameter(f"cannot group by {key!r}: choose from {', '.join(known)}", param_hint="--by")
    if not keys:
        raise click.BadParameter("give at least one of " + ", ".join(known), param_hint="--by")
    return ["size_bin" if key == "size" else key for key in keys]
