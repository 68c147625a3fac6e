"""``mpicomp train ef-gdstar``: full gradients, with error memory relative to the optimum's."""

from __future__ import annotations

import click

from ..options import Command, option, section
from .logreg import problem, rows_of_data, run_logreg
from .options import recording, training

EXAMPLE = "mpirun -n 4 mpicomp train ef-gdstar --data a9a.gz --workers 20 --scheme threshold:lam=0.01 --shift 1"


@click.command("ef-gdstar", cls=Command, epilog=f"For example: {EXAMPLE}")
@rows_of_data
@training(epochs=1000)
@section(
    "Algorithm",
    option("--plain", is_flag=True, help="Error-compensated gradient descent, without the gradients at the optimum."),
)
@problem(eval_every=50)
@recording
def ef_gdstar(source: str, rows: int | None, plain: bool, **options: object) -> int:
    """Logistic regression by full gradients and error memory (EF-GD*).

    Workers compress the difference of their gradients from those at the optimum. An epoch is one step. Prints the gap
    f(x) - f* against the bits sent per worker; with a hard threshold the workers send almost nothing near the optimum,
    while with --plain they go on sending values that cancel out.
    """
    from ...apps.ef_gdstar import PlainRun, StarRun

    return run_logreg(PlainRun if plain else StarRun, source, rows, options)
