"""``mpicomp train heat``: an ensemble of simulations whose mean is taken with an error bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..._util.plurals import count
from ..console import Column, SteadyProgress, print_json, print_table
from ..mpi import all_ranks
from ..options import OUTPUT, Choice, Command, as_json, option, section
from .options import Files, recorded, thinned

if TYPE_CHECKING:
    from ...apps.heat import Point, Result

TABLE_ROWS = 10  # of the course; --json has every point
EXAMPLE = "mpirun -n 4 mpicomp train heat --bound 1e-4 --trace run.h5"
COLUMNS = [Column(title) for title in ("step", "energy", "energy change", "spread", "discretisation", "difference",
                                       "largest", "ratio")]  # fmt: skip


@click.command(cls=Command, epilog=f"For example: {EXAMPLE}")
@section(
    "Simulation",
    option("--grid", type=int, default=64, metavar="N", help="Points per axis of the cube."),
    option("--members", type=int, default=2, metavar="N", help="Members of the ensemble per rank."),
    option("--steps", type=int, default=200, help="Time steps."),
    option("--every", type=int, default=10, metavar="STEPS", help="Steps between means over the ensemble."),
    option("--relax", type=float, default=0.5, metavar="SHARE",
           help="Share of its distance to the mean by which a member moves."),
    option("--seed", type=int, default=0, help="Seed of the initial field and of the members' sources."),
)
@section(
    "Error bound",
    option("--bound", type=float, default=1e-4, metavar="E", help="Error bound of the mean."),
    option("--relative/--absolute", default=True, help="The bound is a share of the field's range, or a value."),
    option("--algorithm", type=Choice(["auto", "two_hops"]), default="two_hops",
           help="two_hops always exchanges codes; auto runs the exact all-reduce if codes would not be faster, as on "
                "one node."),
)
@section(
    "Output",
    option("--trace", type=OUTPUT, metavar="FILE", help="Record every step in this HDF5 file, for mpicomp trace."),
    option("--force", is_flag=True, help="Replace an existing trace."),
    as_json,
)
def heat(trace: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """An ensemble of heat equations with error-bounded means.

    Members relax to the mean over all ranks, which is taken exactly in one copy of the ensemble and with an error
    bound in another. Prints how far the copies differ, against the discretisation error and the ensemble's spread.
    """
    from ...apps.heat import Settings, simulate

    settings, comm = Settings(**options), all_ranks()
    files = Files(None, None, False, trace, force, as_json)
    title = f"train heat {settings.bound:g}"
    with SteadyProgress(quiet=comm.rank != 0) as progress:
        recorded(comm, files, title, progress,
                 lambda record, done: simulate(comm, settings, record,
                                               lambda point: progress(_line(point), point.step / settings.steps)),
                 lambda result: _show(result, as_json))  # fmt: skip


def _line(point: Point) -> str:
    return f"step {point.step}: difference {point.difference:.2e}, discretisation error {point.discretisation:.2e}"


def _show(result: Result, as_json: bool) -> None:
    if as_json:
        print_json({"format": "mpicomp-train-heat", "version": 1, **result.to_dict()})
    else:
        _print(result)


def _print(result: Result) -> None:
    """The course and the totals, for people."""
    settings, series, seconds = result.settings, result.series, result.seconds
    last, means = series[-1], len(series)
    click.echo(
        f"{count(settings.members * result.ranks, 'member')} on {count(result.ranks, 'rank')}, "
        f"{settings.grid}^3 float32, a mean every {count(settings.every, 'step')}, bound {settings.bound:g}"
        f"{' relative' * settings.relative}\n"
    )
    print_table(COLUMNS, [_row(point) for point in thinned(series, TABLE_ROWS)],
                "root mean squares of the mean field; energy change and difference: against exact means")  # fmt: skip
    scales = {"the discretisation error": last.discretisation, "the spread of the members": last.spread}
    compared = ", ".join(f"{last.difference / scale:.2g} times {name}" for name, scale in scales.items() if scale)
    click.echo(
        f"\nafter {count(last.step, 'step')} the error bound changes the mean by {last.difference:.1e}: {compared}\n"
        f"{last.ran}; ratio {last.ratio:.1f}; a mean took {1e3 * seconds['bounded'] / means:.2f} ms, exact "
        f"{1e3 * seconds['exact'] / means:.2f} ms; steps of both copies {seconds['steps']:.2f} s"
    )


def _row(point: Point) -> list[str]:
    return [str(point.step), f"{point.energy:.5f}", f"{point.energy_change:+.1e}", f"{point.spread:.2e}",
            f"{point.discretisation:.2e}", f"{point.difference:.2e}", f"{point.largest:.2e}",
            f"{point.ratio:.2f}"]  # fmt: skip
