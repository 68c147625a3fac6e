"""The table of commands."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One command: its module is imported when it is used."""

    target: str  # "module:attribute" of the click command
    summary: str  # repeated here so that --help imports no command
    mpi: bool = False  # runs on every rank, under the guard
    singleton: bool = False  # may run if MPI does not see the launcher's other processes


COMMANDS = {
    "advise": Entry("mpicomp.cli.advise:advise", "Predict if compression makes this job faster.", mpi=True),
    "bench": Entry("mpicomp.cli.bench.command:bench", "Measure collectives, dense and compressed.", mpi=True),
    "check-part": Entry("mpicomp.cli.check_part:check_part", "Check your own part of a scheme.", mpi=True),
    "completion": Entry("mpicomp.cli.completion:completion", "Print the completion script of a shell."),
    "info": Entry("mpicomp.cli.info:info", "Check launcher, MPI, devices, binding.", mpi=True, singleton=True),
    "schemes": Entry("mpicomp.cli.schemes:schemes", "List the compression schemes and their options."),
    "simulate": Entry("mpicomp.cli.simulate:simulate", "Predict steps on a machine described in a file."),
    "slurm": Entry("mpicomp.cli.slurm:slurm", "Print job scripts for Slurm, with your values filled in."),
    "trace": Entry("mpicomp.cli.trace.command:trace", "Explain a recorded run."),
    "train": Entry("mpicomp.cli.train.command:train", "Train a model on real data.", mpi=True),
    "tune": Entry("mpicomp.cli.tune:tune", "Measure which all-reduce is fastest here.", mpi=True),
}
