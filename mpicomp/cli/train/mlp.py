"""``mpicomp train mlp``: a multi-layer perceptron on images, without a framework."""

from __future__ import annotations

from typing import Any

import click

from .loop import run
from .options import looping, recording, training, whole_numbers

EXAMPLE = "mpirun -n 4 mpicomp train mlp --data fashion-mnist --workers 8 --scheme topk:density=0.01 --plot run.png"


@click.command(epilog=f"For example: {EXAMPLE}")
@click.option("--data", "source", required=True, metavar="PATH",
              help="Folder with the four IDX files of MNIST or Fashion-MNIST (.gz or not), or with CIFAR-10's binary "
                   "version, or with one folder of JPEG files per class; a .npz archive of JPEG images; or "
                   "synthetic:train=2000,test=500,channels=3.")
@click.option("--hidden", default="256,128", show_default=True, metavar="N,N,...", help="Neurons of the hidden layers.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True,
              help="NumPy, or CuPy with one GPU a rank.")
@training(epochs=3.0)
@looping
@recording
def mlp(source: str, hidden: str, device: str, seed: int, **options: Any) -> int:
    """A perceptron on small images, by NumPy or CuPy.

    The images are of ten classes. Prints loss and accuracy on the test images against the bits each worker has
    sent.
    """

    def make(comm: Any) -> Any:
        from ...apps.devices import on_device
        from ...apps.images import share
        from ...apps.mlp import MLP

        data = share(comm, source)
        return MLP(data, seed, comm.rank, comm.size, whole_numbers(hidden, "--hidden"), on_device(comm, device))

    return run(make, f"train mlp {source} {options['scheme']}", seed=seed, **options)
