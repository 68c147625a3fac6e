"""``mpicomp train vision``: convolutional networks on images, by PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import Command, option, section
from .loop import run
from .options import IMAGES, data, looping, recording, training

if TYPE_CHECKING:
    from ...apps.loop import Task
    from ...comm.comm import Comm

EXAMPLE = "mpirun -n 4 mpicomp train vision --data fashion-mnist --network resnet8 --scheme powersgd:rank=4"


@click.command(cls=Command, epilog=f"For example: {EXAMPLE}")
@section(
    "Data and model",
    data(IMAGES),
    option("--network", type=click.Choice(["cnn", "resnet8", "resnet18"]), default="cnn",
           help="A small CNN (215 000 parameters), ResNet-8 (78 000) or ResNet-18 (11.2 million)."),
    option("--augment/--no-augment", default=None,
           help="Shift and mirror training images at random.  [default: images in colour]"),
)
@training(epochs=3.0)
@looping
@recording
def vision(source: str, network: str, augment: bool | None, **options: object) -> int:
    """Convolutional networks on small images, by PyTorch.

    Needs mpicomp[torch]. The images have ten classes. Prints loss and accuracy on the test images against the bits
    sent per worker.
    """

    def make(comm: Comm, seed: int) -> Task:
        from ...apps.images import share
        from ...apps.vision import Vision

        return Vision(share(comm, source), seed, network, comm.rank, comm.size, augment)

    return run(make, f"train vision {source} {network}", options)
