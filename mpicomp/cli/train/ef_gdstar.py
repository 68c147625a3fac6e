"""``mpicomp train ef-gdstar``: full gradients, with error memory relative to the optimum's."""

from __future__ import annotations

from typing import Any

import click

from .logreg import run_logreg
from .options import recording, training

EXAMPLE = "mpirun -n 4 mpicomp train ef-gdstar --data a9a.gz --workers 20 --scheme threshold:lam=0.01 --shift 1"


@click.command("ef-gdstar", epilog=f"For example: {EXAMPLE}")
@click.option("--data", "source", required=True, metavar="FILE",
              help="LIBSVM text (plain, .gz, .bz2, .xz), .mat, or synthetic:n=2000,d=500,seed=1.")
@click.option("--rows", type=click.IntRange(min=2), metavar="N",
              help="Use only the first N rows.  [default: all; of madelon.mat its training set, 2000]")
@training(epochs=1000)
@click.option("--plain", is_flag=True, help="Without the gradients at the optimum: error-compensated gradient descent.")
@click.option("--shift", type=float, default=1e-4, show_default=True,
              help="Start this far from the minimum in every coordinate.")
@click.option("--l2", type=float, metavar="FLOAT", help="Weight of the regulariser.  [default: L/1e4]")
@click.option("--step-size", type=float, metavar="FLOAT", help="gamma.  [default: 1/(L + l2)]")
@click.option("--eval-every", type=int, default=50, show_default=True, metavar="STEPS",
              help="Steps between evaluations.")
@click.option("--target-bits", type=float, multiple=True, metavar="BITS",
              help="Evaluate, too, when a worker has sent this many bits; may be repeated.")
@recording
def ef_gdstar(plain: bool, **options: Any) -> int:
    """Logistic regression by full gradients and error memory (EF-GD*).

    What is compressed is their difference from those at the optimum. An epoch is one step. Prints the gap f(x) - f*
    against the bits each worker has sent; with a hard threshold hardly anything is sent near the optimum, where with
    --plain the workers go on sending what cancels out.
    """
    from ...apps.ef_gdstar import PlainRun, StarRun

    return run_logreg(PlainRun if plain else StarRun, **options)
