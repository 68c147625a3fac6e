"""``mpicomp train mlp``: a multi-layer perceptron on images, without a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import Command, option, section
from .loop import run
from .options import IMAGES, data, looping, recording, training, whole_numbers

if TYPE_CHECKING:
    from ...apps.loop import Task
    from ...comm.comm import Comm

EXAMPLE = "mpirun -n 4 mpicomp train mlp --data fashion-mnist --workers 8 --scheme topk:density=0.01 --plot run.png"


@click.command(cls=Command, epilog=f"For example: {EXAMPLE}")
@section(
    "Data and model",
    data(IMAGES),
    option("--hidden", default="256,128", metavar="N,N,...", help="Neurons of the hidden layers."),
    option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", help="NumPy, or CuPy with one GPU per rank."),
)
@training(epochs=3.0)
@looping
@recording
def mlp(source: str, hidden: str, device: str, **options: object) -> int:
    """A perceptron on small images, by NumPy or CuPy.

    The images have ten classes. Prints loss and accuracy on the test images against the bits sent per worker.
    """

    def make(comm: Comm, seed: int) -> Task:
        from ...apps.devices import on_device
        from ...apps.images import share
        from ...apps.mlp import MLP

        return MLP(share(comm, source), seed, comm.rank, comm.size, whole_numbers(hidden, "--hidden"),
                   on_device(comm, device))  # fmt: skip

    return run(make, f"train mlp {source}", options)
