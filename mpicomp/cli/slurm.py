"""``mpicomp slurm``: print job scripts for Slurm, the files of the folder ``slurm/`` with the user's values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from ..errors import InvalidArgument, MpicompError
from .options import Group, all_of

PACKAGE = Path(__file__).resolve().parents[1]
FOLDERS = (PACKAGE / "slurm", PACKAGE.parent / "slurm")  # where it was installed to; in a checkout
# The plain script for each kind of srun --mpi.
PLAIN = {None: "cpu-openmpi", "pmix": "cpu-openmpi", "pmi2": "cpu-mpich", "cray_shasta": "cpu-cray"}
TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}")  # minutes, m:s, h:m:s; days-hours, d-h:m, d-h:m:s
NAME = re.compile(r"[\w.,@+-]+")
DEFAULT_COMMAND = re.compile(r"^(\(\(\$#\)\) \|\| set -- ).*$", re.MULTILINE)


def read(name: str) -> str:
    """The text of a file of the folder."""
    for folder in FOLDERS:
        if (folder / name).is_file():
            return (folder / name).read_text()
    raise MpicompError(f"this installation lacks the job scripts ({name} in {FOLDERS[0]}): install mpicomp again")


def fill(name: str, directives: Mapping[str, object], command: list[str] | None, mpi: str | None = None) -> str:
    """The script ``name`` with the given values of #SBATCH lines, another default command, another ``srun --mpi``."""
    text = read(f"{name}.sbatch")
    for option, value in directives.items():
        if value is not None:
            text = _with_directive(text, f"--{option.replace('_', '-')}", str(value))
    if command is not None:
        text = DEFAULT_COMMAND.sub(lambda match: match[1] + shlex.join(command), text)
    return text if mpi is None else re.sub(r"(?<=srun --mpi=)(?!list)\w+", mpi, text)


def _with_directive(text: str, option: str, value: str) -> str:
    line = re.compile(rf"^##?SBATCH {option}=.*$", re.MULTILINE)
    return line.sub(lambda _: f"#SBATCH {option}={value}", text)


def default_command(name: str) -> list[str]:
    """The command that the script ``name`` runs without arguments."""
    found = DEFAULT_COMMAND.search(read(f"{name}.sbatch"))
    if found is None:
        raise MpicompError(f"the job script {name}.sbatch of this installation has no command: install mpicomp again")
    return shlex.split(found[0])[4:]


def _matching(pattern: re.Pattern[str], expected: str) -> Callable[..., str | None]:
    """A callback that checks the value of an option, which is copied into a script."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None and not pattern.fullmatch(value):
            raise InvalidArgument(f"{param.opts[0]} must be {expected}, got {value!r}")
        return value

    return check


_count, _name = click.IntRange(min=1), _matching(NAME, "a name as Slurm has them")
job_options = all_of(  # of both kinds of job
    click.option("--nodes", type=_count, metavar="N", help="Number of nodes."),
    click.option("--ntasks-per-node", type=_count, metavar="N", help="Ranks per node."),
    click.option("--cpus-per-task", type=_count, metavar="N", help="CPUs, and so threads, per rank."),
    click.option("--time", metavar="TIME", callback=_matching(TIME, "minutes, h:mm:ss or days-hours"),
                 help="Time limit: minutes, h:mm:ss or days-hours."),
    click.option("--partition", metavar="NAME", callback=_name, help="Name of the partition."),
    click.option("--account", metavar="NAME", callback=_name, help="Name of the account."),
    click.option("--mpi", type=click.Choice(["pmix", "pmi2", "cray_shasta"]),
                 help="Process manager interface: pmix for Open MPI, pmi2 for MPICH, cray_shasta for Cray's.  "
                      "[default: pmix]"),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]"),
)


@click.group(cls=Group)
def slurm() -> None:
    """Print job scripts for Slurm, with your values filled in.

    \b
    mpicomp slurm env > env.sh               adapt it to your site, once
    mpicomp slurm bench --nodes 8 > job.sbatch
    sbatch job.sbatch

    Lines that no option sets are those of the files in the folder slurm/.
    """


@slurm.command(epilog="For example: mpicomp slurm bench --nodes 8 --time 20 --array -- allgather --dtype float64")
@job_options
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs per node, one rank each.")
@click.option("--container", metavar="IMAGE", callback=_matching(re.compile(".+"), "the path of an image"),
              help="Run inside this Apptainer image.")
@click.option("--array", is_flag=True, help="One job per size, twice, and one that merges the results.")
def bench(mpi: str | None, arguments: tuple[str, ...], gpus: int | None, container: str | None, array: bool,
          **directives: int | str | None) -> None:  # fmt: skip
    """Print a job that runs mpicomp bench; its arguments follow --."""
    given = {"--gpus": (gpus, "gpu"), "--container": (container, "container"), "--array": (array, "bench-array")}
    chosen = {option: name for option, (value, name) in given.items() if value}
    if len(chosen) > 1:
        raise InvalidArgument(f"{' and '.join(chosen)} have scripts of their own: choose one")
    name = next(iter(chosen.values()), PLAIN[mpi])
    if gpus:
        directives["gpus_per_node"] = gpus
        directives["ntasks_per_node"] = directives["ntasks_per_node"] or gpus
        if arguments and not any(word.startswith("--device") for word in arguments):
            arguments = (*arguments, "--device", "gpu")
    text = fill(name, directives, ["bench", *arguments] if arguments else None, mpi)
    if container:
        text = text.replace("MPICOMP_IMAGE:-mpicomp.sif}", f"MPICOMP_IMAGE:-{shlex.quote(container)}}}")
    click.echo(text, nl=False)


@slurm.command(epilog="For example: mpicomp slurm train --nodes 4 --time 12:00:00 -- logreg --data rows.txt")
@job_options
@click.option("--requeue/--no-requeue", default=True,
              help="Write a checkpoint before the time limit, requeue and resume.")
def train(mpi: str | None, arguments: tuple[str, ...], requeue: bool, **directives: int | str | None) -> None:
    """Print a job that runs mpicomp train; its arguments follow --."""
    command = ["train", *arguments] if arguments else None
    if requeue and arguments and (arguments[0] == "heat" or "--ft" in arguments):
        raise InvalidArgument(f"{' '.join(arguments)} keeps no checkpoints to resume from: give --no-requeue")
    if requeue and any(word.split("=")[0] == "--trace" for word in arguments):  # the job's second start would meet it
        raise InvalidArgument("a trace holds one start of a job: leave --trace out and submit with MPICOMP_TRACE=run, "
                              "for run-0.h5, run-1.h5, ...; or give --no-requeue")  # fmt: skip
    if requeue:
        text = fill("train-requeue", directives, command, mpi)
    else:
        text = fill(PLAIN[mpi], directives, command or default_command("train-requeue"))
    click.echo(text, nl=False)


@slurm.command()
def env() -> None:
    """Print env.sh, which all scripts read: modules, Python, threads, MPI."""
    click.echo(read("env.sh"), nl=False)
