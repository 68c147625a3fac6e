"""``mpicomp train``: train a model on real data with compression. One app per file."""

from __future__ import annotations

import click

from ..options import Group
from .ef_gdstar import ef_gdstar
from .language import language
from .logreg import logreg
from .mlp import mlp
from .recommend import recommend
from .vision import vision


@click.group(cls=Group)
def train() -> None:
    """Train a model on real data.

    With --checkpoint, SIGUSR1 and SIGTERM stop a run after its step with exit code 75; --resume continues it.
    """


for command in (ef_gdstar, language, logreg, mlp, recommend, vision):
    train.add_command(command)
