"""Training commands of apps on the common loop: data and model, training, report. An app provides its task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..._util.plurals import count
from ...comm.safety.collective_errors import run_collectively
from ..console import Column, print_json, print_table
from ..mpi import all_ranks
from ..output import OutputFile
from .options import Files, Session, exit_code, inputs, recorded, session, split, thinned

if TYPE_CHECKING:
    from ...apps.loop import Task
    from ...apps.loop_settings import LoopSettings, Point, Report
    from ...comm.comm import Comm

TABLE_ROWS = 20  # of the curve; --json has every point


def run(make_task: Callable[[Comm, int], Task], title: str, options: Mapping[str, object]) -> int:
    """Train and report (collective); returns the exit code.

    Parameters
    ----------
    make_task : callable
        Communicator and seed -> the app's task; collective, raises the same error on every rank.
    title : str
        Title of the trace; the scheme is appended.
    options : mapping
        The values of `training`, `looping` and `recording`.
    """
    from ...apps.loop_settings import LoopSettings

    files, settings = split(options)
    plot: str | None = settings.pop("plot")
    comm = all_ranks()
    picture = OutputFile(comm, plot, files.force, inputs())
    with session(comm, files) as running:
        draw = _drawer(comm, plot)
        report = _train(comm, make_task, LoopSettings(**settings), files, title, running)
        code = exit_code(comm, running.keeper, running.signals)
        if report.complete and plot is not None:  # the picture is of the whole run: the same command resumes it
            picture.write(lambda path: draw(path, report))
            if comm.rank == 0 and not files.as_json:
                click.echo(f"picture in {plot}")
    return code


def _train(comm: Comm, make_task: Callable[[Comm, int], Task], settings: LoopSettings, files: Files, title: str,
           running: Session) -> Report:  # fmt: skip
    """Train, and print the report."""
    from ...apps import loop
    from ...apps.settings import at_least

    progress = running.progress
    progress("reading data")
    at_least("seed", settings.seed, 0)  # before data is drawn by it
    task = make_task(comm, settings.seed)
    loop.check(comm, task, settings, running.keeper)  # before a trace is opened

    def say(point: Point, steps: int) -> None:
        progress(_line(point, steps, task.metric), point.step / steps)

    return recorded(comm, files, f"{title} {settings.scheme}", progress,
                    lambda trace, done: loop.train(comm, task, settings, trace, say, running.keeper, done),
                    lambda report: _show(report, files.as_json))


def _drawer(comm: Comm, plot: str | None) -> Callable[[Path, Report], None]:
    """The function that draws a report; raises on every rank, before training, if it cannot."""
    from ...apps import plots

    suffix = run_collectively(comm, lambda: plots.check(plot) if plot else "")
    return lambda path, report: plots.draw(path, report, suffix)


def _line(point: Point, steps: int, metric: str) -> str:
    return f"step {point.step}/{steps}: {metric} {point.metric:.4f}, loss {point.test_loss:.4f}"


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        print_json({"format": f"mpicomp-train-{report.app}", "version": 1, **report.to_dict()})
    else:
        _print(report)


def _print(report: Report) -> None:
    """The curve and the totals, for people."""
    from ...apps.settings import known

    settings, facts, seconds = report.settings, report.facts, report.seconds
    click.echo(
        f"{facts.get('data', {}).get('name', report.app)}: {count(known(settings.workers), 'worker')} with "
        f"{count(settings.batch, 'row')} on {count(facts['ranks'], 'rank')}\n"
        f"scheme {settings.scheme}, optimizer {settings.optimizer}, lr {settings.rate:g}, seed {settings.seed}\n"
    )
    titles = ("step", "epoch", "train loss", "test loss", report.metric, "density", "bits", "memory norm")
    rows = [[*_row(point), *(f"{values[place]:.4f}" for values in report.further.values())]
            for place, point in enumerate(report.series)]  # fmt: skip
    print_table([Column(title) for title in (*titles, *report.further)], thinned(rows, TABLE_ROWS),
                "bits: sent by a worker so far")
    best = "" if report.best is None else f"best {report.metric} {report.best:.4f} at step {report.best_step}; "
    click.echo(f"\n{best}{count(report.steps, 'step')}{', stopped early' * report.early}; "
               f"steps {seconds['steps']:.2f} s, evaluations {seconds['evaluations']:.2f} s")


def _row(point: Point) -> list[str]:
    return [str(point.step), f"{point.epoch:.2f}", f"{point.train_loss:.4f}", f"{point.test_loss:.4f}",
            f"{point.metric:.4f}", f"{point.density:.3e}", f"{point.bits:.4g}", f"{point.memory_norm:.4g}"]  # fmt: skip
