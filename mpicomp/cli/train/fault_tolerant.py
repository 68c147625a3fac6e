"""``mpicomp train logreg --ft``: training that continues without ranks that died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from ...errors import InvalidArgument, MpicompError
from ..console import SteadyProgress
from ..mpi import all_ranks, world
from .logreg_report import line, show
from .options import name_trace, split
from .options import recorder as recorder_for


def run(source: str, rows: int | None, options: Mapping[str, object]) -> int:
    """Train; the first survivor prints the report. Ends this process if ranks were lost; returns the exit code."""
    from ...apps.data import share
    from ...apps.fault_tolerant import Training, check
    from ...apps.settings import Settings
    from ...comm.safety import survivors

    files, values = split(options)
    if files.checkpoint is not None or files.checkpoint_every is not None or files.resume:
        raise InvalidArgument("--ft keeps a run alive without checkpoints: leave out --checkpoint, --checkpoint-every "
                              "and --resume")
    problem = survivors.problem()
    if problem is not None:
        raise MpicompError(problem)
    everyone = all_ranks()
    data = share(everyone, source, rows)
    settings = check(everyone, data, Settings(**values))  # before a trace is opened
    recorder = recorder_for(everyone, files, f"train logreg {source} {settings.scheme} --ft")
    with SteadyProgress(quiet=everyone.rank != 0) as progress:
        job = Training(data, settings, everyone.size, recorder,
                       lambda e, steps: progress(line(e, steps), e.step / steps))  # fmt: skip
        progress(f"training on {source}, with losses")
        group = survivors.run(world(), job)
        job.finish()
    if group.comm.rank == 0:
        show(job.result, files.as_json, losses=job.losses)
        _say(job.losses)
    recorder.close_after_loss(group.comm) if group.losses else recorder.close()
    if group.comm.rank == 0:
        name_trace(files)
    group.leave()
    return 0


def _say(losses: Iterable[Mapping[str, Any]]) -> None:
    for loss in losses:
        ranks = ", ".join(map(str, loss["ranks"]))
        click.echo(f"lost rank {ranks} before step {loss['step']}, and error memory of norm {loss['memory_norm']:.4g} "
                   f"with it; the others went on after {loss['seconds']:.2f} s", err=True)  # fmt: skip
