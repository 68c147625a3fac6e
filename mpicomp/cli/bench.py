"""``mpicomp bench``: all-reduce, dense and compressed, measured on this job's ranks."""

from __future__ import annotations

import sys
from typing import Any

import click

from .. import allreduce
from ..bench import COLLECTIVES, Plan, plan, run
from ..errors import MpicompError
from ..schemes import Scheme
from . import guard
from .bench_report import Report, dry_run, head
from .console import Progress, print_json
from .output import OutputFile

WRONG_RESULT = 2  # exit code
DEFAULT_ALGORITHMS = ("native", *(name for name in allreduce.ALGORITHMS if name != "native"), "auto")


@click.command()
@click.argument("collective", type=click.Choice(list(COLLECTIVES)), default="allreduce")
@click.option("-a", "--algorithm", multiple=True, metavar="NAME,...",
              help=f"Dense algorithms; the first is the baseline of the ratio. [{','.join(DEFAULT_ALGORITHMS)}]")
@click.option("-s", "--scheme", multiple=True, metavar="SCHEME,...",
              help="Schemes, such as scalecom:chunk=112,topk:density=0.01; see mpicomp schemes.")
@click.option("-b", "--min-bytes", default="1K", show_default=True, metavar="SIZE",
              help="Smallest vector, with units K, M, G of 1024.")
@click.option("-e", "--max-bytes", default="64M", show_default=True, metavar="SIZE", help="Largest vector.")
@click.option("-f", "--step-factor", default=4.0, show_default=True, help="From one size to the next.")
@click.option("--sizes", multiple=True, metavar="SIZE,...", help="Just these sizes.")
@click.option("-d", "--dtype", type=click.Choice(plan.DTYPES), default="float32", show_default=True)
@click.option("--place", type=click.Choice(plan.PLACES), default="out", show_default=True,
              help="Result in a buffer of its own, or in that of the input (dense).")
@click.option("-w", "--warmup", default=10, show_default=True, help="Untimed rounds before each size, at most.")
@click.option("-n", "--iters", type=int, help="Timed rounds; without it by the next two.")
@click.option("--min-time", default=0.2, show_default=True, help="Seconds each implementation is timed, at least.")
@click.option("--max-time", default=5.0, show_default=True, help="Seconds for a size, all implementations together.")
@click.option("--seed", default=1, show_default=True, help="Of the data.")
@click.option("--check/--no-check", default=True, show_default=True, help="Compare results with the exact ones.")
@click.option("-T", "--timeout", type=float, metavar="S", help="End the job (exit 124) when a step takes longer.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.option("-o", "--output", metavar="FILE", help="Write the JSON document to FILE as well.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured, with memory and time, and stop.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def bench(as_json: bool, output: str | None, force: bool, quiet: bool, **options: Any) -> None:
    """Measure all-reduce algorithms and compression schemes against each other.

    \b
    mpirun -n 4 mpicomp bench --algorithm native,ring --scheme scalecom:chunk=112
    mpirun -n 4 mpicomp bench --sizes 4K,1M,100M --iters 50 --output result.json

    All implementations take turns within a size. A time is the median over rounds of the slowest rank's time.
    Exit codes: 0 good, 1 bad values or a failed rank, 2 a wrong result (or an
    unknown option), 124 a step did not return.
    """
    from ..comm import Comm

    stop = options.pop("dry_run")
    chosen = make_plan(**options)
    comm = Comm(guard.world())
    if stop:
        dry_run(comm, chosen)
        return
    with OutputFile(comm, output, force) as file:
        report = Report(comm, chosen, as_json, Progress(quiet or comm.rank != 0))
        report.begin()
        for rows in run(comm, chosen, report.progress):
            report.add(rows)
        document = report.end(head(comm, chosen))
        if comm.rank == 0:
            file.write_json(document)
            if as_json:
                print_json(document)
    if report.wrong:
        sys.stderr.write("".join(f"Error: {line}\n" for line in report.wrong) if comm.rank == 0 else "")
        sys.exit(WRONG_RESULT)


def make_plan(
    *, algorithm: tuple[str, ...], scheme: tuple[str, ...], sizes: tuple[str, ...],
    min_bytes: str, max_bytes: str, step_factor: float, **rest: Any,
) -> Plan:  # fmt: skip
    """The plan the options describe, or InvalidArgument."""
    if sizes:
        nbytes = tuple(plan.parse_size(text) for text in plan.split_names(sizes))
    else:
        nbytes = plan.size_range(plan.parse_size(min_bytes), plan.parse_size(max_bytes), step_factor)
    algorithms = plan.split_names(algorithm) or DEFAULT_ALGORITHMS
    for name in algorithms:
        allreduce.check_name(name)
    schemes = plan.split_schemes(scheme)
    for text in schemes:
        _check_scheme(text)
    return Plan(sizes=nbytes, algorithms=algorithms, schemes=schemes, **rest)


def _check_scheme(text: str) -> None:
    try:
        Scheme.parse(text)
    except MpicompError as error:
        raise type(error)(f"--scheme {text}: {error}") from None
