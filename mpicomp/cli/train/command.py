"""``mpicomp train``: train a model on real data with compression. One app per file."""

from __future__ import annotations

import click

from ...errors import SKIPPING, NonFiniteGradient
from ..options import Group
from .ef_gdstar import ef_gdstar
from .heat import heat
from .language import language
from .logreg import logreg
from .mlp import mlp
from .recommend import recommend
from .vision import vision


class TrainGroup(Group):
    """A group whose errors about NaN in gradients advise an option instead of the library's argument."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except NonFiniteGradient as error:
            what = str(error).replace(f". {SKIPPING}", "")
            error.args = (f"{what}. If training diverged, take a smaller --lr or --step-size",)
            raise


@click.group(cls=TrainGroup)
def train() -> None:
    """Train a model on real data.

    heat trains nothing: it runs an ensemble of simulations with error-bounded means.

    With --checkpoint, SIGUSR1 and SIGTERM stop a run after its step with exit code 75; --resume continues it.
    """


for command in (ef_gdstar, heat, language, logreg, mlp, recommend, vision):
    train.add_command(command)
