"""``mpicomp train language``: language models on words or characters, by PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import Command, option, section
from .loop import run
from .options import data, looping_with, recording, training

if TYPE_CHECKING:
    from ...apps.loop import Task
    from ...comm.comm import Comm

EXAMPLE = "mpirun -n 4 mpicomp train language --data wikitext-2 --scheme scalecom:chunk=100,beta=0.1"

text = section(
    "Data",
    data("Folder with WikiText's or Penn Treebank's three files (.xz, .gz, .bz2 or plain), a text file, or "
         "synthetic:tokens=20000,symbols=30,seed=1."),
    option("--level", type=click.Choice(["word", "char"]),
           help="Symbols of the text.  [default: words of a folder, characters of a file]"),
    option("--split", type=click.Choice(["valid", "test"]), default="valid", help="Part of the text for evaluation."),
    option("--tokens", type=int, metavar="N", help="Train on the first N symbols only."),
    option("--eval-tokens", type=int, metavar="N", help="Evaluate on the first N symbols only."),
)  # fmt: skip
model = section(
    "Model",
    option("--network", type=click.Choice(["lstm", "transformer"]), default="lstm",
           help="An LSTM whose state continues between windows, or a Transformer."),
    option("--width", type=int, default=128, help="Width of the embedding and of every layer."),
    option("--layers", type=int, default=1, help="Number of LSTM or attention layers."),
    option("--bptt", type=int, default=35, metavar="N", help="Symbols per window."),
    option("--dropout", type=float, default=0.0, help="Share of the neurons that dropout omits."),
    option("--tied/--untied", default=True, help="Use the embedding's weights in the last layer."),
)  # fmt: skip


@click.command(cls=Command, epilog=f"For example: {EXAMPLE}")
@text
@model
@training(epochs=3.0)
@looping_with(lr=1.0, batch=16, clip=0.25)
@recording
def language(source: str, level: str | None, split: str, tokens: int | None, eval_tokens: int | None,
             network: str, width: int, layers: int, bptt: int, dropout: float, tied: bool, **options: object) -> int:
    """Language models on words or characters, by PyTorch.

    Needs mpicomp[torch]. A row is a window of the text. Prints loss and perplexity on the held-out text against the
    bits sent per worker.
    """

    def make(comm: Comm, seed: int) -> Task:
        from ...apps.language import Language, check
        from ...apps.texts import share

        check(network, width, layers, bptt, dropout)
        return Language(share(comm, source, level, split, tokens, eval_tokens), seed, network, comm.rank, comm.size,
                        width=width, layers=layers, bptt=bptt, dropout=dropout, tied=tied)  # fmt: skip

    return run(make, f"train language {source} {network}", options)
