"""``mpicomp simulate``: predict steps on a machine that a file describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from .. import allreduce
from .._util.plurals import count
from ..bench import plan
from ..bench.plot import check_plot
from ..errors import InvalidArgument
from ..simulate import Machine, Model, Prediction, bounded, replay, scaling, simulated
from ..simulate import machine as machines
from ..simulate.machine import DISTRIBUTIONS, Jitter
from ..simulate.on_simgrid import Platform
from ..simulate.predict import JITTERED_STEPS, Player
from ..trace.units import digits
from . import inputs
from .console import Column, Progress, print_json, print_table, say
from .options import OUTPUT, CommaList, Command, as_json, option, quiet, scheme_names, section
from .output import OutputFile

BASELINE = "halving_doubling"
SENT = "sent: bytes per step of the busiest rank, in messages and through memory that the ranks of a node share"
COLUMNS = [Column("ranks"), Column("algorithm or scheme", left=True),
           *map(Column, ("step ms", "overlapped", "exchange", "of it local", "not computing", "sent", "speed-up"))]


@click.command(cls=Command)
@section(
    "Job",
    inputs.machine_option(required=True, use="Description of the machine"),
    option("--ranks", default="8,64,512", metavar="N,...", help="Numbers of ranks."),
    option("-a", "--algorithm", multiple=True, metavar="NAME,...", type=CommaList(allreduce.names),
           help=f"Dense all-reduces; the first is the baseline of the speed-up.  [default: {BASELINE}]"),
    option("-s", "--scheme", multiple=True, metavar="SCHEME,...", type=CommaList(scheme_names),
           help="Schemes, such as scalecom:chunk=112."),
    option("--ratio", "ratios", metavar="R,...",
           help="Compression ratios of all-reduces with an error bound, such as bounded_stats.ratio reports; ring:R "
                "for the ring instead of two hops."),
    option("--adds-by", default="auto", metavar="NAME", help="All-reduce by which schemes add dense values."),
)  # fmt: skip
@inputs.model_options
@section(
    "Jitter and network",
    option("--jitter", metavar="KIND:SECONDS",
           help="gaussian:0.001 or exponential:0.001, in place of the file's jitter."),
    option("--seed", type=click.IntRange(0), default=0, help="Seed of the delays."),
    option("--steps", type=click.IntRange(1), default=JITTERED_STEPS, help="Number of steps with random delays."),
    option("--platform", type=click.Path(), metavar="FILE",
           help="XML platform of SimGrid, which then computes when messages arrive: routes, shared links."),
    option("--simgrid", "simgrid_options", multiple=True, metavar="NAME:VALUE",
           help="Option of SimGrid, such as network/model:SMPI."),
)  # fmt: skip
@section(
    "Output",
    as_json,
    option("--plot", "picture", type=OUTPUT, metavar="FILE", help="Draw step time over ranks."),
    option("--force", is_flag=True, help="Replace an existing picture."),
    quiet,
)
def simulate(
    machine_file: str, model_name: str, ranks: str, algorithm: tuple[str, ...], scheme: tuple[str, ...],
    ratios: str | None, adds_by: str, compute_time: float | None, tflops: float | None, batch: int, jitter: str | None,
    seed: int, steps: int, platform: str | None, simgrid_options: tuple[str, ...], as_json: bool, picture: str | None,
    force: bool, quiet: bool,
) -> None:  # fmt: skip
    """Predict training steps on a machine, from the schedules that the real algorithms execute.

    \b
    mpicomp simulate --machine machine.json --model resnet50 \\
        --scheme scalecom --ranks 8,64,512 --tflops 30
    mpicomp simulate --machine machine.toml --model 25M \\
        --algorithm ring,halving_doubling --jitter exponential:0.002

    Starts no MPI. Bytes are exact unless they depend on the data; assumptions about data follow the table. Times are
    as good as the description of the machine. See docs/simulate.md.
    """
    allreduce.check_name(adds_by)
    names = [*_names(algorithm, scheme), *_bounded(ratios)]
    sizes, model, machine = inputs.rank_numbers(ranks), inputs.model(model_name), inputs.machine(machine_file)
    machine = replace(machine, jitter=_jitter(jitter, seed) if jitter else machine.jitter)
    compute = inputs.compute_time(model, compute_time, tflops, batch)
    play = _player(platform, simgrid_options)
    suffix = check_plot(picture) if picture else ""
    read = [Path(one) for one in (machine_file, model_name, platform) if one]
    file = OutputFile(None, picture, force, read)
    progress = Progress(quiet)
    found = scaling(model, machine, sizes, names, compute, adds_by, steps, progress, play)
    progress.clear()
    if as_json:
        on = None if platform is None else {"file": platform, "options": list(simgrid_options)}
        print_json({**document(machine, model, compute, found), "platform": on})
    else:
        if not machine.kernels:
            click.echo(f"{machine_file} gives no kernels: copies, additions and compression take no time")
        if platform:
            click.echo(f"messages take the routes of {platform}, by SimGrid; latencies and bandwidths of "
                       f"{machine_file} do not count")
        report(found, f"{model.name}: {count(model.n, 'element')}, {digits(1e3 * compute)} ms of computing per step")
    if picture:
        from ..simulate.plot import plot

        file.write(lambda path: plot(path, found, f"{model.name}, {compute:g} s of computing per step", suffix))
        if not as_json:
            click.echo(f"picture in {picture}")


def _player(platform: str | None, options: tuple[str, ...]) -> Player:
    if platform is not None:
        return Platform(Path(platform), options)
    if options:
        raise InvalidArgument("--simgrid is for --platform FILE: give that, too, or leave it out")
    return replay


def _names(algorithms: tuple[str, ...], schemes: tuple[str, ...]) -> list[str]:
    names = plan.split_names(algorithms) or (BASELINE,)
    for name in names:
        allreduce.check_name(name)
    return [*names, *(str(simulated(text)) for text in plan.split_schemes(schemes))]


def _bounded(ratios: str | None) -> list[str]:
    return [bounded.name_of(word.strip()) for word in ratios.split(",")] if ratios else []


def _jitter(text: str, seed: int) -> Jitter:
    kind, _, seconds = text.partition(":")
    try:
        scale = float(seconds)
    except ValueError:
        scale = -1.0
    if kind not in DISTRIBUTIONS[1:] or not 0 <= scale <= machines.MOST_SECONDS:
        raise InvalidArgument("--jitter takes gaussian:SECONDS or exponential:SECONDS, from 0 to "
                              f"{machines.MOST_SECONDS:g}, got {text!r}")
    return Jitter(kind, scale, seed)


def document(machine: Machine, model: Model, compute: float, found: Sequence[Prediction]) -> dict[str, object]:
    """The JSON document of predictions."""
    dense = baselines(found)
    return {
        "format": "mpicomp-simulation", "version": 1, "machine": machines.dump(machine),
        "model": {"name": model.name, "elements": model.n, "flops": model.flops}, "compute": compute,
        "rows": [{**one.row(), "speed_up": dense[one.ranks] / one.step if one.step else None} for one in found],
    }


def baselines(found: Sequence[Prediction]) -> dict[int, float]:
    """The step of the first algorithm on each number of ranks."""
    return {one.ranks: one.step for one in reversed(found)}


def report(found: Sequence[Prediction], title: str) -> None:
    """Print a table, then each remark on recordings and assumptions once."""
    dense = baselines(found)
    print_table(COLUMNS, [cells(one, dense[one.ranks]) for one in found], title)
    say(f"times in ms; overlapped: exchanged beside the backward pass; {SENT}")
    remarks = [(f"{one.what}, {count(one.ranks, 'rank')}", (f"recorded: {one.recorded}", *one.notes)) for one in found]
    for text in dict.fromkeys(note for _, notes in remarks for note in notes):
        where = [name for name, notes in remarks if text in notes]
        say(f"{'; '.join(where) if len(where) < 4 else f'{len(where)} rows'}: {text}")


def cells(one: Prediction, dense: float) -> list[str]:
    times = (one.step, one.overlapped, one.exchange, one.local)
    return [str(one.ranks), one.what, *(digits(1e3 * seconds) for seconds in times), f"{one.share:.1%}",
            plan.show_size(one.bytes_sent + one.bytes_shared), f"{dense / one.step:.2f}" if one.step else "-"]
