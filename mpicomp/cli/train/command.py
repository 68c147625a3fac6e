"""``mpicomp train``: train a model on real data with compression. One app per file."""

from __future__ import annotations

import click

from ..options import Group
from .ef_gdstar import ef_gdstar
from .heat import heat
from .language import language
from .logreg import logreg
from .mlp import mlp
from .recommend import recommend
from .vision import vision


@click.group(cls=Group)
def train() -> None:
    """Train a model on real data.

    heat trains nothing: it runs an ensemble of simulations with error-bounded means.

    With --checkpoint, SIGUSR1 and SIGTERM stop a run after its step with exit code 75; --resume continues it.
    """


for command in (ef_gdstar, heat, language, logreg, mlp, recommend, vision):
    train.add_command(command)
