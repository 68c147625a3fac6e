"""``mpicomp train recommend``: neural collaborative filtering on ratings, by PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import Command, option, section
from .loop import run
from .options import data, looping_with, recording, training, whole_numbers

if TYPE_CHECKING:
    from ...apps.loop import Task
    from ...comm.comm import Comm

EXAMPLE = "mpirun -n 4 mpicomp train recommend --data ml-1m --workers 8 --scheme topk:density=0.05"

model = section(
    "Data and model",
    data("MovieLens ratings: u.data, ratings.dat or ratings.csv, or their folder, or "
         "synthetic:users=200,items=300,each=12,seed=1."),
    option("--network", type=click.Choice(["neumf", "gmf", "mlp"]), default="neumf",
           help="Products of factors, layers, or (neumf) both."),
    option("--factors", type=int, default=8, help="Length of an embedding of gmf."),
    option("--layers", default="32,16,8", metavar="N,N,...",
           help="Inputs and neurons of mlp; an embedding has half of the first."),
    option("--dropout", type=float, default=0.0, help="Share of the neurons that dropout omits."),
    option("--negatives", type=int, default=4, metavar="N",
           help="Random unrated items per pair, new ones every epoch."),
)  # fmt: skip


@click.command(cls=Command, epilog=f"For example: {EXAMPLE}")
@model
@training(epochs=3.0)
@looping_with(lr=0.005, batch=256, optimizer="adam")
@recording
def recommend(source: str, network: str, factors: int, layers: str, dropout: float, negatives: int,
              **options: object) -> int:
    """Neural collaborative filtering on ratings, by PyTorch.

    Needs mpicomp[torch]. Each user's latest rating is held out and ranked among 99 unrated items. Prints hit rate and
    NDCG at 10 against the bits sent per worker.
    """
    sizes = whole_numbers(layers, "--layers")

    def make(comm: Comm, seed: int) -> Task:
        from ...apps.ratings import share
        from ...apps.recommend import Recommend, check

        check(network, factors, sizes, dropout, negatives)
        return Recommend(share(comm, source), seed, network, comm.rank, comm.size, factors=factors, layers=sizes,
                         dropout=dropout, negatives=negatives)  # fmt: skip

    return run(make, f"train recommend {source} {network}", options)
