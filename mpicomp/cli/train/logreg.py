"""``mpicomp train logreg``: how far the objective is above its minimum, against the bits sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..console import Column, print_json, print_table
from ..guard import world
from .options import Session, exit_code, recorder, recording, session, training

if TYPE_CHECKING:
    from ...apps.logreg import Run
    from ...apps.logreg_result import Evaluation, Result
    from ...apps.settings import Settings

TABLE_ROWS = 12  # of the curve; --json has every point
EXAMPLE = "mpirun -n 4 mpicomp train logreg --data madelon.mat --workers 20 --scheme threshold:lam=14881"
COLUMNS = [Column(title) for title in ("step", "epoch", "bits", "gap", "density", "total error", "memory norm")]


@click.command(epilog=f"For example: {EXAMPLE}")
@click.option("--data", "source", required=True, metavar="FILE",
              help="LIBSVM text (plain, .gz, .bz2, .xz), .mat, or synthetic:n=2000,d=500,seed=1.")
@click.option("--rows", type=click.IntRange(min=2), metavar="N",
              help="Use only the first N rows.  [default: all; of madelon.mat its training set, 2000]")
@training(epochs=30)
@click.option("--shift", type=float, default=1e-4, show_default=True,
              help="Start this far from the minimum in every coordinate.")
@click.option("--l2", type=float, metavar="FLOAT", help="Weight of the regulariser.  [default: L/1e4]")
@click.option("--step-size", type=float, metavar="FLOAT", help="gamma.  [default: 1/(L + l2)]")
@click.option("--eval-every", type=int, metavar="STEPS", help="Steps between evaluations.  [default: one epoch]")
@click.option("--target-bits", type=float, multiple=True, metavar="BITS",
              help="Evaluate, too, when a worker has sent this many bits; may be repeated.")
@click.option("--ft", is_flag=True,
              help="Go on without ranks that die: Open MPI under mpirun --with-ft ulfm (docs/reliability.md).")
@recording
def logreg(ft: bool, **options: Any) -> int:
    """Logistic regression by distributed SGD, from near its minimum.

    Prints how far f(x) is above its minimum f* (the gap) against the bits each worker has sent. The scheme's options
    lam, unit and clip are on the gradient's scale.
    """
    if ft:
        from . import fault_tolerant

        return fault_tolerant.run(**options)
    return run_logreg(None, **options)


def run_logreg(kind: type[Run] | None, *, source: str, rows: int | None, trace: str | None, force: bool,
               checkpoint: str | None, checkpoint_every: int | None, resume: bool, as_json: bool,
               **options: Any) -> int:
    """Train with steps of a ``kind`` (None: the app's own) and report; the exit code (collective)."""
    from ...apps.settings import Settings
    from ...comm.comm import Comm

    comm = Comm(world())
    with session(comm, checkpoint=checkpoint, checkpoint_every=checkpoint_every, resume=resume,
                 as_json=as_json) as running:  # fmt: skip
        result = _train(comm, kind, source, rows, Settings(**options), trace, force, running)
        code = exit_code(comm, running.keeper, running.signals)
    if comm.rank == 0:
        show(result, trace, as_json, _name(kind))
    return code


def show(result: Result, trace: str | None, as_json: bool, app: str = "logreg", **more: Any) -> None:
    """Print a finished run; ``more`` goes into the JSON document."""
    if as_json:
        print_json({"format": f"mpicomp-train-{app}", "version": 1, **result.to_dict(), **more})
    else:
        _print(result, trace)


def _name(kind: type[Run] | None) -> str:
    return "logreg" if kind is None else kind.app


def _train(comm: Any, kind: type[Run] | None, source: str, rows: int | None, settings: Settings, trace: str | None,
           force: bool, running: Session) -> Result:  # fmt: skip
    from ...apps.data import share
    from ...apps.logreg import check
    from ...apps.logreg import train as train_logreg

    progress, keeper = running.progress, running.keeper
    progress(f"reading {source}")
    data = share(comm, source, rows)
    check(comm, data, settings, keeper)  # before a trace is begun
    progress("finding the minimum")

    def say(evaluation: Evaluation, steps: int) -> None:
        progress(line(evaluation, steps), evaluation.step / steps)

    with recorder(comm, trace, force, f"train {_name(kind)} {source} {settings.scheme}") as record:
        return train_logreg(comm, data, settings, record, say, keeper, kind)


def line(evaluation: Evaluation, steps: int) -> str:
    return f"step {evaluation.step}/{steps}: gap {evaluation.gap:.4g} after {evaluation.bits:.4g} bits a worker"


def _print(result: Result, trace: str | None) -> None:
    """The problem, the curve and the totals, for people."""
    problem, facts, seconds = result.problem, result.data, result.seconds
    click.echo(
        f"{facts['name']}, {facts['rows']} rows, {facts['features']} features\n"
        f"{facts['workers']} workers on {facts['ranks']} rank{'s' * (facts['ranks'] > 1)}, "
        f"scheme {result.settings.scheme}, seed {result.settings.seed}\n"
        f"L {problem.smoothness:.6f}  l2 {problem.l2:.6g}  gamma {problem.step_size:.7e}\n"
        f"f* {problem.f_star:.9f}  f(x0) {result.f_start:.9f}\n"
    )
    print_table(COLUMNS, _rows(_thinned(result.series)), "bits: sent by a worker so far; gap: f(x) - f*")
    if result.targets:
        click.echo()
        print_table(COLUMNS, _rows(result.targets), "the first step that reached each --target-bits")
    click.echo(
        f"\n{result.steps} steps in {seconds['steps']:.2f} s ({1e3 * seconds['steps'] / result.steps:.2f} ms a step); "
        f"minimum {seconds['minimum']:.2f} s, evaluations {seconds['evaluations']:.2f} s; "
        f"a rank sent {result.bytes_sent:,.0f} bytes on average"
    )
    if trace is not None:
        click.echo(f"trace in {trace}: explain it with mpicomp trace report {trace}")


def _thinned(series: list[Evaluation]) -> list[Evaluation]:
    """Evenly spread points of the curve, the last among them."""
    stride = max(1, -(-len(series) // TABLE_ROWS))
    return series[::-1][::stride][::-1]


def _rows(evaluations: list[Evaluation]) -> list[list[str]]:
    return [
        [str(e.step), f"{e.epoch:.2f}", f"{e.bits:.4g}", f"{e.gap:.4g}", f"{e.density:.3e}",
         f"{e.total_error:.4g}", f"{e.memory_norm:.4g}"]
        for e in evaluations
    ]  # fmt: skip
