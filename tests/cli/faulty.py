"""A command that fails on purpose, run in place of ``mpicomp``: ``python faulty.py HOW RANK``."""

from __future__ import annotations

import os
import signal
import sys
import time

import click

from mpicomp.cli import main
from mpicomp.cli.commands import COMMANDS, Entry
from mpicomp.errors import InvalidArgument


def leave(code: int) -> None:
    raise SystemExit(code)


def refuse() -> None:
    raise InvalidArgument("density must be in (0, 1], got 1.5")


def crash() -> None:
    raise ZeroDivisionError("a bug")


def usage() -> None:
    raise click.UsageError("no such thing")


def signal_self(signum: int) -> None:
    os.kill(os.getpid(), signum)
    time.sleep(60)


WAYS = {
    "refuse": refuse,
    "crash": crash,
    "usage": usage,
    "leave0": lambda: leave(0),
    "leave3": lambda: leave(3),
    "interrupt": lambda: signal_self(signal.SIGINT),
    "terminate": lambda: signal_self(signal.SIGTERM),
    "none": lambda: None,
}


@click.command()
@click.argument("how", type=click.Choice(list(WAYS)))
@click.argument("ranks")
def fault(how: str, ranks: str) -> None:
    """Fail as told on RANKS ("all", or one); the others wait in a collective."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    print(f"started {world.rank}", flush=True)
    if ranks in ("all", str(world.rank)):
        WAYS[how]()
    if how != "none":
        world.Barrier()  # blocks for ever if a rank has failed


if __name__ == "__main__":
    COMMANDS["fault"] = Entry("__main__:fault", "", mpi=True)
    main(["fault", *sys.argv[1:]])
