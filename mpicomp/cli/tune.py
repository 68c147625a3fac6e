"""``mpicomp tune``: which dense all-reduce is the fastest here, length by length, written down for ``auto``."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from .. import allreduce
from ..allreduce.table import WITHOUT_LIMIT, Row, Table, choices_of, dump, load
from ..bench import Plan, environment, plan, run
from ..comm.safety.collective_errors import together
from ..errors import InvalidArgument, MpicompError, RefusedOverwrite
from ..simulate import machine as machines
from . import guard
from .console import Progress, print_json
from .machine import this_machine
from .output import OutputFile

ALGORITHMS = tuple(name for name in allreduce.ALGORITHMS if name != "direct")  # direct is for half precision


@click.command()
@click.option("-o", "--output", metavar="FILE", default="mpicomp-tuning.json", show_default=True,
              help="Where the table goes; a table that is there already keeps its rows of other layouts.")
@click.option("--force", is_flag=True, help="Replace a row of this layout that is there already.")
@click.option("-a", "--algorithm", multiple=True, metavar="NAME,...",
              help=f"What may be chosen, beside native. [{','.join(ALGORITHMS)}]")
@click.option("-b", "--min-bytes", default="1K", show_default=True, metavar="SIZE", help="Smallest vector.")
@click.option("-e", "--max-bytes", default="64M", show_default=True, metavar="SIZE", help="Largest vector.")
@click.option("-f", "--step-factor", default=4.0, show_default=True, help="From one size to the next.")
@click.option("--margin", default=0.1, show_default=True, help="Native is kept unless another is faster by this share.")
@click.option("--min-time", default=0.1, show_default=True,
              help="Seconds each algorithm is timed, at least, or 1000 rounds.")
@click.option("--max-time", default=5.0, show_default=True, help="Seconds for a size, all algorithms together.")
@click.option("--machine", "machine_file", metavar="FILE",
              help="Measure messages and operations instead, and write the machine that simulate reads.")
@click.option("-T", "--timeout", type=float, metavar="S",
              help="End the job (exit 124) when a step takes longer; 0: never.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole table as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def tune(
    output: str, force: bool, algorithm: tuple[str, ...], min_bytes: str, max_bytes: str, step_factor: float,
    margin: float, as_json: bool, quiet: bool, machine_file: str | None, **options: Any,
) -> None:  # fmt: skip
    """Measure the dense all-reduces on this job's ranks and write the table that "auto" goes by.

    \b
    mpirun -n 4 mpicomp tune -o tuning.json     a row: this layout
    export MPICOMP_TUNING=tuning.json           from now on "auto" uses it
    mpirun -n 4 mpicomp tune --machine m.json   for mpicomp simulate

    A layout is the number of ranks on a node and of nodes: launch it for each that matters; a job of another layout
    takes the most similar row. Every row says where, when and with which MPI it was measured; none is replaced without
    --force. With --machine it describes this machine instead.
    """
    from ..comm.comm import Comm

    names = tuple(dict.fromkeys(("native", *(plan.split_names(algorithm) or ALGORITHMS))))
    for name in names:
        allreduce.get(name)
    sizes = plan.size_range(plan.parse_size(min_bytes), plan.parse_size(max_bytes), step_factor)
    chosen = Plan(sizes=sizes, algorithms=names, **options)
    if not 0 <= margin < float("inf"):  # refuses NaN too
        raise InvalidArgument(f"--margin must be a number from 0, got {margin:g}")
    comm = Comm(guard.world())
    if comm.size == 1:
        raise InvalidArgument("one rank has nothing to tune: start it under a launcher, mpirun -n 4 mpicomp tune")
    if machine_file is not None:
        return describe(comm, machine_file, force, as_json, Progress(quiet or comm.rank != 0))
    earlier = earlier_table(comm, output, force)
    noise = environment.Noise()
    with OutputFile(comm, output, force=True) as file:
        choices = measure(comm, chosen, margin, Progress(quiet or comm.rank != 0))
        row = Row(*comm.layout, "cpu", choices, setting(comm, noise.share(comm)))
        table = earlier.with_row(row)
        if comm.rank == 0:
            file.write(lambda path: path.write_text(json.dumps(dump(table), indent=1) + "\n"))
            print_json(dump(table)) if as_json else report(row, table, output)
    return None


def describe(comm: Any, path: str, force: bool, as_json: bool, progress: Progress) -> None:
    """Measure this machine and write its description."""
    noise = environment.Noise()
    with OutputFile(comm, path, force) as file:
        found = this_machine(comm, progress, path)
        progress.clear()
        document = machines.dump(replace(found, measured=setting(comm, noise.share(comm))))
        if comm.rank == 0:
            file.write(lambda part: part.write_text(json.dumps(document, indent=1) + "\n"))
            print_json(document) if as_json else click.echo(machine_lines(document, path))


def machine_lines(document: dict[str, Any], path: str) -> str:
    """What was found, in a few lines."""
    lines = [f"{name:<8} nodes: {1e6 * one['latency']:.1f} us, {one['bandwidth'] / 1e9:.3g} GB/s, "
             f"{1e6 * one['overhead']:.1f} us of the rank's own time a message"
             for name, one in ((name, document[name]) for name in ("within", "between"))]
    lines += noise_of(document["measured"])
    rates = f"{len(document['kernels'])} operations, from {1e12 * min(document['kernels'].values()):.0f} ps an element"
    return "\n".join([*lines, f"{rates}; in {path}: mpicomp simulate --machine {path} ..."])


def earlier_table(comm: Any, path: str, force: bool) -> Table:
    """What ``path`` holds already, read by rank 0; an error on every rank if it is something else, or all of it."""
    layout = comm.layout

    def read() -> Table:
        try:
            table = load(Path(path).read_text(), path, list(allreduce.ALGORITHMS))
        except OSError as error:
            raise MpicompError(f"{path}: {error.strerror}") from error
        ranks_per_node, nodes = layout
        if table.has(ranks_per_node, nodes, "cpu") and not force:
            raise RefusedOverwrite(
                f"{path} has a row for {layout[0]} ranks on each of {layout[1]} nodes already: "
                "choose another file, or --force to replace the row"
            )
        return table

    return together(comm, read, comm.rank == 0 and os.path.exists(path)) or Table(())


def measure(comm: Any, chosen: Plan, margin: float, progress: Progress) -> tuple[tuple[int, str], ...]:
    """The choices for this job's layout."""
    times: dict[int, dict[str, float]] = {}
    for rows in run(comm, chosen, progress):
        wrong = [row["algorithm"] for row in rows if not row["ok"]]
        if wrong:
            raise MpicompError(f"{', '.join(wrong)} gave a wrong result at {rows[0]['nbytes']} bytes: not tuned")
        times[rows[0]["nbytes"]] = {row["algorithm"]: row["t_med_us"] for row in rows}
    progress.clear()
    return choices_of(times, margin)


def setting(comm: Any, share: float | None) -> dict[str, Any]:
    """Where and when a table was measured (collective)."""
    table = environment.ranks(comm)
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "mpi": guard.library(),
        "ranks": comm.size,
        "binding": environment.binding(table),
        "oversubscribed": environment.oversubscribed(table),
        "others_share": share,
        "versions": environment.versions(),
    }


def noise_of(measured: dict[str, Any]) -> list[str]:
    """A line where others used so much of the machine that what was ``measured`` is doubtful."""
    share = measured["others_share"]
    if share is None or share <= environment.FOREIGN_LIMIT:
        return []
    return [f"noise: other processes used {share:.0%} of the CPUs: repeat on a quiet machine"]


def report(row: Row, table: Table, path: str) -> None:
    click.echo(f"ranks a node: {row.ranks_per_node}; nodes: {row.nodes}; vectors on the host")
    least = 0
    for limit, name in row.choices:
        end = "and above" if limit == WITHOUT_LIMIT else f"to {plan.show_size(limit)}"
        click.echo(f"  {plan.show_size(least):>10} {end:<16} {name}")
        least = limit
    for line in noise_of(row.measured):
        click.echo(line)
    layouts = f"{len(table.rows)} layout" + "s" * (len(table.rows) != 1)
    click.echo(f"{path} holds {layouts}; use it: export MPICOMP_TUNING={os.path.abspath(path)}")
