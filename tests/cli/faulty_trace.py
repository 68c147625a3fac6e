"""A command that records, and gets SIGTERM on every rank, all but rank 0 inside MPI: ``faulty_trace.py FILE``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import click

from mpicomp.cli import main
from mpicomp.cli.commands import COMMANDS, Entry

STEPS = 7


@click.command()
@click.argument("file")
def recording(file: str) -> None:
    from mpi4py import MPI

    import mpicomp

    world = MPI.COMM_WORLD
    with mpicomp.trace.Recorder(mpicomp.Comm(world), file) as trace:
        for step in range(STEPS):
            trace.event("compute", trace.now(), step=step)
        world.Barrier()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        if world.rank:
            world.Barrier()  # for ever: what waits here is interrupted by nothing in Python
        time.sleep(60)


if __name__ == "__main__":
    COMMANDS["recording"] = Entry("__main__:recording", "", mpi=True)
    main(["recording", *sys.argv[1:]])
