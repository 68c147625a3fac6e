"""``mpicomp advise``: is compression faster here at all?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

import click

from ..bench import check, plan, probe
from ..comm.safety.collective_errors import together
from ..errors import InvalidArgument
from ..schemes.registry import Scheme
from ..simulate import Machine
from ..simulate import machine as machines
from ..simulate.advice import SCHEMES, Advice, Line
from ..simulate.advice import advise as ask
from ..simulate.models import Model
from ..simulate.steps import kinds
from ..trace.units import digits
from . import guard, inputs
from .console import Column, Progress, folded, print_json, print_table, say, width_of
from .machine import this_machine
from .simulate import SENT

COLUMNS = [Column("algorithm or scheme", left=True),
           *map(Column, ("step ms", "overlapped", "exchange", "of it local", "sent", "speed-up", "break-even"))]
CHECKED = 3  # schemes that --check runs
CALLS = 5  # of a function that computes a step


@click.command()
@click.option("--model", "model_name", required=True, metavar="MODEL",
              help="A built-in one, elements (25M), a file of layers, or module:factory of a PyTorch model.")
@click.option("--compute-time", type=click.FloatRange(0), metavar="S", help="Seconds of a step's computing.")
@click.option("--tflops", type=click.FloatRange(0, min_open=True), metavar="X",
              help="Without --compute-time: sustained TFLOP/s per rank.")
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Samples a rank and step.")
@click.option("--compute", "function", metavar="MODULE:NAME", help="Else: a function to be timed.")
@click.option("-s", "--scheme", multiple=True, metavar="SCHEME,...",
              help=f"What to consider.  [default: {','.join(SCHEMES)}]")
@click.option("-m", "--machine", "machine_file", metavar="FILE", help="Take this description instead of measuring.")
@click.option("--check", "checks", is_flag=True, help="Run the best few and print measured beside predicted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def advise(
    model_name: str, compute_time: float | None, tflops: float | None, batch: int, function: str | None,
    scheme: tuple[str, ...], machine_file: str | None, checks: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Tell whether compression would make this job's training steps faster.

    \b
    mpirun -n 4 mpicomp advise --model resnet50 --compute-time 0.2
    mpirun -n 4 mpicomp advise --model mynet:make --compute mynet:step --check

    Measures this job's messages and operations for some seconds, predicts steps of dense all-reduces and of schemes
    from the schedules they execute, and says where they break even and what was published about training with them.
    """
    from ..comm.comm import Comm

    comm = Comm(guard.world())
    if comm.size == 1:
        raise InvalidArgument("one rank alone exchanges nothing: start more, mpirun -n 4 mpicomp advise ...")
    model = together(comm, lambda: inputs.model(model_name))
    schemes = together(comm, lambda: checked(plan.split_schemes(scheme) or SCHEMES))
    compute = together(comm, lambda: inputs.compute_time(model, compute_time, tflops, batch, function))
    machine = together(comm, lambda: inputs.machine(machine_file)) if machine_file else None
    progress = Progress(quiet or comm.rank != 0)
    if function is not None:
        compute = timed_compute(comm, function)
    native, note = None, "native: not measured"
    if machine is None:
        machine = this_machine(comm, progress, "this job")
        native, note = check.native(comm, model.n)
    advice = together(comm, lambda: ask(model, machine, comm.size, compute, schemes, native, progress)
                      if comm.rank == 0 else None)
    progress.clear()
    measured = {}
    if checks:
        measured = check.steps(comm, comm.bcast(best(advice) if advice is not None else None), model.layers, kinds)
    if advice is not None:  # on rank 0
        if as_json:
            print_json(document(advice, model, machine, compute, measured, note))
        else:
            report(advice, model, compute, measured, note)


def checked(texts: Sequence[str]) -> list[str]:
    """The schemes as they are written out; refuses what is none."""
    return [str(Scheme.parse(text)) for text in texts]


def timed_compute(comm: Any, text: str) -> float:
    """Median seconds of a call of ``module:name``, all ranks at once."""

    def find() -> Any:
        try:
            with inputs.importing(text) as function:
                return function
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidArgument(f"--compute takes module:name of a function without arguments, got {text!r}: "
                                  f"{error}") from error

    step = together(comm, find)
    step()
    return median(probe.timed(step, comm) for _ in range(CALLS))


def best(advice: Advice) -> list[str]:
    """The fastest dense algorithm, and the fastest schemes."""
    dense = [line.what for line in advice.lines if line.dense and line.what != "native"]
    return [dense[0], *[line.what for line in advice.lines if not line.dense][:CHECKED]]


def document(advice: Advice, model: Model, machine: Machine, compute: float, measured: dict[str, float],
             note: str) -> dict[str, Any]:
    return {
        "format": "mpicomp-advice", "version": 1, "compress": advice.compress, "verdict": advice.verdict,
        "model": {"name": model.name, "elements": model.n}, "compute": compute, "machine": machines.dump(machine),
        "native": note, "left_out": advice.left_out,
        "rows": [{**line.prediction.row(), "dense": line.dense, "break_even": break_even(line),
                  "published": line.published, "measured_exchange": measured.get(line.what)} for line in advice.lines],
    }


def break_even(line: Line) -> float | str | None:
    """Bytes a second; in words where there is no such bandwidth, since JSON has no infinity."""
    if line.dense:
        return None
    words: dict[float | None, str] = {0.0: "slower on any", float("inf"): "faster on any"}
    return words.get(line.break_even, line.break_even)


def report(advice: Advice, model: Model, compute: float, measured: dict[str, float], note: str) -> None:
    first = advice.lines[0].prediction
    columns = COLUMNS if first.nodes > 1 else COLUMNS[:-1]  # one node has no link to break even on
    print_table(columns, [cells(line, advice.best(dense=True))[: len(columns)] for line in advice.lines],
                f"{model.name}: {model.n} elements, {first.ranks} ranks on "
                f"{first.nodes} node{'s' * (first.nodes > 1)}, "
                f"{digits(1e3 * compute)} ms of computing a step")
    say(f"times in ms; overlapped: exchanged beside the backward pass; {SENT}")
    if first.nodes > 1:
        say("break-even: the bandwidth of a node's link above which dense is faster")
    for remark in (note, *advice.left_out):
        say(remark)
    for what, seconds in measured.items():
        predicted = next(line.prediction.exchange for line in advice.lines if line.what == what)
        say(f"checked: the exchange of {what} takes {digits(1e3 * seconds)} ms, predicted {digits(1e3 * predicted)} ms "
                   f"({predicted / seconds - 1:+.0%})")
    for text in advice.best(dense=False).published:
        say(f"published with {advice.best(dense=False).what}: {text}")
    # Under a launcher standard output always looks like a terminal to click.
    width = width_of(sys.stdout)
    click.echo(click.style(folded(advice.verdict, width), bold=True) if width else advice.verdict)


def cells(line: Line, dense: Line) -> list[str]:
    one = line.prediction
    times = (one.step, one.overlapped, one.exchange, one.local)
    even = break_even(line)
    rate = "-" if even is None else f"{8 * even / 1e9:.3g} Gbit/s" if isinstance(even, float) else even
    return [one.what, *(digits(1e3 * seconds) for seconds in times), plan.show_size(one.bytes_sent + one.bytes_shared),
            f"{dense.prediction.step / one.step:.2f}", rate]

