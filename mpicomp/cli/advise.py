"""``mpicomp advise``: predict if compression makes this job's steps faster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import click

from .._util.plurals import count
from ..bench import check, environment, plan, probe
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from ..simulate import Machine, Model, simulated
from ..simulate import machine as machines
from ..simulate.advice import SCHEMES, Advice, Line
from ..simulate.advice import advise as ask
from ..simulate.steps import kinds
from ..trace.units import digits
from . import inputs, mpi
from .console import Column, Progress, folded, print_json, print_table, say, width_of
from .machine import noise_of, this_machine
from .options import CommaList, Command, as_json, option, quiet, scheme_names, section
from .simulate import SENT

if TYPE_CHECKING:
    from ..comm.comm import Comm

COLUMNS = [Column("algorithm or scheme", left=True),
           *map(Column, ("step ms", "overlapped", "exchange", "of it local", "sent", "speed-up", "break-even"))]
CHECKED = 3  # schemes that --check runs
CALLS = 5  # of a function that computes a step


@click.command(cls=Command)
@inputs.model_options
@section(
    "Job",
    option("--compute", "function", metavar="MODULE:NAME",
           help="Instead of --compute-time: a function to time, without arguments."),
    option("-s", "--scheme", multiple=True, metavar="SCHEME,...", type=CommaList(scheme_names),
           help=f"Schemes to consider.  [default: {','.join(SCHEMES)}]"),
    inputs.machine_option(required=False, use="Description of the machine, instead of measuring it"),
    option("--check", "checks", is_flag=True, help="Run the fastest few and print measured beside predicted times."),
)
@section("Output", as_json, quiet)
def advise(
    model_name: str, compute_time: float | None, tflops: float | None, batch: int, function: str | None,
    scheme: tuple[str, ...], machine_file: str | None, checks: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Predict if compression makes this job's training steps faster.

    \b
    mpirun -n 4 mpicomp advise --model resnet50 --compute-time 0.2
    mpirun -n 4 mpicomp advise --model mynet:make --compute mynet:step --check

    Measures this job's messages and operations for some seconds and predicts steps of dense all-reduces and of schemes
    from the schedules they execute. The report gives the bandwidth at which each scheme breaks even, and published
    results about training with it.
    """
    comm = mpi.all_ranks()
    if comm.size == 1:
        raise InvalidArgument("one rank alone exchanges nothing: start more, mpirun -n 4 mpicomp advise ...")
    model = run_collectively(comm, lambda: inputs.model(model_name))
    schemes = run_collectively(comm, lambda: checked(plan.split_schemes(scheme) or SCHEMES))
    compute = run_collectively(comm, lambda: inputs.compute_time(model, compute_time, tflops, batch, function))
    machine = run_collectively(comm, lambda: inputs.machine(machine_file)) if machine_file else None
    progress = Progress(quiet or comm.rank != 0)
    noise = environment.Noise()
    if function is not None:
        compute = timed_compute(comm, function)
    native, note = None, "native: not measured"
    if machine is None:
        machine = this_machine(comm, progress, "this job")
        native, note = check.native(comm, model.n)
    advice = run_collectively(comm, lambda: ask(model, machine, comm.size, compute, schemes, native, progress)
                      if comm.rank == 0 else None)
    progress.clear()
    measured: dict[str, float] = {}
    if checks:
        measured = check.steps(comm, comm.bcast(best(advice) if advice is not None else None), model.layers, kinds)
    share = noise.share(comm) if machine_file is None or checks or function else 0.0  # with neither, nothing is timed
    if advice is not None:  # on rank 0
        if as_json:
            print_json(document(advice, model, machine, compute, measured, note, share))
        else:
            report(advice, model, compute, measured, [note, *noise_of(share)])


def checked(texts: Sequence[str]) -> list[str]:
    """The schemes in their normal form; raises InvalidArgument for one that is unknown or not simulated."""
    return [str(simulated(text)) for text in texts]


def timed_compute(comm: Comm, text: str) -> float:
    """Median seconds per call of ``module:name``, on all ranks at once."""

    def find() -> Callable[[], object]:
        try:
            with inputs.importing(text) as function:
                return function
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidArgument(f"--compute takes module:name of a function without arguments, got {text!r}: "
                                  f"{error}") from error

    step = run_collectively(comm, find)
    step()
    return median(probe.timed(step, comm) for _ in range(CALLS))


def best(advice: Advice) -> list[str]:
    """The fastest dense algorithm, and the fastest schemes."""
    dense = [line.what for line in advice.lines if line.dense and line.what != "native"]
    return [dense[0], *[line.what for line in advice.lines if not line.dense][:CHECKED]]


def document(advice: Advice, model: Model, machine: Machine, compute: float, measured: Mapping[str, float],
             note: str, share: float) -> dict[str, object]:
    """The JSON document of the advice; other processes used ``share`` of the CPUs."""
    return {
        "format": "mpicomp-advice", "version": 1, "compress": advice.compress, "verdict": advice.verdict,
        "model": {"name": model.name, "elements": model.n}, "compute": compute, "machine": machines.dump(machine),
        "native": note, "others_share": share, "left_out": advice.left_out,
        "rows": [{**line.prediction.row(), **unknown(line), "dense": line.dense, "break_even": break_even(line),
                  "published": line.published, "measured_exchange": measured.get(line.what)} for line in advice.lines],
    }


def unknown(line: Line) -> dict[str, None]:
    """Return None for what is not known of MPI's own all-reduce: its schedule is MPI's."""
    return dict.fromkeys(("local", "messages", "bytes_shared") if line.what == "native" else ())


def break_even(line: Line) -> float | str | None:
    """Bandwidth in bytes/s; a phrase if there is no such bandwidth, since JSON has no infinity."""
    if line.dense:
        return None
    words: dict[float | None, str] = {0.0: "slower on any", float("inf"): "faster on any"}
    return words.get(line.break_even, line.break_even)


def report(advice: Advice, model: Model, compute: float, measured: Mapping[str, float],
           notes: Sequence[str]) -> None:
    """Print the table, remarks, checks, published results and the verdict."""
    first = advice.lines[0].prediction
    columns = COLUMNS if first.nodes > 1 else COLUMNS[:-1]  # one node has no link to break even on
    print_table(columns, [cells(line, advice.best(dense=True))[: len(columns)] for line in advice.lines],
                f"{model.name}: {count(model.n, 'element')}, {count(first.ranks, 'rank')} on "
                f"{count(first.nodes, 'node')}, {digits(1e3 * compute)} ms of computing per step")
    say(f"times in ms; overlapped: exchanged beside the backward pass; {SENT}")
    if first.nodes > 1:
        say("break-even: the bandwidth of a node's link above which dense is faster")
    for remark in (*notes, *advice.left_out):
        say(remark)
    for name, seconds in measured.items():
        predicted = next(line.prediction.exchange for line in advice.lines if line.what == name)
        say(f"checked: the exchange of {name} takes {digits(1e3 * seconds)} ms, predicted {digits(1e3 * predicted)} ms "
            f"({predicted / seconds - 1:+.0%})")
    for text in advice.best(dense=False).published:
        say(f"published with {advice.best(dense=False).what}: {text}")
    # Under a launcher standard output always looks like a terminal to click.
    width = width_of(sys.stdout)
    click.echo(click.style(folded(advice.verdict, width), bold=True) if width else advice.verdict)


def cells(line: Line, dense: Line) -> list[str]:
    one = line.prediction
    times = [digits(1e3 * seconds) for seconds in (one.step, one.overlapped, one.exchange, one.local)]
    sent = plan.show_size(one.bytes_sent + one.bytes_shared)
    if line.what == "native":
        times[-1], sent = "-", f"~{sent}"
    even = break_even(line)
    rate = "-" if even is None else f"{8 * even / 1e9:.3g} Gbit/s" if isinstance(even, float) else even
    return [one.what, *times, sent, f"{dense.prediction.step / one.step:.2f}", rate]
