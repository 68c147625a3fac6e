"""``mpicomp train``: train a model on real data, and see what compression costs and saves. One app a file."""

from __future__ import annotations

import click

from .train_logreg import logreg


@click.group()
def train() -> None:
    """Train a model on real data.

    With --checkpoint, SIGUSR1 and SIGTERM stop a run after its step with exit code 75; --resume goes on from there.
    """


for command in (logreg,):
    train.add_command(command)
