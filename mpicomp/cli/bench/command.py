"""``mpicomp bench``: measure collectives, dense and compressed, on this job's ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...bench import COLLECTIVES, Plan, plan, run
from ...errors import InvalidArgument, MpicompError
from .. import mpi
from ..options import HELP, Command, Group, OfflineCommand
from ..outcome import ExitCode
from ..output import OutputFile
from . import options as bench_options

if TYPE_CHECKING:
    from ...bench.compare import Baseline
    from ...bench.schema import Document


class BenchGroup(Group):
    """Runs its default command unless the first word is ``merge``, so that ``mpicomp bench --algorithm ring`` works."""

    @property
    def default_command(self) -> click.Command:
        return self.commands["run"]

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None,
                     **extra: Any) -> click.Context:  # fmt: skip
        """The context of the command that runs; the default command has the name and the configuration of the group."""
        if args[:1] == ["merge"]:
            return self.commands["merge"].make_context(f"{info_name} merge", args[1:], parent, **extra)
        return self.default_command.make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        return ctx.command.invoke(ctx)


class RunCommand(Command):
    """The default command: its help is that of the group."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] [COLLECTIVE]")
        formatter.write_usage(ctx.command_path, "merge [OPTIONS] FILE FILE ...", prefix="       ")


@click.group(cls=BenchGroup)
def bench() -> None:
    """Measure collectives, dense and compressed."""


@bench.command("run", cls=RunCommand, context_settings=HELP)
@bench_options.what_to_measure
@bench_options.timing
@bench_options.output
@bench_options.comparison
@bench_options.running
def run_bench(layout: str, as_json: bool, output: str | None, picture: str | None, force: bool, baseline: str | None,
              max_regress: str, dry_run: bool, quiet: bool, **options: Any) -> None:  # fmt: skip
    """Measure a collective's algorithms, and compression schemes, against each other.

    \b
    allreduce       dense, error-bounded and compressed (the default)
    reduce_scatter  MPI's own
    allgather       MPI's own, and Comm's
    alltoall        MPI's own
    bcast           MPI's own, and Comm's, from --root
    pingpong        half a round trip, from --root to the rank half the job away
    schemes         compressing and decompressing alone, and whole steps

    \b
    mpirun -n 4 mpicomp bench --algorithm native,ring --scheme scalecom:chunk=112
    mpirun -n 4 mpicomp bench --bound 1e-3,1e-4 --relative --data field.npy
    mpirun -n 4 mpicomp bench bcast -b 8 -e 128M -f 2 --output result.json
    mpicomp bench merge launch1.json launch2.json launch3.json

    All implementations take turns within a size. A time is the median over
    rounds of the slowest rank's time. Exit codes: 0 good, 1 bad options or a
    failed rank, 2 a wrong result, 3 slower than the --baseline, 124 a step did
    not return.
    """
    from ...bench import documents
    from ...bench.plot import plot
    from ..console import Progress
    from . import report as bench_report

    layout = "json" if as_json else layout
    two_places = layout == "nccl" and COLLECTIVES[options["collective"]].in_place
    chosen = make_plan(**{**options, "place": options["place"] or ("both" if two_places else "out")})
    suffix, drawn = check_files(output, picture)
    before = read_baseline(baseline, max_regress)
    comm = mpi.all_ranks()
    chosen.check_job(comm.size)
    if before is not None:
        before.check_job(chosen.collective, comm.size)
    if dry_run:
        bench_report.dry_run(comm, chosen)
        return
    read = [Path(baseline)] if baseline else []
    file, drawing = (OutputFile(comm, path, force, read) for path in (output, picture))
    progress = Progress(quiet or comm.rank != 0)
    report = bench_report.Report(comm, chosen, layout, progress, before)
    measured = run(comm, chosen, progress)  # raises for a missing device, before the head of the table
    report.begin()
    for rows in measured:
        report.add(rows)
    document = report.end(bench_report.head(comm, chosen))
    file.write(lambda path: documents.write(path, document, suffix))
    drawing.write(lambda path: plot(path, document, drawn))
    _end(document, before, prints=comm.rank == 0)


@bench.command(cls=OfflineCommand)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE FILE ...")
@bench_options.output
@bench_options.comparison
def merge(files: tuple[str, ...], layout: str, as_json: bool, output: str | None, picture: str | None, force: bool,
          baseline: str | None, max_regress: str) -> None:  # fmt: skip
    """Merge several launches of one measurement into one table (no MPI needed).

    FILEs are results of --output. A row's time is the median of the launches' medians; spread is the distance of the
    slowest from the fastest launch, in percent of it. Five launches prove much more than one long launch.
    """
    from ...bench import documents
    from ...bench.merge_runs import merge as merged
    from ...bench.plot import plot
    from .report import show_merged

    suffix, drawn = check_files(output, picture)
    before = read_baseline(baseline, max_regress)
    document = merged({name: documents.read(name) for name in files})
    read = [Path(one) for one in (*files, baseline) if one]
    file, drawing = (OutputFile(None, path, force, read) for path in (output, picture))
    if before is not None:
        before.compare(document["rows"])
    show_merged(document, "json" if as_json else layout)
    file.write(lambda path: documents.write(path, document, suffix))
    drawing.write(lambda path: plot(path, document, drawn))
    _end(document, before, prints=True)


def _end(document: Document, before: Baseline | None, prints: bool) -> None:
    """Print wrong and slower rows on stderr, and exit accordingly: a wrong result is worse than a slow one."""
    from ...bench.rows import wrong_results

    wrong = wrong_results(document["rows"])
    lines: list[str] = []
    slower: list[str] = []
    if before is not None:
        verdict, slower = before.verdict(document)
        lines = [f"# {verdict}", *(f"Slower: {line}" for line in slower)]
    if prints:
        sys.stderr.write("".join(f"{line}\n" for line in (*lines, *(f"Error: {line}" for line in wrong))))
    if wrong or slower:
        sys.exit(ExitCode.WRONG_RESULT if wrong else ExitCode.SLOWER)


def check_files(output: str | None, picture: str | None) -> tuple[str, str]:
    """The suffixes of the output files; raises before the work."""
    from ...bench.documents import check_suffix
    from ...bench.plot import check_plot

    return (check_suffix(output) if output else ""), (check_plot(picture) if picture else "")


def read_baseline(path: str | None, max_regress: str) -> Baseline | None:
    """The result to compare with."""
    from ...bench.compare import Baseline
    from ...bench.documents import read

    try:
        percent = float(max_regress.removesuffix("%"))
    except ValueError:
        raise InvalidArgument(f"--max-regress must be a percentage such as 10%, got {max_regress!r}") from None
    return Baseline(read(path), percent, path) if path else None


def make_plan(
    *, algorithm: tuple[str, ...], scheme: tuple[str, ...], sizes: tuple[str, ...],
    min_bytes: str | None, max_bytes: str | None, step_factor: float, step_bytes: str | None = None,
    collective: str = "allreduce", check: int = 1, no_check: bool = False, bound: tuple[str, ...] = (),
    data: str | None = None, dtype: str = "float32", **rest: Any,
) -> Plan:  # fmt: skip
    """The plan that the options describe; raises InvalidArgument."""
    what, bounds = COLLECTIVES[collective], plan.parse_bounds(bound)
    if bounds and data and data.endswith(plan.FILE) and not (sizes or min_bytes or max_bytes):
        from ...bench.fields import read_field

        nbytes: tuple[int, ...] = (int(read_field(data, plan.ALIASES.get(dtype, dtype)).nbytes),)
    elif sizes:
        nbytes = tuple(plan.parse_size(text) for text in plan.split_names(sizes))
    else:
        least, most = plan.parse_size(min_bytes or what.sizes[0]), plan.parse_size(max_bytes or what.sizes[1])
        nbytes = plan.size_range(least, most, step_factor, plan.parse_size(step_bytes) if step_bytes else None)
    schemes = plan.split_schemes(scheme)
    if schemes or collective == "schemes":
        schemes = _checked_schemes(schemes or ("all",))
    algorithms = plan.split_names(algorithm) or (("native", "auto") if bounds else what.algorithms())
    return Plan(sizes=nbytes, algorithms=algorithms, schemes=schemes, collective=collective, bounds=bounds,
                data=data or "", dtype=dtype, check=check > 0 and not no_check, **rest)


def _checked_schemes(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The schemes; ``all`` is every scheme with its defaults."""
    from ...schemes.registry import Scheme, names

    found = tuple(dict.fromkeys(one for text in texts for one in (names() if text == "all" else [text])))
    for text in found:
        try:
            Scheme.parse(text)
        except MpicompError as error:
            raise type(error)(f"--scheme {text}: {error}") from None
    return found
