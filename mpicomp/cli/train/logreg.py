"""``mpicomp train logreg``: logistic regression; prints the gap to the minimum against the bits sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from ..mpi import all_ranks
from ..options import Command, Decorator, option, section
from . import fault_tolerant
from .logreg_report import line, show
from .options import Files, Session, data, exit_code, recorded, recording, session, split, training

if TYPE_CHECKING:
    from ...apps.logreg import Run
    from ...apps.logreg_result import Evaluation
    from ...apps.settings import Settings
    from ...comm.comm import Comm

rows_of_data = section(
    "Data",
    data("LIBSVM text (plain, .gz, .bz2, .xz), .mat, or synthetic:n=2000,d=500,seed=1.", "FILE"),
    option("--rows", type=click.IntRange(min=2), metavar="N",
           help="Use only the first N rows.  [default: all; of madelon.mat its training set, 2000]"),
)  # fmt: skip


def problem(eval_every: int | None) -> Decorator:
    """Options of the optimization problem and its evaluation."""
    return section(
        "Problem",
        option("--shift", type=float, default=1e-4, help="Distance of the start from the minimum in every coordinate."),
        option("--l2", type=float, metavar="FLOAT", help="Weight of the regulariser.  [default: L/1e4]"),
        option("--step-size", type=float, metavar="FLOAT", help="Step size gamma.  [default: 1/(L + l2)]"),
        option("--eval-every", type=int, default=eval_every, metavar="STEPS",
               help="Steps between evaluations." + "  [default: one epoch]" * (eval_every is None)),
        option("--target-bits", type=float, multiple=True, metavar="BITS",
               help="Also evaluate when a worker has sent this many bits; may be repeated."),
    )  # fmt: skip


EXAMPLE = "mpirun -n 4 mpicomp train logreg --data madelon.mat --workers 20 --scheme threshold:lam=14881"


@click.command(cls=Command, epilog=f"For example: {EXAMPLE}")
@rows_of_data
@training(epochs=30)
@problem(eval_every=None)
@section(
    "Reliability",
    option("--ft", is_flag=True,
           help="Continue without ranks that die: Open MPI under mpirun --with-ft ulfm (docs/reliability.md)."),
)
@recording
def logreg(source: str, rows: int | None, ft: bool, **options: object) -> int:
    """Logistic regression by distributed SGD, from near its minimum.

    Prints how far f(x) is above its minimum f* (the gap) against the bits each worker has sent. The scheme's options
    lam, unit and clip are on the gradient's scale.
    """
    return fault_tolerant.run(source, rows, options) if ft else run_logreg(None, source, rows, options)


def run_logreg(kind: type[Run] | None, source: str, rows: int | None, options: Mapping[str, object]) -> int:
    """Train with steps of a ``kind`` (None: the app's own) and report; returns the exit code (collective)."""
    from ...apps.settings import Settings

    files, settings = split(options)
    comm = all_ranks()
    with session(comm, files) as running:
        _train(comm, kind, source, rows, Settings(**settings), files, running)
        return exit_code(comm, running.keeper, running.signals)


def _train(comm: Comm, kind: type[Run] | None, source: str, rows: int | None, settings: Settings, files: Files,
           running: Session) -> None:  # fmt: skip
    """Train, and print the report."""
    from ...apps.data import share
    from ...apps.logreg import check
    from ...apps.logreg import train as train_logreg

    progress, keeper = running.progress, running.keeper
    progress(f"reading {source}")
    shard = share(comm, source, rows)
    check(comm, shard, settings, keeper)  # before a trace is opened
    progress("finding the minimum")

    def say(evaluation: Evaluation, steps: int) -> None:
        progress(line(evaluation, steps), evaluation.step / steps)

    app = "logreg" if kind is None else kind.app
    recorded(comm, files, f"train {app} {source} {settings.scheme}", progress,
             lambda record, done: train_logreg(comm, shard, settings, record, say, keeper, kind, done),
             lambda result: show(result, files.as_json, app))
