"""``mpicomp train logreg``: how far the objective is above its minimum, against the bits sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..guard import world
from . import fault_tolerant
from .logreg_report import line, show
from .options import Session, exit_code, recorder, recording, session, training

if TYPE_CHECKING:
    from ...apps.logreg import Run
    from ...apps.logreg_result import Evaluation, Result
    from ...apps.settings import Settings

EXAMPLE = "mpirun -n 4 mpicomp train logreg --data madelon.mat --workers 20 --scheme threshold:lam=14881"


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
        return fault_tolerant.run(**options)
    return run_logreg(None, **options)


def run_logreg(kind: type[Run] | None, *, source: str, rows: int | None, trace: str | None, force: bool,
               checkpoint: str | None, checkpoint_every: int | None, resume: bool, as_json: bool,
               **options: Any) -> int:
    """Train with steps of a ``kind`` (None: the app's own) and report; the exit code (collective)."""
    from ...apps.settings import Settings
    from ...comm.comm import Comm

    comm = Comm(world())
    with session(comm, checkpoint=checkpoint, checkpoint_every=checkpoint_every, resume=resume) as running:
        result = _train(comm, kind, source, rows, Settings(**options), trace, force, running)
        code = exit_code(comm, running.keeper, running.signals)
    if comm.rank == 0:
        show(result, trace, as_json, _name(kind))
    return code


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
