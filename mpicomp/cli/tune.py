"""``mpicomp tune``: measure which dense all-reduce is fastest per length, and write the table for ``auto``."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import allreduce
from .._util.plurals import count
from ..allreduce.table import WITHOUT_LIMIT, Row, Table, choices_of, dump, load
from ..bench import Plan, environment, plan, run
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument, MpicompError, RefusedOverwrite
from ..simulate import machine as machines
from ..simulate.ghost_ops import CALL, STEP
from . import mpi
from .bench.options import dense_algorithms, range_of_sizes
from .console import Progress, print_json
from .machine import noise_of, this_machine
from .options import OUTPUT, Command, as_json, option, quiet, section, timeout
from .output import OutputFile

if TYPE_CHECKING:
    from ..comm.comm import Comm

ALGORITHMS = tuple(name for name in allreduce.ALGORITHMS if name != "direct")  # direct is for half precision


@click.command(cls=Command)
@section(
    "Choice",
    dense_algorithms(f"Algorithms to choose from, beside native.  [default: {','.join(ALGORITHMS)}]"),
    option("--margin", default=0.1, help="Keep native unless another algorithm is faster by this share."),
)  # fmt: skip
@section("Sizes", *range_of_sizes("1K", "64M"))
@section(
    "Timing",
    option("--min-time", default=0.1, help="Minimum seconds (or 1000 rounds) for which each algorithm is timed."),
    option("--max-time", default=5.0, help="Maximum seconds per size, all algorithms together."),
    timeout,
)  # fmt: skip
@section(
    "Output",
    option("-o", "--output", type=OUTPUT, metavar="FILE", default="mpicomp-tuning.json",
           help="File of the table; rows of other layouts in an existing file are kept."),
    option("--force", is_flag=True, help="Replace an existing row of this layout."),
    option("--machine", "machine_file", type=OUTPUT, metavar="FILE",
           help="Measure messages and operations instead, and write the machine for simulate."),
    as_json,
    quiet,
)  # fmt: skip
def tune(
    output: str, force: bool, algorithm: tuple[str, ...], min_bytes: str, max_bytes: str, step_factor: float,
    margin: float, as_json: bool, quiet: bool, machine_file: str | None, **options: Any,
) -> None:  # fmt: skip
    """Measure the dense all-reduces on this job's ranks and write the table by which "auto" chooses.

    \b
    mpirun -n 4 mpicomp tune -o tuning.json     add a row: this layout
    export MPICOMP_TUNING=tuning.json           let "auto" use the table
    mpirun -n 4 mpicomp tune --machine m.json   for mpicomp simulate

    A layout is the number of ranks per node and the number of nodes: tune each that matters; a job of another layout
    takes the most similar row. Every row records where, when and with which MPI it was measured. With --machine, the
    command describes this machine instead.
    """
    names = tuple(dict.fromkeys(("native", *(plan.split_names(algorithm) or ALGORITHMS))))
    for name in names:
        allreduce.get(allreduce.check_requested(name))
    sizes = plan.size_range(plan.parse_size(min_bytes), plan.parse_size(max_bytes), step_factor)
    chosen = Plan(sizes=sizes, algorithms=names, **options)
    if not 0 <= margin < float("inf"):  # refuses NaN too
        raise InvalidArgument(f"--margin must be a number from 0, got {margin:g}")
    comm = mpi.all_ranks()
    if comm.size == 1:
        raise InvalidArgument("one rank has nothing to tune: start it under a launcher, mpirun -n 4 mpicomp tune")
    if machine_file is not None:
        return describe(comm, machine_file, force, as_json, Progress(quiet or comm.rank != 0))
    earlier = earlier_table(comm, output, force)
    noise = environment.Noise()
    file = OutputFile(comm, output, force=True)
    choices = measure(comm, chosen, margin, Progress(quiet or comm.rank != 0))
    share = noise.share(comm)
    table = earlier.with_row(row := Row(*comm.layout, "cpu", choices, setting(comm, share)))
    if comm.rank == 0:
        print_json(dump(table)) if as_json else report(row, share)
    file.write(lambda path: path.write_text(json.dumps(dump(table), indent=1) + "\n"))
    if comm.rank == 0 and not as_json:
        layouts = count(len(table.rows), "layout")
        click.echo(f"{output} holds {layouts}; use it: export MPICOMP_TUNING={os.path.abspath(output)}")
    return None


def describe(comm: Comm, path: str, force: bool, as_json: bool, progress: Progress) -> None:
    """Measure this machine and write its description."""
    noise = environment.Noise()
    file = OutputFile(comm, path, force)
    found = this_machine(comm, progress, path)
    progress.clear()
    share = noise.share(comm)
    document = machines.dump(replace(found, measured=setting(comm, share)))
    if comm.rank == 0:
        print_json(document) if as_json else click.echo(machine_lines(found, share))
    file.write(lambda part: part.write_text(json.dumps(document, indent=1) + "\n"))
    if comm.rank == 0 and not as_json:
        click.echo(f"machine in {path}: mpicomp simulate --machine {path} ...")


def machine_lines(found: machines.Machine, share: float) -> str:
    """The description of a machine in a few lines."""
    lines = [f"{name:<8} nodes: {1e6 * wire.latency:.1f} us, {wire.bandwidth / 1e9:.3g} GB/s, "
             f"{1e6 * wire.overhead:.1f} us of the rank's own time per message"
             for name, wire in (("within", found.within), ("between", found.between))]
    step, call = (1e6 * found.kernels[name] for name in (STEP, CALL))
    rates = [seconds for name, seconds in found.kernels.items() if name not in (STEP, CALL)]
    lines += [f"steps:         {step:.0f} us whatever their length, and {call:.1f} us for each operation",
              f"{len(rates)} operations, from {1e12 * min(rates):.0f} ps per element"]
    return "\n".join([*lines, *noise_of(share)])


def earlier_table(comm: Comm, path: str, force: bool) -> Table:
    """The table that rank 0 reads from ``path``; empty if there is no file.

    Raises on every rank if the file is not a table, or has a row of this layout and ``force`` is not given.
    """
    ranks_per_node, nodes = comm.layout

    def read() -> Table:
        try:
            table = load(Path(path).read_text(), path, list(allreduce.ALGORITHMS))
        except OSError as error:
            raise MpicompError(f"{path}: {error.strerror}") from error
        if table.has(ranks_per_node, nodes, "cpu") and not force:
            raise RefusedOverwrite(
                f"{path} has a row for {count(ranks_per_node, 'rank')} on each of {count(nodes, 'node')} already: "
                "choose another file, or --force to replace the row"
            )
        return table

    return run_collectively(comm, read, comm.rank == 0 and os.path.exists(path)) or Table(())


def measure(comm: Comm, chosen: Plan, margin: float, progress: Progress) -> tuple[tuple[int, str], ...]:
    """The choices for this job's layout."""
    times: dict[int, dict[str, float]] = {}
    for rows in run(comm, chosen, progress):
        wrong = [str(row["algorithm"]) for row in rows if not row["ok"]]
        if wrong:
            raise MpicompError(f"{', '.join(wrong)} gave a wrong result at {rows[0]['nbytes']} bytes: not tuned")
        times[rows[0]["nbytes"]] = {str(row["algorithm"]): row["t_med_us"] for row in rows}
    progress.clear()
    return choices_of(times, margin)


def setting(comm: Comm, share: float) -> dict[str, object]:
    """Place and time of a measurement, in which other processes used ``share`` of the CPUs (collective)."""
    table = environment.ranks(comm)
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "mpi": mpi.library(),
        "ranks": comm.size,
        "binding": environment.binding(table),
        "oversubscribed": environment.oversubscribed(table),
        "others_share": share,
        "versions": environment.versions(),
    }


def report(row: Row, share: float) -> None:
    """Print the new row."""
    click.echo(f"ranks per node: {row.ranks_per_node}; nodes: {row.nodes}; vectors on the host")
    least = 0
    for limit, name in row.choices:
        end = "and above" if limit == WITHOUT_LIMIT else f"to {plan.show_size(limit)}"
        click.echo(f"  {plan.show_size(least):>10} {end:<16} {name}")
        least = limit
    for line in noise_of(share):
        click.echo(line)
