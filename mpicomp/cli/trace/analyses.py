"""Commands of the analyses: options and output; `mpicomp.trace.views` describes what they print."""

from __future__ import annotations

from pathlib import Path

import click

from ...trace import views
from ..console import print_json
from ..options import Command, Decorator, all_of
from . import charts
from .console import as_json, chosen_ranks, render, roomy_console
from .summaries import SUMMARIES

_enclosed = click.option("--enclosed", type=click.Choice(["hidden", "exposed"]), default="hidden",
                         callback=lambda ctx, option, counted: counted == "hidden",
                         help="Class of communication recorded wholly inside a computation: exposed if it blocks.")
_png = click.option("--png", type=click.Path(path_type=Path), help="Draw it into this file (needs the extra plot).")
_force = click.option("--force", is_flag=True, help="Replace the picture if it exists.")


def _analysis(name: str, more: str, *options: Decorator, files: tuple[str, ...] = ("file",)) -> click.Command:
    """The command that calls ``mpicomp.trace.NAME`` with ``files`` and its options, and prints the result."""

    def run(as_json: bool, png: Path | None = None, force: bool = False, **given: object) -> None:
        from ... import trace
        from ...trace.analyses import plots
        from ...trace.files import files_of

        paths = [Path(str(given.pop(file))) for file in files]
        if png:
            plots.check(png, force, [one for path in paths for one in files_of(path)])
        result = getattr(trace, name)(*paths, **given)
        if png:
            plots.save(name, result, png, force)
        if as_json:
            print_json(result)
        elif name in charts.DRAWN:
            getattr(charts, name)(roomy_console(), result)
        else:
            render(roomy_console(), getattr(views, name)(result))

    run.__doc__ = f"{SUMMARIES[name]}\n\n{more}"
    arguments = (click.argument(file, type=click.Path(path_type=Path)) for file in files)
    return click.command(name, cls=Command, short_help=SUMMARIES[name])(all_of(*arguments, *options, as_json)(run))


def _step(ctx: click.Context, option: click.Parameter, text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


_COMMANDS = (
    _analysis("steps", "A step lasts as long as its slowest rank. A drift is reported if it exceeds the noise."),
    _analysis("breakdown", "Every instant counts once, for what began last: shares add up to 100%."),
    _analysis("overlap", "Per rank: how much communication ran while the rank worked, and how much it waited.",
              _enclosed),
    _analysis("collectives", "A call's time is its shortest rank's, which came last and did not wait."),
    _analysis("stragglers", "By the median lateness of each rank against the median arrival, on corrected clocks. "
              "Lateness below the clocks' uncertainty or the noise is not claimed.",
              click.option("--kind", help="Measure on this kind of event. [default: where waits are longest]")),
    _analysis("spikes", "Names the rank and phase that caused each one, or the communication.",
              click.option("--threshold", type=click.FloatRange(1, min_open=True), default=1.5,
                           help="A spike lasts more than this many medians.")),
    _analysis("codec", "Below the break-even bandwidth compression saves more time than it takes.",
              click.option("--busbw", type=float, metavar="GB/S",
                           help="Bus bandwidth of dense all-reduces on this network. [default: from the trace]")),
    _analysis("measures", "Values recorded by Reducer(measures=N) and recorder.metric."),
    _analysis("bandwidth", "Counts dense all-reduces; the model is latency + bytes / bandwidth.", _png, _force),
    _analysis("heatmap", "Rows are ranks, columns steps; large runs are averaged.",
              click.option("--value", default="duration",
                           help="Duration, lateness, sent, a class (communication ...) or a kind of event."),
              _png, _force),
    _analysis("matrix", "By the schedules of ring, halving_doubling and direct; other bytes have no known receiver.",
              click.option("--by", type=click.Choice(["auto", "rank", "node"]), default="auto"),
              _png, _force),
    _analysis("timeline", "Events of every rank on one clock.",
              click.option("--step", default="median", callback=_step, help="Number of a step, median or slowest."),
              click.option("--ranks", callback=chosen_ranks, metavar="0-3,8", help="[default: the first 64]"),
              _png, _force),
    _analysis("efficiency", "Factors in [0, 1] of the POP methodology, from the first step to the last.",
              click.option("--skip", type=click.IntRange(0), default=0,
                           help="Number of first steps to leave out."), _enclosed),
    _analysis("diff", "Time per rank and step in each phase, before (A) and after (B).",
              click.option("--skip", type=click.IntRange(0), default=1,
                           help="Number of first steps to leave out."), files=("a", "b")),
    _analysis("hang", "PATH is the spool folder of a run that hangs or was killed, or a recovered trace.",
              files=("path",)),
)  # fmt: skip
COMMANDS = {command.name: command for command in _COMMANDS}
