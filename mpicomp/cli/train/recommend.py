"""``mpicomp train recommend``: neural collaborative filtering on ratings, by PyTorch."""

from __future__ import annotations

from typing import Any

import click

from ..options import all_of
from .loop import run
from .options import looping_with, recording, training, whole_numbers

EXAMPLE = "mpirun -n 4 mpicomp train recommend --data ml-1m --workers 8 --scheme topk:density=0.05"

model = all_of(
    click.option("--network", type=click.Choice(["neumf", "gmf", "mlp"]), default="neumf", show_default=True,
                 help="Products of factors, layers, or (neumf) both."),
    click.option("--factors", type=int, default=8, show_default=True, help="Numbers in an embedding of gmf."),
    click.option("--layers", default="32,16,8", show_default=True, metavar="N,N,...",
                 help="Inputs and neurons of mlp; an embedding has half of the first."),
    click.option("--dropout", type=float, default=0.0, show_default=True, help="Share of the neurons left out."),
    click.option("--negatives", type=int, default=4, show_default=True, metavar="N",
                 help="Items not rated that are drawn for each pair, new ones every epoch."),
)


@click.command(epilog=f"For example: {EXAMPLE}")
@click.option("--data", "source", required=True, metavar="PATH",
              help="MovieLens ratings: u.data, ratings.dat or ratings.csv, or their folder, or "
                   "synthetic:users=200,items=300,each=12,seed=1.")
@model
@training(epochs=3.0)
@looping_with(lr=0.005, batch=256, optimizer="adam")
@recording
def recommend(source: str, network: str, factors: int, layers: str, dropout: float, negatives: int, seed: int,
              **options: Any) -> int:
    """Neural collaborative filtering on who rated what, by PyTorch.

    Needs mpicomp[torch]. Each user's latest rating is held out and ranked among 99 items not rated. Prints hit rate and
    NDCG at 10 against the bits each worker has sent.
    """
    sizes = whole_numbers(layers, "--layers")

    def make(comm: Any) -> Any:
        from ...apps.ratings import share
        from ...apps.recommend import Recommend, check

        check(network, factors, sizes, dropout, negatives)
        return Recommend(share(comm, source), seed, network, comm.rank, comm.size, factors=factors, layers=sizes,
                         dropout=dropout, negatives=negatives)  # fmt: skip

    return run(make, f"train recommend {source} {network} {options['scheme']}", seed=seed, **options)
