"""``mpicomp train``: train a model on real data, and see what compression costs and saves. One app a file."""

from __future__ import annotations

import click

from .ef_gdstar import ef_gdstar
from .language import language
from .logreg import logreg
from .mlp import mlp
from .recommend import recommend
from .vision import vision


@click.group()
def train() -> None:
    """Train a model on real data.

    With --checkpoint, SIGUSR1 and SIGTERM stop a run after its step with exit code 75; --resume goes on from there.
    """


for command in (ef_gdstar, language, logreg, mlp, recommend, vision):
    train.add_command(command)
