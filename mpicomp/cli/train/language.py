"""``mpicomp train language``: language models on words or characters, by PyTorch."""

from __future__ import annotations

from typing import Any

import click

from ..options import all_of
from .loop import run
from .options import looping_with, recording, training

EXAMPLE = "mpirun -n 4 mpicomp train language --data wikitext-2 --scheme scalecom:chunk=100,beta=0.1"

text = all_of(
    click.option("--data", "source", required=True, metavar="PATH",
                 help="Folder with WikiText's or Penn Treebank's three files (.xz, .gz, .bz2 or plain), a text file, "
                      "or synthetic:tokens=20000,symbols=30,seed=1."),
    click.option("--level", type=click.Choice(["word", "char"]),
                 help="What a text is made of.  [default: words of a folder, characters of a file]"),
    click.option("--split", type=click.Choice(["valid", "test"]), default="valid", show_default=True,
                 help="What to evaluate on."),
    click.option("--tokens", type=int, metavar="N", help="Train on the first N symbols only."),
    click.option("--eval-tokens", "held_out", type=int, metavar="N", help="Evaluate on the first N symbols only."),
)
model = all_of(
    click.option("--network", type=click.Choice(["lstm", "transformer"]), default="lstm", show_default=True,
                 help="An LSTM with a state that goes on, or a Transformer."),
    click.option("--width", type=int, default=128, show_default=True, help="Of the embedding and of every layer."),
    click.option("--layers", type=int, default=1, show_default=True, help="Of LSTM or attention."),
    click.option("--bptt", type=int, default=35, show_default=True, metavar="N", help="Symbols in a window."),
    click.option("--dropout", type=float, default=0.0, show_default=True, help="Share of the neurons left out."),
    click.option("--tied/--untied", default=True, show_default=True,
                 help="Whether the last layer has the embedding's weights."),
)


@click.command(epilog=f"For example: {EXAMPLE}")
@text
@model
@training(epochs=3.0)
@looping_with(lr=1.0, batch=16, clip=0.25)
@recording
def language(source: str, level: str | None, split: str, tokens: int | None, held_out: int | None, network: str,
             width: int, layers: int, bptt: int, dropout: float, tied: bool, seed: int, **options: Any) -> int:
    """Language models on words or characters, by PyTorch.

    Needs mpicomp[torch]. A row is a window of the text. Prints loss and perplexity on the held-out text against the
    bits each worker has sent.
    """

    def make(comm: Any) -> Any:
        from ...apps.language import Language, check
        from ...apps.texts import share

        check(network, width, layers, bptt, dropout)
        return Language(share(comm, source, level, split, tokens, held_out), seed, network, comm.rank, comm.size,
                        width=width, layers=layers, bptt=bptt, dropout=dropout, tied=tied)  # fmt: skip

    return run(make, f"train language {source} {network} {options['scheme']}", seed=seed, **options)
