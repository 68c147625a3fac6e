"""``mpicomp check-part``: the promises that every scheme keeps, checked on a part of one's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .._util.plurals import count
from .._util.subprocesses import python
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument, MpicompError
from ..reducer import part_checks
from ..reducer.part_checks import PROMISES, PROTOCOL, Row, Subject
from . import inputs, mpi
from .console import Column, Progress, print_json, print_table, say
from .options import Command

if TYPE_CHECKING:
    from ..comm.comm import Comm

RANKS = 3  # of the job that is started, without a launcher
WRONG = 2  # exit code
COLUMNS = [Column("promise", left=True), Column("ranks"), Column("passed", left=True)]
PASSED = {True: "yes", False: "WRONG", None: "-"}
NAMES = (PROTOCOL, *(promise.name for promise in PROMISES))


@click.command("check-part", cls=Command)
@click.argument("part", metavar="MODULE:CLASS")
@click.option("-s", "--scheme", metavar="SCHEME", help="Scheme to check the part in, instead of some that take it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--rows", is_flag=True, hidden=True, help="Print a line of JSON per row, for a parent process.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def check_part(part: str, scheme: str | None, as_json: bool, rows: bool, quiet: bool) -> None:
    """Check that your own part of a scheme keeps the promises of every scheme.

    \b
    mpicomp check-part mine:RoundRobin
    mpicomp check-part mine:RoundRobin --scheme topk:selector=round-robin,stride=4
    mpirun -n 4 mpicomp check-part mine:RoundRobin

    MODULE is imported from the working folder or the installed packages; CLASS in it is a memory, selector, codec,
    exchange or schedule with @mpicomp.register_part. Without a launcher the check runs on one rank, then starts mpirun
    with three; under a launcher it runs on the ranks of the job. Exit code 2: a promise is not kept.
    """
    from ..comm.comm import Comm

    world = mpi.world()
    control = Comm(world)
    progress = Progress(quiet or control.rank != 0)
    found: list[Row] = []
    output = sys.stdout

    def report(row: Row) -> None:
        found.append(row)
        if rows and control.rank == 0:
            print(json.dumps(row), file=output, flush=True)
        progress(f"{row.promise} on {count(row.ranks, 'rank')}", len(found) / len(NAMES))

    alone = control.size == 1
    with redirect_stdout(sys.stderr):  # what the part prints
        subject = load(part, scheme, 1) if alone else load_everywhere(control, part, scheme)
        if isinstance(subject, Row):
            report(subject)
        else:
            part_checks.check(subject, lambda: Comm(world), control, report)
    if not mpi.launched() and found[0].passed:
        found += in_a_job(part, scheme, progress)
    progress.clear()
    if rows:
        return  # with 0, so that the launcher has nothing to say: the parent process judges
    if control.rank == 0:
        print_json(document(part, found)) if as_json else show(part, found)
    if any(row.passed is False for row in found):
        sys.exit(WRONG)


def load_everywhere(control: Comm, text: str, scheme: str | None) -> Subject | Row:
    """Import a part on all ranks; the row of the first rank on which it cannot be made (collective)."""
    mine = run_collectively(control, lambda: load(text, scheme, control.size))
    everyone = control.allgather(mine if isinstance(mine, Row) else None)
    return next((row._replace(reason=f"rank {rank}: {row.reason}") for rank, row in enumerate(everyone) if row), mine)


def load(text: str, scheme: str | None, ranks: int) -> Subject | Row:
    """Import a part; a row if it cannot be registered or made."""
    module, _, name = text.partition(":")
    if not all((*module.split("."), name)):
        raise InvalidArgument(f"a part is written MODULE:CLASS, as in package.module:Part, got {text!r}")
    try:
        with part_checks.no_exit(), inputs.importing(text) as part:
            try:
                return part_checks.subject(part, scheme)
            except (ImportError, AttributeError) as error:  # the part's own, not that it is missing
                return unmade(error, ranks)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"no part {text}: {error}") from error
    except InvalidArgument as error:
        if " needs what " not in str(error):
            raise
        return Row(PROTOCOL, ranks, False, str(error), "Add what is missing, or inherit from the protocol's class.")
    except Exception as error:  # a mistake of any kind in the part
        return unmade(error, ranks)


def unmade(error: Exception, ranks: int) -> Row:
    return Row(PROTOCOL, ranks, False, f"the part cannot be made: {part_checks.told(error)}",
               "The constructor takes every option by its name.")


def in_a_job(part: str, scheme: str | None, progress: Progress) -> list[Row]:
    """The rows of ``RANKS`` ranks, of a job that is started for them."""
    beside = Path(sys.executable).parent / "mpirun"
    launcher = str(beside) if beside.exists() else shutil.which("mpirun")
    if launcher is None:
        raise MpicompError(f"no mpirun to start {RANKS} ranks with: start them by your launcher, "
                           f"as in srun -n {RANKS} mpicomp check-part {part}")
    command = [launcher, "-n", str(RANKS), *python("from mpicomp.cli import main; main()"), "check-part", part,
               *(["--scheme", scheme] if scheme else []), "--rows", "--quiet"]
    environment = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "MPICOMP_TIMEOUT": "60", **os.environ}
    if os.geteuid() == 0:  # as in a container; Open MPI refuses otherwise
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    found = []
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            found.append(Row(*json.loads(line)))
            progress(f"{found[-1].promise} on {RANKS} ranks", len(found) / len(NAMES))
    if job.returncode:
        found.append(Row(NAMES[min(len(found), len(NAMES) - 1)], RANKS, False,
                         f"the job ended with exit code {job.returncode}; its messages are on stderr",
                         "Make the same calls of ctx.comm, with arrays of the same lengths, on every rank."))
    return found


def document(part: str, found: list[Row]) -> dict[str, object]:
    return {"format": "mpicomp-check-part", "version": 1, "part": part, "rows": [row._asdict() for row in found]}


def show(part: str, found: list[Row]) -> None:
    print_table(COLUMNS, [[row.promise, str(row.ranks), PASSED[row.passed]] for row in found], part)
    advice, promises = {}, dict[tuple[str, str], list[str]]()  # promises that share a sentence
    for row in found:
        if row.passed is not True:
            where = f"{count(row.ranks, 'rank')}: {'left out, ' if row.passed is None else ''}"
            promises.setdefault((where, row.reason), []).append(row.promise)
        if row.passed is False:
            advice[row.promise] = row.advice
    for (where, reason), names in promises.items():
        say(reason, f"{', '.join(names)}, {where}")
    for promise, text in advice.items():
        say(text, f"To do for {promise}: ")
