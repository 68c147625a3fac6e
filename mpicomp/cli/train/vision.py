"""``mpicomp train vision``: convolutional networks on images, by PyTorch."""

from __future__ import annotations

from typing import Any

import click

from .loop import run
from .options import looping, recording, training

EXAMPLE = "mpirun -n 4 mpicomp train vision --data fashion-mnist --network resnet8 --scheme powersgd:rank=4"


@click.command(epilog=f"For example: {EXAMPLE}")
@click.option("--data", "source", required=True, metavar="PATH",
              help="Folder with the four IDX files of MNIST or Fashion-MNIST (.gz or not), or with CIFAR-10's binary "
                   "version, or with one folder of JPEG files per class; a .npz archive of JPEG images; or "
                   "synthetic:train=2000,test=500,channels=3.")
@click.option("--network", type=click.Choice(["cnn", "resnet8", "resnet18"]), default="cnn", show_default=True,
              help="A small CNN (215 000 parameters), ResNet-8 (78 000) or ResNet-18 (11.2 million).")
@click.option("--augment/--no-augment", default=None,
              help="Shift and mirror training images at random.  [default: those in colour]")
@training(epochs=3.0)
@looping
@recording
def vision(source: str, network: str, augment: bool | None, seed: int, **options: Any) -> int:
    """Convolutional networks on small images, by PyTorch.

    Needs mpicomp[torch]. The images are of ten classes. Prints loss and accuracy on the test images against the bits
    each worker has sent.
    """

    def make(comm: Any) -> Any:
        from ...apps.images import share
        from ...apps.vision import Vision

        return Vision(share(comm, source), seed, network, comm.rank, comm.size, augment)

    return run(make, f"train vision {source} {network} {options['scheme']}", seed=seed, **options)
